"""``--mode calibrate`` over real HTTP, with judges whose faults are built in: the figures come out so."""

import io
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from locomo.judge.calibration import AnswerKind, CalibrationAnswer, calibration_answers
from locomo.judge.rubrics import Rubric, Verdict
from locomo.types import Benchmark
from memory_program.bank.outcomes import Outcome
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.core.errors import BudgetExceededError, NoResultError
from memory_program.core.json_files import Json
from memory_program.evaluation.evaluation_run import evaluate
from memory_program.evaluation.item_records import JudgeRecord
from memory_program.evaluation.scoring.judge_errors import calibration_cases, calibration_journal
from memory_program.evaluation.scoring.score_signature import identify_judge
from memory_program.models.factory import language_model
from memory_program.models.usage import Usage
from tests.competent_model import Prompt, chat_format
from tests.evaluation_samples import write_conversations
from tests.model_server import Behaviour, ModelServer, always, scripted

pytestmark = pytest.mark.usefixtures("plots_are_not_drawn")

Says = Callable[[CalibrationAnswer, Rubric], str]
"""What a judge replies as its verdict, given the answer that it is shown."""


def judge_that(says: Says, benchmark: Benchmark = Benchmark.LOCOMO) -> Callable[[Prompt, int], str]:
    """Make a judge that knows the known answers by their texts."""
    known = {(a.question.text, a.text): a for a in calibration_answers(benchmark)}

    def reply(prompt: Prompt, seen: int) -> str:
        if "verdict" not in prompt.wanted:
            return "ready"
        rubric = Rubric.STRICT if "Be exact" in prompt.system else Rubric.LENIENT
        answer = known[prompt.fields["question"], prompt.fields["given_answer"]]
        return chat_format({"reasoning": "As I was made.", "verdict": says(answer, rubric)})

    return reply


def true_verdict(answer: CalibrationAnswer, rubric: Rubric) -> str:
    return answer.verdicts[rubric].value.upper()


def lenient(answer: CalibrationAnswer, rubric: Rubric) -> str:
    """Fall for what is vague and for what is true of somebody else; otherwise right."""
    fooled = answer.kind in (AnswerKind.VAGUE, AnswerKind.OTHER_SPEAKER)
    return "CORRECT" if fooled else true_verdict(answer, rubric)


def strict(answer: CalibrationAnswer, rubric: Rubric) -> str:
    """Accept nothing but the very words of the gold."""
    return "CORRECT" if answer.kind is AnswerKind.GOLD else "WRONG"


def broken(answer: CalibrationAnswer, rubric: Rubric) -> str:
    """Give no verdict by the strict rubric, nor on what is empty; and accept near misses."""
    if rubric is Rubric.STRICT or answer.kind is AnswerKind.EMPTY:
        return "It is hard to say."
    return "CORRECT" if answer.kind is AnswerKind.NEAR_MISS else true_verdict(answer, rubric)


def run(server: ModelServer, output_dir: Path, **settings: Any) -> tuple[Json | None, str]:
    console = Console(file=io.StringIO(), width=120)
    config = EvaluateConfig(output_dir=output_dir, mlflow=False, judge_model="openai/judge", **settings)
    results = evaluate(
        config, console=console, models=lambda name, _: language_model(name, api_base=server.url)
    )
    return results, console.file.getvalue()


def calibrated(says: Says, folder: Path, **settings: Any) -> tuple[Json, str]:
    benchmark = Benchmark(settings.get("dataset", "locomo"))
    with ModelServer(reply=judge_that(says, benchmark)) as server:
        results, output = run(server, folder / "runs/one", mode="calibrate", **settings)
    assert results is not None
    return results["quality"], output


def kinds(rubric: Json) -> dict[tuple[str, str], float | None]:
    return {(row["kind"], row["known"]): row["errors"] for row in rubric["kinds"]}


def test_error_rates_of_a_lenient_judge_by_kind(tmp_path):
    quality, output = calibrated(lenient, tmp_path, dataset="perltqa")
    assert set(quality) == {"lenient", "strict"}
    for rubric in quality.values():
        errors = kinds(rubric)
        assert {kind for kind, share in errors.items() if share == 1} == {
            ("vague", "wrong"),
            ("other speaker", "wrong"),
        }
        assert set(errors.values()) == {0, 1}
        assert rubric["false_reject"]["value"] == 0
        assert (rubric["unparsed"], rubric["failed"]) == (0, 0)
    # Two of six kinds of wrong answers; by the strict rubric two of seven, with alternatives.
    accepted = quality["lenient"]["false_accept"]
    assert accepted["value"] == pytest.approx(2 / 6)
    assert accepted["low"] < accepted["value"] < accepted["high"]
    assert quality["strict"]["false_accept"]["value"] == pytest.approx(2 / 7)
    assert "By kind of answer" in output
    assert json.loads((tmp_path / "runs/calibration/perltqa.json").read_text())["quality"] == quality


def test_a_strict_judge_rejects_paraphrases(tmp_path):
    quality, _ = calibrated(strict, tmp_path, dataset="longmemeval", rubrics="lenient")
    rubric, errors = quality["lenient"], kinds(quality["lenient"])
    assert errors["gold", "correct"] == 0
    assert rubric["false_accept"]["value"] == 0
    # Rejected: paraphrases, refusals where there is no answer, what is new beside what is old, and a number
    # of weeks that is off by one, which this benchmark forgives where time is asked for and nowhere else.
    assert {kind for kind, share in errors.items() if share == 1} == {
        ("paraphrase", "correct"),
        ("refusal", "correct"),
        ("outdated, then gold", "correct"),
        ("count off by one", "correct"),
    }
    assert errors["count off by one", "wrong"] == 0
    assert rubric["false_reject"]["value"] == pytest.approx(4 / 5)


