"""MLflow: what is logged, once, and what happens when it cannot be."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.core.errors import TrackingError
from memory_program.evaluation.evaluation_run import evaluate
from memory_program.tracking import EXPERIMENT, import_mlflow
from tests.evaluation_samples import Quoting, maker, write_conversations


def run(folder: Path, **settings: Any) -> str:
    data = write_conversations(folder / "talks.json", 2)
    console = Console(file=io.StringIO(), width=200)
    config = EvaluateConfig(
        dataset=str(data), **{"systems": "extractive", "output_dir": folder / "runs/one", **settings}
    )
    evaluate(config, console=console, system_factory=maker(Quoting()))
    return console.file.getvalue()


def runs_at(uri: str) -> list[Any]:
    client = import_mlflow().MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    return client.search_runs([experiment.experiment_id])


def test_repeated_commands_log_results_once(tmp_path):
    uri = f"sqlite:///{tmp_path / 'runs/mlflow.db'}"
    output = run(tmp_path)
    assert f"mlflow ui --backend-store-uri {uri}" in output
    parent, child = sorted(runs_at(uri), key=lambda found: "mlflow.parentRunId" in found.data.tags)
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert child.data.params["system"] == "extractive"
    assert child.data.params["top_k"] == "10"
    results = json.loads((tmp_path / "runs/one/results.json").read_text())
    system = results["systems"]["extractive"]
    assert child.data.tags["signature"] == system["signature"]
    expected = {
        "locomo_f1/all": system["locomo_f1"]["all"]["value"],
        "locomo_f1/all/low": system["locomo_f1"]["all"]["low"],
        "abstention": system["abstention"]["value"],
        "recall/10": system["recall"]["10"],
        "tokens_per_question": 20.0,
        "calls": 0.0,
    }
    assert {name: child.data.metrics[name] for name in expected} == expected
    assert child.info.artifact_uri.startswith((tmp_path / "runs/mlartifacts").as_uri())

    run(tmp_path)
    assert len(runs_at(uri)) == 2
    run(tmp_path, num_test=3)  # other results
    assert len(runs_at(uri)) == 4


def test_a_half_made_database_does_no_harm(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/mlflow.db.4711.part").write_bytes(b"half a database")
    run(tmp_path)
    assert len(runs_at(f"sqlite:///{tmp_path / 'runs/mlflow.db'}")) == 2


def test_a_failing_tracker_is_an_error_after_the_results_are_written(tmp_path):
    with pytest.raises(
        TrackingError, match=r"MLflow at 'nonsense://x' failed: .*--tracking-uri .*--no-mlflow"
    ):
        run(tmp_path, tracking_uri="nonsense://x")
    assert json.loads((tmp_path / "runs/one/results.json").read_text())["systems"]["extractive"]


@pytest.mark.parametrize("place", ["sqlite:///{}", "postgresql://127.0.0.1:1/x", "mysql+nodriver://h/x"])
def test_a_failing_database_is_an_error(tmp_path, monkeypatch, place):
    monkeypatch.setattr("mlflow.store.db.utils.MAX_RETRY_COUNT", 1)  # ten tries take MLflow 100 s
    (tmp_path / "text.db").write_text("no database, but a text of some length\n" * 99)
    uri = place.format(tmp_path / "text.db")
    with pytest.raises(TrackingError, match=r"MLflow at .* failed: .*--tracking-uri .*--no-mlflow"):
        run(tmp_path, tracking_uri=uri)
    assert json.loads((tmp_path / "runs/one/results.json").read_text())["systems"]["extractive"]


def test_without_mlflow_nothing_is_tracked(tmp_path):
    output = run(tmp_path, mlflow=False)
    assert "MLflow" not in output
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["one"]
    assert not (tmp_path / "runs/one/tracking.json").exists()
