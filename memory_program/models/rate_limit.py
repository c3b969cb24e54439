"""The one place that every paid call passes: a slot, a try, the wait before the next try, and the meter.

DSPy retries too, but waits as long as a provider asks however long that is, without jitter, holding its place
meanwhile; and what it retried cannot be counted from outside. So its retries are off and these are on.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from dspy import lm15
from dspy.clients.errors import wrap_error
from dspy.utils.exceptions import is_retryable_lm_error
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from memory_program.core.errors import ConfigError
from memory_program.core.redaction import redact_error
from memory_program.models.usage import CallRecord, Usage, list_price, record_call


class Engine(Protocol):
    """Whatever turns one request into one reply, trying once, and raises ``dspy.lm15`` errors."""

    def complete(self, request: lm15.Request) -> lm15.Response:
        """Answer a request."""
        ...


class AdaptiveLimiter:
    """Lets at most ``limit`` calls run at once, and fewer while the provider says that it is too many.

    Additive increase, multiplicative decrease (Chiu and Jain 1989, Computer Networks 17, section 3): a rate
    limit halves what is allowed, at most once in ``cooldown_s`` since the calls of one burst are refused
    together; as many successes in a row as are allowed at once raise it by one. Waiting calls are let in
    first come, first served. Share one limiter between all models that share a provider's limit.
    """

    def __init__(
        self, limit: int, *, cooldown_s: float = 5.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start with the whole ``limit`` allowed.

        Raises:
            ConfigError: the limit lets nothing through.
        """
        if limit < 1:
            raise ConfigError(f"concurrency={limit!r} must be at least 1: one call at a time is the least")
        self.limit = limit
        self._allowed = limit
        self._in_flight = 0
        self._successes = 0
        self._cooldown_s = cooldown_s
        self._clock = clock
        self._cut_at = -math.inf
        self._waiting: deque[threading.Event] = deque()
        self._lock = threading.Lock()

    @property
    def current_limit(self) -> int:
        """How many calls may run at once right now."""
        return self._allowed

    @contextmanager
    def slot(self) -> Generator[None]:
        """Wait for a place among the running calls, and hold it inside the block."""
        turn = threading.Event()
        with self._lock:
            self._waiting.append(turn)
            self._admit()
        try:
            turn.wait()
            yield
        finally:
            with self._lock:
                if turn.is_set():
                    self._in_flight -= 1
                else:  # interrupted while waiting
                    self._waiting.remove(turn)
                self._admit()

    def record_rate_limit(self) -> None:
        """Halve what is allowed: the provider refused a call for coming too fast."""
        with self._lock:
            self._successes = 0
            if self._clock() - self._cut_at >= self._cooldown_s:
                self._cut_at = self._clock()
                self._allowed = max(1, self._allowed // 2)

    def record_success(self) -> None:
        """Count a success; a run of them raises what is allowed."""
        with self._lock:
            self._successes += 1
            if self._successes >= self._allowed:
                self._successes = 0
                self._allowed = min(self.limit, self._allowed + 1)
                self._admit()

    def _admit(self) -> None:
        while self._waiting and self._in_flight < self._allowed:
            self._in_flight += 1
            self._waiting.popleft().set()


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a call is tried again: after transport failures, timeouts, rate limits and server errors only.

    The wait before try ``n + 1`` is uniform between 0 and ``first_wait_s * 2**(n-1)``, at most ``max_wait_s``
    ("full jitter": Brooker 2015, AWS Architecture Blog), after what the provider asked for (Retry-After): it
    tells many calls the same, often 0. One that asks for more than ``max_retry_after_s`` ends the call.
    """

    max_retries: int = 6
    first_wait_s: float = 1.0
    max_wait_s: float = 60.0
    max_retry_after_s: float = 120.0

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ConfigError: one is negative.
        """
        for name in self.__slots__:
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}={getattr(self, name)!r} must be at least 0")

    def should_retry(self, error: BaseException) -> bool:
        """Whether to try again after this error, if tries are left."""
        return _is_transient(error) and (_retry_after_s(error) or 0.0) <= self.max_retry_after_s

    def wait_s(self, state: RetryCallState) -> float:
        """The seconds to wait before the next try."""
        asked_s = _retry_after_s(state.outcome.exception()) if state.outcome is not None else None
        jitter = wait_random_exponential(multiplier=self.first_wait_s, max=self.max_wait_s)
        return (asked_s or 0.0) + jitter(state)


