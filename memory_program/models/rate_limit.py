"""Rate limits, retries and usage records for every model call.

DSPy retries too, but it waits as long as a provider asks, without jitter, and holds its slot meanwhile; and
its retries cannot be counted from outside. So its retries are off and these are on.
"""

import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol

from dspy import lm15
from dspy.clients.errors import wrap_error
from dspy.utils.exceptions import LMBillingError, LMError, is_retryable_lm_error
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from memory_program.core.errors import BatchError, ConfigError, QuotaExhaustedError, RunEndingError, one_line
from memory_program.core.redaction import redact_error
from memory_program.core.repetition import find_repetition
from memory_program.models.server_errors import SlowReplyError
from memory_program.models.usage import BATCH_PRICE_SHARE, CallRecord, Usage, list_price, record_call

TEMPLATE_KEY = "chat_template_kwargs"
"""The extension of a request with the arguments of the model's chat template."""

IS_BATCHED = "is_batched"
"""True in the provider data of a response that came through a batch API, at a lower price."""

MAX_TIMEOUT_RETRIES = 2
"""Tries after the first of a call that times out."""


class Engine(Protocol):
    """Turns one request into one reply, trying once; raises ``dspy.lm15`` errors."""

    def complete(self, request: lm15.Request) -> lm15.Response:
        """Answer a request."""
        ...


class AdaptiveLimiter:
    """Lets at most ``limit`` calls run at once, fewer after rate limits and timeouts.

    Additive increase, multiplicative decrease (Chiu and Jain 1989, Computer Networks 17, section 3). A rate
    limit error, or a reply that did not come in time, halves the current limit, at most once in
    ``cooldown_s``, since the calls of one burst are refused together. As many successes in a row as the
    current limit raise it by one. Waiting calls start in the order in which they came. Share one limiter
    between all models that share a provider's limit.
    """

    def __init__(
        self, limit: int, *, cooldown_s: float = 5.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start with the full ``limit``.

        Raises:
            ConfigError: the limit is below 1.
        """
        if limit < 1:
            raise ConfigError(f"concurrency={limit!r} must be at least 1")
        self.limit = limit
        self._allowed = limit
        self._in_flight = 0
        self._successes = 0
        self._cooldown_s = cooldown_s
        self._clock = clock
        self._cut_at = -math.inf
        self._waiting: deque[threading.Event] = deque()
        self._lock = threading.Lock()

    @contextmanager
    def slot(self) -> Generator[None]:
        """Wait for a slot among the running calls, and hold it inside the block."""
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
        """Halve the current limit: the provider has too many calls."""
        with self._lock:
            self._successes = 0
            if self._clock() - self._cut_at >= self._cooldown_s:
                self._cut_at = self._clock()
                self._allowed = max(1, self._allowed // 2)

    def record_success(self) -> None:
        """Count a success; a run of them raises the current limit."""
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
    """Rules for retries: only after transport failures, timeouts, rate limits and server errors.

    A call that timed out without a byte is tried at most ``MAX_TIMEOUT_RETRIES`` times more, since a server
    that is only slow would be asked for the same work each time. A reply that was slow but alive
    (``SlowReplyError``) is not asked for again.

    The wait before try ``n + 1`` is uniform between 0 and ``first_wait_s * 2**(n-1)``, at most ``max_wait_s``
    ("full jitter": Brooker 2015, AWS Architecture Blog), on top of what the provider asked for (Retry-After),
    since many calls get the same answer, often 0. Asking for more than ``max_retry_after_s`` ends the call.
    """

    max_retries: int = 6
    first_wait_s: float = 1.0
    max_wait_s: float = 60.0
    max_retry_after_s: float = 120.0

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ConfigError: a number is negative.
        """
        for name in self.__slots__:
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}={getattr(self, name)!r} must be at least 0")

    def should_retry(self, error: BaseException) -> bool:
        """Tell if a call should be tried again after this error, as long as tries are left."""
        if isinstance(error, SlowReplyError):
            return False
        is_transient = isinstance(error, Exception) and is_retryable_lm_error(wrap_error(error, model=""))
        return is_transient and (_retry_after_s(error) or 0.0) <= self.max_retry_after_s

    def gives_up(self, state: RetryCallState) -> bool:
        """Tell if the last try was the last one that is allowed after its error."""
        error = state.outcome.exception() if state.outcome is not None else None
        is_timeout = isinstance(error, lm15.TimeoutError)
        retries = min(self.max_retries, MAX_TIMEOUT_RETRIES) if is_timeout else self.max_retries
        return state.attempt_number > retries

    def wait_s(self, state: RetryCallState) -> float:
        """Return the seconds to wait before the next try."""
        asked_s = _retry_after_s(state.outcome.exception()) if state.outcome is not None else None
        jitter = wait_random_exponential(multiplier=self.first_wait_s, max=self.max_wait_s)
        return (asked_s or 0.0) + jitter(state)


