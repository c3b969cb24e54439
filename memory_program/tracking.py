"""MLflow: the run of a command, logged while it happens, with a child run for each system or candidate."""

import importlib
import json
import logging
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from memory_program.core.errors import TrackingError
from memory_program.core.hashing import content_hash
from memory_program.core.json_files import Json, write_json
from memory_program.core.mlflow_address import (
    absolute_address,
    find_tracking_problem,
    import_mlflow,
    tracking_location,
)
from memory_program.core.redaction import redact_text
from memory_program.core.sqlite_address import sqlite_path, sqlite_url

EXPERIMENT = "memory-program"
RECEIPT_FILE = "tracking.json"
"""The file in a run's folder that names its MLflow run, its address, and the results that were logged."""

_WAY_OUT = "correct --tracking-uri and run the same command again, or leave MLflow out with --no-mlflow"
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
    ``dataset`` has the ``name`` and the ``sha256`` of the data, and their use (``context``).
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
        return content_hash({n: str(v) for n, v in self.params.items()}, self.dataset.get("sha256"))[:16]


@dataclass(frozen=True, slots=True)
class CurvePoints:
    """The values of curves at a step, and perhaps a table: its columns, logged as ``table_file``.

    ``marker`` is one of the values: a step for which MLflow has it is logged.
    """

    step: int
    values: Mapping[str, float]
    marker: str
    table: Mapping[str, list[object]] = field(default_factory=dict[str, list[object]])
    table_file: str = ""

    @classmethod
    def from_entry(cls, entry: Json) -> Self:
        """Take the numbers of an entry of a training's log, those of validations as ``validation/NAME``."""
        prefix = "validation/" if entry["kind"] == "validation" else ""
        numbers = {name: value for name, value in entry.items() if isinstance(value, int | float)}
        values = {f"{prefix}{name}": float(value) for name, value in numbers.items() if name != "step"}
        return cls(entry["step"], values, f"{prefix}run_s")


@dataclass(frozen=True, slots=True)
class TraceLabels:
    """Labels for the traces of a system, by which MLflow finds them.

    ``run_id`` is the MLflow run of the system, whose page then lists the traces; empty without one.
    """

    system: str
    run_id: str = ""

    def __call__(self, **tags: str) -> AbstractContextManager[None]:
        """Label the traces that this thread begins while the context is open: the system, and ``tags``."""
        metadata = {"mlflow.sourceRun": self.run_id} if self.run_id else {}
        return import_mlflow().tracing.context(metadata=metadata, tags={"system": self.system, **tags})


def no_labels(**_: str) -> AbstractContextManager[None]:
    """Label nothing, where nothing is traced."""
    return nullcontext()


