"""Erasure of a conversation from runs: first all copies, last the files that say what to look for."""

import gzip
import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from locomo.atomic_files import atomic_write_bytes
from memory_program.bank.forgetting import forget_namespace, namespace_conversation_id, text_from_banks
from memory_program.core.errors import ConfigError, ForgettingError
from memory_program.core.json_files import write_json
from memory_program.core.run_folder import (
    CONFIG_FILE,
    EMBEDDINGS_FILE,
    LOCK_FILE,
    SFT_CONVERSATIONS_FILE,
    lock_run_folder,
)
from memory_program.core.sqlite_address import sqlite_path
from memory_program.forget.mlflow_eraser import MlflowDeletion, forget_in_mlflow
from memory_program.forget.quote_matcher import QuoteMatcher, is_report, iter_files
from memory_program.forget.run_folders import (
    has_session_files,
    read_json_object,
    run_database_urls,
    text_from_dataset,
    text_from_questions,
    tracking_locations,
)
from memory_program.sft.session_lines import session_file
from memory_program.tracking import RECEIPT_FILE

_SQLITE_MAGIC = b"SQLite format 3\0"
_JOURNALS_WITHOUT_IDS = frozenset({"calls.jsonl", "proposals.jsonl"})
"""Journals whose lines do not name their conversation, and that hold text which is in no bank."""


@dataclass(slots=True)
class ForgetReport:
    """The banks, journal lines, files, and MLflow runs and traces that were deleted.

    ``left`` says of a database what only its owner can erase.
    """

    namespaces: list[str] = field(default_factory=list[str])
    databases: list[str] = field(default_factory=list[str])
    lines: int = 0
    files: list[Path] = field(default_factory=list[Path])
    left: dict[str, str] = field(default_factory=dict[str, str])
    tracking: dict[str, MlflowDeletion] = field(default_factory=dict[str, MlflowDeletion])


def forget_conversation(
    namespace: str, folders: Sequence[Path], db: str | None = None, tracking_uri: str | None = None
) -> ForgetReport:
    """Erase a conversation from run folders, their databases and MLflow.

    The sources (databases, settings and the conversation's own files) come last, when no copy is left: they
    say what to look for, so the same command can be repeated after any failure.

    Args:
        namespace: the conversation's id, which all of its banks have; or the whole name of its only bank.
        folders: the folders of the runs.
        db: database of their banks, beside every banks.sqlite in the folders; by default, those that their
            settings name.
        tracking_uri: MLflow's address; by default, mlflow.db beside each folder, and those that its runs
            recorded.

    Raises:
        ConfigError: a folder does not exist, its memories are in an unknown database, the conversation is
            unknown, or it has other banks, too.
        DatasetError: the dataset of a run without banks cannot be read.
        ForgettingError: a copy is left; the message says where.
        RecordError: a folder has neither banks nor the settings of a run.
        StoreError: a database is in use, or fails.
        RunInUseError: another process is using a folder.
    """
    _check_arguments(namespace, folders)
    conversation, done = namespace_conversation_id(namespace), ForgetReport()
    folders = [Path(os.path.abspath(folder)) for folder in folders]  # "." has no parent
    with ExitStack() as stack:
        runs_inside = {path.parent for folder in folders for path in folder.rglob(LOCK_FILE)}
        for folder in sorted({*folders, *runs_inside}):  # each run has a lock of its own
            stack.enter_context(lock_run_folder(folder))
        urls_by_folder = {folder: run_database_urls(folder, db) for folder in folders}
        without_banks = [folder for folder, urls in urls_by_folder.items() if not urls]
        done.databases = list(dict.fromkeys(url for urls in urls_by_folder.values() for url in urls))
        in_banks = [text_from_banks(url, conversation) for url in done.databases]
        texts = [text_from_dataset(folder, conversation) for folder in without_banks]
        in_datasets = [text for text in texts if text is not None]
        done.namespaces = [bank for text in in_banks for bank in text.banks]
        if namespace != conversation and any(bank != namespace for bank in done.namespaces):
            raise ConfigError(
                f"{namespace!r} is only one of the banks of {conversation!r}, which hold the same content: "
                f"{', '.join(done.namespaces)}: name {conversation!r} to erase all of them"
            )
        questions = [text_from_questions(folder, conversation) for folder in folders]
        known = [*in_banks, *in_datasets, *questions]
        matcher = QuoteMatcher(
            conversation,
            {line for text in known for line in text.texts},
            {line for text in known for line in text.texts_elsewhere},
            {line for text in known for line in text.captions},
        )
        own_files = [
            session_file(folder, conversation) for folder in without_banks if has_session_files(folder)
        ]
        # what says what to look for: databases with their journals, settings, own files
        settings = [
            path for folder in folders for path in (folder / CONFIG_FILE, *folder.rglob(RECEIPT_FILE))
        ]
        files = filter(None, map(sqlite_path, done.databases))
        banks = [Path(f"{path}{end}").resolve() for path in files for end in ("", "-wal", "-shm")]
        sources = [*banks, *(path.resolve() for path in (*settings, *own_files))]
        if done.namespaces or in_datasets:
            _forget_copies(namespace, folders, tracking_uri, matcher, sources, done)
        for url, text in zip(done.databases, in_banks, strict=True):
            for bank in text.banks or [namespace]:  # an earlier try may have deleted the rows, not the bytes
                left = forget_namespace(url, bank).left
                done.left.update({url: left} if left else {})
        if not done.namespaces and not in_datasets:
            raise ConfigError(
                f"namespace {namespace!r} is not in the database of the banks, and has taught no model in "
                "the folders: python -m memory_program.bank list shows all banks"
            )
        for path in iter_files(*own_files):
            path.unlink()
            done.files.append(path)
        for path in iter_files(*sources):
            _forget_in_file(path, matcher, done)
        is_left = partial(matcher.matches_file, predicate=matcher.matches_quote)
        _check_nothing_left(namespace, is_left, iter_files(*sources))
    return done


