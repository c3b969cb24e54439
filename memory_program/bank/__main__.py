"""``python -m memory_program.bank``: list, search and undo memories; export, import and erase banks."""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import tyro
from tyro.conf import arg

from locomo.atomic_files import atomic_write_text
from memory_program.bank.bank import MemoryBank
from memory_program.bank.bank_markdown import apply_markdown, bank_from_markdown, bank_to_markdown
from memory_program.bank.foreign_exports import read_foreign_export, save_foreign_export
from memory_program.bank.forgetting import forget_namespace
from memory_program.bank.memory import Memory, Operation, Provenance
from memory_program.bank.memory_search import MemoryIndex
from memory_program.bank.record_json import space_from_json, space_to_json
from memory_program.bank.space import MemorySpace
from memory_program.bank.store import BankStore
from memory_program.bank.turn_buffer import SessionRule, TurnBuffer
from memory_program.core.command_line import run_script
from memory_program.core.errors import ConfigError, StoreError
from memory_program.core.json_files import read_json_file
from memory_program.core.settings import DATABASE_PASSWORD_SOURCE, check_output_file, reject_password

Db = Annotated[
    str, arg(help="Database of the banks: an SQLAlchemy URL, such as sqlite:///runs/evaluate/banks.sqlite.")
]
Namespace = Annotated[str, arg(help="Name of the bank.")]
_optional = partial(arg, help_behavior_hint="")  # the text says what None means, not "(default: None)"
AsOf = Annotated[date | None, _optional(help="Use the memories that were true on this day (YYYY-MM-DD).")]


def show(
    db: Db,
    namespace: Annotated[
        str | None, _optional(help="Name of the bank; without it, all banks are listed.")
    ] = None,
    version: Annotated[int | None, _optional(help="Show the bank after this many operations.")] = None,
    as_of: AsOf = None,
) -> None:
    """List the banks of a database, or the live memories of one bank.

    With --version it is the bank after that many operations. With --as-of it is what was true on a day, as
    far as the bank now knows.
    """
    if version is not None and as_of is not None:
        raise ConfigError(f"version={version} and as_of={as_of} are two times: give one of them")
    if namespace is not None:
        bank = _load_bank(db, namespace, as_of)
        bank = bank if version is None else bank.at(version)
        if bank.core:
            _print_line(f"core  {bank.core}")
        for memory in bank.live():
            _print_line(_format_memory(memory))
        return
    if version is not None or as_of is not None:
        flag = f"version={version}" if as_of is None else f"as_of={as_of}"
        raise ConfigError(f"{flag} is of one bank: name it with --namespace")
    with BankStore.open_existing(_check_no_password(db)) as store:
        waiting = _waiting_turns(store)
        for name in sorted({*store.namespaces(), *waiting}):
            bank = store.bank(name)
            queued = f"  waiting turns: {waiting[name]}" if name in waiting else ""
            _print_line(f"{name}  version: {bank.version}  memories: {len(bank)}{queued}")


def search(
    db: Db,
    namespace: Namespace,
    query: Annotated[str, arg(help="Words to search for.")],
    top_k: Annotated[int, arg(help="Maximum number of memories to show.")] = 10,
    as_of: AsOf = None,
) -> None:
    """Search the live memories of a bank by BM25, best first."""
    for hit in MemoryIndex().search(_load_bank(db, namespace, as_of), query, top_k):
        _print_line(f"{hit.score:6.2f}  {_format_memory(hit.memory)}")


def history(
    db: Db,
    namespace: Namespace,
    memory: Annotated[str, arg(help="Id of the memory, for example m12. It need not be live.")],
) -> None:
    """Show the operations before and after a memory, and from when until when each version was valid."""
    space = _load_space(db, namespace)
    validity = space.valid_times().memories
    for operation in space.bank.history(memory):
        _print_operation(operation, space.bank.get)
        for created in operation.created:
            held = validity[created.memory_id]
            days = f"valid from {held.valid_from or 'the start'}"
            days += f" until {held.valid_to}" if held.valid_to is not None else ""
            if held.valid_to is not None and held.valid_to <= (held.valid_from or date.min):
                days = "never valid"
            _print_line(f"  {created.memory_id} {days}")


def diff(
    db: Db,
    namespace: Namespace,
    older: Annotated[int, arg(help="The earlier version; 0 is the empty bank.")],
    newer: Annotated[int | None, _optional(help="The later version; by default, the current one.")] = None,
) -> None:
    """Compare the live memories of two versions of a bank."""
    changes = _load_bank(db, namespace).diff(older, newer)
    if changes.core_before != changes.core_after:
        _print_changes([f"core  {changes.core_before}"], [f"core  {changes.core_after}"])
    _print_changes(map(_format_memory, changes.superseded), map(_format_memory, changes.created))