class RunTracker:
    """The MLflow run of a command: opened at its start, logged to while it works, closed with its status.

    A thread of its own talks to MLflow, in order, so that no work waits for it. The folder of the run keeps
    the id of the MLflow run: after a kill the same command continues it. A run goes on without an MLflow that
    cannot be opened, or can no longer be reached; that is said once, and ``finish`` tries once more.
    """

    def __init__(
        self,
        source: str,
        output_dir: Path,
        tracking_uri: str | None,
        say: Callable[[str], None],
        log_later: str | None,
        *,
        is_on: bool,
        keeps_receipt: bool = True,
    ) -> None:
        """Prepare; ``start``, ``trace_calls`` or ``finish`` opens MLflow, unless it is off.

        Args:
            source: the script, as MLflow's list of runs shows it.
            output_dir: the folder of the run.
            tracking_uri: MLflow's address; None is a database beside the folder.
            say: prints a line.
            log_later: the command that logs the results later. None is for commands that have nothing else to
                do: without MLflow they fail.
            is_on: log at all.
            keeps_receipt: remember the MLflow run in the folder, to log it once and to continue it.
        """
        self.uri, self._artifact_root = tracking_location(output_dir, tracking_uri)
        self._receipt_file = output_dir / RECEIPT_FILE if keeps_receipt else None
        self._source, self._is_on, self._say, self._log_later = source, is_on, say, log_later
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="mlflow")
        self._failure: TrackingError | None = None
        self._is_finishing = False
        # of the thread
        self._client: Any = None  # Any: MLflow's client, which has no types
        self._experiment_id = self._run_id = ""
        self._run: TrackedRun | None = None
        self._watcher: subprocess.Popen[bytes] | None = None  # while the MLflow run has the status RUNNING
        self._steps: dict[str, set[int]] = {}  # logged, by marker
        self._children: dict[str, tuple[str, str]] = {}  # by key: the id, and the digest of what was logged

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """End the MLflow run, if that was not done: as failed after an error, as killed after Ctrl-C."""
        status = "FINISHED" if kind is None else "FAILED" if issubclass(kind, Exception) else "KILLED"
        self._later(partial(self._end, status))
        self._pool.shutdown()

    def start(self, run: TrackedRun) -> None:
        """Open the MLflow run in the background: the one that the folder names, if it is about the same.

        A run that has ended stays as it is until something is logged that it lacks.
        """

        def begin() -> None:
            if not self._attach(run).get("digest"):
                self._wake()
            if not self._is_finishing:  # else MLflow opened only now, and the end says the same
                self._say(f"follow it in MLflow: {self.view_command}")

        self._later(begin)

    def log_points(self, points: CurvePoints) -> None:
        """Log points of curves, unless MLflow has their step."""
        self._later(partial(self._log_points, points))

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

        def log_results() -> None:
            self._attach(run)
            self._wake()
            for child in children:
                self._log_child(child, is_final=True)
            for points in curves:
                self._log_points(points)
            self._log(self._run_id, run)
            if program is not None:
                self._log_program(program)
            self._end("FINISHED")
            self._write_receipt(run, digest)

        if not self._is_on:
            return False
        self._is_finishing = True
        self._pool.submit(lambda: None).result()  # all that came before
        was_told, self._failure = self._failure is not None, None
        if self._receipt().get("digest") != digest or self._watcher is not None:
            try:
                self._pool.submit(self._perform, log_results).result()
            except TrackingError as error:
                self._failure = error
                is_refused = self._client is not None and find_tracking_problem(self.uri) is None
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
        mlflow = import_mlflow()
        mlflow.set_tracking_uri(self.uri)
        mlflow.set_experiment(experiment_id=self._experiment_id)
        mlflow.dspy.autolog(silent=True)

    def find_child(self, child: TrackedRun) -> str:
        """Return the id of the MLflow run that ``log_child`` opened; empty if it did not."""
        return self._pool.submit(lambda: self._children.get(child.key, ("", ""))[0]).result()

    @property
    def view_command(self) -> str:
        """The command that shows the runs in a browser; of a server, its address."""
        is_served = self.uri.startswith(("http:", "https:", "databricks"))
        return self.uri if is_served else f"mlflow ui --backend-store-uri {shlex.quote(self.uri)}"

    # -- the rest runs on the thread -------------------------------------------------------------------

    def _later(self, job: Callable[[], None]) -> None:
        """Let the thread do a job, unless MLflow is off or has failed."""

        def attempt() -> None:
            if self._failure is None:
                try:
                    self._perform(job)
                except TrackingError as error:
                    self._failure = error
                    if self._log_later is not None:
                        self._tell_failure(error)

        if self._is_on:
            self._pool.submit(attempt)

    def _tell_failure(self, error: TrackingError) -> None:
        self._say(f"{error}; the run goes on without it, and {self._log_later} logs its results later")

    def _perform(self, job: Callable[[], None]) -> None:
        """Open MLflow if it is not, and do a job.

        Raises:
            TrackingError: MLflow cannot be reached, or refuses something.
        """
        if self._client is None or self.uri.startswith("http"):
            problem = find_tracking_problem(self.uri)
            if problem is not None:
                can = "cannot" if self._client is None else "can no longer"
                raise TrackingError(f"MLflow at {self.uri!r} {can} be reached: {problem}")
        mlflow = import_mlflow()
        # errors of a database, of a missing driver or of an address have the message of their library
        of_databases = importlib.import_module("sqlalchemy.exc").SQLAlchemyError
        of_others = (mlflow.exceptions.MlflowException, ImportError, OSError, RuntimeError, ValueError)
        try:
            if self._client is None:
                self._client = self._open(self.uri)
            job()
        except (of_databases, *of_others) as error:
            cause = redact_text(" ".join(str(error).split()))[:300]  # half a key would not be found any more
            raise TrackingError(f"MLflow at {self.uri!r} failed: {cause}") from error

    def _open(self, uri: str) -> Any:  # noqa: ANN401 - MLflow's client, which has no types
        """Make a client, and the experiment if there is none.

        A new SQLite database is made under another name, and moved into place. That takes seconds in which
        the process may be killed, and MLflow cannot read a half-made database.
        """
        database = sqlite_path(uri)
        if database is not None and uri == self.uri and not database.exists():
            database.parent.mkdir(parents=True, exist_ok=True)
            part = database.with_name(f"{database.name}.{os.getpid()}.part")
            self._open(sqlite_url(part))
            try:
                os.link(part, database)  # unlike a rename, it keeps a database that another process made
            except FileExistsError:
                pass
            except OSError:  # a file system without links
                part.replace(database)
            part.unlink(missing_ok=True)
        client = import_mlflow().MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name(EXPERIMENT)
        root = self._artifact_root.resolve().as_uri() if self._artifact_root is not None else None
        self._experiment_id = (
            experiment.experiment_id
            if experiment is not None
            else client.create_experiment(EXPERIMENT, artifact_location=root)
        )
        return client

    def _receipt(self) -> Json:
        """Read what the folder says of the MLflow run at this address; empty if there is none."""
        database = sqlite_path(self.uri)
        if self._receipt_file is None or not (database is None or database.exists()):
            return {}
        try:
            receipt: Json = json.loads(self._receipt_file.read_text(encoding="utf-8"))
            uri = str(receipt.get("uri", ""))
        except (FileNotFoundError, ValueError, AttributeError):  # none yet, or damaged
            return {}
        return receipt if absolute_address(uri) == absolute_address(self.uri) else {}

    def _write_receipt(self, run: TrackedRun, digest: str | None) -> None:
        if self._receipt_file is not None:
            # whoever forgets a conversation looks for a named address later, and in another folder
            uri = self.uri if self._artifact_root is not None else absolute_address(self.uri)
            receipt = {"uri": uri, "run_id": self._run_id, "key": run.key, "digest": digest}
            write_json(self._receipt_file, receipt)

    def _attach(self, run: TrackedRun) -> Json:
        """Find the MLflow run of the folder, or create one; return its receipt."""
        receipt = self._receipt()
        if self._run_id:
            return receipt
        if receipt.get("key") == run.key and self._search(f"attributes.run_id = '{receipt.get('run_id')}'"):
            self._run_id = receipt["run_id"]
            children = self._search(f"tags.`{_PARENT}` = '{self._run_id}'")
            found = [(child.info.run_id, child.data.tags) for child in children]
            self._children = {tags[_KEY]: (run_id, tags.get(_DIGEST, "")) for run_id, tags in found}
            return receipt
        source = {"mlflow.source.name": self._source, "mlflow.source.type": "LOCAL"}
        self._run_id = self._create(run, source)
        self._write_receipt(run, None)
        return {}

    def _search(self, filter_string: str) -> Sequence[Any]:  # Any: runs of MLflow, without those in its trash
        return self._client.search_runs([self._experiment_id], filter_string=filter_string)

    def _create(self, run: TrackedRun, tags: Mapping[str, str]) -> str:
        """Create a run with its parameters and data, and return its id."""
        entities, client = import_mlflow().entities, self._client
        created = client.create_run(self._experiment_id, tags={**run.tags, **tags}, run_name=run.name)
        run_id: str = created.info.run_id
        params = [entities.Param(name, str(value)) for name, value in run.params.items()]
        client.log_batch(run_id, params=params)
        if run.dataset:
            name, sha256 = run.dataset["name"], run.dataset["sha256"]
            source = json.dumps({"uri": name, "sha256": sha256})
            context = [entities.InputTag("mlflow.data.context", run.dataset["context"])]
            dataset = entities.Dataset(name, sha256[:8], "local", source)
            client.log_inputs(run_id, [entities.DatasetInput(dataset, context)])
        return run_id

    def _wake(self) -> None:
        """Give the MLflow run the status RUNNING, which becomes KILLED if this process is."""
        if self._watcher is None:
            process = f"{os.getpid()}-{time.time_ns()}"
            self._client.set_tag(self._run_id, _PROCESS, process)
            self._client.update_run(self._run_id, status="RUNNING")
            self._watcher = subprocess.Popen(
                [sys.executable, "-c", _WATCH, self.uri, self._run_id, process],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # Ctrl-C is not for it
            )

    def _end(self, status: str) -> None:
        if self._watcher is not None:
            _end_runs(self._client, self._experiment_id, self._run_id, status)
            self._watcher.communicate(b"ended")
            self._watcher = None

    def _log_points(self, points: CurvePoints) -> None:
        client, marker = self._client, points.marker
        if marker not in self._steps:
            self._steps[marker] = {point.step for point in client.get_metric_history(self._run_id, marker)}
        if points.step not in self._steps[marker]:
            self._wake()
            if points.table:
                client.log_table(self._run_id, dict(points.table), points.table_file)
            self._log_metrics(self._run_id, points.values, points.step)
            self._steps[marker].add(points.step)

    def _log_child(self, child: TrackedRun, *, is_final: bool = False) -> None:
        digest = content_hash(dict(child.metrics))[:16]
        run_id, logged = self._children.get(child.key, ("", ""))
        if logged and (logged == digest or not is_final):
            return
        self._wake()
        if run_id:
            self._client.update_run(run_id, status="RUNNING", name=child.name)
        else:
            run_id = self._create(child, {_PARENT: self._run_id, _KEY: child.key})
        self._children[child.key] = (run_id, digest if child.metrics else "")
        if child.metrics:
            self._log(run_id, replace(child, tags={**child.tags, _DIGEST: digest}))
            self._client.set_terminated(run_id)

    def _log(self, run_id: str, run: TrackedRun) -> None:
        """Log the metrics, the files and at last the tags of a run."""
        self._log_metrics(run_id, run.metrics, step=0)
        for path in run.artifacts:
            self._client.log_artifact(run_id, str(path))
        tags = [import_mlflow().entities.RunTag(name, value) for name, value in run.tags.items()]
        self._client.log_batch(run_id, tags=tags)

    def _log_metrics(self, run_id: str, metrics: Mapping[str, float], step: int) -> None:
        metric, now = import_mlflow().entities.Metric, time.time_ns() // 1_000_000
        self._client.log_batch(run_id, [metric(name, value, now, step) for name, value in metrics.items()])

    def _log_program(self, program: object) -> None:
        """Log a DSPy program with the run, without its models."""
        for name in ("dspy.primitives.base_module", "dspy.dsp.utils.settings"):
            logging.getLogger(name).setLevel(logging.ERROR)  # they warn of the pickle that MLflow writes
        mlflow = import_mlflow()
        mlflow.set_tracking_uri(self.uri)
        with mlflow.start_run(run_id=self._run_id):
            # MLflow would load the program again to find its requirements
            required = [f"dspy=={version('dspy')}"]
            mlflow.dspy.log_model(
                program, name="program", pip_requirements=required, use_dspy_model_save=True
            )


def mark_killed(uri: str, run_id: str, process: str) -> None:
    """Give a run and its children the status KILLED, unless it has ended or another process continues it."""
    database = sqlite_path(uri)
    if database is None or database.exists():
        client = import_mlflow().MlflowClient(tracking_uri=uri)
        run = client.get_run(run_id)
        if run.info.status == "RUNNING" and run.data.tags.get(_PROCESS) == process:
            _end_runs(client, run.info.experiment_id, run_id, "KILLED")


def _end_runs(client: Any, experiment_id: str, run_id: str, status: str) -> None:  # noqa: ANN401 - untyped
    """End a run, and those of its children that have not ended."""
    running = f"tags.`{_PARENT}` = '{run_id}' and attributes.status = 'RUNNING'"
    for child in client.search_runs([experiment_id], filter_string=running):
        client.set_terminated(child.info.run_id, status)
    client.set_terminated(run_id, status)
