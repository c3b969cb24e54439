"""``python -m memory_program.forget``: forget a conversation wherever runs have left something of it.

A run keeps memories in a database, replies and answers in journals, reports, and what MLflow was given. This
goes through all of it: the lines of journals that tell of the conversation are taken out, files that quote it
are deleted (a report is made anew by ``evaluate.py --mode report``), MLflow's runs and traces that quote it
are deleted for good, its namespaces are deleted from the database, and then all bytes left are searched.

It goes by what was said and remembered, not by where copies should be. Two things it cannot do: take out of
weights what they were trained on, and reach copies elsewhere (backups, a tracking server's own files).
"""

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import tyro

from memory_program.bank.database import rewrite_sqlite
from memory_program.bank.forgetting import forget as forget_namespace
from memory_program.bank.forgetting import texts_of
from memory_program.command_line import exit_status
from memory_program.errors import ConfigError, ForgettingError
from memory_program.run_folder import held
from memory_program.telling import Telling
from memory_program.tracking import EXPERIMENT, database_of, import_mlflow, tracking_place

_SQLITE = b"SQLite format 3\0"


@dataclass(slots=True)
class Forgotten:
    """What was done."""

    namespaces: list[str] = field(default_factory=list[str])
    lines: int = 0
    files: list[Path] = field(default_factory=list[Path])
    runs: int = 0
    traces: int = 0


def forget(namespace: str, folder: Path, db: str | None = None, tracking_uri: str | None = None) -> Forgotten:
    """Forget a conversation in the folder of a run, its database and MLflow.

    The database comes last: as long as it is there, the same command finds what is left to do.

    Args:
        namespace: the conversation's id, or the whole name of its bank.
        folder: the folder of the run.
        db: database of the banks; without it, banks.sqlite in the folder.
        tracking_uri: MLflow's address; without it, mlflow.db beside the folder.

    Raises:
        ConfigError: the database does not know the conversation.
        ForgettingError: something of it is left; the message says where.
        StoreError: the database is in use, or fails.
        RunInUseError: another process works in the folder.
    """
    db = db or f"sqlite:///{(folder / 'banks.sqlite').as_posix()}"
    done = Forgotten()
    with held(folder):
        wanted, others = texts_of(db, suffix=namespace)
        if not wanted:
            raise ConfigError(
                f"namespace {namespace!r} is not in the database of the banks: python -m memory_program.bank "
                "list names those that are"
            )
        name = namespace.rpartition("/")[2]
        telling = Telling(name, set[str]().union(*wanted.values()), others)
        uri, artifacts = tracking_place(folder, tracking_uri)
        _forget_tracked(uri, artifacts, telling, done)
        for path in _files_in(folder):
            _forget_in(path, telling, done)
        for found in wanted:
            forget_namespace(db, found)
            done.namespaces.append(found)
        places = [
            path for path in (folder, database_of(uri), artifacts) if path is not None and path.exists()
        ]
        searched = _files_in(*places)
        left = [str(path) for path in searched if telling.is_in_file(path, by_name=False)]
    if left:
        raise ForgettingError(f"something of {namespace!r} is left in {', '.join(left)}: delete these files")
    return done


# -- files ---------------------------------------------------------------------------------------


def _files_in(*places: Path) -> Iterator[Path]:
    for place in places:
        inside = sorted(place.rglob("*")) if place.is_dir() else [place]
        yield from (path for path in inside if path.is_file() and path.name != ".lock")


def _forget_in(path: Path, telling: Telling, done: Forgotten) -> None:
    """Take the conversation out of a file: lines of a journal, else the whole file."""
    with path.open("rb") as file:
        if file.read(len(_SQLITE)) == _SQLITE or path.name.endswith(("-wal", "-shm")):
            return  # a database, which is asked and not edited
    if not telling.is_in_file(path):
        return
    if path.suffix != ".jsonl":
        path.unlink()
        done.files.append(path)
        return
    lines = path.read_text(encoding="utf-8").split("\n")
    kept = [line for line in lines if not telling.is_in(line)]
    part = path.with_name(f"{path.name}.part")
    part.write_text("\n".join(kept), encoding="utf-8")
    part.replace(path)
    done.lines += len(lines) - len(kept)


# -- MLflow --------------------------------------------------------------------------------------


