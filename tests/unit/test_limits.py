"""The limits of a run: errors, cost, and stages in which nothing works."""

import pytest

from memory_program.core.errors import BudgetExceededError
from memory_program.evaluation.stages.limits import MAX_LEADING_FAILURES, RunLimits
from memory_program.models.usage import Usage

NOTHING = Usage()


def lose(limits: RunLimits, items: int, message: str = "x") -> None:
    for _ in range(items):
        limits.count(NOTHING, [message], is_lost=True)


def test_errors_up_to_the_limit_are_only_counted():
    limits = RunLimits(max_errors=3)
    limits.count(NOTHING, ["a", "b"])
    lose(limits, 1)


def test_one_error_too_many_ends_the_run_with_the_first_cause():
    limits = RunLimits(max_errors=1)
    limits.count(NOTHING)
    limits.count(NOTHING, ["reader.answer: no route"])
    message = r"2 calls failed, more than max_errors=1; first failure: reader.answer: no route;"
    with pytest.raises(BudgetExceededError, match=message):
        limits.count(NOTHING, ["reader.answer: another"])


def test_no_error_is_allowed_when_the_limit_is_zero():
    with pytest.raises(BudgetExceededError, match="1 calls failed"):
        RunLimits(max_errors=0).count(NOTHING, ["x"])


def test_the_cost_limit_includes_earlier_spending():
    limits = RunLimits(max_cost_usd=1.0, spent_usd=0.75)
    limits.count(Usage(cost_usd=0.25))
    message = r"has cost \$1.0100, more than max_cost=1.0: raise --max-cost"
    with pytest.raises(BudgetExceededError, match=message):
        limits.count(Usage(cost_usd=0.01))


def test_an_unpriced_call_ends_a_run_with_a_cost_limit():
    RunLimits().count(Usage(calls=1, cost_usd=None))
    with pytest.raises(BudgetExceededError, match=r"max_cost=1.0 cannot be kept: the server did not"):
        RunLimits(max_cost_usd=1.0).count(Usage(calls=1, cost_usd=None))


def test_a_stage_in_which_nothing_works_ends():
    limits = RunLimits()
    lose(limits, MAX_LEADING_FAILURES - 1, "401: bad key")
    message = r"the first 20 items all failed; first failure: 401: bad key"
    with pytest.raises(BudgetExceededError, match=message):
        lose(limits, 1)


def test_one_success_keeps_a_stage_running():
    limits = RunLimits()
    limits.count(NOTHING)
    lose(limits, 3 * MAX_LEADING_FAILURES)


def test_partly_failed_items_are_not_lost():
    limits = RunLimits()
    for _ in range(3 * MAX_LEADING_FAILURES):
        limits.count(NOTHING, ["writer.core: unparsed"])


def test_lost_items_are_counted_by_stage():
    limits = RunLimits()
    limits.count(NOTHING)
    limits.begin_stage()
    lose(limits, MAX_LEADING_FAILURES - 1)
    with pytest.raises(BudgetExceededError):
        lose(limits, 1)


def test_max_errors_replaces_the_rule_of_twenty():
    lose(RunLimits(max_errors=1000), 3 * MAX_LEADING_FAILURES)
