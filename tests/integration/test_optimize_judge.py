"""``optimize.py --target judge`` over real HTTP, with a judge whose quality depends on its prompt.

``evaluate.py`` uses the result, and measures it on the answers of the test split.
"""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from locomo.types import Benchmark
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.core.errors import OptimizationError
from memory_program.core.json_files import Json
from memory_program.evaluation.evaluation_run import evaluate
from tests.evaluation_samples import write_conversations
from tests.judge_samples import CURE, SteerableJudge, quick_judge, untouched_questions, write_judge
from tests.model_server import Behaviour, ModelServer
from tests.optimization_samples import impatient, run


def evaluated(server: ModelServer, folder: Path, **settings: Any) -> tuple[Json, str]:
    console = Console(file=io.StringIO(), width=160)
    config = EvaluateConfig(
        output_dir=folder / "runs/one",
        judge_model="openai/judge",
        rubrics="strict",
        mlflow=False,
        **settings,
    )
    results = evaluate(config, console=console, models=impatient(server.url))
    return results or {}, console.file.getvalue()  # type: ignore[attr-defined]  # the StringIO above


def test_a_better_instruction_is_found_and_the_judge_errs_less_on_the_test_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    model = SteerableJudge()
    config = quick_judge(tmp_path, optimizer="gepa")
    with ModelServer(reply=model) as server:
        results, output = run(config, server)
        untouched = untouched_questions(Benchmark.PERLTQA)
        assert not {prompt.fields.get("question") for prompt in model.asked} & untouched
        assert not [prompt for prompt in model.asked if any(text in prompt.user for text in untouched)]
        paid = server.traffic.requests.total()
        assert run(config, server)[0]["program"] == results["program"]
        assert server.traffic.requests.total() == paid
        stock, _ = evaluated(server, tmp_path, mode="calibrate", dataset="perltqa")
        settings = {"mode": "calibrate", "dataset": "perltqa", "judge_program": config.output}
        better, report = evaluated(server, tmp_path, **settings)
    (stage,) = results["stages"]
    before, after = stage["baseline"], stage["winner"]
    assert (stage["target"], after["is_baseline"]) == ("judge", False)
    assert (after["score"]["value"], after["false_accept"]["value"]) == (1.0, 0.0)
    assert before["false_accept"]["value"] > 0 == before["false_reject"]["value"]
    assert f"judge: false accepts {before['false_accept']['value']:.3f} -> 0.000, false rejects" in output
    assert after["signature"].startswith("known_verdicts|bench:perltqa|rubric:strict|n:16|answers:")
    assert (stage["comparison"]["n"], stage["comparison"]["low"] is not None) == (16, True)  # two questions

    text = Path(config.output_file).read_text()
    assert "sk-secret" not in text
    assert str(tmp_path) not in text
    saved = json.loads(text)
    assert CURE in saved["perltqa"]["signature"]["instructions"]
    told = saved["metadata"]["optimization"]
    assert set(told["dataset"]["test"]) == untouched
    assert told["stages"][0]["winner"] == after

    quality = better["quality"]["strict"]
    assert stock["quality"]["strict"]["false_accept"]["value"] > 0.1
    assert "untouched" not in stock["quality"]["strict"]
    assert (quality["untouched"]["questions"], quality["untouched"]["false_accept"]["value"]) == (2, 0)
    assert quality["untouched"]["false_accept"]["n"] < quality["false_accept"]["n"]
    assert better["judge"]["name"].startswith("openai/judge+strict@")
    assert "strict, 2 questions untouched" in report
    assert "prompts were optimised on the answers to these questions" in report
    assert all(question in " ".join(report.split()) for question in told["dataset"]["train"])


def test_demos_of_good_verdicts_make_a_better_judge(tmp_path: Path) -> None:
    config = quick_judge(tmp_path, optimizer="bootstrap", rubric="lenient", trials=1)
    with ModelServer(reply=SteerableJudge()) as server:
        results, _ = run(config, server)
    (stage,) = results["stages"]
    saved = json.loads(config.output_file.read_text())["perltqa"]
    assert not stage["winner"]["is_baseline"]
    assert stage["winner"]["false_accept"]["value"] < stage["baseline"]["false_accept"]["value"]
    assert {demo["verdict"] for demo in saved["demos"]} <= {"CORRECT", "WRONG"}
    assert not {demo["question"] for demo in saved["demos"]} & untouched_questions(Benchmark.PERLTQA)


def test_one_step_improves_the_prompts_of_several_kinds_of_questions(tmp_path: Path) -> None:
    config = quick_judge(tmp_path, optimizer="gepa", dataset="longmemeval", trials=1)
    with ModelServer(reply=SteerableJudge(benchmark=Benchmark.LONGMEMEVAL)) as server:
        results, _ = run(config, server)
    before, *others = (candidate["prompts"] for candidate in results["stages"][0]["candidates"])
    changed = [{name for name in before if prompts[name] != before[name]} for prompts in others]
    assert len(before) == 5
    assert 2 <= max(map(len, changed)) <= 3  # a batch has three answers


def test_where_nothing_helps_the_judge_is_unchanged(tmp_path: Path) -> None:
    config = quick_judge(tmp_path, optimizer="simba", rubric="lenient", trials=1)
    with ModelServer(reply=SteerableJudge(is_curable=False)) as server:
        results, output = run(config, server)
    (stage,) = results["stages"]
    assert stage["winner"]["is_baseline"]
    assert stage["winner"]["false_accept"] == stage["baseline"]["false_accept"]
    assert stage["baseline"]["false_accept"]["value"] > 0
    assert "the baseline stays" in output


def test_a_judge_whose_every_call_fails_ends_the_run_with_the_cause(tmp_path: Path) -> None:
    def fails(prompt: Any, seen: int) -> Behaviour:
        return Behaviour.BAD_KEY if "verdict" in prompt.wanted else Behaviour.COMPETENT

    config = quick_judge(tmp_path)
    with (
        ModelServer(fails, reply=SteerableJudge()) as server,
        pytest.raises(OptimizationError, match="none of 16 attempts has a score; the first failure: judge: "),
    ):
        run(config, server)
    assert not config.output_file.exists()


def test_verdicts_by_optimised_prompts_are_stored_apart_and_named(tmp_path: Path) -> None:
    data = write_conversations(tmp_path / "talks.json", 1)
    judge = write_judge(tmp_path / "judge.json", instruction="\nBe careful.")
    settings = {"dataset": str(data), "systems": "extractive", "num_test": 4}
    with ModelServer() as server:
        results, _output = evaluated(server, tmp_path, **settings, judge_program=judge)
        judged = server.traffic.requests.total()
        evaluated(server, tmp_path, **settings, mode="judge")
        assert server.traffic.requests.total() == 2 * judged
        evaluated(server, tmp_path, **settings, mode="judge", judge_program=judge)
        assert server.traffic.requests.total() == 2 * judged  # both are stored
    system = results["systems"]["extractive"]
    name = system["calibration"]["judge"]
    assert name.startswith("openai/judge+strict@")
    assert f"|judge:{name}|calibration:none|" in system["signature"]
