"""When a run has to stop: too dear, too many failures, or nothing that works."""

import threading
from collections.abc import Sequence

from memory_program.core.errors import BudgetExceededError
from memory_program.models.usage import Usage

MAX_LEADING_FAILURES = 20
"""Items of a stage which, when they all fail and none succeeds, end a run that has no ``max_errors``."""

_RESUME_HINT = (
    "what is done is kept: the same command goes on from there, with --retry-errors to repeat failed items"
)


class RunLimits:
    """Counts what a run has spent and how often it failed; safe from any thread."""

    def __init__(
        self, *, max_errors: int | None = None, max_cost_usd: float | None = None, spent_usd: float = 0.0
    ) -> None:
        """Set the limits; ``spent_usd`` is what the run had cost before it was resumed."""
        self._max_errors = max_errors
        self._max_cost_usd = max_cost_usd
        self._spent_usd = spent_usd
        self._errors = 0
        self._first_cause = ""
        self._items = self._lost_items = 0
        self._lock = threading.Lock()

    def begin_stage(self) -> None:
        """Start counting anew for the rule that a stage in which nothing works ends."""
        self._items = self._lost_items = 0

    def count(self, usage: Usage, failures: Sequence[str] = (), *, is_lost: bool = False) -> None:
        """Count one item after it was recorded.

        Args:
            usage: what it took.
            failures: its failed calls, as texts.
            is_lost: whether the item as a whole gave nothing.

        Raises:
            BudgetExceededError: a limit is passed.
        """
        with self._lock:
            self._spent_usd += usage.cost_usd or 0.0
            self._errors += len(failures)
            self._first_cause = self._first_cause or next(iter(failures), "")
            self._items += 1
            self._lost_items += is_lost
            self._check(is_priced=usage.cost_usd is not None)

    def _check(self, *, is_priced: bool) -> None:
        if self._max_cost_usd is not None and not is_priced:
            raise BudgetExceededError(
                f"max_cost={self._max_cost_usd!r} cannot be kept any more: the server did not say how many "
                f"tokens a call took; leave --max-cost out to go on; {_RESUME_HINT}"
            )
        if self._max_cost_usd is not None and self._spent_usd > self._max_cost_usd:
            raise BudgetExceededError(
                f"the run has cost ${self._spent_usd:.4f}, and max_cost={self._max_cost_usd!r}: raise "
                f"--max-cost to go on; {_RESUME_HINT}"
            )
        if self._max_errors is not None and self._errors > self._max_errors:
            raise BudgetExceededError(
                f"{self._errors} calls failed, and max_errors={self._max_errors!r}; the first one: "
                f"{self._first_cause}; {_RESUME_HINT}"
            )
        is_hopeless = self._lost_items == self._items >= MAX_LEADING_FAILURES
        if self._max_errors is None and is_hopeless:
            raise BudgetExceededError(
                f"the first {self._items} items all failed; the first one: {self._first_cause}; to go on all "
                f"the same, give --max-errors; {_RESUME_HINT}"
            )