def _forget_tracked(uri: str, artifacts: Path | None, telling: Telling, done: Forgotten) -> None:
    """Delete MLflow's runs and traces that quote the conversation, for good where its database is a file."""
    database = database_of(uri)
    if database is not None and not database.exists():
        return
    mlflow = import_mlflow()
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment is None:
        return
    place: str = experiment.experiment_id
    traces: list[str] = [
        trace.info.trace_id
        for trace in _pages(client.search_traces, locations=[place])
        if telling.is_in(json.dumps(trace.to_dict(), default=str))
    ]
    for first in range(0, len(traces), 100):
        client.delete_traces(place, trace_ids=traces[first : first + 100])
    runs = [
        run
        for run in _pages(client.search_runs, experiment_ids=[place])
        if _quotes(mlflow, uri, run, telling)
    ]
    run_ids: list[str] = [run.info.run_id for run in runs]
    logged = _pages(client.search_logged_models, experiment_ids=[place])
    models: list[str] = [model.model_id for model in logged if model.source_run_id in run_ids]
    for model_id in models:
        client.delete_logged_model(model_id)
    for run_id in run_ids:
        client.delete_run(run_id)
    done.traces, done.runs = len(traces), len(runs)
    if database is not None:
        _empty_bin(uri, run_ids, models)
        if artifacts is not None:
            for trace_id in traces:
                # where MLflow puts the spans that its database did not take, when it is locked for example
                shutil.rmtree(artifacts / "traces" / trace_id, ignore_errors=True)
        with closing(sqlite3.connect(database)) as connection:
            rewrite_sqlite(connection)


def _pages(search: Callable[..., Any], **wanted: object) -> Iterator[Any]:  # Any: MLflow has no types
    token: str | None = None
    while True:
        page = search(page_token=token, **wanted)
        yield from page
        token = page.token
        if not token:
            return


def _quotes(mlflow: ModuleType, uri: str, run: Any, telling: Telling) -> bool:  # noqa: ANN401 - as above
    """Whether a run, or one of its files, quotes the conversation."""
    if telling.is_in(json.dumps(run.to_dictionary(), default=str)):
        return True
    with TemporaryDirectory() as copies:
        try:
            mlflow.artifacts.download_artifacts(run_id=run.info.run_id, dst_path=copies, tracking_uri=uri)
        except mlflow.exceptions.MlflowException:
            return False  # it has no files
        return any(telling.is_in_file(path) for path in _files_in(Path(copies)))


def _empty_bin(uri: str, run_ids: Sequence[str], model_ids: Sequence[str]) -> None:
    """Have MLflow's own command delete for good what was deleted, with its files."""
    if not run_ids:
        return
    command = [sys.executable, "-m", "mlflow", "gc", "--backend-store-uri", uri, "--tracking-uri", uri]
    command += ["--run-ids", ",".join(run_ids)]
    command += ["--logged-model-ids", ",".join(model_ids)] if model_ids else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join(done.stderr.split())[-300:]
        raise ForgettingError(f"mlflow gc failed ({said}): end what else uses {uri!r} and try again")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says, and return the exit status."""
    return exit_status(lambda: tyro.cli(_command, args=arguments, prog="python -m memory_program.forget"))


def _command(namespace: str, folder: Path, db: str | None = None, tracking_uri: str | None = None) -> None:
    """Forget a conversation wherever runs have left something of it: memories, journals, reports, MLflow.

    Runs of MLflow that quote it are deleted, and its bin is emptied. Files that quote it are deleted, but of
    journals only lines. Weights that were trained on it, and copies elsewhere, are left.

    Args:
        namespace: The conversation's id, or the whole name of its bank.
        folder: The folder of the run, for example runs/evaluate.
        db: Database of the banks; without it, banks.sqlite in the folder.
        tracking_uri: MLflow's tracking address; without it, mlflow.db beside the folder.
    """
    done = forget(namespace, folder, db, tracking_uri)
    print(f"forgotten: {', '.join(done.namespaces)}")
    print(f"lines of journals: {done.lines}  runs of MLflow: {done.runs}  traces: {done.traces}")
    for path in done.files:
        print(f"deleted: {path}")
    print(f"nothing of it is left in {folder}, its database or MLflow")


if __name__ == "__main__":
    sys.exit(main())
