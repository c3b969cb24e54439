"""The calls of an optimisation: each is paid for once, however often the run is killed, and counted.

Optimisers know neither budgets nor kills, and swallow every error of a program. So every reply is kept and
found again by the whole request, and when no more may be asked for, the run is ended by something that is no
``Exception``.
"""

import contextvars
import threading
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import dspy
from dspy import lm15
from dspy._vendor.lm15.serde import request_to_dict, response_from_dict, response_to_dict

from memory_program import __version__
from memory_program.core.hashing import content_hash
from memory_program.core.journal import Journal
from memory_program.models.model_names import model_fingerprint
from memory_program.models.rate_limit import Engine
from memory_program.models.usage import CallRecord, Usage, record_call, track_usage

_BUDGET_SETTING = "memory_program_allowance"


class StopReason(StrEnum):
    """Why a run asks for no more replies."""

    LIMIT = "limit"
    INTERRUPTED = "interrupted"
    NO_SCORES = "hopeless"
    PROGRAM_ERROR = "broken"


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
    """What a part of a run may use: the calls and dollars of the whole run at which it ends."""

    max_calls: int | None
    max_cost_usd: float | None
    stopped: RunStopped | None = None


@dataclass(frozen=True, slots=True)
class CallReply:
    """A reply that was paid for; ``reply`` is the response as JSON, None if the call failed."""

    key: str
    reply: dict[str, Any] | None  # Any: a JSON object
    usage: Usage


