"""Runs whose answers are judged by nuggets, with a judge behind HTTP."""

import io
import json
import shutil

import pytest
from beam_samples import write_beam
from locomo_plus_samples import write_locomo_plus
from memoryagentbench_samples import ROWS, write_memoryagentbench
from rich.console import Console
from scripted_lm import fields

from locomo.locomo import LOCOMO_FILE
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.evaluation.evaluation_run import evaluate
from memory_program.models.factory import language_model
from tests.model_server import ModelServer


def run(server, dataset, data, out, **more):
    """The results of the extractive system, which needs no model."""
    chosen = {"systems": "extractive", "judge_model": "openai/j", "mlflow": False, **more}
    config = EvaluateConfig(dataset=dataset, data=data, output_dir=out, **chosen)
    console = Console(file=io.StringIO(), width=120)
    results = evaluate(
        config, console=console, models=lambda name, _: language_model(name, api_base=server.url)
    )
    return results["systems"]["extractive"]


def test_a_nugget_without_a_value_leaves_its_answer_unscored_until_it_is_repeated(tmp_path):
    verdicts = {
        "The chat does not say who bought it": "1",
        "should state: red": "1",
        "should mention: it was green": "0.5",
        **{"Buying it": "1", "Painting it": "1", "Selling it": "perhaps"},
    }
    judged: list[str] = []

    def judge(prompt, seen):
        judged.append(prompt.fields["criterion"])
        return fields(reasoning="So it is.", verdict=verdicts[judged[-1]])

    data, out = write_beam(tmp_path), tmp_path / "run"
    with ModelServer(reply=judge) as server:
        first = run(server, "beam", data, out)
        assert sorted(judged) == sorted(verdicts)
        verdicts["Selling it"] = "0"
        second = run(server, "beam", data, out, retry_errors=True)
        assert judged[6:] == ["Selling it"]
    scores = {name: score["value"] for name, score in first["locomo_f1"].items() if score["n"]}
    assert scores == {"all": 0.875, "abstention": 1.0, "update": 0.75}
    assert (first["unscored"], first["failures"]["judge"]["unparsed"]) == (1, 1)
    assert (second["unscored"], second["failures"]["judge"]["unparsed"]) == (0, 0)
    # one line stands for the first event: ranks 1, 2, 3 against 1, 4, 4 have tau-b 2 / sqrt(3 * 2)
    assert second["locomo_f1"]["event-ordering"]["value"] == (2 / 6**0.5 + 1) / 2
    signature = "nugget_score|bench:beam|n:3|judge:openai/j|calibration:none|data:100K-"
    assert second["signature"].startswith(signature)
    lines = (out / "extractive" / "questions.jsonl").read_text().splitlines()
    update = json.loads(lines[2])
    assert (update["nuggets"], update["locomo_f1"]) == ([1.0, 0.5], 0.75)


def test_a_judge_scores_chats_by_verdict_and_summaries_by_f1(tmp_path):
    def judge(prompt, seen):
        verdict = "1" if "criterion" in prompt.fields else "CORRECT"
        return fields(reasoning="So it is.", verdict=verdict)

    with ModelServer(reply=judge) as server:
        found = run(server, "memoryagentbench", write_memoryagentbench(tmp_path, *ROWS[3:]), tmp_path / "run")
    scores = {name: score["value"] for name, score in found["locomo_f1"].items() if score["n"]}
    # of the summary: fluent, 1 of 2 key points, 1 of 1 sentence
    assert scores["longmemeval"] == 1.0
    assert scores["summarization"] == 2 * 0.5 / 1.5
    assert found["judge"]["lenient"]["longmemeval"]["n"] == 1
    assert (found["unscored"], found["failures"]["judge"]["missing"]) == (0, 0)


@pytest.mark.dataset
def test_a_reply_to_a_remark_is_judged_by_its_link_to_the_cue(tmp_path, locomo_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "memory-program").mkdir()
    shutil.copy(locomo_path, tmp_path / "memory-program" / LOCOMO_FILE)

    def judge(prompt, seen):
        return fields(reasoning="So it is.", verdict=str(int("gutter" in prompt.fields["criterion"])))

    with ModelServer(reply=judge) as server:
        found = run(server, "locomo-plus", write_locomo_plus(tmp_path), tmp_path / "run")
    scores = {name: score["value"] for name, score in found["locomo_f1"].items() if score["n"]}
    assert scores == {"all": 0.5, "causal": 1.0, "goal": 0.0}
    assert found["signature"].startswith("link_score|bench:locomo-plus|n:2|judge:openai/j|")
    assert found["recall"]["50"] is not None


def test_the_error_rates_of_a_judge_of_nuggets_are_measured_and_cited(tmp_path):
    """The judge gives half a point to what is a part of the gold, and 1 to all else."""

    def judge(prompt, seen):
        gold = prompt.fields["criterion"].removeprefix("The answer states: ").lower()
        said = prompt.fields["given_answer"].lower()
        is_part = said in gold and said != gold and not said.isdigit()  # a number alone is a right answer
        return fields(reasoning="So it is.", verdict="0.5" if is_part else "1")

    settings = {"mode": "calibrate", "judge_model": "openai/j", "mlflow": False, "dataset": "beam"}
    with ModelServer(reply=judge) as server:
        models = {"models": lambda name, _: language_model(name, api_base=server.url)}
        config = EvaluateConfig(output_dir=tmp_path / "run", **settings)
        quality = evaluate(config, console=Console(file=io.StringIO(), width=120), **models)["quality"][
            "nuggets"
        ]
        kinds = {row["kind"]: row["errors"] for row in quality["kinds"]}
        assert (kinds["gold"], kinds["part of a list"], kinds["refusal"]) == (0, 0, 1)
        assert (quality["false_reject"]["value"], quality["unparsed"], quality["failed"]) == (0, 0, 0)
        found = run(server, "beam", write_beam(tmp_path), tmp_path / "run")
    assert f"|calibration:nuggets={quality['false_accept']['value']:.2f}/0.00|" in found["signature"]
