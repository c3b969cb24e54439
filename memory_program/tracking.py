"""MLflow: the run of a command, logged while it happens, with a child run for each system or candidate."""

import importlib
import json
import logging
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from memory_program.core.errors import TrackingError
from memory_program.core.hashing import content_hash
from memory_program.core.json_files import Json, write_json

EXPERIMENT = "memory-program"
RECEIPT_FILE = "tracking.json"
"""The file in a run's folder that names its MLflow run, its address, and the results that were logged."""

_CHECK_TIMEOUT_S = 4.0
_DATABASE_PORTS = {"postgresql": 5432, "postgres": 5432, "mysql": 3306, "mssql": 1433}
_SQLITE_HEADER = b"SQLite format 3\0"
_WAY_OUT = "correct --tracking-uri and run the same command again, or leave MLflow out with --no-mlflow"
_MAX_PARAMS = 100  # MLflow accepts no more at once
_PARENT, _KEY, _DIGEST = "mlflow.parentRunId", "memory_program.key", "memory_program.digest"
_PROCESS = "memory_program.process"
_WATCH = """
import sys
if not sys.stdin.read():
    from memory_program.tracking import mark_killed
    mark_killed(*sys.argv[1:])
"""


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The content of one MLflow run: a system, a candidate, or the parent of several.

    Runs with equal ``params`` and data in one folder are one run, which a later command continues.
    ``dataset`` has the ``name`` and the ``sha256`` of the data, and what they are used for (``context``).
    """

    name: str
    params: Mapping[str, object]
    tags: Mapping[str, str]
    dataset: Mapping[str, str] = field(default_factory=dict[str, str])
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    artifacts: Sequence[Path] = ()

    @property
    def key(self) -> str:
        """A hash of what makes it this run: its parameters, and its data."""
        params = {name: str(value) for name, value in self.params.items()}
        return content_hash(params, self.dataset.get("sha256"))[:16]


@dataclass(frozen=True, slots=True)
class CurvePoints:
    """The values of curves at a step. A step that ``marker``, one of them, has is logged as a whole."""

    step: int
    values: Mapping[str, float]
    marker: str

    @classmethod
    def from_entry(cls, entry: Json) -> Self:
        """Take the numbers of an entry of a training's log, those of validations as ``validation/NAME``."""
        prefix = "validation/" if entry["kind"] == "validation" else ""
        numbers = {name: value for name, value in entry.items() if isinstance(value, int | float)}
        values = {f"{prefix}{name}": float(value) for name, value in numbers.items() if name != "step"}
        return cls(entry["step"], values, f"{prefix}run_s")


@dataclass(frozen=True, slots=True)
class Table:
    """A table that MLflow shows: the name of its JSON file, and its columns."""

    file: str
    columns: Mapping[str, Sequence[object]]


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


