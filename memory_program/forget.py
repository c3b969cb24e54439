"""``python -m memory_program.forget``: forget a conversation wherever runs have left something of it.

A run keeps memories in a database, replies and answers in journals, reports, and what MLflow was given. This
goes through all of it: the lines of journals that tell of the conversation are taken out, files that quote it
are deleted (a report is made anew by ``evaluate.py --mode report``), as are replies kept for resuming;
MLflow's runs and traces that quote it are deleted for good, all bytes left are searched, and its namespaces
are deleted from the database.

It goes by what was said and remembered, not by where copies should be; for a run without memories, by its
data, and by name; for trajectories and synthesized questions, by their file of the conversation. What others
share, MLflow and the pages beside the folder, is deleted if it names the conversation or quotes a line of
some length: small talk is said everywhere. A line of fewer than twelve letters, or a rewording that is in no
bank, is found only where the conversation is named beside it. What was trained on it stays in weights, and
copies elsewhere stay: backups, a tracking server's own files, the data themselves, and what was written
outside the folder of the run (a saved program with demos, a page at ``--page`` unless that is beside the
folder).
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import tyro

from locomo.files import write_whole
from memory_program.bank.forgetting import Told, conversation_of, told_of
from memory_program.bank.forgetting import forget as forget_namespace
from memory_program.bank.records import session_to_json
from memory_program.command_line import exit_status
from memory_program.errors import ConfigError, ForgettingError, RecordError
from memory_program.forget_mlflow import Untracked, forget_tracked
from memory_program.learning.session_lines import file_of, read_lines
from memory_program.run_folder import CONFIG, held
from memory_program.settings import without_password
from memory_program.telling import Telling, files_in, is_report
from memory_program.tracking import RECEIPT, database_of, tracking_place

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
    _check_folders(folders)
    if not namespace.strip():
        raise ConfigError("namespace is empty: give the id of the conversation that is to be forgotten")
    conversation, done = conversation_of(namespace), Forgotten()
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(held(folder))
        banks = {folder: [db] if db is not None else _banks_of(folder) for folder in folders}
        databases = done.databases = list(dict.fromkeys(url for urls in banks.values() for url in urls))
        in_banks = [told_of(url, conversation) for url in databases]
        in_data = [_told_in_data(folder, conversation) for folder, urls in banks.items() if not urls]
        done.namespaces = [bank for told in in_banks for bank in told.banks]
        _check_named(namespace, done.namespaces)
        telling = _telling(conversation, [*in_banks, *in_data])
        of_lines = [folder for folder, urls in banks.items() if not urls and _is_of_lines(folder)]
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
    files = [path for url in databases for path in _files_of(url)]
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


def _check_folders(folders: Sequence[Path]) -> None:
    if not folders:
        raise ConfigError("folder names none: give the --output-dir of a run")
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"there is no folder {str(folder)!r}: name the --output-dir of a run")


def _telling(conversation: str, told: Sequence[Told]) -> Telling:
    texts = {text for one in told for text in one.texts}
    others = {text for one in told for text in one.others}
    return Telling(conversation, texts, others, {text for one in told for text in one.captions})


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
    for uri, artifacts in _tracking_of(folders, tracking_uri):
        done.tracking[uri] = forget_tracked(uri, artifacts, telling)
        shared += [place for place in (database_of(uri), artifacts) if place is not None]
    inside = [path for path in files_in(*folders) if path.resolve() not in sources]
    for path in inside:
        _forget_in(path, telling, done)
    for path in _reports_beside(folders):
        if telling.is_in_file(path, telling.is_about):
            path.unlink()
            done.files.append(path)
    left = [path for path in inside if path.exists()]
    _check_clean(namespace, partial(telling.is_in_file, is_in=telling.is_quoted), left)
    _check_clean(namespace, partial(telling.is_in_file, is_in=telling.is_quoted_at_length), files_in(*shared))


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


def _banks_of(folder: Path) -> list[str]:
    """List the databases of the banks of a run that are known: in its folder, and as its settings name them.

    Runs have others inside: of the ceiling, or of what a training compares.

    Raises:
        ConfigError: it has written memories, and none is known.
        RecordError: its settings cannot be read.
    """
    known = [f"sqlite:///{path.as_posix()}" for path in sorted(folder.rglob("banks.sqlite"))]
    named = _read(folder / CONFIG).get("db_url")
    known += [named] if isinstance(named, str) else []
    systems = [_read(run).get("system") for run in folder.glob("*/run.json")]
    if not known and any(isinstance(system, dict) and system.get("writer") for system in systems):
        raise ConfigError(f"the banks of {str(folder)!r} are not in it: name their database with --db")
    return known


def _tracking_of(folders: Sequence[Path], named: str | None) -> list[tuple[str, Path | None]]:
    """List MLflow's places: the one that is named, or those beside the folders and all that runs note."""
    places = [tracking_place(folder, named) for folder in folders]
    if named is None:
        settings = [_read(folder / CONFIG) for folder in folders]
        noted = [config.get("tracking_uri") for config in settings if config.get("mlflow", True)]
        noted += [_read(path).get("uri") for folder in folders for path in sorted(folder.rglob(RECEIPT))]
        places += [(uri, None) for uri in noted if isinstance(uri, str)]
    apart: dict[str, tuple[str, Path | None]] = {}  # one file may have several addresses
    for uri, artifacts in places:
        file = database_of(uri)
        apart.setdefault(str(file.resolve()) if file is not None else uri, (uri, artifacts))
    return list(apart.values())


def _is_of_lines(folder: Path) -> bool:
    """Whether a folder is no run's, but of trajectories or synthesized questions."""
    return not (folder / CONFIG).exists() and any(folder.glob("*.jsonl"))


