"""Runs that optimise and train go on without an MLflow that cannot be reached, and say so at once."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from memory_program.configs.optimize_config import OptimizeConfig
from memory_program.configs.train_config import TrainConfig
from memory_program.core.errors import TrackingError
from memory_program.core.json_files import read_json_file, write_json
from memory_program.core.mlflow_address import find_tracking_problem, import_mlflow
from memory_program.optimization.mlflow_optimization import OptimizationPublisher
from memory_program.rl.mlflow_training import TrainingPublisher
from memory_program.tracking import CurvePoints, RunTracker, TrackedRun

Make = Callable[[Path, str, Any], RunTracker]
DATA = {"name": "talks", "sha256": "0" * 64}


def begun(tracker: TrainingPublisher) -> TrainingPublisher:
    tracker.begin()
    return tracker


PUBLISHERS: list[tuple[Make, str]] = [
    (
        lambda folder, uri, say: OptimizationPublisher(
            OptimizeConfig(output_dir=folder, tracking_uri=uri), DATA, say
        ),
        "the same command",
    ),
    (
        lambda folder, uri, say: begun(
            TrainingPublisher(
                TrainConfig(output_dir=folder, tracking_uri=uri),
                SimpleNamespace(dataset=SimpleNamespace(**DATA)),
                say,
            )
        ),
        "train.py --mode evaluate --output-dir",
    ),
]


def test_a_silent_request_to_mlflow_ends_after_ten_seconds(monkeypatch):
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_TIMEOUT", raising=False)
    import_mlflow()
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "10"


def test_a_key_that_mlflow_tells_is_not_told_on(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "hunter22-of-mine")

    def refuse() -> None:
        raise OSError(f"{'x' * 290} hunter22-of-mine")

    tracker = RunTracker("x", tmp_path, None, print, None, is_on=False)
    with pytest.raises(TrackingError, match="failed: xxx") as caught:
        tracker._perform(refuse)
    assert "hunter" not in str(caught.value)


def test_a_run_records_the_full_path_of_a_named_address_and_knows_a_relative_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("m.db").touch()
    Path("run").mkdir()
    tracker = RunTracker("x", Path("run"), "sqlite:///m.db", print, None, is_on=False)
    tracker._write_receipt(TrackedRun("run", {}, {}), "digest")
    receipt = read_json_file(Path("run/tracking.json"))
    assert receipt["uri"] == f"sqlite:///{tmp_path / 'm.db'}"
    assert tracker._receipt() == receipt
    write_json(Path("run/tracking.json"), {**receipt, "uri": "sqlite:///m.db"})  # as earlier versions did
    assert tracker._receipt()["digest"] == "digest"


@pytest.mark.parametrize("damaged", [b"[]", b'"text"', b"\xff", b"{", b'{"uri": 5}', b'{"uri": null}'])
def test_a_damaged_receipt_counts_as_none(tmp_path, damaged):
    (tmp_path / "tracking.json").write_bytes(damaged)
    assert RunTracker("x", tmp_path, "http://127.0.0.1:1", print, None, is_on=False)._receipt() == {}


@pytest.mark.parametrize(("make", "command"), PUBLISHERS)
def test_a_dead_mlflow_is_told_at_the_start_and_leaves_the_results(tmp_path, make, command):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{free.getsockname()[1]}"
    told: list[str] = []
    with make(tmp_path, uri, told.append) as publisher:
        assert not publisher.finish("digest", TrackedRun("run", {}, {}))
    assert told[0].startswith(f"MLflow at {uri!r} cannot be reached: ")
    assert f"the run goes on without it, and {command}" in told[0]
    assert told[1].startswith(f"not logged to MLflow: {command}")
    assert len(told) == 2
    assert not (tmp_path / "tracking.json").exists()


@pytest.mark.parametrize(
    "uri", ["sqlite:///{}/new.db", "file:///{}", "databricks", "postgresql:///local", "nonsense://x"]
)
def test_what_only_mlflow_can_tell_is_left_to_it(tmp_path, uri):
    assert find_tracking_problem(uri.format(tmp_path)) is None


def test_an_address_with_an_open_bracket_is_told_and_leaves_the_results(tmp_path):
    told: list[str] = []
    with RunTracker("x", tmp_path, "http://[::1", told.append, "x --mode report", is_on=True) as tracker:
        assert not tracker.finish("digest", TrackedRun("run", {}, {}))
    (line,) = told
    assert line.startswith("MLflow at 'http://[::1' cannot be reached: Invalid IPv6 URL; the run goes on")


def test_every_number_of_a_log_entry_is_a_point_of_a_curve():
    step = {"kind": "step", "step": 3, "run_s": 30.0, "reward": 0.5, "groups": 20}
    assert CurvePoints.from_entry(step) == CurvePoints(
        3, {"run_s": 30.0, "reward": 0.5, "groups": 20.0}, "run_s"
    )
    validation = {"kind": "validation", "step": 10, "run_s": 99.0, "score": 0.5, "scores": {"a": {"b": 1.0}}}
    points = CurvePoints.from_entry(validation)
    assert points.values == {"validation/run_s": 99.0, "validation/score": 0.5}
    assert (points.step, points.marker) == (10, "validation/run_s")


@pytest.mark.parametrize(
    ("named", "command"),
    [
        (None, "mlflow ui --backend-store-uri sqlite:///runs/mlflow.db"),
        ("sqlite:////my runs/mlflow.db", "mlflow ui --backend-store-uri 'sqlite:////my runs/mlflow.db'"),
        ("postgresql://host/mlflow", "mlflow ui --backend-store-uri postgresql://host/mlflow"),
        ("https://host:5000/mlflow", "https://host:5000/mlflow"),
    ],
)
def test_the_command_that_shows_the_runs_names_the_address_that_was_used(named, command):
    with RunTracker("x.py", Path("runs/one"), named, print, None, is_on=True) as tracker:
        assert tracker.view_command == command