class RateLimitedEngine:
    """An engine behind a limiter, with retries, every call on the meter and no key in any error.

    Optimisers deep-copy programs: a copy shares this engine, since a second limiter would double the load.
    """

    def __init__(
        self,
        engine: Engine,
        limiter: AdaptiveLimiter,
        retries: RetryPolicy,
        *,
        api_base: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Wrap an engine; ``api_base`` tells the ledger that its price is not the list price."""
        self.limiter = limiter
        self.retries = retries
        self.api_base = api_base
        self._engine = engine
        self._retrying = Retrying(
            stop=stop_after_attempt(retries.max_retries + 1),
            retry=retry_if_exception(retries.should_retry),
            wait=retries.wait_s,
            sleep=sleep,
            reraise=True,
        )

    def complete(self, request: lm15.Request) -> lm15.Response:
        """Answer a request after as many tries as it takes.

        Raises:
            lm15.LM15Error: the last try's error, without keys.
        """
        tries = _Attempts()
        try:
            response = self._retrying(self._try_once, request, tries)
        except Exception as error:
            _add_retry_note(error, tries, self.retries)
            redact_error(error)
            said = error.message if isinstance(error, lm15.LM15Error) else str(error)
            failed = CallRecord(
                request.model, tries.usage + Usage(failed_calls=1), error=f"{type(error).__name__}: {said}"
            )
            record_call(failed)
            raise
        usage = tries.usage + self._usage_from_response(response, request.model)
        record_call(CallRecord(request.model, usage, response.finish_reason))
        return response

    def _try_once(self, request: lm15.Request, tries: "_Attempts") -> lm15.Response:
        with self.limiter.slot(), tries.timed():
            try:
                response = self._engine.complete(request)
            except lm15.RateLimitError:
                self.limiter.record_rate_limit()
                raise
        self.limiter.record_success()
        return response

    def _usage_from_response(self, response: lm15.Response, model: str) -> Usage:
        counted, price = response.usage, list_price(model, api_base=self.api_base)
        if counted.input_tokens is None or counted.output_tokens is None:
            return Usage(cost_usd=None, unpriced_calls=1)
        tokens = (counted.input_tokens, counted.cache_read_tokens or 0, counted.output_tokens)
        return Usage(
            input_tokens=tokens[0],
            cached_tokens=tokens[1],
            output_tokens=tokens[2],
            cost_usd=None if price is None else price.cost_usd(*tokens),
            unpriced_calls=int(price is None),
            saved_usd=0.0 if price is None else price.saved_usd(tokens[1]),
        )

    def __copy__(self) -> "RateLimitedEngine":
        return self

    def __deepcopy__(self, memo: object) -> "RateLimitedEngine":
        return self


@dataclass(slots=True)
class _Attempts:
    """How often one call was tried, and how long that took."""

    count: int = 0
    seconds: float = 0.0

    @contextmanager
    def timed(self) -> Generator[None]:
        self.count += 1
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds += time.monotonic() - started

    @property
    def usage(self) -> Usage:
        return Usage(calls=1, seconds=self.seconds, retries=max(0, self.count - 1))


def _is_transient(error: BaseException) -> bool:
    return isinstance(error, Exception) and is_retryable_lm_error(wrap_error(error, model=""))


def _retry_after_s(error: BaseException | None) -> float | None:
    return getattr(error, "retry_after", None)


def _add_retry_note(error: Exception, tries: _Attempts, retries: RetryPolicy) -> None:
    """Say what was done about the error, in the place of the client's advice to retry."""
    if not isinstance(error, lm15.LM15Error):
        return
    error.message = error.message.partition("\n\n")[0]
    asked_s = _retry_after_s(error)
    if asked_s is not None and asked_s > retries.max_retry_after_s:
        error.message += (
            f" (asked to wait {asked_s:g} s, more than the {retries.max_retry_after_s:g} s a call waits: "
            "run it again later, or with a lower concurrency)"
        )
    elif tries.count > 1:
        error.message += f" (tried {tries.count} times)"
    error.args = (error.message,)  # str() of some of these errors reads one, of some the other
