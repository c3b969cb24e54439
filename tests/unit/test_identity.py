"""What a record belongs to: whatever changes an answer, a bank or a verdict changes its key."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from locomo.judge.rubrics import Verdict
from locomo.types import Benchmark, Category, LongMemEvalType, Question
from memory_program.agents.systems import make_system
from memory_program.bank.outcomes import Outcome
from memory_program.configs.evaluate_config import EvaluateConfig, SystemName
from memory_program.configs.groups import SystemSettings
from memory_program.evaluation.item_records import JudgeRecord
from memory_program.evaluation.scoring.judge_errors import calibration_cases, compute_judge_error_rates
from memory_program.evaluation.scoring.question_scores import BootstrapSampler
from memory_program.evaluation.scoring.score_signature import (
    JudgeIdentity,
    SystemIdentity,
    identify_judge,
    identify_system,
)
from memory_program.models.usage import Usage


def identity(changed: str = "", **settings: object) -> SystemIdentity:
    system = make_system("memory", SystemSettings())
    for name, predictor in system.named_predictors():
        if changed and name.startswith(changed):
            predictor.signature = predictor.signature.with_instructions("One word.")
    return identify_system(system, SystemName.MEMORY, EvaluateConfig(model="openai/m", **settings))


def test_reader_prompts_change_answers_and_not_banks():
    assert identity("reader").answer != identity().answer
    assert identity("reader").build == identity().build


def test_writer_prompts_change_banks():
    assert identity("writer").build != identity().build


@pytest.mark.parametrize(
    "changed",
    [
        {"temperature": 0.7},
        {"top_k": 3},
        {"reader_budget": 77},
        {"answerability_check": True},
    ],
)
def test_reader_settings_change_answers(changed: dict[str, object]):
    assert identity(**changed).answer != identity().answer
    assert (identity(**changed).build == identity().build) is ("temperature" not in changed)


@pytest.mark.parametrize("name", [SystemName.EXTRACTIVE, SystemName.NO_MEMORY])
def test_systems_that_do_not_check_answerability_are_the_same_with_the_check(name):
    settings = [EvaluateConfig(model="openai/m", **check) for check in ({}, {"answerability_check": True})]
    made = [identify_system(make_system(name.value, each.system), name, each) for each in settings]
    assert made[0] == made[1]


@pytest.mark.parametrize("name", SystemName)
def test_dates_are_only_recorded_where_turns_are_shown(name):
    for has_turns in (False, True):
        program = {"program": "p.json"} if name is SystemName.OPTIMIZED else {}
        shared = {"model": "openai/m", "with_verbatim_turns": has_turns, **program}
        dated, plain = (EvaluateConfig(add_dates=dates, **shared) for dates in (True, False))
        made = [identify_system(make_system(name.value, c.system), name, c) for c in (dated, plain)]
        with_memories = name in (SystemName.MEMORY, SystemName.OPTIMIZED)
        shown = name in (SystemName.RAG, SystemName.FULL_CONTEXT) or (with_memories and has_turns)
        assert (made[0].answer != made[1].answer) is shown
        assert ("add_dates" in made[0].settings) is shown


def test_the_date_of_a_question_changes_its_key():
    asked = Question(
        "q", 0, "How old am I?", LongMemEvalType.TEMPORAL, "3", asked_at=datetime(2023, 5, 1, tzinfo=UTC)
    )
    later = replace(asked, asked_at=datetime(2023, 6, 1, tzinfo=UTC))
    assert identity().answer_key(asked, "bank") != identity().answer_key(later, "bank")


def test_a_verdict_key_depends_on_gold_and_judge_prompts():
    judge, other = (JudgeIdentity("openai/j", {"strict": {"locomo": prompts}}) for prompts in ("a", "b"))
    asked = Question("c", 0, "When?", Category.SINGLE_HOP, "May")
    assert judge.key("strict", asked, "x") != judge.key("strict", replace(asked, answer="June"), "x")
    assert judge.key("strict", asked, "x") != other.key("strict", asked, "x")
    assert judge.is_same_judge(judge, "strict")
    assert not judge.is_same_judge(other, "strict")


def test_error_rates_need_all_known_answers():
    judge = identify_judge(EvaluateConfig(judge_model="openai/j", rubrics="strict"))
    assert judge is not None
    ((rubric, cases),) = calibration_cases(judge, Benchmark.LOCOMO).items()
    one = JudgeRecord(cases[0].key, "q", rubric, Verdict.CORRECT, Outcome.OK, "", Usage(), 0.0)
    assert compute_judge_error_rates(judge, Benchmark.LOCOMO, {one.key: one}, BootstrapSampler(0)) == {}
