"""Calls that wait for a provider's batch API (``batch_api``): half the price, and up to 24 hours for a reply.

Each caller is a thread that waits for its own reply, as with any engine. The queue gathers the waiting calls
until no more arrive, submits them as one batch, asks for its state now and then, and hands out the replies.
A batch is written into the folder of the run when it is submitted. A process that is started after a kill
makes the same requests, finds each by its hash in such a batch, and waits for that one.
"""

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from dspy import lm15
from dspy.lm15 import Request, Response
from tenacity import Retrying, retry_if_exception

from memory_program.core.errors import BatchError
from memory_program.core.hashing import content_hash
from memory_program.core.journal import Journal
from memory_program.core.redaction import redact_text
from memory_program.models.batch_api import BatchApi, BatchReply, BatchStatus, JsonObject
from memory_program.models.rate_limit import IS_BATCHED, AdaptiveLimiter, Engine, RetryPolicy

MAX_BATCH_CALLS = 4096
"""The most calls that wait at once, each in a thread of its own; both providers take batches of 50,000."""

_KEPT = "finished work is kept, and the same command submits the rest again"
_POLL_GROWTH, _LONGEST_POLL_S = 1.5, 60.0
_LINE_EVERY_S, _LONGEST_LINE_S = 30.0, 600.0
_KEY_CHARS = 40  # an id of a request has at most 64 at Anthropic
_ROOM_BYTES = 200  # what surrounds the body of a request in a batch
_MALFORMED = (LookupError, TypeError, ValueError)
_POLICY = RetryPolicy()

_asks_directly: ContextVar[bool] = ContextVar("asks_directly", default=False)


@contextmanager
def calling_directly() -> Generator[None]:
    """Send the calls of this context directly, at the list price, also those of a model that is batched.

    It is for calls that wait for each other: a chain of batches could take days.
    """
    token = _asks_directly.set(True)
    try:
        yield
    finally:
        _asks_directly.reset(token)


class BatchedEngine:
    """An engine whose calls wait in a queue for a batch; any thread may call."""

    def __init__(self, direct: Engine, api: BatchApi, queue: "BatchQueue", limiter: AdaptiveLimiter) -> None:
        """Wrap an engine.

        Args:
            direct: answers the calls of ``calling_directly``.
            api: of the same model at the same address.
            queue: the batches of the run.
            limiter: limits the direct calls.
        """
        self._direct, self._api, self._queue, self._limiter = direct, api, queue, limiter

    def complete(self, request: Request) -> Response:
        """Answer a request; a parameter that the model refuses is left out from then on.

        Raises:
            lm15.LM15Error: the request failed.
            BatchError: its batch failed, or was not finished.
        """
        if _asks_directly.get():
            with self._limiter.slot():
                return self._direct.complete(request)
        facts, field_name = self._api.facts(request.model), self._api.token_field(request.model)
        while True:
            sent = facts.adapted(request)
            reply = self._queue.ask(self._api, request.model, self._api.write_body(sent))
            try:
                response = self._api.read_reply(sent, reply)
            except lm15.InvalidRequestError as error:
                if not facts.learn_refusal(error, sent, field_name):
                    raise
                field_name = self._api.token_field(request.model)
            else:
                return replace(response, provider_data={**(response.provider_data or {}), IS_BATCHED: True})


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A submitted batch; its key is the provider's id."""

    key: str
    url: str
    model: str
    requests: tuple[str, ...]
    """The id of each request: its hash, and a number that tells equal requests apart."""
    settled: tuple[str, ...] = ()
    """Requests that no later call may claim: their replies are used, or will never come."""


@dataclass(slots=True)
class _Call:
    api: BatchApi
    model: str
    body: JsonObject
    key: str
    size: int
    reply: "Future[BatchReply]" = field(default_factory=lambda: Future[BatchReply]())


@dataclass(slots=True)
class _Batch:
    """A batch that is asked for while calls wait for it; those of an earlier process were claimed from it."""

    record: BatchRecord
    is_resumed: bool
    calls: dict[str, _Call] = field(default_factory=dict[str, _Call])
    settled: set[str] = field(default_factory=set[str])
    replies: dict[str, BatchReply] | None = None
    began: float = field(default_factory=time.monotonic)
    poll_at: float = 0.0
    poll_wait_s: float = 0.0
    say_at: float = 0.0