def undo(
    db: Db,
    namespace: Namespace,
    count: Annotated[
        int | None, _optional(help="Number of operations to undo, in place of the last change.")
    ] = None,
) -> None:
    """Undo the last change of a bank: everything that one session, import or request wrote.

    A session with any undone operation counts as not ingested. Undone operations stay in the database,
    marked as retracted.
    """
    with BankStore.open_existing(_check_no_password(db)) as store:
        space = store.load(namespace)
        if not space.revision:
            raise _unknown_namespace(namespace, store)
        bank = space.bank
        shorter = bank.at(bank.version_before_last_change()) if count is None else bank.undo(count)
        store.rewind(namespace, shorter.version, loaded=space.revision)
    for operation in reversed(bank.operations(since=shorter.version)):
        _print_operation(operation, bank.get)
    _print_line(f"{namespace} is at version {shorter.version} again")


def forget_bank(db: Db, namespace: Namespace) -> None:
    """Erase a bank, including its retracted operations, and rewrite the database without it.

    This cannot be undone. To erase a conversation from journals, reports and MLflow as well, use
    memory-program forget.
    """
    deleted = forget_namespace(_check_no_password(db), namespace)
    if deleted.was_known:
        _print_line(f"{namespace} is forgotten: {sum(deleted.rows.values())} rows")
    elif deleted.had_bytes_left:
        _print_line(
            f"nothing of {namespace} is in the database, and the bytes that an earlier try left are cleared"
        )
    else:
        raise _unknown_namespace(namespace)
    if deleted.left:
        _print_line(deleted.left)


def export_file(
    db: Db,
    namespace: Namespace,
    out: Annotated[Path, arg(help="The file to write; its ending, .json or .md, chooses the format.")],
) -> None:
    """Export a bank to a file.

    A .json file has everything: operations, history and sessions. A .md file has the live memories, to read
    and to edit; import applies the edits. Neither has turns that wait to be written by a server.
    """
    check_output_file(out, "out")
    if out.suffix.lower() not in (".json", ".md"):
        raise ConfigError(f"out={out.as_posix()!r} must end in .json or .md, which chooses the format")
    with BankStore.open_existing(_check_no_password(db)) as store:
        waiting = _waiting_turns(store).get(namespace, 0)
        if namespace not in store.namespaces() and not waiting:
            raise _unknown_namespace(namespace)
        space = store.load(namespace)
    if out.suffix.lower() == ".md":
        text, summary = bank_to_markdown(space.bank), f"memories: {len(space.bank)}"
    else:
        document = space_to_json(space)
        text = json.dumps(document, indent=1) + "\n"
        summary = f"operations: {len(document['operations'])}  sessions: {len(document['sessions'])}"
    try:
        atomic_write_text(out, text)
    except OSError as error:
        raise ConfigError(
            f"out={out.as_posix()!r} cannot be written ({error.strerror}): name another file"
        ) from error
    _print_line(f"{out}  {summary}")
    if waiting:
        _print_line(
            f"not in the file: {waiting:,} turns that wait to be written; let memory-program serve write "
            "them, then export again"
        )