def _check_arguments(namespace: str, folders: Sequence[Path]) -> None:
    if not folders:
        raise ConfigError("no folder is given: name the --output-dir of a run")
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"there is no folder {str(folder)!r}: name the --output-dir of a run")
    if not namespace.strip():
        raise ConfigError("namespace is empty: give the id of the conversation to erase")


def _forget_copies(
    namespace: str,
    folders: Sequence[Path],
    tracking_uri: str | None,
    matcher: QuoteMatcher,
    sources: Sequence[Path],
    done: ForgetReport,
) -> None:
    """Erase everything but the sources, and check that no copy is left."""
    shared: list[Path] = []
    for uri, artifacts in tracking_locations(folders, tracking_uri):
        done.tracking[uri] = forget_in_mlflow(uri, artifacts, matcher)
        shared += [place for place in (sqlite_path(uri), artifacts) if place is not None]
    inside = [path for path in iter_files(*folders) if path.resolve() not in sources]
    for path in inside:
        _forget_in_file(path, matcher, done)
    for path in sorted({page for folder in folders for page in folder.parent.glob("*.html")}):
        if is_report(path) and matcher.matches_file(path, matcher.matches_name_or_long_quote):
            path.unlink()
            done.files.append(path)
    left = [path for path in inside if path.exists()]
    is_left = partial(matcher.matches_file, predicate=matcher.matches_quote)
    _check_nothing_left(namespace, is_left, left)
    is_left_in_shared = partial(matcher.matches_file, predicate=matcher.matches_long_quote)
    _check_nothing_left(namespace, is_left_in_shared, iter_files(*shared))


def _check_nothing_left(namespace: str, is_left: Callable[[Path], bool], paths: Iterable[Path]) -> None:
    """Search every byte of some files."""
    found = [path for path in paths if is_left(path)]
    databases = [str(path) for path in found if _is_sqlite(path)]
    left = [str(path) for path in found if str(path) not in databases]
    if databases:
        raise ForgettingError(
            f"text of {namespace!r} is left in {', '.join(databases)}: name a database of memories with "
            "--db, one of MLflow with --tracking-uri; delete only a copy: other people's text may be in it"
        )
    if left:
        raise ForgettingError(
            f"text of {namespace!r} is left in {', '.join(left)}: delete these files, and run the same "
            "command again"
        )


def _forget_in_file(path: Path, matcher: QuoteMatcher, done: ForgetReport) -> None:
    """Delete the matching lines of a journal, or a matching file of another kind."""
    if path.name == EMBEDDINGS_FILE:  # no vector says whose it is
        path.unlink()
        done.files.append(path)
        return
    if _is_sqlite(path):
        return  # databases are not edited as files
    if path.name not in _JOURNALS_WITHOUT_IDS and not matcher.matches_file(path):
        return
    if path.name == SFT_CONVERSATIONS_FILE:  # the rest says what else the model was taught
        taught = read_json_object(path)["conversations"]
        write_json(path, {"conversations": [key for key in taught if not matcher.matches_text(f'"{key}"')]})
        done.lines += 1
        return
    if not path.name.endswith((".jsonl", ".jsonl.gz")) or path.name in _JOURNALS_WITHOUT_IDS:
        path.unlink()
        done.files.append(path)
        return
    is_packed = path.suffix == ".gz"
    content = gzip.decompress(path.read_bytes()) if is_packed else path.read_bytes()
    lines = content.decode(errors="surrogateescape").split("\n")  # bytes that are not UTF-8 stay as they are
    rests = [_rest_of_line(line, matcher) for line in lines]
    left = "\n".join(rest for rest in rests if rest is not None).encode(errors="surrogateescape")
    atomic_write_bytes(path, gzip.compress(left, mtime=0) if is_packed else left)
    done.lines += sum(rest != line for rest, line in zip(rests, lines, strict=True))


def _rest_of_line(line: str, matcher: QuoteMatcher) -> str | None:
    """Return the line of a journal without the conversation, or None if nothing is left.

    A validation of a training lists scores by conversation. The line stays without those of this one, since a
    training cannot end without its validations.
    """
    if not matcher.matches_text(line):
        return line
    try:
        entry = json.loads(line)
        scores = {
            name: own for name, own in entry["scores"].items() if not matcher.matches_text(json.dumps(own))
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    rest = json.dumps({**entry, "scores": scores})
    return None if matcher.matches_text(rest) else rest


def _is_sqlite(path: Path) -> bool:
    """Say whether a file is an SQLite database, or its log."""
    with path.open("rb") as file:
        return file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC or path.name.endswith(("-wal", "-shm"))
