"""Calls that wait for a provider's batch API (``batch_api``): half the price, and up to 24 hours for a reply.

Each caller is a thread that waits for its own reply, as with any engine. The queue gathers the waiting calls
until no more arrive, submits them as one batch, asks for its state now and then, and hands out the replies.
A batch is written into the folder of the run when it is submitted. A process that is started after a kill
makes the same requests, finds each by its hash in such a batch, and waits for that one.
"""

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from dspy import lm15
from dspy.lm15 import Request, Response
from tenacity import Retrying, retry_if_exception

from memory_program.core.errors import BatchError
from memory_program.core.hashing import content_hash
from memory_program.core.journal import Journal
from memory_program.core.redaction import redact_text
from memory_program.models.batch_api import BatchApi, BatchReply, BatchStatus, JsonObject, was_refused
from memory_program.models.rate_limit import IS_BATCHED, AdaptiveLimiter, Engine, RetryPolicy

MAX_BATCH_CALLS = 4096
"""The most calls that wait at once, each in a thread of its own; both providers take batches of 50,000."""

_KEPT = "finished work is kept, and the same command submits the rest again"
_POLL_GROWTH, _LONGEST_POLL_S = 1.5, 60.0
_LINE_EVERY_S, _LONGEST_LINE_S = 30.0, 600.0
_KEY_CHARS = 40  # an id of a request has at most 64 at Anthropic
_ROOM_BYTES = 200  # what surrounds the body of a request in a batch
_MALFORMED = (AttributeError, LookupError, TypeError, ValueError)
_GONE = (404, 410)  # of a batch or its replies: the provider no longer has them
_NO_WAIT_MENDS = (lm15.AuthError, lm15.BillingError, lm15.InvalidRequestError)
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
        api = self._api
        while True:
            sent, token_field = api.facts.adapted(request), api.token_field
            reply = self._queue.ask(api, api.write_body(sent))
            try:
                response = api.read_reply(sent, reply)
            except lm15.InvalidRequestError as error:
                if not api.facts.learn_refusal(error, sent, token_field):
                    raise
            else:
                return replace(response, provider_data={**(response.provider_data or {}), IS_BATCHED: True})


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A submitted batch; its key is the provider's id."""

    key: str
    model: str
    requests: tuple[str, ...]
    """The id of each request: its hash, and a number that tells equal requests apart."""
    settled: tuple[str, ...] = ()
    """Requests that no later call may claim: their replies are used, or will never come."""


@dataclass(slots=True)
class _Call:
    api: BatchApi
    body: JsonObject
    key: str
    size: int
    reply: "Future[BatchReply]" = field(default_factory=lambda: Future[BatchReply]())


