"""The main job on the real benchmark: every question, without a model."""

import io
import json
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.lm15 import Request, Response
from rich.console import Console

from locomo.locomo import load_locomo
from memory_program.agents.program import MemoryProgram
from memory_program.agents.writer import MemoryWriter
from memory_program.configs.evaluate_config import EvaluateConfig, Mode
from memory_program.evaluation.evaluation_run import evaluate
from memory_program.worlds.observation_expert import expert_of_observations

pytestmark = [pytest.mark.dataset, pytest.mark.usefixtures("plots_are_not_drawn")]


def run(locomo_path: Path, output_dir: Path, **settings: Any) -> tuple[Any, str]:
    console = Console(file=io.StringIO(), width=120)
    config = EvaluateConfig(
        dataset="locomo",
        data=locomo_path,
        systems="extractive",
        output_dir=output_dir,
        mlflow=False,
        **settings,
    )
    return evaluate(config, console=console), console.file.getvalue()


@pytest.fixture(scope="module")
def finished(locomo_path: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder of a whole run, and its results."""
    folder = tmp_path_factory.mktemp("locomo")
    results, _ = run(locomo_path, folder)
    return folder, results


def test_every_question_is_scored_without_a_model(finished):
    _, results = finished
    system = results["systems"]["extractive"]
    counts = {name: score["n"] for name, score in system["locomo_f1"].items()}
    assert counts == {"all": 1540, "multi-hop": 282, "temporal": 321, "open-domain": 96, "single-hop": 841}
    assert system["abstention"]["n"] == 446
    assert system["overall_with_abstention"]["n"] == 1986
    assert system["failures"]["all"] == system["calls"] == 0
    assert system["locomo_f1"]["all"]["value"] >= 0.25
    assert system["overall_with_abstention"]["value"] >= 0.25


def test_recall_is_better_than_the_papers_dense_retriever(finished):
    _, results = finished
    system = results["systems"]["extractive"]
    assert system["recall"]["10"] >= 0.73  # DRAGON: 0.662 (Maharana et al. 2024, table 3)
    assert system["recall"]["50"] >= 0.87  # DRAGON: 0.827
    values = [system["recall"][key] for key in ("5", "10", "25", "50")]
    assert values == sorted(values)
    # Four questions name no evidence.
    assert {interval["n"] for interval in system["recall_intervals"].values()} == {1982}


def test_each_interval_contains_its_mean(finished):
    _, results = finished
    system = results["systems"]["extractive"]
    intervals = [*system["locomo_f1"].values(), system["abstention"], *system["recall_intervals"].values()]
    assert all(interval["low"] <= interval["value"] <= interval["high"] for interval in intervals)


def test_the_signature_names_the_official_file(finished):
    _, results = finished
    signature = results["systems"]["extractive"]["signature"]
    assert signature.startswith("locomo_f1|cat:1-4|n:1540|judge:none|data:79fa87e9|v:")


def test_a_second_run_does_no_work_and_gives_identical_numbers(finished, locomo_path):
    folder, results = finished
    again, output = run(locomo_path, folder)
    assert {**again, "git_commit": None} == {**results, "git_commit": None}
    assert "build: 0 of 272 to do" in output
    assert "answer: 0 of 1986 to do" in output


def test_a_split_is_scored_from_the_same_records(finished, locomo_path):
    folder, results = finished
    scores = {}
    for split in ("train", "val", "test"):
        part, _ = run(locomo_path, folder, mode="report", split=split)
        scores[split] = part["systems"]["extractive"]["overall_with_abstention"]
        assert f"|split:{split}|" in part["systems"]["extractive"]["signature"]
    assert {split: score["n"] for split, score in scores.items()} == {"train": 1157, "val": 190, "test": 639}
    whole = results["systems"]["extractive"]["overall_with_abstention"]["value"]
    assert sum(score["value"] * score["n"] for score in scores.values()) / 1986 == pytest.approx(whole)


class CountingEngine:
    """Hands requests to another engine, and keeps them."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.requests: list[Request] = []

    def __deepcopy__(self, memo: object) -> "CountingEngine":
        return self

    def complete(self, request: Request) -> Response:
        self.requests.append(request)
        return self._engine.complete(request)


@pytest.mark.slow
def test_a_generalist_writes_the_notes_of_all_of_locomo_with_at_most_300_calls(locomo_path, tmp_path):
    program = MemoryProgram(MemoryWriter("generalist"))
    engine = CountingEngine(expert_of_observations(program, load_locomo(locomo_path).conversations).engine)
    config = EvaluateConfig(
        dataset="locomo",
        data=locomo_path,
        systems="memory",
        mode=Mode.BUILD,
        writer_model="notes",
        writer_mode="generalist",
        output_dir=tmp_path,
        mlflow=False,
    )

    def models(name: str, temperature: float) -> dspy.LM:
        return dspy.LM(name, engine=engine, cache=False, num_retries=0)

    evaluate(config, console=Console(quiet=True), models=models)
    sessions = [json.loads(line)["record"] for line in (tmp_path / "memory" / "build.jsonl").open()]
    assert len(sessions) == len(engine.requests) == 272
    assert sum(session["operations"] for session in sessions) == 2540