def import_file(
    db: Db,
    file: Annotated[Path, arg(help="The file to import. Its format is recognised by its content.")],
    namespace: Annotated[
        str | None, _optional(help="Name of the bank; by default, that in the file.")
    ] = None,
) -> None:
    """Import a file into a database, which is created if it does not exist.

    An exported .json file becomes a new bank, with its history and sessions. The edits of an exported .md
    file become operations; the file is refused if a line cannot be parsed. Memories of mem0 (get_all),
    Zep (edges) and Letta (passages, blocks of an agent file) are added to a bank. Conversations of
    ChatGPT and Claude (conversations.json), of Zep (messages of a thread) and of Letta (agent file) wait
    in the database until memory-program serve writes memories from them. Nothing is imported twice.
    """
    if file.is_dir() or not file.exists():
        what = "is a folder" if file.is_dir() else "does not exist"
        raise ConfigError(f"file={file.as_posix()!r} {what}: name the file to import")
    if file.suffix.lower() == ".md":
        try:
            edited = bank_from_markdown(file.read_text(encoding="utf-8-sig"))
        except UnicodeDecodeError as error:
            raise StoreError(f"{str(file)!r} is not UTF-8 ({error.reason}): save it as UTF-8") from error
        with BankStore(_check_no_password(db)) as store:
            space = store.load(edited.namespace if namespace is None else namespace)
            since = space.bank.version
            if since and space.namespace != edited.namespace:
                raise ConfigError(
                    f"the file is of namespace {edited.namespace!r}, and {space.namespace!r} has memories: "
                    "name a new one"
                )
            by = Provenance("import", f"import_{uuid4().hex[:12]}", f"from {file.name}")
            apply_markdown(space.bank, edited, by)
            if space.bank.version > since:
                store.save(space)
        for operation in space.bank.operations(since):
            _print_operation(operation, space.bank.get)
        _print_line(f"{space.namespace}  version: {space.bank.version}  memories: {len(space.bank)}")
        return
    try:
        document: Any = read_json_file(file)  # Any: whatever the file holds
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{str(file)!r} is not JSON ({error}): name a file that export wrote") from error
    if not (isinstance(document, dict) and "format" in document):
        found = read_foreign_export(document)
        if namespace is None:
            raise ConfigError(f"a file of {found.origin} names no bank: give one with --namespace")
        with BankStore(_check_no_password(db)) as store:
            added = save_foreign_export(store, namespace, found)
        parts = [f"memories: {added.memories}", f"turns: {added.turns}", f"imported before: {added.known}"]
        parts += [f"left out: {number} {what}" for what, number in found.left_out.items() if number]
        _print_line("  ".join([namespace, f"from {found.origin}", *parts]))
        return
    space = space_from_json(document, namespace)
    with BankStore(_check_no_password(db)) as store:
        if space.namespace in store.namespaces():
            raise ConfigError(f"namespace {space.namespace!r} is taken: give another one with --namespace")
        waiting = _waiting_turns(store).get(space.namespace, 0)
        if waiting:
            raise ConfigError(
                f"in namespace {space.namespace!r} {waiting:,} turns wait for memory-program serve to write "
                "them: give another one with --namespace, or delete them with the command forget"
            )
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
    """Run the command that the arguments name, and return the exit status."""
    return run_script(
        lambda: tyro.extras.subcommand_cli_from_dict(
            _COMMANDS, args=arguments, prog=prog, description=__doc__
        )
    )


def _check_no_password(db: str) -> str:
    """Check that a URL has no password in it, which a list of processes would show."""
    return reject_password("db", DATABASE_PASSWORD_SOURCE, db)


def _waiting_turns(store: BankStore) -> dict[str, int]:
    """Count the turns that wait for a server to write them, by namespace."""
    return {one.namespace: one.turns for one in TurnBuffer(store.database, SessionRule()).waiting()}


def _load_bank(db: str, namespace: str, as_of: date | None = None) -> MemoryBank:
    if as_of is not None:
        return _load_space(db, namespace).at_date(as_of).bank
    with BankStore.open_existing(_check_no_password(db)) as store:
        bank = store.bank(namespace)
        if bank.version == 0 and namespace not in store.namespaces():
            raise _unknown_namespace(namespace, store)
        return bank


def _load_space(db: str, namespace: str) -> MemorySpace:
    with BankStore.open_existing(_check_no_password(db)) as store:
        if namespace not in store.namespaces():
            raise _unknown_namespace(namespace, store)
        return store.load(namespace)


def _unknown_namespace(namespace: str, store: BankStore | None = None) -> ConfigError:
    waiting = _waiting_turns(store).get(namespace) if store is not None else None
    if waiting:
        wait = f"{waiting:,} turns wait for memory-program serve to write them"
        return ConfigError(f"{namespace!r} has no memories yet: {wait}")
    return ConfigError(f"namespace {namespace!r} is not in the database: the list command shows all of them")


def _format_memory(memory: Memory) -> str:
    return f"{memory.memory_id}  {memory.kind.value}  {memory.line}  ({', '.join(memory.sources)})"


def _print_operation(operation: Operation, get: Callable[[str], Memory]) -> None:
    by = operation.provenance
    reason = f": {by.reason}" if by.reason else ""
    session = by.session_id or "no session"
    _print_line(f"v{operation.version}  {operation.kind.value} by {by.actor} in {session}{reason}")
    after = [_format_memory(memory) for memory in operation.created]
    after += [] if operation.core is None else [f"core  {operation.core}"]
    _print_changes((_format_memory(get(name)) for name in operation.superseded), after)


def _print_changes(before: Iterable[str], after: Iterable[str]) -> None:
    for line in [*(f"  - {text}" for text in before), *(f"  + {text}" for text in after)]:
        _print_line(line)


def _print_line(line: str) -> None:
    """Print one line; control characters become blanks."""
    print("".join(character if character.isprintable() else " " for character in line))


if __name__ == "__main__":
    sys.exit(main())
