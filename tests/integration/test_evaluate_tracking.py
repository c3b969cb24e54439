"""MLflow: what is logged, once, and what happens when it cannot be."""

import io
import json
import socket
import time
from pathlib import Path
from typing import Any

import dspy
import pytest
from rich.console import Console

from memory_program.bank.outcomes import Answer
from memory_program.bank.space import MemorySpace
from memory_program.bank.store import BankStore
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.core.errors import TrackingError
from memory_program.core.mlflow_address import import_mlflow, tracking_location
from memory_program.core.sqlite_address import sqlite_path
from memory_program.evaluation.evaluation_run import evaluate
from memory_program.evaluation.scoring.bank_growth import database_url
from memory_program.tracking import EXPERIMENT
from tests.evaluation_samples import Quoting, maker, write_conversations

pytestmark = pytest.mark.usefixtures("plots_are_not_drawn")


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


class Watching(Quoting):
    """Looks at MLflow when it is first asked, as ``seen``, and may fail then."""

    def __init__(self, uri: str, error: Exception | None = None) -> None:
        super().__init__()
        self.uri, self.error = uri, error
        self.seen: list[Any] = []

    def ask(self, space: MemorySpace, question: str) -> Answer:
        if not self.seen:
            until = time.monotonic() + 60
            while len(self.seen) < 3 and time.monotonic() < until:  # a thread logs
                time.sleep(0.1)
                self.seen = runs_at(self.uri) if sqlite_path(self.uri).exists() else []
            if self.error is not None:
                raise self.error
        return super().ask(space, question)


def test_systems_are_logged_as_they_finish_and_a_rerun_continues_the_run(tmp_path):
    uri, data = f"sqlite:///{tmp_path / 'runs/mlflow.db'}", write_conversations(tmp_path / "talks.json", 1)
    config = EvaluateConfig(
        dataset=str(data), systems="extractive,rag", output_dir=tmp_path / "runs/one",
        model="openai/none", judge_model="none", concurrency=1,
    )  # fmt: skip
    watching = Watching(uri, RuntimeError("crash"))
    systems = {"extractive": Quoting(), "rag": watching}
    console = Console(file=io.StringIO(), width=200)
    began_ms = time.time() * 1000
    with pytest.raises(RuntimeError, match="crash"):
        evaluate(config, console=console, system_factory=lambda name, _: systems[name], models=no_models)
    seen = {found.info.run_name: found for found in watching.seen}
    assert {name: found.info.status for name, found in seen.items()} == {
        "one on talks": "RUNNING", "extractive": "FINISHED", "rag": "RUNNING",
    }  # fmt: skip
    assert seen["extractive"].data.metrics["locomo_f1/all"] > 0
    stopped = {found.info.run_name: found.info.status for found in runs_at(uri)}
    assert stopped == {"one on talks": "FAILED", "extractive": "FINISHED", "rag": "FAILED"}

    watching.error = None
    results = evaluate(
        config, console=console, system_factory=lambda name, _: systems[name], models=no_models
    )
    ended = {found.info.run_name: found for found in runs_at(uri)}
    assert {name: found.info.run_id for name, found in ended.items()} == {
        name: found.info.run_id for name, found in seen.items()
    }
    assert {found.info.status for found in ended.values()} == {"FINISHED"}
    parent = ended["one on talks"]
    assert began_ms <= parent.info.start_time < parent.info.end_time - 100
    best = max(results["systems"], key=lambda name: results["systems"][name]["locomo_f1"]["all"]["value"])
    assert parent.data.tags["best_system"] == best
    assert parent.data.tags["mlflow.source.name"] == "evaluate.py"
    assert parent.data.metrics == ended[best].data.metrics
    assert parent.data.params["top_k"] == "10"
    (used,) = parent.inputs.dataset_inputs
    assert (used.dataset.name, used.dataset.digest) == ("talks", results["dataset"]["sha256"][:8])
    assert f"follow it in MLflow: mlflow ui --backend-store-uri {uri}" in console.file.getvalue()


def no_models(name: str, temperature: float) -> dspy.LM:
    return dspy.LM("openai/none", api_key="none")


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


@pytest.mark.parametrize("name", ["a?b", "a%41b"])
def test_memories_and_mlflow_of_a_folder_with_any_name_are_in_it(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    run(folder)
    BankStore(database_url(EvaluateConfig(output_dir=folder / "runs/one"))).close()
    assert (folder / "runs/mlflow.db").is_file()
    assert (folder / "runs/one/banks.sqlite").is_file()
    uri, _ = tracking_location(folder / "runs/one", None)
    assert sqlite_path(uri) == folder / "runs/mlflow.db"
    assert len(runs_at(uri)) == 2


def has_results(folder: Path) -> bool:
    return bool(json.loads((folder / "runs/one/results.json").read_text())["systems"]["extractive"])


def dead_address(place: str) -> str:
    """An address with ``{port}`` where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return place.format(port=free.getsockname()[1])


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("http://127.0.0.1:{port}", "Connection refused"),
        ("postgresql://127.0.0.1:{port}/x", "Connection refused"),
        ("mysql+nodriver://127.0.0.1:{port}/x", "Connection refused"),
        ("sqlite:///{folder}/text.db", "the file is not an SQLite database"),
        ("nonsense://x", ""),
    ],
)
def test_a_run_goes_on_without_an_mlflow_that_cannot_be_opened(tmp_path, place, problem):
    (tmp_path / "text.db").write_text("no database, but a text of some length\n" * 99)
    uri = dead_address(place.replace("{folder}", str(tmp_path)))
    began = time.monotonic()
    output = run(tmp_path, tracking_uri=uri)
    assert time.monotonic() - began < 30  # MLflow alone would try for minutes
    (told,) = [line for line in output.splitlines() if "the run goes on without it" in line]
    assert told.startswith(f"MLflow at {uri!r} ")
    assert problem in told
    command = f"evaluate.py {tmp_path / 'runs/one'} --mode report --tracking-uri"
    assert f"{command} {uri} logs its results later" in told
    assert "compare in MLflow" not in output
    assert has_results(tmp_path)
    again = tmp_path / "runs/mlflow.db"
    run(tmp_path, mode="report", tracking_uri=f"sqlite:///{again}")
    assert len(runs_at(f"sqlite:///{again}")) == 2


@pytest.mark.parametrize("settings", [{"mode": "report"}, {"traces": True}])
def test_a_command_that_needs_mlflow_fails_without_it(tmp_path, settings):
    if "mode" in settings:
        run(tmp_path, mlflow=False)
    with pytest.raises(
        TrackingError, match=r"MLflow at .* cannot be reached: .*--tracking-uri .*--no-mlflow"
    ):
        run(tmp_path, tracking_uri=dead_address("http://127.0.0.1:{port}"), **settings)


def test_an_mlflow_that_never_answers_is_reported(tmp_path):
    hung = socket.create_server(("127.0.0.1", 0))  # accepts a connection, and never answers
    with hung:
        output = run(tmp_path, tracking_uri=f"http://127.0.0.1:{hung.getsockname()[1]}")
    assert "cannot be reached: timed out" in output
    assert has_results(tmp_path)


def test_without_mlflow_nothing_is_tracked(tmp_path):
    output = run(tmp_path, mlflow=False)
    assert "MLflow" not in output
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["one"]
    assert not (tmp_path / "runs/one/tracking.json").exists()
