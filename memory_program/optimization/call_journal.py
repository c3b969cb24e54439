"""The model calls of an optimisation: each is paid for once, however often the run is killed, and counted.

Optimisers know neither budgets nor kills, and they swallow every exception of a program. So every reply is
stored under its whole request, and a run that may make no more calls ends by an error that is no
``Exception``.
"""

import contextvars
import threading
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import dspy
from dspy import lm15

from memory_program.core.hashing import RECORD_VERSION, content_hash
from memory_program.core.journal import Journal
from memory_program.models.model_names import model_fingerprint
from memory_program.models.rate_limit import TEMPLATE_KEY, Engine, is_repetitive
from memory_program.models.usage import CallRecord, Usage, record_call, track_usage
from memory_program.optimization.lm15_json import request_to_json, response_from_json, response_to_json

UNPRICED = "can no longer be enforced: a call has no known price"
"""The end of the message of a run that no higher limit in dollars continues."""

_BUDGET_SETTING = "memory_program_allowance"


class StopReason(StrEnum):
    """Why a run makes no more calls."""

    LIMIT = "limit"
    INTERRUPTED = "interrupted"
    NO_SCORES = "hopeless"
    PROGRAM_ERROR = "broken"
    DISK_ERROR = "disk"


class RunStopped(BaseException):
    """The run may not go on.

    Like ``KeyboardInterrupt`` it is no ``Exception``: optimisers catch those, score the example with zero and
    go on.
    """

    def __init__(self, reason: StopReason, message: str) -> None:
        """Say why."""
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(slots=True)
class CallBudget:
    """The limits of a part of a run, in calls and dollars of the whole run; ``stopped`` when reached."""

    max_calls: int | None
    max_cost_usd: float | None
    stopped: RunStopped | None = None


@dataclass(frozen=True, slots=True)
class CallReply:
    """A call that was made; ``reply`` is the response as JSON, None if the call failed."""

    key: str
    reply: dict[str, Any] | None  # Any: a JSON object
    usage: Usage


