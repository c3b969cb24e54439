"""The limits of a run: errors, cost, and stages in which nothing works."""

import pytest

from memory_program.bank.outcomes import CallFailure, Outcome
from memory_program.core.errors import BudgetExceededError
from memory_program.evaluation.stages.limits import (
    FIRST_ITEMS,
    FIRST_SESSIONS,
    MAX_LEADING_FAILURES,
    RunLimits,
)
from memory_program.models.usage import Usage

NOTHING = Usage()


def failed(message: str = "x", outcome: Outcome = Outcome.ERROR, where: str = "reader.answer") -> CallFailure:
    return CallFailure(where, outcome, message)


def lose(limits: RunLimits, items: int, message: str = "x") -> None:
    for _ in range(items):
        limits.count(NOTHING, [failed(message)], is_lost=True)


def test_errors_up_to_the_limit_are_only_counted():
    limits = RunLimits(max_errors=3)
    limits.count(NOTHING, [failed("a"), failed("b")])
    lose(limits, 1)


def test_one_error_too_many_ends_the_run_with_the_first_cause():
    limits = RunLimits(max_errors=1)
    limits.count(NOTHING)
    limits.count(NOTHING, [failed("no route")])
    message = r"2 calls failed, more than max_errors=1; first failure: reader.answer: no route;"
    with pytest.raises(BudgetExceededError, match=message):
        limits.count(NOTHING, [failed("another")])


def test_no_error_is_allowed_when_the_limit_is_zero():
    with pytest.raises(BudgetExceededError, match="1 calls failed"):
        RunLimits(max_errors=0).count(NOTHING, [failed()])


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
    message = r"the first 20 items all failed; first failure: reader.answer: 401: bad key"
    with pytest.raises(BudgetExceededError, match=message):
        lose(limits, 1)


def test_one_success_keeps_a_stage_running():
    limits = RunLimits()
    limits.count(NOTHING)
    lose(limits, 3 * MAX_LEADING_FAILURES)


def test_partly_failed_items_are_not_lost():
    limits = RunLimits()
    for _ in range(3 * MAX_LEADING_FAILURES):
        limits.count(Usage(calls=4), [failed(outcome=Outcome.UNPARSED), failed()])


@pytest.mark.parametrize("outcome", [Outcome.UNPARSED, Outcome.TRUNCATED])
@pytest.mark.parametrize(("first_items", "calls"), [(FIRST_SESSIONS, 4), (FIRST_ITEMS, 1)])
def test_a_stage_ends_after_its_first_items_if_most_replies_cannot_be_read(outcome, first_items, calls):
    limits = RunLimits()
    limits.begin_stage(first_items)
    bad = [failed(f"the model repeats itself: '1. {n}.'", outcome, "writer.core") for n in range(calls)]
    for _ in range(first_items - 1):
        limits.count(Usage(calls=calls), bad[: calls // 2 + 1])
    message = (
        r"replies were cut or cannot be read; the first: writer.core: the model repeats itself: '1. 0.'; "
        r"choose another model, a larger --max-reply-tokens or, .*--reply-format json; .*--max-errors; f"
    )
    with pytest.raises(BudgetExceededError, match=message):
        limits.count(Usage(calls=calls), bad[: calls // 2 + 1])


def test_a_stage_goes_on_with_half_of_its_replies_or_when_asked_to():
    bad = [failed(outcome=Outcome.UNPARSED)] * 2
    for limits in (RunLimits(), RunLimits(max_errors=1000)):
        limits.begin_stage(FIRST_SESSIONS)
        for _ in range(3 * FIRST_SESSIONS):
            limits.count(Usage(calls=4), bad)
    for _ in range(3 * FIRST_SESSIONS):
        limits.count(Usage(calls=4), [*bad, *bad])


def test_lost_items_are_counted_by_stage():
    limits = RunLimits()
    limits.count(NOTHING)
    limits.begin_stage()
    lose(limits, MAX_LEADING_FAILURES - 1)
    with pytest.raises(BudgetExceededError):
        lose(limits, 1)


def test_max_errors_replaces_the_rule_of_twenty():
    lose(RunLimits(max_errors=1000), 3 * MAX_LEADING_FAILURES)
