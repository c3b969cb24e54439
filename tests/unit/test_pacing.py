"""The limiter, the retries and the meter around an engine."""

import contextvars
import copy
import threading
import traceback
from collections.abc import Sequence

import dspy
import pytest
from dspy import lm15
from dspy.lm15 import Message, Request, Response, TextPart, Usage

from memory_program.core.errors import ConfigError
from memory_program.models.rate_limit import AdaptiveLimiter, RateLimitedEngine, RetryPolicy
from memory_program.models.usage import track_usage

REQUEST = Request(model="openai/test", messages=(Message.user("hello"),))


def reply(
    text: str = "ready", finish_reason: str = "stop", model: str = "openai/test", **usage: int
) -> Response:
    message = Message.assistant([TextPart(text)])
    return Response(id=None, model=model, message=message, finish_reason=finish_reason, usage=Usage(**usage))


class PlayedEngine:
    """Answers with the given replies and errors in order, and fails the test when they run out."""

    def __init__(self, *outcomes: Response | Exception) -> None:
        self.left = list(outcomes)

    def complete(self, request: Request) -> Response:
        outcome = self.left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def paced(
    *outcomes: Response | Exception, retries: RetryPolicy | None = None
) -> tuple[RateLimitedEngine, list[float]]:
    """An engine that plays the outcomes, and the list of the waits that it was asked for."""
    waits: list[float] = []
    policy = retries or RetryPolicy(max_retries=3)
    return RateLimitedEngine(PlayedEngine(*outcomes), AdaptiveLimiter(4), policy, sleep=waits.append), waits


# -- retries -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        lm15.RateLimitError("slow down"),
        lm15.ServerError("boom"),
        lm15.TimeoutError("too slow"),
        lm15.TransportError("connection reset"),
    ],
)
def test_a_transient_error_is_tried_again(error: Exception) -> None:
    engine, waits = paced(error, reply("ready"))
    assert engine.complete(REQUEST).message.text == "ready"
    assert len(waits) == 1


@pytest.mark.parametrize(
    "error",
    [
        lm15.AuthError("no such key"),
        lm15.BillingError("quota exceeded"),
        lm15.ContextLengthError("too long"),
        lm15.UnsupportedModelError("no such model"),
        ValueError("a bug"),
    ],
)
def test_an_error_that_a_retry_cannot_cure_is_raised_at_once(error: Exception) -> None:
    engine, waits = paced(error)
    with pytest.raises(type(error)):
        engine.complete(REQUEST)
    assert waits == []


def test_the_last_error_is_raised_with_the_number_of_tries() -> None:
    engine, waits = paced(
        *[lm15.ServerError(f"boom {n}") for n in range(3)], retries=RetryPolicy(max_retries=2)
    )
    with pytest.raises(lm15.ServerError, match=r"boom 2 \(tried 3 times\)"):
        engine.complete(REQUEST)
    assert len(waits) == 2


def test_the_backoff_comes_on_top_of_retry_after() -> None:
    policy = RetryPolicy(max_retries=6, first_wait_s=1.0, max_wait_s=8.0)
    waits_by_try: list[list[float]] = []
    for _ in range(50):
        refused = [lm15.RateLimitError("slow", retry_after=asked_s) for asked_s in (7.25, 0, 0, 0, 0, 2.5)]
        engine, waits = paced(*refused, reply(), retries=policy)
        engine.complete(REQUEST)
        waits_by_try.append(waits)
    for position, (least, most) in enumerate([(7.25, 8.25), (0, 2), (0, 4), (0, 8), (0, 8), (2.5, 10.5)]):
        column = [waits[position] for waits in waits_by_try]
        assert least <= min(column)
        assert (least + most) / 2 < max(column) <= most  # missed by 50 draws with probability 1e-15


def test_a_retry_after_over_the_longest_wait_ends_the_call() -> None:
    engine, waits = paced(lm15.RateLimitError("slow down", retry_after=3600))
    with pytest.raises(lm15.RateLimitError, match=r"asked to wait 3600 s, more than the 120 s"):
        engine.complete(REQUEST)
    assert waits == []


