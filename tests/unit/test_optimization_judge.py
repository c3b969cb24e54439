"""A judge as the target of an optimisation: its cases, scores and error rates."""

from pathlib import Path

import pytest
from dspy.lm15 import ServerError

from locomo.judge.calibration import AnswerKind, calibration_answers
from locomo.judge.judge import Judges
from locomo.judge.rubrics import Rubric, Verdict, judge_instruction
from locomo.types import Benchmark
from memory_program.configs.optimize_config import OptimizeConfig, Target
from memory_program.core.errors import ConfigError
from memory_program.optimization.call_journal import ReplyCache
from memory_program.optimization.candidate_evaluator import CandidateEvaluator
from memory_program.optimization.candidate_metric import JudgeAttempt
from memory_program.optimization.dev_examples import JudgeCase
from memory_program.optimization.judge_target import JudgeOptimizationTarget
from memory_program.optimization.students import JudgeStudent
from tests.judge_samples import quick_judge, untouched_questions, write_judge
from tests.scripted_lm import ScriptedLM, fields

ANSWERS = calibration_answers(Benchmark.LOCOMO)
VAGUE = JudgeCase("q/1", next(a for a in ANSWERS if a.kind is AnswerKind.VAGUE), Rubric.STRICT)
GOLD = JudgeCase("q/0", next(a for a in ANSWERS if a.kind is AnswerKind.GOLD), Rubric.STRICT)
COUNTS = {"num_examples": 12, "num_val": 12}


def judged(word: str) -> str:
    return fields(reasoning="Compared.", verdict=word)


@pytest.mark.parametrize(
    ("case", "verdict", "value", "said"),
    [
        (VAGUE, Verdict.WRONG, 1.0, "this kind: vague.\nThe verdict given, WRONG, is right."),
        (VAGUE, Verdict.CORRECT, 0.0, "The verdict given, CORRECT, is wrong: it had to be WRONG."),
        (GOLD, Verdict.WRONG, 0.0, "The verdict given, WRONG, is wrong: it had to be CORRECT."),
        (GOLD, Verdict.UNPARSED, 0.0, "The reply could not be read: the verdict must be one word"),
    ],
)  # fmt: skip
def test_a_verdict_scores_1_if_it_is_the_known_one_and_the_feedback_says_so(
    case: JudgeCase, verdict: Verdict, value: float, said: str
) -> None:
    attempt = JudgeAttempt(case, "prompts", verdict, "Compared.")
    assert attempt.value() == value
    assert attempt.lost_calls == []
    assert attempt.is_unparsed == (verdict is Verdict.UNPARSED)
    assert said in attempt.feedback()


def test_a_failed_call_of_the_judge_has_no_score() -> None:
    attempt = JudgeAttempt(GOLD, "prompts", None, "judge: no route")
    assert (attempt.value(), attempt.lost_calls) == (None, ["judge: no route"])


def target_and_evaluator(
    folder: Path, **settings: object
) -> tuple[JudgeOptimizationTarget, CandidateEvaluator]:
    target = JudgeOptimizationTarget(quick_judge(folder, **{**COUNTS, **settings}))
    cases = target.cases(Target.JUDGE)
    evaluator = CandidateEvaluator(
        train=cases.train,
        val=cases.val,
        calls=ReplyCache(folder / "calls.jsonl"),
        probe=lambda: None,
        on_attempt=lambda *_: None,
        test_groups=cases.test_groups,
    )
    return target, evaluator


def test_verdicts_are_scored_and_error_rates_counted(tmp_path: Path) -> None:
    target, evaluator = target_and_evaluator(tmp_path)
    replies = [judged("CORRECT"), judged("CORRECT"), ServerError("out", provider="test"), "no verdict"]
    replies += [judged("WRONG")] * 8
    with ScriptedLM(replies) as lm:
        target.program.set_lm(lm)
        student = target.student(Target.JUDGE, lambda *_: None, evaluator)
        assert isinstance(student, JudgeStudent)
        for case in evaluator.val:
            evaluator.metric(case.example, student(**case.example.inputs()))
    assert [name for name, _ in student.named_predictors()] == ["perltqa"]
    assert lm.requests[0].system is not None
    assert (
        judge_instruction(Rubric.STRICT, next(iter(target.program.by_grading))).splitlines()[0]
        in lm.requests[0].system
    )
    known = [case.known for case in evaluator.val if isinstance(case, JudgeCase)]
    assert known == [Verdict.CORRECT, Verdict.WRONG] * 6
    # Verdicts: C C - ? and then W eight times, on answers known to be C W C W C W ...
    worth = list(evaluator.baseline.val.values())
    assert worth == [1, 0, None, 0, 0, 1, 0, 1, 0, 1, 0, 1]
    assert (evaluator.tally.succeeded, evaluator.tally.failed) == (11, 1)
    assert "out" in evaluator.tally.first_failure
    errors = target.errors(evaluator, evaluator.baseline)
    assert (errors["unparsed"], errors["failed"]) == (1, 1)
    assert (errors["false_accept"]["n"], errors["false_reject"]["n"]) == (5, 5)
    assert 0 < errors["false_accept"]["value"] < 1
    assert 0 < errors["false_reject"]["value"] < 1


@pytest.mark.parametrize("benchmark", [one for one in Benchmark if one.is_judged])
@pytest.mark.parametrize("rubric", Rubric)
def test_no_case_belongs_to_a_question_of_the_test_split(
    benchmark: Benchmark, rubric: Rubric, tmp_path: Path
) -> None:
    target, evaluator = target_and_evaluator(
        tmp_path, dataset=benchmark.value, rubric=rubric.value, num_examples=999, num_val=999
    )
    untouched = untouched_questions(benchmark)
    assert set(target.dataset["test"]) == untouched
    assert not {case.group for case in evaluator.cases.values()} & untouched
    tried = {(case.group, case.example.given_answer) for case in evaluator.cases.values()}
    known = {
        (answer.question.text, answer.text)
        for answer in calibration_answers(benchmark)
        if rubric in answer.verdicts and answer.question.text not in untouched
    }
    assert tried == known


def test_a_run_can_begin_with_a_saved_judge_of_the_same_rubric(tmp_path: Path) -> None:
    path = write_judge(tmp_path / "begin.json", Benchmark.PERLTQA, instruction="\nBe careful.")
    target = JudgeOptimizationTarget(quick_judge(tmp_path, program=path))
    (predictor,) = target.program.predictors()
    assert predictor.signature.instructions.endswith("Be careful.")
    with pytest.raises(ConfigError, match="is for the strict rubric"):
        JudgeOptimizationTarget(quick_judge(tmp_path, program=path, rubric="lenient"))


def test_the_estimate_counts_judging_and_proposing(tmp_path: Path) -> None:
    config = quick_judge(tmp_path, optimizer="gepa", num_examples=8, num_val=10, trials=2)
    judging, proposing = JudgeOptimizationTarget(config).estimates()
    assert (judging.stage, judging.model, proposing.stage) == ("judge", "openai/judge", "propose")
    assert judging.calls == 10 + 2 * (2 * 3 + 10) + 5 * 10  # gepa's own, the baseline, four finalists
    assert proposing.calls == 2


def test_the_judges_of_a_benchmark_are_saved_under_their_names() -> None:
    target = JudgeOptimizationTarget(OptimizeConfig(target="judge", model="openai/m", dataset="longmemeval"))
    assert list(target.program.dump_state()) == [
        "longmemeval",
        "longmemeval-temporal",
        "longmemeval-update",
        "longmemeval-preference",
        "longmemeval-abstention",
    ]
    assert isinstance(target.program.deepcopy(), Judges)
