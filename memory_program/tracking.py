"""MLflow: one run per system under one parent run, so that its compare view shows systems side by side."""

import importlib
import json
import logging
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import httpx

from memory_program.core.errors import TrackingError

EXPERIMENT = "memory-program"
RECEIPT_FILE = "tracking.json"
"""The file in a run's folder that records which results were logged, and to which address."""

_CHECK_TIMEOUT_S = 4.0
_DATABASE_PORTS = {"postgresql": 5432, "postgres": 5432, "mysql": 3306, "mssql": 1433}
_SQLITE_HEADER = b"SQLite format 3\0"
_WAY_OUT = "correct --tracking-uri and run the same command again, or leave MLflow out with --no-mlflow"
_MAX_METRICS = 1000  # MLflow accepts no more at once


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The content of one MLflow run: a system, a candidate, or the parent of several.

    ``curves`` are metrics over the steps of a run: (step, value), in order.
    """

    name: str
    params: Mapping[str, object]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    artifacts: Sequence[Path]
    curves: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict[str, Any])


def tracking_location(output_dir: Path, named: str | None) -> tuple[str, Path | None]:
    """Return MLflow's tracking address, and the folder of its files.

    Args:
        output_dir: the folder of a run; without an address, SQLite and the files are beside it.
        named: an address from the config, which has its own place for files.
    """
    if named:
        return named, None
    beside = output_dir.parent
    return f"sqlite:///{(beside / 'mlflow.db').as_posix()}", beside / "mlartifacts"


class Tracker:
    """Logs finished results to MLflow.

    Importing MLflow and laying out a new database take seconds, so both begin in the background when the
    tracker is made; ``log`` waits for them.
    """

    def __init__(self, uri: str, artifact_root: Path | None = None) -> None:
        """Begin to open MLflow.

        Args:
            uri: MLflow's tracking address, for example ``sqlite:///runs/mlflow.db``.
            artifact_root: where a new experiment keeps its files; None leaves it to the server.
        """
        self.uri = uri
        self._artifact_root = artifact_root
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="mlflow")
        self._opened: Future[_MlflowConnection] = self._pool.submit(self._open)

    def log(self, parent: TrackedRun, children: Sequence[TrackedRun]) -> str:
        """Log a parent run and its children, and return the parent's id.

        Raises:
            TrackingError: MLflow cannot be reached, or refuses something.
        """
        opened = self._wait()
        try:
            parent_id = opened.log(parent, {})
            for child in children:
                opened.log(child, {"mlflow.parentRunId": parent_id})
        except opened.mlflow.exceptions.MlflowException as error:
            raise TrackingError(f"{self._error_message(error)}; {_WAY_OUT}") from error
        return parent_id

    def log_program(self, run_id: str, program: object) -> str:
        """Log a DSPy program with a run, without its models, and return the address to load it from.

        ``mlflow.dspy.load_model(address)`` gives it back. MLflow keeps programs as pickles: load one only
        if you trust who wrote it.

        Raises:
            TrackingError: MLflow cannot be reached, or refuses something.
        """
        opened = self._wait()
        mlflow = opened.mlflow
        for name in ("dspy.primitives.base_module", "dspy.dsp.utils.settings"):
            logging.getLogger(name).setLevel(logging.ERROR)  # they warn of the pickle that MLflow writes
        try:
            mlflow.set_tracking_uri(self.uri)
            with mlflow.start_run(run_id=run_id):
                logged = mlflow.dspy.log_model(
                    program,
                    name="program",
                    # otherwise MLflow would load it again to find its requirements
                    pip_requirements=[f"dspy=={version('dspy')}"],
                    use_dspy_model_save=True,
                )
        except mlflow.exceptions.MlflowException as error:
            raise TrackingError(f"{self._error_message(error)}; {_WAY_OUT}") from error
        return str(logged.model_uri)

    def enable_tracing(self) -> None:
        """Record every DSPy module call from now on as a trace.

        Raises:
            TrackingError: MLflow cannot be reached.
        """
        opened = self._wait()
        opened.mlflow.set_tracking_uri(self.uri)
        opened.mlflow.set_experiment(experiment_id=opened.experiment_id)
        opened.mlflow.dspy.autolog(silent=True)

    def close(self) -> None:
        """Wait until MLflow is open, and release it."""
        self._pool.shutdown(cancel_futures=True)

    def _wait(self) -> "_MlflowConnection":
        try:
            return self._opened.result()
        except TrackingError as error:
            raise TrackingError(f"{error}; {_WAY_OUT}") from error
        except (OSError, RuntimeError, ValueError) as error:
            raise TrackingError(f"{self._error_message(error)}; {_WAY_OUT}") from error

    def on_failure(self, tell: Callable[[str], None]) -> None:
        """Tell why MLflow cannot be opened, at once when that is known."""

        def check(opened: "Future[_MlflowConnection]") -> None:
            if not opened.cancelled() and (error := opened.exception()) is not None:
                tell(str(error) if isinstance(error, TrackingError) else self._error_message(error))

        self._opened.add_done_callback(check)

    @property
    def is_open(self) -> bool:
        """True if MLflow could be opened; waits until that is known."""
        return self._opened.exception() is None

    def _open(self) -> "_MlflowConnection":
        problem = find_tracking_problem(self.uri)
        if problem is not None:
            raise TrackingError(f"MLflow at {self.uri!r} cannot be reached: {problem}")
        mlflow = import_mlflow()
        # errors of a database, or of a missing driver, have the message of their library
        of_databases = (importlib.import_module("sqlalchemy.exc").SQLAlchemyError, ImportError)
        try:
            database = sqlite_path(self.uri)
            if database is not None and not database.exists():
                self._create_database(mlflow, database)
            return self._experiment(mlflow, self.uri)
        except (mlflow.exceptions.MlflowException, *of_databases) as error:
            raise TrackingError(self._error_message(error)) from error

    def _create_database(self, mlflow: ModuleType, database: Path) -> None:
        """Make a new SQLite database under another name, and move it into place.

        That takes seconds in which the process may be killed, and MLflow cannot read a half-made database.
        """
        database.parent.mkdir(parents=True, exist_ok=True)
        part = database.with_name(f"{database.name}.{os.getpid()}.part")
        self._experiment(mlflow, f"sqlite:///{part.as_posix()}")
        try:
            os.link(part, database)  # unlike a rename, it keeps a database that another process made
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            part.replace(database)
        part.unlink(missing_ok=True)

    def _experiment(self, mlflow: ModuleType, uri: str) -> "_MlflowConnection":
        client = mlflow.MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name(EXPERIMENT)
        if experiment is not None:
            return _MlflowConnection(mlflow, client, experiment.experiment_id)
        location = self._artifact_root.resolve().as_uri() if self._artifact_root is not None else None
        return _MlflowConnection(
            mlflow, client, client.create_experiment(EXPERIMENT, artifact_location=location)
        )

    def _error_message(self, error: BaseException) -> str:
        return f"MLflow at {self.uri!r} failed: {' '.join(str(error).split())[:300]}"


@dataclass(frozen=True, slots=True)
class _MlflowConnection:
    mlflow: ModuleType
    client: Any  # Any: MLflow's client, which has no types
    experiment_id: str

    def log(self, run: TrackedRun, tags: Mapping[str, str]) -> str:
        entities = self.mlflow.entities
        named = {"mlflow.runName": run.name, **run.tags, **tags}
        run_id: str = self.client.create_run(self.experiment_id, tags=named, run_name=run.name).info.run_id
        params = [entities.Param(name, str(value)) for name, value in run.params.items()]
        metrics = [entities.Metric(name, value, 0, 0) for name, value in run.metrics.items()]
        self.client.log_batch(run_id, metrics=metrics, params=params)
        points = [
            entities.Metric(name, value, 0, step)
            for name, curve in run.curves.items()
            for step, value in curve
        ]
        for first in range(0, len(points), _MAX_METRICS):
            self.client.log_batch(run_id, metrics=points[first : first + _MAX_METRICS])
        for path in run.artifacts:
            self.client.log_artifact(run_id, str(path))
        self.client.set_terminated(run_id)
        return run_id


def sqlite_path(uri: str) -> Path | None:
    """Return the file of an SQLite address; None for any other address.

    Example:
        >>> sqlite_path("sqlite:///runs/mlflow.db").as_posix()
        'runs/mlflow.db'
    """
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def find_tracking_problem(uri: str) -> str | None:
    """Find out within seconds why a tracking address cannot be used; MLflow itself retries for minutes.

    Returns:
        the reason; None if something answers there, or if only MLflow can tell.
    """
    address = urlsplit(uri)
    scheme, port = address.scheme.partition("+")[0], _DATABASE_PORTS.get(address.scheme.partition("+")[0])
    database = sqlite_path(uri)
    try:
        if database is not None and database.is_file():
            with database.open("rb") as file:
                header = file.read(len(_SQLITE_HEADER))
            return None if header in (b"", _SQLITE_HEADER) else "the file is not an SQLite database"
        if scheme in ("http", "https"):
            # nothing secret is sent, and MLflow has settings of its own for certificates
            reply = httpx.get(f"{uri.rstrip('/')}/health", timeout=_CHECK_TIMEOUT_S, verify=False)
            return f"HTTP status {reply.status_code}" if reply.status_code in (502, 503, 504) else None
        if port is not None and address.hostname:
            socket.create_connection((address.hostname, address.port or port), _CHECK_TIMEOUT_S).close()
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        return str(error) or type(error).__name__
    return None


def import_mlflow() -> ModuleType:
    """Import MLflow without its telemetry, progress bars and log of database migrations."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")  # seven take minutes
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")  # of silence; not the default of two minutes
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read while it is imported
    os.environ.setdefault(
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false"
    )  # one bar for every run that is searched
    mlflow = importlib.import_module("mlflow")
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return mlflow