class ReplyCache:
    """All replies of a run, on disk, by their requests; and the calls that the run may still make.

    A stored reply is used again and counts like a new one: a run that was killed uses the same replies as one
    that was not, and stops at the same limit. Threads that make the same request at once share one call. Of a
    failed call only the failure is stored: it counts, and the request is made again while the limits allow a
    new call, and fails again after that. Every method is safe from any thread.
    """

    def __init__(
        self, path: Path, *, max_calls: int | None = None, max_cost_usd: float | None = None
    ) -> None:
        """Read the stored replies.

        Raises:
            RecordError: the file is damaged elsewhere than in an incomplete last line.
        """
        self.journal = Journal(path, CallReply)
        attempts = [attempt for key in self.journal.records for attempt in self.journal.attempts(key)]
        failed = [attempt.usage for attempt in attempts if attempt.reply is None]
        self.used = len(failed)
        """Calls that the run has used: new ones, stored ones, and failed ones, of its earlier tries too."""
        self.usage = sum(failed, Usage())
        """Usage of all calls that ``used`` counts, whenever they were made."""
        self._made, self._made_usage = len(attempts), sum((one.usage for one in attempts), Usage())
        self.stopped: RunStopped | None = None
        self._whole = CallBudget(max_calls, max_cost_usd)
        self._known: set[str] = set()
        self._pending: dict[str, Future[CallReply]] = {}
        self._lock = threading.RLock()
        self._idle = threading.Condition(self._lock)

    def stop(self, reason: StopReason, message: str) -> RunStopped:
        """Allow no new call; the first reason counts."""
        with self._lock:
            self.stopped = self.stopped or RunStopped(reason, message)
            return self.stopped

    def stop_on(self, error: BaseException) -> None:
        """Allow no new call after an error of a task; a ``RunStopped`` may concern a part of the run only."""
        if isinstance(error, (Exception, KeyboardInterrupt)):
            self.stop(StopReason.INTERRUPTED, f"{type(error).__name__}: {error}")

    @contextmanager
    def reserve_calls(self, calls: int) -> Generator[None]:
        """Reserve a part of the limits, at most half of the rest, for the comparison after the block.

        A block that stops at its limit stops nothing after it. Threads that it leaves behind stay stopped.

        Args:
            calls: the number of calls after the block; each is taken to cost the mean of the calls so far.
        """
        with self._lock:
            budget = replace(self._whole, stopped=None)
            if budget.max_calls is not None:
                left = max(0, budget.max_calls - self.used)
                budget.max_calls -= min(calls, left // 2)
            if budget.max_cost_usd is not None and self.usage.cost_usd is not None:
                left_usd = max(0.0, budget.max_cost_usd - self.usage.cost_usd)
                expected_usd = calls * self.usage.cost_usd / max(1, self.used)
                budget.max_cost_usd -= min(expected_usd, left_usd / 2)
        with dspy.context(**{_BUDGET_SETTING: budget}):  # DSPy's threads inherit its settings
            yield

    def close(self) -> None:
        """Wait for the calls in flight, which are paid for, and write everything to the disk."""
        with self._lock:
            self._idle.wait_for(lambda: not self._pending)
        self.journal.close()

    def complete(self, engine: Engine, request: lm15.Request, sample: int) -> lm15.Response:
        """Return the reply to a request, from disk or from the engine.

        Args:
            engine: answers the request.
            request: the request.
            sample: which of several replies to the same request, where replies are sampled.

        Raises:
            RunStopped: no call may be made any more, or the reply could not be stored.
            lm15.LM15Error: the call failed.
        """
        model = model_fingerprint(request.model)
        sample_id = sample if request.config.temperature != 0 else 0
        template = getattr(engine, TEMPLATE_KEY, None)  # the engine adds it to each request
        key = content_hash(
            "call",
            RECORD_VERSION,
            model,
            request_to_json(request),
            sample_id,
            *([template] if template else []),
        )
        budget: CallBudget = dspy.settings.get(_BUDGET_SETTING, self._whole)
        with self._lock:
            stopped = self.stopped or budget.stopped
            if stopped is not None:
                raise stopped
            stored, pending = self.journal.records.get(key), self._pending.get(key)
            if stored is not None and stored.reply is None:
                if pending is None and self._reached(budget, is_new=True) is not None:
                    raise lm15.ProviderError("failed before, and a limit of the run allows no new try")
                stored = None
            is_new = stored is None and pending is None
            if key not in self._known and (is_new or stored is not None):
                limit = self._reached(budget, is_new=is_new)
                if limit is not None:
                    budget.stopped = RunStopped(StopReason.LIMIT, limit)
                    raise budget.stopped
                self.used += 1
                self._made += is_new
                self._known.add(key)
                self.usage += stored.usage if stored is not None else Usage()
            if is_new:
                self._pending[key] = Future()
        if is_new and threading.current_thread() is not threading.main_thread():
            return self._call_and_store(engine, request, key)
        if is_new:  # an interrupt reaches the main thread, which waits for the call, since it is paid for
            with ThreadPoolExecutor(1, thread_name_prefix="paid-call") as pool:
                context = contextvars.copy_context()
                return pool.submit(context.run, self._call_and_store, engine, request, key).result()
        if stored is None:
            assert pending is not None
            stored = pending.result()
        assert stored.reply is not None, "a pending call that fails raises"
        response = response_from_json(stored.reply)
        repeats = is_repetitive(response)
        record_call(CallRecord(request.model, Usage(), response.finish_reason, is_repetitive=repeats))
        return response

    def _call_and_store(self, engine: Engine, request: lm15.Request, key: str) -> lm15.Response:
        try:
            with track_usage() as meter:
                try:
                    response = engine.complete(request)
                except Exception:  # an interrupt is no call
                    self._store(CallReply(key, None, meter.usage))
                    raise
            reply = CallReply(key, response_to_json(response), meter.usage)
            self._store(reply)
        except BaseException as error:
            with self._lock:
                self._known.discard(key)
                self._pending.pop(key).set_exception(error)
                self._idle.notify_all()
            raise
        with self._lock:
            self._pending.pop(key).set_result(reply)
            self._idle.notify_all()
        return response

    def _store(self, reply: CallReply) -> None:
        """Store a reply, or stop the run: without it the next try would pay again, or count wrongly."""
        try:
            self.journal.add(reply)
        except OSError as error:  # a full disk, say; optimisers would swallow this one
            raise self.stop(StopReason.DISK_ERROR, str(error)) from error
        with self._lock:
            self.usage += reply.usage
            self._made_usage += reply.usage

    def _reached(self, budget: CallBudget, *, is_new: bool) -> str | None:
        """Name the limit that one more call would pass; for a new call all that were ever made count."""
        whole, limit, is_part = self._whole, None, False
        used, usage = (self._made, self._made_usage) if is_new else (self.used, self.usage)
        cost_usd = usage.cost_usd
        if budget.max_calls is not None and used >= budget.max_calls:
            limit, is_part = f"max_calls={whole.max_calls} is reached", budget.max_calls != whole.max_calls
        elif budget.max_cost_usd is not None and cost_usd is None:
            limit = f"max_cost={whole.max_cost_usd!r} {UNPRICED}"
        elif budget.max_cost_usd is not None and cost_usd is not None and cost_usd >= budget.max_cost_usd:
            limit = f"max_cost={whole.max_cost_usd!r} is reached"
            is_part = budget.max_cost_usd != whole.max_cost_usd
        if limit is not None and is_part:
            limit += " (the rest is reserved for the final comparison)"
        return limit
