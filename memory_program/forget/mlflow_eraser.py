"""Forgetting what MLflow was given: runs and traces that quote a conversation, with their files."""

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from memory_program.bank.db_engine import vacuum_sqlite
from memory_program.core.errors import ForgettingError
from memory_program.forget.quote_matcher import QuoteMatcher, iter_files
from memory_program.tracking import EXPERIMENT, import_mlflow, sqlite_path

_SERVER_PREFIXES = ("http://", "https://", "databricks")


@dataclass(frozen=True, slots=True)
class MlflowDeletion:
    """How many runs and traces were deleted; those of a server are in its bin. Not there: no such file."""

    runs: int = 0
    traces: int = 0
    is_in_trash: bool = False
    was_found: bool = True


def forget_in_mlflow(uri: str, artifacts: Path | None, telling: QuoteMatcher) -> MlflowDeletion:
    """Delete MLflow's runs and traces about a conversation, for good unless a server has them.

    Of traces any that quotes it; of runs those that name it, as all that a run leaves here do, or quote what
    only it can have told: others share the database, and small talk.

    Args:
        uri: MLflow's tracking address.
        artifacts: where its files are, if not with a server.
        telling: what the conversation is known by.

    Raises:
        ForgettingError: MLflow fails, so that something may be left.
    """
    database = sqlite_path(uri)
    if database is not None and not database.exists():
        return MlflowDeletion(was_found=False)
    mlflow = import_mlflow()
    try:
        done = _delete_runs_and_traces(mlflow, uri, artifacts, telling)
        if database is not None:
            with closing(sqlite3.connect(database)) as connection:
                is_whole = vacuum_sqlite(connection)
            if not is_whole:
                raise ForgettingError(
                    f"{uri!r} is read by another process: end it and run the same command again"
                )
        return done
    except (mlflow.exceptions.MlflowException, sqlite3.Error, OSError) as error:
        said = " ".join(str(error).split())[:300]
        raise ForgettingError(
            f"MLflow at {uri!r} failed ({said}), and something may be left there: run the same command again"
        ) from error


def _delete_runs_and_traces(
    mlflow: ModuleType, uri: str, artifacts: Path | None, telling: QuoteMatcher
) -> MlflowDeletion:
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment is None:
        return MlflowDeletion()
    place: str = experiment.experiment_id
    traces: list[str] = [
        trace.info.trace_id
        for trace in _iter_pages(client.search_traces, locations=[place])
        if telling.matches_text(json.dumps(trace.to_dict(), default=str))
    ]
    for first in range(0, len(traces), 100):
        client.delete_traces(place, trace_ids=traces[first : first + 100])
    if artifacts is not None:
        for trace_id in traces:
            # where MLflow puts the spans that its database did not take, when it is locked for example
            shutil.rmtree(artifacts / "traces" / trace_id, ignore_errors=True)
    everywhere = mlflow.entities.ViewType.ALL  # its bin, too: that of an earlier try, for example
    runs = [
        run
        for run in _iter_pages(client.search_runs, experiment_ids=[place], run_view_type=everywhere)
        if _run_matches(mlflow, uri, run, telling)
    ]
    run_ids: list[str] = [run.info.run_id for run in runs]
    models: list[str] = [model.model_id for run in runs for model in run.outputs.model_outputs]
    for model_id in models:
        client.delete_logged_model(model_id)
    for run_id in run_ids:
        client.delete_run(run_id)
    is_served = uri.startswith(_SERVER_PREFIXES)
    if not is_served:
        _empty_trash(uri, run_ids, models)
    return MlflowDeletion(len(runs), len(traces), is_in_trash=is_served and bool(runs))


def _iter_pages(search: Callable[..., Any], **wanted: object) -> Iterator[Any]:  # Any: MLflow has no types
    token: str | None = None
    while True:
        page = search(page_token=token, **wanted)
        yield from page
        token = page.token
        if not token:
            return


def _run_matches(mlflow: ModuleType, uri: str, run: Any, telling: QuoteMatcher) -> bool:  # noqa: ANN401 - as above
    """Whether a run, or one of its files, is about the conversation."""
    if telling.matches_name_or_long_quote(json.dumps(run.to_dictionary(), default=str)):
        return True
    run_id = run.info.run_id
    if not mlflow.artifacts.list_artifacts(run_id=run_id, tracking_uri=uri):
        return False
    with TemporaryDirectory() as copies:
        mlflow.artifacts.download_artifacts(run_id=run_id, dst_path=copies, tracking_uri=uri)
        return any(
            telling.matches_file(path, telling.matches_name_or_long_quote)
            for path in iter_files(Path(copies))
        )


def _empty_trash(uri: str, run_ids: Sequence[str], model_ids: Sequence[str]) -> None:
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