class RunTracker:
    """The MLflow run of a command: opened at its start, logged to while it works, closed with its status.

    A thread of its own talks to MLflow, in order, so that no work waits for it. The folder of the run keeps
    the id of the MLflow run: after a kill the same command continues it. A run goes on without an MLflow that
    cannot be opened, or can no longer be reached; that is said once, and ``finish`` tries once more.
    """

    def __init__(
        self,
        output_dir: Path,
        tracking_uri: str | None,
        *,
        source: str,
        is_on: bool,
        say: Callable[[str], None],
        log_later: str | None,
        keeps_receipt: bool = True,
    ) -> None:
        """Prepare; ``start``, ``trace_calls`` or ``finish`` opens MLflow, unless it is off.

        Args:
            output_dir: the folder of the run.
            tracking_uri: MLflow's address; None is a database beside the folder.
            source: the script, as MLflow's list of runs shows it.
            is_on: log at all.
            say: prints a line.
            log_later: the command that logs the results later. None is for commands that have nothing else to
                do: without MLflow they fail.
            keeps_receipt: remember the MLflow run in the folder, to log it once and to continue it.
        """
        self.uri, self._artifact_root = tracking_location(output_dir, tracking_uri)
        self._receipt_file = output_dir / RECEIPT_FILE if keeps_receipt else None
        self._source, self._is_on, self._say, self._log_later = source, is_on, say, log_later
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="mlflow")
        self._failure: TrackingError | None = None
        # below: of the thread
        self._connection: _MlflowConnection | None = None
        self._run: TrackedRun | None = None
        self._run_id = ""
        self._watcher: subprocess.Popen[bytes] | None = None  # while the MLflow run has the status RUNNING
        self._steps: dict[str, set[int]] = {}
        self._children: dict[str, tuple[str, str]] = {}  # by key: the id, and the digest of what was logged

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the MLflow run, if that was not done: as failed after an error, as killed after Ctrl-C."""
        status = "FINISHED" if kind is None else "FAILED" if issubclass(kind, Exception) else "KILLED"
        self._later(partial(self._end, status))
        self._pool.shutdown()

    def start(self, run: TrackedRun) -> None:
        """Open the MLflow run in the background: the one that the folder names, if it is about the same.

        A run that has ended stays as it is until something is logged that it lacks.
        """

        def begin() -> None:
            self._run = run
            if not self._attach().get("digest"):
                self._wake()
            self._say(f"follow it in MLflow: {self.view_command}")

        self._later(begin)

    def log_points(self, points: CurvePoints, table: Table | None = None) -> None:
        """Log points of curves, and a table beside them, unless that step is logged."""
        self._later(partial(self._log_points, points, table))

    def log_child(self, child: TrackedRun) -> None:
        """Open the run of a system or a candidate; with metrics, log and end it, unless that was done."""
        self._later(partial(self._log_child, child))

    def finish(
        self,
        digest: str,
        run: TrackedRun,
        *,
        children: Iterable[TrackedRun] = (),
        curves: Iterable[CurvePoints] = (),
        program: object | None = None,
    ) -> bool:
        """Log all that is missing, and end the run, unless results with this digest are logged already.

        ``mlflow.dspy.load_model`` gives ``program`` back. MLflow keeps it as a pickle: load it only if you
        trust who wrote it.

        Returns:
            True if the results are logged.

        Raises:
            TrackingError: MLflow refuses something, or it cannot be opened and there is nothing else to do.
        """
        if not self._is_on:
            return False

        def log_results() -> None:
            self._run = run
            self._attach()
            self._wake()
            for child in children:
                self._log_child(child, is_final=True)
            for points in curves:
                self._log_points(points)
            self._opened.log(self._run_id, run)
            if program is not None:
                self._opened.log_program(self.uri, self._run_id, program)
            self._end("FINISHED")
            self._write_receipt(digest)

        self._pool.submit(lambda: None).result()  # all that came before
        was_told, self._failure = self._failure is not None, None
        if not (self._receipt().get("digest") == digest and self._watcher is None):
            try:
                self._pool.submit(self._perform, log_results).result()
            except TrackingError as error:
                self._failure = error
                is_refused = self._connection is not None and find_tracking_problem(self.uri) is None
                if self._log_later is None or is_refused:
                    raise TrackingError(f"{error}; {_WAY_OUT}") from error
                if was_told:
                    self._say(f"not logged to MLflow: {self._log_later} logs these results later")
                else:
                    self._tell_failure(error)
                return False
        self._say(f"compare in MLflow: {self.view_command}")
        return True

    def trace_calls(self) -> None:
        """Record every DSPy module call from now on as a trace.

        Raises:
            TrackingError: MLflow cannot be reached.
        """
        try:
            self._pool.submit(self._perform, lambda: None).result()
        except TrackingError as error:
            raise TrackingError(f"{error}; {_WAY_OUT}") from error
        mlflow = self._opened.mlflow
        mlflow.set_tracking_uri(self.uri)
        mlflow.set_experiment(experiment_id=self._opened.experiment_id)
        mlflow.dspy.autolog(silent=True)

    @property
    def view_command(self) -> str:
        """The command that shows the runs in a browser; of a server, its address."""
        is_served = urlsplit(self.uri).scheme in ("http", "https") or self.uri.startswith("databricks")
        return self.uri if is_served else f"mlflow ui --backend-store-uri {shlex.quote(self.uri)}"

    # -- the rest runs on the thread -------------------------------------------------------------------

    def _later(self, job: Callable[[], None]) -> None:
        """Let the thread do a job, unless MLflow is off or has failed."""
        if self._is_on:
            self._pool.submit(self._attempt, job)

    def _attempt(self, job: Callable[[], None]) -> None:
        if self._failure is None:
            try:
                self._perform(job)
            except TrackingError as error:
                self._failure = error
                if self._log_later is not None:
                    self._tell_failure(error)

    def _perform(self, job: Callable[[], None]) -> None:
        """Open MLflow if it is not, and do a job.

        Raises:
            TrackingError: MLflow cannot be reached, or refuses something.
        """
        if self._connection is None or urlsplit(self.uri).scheme in ("http", "https"):
            problem, can = find_tracking_problem(self.uri), "can no longer" if self._connection else "cannot"
            if problem is not None:
                raise TrackingError(f"MLflow at {self.uri!r} {can} be reached: {problem}")
        mlflow = import_mlflow()
        errors = (
            mlflow.exceptions.MlflowException,
            importlib.import_module("sqlalchemy.exc").SQLAlchemyError,
            *(ImportError, OSError, RuntimeError, ValueError),  # of drivers and addresses
        )
        try:
            if self._connection is None:
                self._connection = self._open(mlflow)
            job()
        except errors as error:
            cause = " ".join(str(error).split())[:300]
            raise TrackingError(f"MLflow at {self.uri!r} failed: {cause}") from error

    def _tell_failure(self, error: TrackingError) -> None:
        self._say(f"{error}; the run goes on without it, and {self._log_later} logs its results later")

    def _open(self, mlflow: ModuleType) -> "_MlflowConnection":
        database = sqlite_path(self.uri)
        if database is not None and not database.exists():
            self._create_database(mlflow, database)
        return _MlflowConnection.open(mlflow, self.uri, self._artifact_root)

    def _create_database(self, mlflow: ModuleType, database: Path) -> None:
        """Make a new SQLite database under another name, and move it into place.

        That takes seconds in which the process may be killed, and MLflow cannot read a half-made database.
        """
        database.parent.mkdir(parents=True, exist_ok=True)
        part = database.with_name(f"{database.name}.{os.getpid()}.part")
        _MlflowConnection.open(mlflow, f"sqlite:///{part.as_posix()}", self._artifact_root)
        try:
            os.link(part, database)  # unlike a rename, it keeps a database that another process made
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            part.replace(database)
        part.unlink(missing_ok=True)

    @property
    def _opened(self) -> "_MlflowConnection":
        assert self._connection is not None, "_perform opens it"
        return self._connection

    def _receipt(self) -> Json:
        """Read what the folder says of the MLflow run at this address; empty if there is none."""
        database = sqlite_path(self.uri)
        if self._receipt_file is None or not (database is None or database.exists()):
            return {}
        try:
            receipt: Json = json.loads(self._receipt_file.read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return receipt if receipt.get("uri") == self.uri else {}

    def _write_receipt(self, digest: str | None) -> None:
        if self._receipt_file is not None and self._run is not None:
            receipt = {"uri": self.uri, "run_id": self._run_id, "key": self._run.key, "digest": digest}
            write_json(self._receipt_file, receipt)

    def _attach(self) -> Json:
        """Find the MLflow run of the folder, or create one; return its receipt."""
        receipt, opened = self._receipt(), self._opened
        assert self._run is not None, "start and finish set it"
        if self._run_id:
            return receipt
        if receipt.get("key") == self._run.key and opened.search(
            f"attributes.run_id = '{receipt['run_id']}'"
        ):
            self._run_id = receipt["run_id"]
            self._children = {
                child.data.tags[_KEY]: (child.info.run_id, child.data.tags.get(_DIGEST, ""))
                for child in opened.search(f"tags.`{_PARENT}` = '{self._run_id}'")
            }
            return receipt
        source = {"mlflow.source.name": self._source, "mlflow.source.type": "LOCAL"}
        self._run_id = opened.create(self._run, source)
        self._write_receipt(None)
        return {}

    def _wake(self) -> None:
        """Give the MLflow run the status RUNNING, which becomes KILLED if this process is."""
        if self._watcher is None:
            process, client = f"{os.getpid()}-{time.time_ns()}", self._opened.client
            client.set_tag(self._run_id, _PROCESS, process)
            client.update_run(self._run_id, status="RUNNING")
            command = [sys.executable, "-c", _WATCH, self.uri, self._run_id, process]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            self._watcher = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C is not for it
            )

    def _end(self, status: str) -> None:
        if self._watcher is not None:
            _end_runs(self._opened, self._run_id, status)
            self._watcher.communicate(b"ended")
            self._watcher = None

    def _log_points(self, points: CurvePoints, table: Table | None = None) -> None:
        client, marker = self._opened.client, points.marker
        if marker not in self._steps:
            self._steps[marker] = {point.step for point in client.get_metric_history(self._run_id, marker)}
        if points.step not in self._steps[marker]:
            self._wake()
            if table is not None:
                columns = {name: list(values) for name, values in table.columns.items()}
                client.log_table(self._run_id, columns, table.file)
            self._opened.log_metrics(self._run_id, points.values, points.step)
            self._steps[marker].add(points.step)

    def _log_child(self, child: TrackedRun, *, is_final: bool = False) -> None:
        opened, digest = self._opened, content_hash(dict(child.metrics))[:16]
        run_id, logged = self._children.get(child.key, ("", ""))
        if logged and (logged == digest or not is_final):
            return
        self._wake()
        if run_id:
            opened.client.update_run(run_id, status="RUNNING", name=child.name)
        else:
            run_id = opened.create(child, {_PARENT: self._run_id, _KEY: child.key})
        self._children[child.key] = (run_id, "")
        if child.metrics:
            opened.log(run_id, child)
            opened.client.set_tag(run_id, _DIGEST, digest)
            opened.client.set_terminated(run_id)
            self._children[child.key] = (run_id, digest)


@dataclass(frozen=True, slots=True)
class _MlflowConnection:
    mlflow: ModuleType
    client: Any  # Any: MLflow's client, which has no types
    experiment_id: str

    @classmethod
    def open(cls, mlflow: ModuleType, uri: str, artifact_root: Path | None) -> Self:
        client = mlflow.MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name(EXPERIMENT)
        if experiment is not None:
            return cls(mlflow, client, experiment.experiment_id)
        location = artifact_root.resolve().as_uri() if artifact_root is not None else None
        return cls(mlflow, client, client.create_experiment(EXPERIMENT, artifact_location=location))

    def search(self, filter_string: str) -> Sequence[Any]:  # Any: runs of MLflow, without those in its trash
        return self.client.search_runs([self.experiment_id], filter_string=filter_string)

    def create(self, run: TrackedRun, tags: Mapping[str, str]) -> str:
        """Create a run with its parameters and data, and return its id."""
        entities = self.mlflow.entities
        named = {"mlflow.runName": run.name, **run.tags, **tags}
        run_id: str = self.client.create_run(self.experiment_id, tags=named, run_name=run.name).info.run_id
        params = [entities.Param(name, str(value)) for name, value in run.params.items()]
        for first in range(0, len(params), _MAX_PARAMS):
            self.client.log_batch(run_id, params=params[first : first + _MAX_PARAMS])
        if run.dataset:
            name, sha256 = run.dataset["name"], run.dataset["sha256"]
            source = json.dumps({"uri": name, "sha256": sha256})
            dataset = entities.Dataset(name, sha256[:8], "local", source)
            context = entities.InputTag("mlflow.data.context", run.dataset["context"])
            self.client.log_inputs(run_id, [entities.DatasetInput(dataset, [context])])
        return run_id

    def log(self, run_id: str, run: TrackedRun) -> None:
        """Log the tags, metrics and files of a run."""
        tags = [self.mlflow.entities.RunTag(name, value) for name, value in run.tags.items()]
        self.client.log_batch(run_id, tags=tags)
        self.log_metrics(run_id, run.metrics, step=0)
        for path in run.artifacts:
            self.client.log_artifact(run_id, str(path))

    def log_metrics(self, run_id: str, metrics: Mapping[str, float], step: int) -> None:
        now = time.time_ns() // 1_000_000
        points = [self.mlflow.entities.Metric(name, value, now, step) for name, value in metrics.items()]
        self.client.log_batch(run_id, metrics=points)

    def log_program(self, uri: str, run_id: str, program: object) -> None:
        """Log a DSPy program with a run, without its models."""
        for name in ("dspy.primitives.base_module", "dspy.dsp.utils.settings"):
            logging.getLogger(name).setLevel(logging.ERROR)  # they warn of the pickle that MLflow writes
        self.mlflow.set_tracking_uri(uri)
        with self.mlflow.start_run(run_id=run_id):
            self.mlflow.dspy.log_model(
                program,
                name="program",
                # otherwise MLflow would load it again to find its requirements
                pip_requirements=[f"dspy=={version('dspy')}"],
                use_dspy_model_save=True,
            )


def mark_killed(uri: str, run_id: str, process: str) -> None:
    """Give a run and its children the status KILLED, unless it has ended or another process continues it."""
    database = sqlite_path(uri)
    if database is None or database.exists():
        mlflow = import_mlflow()
        opened = _MlflowConnection.open(mlflow, uri, None)
        run = opened.client.get_run(run_id)
        if run.info.status == "RUNNING" and run.data.tags.get(_PROCESS) == process:
            _end_runs(opened, run_id, "KILLED")


def _end_runs(opened: _MlflowConnection, run_id: str, status: str) -> None:
    """End a run, and those of its children that have not ended."""
    for child in opened.search(f"tags.`{_PARENT}` = '{run_id}' and attributes.status = 'RUNNING'"):
        opened.client.set_terminated(child.info.run_id, status)
    opened.client.set_terminated(run_id, status)


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
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read while it is imported
    os.environ.setdefault(
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false"
    )  # one bar for every run that is searched
    mlflow = importlib.import_module("mlflow")
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return mlflow
