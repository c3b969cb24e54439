"""Runs that optimise and train go on without an MLflow that cannot be reached, and say so at once."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memory_program.configs.optimize_config import OptimizeConfig
from memory_program.configs.train_config import TrainConfig
from memory_program.optimization.mlflow_optimization import OptimizationPublisher
from memory_program.rl.mlflow_training import TrainingPublisher
from memory_program.tracking import RunPublisher, TrackedRun, find_tracking_problem, import_mlflow

Make = Callable[[Path, str, Any], RunPublisher]

PUBLISHERS: list[tuple[Make, str]] = [
    (
        lambda folder, uri, say: OptimizationPublisher(
            OptimizeConfig(output_dir=folder, tracking_uri=uri), say
        ),
        "the same command",
    ),
    (
        lambda folder, uri, say: TrainingPublisher(TrainConfig(output_dir=folder, tracking_uri=uri), say),
        "train.py --mode evaluate --output-dir",
    ),
]


def test_a_silent_request_to_mlflow_ends_after_ten_seconds(monkeypatch):
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_TIMEOUT", raising=False)
    import_mlflow()
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "10"


@pytest.mark.parametrize(("make", "command"), PUBLISHERS)
def test_a_dead_mlflow_is_told_at_the_start_and_leaves_the_results(tmp_path, make, command):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{free.getsockname()[1]}"
    told: list[str] = []
    publisher = make(tmp_path, uri, told.append)
    publisher.close()  # it waits for what was begun when it was made
    (line,) = told
    assert line.startswith(f"MLflow at {uri!r} cannot be reached: ")
    assert f"the run goes on without it, and {command}" in line
    assert not publisher.log_once("digest", TrackedRun("run", {}, {}, {}, []))
    assert told[1].startswith(f"not logged to MLflow: {command}")
    assert not (tmp_path / "tracking.json").exists()


@pytest.mark.parametrize(
    "uri", ["sqlite:///{}/new.db", "file:///{}", "databricks", "postgresql:///local", "nonsense://x"]
)
def test_what_only_mlflow_can_tell_is_left_to_it(tmp_path, uri):
    assert find_tracking_problem(uri.format(tmp_path)) is None
