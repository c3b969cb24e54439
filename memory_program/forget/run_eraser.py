"""A conversation is forgotten: copies first, and last what says what to look for."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from locomo.atomic_files import write_whole
from memory_program.bank.forgetting import Told, conversation_of, told_of
from memory_program.bank.forgetting import forget as forget_namespace
from memory_program.core.errors import ConfigError, ForgettingError
from memory_program.core.run_folder import CONFIG, held
from memory_program.forget.conversation_text import told_in_data
from memory_program.forget.mlflow_eraser import Untracked, forget_tracked
from memory_program.forget.quote_matcher import Telling, files_in
from memory_program.forget.run_places import banks_of, files_of, is_of_lines, reports_beside, tracking_of
from memory_program.sft.session_lines import file_of
from memory_program.tracking import RECEIPT, database_of

_SQLITE = b"SQLite format 3\0"
_UNNAMED = frozenset({"calls.jsonl", "proposals.jsonl"})
"""Journals whose lines do not say of which conversation they are, and that keep what no bank took over."""


@dataclass(slots=True)
class Forgotten:
    """What was done."""

    namespaces: list[str] = field(default_factory=list[str])
    databases: list[str] = field(default_factory=list[str])
    lines: int = 0
    files: list[Path] = field(default_factory=list[Path])
    tracking: dict[str, Untracked] = field(default_factory=dict[str, Untracked])

    @property
    def runs(self) -> int:
        """How many runs of MLflow were deleted."""
        return sum(tracked.runs for tracked in self.tracking.values())

    @property
    def traces(self) -> int:
        """How many traces of MLflow were deleted."""
        return sum(tracked.traces for tracked in self.tracking.values())


def forget(
    namespace: str, folders: Sequence[Path], db: str | None = None, tracking_uri: str | None = None
) -> Forgotten:
    """Forget a conversation in the folders of runs, their databases and MLflow.

    Databases, settings and the conversation's own lines come last, when nothing else is left: they say what
    to look for, so that the same command, after whatever went wrong, does what is left to do.

    Args:
        namespace: the conversation's id, which all of its banks have; or the whole name of its only bank.
        folders: the folders of the runs.
        db: database of their banks; without it, every banks.sqlite in the folders, and what their settings
            name.
        tracking_uri: MLflow's address; without it, mlflow.db beside each folder, and what its runs note.

    Raises:
        ConfigError: a folder is not there, its memories are in a database that is not known, nothing knows
            the conversation, or it has other banks, too.
        DatasetError: the data of a run without banks cannot be read.
        ForgettingError: something of it is left; the message says where.
        RecordError: a folder has neither banks nor the settings of a run.
        StoreError: a database is in use, or fails.
        RunInUseError: another process works in a folder.
    """
    _check_asked(namespace, folders)
    conversation, done = conversation_of(namespace), Forgotten()
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(held(folder))
        banks = {folder: [db] if db is not None else banks_of(folder) for folder in folders}
        databases = done.databases = list(dict.fromkeys(url for urls in banks.values() for url in urls))
        in_banks = [told_of(url, conversation) for url in databases]
        in_data = [told_in_data(folder, conversation) for folder, urls in banks.items() if not urls]
        done.namespaces = [bank for told in in_banks for bank in told.banks]
        _check_named(namespace, done.namespaces)
        telling = _telling(conversation, [*in_banks, *in_data])
        of_lines = [folder for folder, urls in banks.items() if not urls and is_of_lines(folder)]
        lines = [file_of(folder, conversation) for folder in of_lines]
        sources = _sources(folders, databases, lines)
        is_known = bool(done.namespaces or in_data)
        if is_known:
            _forget_copies(namespace, folders, tracking_uri, telling, sources, done)
        for url, told in zip(databases, in_banks, strict=True):
            for bank in told.banks or [namespace]:  # without rows: an earlier try may have deleted just those
                forget_namespace(url, bank)
        if not is_known:
            raise ConfigError(
                f"namespace {namespace!r} is not in the database of the banks: python -m memory_program.bank "
                "list names those that are"
            )
        _forget_sources(namespace, telling, sources, lines, done)
    return done


def _sources(folders: Sequence[Path], databases: Sequence[str], lines: Sequence[Path]) -> list[Path]:
    """List the files that say what to look for, and where."""
    notes = [path for folder in folders for path in (folder / CONFIG, *folder.rglob(RECEIPT))]
    files = [path for url in databases for path in files_of(url)]
    return [*files, *(path.resolve() for path in (*notes, *lines))]


def _forget_sources(
    namespace: str, telling: Telling, sources: Sequence[Path], lines: Sequence[Path], done: Forgotten
) -> None:
    """Forget the sources, of which the conversation's own ``lines`` go whole.

    Raises:
        ForgettingError: something is left.
    """
    for path in files_in(*lines):
        path.unlink()
        done.files.append(path)
    for path in files_in(*sources):
        _forget_in(path, telling, done)
    _check_clean(namespace, partial(telling.is_in_file, is_in=telling.is_quoted), files_in(*sources))


def _forget_copies(
    namespace: str,
    folders: Sequence[Path],
    tracking_uri: str | None,
    telling: Telling,
    sources: Sequence[Path],
    done: Forgotten,
) -> None:
    """Forget all but the sources, which say what to look for.

    Raises:
        ForgettingError: something is left.
    """
    shared: list[Path] = []
    for uri, artifacts in tracking_of(folders, tracking_uri):
        done.tracking[uri] = forget_tracked(uri, artifacts, telling)
        shared += [place for place in (database_of(uri), artifacts) if place is not None]
    inside = [path for path in files_in(*folders) if path.resolve() not in sources]
    for path in inside:
        _forget_in(path, telling, done)
    for path in reports_beside(folders):
        if telling.is_in_file(path, telling.is_about):
            path.unlink()
            done.files.append(path)
    left = [path for path in inside if path.exists()]
    _check_clean(namespace, partial(telling.is_in_file, is_in=telling.is_quoted), left)
    _check_clean(namespace, partial(telling.is_in_file, is_in=telling.is_quoted_at_length), files_in(*shared))


def _telling(conversation: str, told: Sequence[Told]) -> Telling:
    texts = {text for one in told for text in one.texts}
    others = {text for one in told for text in one.others}
    return Telling(conversation, texts, others, {text for one in told for text in one.captions})


def _check_asked(namespace: str, folders: Sequence[Path]) -> None:
    if not folders:
        raise ConfigError("folder names none: give the --output-dir of a run")
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"there is no folder {str(folder)!r}: name the --output-dir of a run")
    if not namespace.strip():
        raise ConfigError("namespace is empty: give the id of the conversation that is to be forgotten")


def _check_named(namespace: str, banks: Sequence[str]) -> None:
    """Check that a bank's whole name names all that a conversation has: what they tell is the same.

    Raises:
        ConfigError: it does not.
    """
    conversation = conversation_of(namespace)
    if namespace != conversation and any(bank != namespace for bank in banks):
        raise ConfigError(
            f"{namespace!r} is not all that is kept of {conversation!r}, which has the banks "
            f"{', '.join(banks)}: name {conversation!r} to forget all of them"
        )


def _check_clean(namespace: str, is_left_in: Callable[[Path], bool], paths: Iterable[Path]) -> None:
    """Search every byte of some files.

    Raises:
        ForgettingError: something is left in some of them.
    """
    left = [str(path) for path in paths if is_left_in(path)]
    if left:
        raise ForgettingError(
            f"something of {namespace!r} is left in {', '.join(left)}: delete these files, and run the same "
            "command again"
        )


def _forget_in(path: Path, telling: Telling, done: Forgotten) -> None:
    """Take the conversation out of a file: lines of a journal, else the whole file."""
    with path.open("rb") as file:
        if file.read(len(_SQLITE)) == _SQLITE or path.name.endswith(("-wal", "-shm")):
            return  # a database, which is asked and not edited
    if path.name not in _UNNAMED and not telling.is_in_file(path):
        return
    if path.suffix != ".jsonl" or path.name in _UNNAMED:
        path.unlink()
        done.files.append(path)
        return
    lines = path.read_text(encoding="utf-8").split("\n")
    kept = [line for line in lines if not telling.is_in(line)]
    write_whole(path, "\n".join(kept))
    done.lines += len(lines) - len(kept)
