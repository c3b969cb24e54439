"""Erasure from MLflow: runs and traces that quote a conversation, with their files."""

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from memory_program.bank.db_engine import vacuum_sqlite
from memory_program.core.errors import ForgettingError
from memory_program.core.mlflow_address import import_mlflow
from memory_program.core.redaction import redact_text
from memory_program.core.sqlite_address import sqlite_path
from memory_program.forget.quote_matcher import QuoteMatcher, iter_files
from memory_program.tracking import EXPERIMENT

_SERVER_PREFIXES = ("http://", "https://", "databricks")


@dataclass(frozen=True, slots=True)
class MlflowDeletion:
    """The numbers of deleted runs and traces; on a server, deleted runs stay in its trash."""

    runs: int = 0
    traces: int = 0
    is_in_trash: bool = False
    was_found: bool = True


def forget_in_mlflow(uri: str, artifacts: Path | None, matcher: QuoteMatcher) -> MlflowDeletion:
    """Delete the runs and traces of a conversation; they are gone for good unless a server keeps them.

    Every trace that quotes the conversation is deleted, but only runs that name it or quote a long line:
    other people's runs are in the same database, and small talk is in all of them.

    Args:
        uri: MLflow's tracking address.
        artifacts: the folder of its files; None if a server has them.
        matcher: recognizes the conversation.

    Returns:
        the deletions; ``was_found=False`` if there is no such database file.

    Raises:
        ForgettingError: MLflow fails, so that something may be left.
    """
    database = sqlite_path(uri)
    if database is not None and not database.exists():
        return MlflowDeletion(was_found=False)
    mlflow = import_mlflow()
    try:
        done = _delete_runs_and_traces(mlflow, uri, artifacts, matcher)
        if database is not None:
            with closing(sqlite3.connect(database)) as connection:
                is_whole = vacuum_sqlite(connection)
            if not is_whole:
                raise ForgettingError(
                    f"{uri!r} is being read by another process: end it and run the same command again"
                )
        return done
    except (mlflow.exceptions.MlflowException, sqlite3.Error, OSError) as error:
        cause = redact_text(" ".join(str(error).split()))[:300]
        raise ForgettingError(
            f"MLflow at {uri!r} failed ({cause}), and something may be left there: run the same command again"
        ) from error


def _delete_runs_and_traces(
    mlflow: ModuleType, uri: str, artifacts: Path | None, matcher: QuoteMatcher
) -> MlflowDeletion:
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment is None:
        return MlflowDeletion()
    place: str = experiment.experiment_id
    traces: list[str] = [
        trace.info.trace_id
        for trace in _iter_pages(client.search_traces, locations=[place])
        if matcher.matches_text(json.dumps(trace.to_dict(), default=str))
    ]
    for first in range(0, len(traces), 100):
        client.delete_traces(place, trace_ids=traces[first : first + 100])
    if artifacts is not None:
        for trace_id in traces:
            # MLflow writes spans to this folder while its database is locked, for example.
            shutil.rmtree(artifacts / "traces" / trace_id, ignore_errors=True)
    everywhere = mlflow.entities.ViewType.ALL  # including the trash, for example of an earlier try
    runs = list[Any]()  # Any: MLflow has no types
    for run in _iter_pages(client.search_runs, experiment_ids=[place], run_view_type=everywhere):
        is_of_it = matcher.matches_name_or_long_quote(json.dumps(run.to_dictionary(), default=str))
        its_files = {"run_id": run.info.run_id, "tracking_uri": uri}
        if not is_of_it and mlflow.artifacts.list_artifacts(**its_files):
            with TemporaryDirectory() as copies:
                mlflow.artifacts.download_artifacts(dst_path=copies, **its_files)
                is_of_it = any(
                    matcher.matches_file(path, matcher.matches_name_or_long_quote)
                    for path in iter_files(Path(copies))
                )
        runs += [run] if is_of_it else []
    run_ids: list[str] = [run.info.run_id for run in runs]
    models: list[str] = [model.model_id for run in runs for model in run.outputs.model_outputs]
    for model_id in models:
        client.delete_logged_model(model_id)
    for run_id in run_ids:
        client.delete_run(run_id)
    is_served = uri.startswith(_SERVER_PREFIXES)
    if run_ids and not is_served:  # MLflow's own command deletes runs in the trash for good, with their files
        command = [sys.executable, "-m", "mlflow", "gc", "--backend-store-uri", uri, "--tracking-uri", uri]
        command += ["--run-ids", ",".join(run_ids)]
        command += ["--logged-model-ids", ",".join(models)] if models else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            cause = redact_text(" ".join(done.stderr.split()))[-300:]
            raise ForgettingError(f"mlflow gc failed ({cause}): end all other users of {uri!r} and try again")
    return MlflowDeletion(len(runs), len(traces), is_in_trash=is_served and bool(runs))


def _iter_pages(search: Callable[..., Any], **wanted: object) -> Iterator[Any]:  # Any: MLflow has no types
    token: str | None = None
    while True:
        page = search(page_token=token, **wanted)
        yield from page
        token = page.token
        if not token:
            return
