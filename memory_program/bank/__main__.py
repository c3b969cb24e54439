"""``python -m memory_program.bank``: look into banks, take operations back, forget, carry banks elsewhere."""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import tyro

from locomo.atomic_files import atomic_write_text
from memory_program.bank.bank import MemoryBank
from memory_program.bank.exchange import space_from_json, space_to_json
from memory_program.bank.forgetting import forget_namespace as forget_namespace
from memory_program.bank.memory import Memory, Operation
from memory_program.bank.memory_search import MemoryIndex
from memory_program.bank.store import BankStore
from memory_program.core.command_line import run_script
from memory_program.core.errors import ConfigError, StoreError
from memory_program.core.settings import DATABASE_PASSWORD_SOURCE, check_output_file, reject_password


def show(db: str, namespace: str | None = None, version: int | None = None) -> None:
    """List the namespaces of a database, or the live memories of one.

    Args:
        db: Database of the banks, as an SQLAlchemy URL, for example sqlite:///runs/evaluate/banks.sqlite.
        namespace: The bank; without it, all banks are named.
        version: Show the bank as it was after so many operations.
    """
    with BankStore.open_existing(_check_no_password(db)) as store:
        if namespace is None:
            if version is not None:
                raise ConfigError(f"version={version} is of one bank: name it with --namespace")
            for name in store.namespaces():
                bank = store.bank(name)
                _print_line(f"{name}  version: {bank.version}  memories: {len(bank)}")
            return
        bank = _load_bank(store, namespace)
    bank = bank if version is None else bank.at(version)
    if bank.core:
        _print_line(f"core  {bank.core}")
    for memory in bank.live():
        _print_line(_format_memory(memory))


def search(db: str, namespace: str, query: str, top_k: int = 10) -> None:
    """Search the live memories of a bank by their words, best first.

    Args:
        db: Database of the banks.
        namespace: The bank.
        query: What to look for.
        top_k: How many to show at most.
    """
    with BankStore.open_existing(_check_no_password(db)) as store:
        bank = _load_bank(store, namespace)
    for hit in MemoryIndex().search(bank, query, top_k):
        _print_line(f"{hit.score:6.2f}  {_format_memory(hit.memory)}")


def history(db: str, namespace: str, memory: str) -> None:
    """Show the operations that led to a memory, and those that followed from it.

    Args:
        db: Database of the banks.
        namespace: The bank.
        memory: Id of the memory, for example m12; it may be superseded.
    """
    with BankStore.open_existing(_check_no_password(db)) as store:
        bank = _load_bank(store, namespace)
    for operation in bank.history(memory):
        _print_operation(operation, bank.get)


def diff(db: str, namespace: str, older: int, newer: int | None = None) -> None:
    """Show what is live in one version of a bank and not in another.

    Args:
        db: Database of the banks.
        namespace: The bank.
        older: The version to begin with; 0 is the empty bank.
        newer: The version to end with; without it, the last.
    """
    with BankStore.open_existing(_check_no_password(db)) as store:
        changes = _load_bank(store, namespace).diff(older, newer)
    if changes.core_before != changes.core_after:
        _print_changes([f"core  {changes.core_before}"], [f"core  {changes.core_after}"])
    _print_changes(map(_format_memory, changes.superseded), map(_format_memory, changes.created))


def undo(db: str, namespace: str, count: int = 1) -> None:
    """Take back the last operations of a bank, and the sessions that they belong to.

    What is taken back stays in the database, as retracted. A session of which any operation is taken back
    counts as not ingested.

    Args:
        db: Database of the banks.
        namespace: The bank.
        count: How many operations.
    """
    with BankStore.open_existing(_check_no_password(db)) as store:
        bank = _load_bank(store, namespace)
        shorter = bank.undo(count)
        store.rewind(namespace, shorter.version)
    for operation in reversed(bank.operations(since=shorter.version)):
        _print_operation(operation, bank.get)
    _print_line(f"{namespace} is at version {shorter.version} again")