class BatchQueue:
    """The batches of a run, from ``__enter__`` to ``__exit__``."""

    def __init__(
        self,
        path: Path,
        say: Callable[[str], None],
        *,
        gather_s: float = 2.0,
        first_poll_s: float = 0.5,
        max_calls: int = MAX_BATCH_CALLS,
    ) -> None:
        """Prepare; nothing is read or written yet.

        Args:
            path: the journal of the batches.
            say: prints a line of progress.
            gather_s: a batch is submitted once no call has arrived for so long.
            first_poll_s: the wait before a batch is asked for; it grows to a minute.
            max_calls: the most calls of one batch.
        """
        self._path, self._say = path, say
        self._gather_s, self._first_poll_s, self._max_calls = gather_s, first_poll_s, max_calls
        self._batches: dict[str, _Batch] = {}
        self._claimable: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        self._new: list[_Call] = []
        self._arrived_at = 0.0
        self._most: dict[tuple[str, str], int] = {}
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="batches", daemon=True)

    def __enter__(self) -> Self:
        """Read the batches that earlier processes of the run have submitted.

        Raises:
            RecordError: the journal is damaged.
        """
        self._journal = Journal(self._path, BatchRecord)
        for record in self._journal.records.values():
            self._batches[record.key] = _Batch(record, is_resumed=True, settled=set(record.settled))
            for request in record.requests:
                if request not in record.settled:
                    self._claimable[request.partition("-")[0]].append((record.key, request))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the waiting, and record whose replies are used; the others can still be claimed."""
        self.abandon()
        self._thread.join()
        for batch in self._batches.values():
            if len(batch.settled) > len(batch.record.settled):
                self._record_settled(batch)
        self._journal.close()

    def abandon(self) -> None:
        """Let no call wait any longer: the run is ending. Submitted batches go on at the provider."""
        with self._changed:
            self._closing.set()
            waiting = [
                *self._new,
                *(call for batch in self._batches.values() for call in batch.calls.values()),
            ]
            self._new = []
            self._changed.notify()
        _fail(waiting, "the run is ending: submitted batches go on, and the same command waits for them")

    def ask(self, api: BatchApi, model: str, body: JsonObject) -> BatchReply:
        """Wait for the reply to a request.

        Raises:
            BatchError: its batch failed or was not finished, or the run is ending.
        """
        size = len(json.dumps(body)) + _ROOM_BYTES
        call = _Call(api, model, body, content_hash(api.url, body)[:_KEY_CHARS], size)
        with self._changed:
            if self._closing.is_set():
                raise BatchError("the run is ending: no more calls are submitted")
            claimable = self._claimable.get(call.key)
            if claimable:
                batch_id, request = claimable.pop()
                self._batches[batch_id].calls[request] = call
            else:
                self._new.append(call)
                self._arrived_at = time.monotonic()
            self._changed.notify()
        return call.reply.result()

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                with self._changed:
                    due_s = self._due_s()
                    if due_s is None or due_s > 0:
                        self._changed.wait(due_s)
                        continue
                    groups = self._take_new()
                    batches = [b for b in self._batches.values() if b.calls and b.poll_at <= time.monotonic()]
                for calls in groups:
                    self._submit(calls)
                for batch in batches:
                    self._poll(batch)
        finally:
            self.abandon()  # nobody would answer the calls that wait

    def _due_s(self) -> float | None:
        """Return the seconds until there is something to do; None if there is nothing."""
        times = [batch.poll_at for batch in self._batches.values() if batch.calls]
        if any(not self._is_held(call) for call in self._new):
            times.append(self._arrived_at + self._gather_s)
        return min(times) - time.monotonic() if times else None

    def _is_held(self, call: _Call) -> bool:
        """Tell if a call must wait for another batch, since the account has no room for more of them."""
        group = (call.api.url, call.model)
        return group in self._most and any(
            batch.calls and (batch.record.url, batch.record.model) == group
            for batch in self._batches.values()
        )

    def _take_new(self) -> list[list[_Call]]:
        """Take the calls that have been gathered, in batches of one model within the provider's limits."""
        if time.monotonic() - self._arrived_at < self._gather_s:
            return []
        groups = defaultdict[tuple[str, str], list[_Call]](list)
        left, taken, size = list[_Call](), list[list[_Call]](), 0
        for call in self._new:
            (left if self._is_held(call) else groups[call.api.url, call.model]).append(call)
        for group, calls in groups.items():
            is_limited = group in self._most
            most = self._most.get(group, self._max_calls)
            if is_limited:
                left += calls[most:]
                calls = calls[:most]
            batch = list[_Call]()
            for call in calls:
                size += call.size
                if not batch or len(batch) == most or size > call.api.max_bytes:
                    batch, size = [], call.size
                    taken.append(batch)
                batch.append(call)
        self._new = left
        return taken

    def _submit(self, calls: Sequence[_Call]) -> None:
        if self._closing.is_set():
            self._new += calls
            return
        api, model = calls[0].api, calls[0].model
        numbers, named = defaultdict[str, int](int), dict[str, _Call]()
        for call in calls:
            numbers[call.key] += 1
            named[f"{call.key}-{numbers[call.key]}"] = call
        trying = Retrying(
            stop=lambda state: self._closing.is_set() or _POLICY.gives_up(state),
            retry=retry_if_exception(_POLICY.should_retry),
            wait=_POLICY.wait_s,
            sleep=self._closing.wait,
            reraise=True,
        )
        try:
            batch_id = trying(api.submit, {request: call.body for request, call in named.items()})
        except (lm15.LM15Error, *_MALFORMED) as error:
            _fail(
                calls, f"{model}: a batch of {len(calls)} calls was not accepted: {_describe(error)}; {_KEPT}"
            )
            return
        record = BatchRecord(batch_id, api.url, model, tuple(named))
        self._journal.add(record)  # before anybody waits: a killed run must not pay for it again
        batch = _Batch(record, is_resumed=False, calls=named)
        with self._changed:
            self._batches[batch_id] = batch
        self._schedule(batch)
        self._tell(batch, 0, "submitted")

    def _poll(self, batch: _Batch) -> None:
        api, name = next(iter(batch.calls.values())).api, batch.record.key
        status = BatchStatus("has no reply", 0)
        try:
            if batch.replies is None:
                status = api.status(name)
                if status.has_ended:
                    batch.replies = api.replies(name, status)
        except (lm15.LM15Error, *_MALFORMED) as error:
            if _POLICY.should_retry(error):
                self._schedule(batch)
                self._tell(batch, None, f"cannot be asked now: {_describe(error)}")
            else:
                self._end_unfinished(batch, f"is lost: {_describe(error)}")
            return
        if batch.replies is None:
            self._schedule(batch)
            self._tell(batch, status.done, status.word.replace("_", " "))
            return
        with self._changed:  # calls may still claim requests of an earlier process
            answered = {request: call for request, call in batch.calls.items() if request in batch.replies}
            batch.calls = {request: call for request, call in batch.calls.items() if request not in answered}
            batch.settled.update(answered)
        if status.has_ended:
            self._tell(batch, len(batch.replies), status.word, is_last=True)
        for request, call in answered.items():
            _settle(call, batch.replies[request])
        if not batch.is_resumed:
            batch.replies = None  # all of its calls are here
        if not batch.calls:
            return
        if status.has_too_many_tokens and len(batch.calls) > 1:
            self._most[batch.record.url, batch.record.model] = len(batch.calls) // 2
            self._say(f"{batch.record.model}: the account allows fewer tokens at once: batches are halved")
            self._requeue(batch)
        else:
            what = f" ({redact_text(status.error)})" if status.error else ""
            self._end_unfinished(batch, f"{status.word}{what}")

    def _end_unfinished(self, batch: _Batch, what: str) -> None:
        """Fail the calls that get no reply from a batch; those of an earlier process are submitted again."""
        record, count = batch.record, len(batch.calls)
        if batch.is_resumed:
            self._say(f"{record.model}: batch {record.key} {what}: calls submitted again: {count}")
            self._requeue(batch)
            return
        calls = self._give_up(batch)
        _fail(calls, f"{record.model}: batch {record.key} {what}; calls without a reply: {count}; {_KEPT}")

    def _requeue(self, batch: _Batch) -> None:
        calls = self._give_up(batch)
        with self._changed:
            self._new += calls

    def _give_up(self, batch: _Batch) -> list[_Call]:
        """Take the calls out of a batch, and record that no later process may claim them there."""
        with self._changed:
            calls = list(batch.calls.values())
            batch.settled.update(batch.calls)
            batch.calls = {}
        self._record_settled(batch)
        return calls

    def _record_settled(self, batch: _Batch) -> None:
        batch.record = replace(batch.record, settled=tuple(sorted(batch.settled)))
        self._journal.add(batch.record)

    def _schedule(self, batch: _Batch) -> None:
        grown_s = min(batch.poll_wait_s * _POLL_GROWTH, _LONGEST_POLL_S)
        batch.poll_wait_s = max(grown_s, self._first_poll_s)
        batch.poll_at = time.monotonic() + batch.poll_wait_s

    def _tell(self, batch: _Batch, done: int | None, word: str, *, is_last: bool = False) -> None:
        """Print the state of a batch: at its start and its end, and in between at growing intervals."""
        now = time.monotonic()
        if now < batch.say_at and not is_last:
            return
        batch.say_at = now + min(max(_LINE_EVERY_S, now - batch.began), _LONGEST_LINE_S)
        record = batch.record
        counted = "" if done is None else f"{done} of {len(record.requests)} done, "
        ending = "" if is_last else ", waits"
        self._say(f"{record.model}: batch {record.key}: {counted}{word}{ending}")


def _settle(call: _Call, reply: BatchReply) -> None:
    if not call.reply.done():  # else the run is ending
        call.reply.set_result(reply)


def _fail(calls: Iterable[_Call], message: str) -> None:
    for call in calls:
        if not call.reply.done():
            call.reply.set_exception(BatchError(message))


def _describe(error: Exception) -> str:
    return redact_text(error.message if isinstance(error, lm15.LM15Error) else repr(error))
