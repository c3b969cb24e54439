"""A conversation is forgotten: copies first, and last what says what to look for."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from locomo.atomic_files import atomic_write_text
from memory_program.bank.forgetting import ConversationText, namespace_conversation_id, text_from_banks
from memory_program.bank.forgetting import forget_namespace as forget_namespace
from memory_program.core.errors import ConfigError, ForgettingError
from memory_program.core.run_folder import CONFIG_FILE, lock_run_folder
from memory_program.forget.conversation_text import text_from_dataset
from memory_program.forget.mlflow_eraser import MlflowDeletion, forget_in_mlflow
from memory_program.forget.quote_matcher import QuoteMatcher, iter_files
from memory_program.forget.run_places import (
    database_files,
    has_session_files,
    reports_beside,
    run_database_urls,
    tracking_locations,
)
from memory_program.sft.session_lines import session_file
from memory_program.tracking import RECEIPT_FILE, sqlite_path

_SQLITE_MAGIC = b"SQLite format 3\0"
_JOURNALS_WITHOUT_IDS = frozenset({"calls.jsonl", "proposals.jsonl"})
"""Journals whose lines do not say of which conversation they are, and that keep what no bank took over."""


@dataclass(slots=True)
class ForgetReport:
    """What was done."""

    namespaces: list[str] = field(default_factory=list[str])
    databases: list[str] = field(default_factory=list[str])
    lines: int = 0
    files: list[Path] = field(default_factory=list[Path])
    tracking: dict[str, MlflowDeletion] = field(default_factory=dict[str, MlflowDeletion])

    @property
    def runs(self) -> int:
        """How many runs of MLflow were deleted."""
        return sum(tracked.runs for tracked in self.tracking.values())

    @property
    def traces(self) -> int:
        """How many traces of MLflow were deleted."""
        return sum(tracked.traces for tracked in self.tracking.values())


def forget_conversation(
    namespace: str, folders: Sequence[Path], db: str | None = None, tracking_uri: str | None = None
) -> ForgetReport:
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
    _check_arguments(namespace, folders)
    conversation, done = namespace_conversation_id(namespace), ForgetReport()
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(lock_run_folder(folder))
        banks = {folder: [db] if db is not None else run_database_urls(folder) for folder in folders}
        databases = done.databases = list(dict.fromkeys(url for urls in banks.values() for url in urls))
        in_banks = [text_from_banks(url, conversation) for url in databases]
        in_data = [text_from_dataset(folder, conversation) for folder, urls in banks.items() if not urls]
        done.namespaces = [bank for told in in_banks for bank in told.banks]
        _check_names_every_bank(namespace, done.namespaces)
        telling = _quote_matcher(conversation, [*in_banks, *in_data])
        of_lines = [folder for folder, urls in banks.items() if not urls and has_session_files(folder)]
        lines = [session_file(folder, conversation) for folder in of_lines]
        sources = _source_files(folders, databases, lines)
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


def _source_files(folders: Sequence[Path], databases: Sequence[str], lines: Sequence[Path]) -> list[Path]:
    """List the files that say what to look for, and where."""
    notes = [path for folder in folders for path in (folder / CONFIG_FILE, *folder.rglob(RECEIPT_FILE))]
    files = [path for url in databases for path in database_files(url)]
    return [*files, *(path.resolve() for path in (*notes, *lines))]


def _forget_sources(
    namespace: str, telling: QuoteMatcher, sources: Sequence[Path], lines: Sequence[Path], done: ForgetReport
) -> None:
    """Forget the sources, of which the conversation's own ``lines`` go whole.

    Raises:
        ForgettingError: something is left.
    """
    for path in iter_files(*lines):
        path.unlink()
        done.files.append(path)
    for path in iter_files(*sources):
        _forget_in_file(path, telling, done)
    _check_nothing_left(
        namespace, partial(telling.matches_file, predicate=telling.matches_quote), iter_files(*sources)
    )


def _forget_copies(
    namespace: str,
    folders: Sequence[Path],
    tracking_uri: str | None,
    telling: QuoteMatcher,
    sources: Sequence[Path],
    done: ForgetReport,
) -> None:
    """Forget all but the sources, which say what to look for.

    Raises:
        ForgettingError: something is left.
    """
    shared: list[Path] = []
    for uri, artifacts in tracking_locations(folders, tracking_uri):
        done.tracking[uri] = forget_in_mlflow(uri, artifacts, telling)
        shared += [place for place in (sqlite_path(uri), artifacts) if place is not None]
    inside = [path for path in iter_files(*folders) if path.resolve() not in sources]
    for path in inside:
        _forget_in_file(path, telling, done)
    for path in reports_beside(folders):
        if telling.matches_file(path, telling.matches_name_or_long_quote):
            path.unlink()
            done.files.append(path)
    left = [path for path in inside if path.exists()]
    _check_nothing_left(namespace, partial(telling.matches_file, predicate=telling.matches_quote), left)
    _check_nothing_left(
        namespace, partial(telling.matches_file, predicate=telling.matches_long_quote), iter_files(*shared)
    )


def _quote_matcher(conversation: str, told: Sequence[ConversationText]) -> QuoteMatcher:
    texts = {text for one in told for text in one.texts}
    others = {text for one in told for text in one.texts_elsewhere}
    return QuoteMatcher(conversation, texts, others, {text for one in told for text in one.captions})


def _check_arguments(namespace: str, folders: Sequence[Path]) -> None:
    if not folders:
        raise ConfigError("folder names none: give the --output-dir of a run")
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"there is no folder {str(folder)!r}: name the --output-dir of a run")
    if not namespace.strip():
        raise ConfigError("namespace is empty: give the id of the conversation that is to be forgotten")


def _check_names_every_bank(namespace: str, banks: Sequence[str]) -> None:
    """Check that a bank's whole name names all that a conversation has: what they tell is the same.

    Raises:
        ConfigError: it does not.
    """
    conversation = namespace_conversation_id(namespace)
    if namespace != conversation and any(bank != namespace for bank in banks):
        raise ConfigError(
            f"{namespace!r} is not all that is kept of {conversation!r}, which has the banks "
            f"{', '.join(banks)}: name {conversation!r} to forget all of them"
        )


def _check_nothing_left(namespace: str, is_left_in: Callable[[Path], bool], paths: Iterable[Path]) -> None:
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


def _forget_in_file(path: Path, telling: QuoteMatcher, done: ForgetReport) -> None:
    """Take the conversation out of a file: lines of a journal, else the whole file."""
    with path.open("rb") as file:
        if file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC or path.name.endswith(("-wal", "-shm")):
            return  # a database, which is asked and not edited
    if path.name not in _JOURNALS_WITHOUT_IDS and not telling.matches_file(path):
        return
    if path.suffix != ".jsonl" or path.name in _JOURNALS_WITHOUT_IDS:
        path.unlink()
        done.files.append(path)
        return
    lines = path.read_text(encoding="utf-8").split("\n")
    kept = [line for line in lines if not telling.matches_text(line)]
    atomic_write_text(path, "\n".join(kept))
    done.lines += len(lines) - len(kept)