def forget_bank(db: str, namespace: str) -> None:
    """Delete all of a namespace for good, also what was taken back, and rewrite the database without it.

    This is the one command that destroys anything; no other can bring back what it forgot. For what runs
    made of a conversation (journals, reports, MLflow) there is python -m memory_program.forget.

    Args:
        db: Database of the banks.
        namespace: The bank.
    """
    forgotten = forget_namespace(_check_no_password(db), namespace)
    if not forgotten.was_known:
        raise ConfigError(f"namespace {namespace!r} is not in the database: list names those that are")
    _print_line(f"{namespace} is forgotten: {sum(forgotten.rows.values())} rows")


def export_file(db: str, namespace: str, out: Path) -> None:
    """Write a namespace, its log and its sessions, to a JSON file.

    Args:
        db: Database of the banks.
        namespace: The bank.
        out: The file to write.
    """
    check_output_file(out, "out")
    with BankStore.open_existing(_check_no_password(db)) as store:
        _load_bank(store, namespace)
        document = space_to_json(store.load(namespace))
    try:
        atomic_write_text(out, json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise ConfigError(
            f"out={out.as_posix()!r} cannot be written ({error.strerror}): name another file"
        ) from error
    _print_line(f"{out}  operations: {len(document['operations'])}  sessions: {len(document['sessions'])}")


def import_file(db: str, file: Path, namespace: str | None = None) -> None:
    """Read a namespace from a JSON file into a database, which is made if it is new.

    Args:
        db: Database of the banks.
        file: The file, as export writes it.
        namespace: A name for it; without one, that of the file. It must be new in the database.
    """
    try:
        document: Any = json.loads(file.read_text(encoding="utf-8"))  # Any: whatever the file holds
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{str(file)!r} is not JSON ({error}): name a file that export wrote") from error
    space = space_from_json(document, namespace)
    with BankStore(_check_no_password(db)) as store:
        if space.namespace in store.namespaces():
            raise ConfigError(f"namespace {space.namespace!r} is taken: give another one with --namespace")
        store.save(space)
    _print_line(f"{space.namespace}  version: {space.bank.version}  memories: {len(space.bank)}")


_COMMANDS: dict[str, Callable[..., None]] = {
    "list": show,
    "search": search,
    "history": history,
    "diff": diff,
    "undo": undo,
    "forget": forget_bank,
    "export": export_file,
    "import": import_file,
}


def main(arguments: Sequence[str] | None = None, prog: str = "python -m memory_program.bank") -> int:
    """Do what the command line says, and return the exit status."""
    return run_script(
        lambda: tyro.extras.subcommand_cli_from_dict(
            _COMMANDS, args=arguments, prog=prog, description=__doc__
        )
    )


def _check_no_password(db: str) -> str:
    """Check that an address has no password in it: whoever lists processes would see it."""
    return reject_password("db", DATABASE_PASSWORD_SOURCE, db)


def _load_bank(store: BankStore, namespace: str) -> MemoryBank:
    bank = store.bank(namespace)
    if bank.version == 0 and namespace not in store.namespaces():
        raise ConfigError(f"namespace {namespace!r} is not in the database: list names those that are")
    return bank


def _format_memory(memory: Memory) -> str:
    return f"{memory.memory_id}  {memory.kind.value}  {memory.line}  ({', '.join(memory.sources)})"


def _print_operation(operation: Operation, get: Callable[[str], Memory]) -> None:
    by = operation.provenance
    why = f": {by.reason}" if by.reason else ""
    _print_line(
        f"v{operation.version}  {operation.kind.value} by {by.actor} in {by.session_id or 'no session'}{why}"
    )
    after = [_format_memory(memory) for memory in operation.created]
    after += [] if operation.core is None else [f"core  {operation.core}"]
    _print_changes((_format_memory(get(name)) for name in operation.superseded), after)


def _print_changes(before: Iterable[str], after: Iterable[str]) -> None:
    for line in before:
        _print_line(f"  - {line}")
    for line in after:
        _print_line(f"  + {line}")


def _print_line(line: str) -> None:
    """Print one line; what a terminal would obey rather than show becomes a blank."""
    print("".join(character if character.isprintable() else " " for character in line))


if __name__ == "__main__":
    sys.exit(main())
