import pytest

from memory_program.core.errors import BudgetExceededError
from memory_program.evaluation.stages.limits import MAX_LEADING_FAILURES, RunLimits
from memory_program.models.usage import Usage

NOTHING = Usage()


def test_errors_up_to_the_limit_are_only_counted():
    limits = RunLimits(max_errors=3)
    limits.count(NOTHING, ["a", "b"])
    limits.count(NOTHING, ["c"], is_lost=True)


def test_one_error_too_many_ends_the_run_with_the_first_cause():
    limits = RunLimits(max_errors=1)
    limits.count(NOTHING)
    limits.count(NOTHING, ["reader.answer: no route"])
    with pytest.raises(
        BudgetExceededError,
        match=r"2 calls failed, more than max_errors=1; first failure: reader.answer: no route;",
    ):
        limits.count(NOTHING, ["reader.answer: another"])


def test_no_error_is_allowed_when_the_limit_is_zero():
    with pytest.raises(BudgetExceededError, match="1 calls failed"):
        RunLimits(max_errors=0).count(NOTHING, ["x"])


def test_the_cost_limit_includes_earlier_spending():
    limits = RunLimits(max_cost_usd=1.0, spent_usd=0.75)
    limits.count(Usage(cost_usd=0.25))
    with pytest.raises(
        BudgetExceededError, match=r"has cost \$1.0100, more than max_cost=1.0: raise --max-cost"
    ):
        limits.count(Usage(cost_usd=0.01))


def test_an_unpriced_call_ends_a_run_with_a_cost_limit():
    RunLimits().count(Usage(calls=1, cost_usd=None))
    with pytest.raises(BudgetExceededError, match=r"max_cost=1.0 cannot be kept: the server did not"):
        RunLimits(max_cost_usd=1.0).count(Usage(calls=1, cost_usd=None))


def test_a_stage_in_which_nothing_works_ends():
    limits = RunLimits()
    for _ in range(MAX_LEADING_FAILURES - 1):
        limits.count(NOTHING, ["401: bad key"], is_lost=True)
    with pytest.raises(
        BudgetExceededError, match=r"the first 20 items all failed; first failure: 401: bad key"
    ):
        limits.count(NOTHING, ["x"], is_lost=True)


def test_one_success_keeps_a_stage_running():
    limits = RunLimits()
    limits.count(NOTHING)
    for _ in range(3 * MAX_LEADING_FAILURES):
        limits.count(NOTHING, ["x"], is_lost=True)


def test_partly_failed_items_are_not_lost():
    limits = RunLimits()
    for _ in range(3 * MAX_LEADING_FAILURES):
        limits.count(NOTHING, ["writer.core: unparsed"])


def test_lost_items_are_counted_by_stage():
    limits = RunLimits()
    limits.count(NOTHING)
    limits.begin_stage()
    for _ in range(MAX_LEADING_FAILURES - 1):
        limits.count(NOTHING, ["x"], is_lost=True)
    with pytest.raises(BudgetExceededError):
        limits.count(NOTHING, ["x"], is_lost=True)


def test_max_errors_replaces_the_rule_of_twenty():
    limits = RunLimits(max_errors=1000)
    for _ in range(3 * MAX_LEADING_FAILURES):
        limits.count(NOTHING, ["x"], is_lost=True)