@dataclass(slots=True)
class _Batch:
    """A batch, and the calls that wait for it."""

    record: BatchRecord
    is_resumed: bool
    calls: dict[str, _Call] = field(default_factory=dict[str, _Call])
    settled: set[str] = field(default_factory=set[str])
    replies: dict[str, BatchReply] | None = None
    began: float = field(default_factory=time.monotonic)
    poll_at: float = 0.0
    poll_wait_s: float = 0.0
    say_at: float = 0.0

    @property
    def api(self) -> BatchApi | None:
        """The API of the waiting calls; None if none waits."""
        return next((call.api for call in self.calls.values()), None)


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
        self._claimable = defaultdict[str, list[tuple[str, str]]](list)
        self._new: list[_Call] = []
        self._in_hand: list[_Call] = []  # of this round: in no batch that is recorded
        self._arrived_at = 0.0
        self._halved: dict[BatchApi, int] = {}
        self._has_unanswered = False
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
            for request in sorted({*record.requests} - {*record.settled}):
                self._claimable[request.partition("-")[0]].append((record.key, request))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the waiting, and record whose replies are used.

        If a call got no reply, its item is not recorded, and may have used other replies: all stay claimable.
        """
        self.abandon()
        self._thread.join()
        for batch in self._batches.values():
            if len(batch.settled) > len(batch.record.settled) and not self._has_unanswered:
                self._journal.add(replace(batch.record, settled=tuple(sorted(batch.settled))))
        self._journal.close()

    def settle(self) -> None:
        """Record that all replies so far are used: a stage has recorded its items."""
        with self._changed:
            for batch in self._batches.values():
                if len(batch.settled) > len(batch.record.settled):
                    batch.record = replace(batch.record, settled=tuple(sorted(batch.settled)))
                    self._journal.add(batch.record)
            self._has_unanswered = False

    def abandon(self, why: str = "the run is ending") -> None:
        """Let no call wait any longer. Submitted batches go on at the provider."""
        with self._changed:
            self._closing.set()
            self._fail(
                [
                    *(*self._new, *self._in_hand),
                    *(call for batch in self._batches.values() for call in batch.calls.values()),
                ],
                f"{why}: submitted batches go on, and the same command waits for them",
            )
            self._new = []
            self._changed.notify()

    def ask(self, api: BatchApi, body: JsonObject) -> BatchReply:
        """Wait for the reply to a request.

        Raises:
            BatchError: its batch failed or was not finished, or the run is ending.
        """
        key, size = content_hash(api.url, body)[:_KEY_CHARS], len(json.dumps(body)) + _ROOM_BYTES
        call = _Call(api, body, key, size)
        with self._changed:
            if self._closing.is_set():
                self._fail([call], "the run is ending: no more calls are submitted")
            elif self._claimable[key]:
                batch_id, request = self._claimable[key].pop()
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
                    times = [batch.poll_at for batch in self._batches.values() if batch.calls]
                    if any(not self._is_held(call.api) for call in self._new):
                        times.append(self._arrived_at + self._gather_s)
                    due_s = min(times) - time.monotonic() if times else None
                    if due_s is None or due_s > 0:
                        self._changed.wait(due_s)
                        continue
                    groups = self._take_new()
                    self._in_hand = [call for calls in groups for call in calls]
                    batches = [b for b in self._batches.values() if b.calls and b.poll_at <= time.monotonic()]
                for calls in groups:
                    self._submit(calls)
                for batch in batches:
                    self._poll(batch)
        except OSError as error:
            self.abandon(f"{str(self._path)!r} cannot be written ({error})")
        finally:
            self.abandon()  # nobody would answer the calls that wait

    def _is_held(self, api: BatchApi) -> bool:
        """Tell if calls must wait for another batch, since the account has no room for two."""
        return api in self._halved and any(batch.api is api for batch in self._batches.values())

    def _take_new(self) -> list[list[_Call]]:
        """Take the calls that have been gathered, in batches of one model within the provider's limits."""
        if time.monotonic() - self._arrived_at < self._gather_s:
            return []
        groups, taken, size = defaultdict[BatchApi, list[_Call]](list), list[list[_Call]](), 0
        for call in self._new:
            groups[call.api].append(call)
        self._new = []
        for api, calls in groups.items():
            most = self._halved.get(api, self._max_calls)
            allowed = len(calls) if api not in self._halved else 0 if self._is_held(api) else most
            self._new += calls[allowed:]
            batch = list[_Call]()
            for call in calls[:allowed]:
                size += call.size
                if not batch or len(batch) == most or size > api.max_bytes:
                    batch, size = [], call.size
                    taken.append(batch)
                batch.append(call)
        return taken

    def _submit(self, calls: Sequence[_Call]) -> None:
        if self._closing.is_set():
            self._new += calls
            return
        api, numbers, named = calls[0].api, Counter[str](), dict[str, _Call]()
        for call in calls:
            numbers[call.key] += 1
            named[f"{call.key}-{numbers[call.key]}"] = call

        try:
            batch_id = self._create(api, {request: call.body for request, call in named.items()})
        except BatchError as error:
            self._fail(calls, str(error))
            return
        batch = _Batch(BatchRecord(batch_id, api.model, tuple(named)), is_resumed=False, calls=named)
        self._journal.add(batch.record)  # before anybody waits: a killed run must not pay for it again
        self._schedule(batch)
        self._tell(batch, 0, "submitted")
        with self._changed:
            self._batches[batch_id] = batch

    def _create(self, api: BatchApi, bodies: Mapping[str, JsonObject]) -> str:
        """Create a batch and return its id; after a failed try that may have created it, look for it first.

        Raises:
            BatchError: the batch was not accepted, or it cannot be told if it was.
        """
        may_exist = False

        def create(wanted: JsonObject) -> str:
            nonlocal may_exist
            if may_exist and (found := api.find(wanted)):
                return found
            may_exist = True
            try:
                return api.create(wanted)
            except lm15.LM15Error as error:
                may_exist = not was_refused(error)
                raise

        def should_retry(error: BaseException) -> bool:
            return _POLICY.should_retry(error) and (api.lists_inputs or not may_exist)

        def pause(seconds: float) -> None:
            self._closing.wait(seconds)

        trying = Retrying(
            stop=lambda state: self._closing.is_set() or _POLICY.gives_up(state),
            retry=retry_if_exception(should_retry),
            # a batch that is still being created is not in the provider's list
            wait=lambda state: _POLICY.wait_s(state) + self._gather_s,
            sleep=pause,
            reraise=True,
        )
        try:
            return trying(create, trying(api.prepare, bodies))
        except (lm15.LM15Error, *_MALFORMED) as error:
            told = f"was not accepted: {_describe(error)}"
            if may_exist:
                told = (
                    f"may have been created, and is not on record: {_describe(error)}; look for it in "
                    f"{api.url}{api.path} or on the provider's website, and cancel it"
                )
            raise BatchError(f"{api.model}: a batch of {len(bodies)} calls {told}; {_KEPT}") from error

    def _poll(self, batch: _Batch) -> None:
        """Ask for a batch; if it has ended, hand out its replies."""
        status, asked_s = BatchStatus("has no reply"), 0.0
        with self._changed:  # other threads add calls
            api = batch.api
        if api is None:  # the run is ending
            return
        try:
            if batch.replies is None:
                status = api.status(batch.record.key)
                if status.has_ended:
                    batch.replies = api.replies(batch.record.key, status)
        except (lm15.LM15Error, *_MALFORMED) as error:
            if isinstance(error, lm15.LM15Error) and error.status in _GONE:
                self._end_unfinished(batch, f"is lost: {_describe(error)}")
                return
            if isinstance(error, _NO_WAIT_MENDS):
                # the batch goes on at the provider, and a later process may claim its calls there
                with self._changed:
                    calls, batch.calls = list(batch.calls.values()), {}
                what = f"batch {batch.record.key} cannot be asked for: {_describe(error)}"
                self._fail(calls, f"{api.model}: {what}; mend this, and the same command waits for the batch")
                return
            status = BatchStatus(f"cannot be asked now: {_describe(error)}")
            asked_s = (error.retry_after or 0.0) if isinstance(error, lm15.LM15Error) else 0.0
        if batch.replies is None:
            self._schedule(batch, asked_s)
            self._tell(batch, status.done, status.word.replace("_", " "))
            return
        if status.has_ended:
            self._tell(batch, len(batch.replies), status.word, is_last=True)
        # calls may still claim requests of an earlier process: one that does has a reply, and is not given up
        with self._changed:
            for request in batch.calls.keys() & batch.replies.keys():
                call = batch.calls.pop(request)
                batch.settled.add(request)
                if not call.reply.done():  # else the run is ending
                    call.reply.set_result(batch.replies[request])
            if not batch.is_resumed:
                batch.replies = None  # all of its calls are here
            if batch.calls and status.has_too_many_tokens and len(batch.calls) > 1:
                self._halved[api] = len(batch.calls) // 2
                self._say(f"{api.model}: the account allows fewer tokens at once: batches are halved")
                self._new += self._give_up(batch)
            elif batch.calls:
                why = f" ({redact_text(status.error)})" if status.error else ""
                self._end_unfinished(batch, f"{status.word}{why}")

    def _end_unfinished(self, batch: _Batch, what: str) -> None:
        """Fail the calls that get no reply from a batch; those of an earlier process are submitted again."""
        calls, name = self._give_up(batch), f"{batch.record.model}: batch {batch.record.key}"
        if batch.is_resumed:
            self._say(f"{name} {what}; calls submitted again: {len(calls)}")
            with self._changed:
                self._new += calls
        else:
            self._fail(calls, f"{name} {what}; calls without a reply: {len(calls)}; {_KEPT}")

    def _give_up(self, batch: _Batch) -> list[_Call]:
        """Take the calls out of a batch, and record that no later process may claim them there."""
        with self._changed:
            calls, requests = list(batch.calls.values()), tuple(batch.calls)
            self._in_hand += calls
            batch.calls = {}
            batch.settled.update(requests)
        batch.record = replace(batch.record, settled=(*batch.record.settled, *requests))
        self._journal.add(batch.record)
        return calls

    def _fail(self, calls: Iterable[_Call], message: str) -> None:
        with self._changed:
            for call in calls:
                if not call.reply.done():
                    call.reply.set_exception(BatchError(message))
                    self._has_unanswered = True

    def _schedule(self, batch: _Batch, asked_s: float = 0.0) -> None:
        """Set the time of the next poll: not before the wait that the provider asked for."""
        grown_s = min(batch.poll_wait_s * _POLL_GROWTH, _LONGEST_POLL_S)
        batch.poll_wait_s = max(grown_s, self._first_poll_s)
        batch.poll_at = time.monotonic() + max(batch.poll_wait_s, asked_s)

    def _tell(self, batch: _Batch, done: int, word: str, *, is_last: bool = False) -> None:
        """Print the state of a batch: at its start and its end, and in between at growing intervals."""
        now = time.monotonic()
        if now < batch.say_at and not is_last:
            return
        batch.say_at = now + min(max(_LINE_EVERY_S, now - batch.began), _LONGEST_LINE_S)
        record, ending = batch.record, "" if is_last else ", waits"
        self._say(
            f"{record.model}: batch {record.key}: {done} of {len(record.requests)} done, {word}{ending}"
        )


def _describe(error: Exception) -> str:
    # without lm15's advice, which is about settings that this program does not use
    told = error.message.partition("\n\n")[0] if isinstance(error, lm15.LM15Error) else repr(error)
    return redact_text(told)