_sleep_in_run: ContextVar[Callable[[float], None] | None] = ContextVar("sleep_in_run", default=None)


class RateLimitedEngine:
    """An engine with a rate limit, retries, usage records, and no key in any error.

    Optimisers deep-copy programs. A copy shares this engine, since a second limiter would double the load.
    """

    def __init__(
        self,
        engine: Engine,
        limiter: AdaptiveLimiter,
        retries: RetryPolicy,
        *,
        api_base: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,  # Any: JSON
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Wrap an engine.

        Args:
            engine: answers each request once.
            limiter: limits the calls that run at once.
            retries: says which failed calls are tried again.
            api_base: the address of another server; its price is not the list price.
            chat_template_kwargs: sent with every request, which DSPy cannot do.
            sleep: waits between two tries.
        """
        self.limiter = limiter
        self.chat_template_kwargs = dict(chat_template_kwargs or {})
        self.retries = retries
        self.api_base = api_base
        self._engine = engine
        self._retrying = Retrying(
            stop=retries.gives_up,
            retry=retry_if_exception(retries.should_retry),
            wait=retries.wait_s,
            sleep=sleep,
            reraise=True,
        )

    def complete(self, request: lm15.Request) -> lm15.Response:
        """Answer a request, trying as often as the policy allows.

        Raises:
            lm15.LM15Error: the last try's error, without keys.
            RunEndingError: a try failed that would be repeated, but the run is ending.
        """
        tries, seconds, response = 0, 0.0, None
        if self.chat_template_kwargs:
            extensions = {TEMPLATE_KEY: self.chat_template_kwargs, **(request.config.extensions or {})}
            request = replace(request, config=replace(request.config, extensions=extensions))
        retrying = self._retrying
        if (sleep := _sleep_in_run.get()) is not None:
            retrying = retrying.copy(sleep=sleep)
        try:
            for attempt in retrying:
                with attempt, self.limiter.slot():
                    tries += 1
                    started = time.monotonic()
                    try:
                        response = self._engine.complete(request)
                    except (lm15.RateLimitError, lm15.TimeoutError):  # too many calls at once, either way
                        self.limiter.record_rate_limit()
                        raise
                    finally:
                        seconds += time.monotonic() - started
                    self.limiter.record_success()
                    # a model that ends at once has written a token, the end
                    may_be_blank = response.finish_reason == "stop" and not response.usage.output_tokens
                    if tries == 1 and self.retries.max_retries and may_be_blank:
                        parts = response.message.parts
                        if all(isinstance(p, lm15.TextPart) and not p.text.strip() for p in parts):
                            # as when a router wakes a model: it may pass, and a second one is taken
                            raise lm15.ServerError("the reply is empty")
        except Exception as error:
            self._note_retries(error, tries)
            redact_error(error)
            message = error.message if isinstance(error, lm15.LM15Error) else str(error)
            usage = Usage(calls=1, seconds=seconds, retries=max(0, tries - 1), failed_calls=1)
            record_call(CallRecord(request.model, usage, error=f"{type(error).__name__}: {message}"))
            raise
        assert response is not None
        usage = Usage(calls=1, seconds=seconds, retries=tries - 1)
        usage += self._token_usage(response, request.model)
        repeats = is_repetitive(response)
        record_call(CallRecord(request.model, usage, response.finish_reason, is_repetitive=repeats))
        return response

    def _note_retries(self, error: Exception, tries: int) -> None:
        """Replace the client's advice to retry by what was done about the error."""
        if not isinstance(error, lm15.LM15Error):
            return
        error.message = error.message.partition("\n\n")[0]
        asked_s, longest_s = _retry_after_s(error), self.retries.max_retry_after_s
        if asked_s is not None and asked_s > longest_s:
            error.message += (
                f" (asked to wait {asked_s:g} s, more than the {longest_s:g} s a call waits: "
                "run it again later, or with a lower concurrency)"
            )
        elif tries > 1:
            error.message += f" (tried {tries} times)"
        error.args = (error.message,)  # str() of some of these errors reads one, of some the other

    def _token_usage(self, response: lm15.Response, model: str) -> Usage:
        """Price the tokens that the server reports."""
        counted, price = response.usage, list_price(model, api_base=self.api_base)
        if counted.input_tokens is None or counted.output_tokens is None:
            return Usage(cost_usd=None, unpriced_calls=1)
        tokens = (counted.input_tokens, counted.cache_read_tokens or 0, counted.output_tokens)
        share = BATCH_PRICE_SHARE if (response.provider_data or {}).get(IS_BATCHED) else 1.0
        return Usage(
            input_tokens=tokens[0],
            cached_tokens=tokens[1],
            output_tokens=tokens[2],
            cost_usd=None if price is None else share * price.cost_usd(*tokens),
            unpriced_calls=int(price is None),
            saved_usd=0.0 if price is None else share * price.saved_usd(tokens[1]),
        )

    def __copy__(self) -> "RateLimitedEngine":
        return self

    def __deepcopy__(self, memo: object) -> "RateLimitedEngine":
        return self


def is_repetitive(response: lm15.Response) -> bool:
    """Tell if a reply repeats itself: the engine of this process stopped it, or it ran on to its limit."""
    if (response.provider_data or {}).get("is_repetitive"):
        return True
    if response.finish_reason != "length":
        return False
    parts = response.message.parts  # the text counts, or thoughts or tool calls without one
    texts = [p.text for p in parts if isinstance(p, (lm15.TextPart, lm15.ThinkingPart)) and p.text]
    texts += [json.dumps(part.input) for part in parts if isinstance(part, lm15.ToolCallPart)]
    return bool(texts and find_repetition(texts[-1]))


@contextmanager
def retrying_until(ending: threading.Event) -> Generator[None]:
    """Within the block, let calls be tried again only until an event is set: a stage sets it when it ends."""

    def sleep(seconds: float) -> None:
        if ending.wait(seconds):
            raise RunEndingError("the run is ending, so a failed call is not repeated")

    token = _sleep_in_run.set(sleep)
    try:
        yield
    finally:
        _sleep_in_run.reset(token)


@contextmanager
def ending_hopeless_runs(where: str) -> Generator[None]:
    """Turn a failure that every later call would share into an error that ends the run.

    Args:
        where: the name of the call in the message, for example ``judge``.

    Raises:
        QuotaExhaustedError: the provider refused the call for lack of credit.
        BatchError: the batch of the call failed, or was not finished.
        RunEndingError: the call failed while the run was ending.
    """
    try:
        yield
    except LMBillingError as error:
        raise QuotaExhaustedError(f"{where}: {one_line(error)}") from error
    except LMError as error:
        if isinstance(error.__cause__, (BatchError, RunEndingError)):
            raise error.__cause__ from None
        raise


def _retry_after_s(error: BaseException | None) -> float | None:
    return getattr(error, "retry_after", None)