class ReplyCache:
    """Every reply of a run, on disk, by its request; and what the run may still ask for.

    A reply that is there is used again and counts like one that is new: a run that was killed uses the same
    replies as one that was not, and stops at the same limit. Two threads that ask for the same reply at once
    share it. Of what fails only that is kept: it counts, and is asked for again. All of it is safe from any
    thread.
    """

    def __init__(
        self, path: Path, *, max_calls: int | None = None, max_cost_usd: float | None = None
    ) -> None:
        """Read the replies that are there.

        Raises:
            RecordError: the file is damaged elsewhere than in an incomplete last line.
        """
        self.journal = Journal(path, CallReply)
        attempts = [attempt for key in self.journal.records for attempt in self.journal.attempts(key)]
        self.used = sum(attempt.reply is None for attempt in attempts)
        """Calls that the run has used: new ones, those found on disk, and those that failed, in earlier tries
        of it too."""
        self.paid = Usage()
        """What was newly paid for."""
        self.usage = Usage()
        """What all replies that were used have cost, whenever they were paid for."""
        self.stopped: RunStopped | None = None
        self._whole = CallBudget(max_calls, max_cost_usd)
        self._known: set[str] = set()
        self._pending: dict[str, Future[CallReply]] = {}
        self._lock = threading.RLock()
        self._idle = threading.Condition(self._lock)

    def stop(self, reason: StopReason, message: str) -> RunStopped:
        """Let no new call out; the first reason is the one that counts."""
        with self._lock:
            self.stopped = self.stopped or RunStopped(reason, message)
            return self.stopped

    @contextmanager
    def reserve_calls(self, calls: int) -> Generator[None]:
        """Keep some of what is allowed for the comparison after the block, but never more than half of it.

        A block that stops at its limit stops nothing after it. What it leaves behind in threads of its own
        stays stopped.

        Args:
            calls: how many calls come after it; they are taken to cost what the calls so far did.
        """
        with self._lock:
            allowance = CallBudget(self._whole.max_calls, self._whole.max_cost_usd)
            if allowance.max_calls is not None:
                left = max(0, allowance.max_calls - self.used)
                allowance.max_calls -= min(calls, left // 2)
            if allowance.max_cost_usd is not None and self.usage.cost_usd is not None:
                left_usd = max(0.0, allowance.max_cost_usd - self.usage.cost_usd)
                expected_usd = calls * self.usage.cost_usd / max(1, self.used)
                allowance.max_cost_usd -= min(expected_usd, left_usd / 2)
        with dspy.context(
            **{_BUDGET_SETTING: allowance}
        ):  # unlike a variable of ours, DSPy's threads inherit it
            yield

    def close(self) -> None:
        """Wait for the calls in flight, which are paid for, and write everything to the disk."""
        with self._lock:
            self._idle.wait_for(lambda: not self._pending)
        self.journal.close()

    def complete(self, engine: Engine, request: lm15.Request, sample: int) -> lm15.Response:
        """Give the reply to a request, from disk or from the engine.

        Args:
            engine: whom to ask.
            request: what to ask.
            sample: which of several replies to the same request, where replies are sampled.

        Raises:
            RunStopped: no call may be made any more.
            lm15.LM15Error: the call failed.
        """
        is_sampled = request.config.temperature != 0
        model, which = model_fingerprint(request.model), sample if is_sampled else 0
        key = content_hash("call", __version__, model, request_to_dict(request), which)
        allowance: CallBudget = dspy.settings.get(_BUDGET_SETTING, self._whole)
        with self._lock:
            stopped = self.stopped or allowance.stopped
            if stopped is not None:
                raise stopped
            reply, pending = self._cached_reply(key), self._pending.get(key)
            is_new = reply is None and pending is None
            if key not in self._known and (is_new or reply is not None):
                self._admit(allowance)
                self._known.add(key)
                self.usage += reply.usage if reply is not None else Usage()
            if is_new:
                self._pending[key] = Future()
        if is_new:
            return self._call_uninterrupted(engine, request, key)
        if reply is None:
            assert pending is not None
            reply = pending.result()
        assert reply.reply is not None, "what failed is raised"
        response = response_from_dict(reply.reply)
        record_call(CallRecord(request.model, Usage(), response.finish_reason))
        return response

    def _cached_reply(self, key: str) -> CallReply | None:
        kept = self.journal.records.get(key)
        return kept if kept is not None and kept.reply is not None else None

    def _call_uninterrupted(self, engine: Engine, request: lm15.Request, key: str) -> lm15.Response:
        if threading.current_thread() is not threading.main_thread():
            return self._call_and_store(engine, request, key)
        with ThreadPoolExecutor(1, thread_name_prefix="paid-call") as pool:
            # an interrupt falls into the main thread: it waits for what was asked and is paid for
            return pool.submit(
                contextvars.copy_context().run, self._call_and_store, engine, request, key
            ).result()

    def _call_and_store(self, engine: Engine, request: lm15.Request, key: str) -> lm15.Response:
        try:
            with track_usage() as meter:
                response = engine.complete(request)
        except BaseException as error:
            if isinstance(error, Exception):  # an interrupt is no call
                self.journal.add(CallReply(key, None, Usage()))
            with self._lock:
                self._known.discard(key)
                self._pending.pop(key).set_exception(error)
                self._idle.notify_all()
            raise
        reply = CallReply(key, response_to_dict(response), meter.usage)
        self.journal.add(reply)
        with self._lock:
            self.paid += reply.usage
            self.usage += reply.usage
            self._pending.pop(key).set_result(reply)
            self._idle.notify_all()
        return response

    def _admit(self, allowance: CallBudget) -> None:
        """Count one more call, if it is allowed."""
        limit = self._limit_reached(allowance)
        if limit is not None:
            allowance.stopped = RunStopped(StopReason.LIMIT, limit)
            raise allowance.stopped
        self.used += 1

    def _limit_reached(self, allowance: CallBudget) -> str | None:
        whole = self._whole
        if allowance.max_calls is not None and self.used >= allowance.max_calls:
            return _limit_message(f"max_calls={whole.max_calls}", allowance.max_calls == whole.max_calls)
        if allowance.max_cost_usd is None:
            return None
        max_cost = f"max_cost={whole.max_cost_usd!r}"
        if self.usage.cost_usd is None:
            return f"{max_cost} cannot be kept any more: a call has no known price"
        if self.usage.cost_usd < allowance.max_cost_usd:
            return None
        return _limit_message(max_cost, allowance.max_cost_usd == whole.max_cost_usd)


def _limit_message(limit: str, is_whole: bool) -> str:
    return f"{limit} is reached" + ("" if is_whole else " but for what is kept for the comparison")