def _read(path: Path) -> dict[str, Any]:
    """Read a JSON object; an empty one where there is no file.

    Raises:
        RecordError: it is damaged.
    """
    try:
        return dict(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError) as error:
        raise RecordError(
            f"{str(path)!r} cannot be read ({error}): delete it, or name another folder"
        ) from error


def _files_of(url: str) -> list[Path]:
    """List the files that a database may have; none if it is on a server."""
    path = database_of(url)
    return [] if path is None else [path.with_name(path.name + end).resolve() for end in ("", "-wal", "-shm")]


def _reports_beside(folders: Iterable[Path]) -> list[Path]:
    """List the reports beside the folders of runs, where those of several runs are."""
    pages = {page for folder in folders for page in folder.parent.glob("*.html")}
    return [page for page in sorted(pages) if is_report(page)]


def _told_in_lines(folder: Path, conversation: str) -> Told:
    """Collect what stands in files with a line for each session: trajectories, synthesized questions.

    Raises:
        ConfigError: the conversation has none.
        RecordError: one cannot be read.
    """
    own, told = file_of(folder, conversation), Told()
    if not own.is_file():
        names = ", ".join(sorted(path.stem for path in folder.glob("*.jsonl")))
        raise ConfigError(f"{str(folder)!r} has no file of conversation {conversation!r}: it has {names}")
    for path in folder.glob("*.jsonl"):
        for line in read_lines(path):
            told.add(line, is_of_it=path == own)
    return told


def _told_in_data(folder: Path, conversation: str) -> Told:
    """Collect what was said in the data of a run that writes no memories; its settings name them.

    A folder without settings may be one of trajectories, or of synthesized questions.

    Raises:
        ConfigError: it writes memories, to a database elsewhere, or its data have no such conversation.
        DatasetError: the data cannot be read.
        RecordError: the folder is not that of a run.
    """
    if _is_of_lines(folder):
        return _told_in_lines(folder, conversation)
    # DSPy and the rest: what banks tell is read without them
    from memory_program.config import EvaluateConfig
    from memory_program.evaluation.datasets import load_dataset
    from memory_program.evaluation.reporting import settings_of

    settings = settings_of(folder, EvaluateConfig())
    if any(system.writes_with_a_model for system in settings.system_names):
        raise ConfigError(f"the banks of {str(folder)!r} are not in it: name their database with --db")
    told = Told()
    known = load_dataset(settings).conversations
    for one in known:
        for session in one.sessions:
            told.add(json.loads(session_to_json(session)), is_of_it=one.conversation_id == conversation)
    is_known = any(one.conversation_id == conversation for one in known)
    # a run of before, on other data, may have left some of it
    if not is_known and not any(_is_about(path, conversation) for path in folder.rglob("*.jsonl")):
        raise ConfigError(
            f"conversation {conversation!r} is neither in banks nor in the data of {str(folder)!r}"
        )
    return told


def _is_about(journal: Path, conversation: str) -> bool:
    """Whether a record of a journal is of a conversation, or of a question of it."""
    own = re.compile(rf'"conversation_id": ?{re.escape(json.dumps(conversation))}')
    part = re.compile(rf'"question_id": ?"{re.escape(json.dumps(conversation)[1:-1])}:')
    with journal.open(encoding="utf-8", errors="replace") as lines:
        return any(own.search(line) or part.search(line) for line in lines)


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


# -- files ---------------------------------------------------------------------------------------


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says, and return the exit status."""
    return exit_status(lambda: tyro.cli(_command, args=arguments, prog="python -m memory_program.forget"))


def _command(
    namespace: str, folder: list[Path], db: str | None = None, tracking_uri: str | None = None
) -> None:
    """Forget a conversation wherever runs have left something of it: memories, journals, reports, MLflow.

    Runs of MLflow and reports beside the folder that name it, or quote a line of 30 letters or more, are
    deleted, whichever data they are of; MLflow's bin is emptied of them. Files in the folder that quote it
    are deleted, but of journals only lines, unless these do not tell whose they are (replies kept for
    resuming).
    Weights that were trained on it, and copies elsewhere, are left.

    Args:
        namespace: The conversation's id, or the whole name of its bank if it has one alone.
        folder: The folder of the run, for example runs/evaluate, or of all runs that share a database; or of
            trajectories or synthesized questions.
        db: Database of the banks; without it, each banks.sqlite in the folders, and what their settings name.
        tracking_uri: MLflow's tracking address; without it, mlflow.db beside each folder, and what its runs
            note.
    """
    for name, address in (("db", db), ("tracking_uri", tracking_uri)):
        without_password(name, "the environment (PGPASSWORD, MLFLOW_TRACKING_PASSWORD)", address or "")
    done = forget(namespace, folder, db, tracking_uri)
    print(f"forgotten: {', '.join(done.namespaces) or namespace}")
    print(f"lines of journals: {done.lines}  runs of MLflow: {done.runs}  traces: {done.traces}")
    for path in done.files:
        print(f"deleted: {path}")
    there = {uri: tracked for uri, tracked in done.tracking.items() if tracked.is_there}
    places = ", ".join([*map(str, folder), *done.databases, *(f"MLflow at {uri}" for uri in there)])
    print(f"nothing of it is left in {places}, or reports beside")
    for uri in done.tracking.keys() - there.keys():
        print(f"no MLflow is at {uri}")
    for uri in (uri for uri, tracked in there.items() if tracked.is_in_bin):
        print(f"but {uri} has runs of it in its bin, until whoever keeps it calls mlflow gc")
    print("not looked for: what was written elsewhere (--page, --output), backups, and what weights learned")


if __name__ == "__main__":
    sys.exit(main())
