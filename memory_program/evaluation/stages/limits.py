"""The limits that end a run: cost, number of failures, and a stage in which nothing works."""

import threading
from collections.abc import Sequence
from textwrap import shorten

from memory_program.bank.outcomes import UNREADABLE_OUTCOMES, CallFailure
from memory_program.core.errors import BudgetExceededError
from memory_program.models.usage import Usage

MAX_LEADING_FAILURES = 20
"""Without ``max_errors``, a stage ends when its first 20 items all failed."""

FIRST_SESSIONS, FIRST_ITEMS = 3, 10
"""Without ``max_errors``, a stage ends when most calls of its first sessions, or other items, were cut or
could not be read. Such calls take the longest, and the next ones will be no better. A build ends, too, when
all of its first tool calls, at least ten, were refused."""

_RESUME_HINT = (
    "finished work is kept: the same command continues from there, with --retry-errors to repeat failed items"
)


class RunLimits:
    """Counts the cost and the failures of a run; safe from any thread."""

    def __init__(
        self,
        *,
        max_errors: int | None = None,
        max_cost_usd: float | None = None,
        spent_usd: float = 0.0,
        is_json: bool = False,
    ) -> None:
        """Set the limits.

        Args:
            max_errors: the most failed calls.
            max_cost_usd: the highest cost.
            spent_usd: the cost of the run before it was resumed.
            is_json: the replies of writers and readers are in ``json`` already, so that it is no advice.
        """
        self._advice = "choose another model or a larger --max-reply-tokens"
        if not is_json:
            self._advice = (
                "choose another model, a larger --max-reply-tokens or, for writer and reader, --reply-format "
                "json"
            )
        self._max_errors = max_errors
        self._max_cost_usd = max_cost_usd
        self._spent_usd = spent_usd
        self._errors = 0
        self._first_cause = ""
        self._lock = threading.Lock()
        self.begin_stage()

    def begin_stage(self, first_items: int = FIRST_ITEMS) -> None:
        """Reset the counts that decide whether a stage goes on; see ``FIRST_ITEMS``."""
        self._items = self._lost_items = self._calls = self._tool_calls = 0
        self._first_items = first_items
        self._unreadable = list[CallFailure]()
        self._refusals = list[str]()

    def count(
        self,
        usage: Usage,
        failures: Sequence[CallFailure] = (),
        *,
        is_lost: bool = False,
        tool_calls: int = 0,
        refusals: Sequence[str] = (),
    ) -> None:
        """Count one item after it was recorded.

        Args:
            usage: tokens and cost of the item.
            failures: its failed calls.
            is_lost: the item as a whole gave no result.
            tool_calls: calls of tools in its replies.
            refusals: of these calls.

        Raises:
            BudgetExceededError: a limit is passed.
        """
        with self._lock:
            self._spent_usd += usage.cost_usd or 0.0
            self._errors += len(failures)
            self._first_cause = self._first_cause or next(map(str, failures), "")
            self._items += 1
            self._lost_items += is_lost
            self._calls += max(usage.calls, len(failures))
            self._tool_calls += tool_calls
            self._refusals += refusals
            self._unreadable += [failure for failure in failures if failure.outcome in UNREADABLE_OUTCOMES]
            limit_usd = self._max_cost_usd
            if limit_usd is not None and usage.cost_usd is None:
                raise BudgetExceededError(
                    f"max_cost={limit_usd!r} cannot be kept: the server did not report the tokens of a "
                    f"call; leave --max-cost out to continue; {_RESUME_HINT}"
                )
            if limit_usd is not None and self._spent_usd > limit_usd:
                raise BudgetExceededError(
                    f"the run has cost ${self._spent_usd:.4f}, more than max_cost={limit_usd!r}: raise "
                    f"--max-cost to continue; {_RESUME_HINT}"
                )
            if self._max_errors is not None:
                if self._errors > self._max_errors:
                    raise BudgetExceededError(
                        f"{self._errors} calls failed, more than max_errors={self._max_errors!r}; first "
                        f"failure: {self._first_cause}; {_RESUME_HINT}"
                    )
                return
            if self._items >= self._first_items and 2 * len(self._unreadable) > self._calls:
                raise BudgetExceededError(
                    f"{len(self._unreadable)} of the first {self._calls} replies were cut or cannot be "
                    f"read; the first: {shorten(str(self._unreadable[0]), 240)}; {self._advice}; or "
                    f"continue anyway with --max-errors; {_RESUME_HINT}"
                )
            if self._items >= self._first_items and len(self._refusals) == self._tool_calls >= FIRST_ITEMS:
                raise BudgetExceededError(
                    f"all of the first {self._tool_calls} tool calls were refused, so nothing is remembered; "
                    f"the first: {shorten(self._refusals[0], 240)}; choose another model or --reply-format, "
                    f"or continue anyway with --max-errors; {_RESUME_HINT}"
                )
            if self._lost_items == self._items >= MAX_LEADING_FAILURES:
                raise BudgetExceededError(
                    f"the first {self._items} items all failed; first failure: {self._first_cause}; to "
                    f"continue anyway, set --max-errors; {_RESUME_HINT}"
                )