def test_the_backoff_is_jittered_below_a_doubling_bound() -> None:
    policy = RetryPolicy(max_retries=6, first_wait_s=1.0, max_wait_s=8.0)
    waits_by_try: list[list[float]] = []
    for _ in range(50):
        engine, waits = paced(*[lm15.ServerError("boom")] * 6, reply(), retries=policy)
        engine.complete(REQUEST)
        waits_by_try.append(waits)
    bounds = [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    for position, bound in enumerate(bounds):
        column = [waits[position] for waits in waits_by_try]
        assert min(column) >= 0
        assert max(column) <= bound
        assert max(column) > bound / 2  # 50 uniform draws miss the upper half with probability 1e-15
        assert len(set(column)) > 1


def test_a_negative_retry_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_retries=-1 must be at least 0"):
        RetryPolicy(max_retries=-1)


# -- the meter -----------------------------------------------------------------------------------


def test_a_call_is_metered_with_its_tokens_price_and_finish_reason() -> None:
    answer = reply("cut", "length", input_tokens=1000, cache_read_tokens=600, output_tokens=200)
    engine, _ = paced(answer)
    with track_usage() as meter:
        engine.complete(Request(model="openai/gpt-4.1-mini", messages=REQUEST.messages))
    (call,) = meter.calls
    assert call.is_truncated
    assert (call.model, call.error) == ("openai/gpt-4.1-mini", None)
    assert (call.usage.calls, call.usage.retries, call.usage.failed_calls) == (1, 0, 0)
    assert (call.usage.input_tokens, call.usage.cached_tokens, call.usage.output_tokens) == (1000, 600, 200)
    # list price per million tokens: 0.40 input, 0.10 cached input, 1.60 output
    assert call.usage.cost_usd == pytest.approx((400 * 0.40 + 600 * 0.10 + 200 * 1.60) / 1e6)
    assert call.usage.saved_usd == pytest.approx(600 * (0.40 - 0.10) / 1e6)


def test_a_call_that_succeeds_after_retries_is_no_failure() -> None:
    engine, _ = paced(lm15.ServerError("a"), lm15.ServerError("b"), reply(input_tokens=5, output_tokens=1))
    with track_usage() as meter:
        engine.complete(REQUEST)
    assert (meter.usage.calls, meter.usage.retries, meter.usage.failed_calls) == (1, 2, 0)
    assert meter.usage.input_tokens == 5


def test_a_failed_call_is_metered_with_its_error() -> None:
    engine, _ = paced(*[lm15.ServerError("boom")] * 4)
    with track_usage() as meter, pytest.raises(lm15.ServerError):
        engine.complete(REQUEST)
    (call,) = meter.calls
    assert (call.usage.calls, call.usage.retries, call.usage.failed_calls) == (1, 3, 1)
    assert (call.finish_reason, call.error) == (None, "ServerError: boom (tried 4 times)")


def test_a_self_hosted_server_has_no_list_price() -> None:
    answer = reply(input_tokens=10, output_tokens=1)
    engine = RateLimitedEngine(
        PlayedEngine(answer), AdaptiveLimiter(1), RetryPolicy(), api_base="http://localhost/v1"
    )
    with track_usage() as meter:
        engine.complete(Request(model="openai/gpt-4.1-mini", messages=REQUEST.messages))
    assert (meter.usage.cost_usd, meter.usage.unpriced_calls) == (None, 1)


def test_a_reply_without_usage_is_unpriced_rather_than_free() -> None:
    engine, _ = paced(reply())
    with track_usage() as meter:
        engine.complete(Request(model="openai/gpt-4.1-mini", messages=REQUEST.messages))
    assert (meter.usage.cost_usd, meter.usage.unpriced_calls, meter.usage.input_tokens) == (None, 1, 0)


def test_only_threads_with_a_copied_context_are_counted() -> None:
    engine, _ = paced(reply(), reply())
    with track_usage() as meter:
        inside = contextvars.copy_context()
        counted = threading.Thread(target=inside.run, args=(engine.complete, REQUEST))
        foreign = threading.Thread(target=engine.complete, args=(REQUEST,))
        for thread in (counted, foreign):
            thread.start()
            thread.join()
    assert meter.usage.calls == 1


# -- keys ----------------------------------------------------------------------------------------


def test_a_key_in_an_error_is_removed_from_it_and_its_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAMPLE_API_KEY", "topsecret-0123")
    error = lm15.AuthError("Incorrect API key provided: topsecret-0123")
    error.__cause__ = ValueError("sent Authorization: topsecret-0123")
    engine, _ = paced(error)
    with track_usage() as meter, pytest.raises(lm15.AuthError) as caught:
        engine.complete(REQUEST)
    assert "topsecret" not in "".join(traceback.format_exception(caught.value))
    assert "Incorrect API key provided: [key removed]" in str(caught.value)
    assert "topsecret" not in str(meter.calls)


# -- under DSPy ----------------------------------------------------------------------------------


def test_dspy_gets_its_own_errors_and_does_not_retry() -> None:
    policy = RetryPolicy(max_retries=3, first_wait_s=0.0)
    engine, waits = paced(*[lm15.RateLimitError("slow", retry_after=1.0)] * 4, retries=policy)
    lm = dspy.LM("openai/test", engine=engine, num_retries=0, cache=False)
    with pytest.raises(dspy.LMRateLimitError, match="tried 4 times"):
        lm("hello")
    assert waits == [1.0, 1.0, 1.0]


def test_a_deep_copied_program_shares_the_engine() -> None:
    engine, _ = paced()
    program = dspy.Predict("question -> answer")
    program.lm = dspy.LM("openai/test", engine=engine, cache=False)
    assert program.deepcopy().lm.engine is engine
    assert copy.copy(engine) is engine


# -- the limiter ---------------------------------------------------------------------------------


def test_no_more_calls_run_at_once_than_the_limit() -> None:
    limiter = AdaptiveLimiter(3)
    lock, running, most = threading.Lock(), [0], [0]

    def call() -> None:
        with limiter.slot():
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            threading.Event().wait(0.01)
            with lock:
                running[0] -= 1

    _run_together([call] * 12)
    assert most[0] == 3


def test_waiting_calls_start_in_order_of_arrival() -> None:
    limiter = AdaptiveLimiter(1)
    order: list[int] = []
    threads: list[threading.Thread] = []

    def call(number: int) -> None:
        with limiter.slot():
            order.append(number)

    with limiter.slot():
        for number in range(8):
            threads.append(threading.Thread(target=call, args=(number,)))
            threads[-1].start()
            while len(limiter._waiting) <= number:  # it stands in the queue before the next one comes
                threading.Event().wait(0.001)
    for thread in threads:
        thread.join(timeout=5)
    assert order == list(range(8))


def test_a_rate_limit_halves_the_limit_once_per_cooldown() -> None:
    clock = Clock()
    limiter = AdaptiveLimiter(16, cooldown_s=5.0, clock=clock)
    allowed = []
    for elapsed_s in (0.0, 0.1, 4.8, 0.2, 5.0, 5.0, 5.0, 5.0):
        clock.now += elapsed_s
        limiter.record_rate_limit()
        allowed.append(limiter._allowed)
    assert allowed == [8, 8, 8, 4, 2, 1, 1, 1]


def test_a_run_of_successes_raises_the_limit_by_one() -> None:
    limiter = AdaptiveLimiter(4)
    limiter.record_rate_limit()
    allowed = []
    for _ in range(10):
        limiter.record_success()
        allowed.append(limiter._allowed)
    assert allowed == [2, 3, 3, 3, 4, 4, 4, 4, 4, 4]


def test_a_rate_limit_breaks_the_run_of_successes() -> None:
    limiter = AdaptiveLimiter(4)
    limiter.record_rate_limit()
    for _ in range(3):
        limiter.record_success()
        limiter.record_rate_limit()
    assert limiter._allowed == 2


def test_successes_let_more_calls_run_after_a_rate_limit() -> None:
    limiter = AdaptiveLimiter(2)
    limiter.record_rate_limit()
    second_entered = threading.Event()

    def second() -> None:
        with limiter.slot():
            second_entered.set()

    with limiter.slot():
        thread = threading.Thread(target=second)
        thread.start()
        assert not second_entered.wait(0.05)
        limiter.record_success()
        assert second_entered.wait(5)
    thread.join()


def test_a_failed_call_frees_its_slot() -> None:
    limiter = AdaptiveLimiter(1)
    with pytest.raises(ValueError, match="boom"), limiter.slot():
        raise ValueError("boom")
    with limiter.slot():
        pass


def test_only_a_rate_limit_lowers_the_limit_and_waits_hold_no_slot() -> None:
    limiter = AdaptiveLimiter(8)
    in_flight_while_waiting: list[int] = []
    engine = RateLimitedEngine(
        PlayedEngine(lm15.ServerError("boom"), lm15.RateLimitError("slow"), reply()),
        limiter,
        RetryPolicy(),
        sleep=lambda seconds: in_flight_while_waiting.append(limiter._in_flight),
    )
    engine.complete(REQUEST)
    assert limiter._allowed == 4
    assert in_flight_while_waiting == [0, 0]


def test_a_limit_of_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="concurrency=0 must be at least 1"):
        AdaptiveLimiter(0)


def _run_together(calls: Sequence[object]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
        assert not thread.is_alive()


def test_an_interrupted_wait_takes_no_slot(monkeypatch):
    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    limiter = AdaptiveLimiter(1)
    with limiter.slot():
        monkeypatch.setattr("memory_program.models.rate_limit.threading.Event", Interrupted)
        with pytest.raises(KeyboardInterrupt), limiter.slot():
            pass
        monkeypatch.undo()
    assert (limiter._in_flight, list(limiter._waiting)) == (0, [])