class RunPublisher:
    """Base of the publishers: logs the results of a run to MLflow, unless they were logged there before."""

    def __init__(
        self,
        output_dir: Path,
        tracking_uri: str | None,
        *,
        is_on: bool,
        say: Callable[[str], None],
        log_later: str | None,
    ) -> None:
        """Prepare; ``open_tracker`` or the first ``log_once`` opens MLflow, unless it is off.

        Args:
            output_dir: the folder of the run.
            tracking_uri: MLflow's address; None is a database beside the folder.
            is_on: log at all.
            say: prints a line.
            log_later: the command that logs the results later. With it, a run goes on without an MLflow that
                cannot be opened. None is for commands that have nothing else to do: that is an error then.
        """
        self.uri, self._artifacts = tracking_location(output_dir, tracking_uri)
        self._folder, self._is_on = output_dir, is_on
        self._say, self._log_later = say, log_later
        self._tracker: Tracker | None = None

    def open_tracker(self, *, with_traces: bool = False) -> None:
        """Begin to open MLflow in the background, since that takes seconds; trace every call if asked.

        If it cannot be opened, that is said as soon as it is known.

        Raises:
            TrackingError: MLflow cannot be opened, and traces are asked for.
        """
        if self._is_on and self._tracker is None:
            self._tracker = Tracker(self.uri, self._artifacts)
            if with_traces:
                self._tracker.enable_tracing()
            elif self._log_later is not None:
                self._tracker.on_failure(self._tell_failure)

    def close(self) -> None:
        """Release MLflow."""
        if self._tracker is not None:
            self._tracker.close()

    def log_once(
        self,
        digest: str,
        parent: TrackedRun,
        children: Iterable[TrackedRun] = (),
        program: object | None = None,
    ) -> bool:
        """Log a run, its children and its program, unless results with this digest are logged already.

        A run goes on without an MLflow that cannot be opened, or can no longer be reached.

        Returns:
            True if the results are logged.

        Raises:
            TrackingError: MLflow refuses something, or it cannot be opened and there is nothing else to do.
        """
        if not self._is_on:
            return False
        path = self._folder / RECEIPT_FILE
        try:
            receipt = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            receipt = {}
        database = sqlite_path(self.uri)
        is_there = database is None or database.exists()
        if is_there and receipt.get("uri") == self.uri and receipt.get("digest") == digest:
            return True
        is_told = self._tracker is not None
        self.open_tracker()
        assert self._tracker is not None, "it is on"
        if self._log_later is not None:
            if not self._tracker.is_open:
                if is_told:
                    self._say(f"not logged to MLflow: {self._log_later} logs these results later")
                return False
            problem = find_tracking_problem(self.uri)
            if problem is not None:
                self._tell_failure(f"MLflow at {self.uri!r} can no longer be reached: {problem}")
                return False
        run_id = self._tracker.log(parent, list(children))
        if program is not None:
            self._tracker.log_program(run_id, program)
        receipt = {"uri": self.uri, "digest": digest, "run_id": run_id}
        path.write_text(json.dumps(receipt, indent=1) + "\n", encoding="utf-8")
        return True

    def _tell_failure(self, problem: str) -> None:
        self._say(f"{problem}; the run goes on without it, and {self._log_later} logs its results later")