def test_unparsed_verdicts_give_no_error_rate(tmp_path):
    quality, _ = calibrated(broken, tmp_path, dataset="perltqa")
    assert quality["strict"]["false_accept"] == {"value": None, "low": None, "high": None, "n": 0}
    assert quality["strict"]["unparsed"] == len(calibration_answers(Benchmark.PERLTQA))
    errors = kinds(quality["lenient"])
    assert errors["empty", "wrong"] is None
    assert errors["near miss", "wrong"] == 1
    # One of the five kinds that it gave verdicts on.
    assert quality["lenient"]["false_accept"]["value"] == pytest.approx(1 / 5)
    assert quality["lenient"]["unparsed"] == 8


def test_an_unreachable_judge_ends_the_calibration_which_can_continue(tmp_path):
    settings = {"mode": "calibrate", "dataset": "perltqa", "rubrics": "lenient"}
    with (
        ModelServer(always(Behaviour.BAD_KEY)) as server,
        pytest.raises(BudgetExceededError, match="20 items"),
    ):
        run(server, tmp_path / "runs/one", **settings, concurrency=1)
    with ModelServer(reply=judge_that(lenient, Benchmark.PERLTQA)) as server:
        run(server, tmp_path / "runs/one", **settings, retry_errors=True)
        assert server.traffic.requests.total() == 88
        again, output = run(server, tmp_path / "runs/one", **settings)
        assert server.traffic.requests.total() == 88
    assert again is not None
    assert again["quality"]["lenient"]["failed"] == 0
    assert "calibration on perltqa: 0 of 88 to do" in output


def test_failed_calls_of_a_calibration_are_told_and_are_an_error_if_there_is_no_other(tmp_path):
    settings = {"mode": "calibrate", "dataset": "perltqa", "rubrics": "lenient", "max_errors": 999}
    with ModelServer(scripted([Behaviour.BAD_KEY]), reply=judge_that(lenient, Benchmark.PERLTQA)) as server:
        _, output = run(server, tmp_path / "some/one", **settings)
    assert "calibration: 1 failed, the first: judge: " in output
    assert "Incorrect API key" in output
    assert "--retry-errors repeats them" in output
    with ModelServer(always(Behaviour.CUT)) as server, pytest.raises(NoResultError, match="88 failed, the"):
        run(server, tmp_path / "all/one", **settings)
    rates = json.loads((tmp_path / "all/calibration/perltqa.json").read_text())["quality"]["lenient"]
    assert (rates["failed"], rates["false_accept"]["value"]) == (88, None)


def test_an_empty_reply_of_a_judge_is_named(tmp_path):
    settings = {"dataset": str(write_conversations(tmp_path / "talks.json", 1)), "systems": "extractive"}
    with (
        ModelServer(always(Behaviour.EMPTY)) as server,
        pytest.raises(BudgetExceededError, match="the first: judge: the reply is empty; choose another"),
    ):
        run(server, tmp_path / "runs/one", **settings)


def test_the_cost_of_a_calibration_counts_when_it_continues(tmp_path):
    settings = {"judge_model": "openai/gpt-4.1-mini", "dataset": "perltqa", "mlflow": False, "max_cost": 1.0}
    config = EvaluateConfig(mode="calibrate", output_dir=tmp_path / "runs/one", **settings)
    judge = identify_judge(config)
    assert judge is not None
    case = calibration_cases(judge, Benchmark.PERLTQA)[Rubric.STRICT][0]
    with closing(calibration_journal(config)) as journal:
        verdict, usage = Verdict.CORRECT, Usage(calls=1, cost_usd=0.99)
        journal.add(JudgeRecord(case.key, "q", Rubric.STRICT, verdict, Outcome.OK, "", usage, 0.1))
    with pytest.raises(BudgetExceededError, match=r"would cost about \$1.0.*no question asked"):
        evaluate(config, console=Console(file=io.StringIO()))


def test_judged_scores_cite_the_calibration(tmp_path):
    data = write_conversations(tmp_path / "talks.json", 2)
    settings = {"dataset": str(data), "systems": "extractive", "rubrics": "lenient"}
    with ModelServer() as server:
        before, _ = run(server, tmp_path / "runs/one", **settings)
    calibrated(lenient, tmp_path, rubrics="lenient")
    with ModelServer() as server:
        after, _ = run(server, tmp_path / "runs/one", **settings)
        assert server.traffic.requests.total() == 0
        elsewhere, _ = run(server, tmp_path / "elsewhere/one", **settings)
    assert before is not None
    assert after is not None
    assert elsewhere is not None
    uncited = "|judge:openai/judge|calibration:none|"
    assert uncited in before["systems"]["extractive"]["signature"]
    cited = "|judge:openai/judge|calibration:lenient=0.25/0.00|"
    assert cited in after["systems"]["extractive"]["signature"]
    assert after["systems"]["extractive"]["judge"] == before["systems"]["extractive"]["judge"]
    page = (tmp_path / "runs/one/report.html").read_text(encoding="utf-8")
    assert "Error rates of the judge on known answers" in page
    assert cited in page
    assert "calibration:none" in elsewhere["systems"]["extractive"]["signature"]
