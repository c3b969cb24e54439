"""Every reply is paid for once, limits hold, and what stops a run is no exception that optimisers swallow."""

import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import dspy
import pytest
from dspy.lm15 import Message, Request, Response, ServerError, TextPart
from dspy.lm15 import Usage as Tokens

from memory_program.models.rate_limit import AdaptiveLimiter, RateLimitedEngine, RetryPolicy
from memory_program.models.usage import track_usage
from memory_program.optimization.call_journal import ReplyCache, RunStopped, StopReason
from memory_program.optimization.failure_count import SuccessCounter
from memory_program.optimization.reply_cache import CachedLM, with_reply_cache

MODEL = "openai/gpt-4.1-mini"  # listed at $0.40 and $1.60 a million tokens
CALL_USD = (1000 * 0.40 + 100 * 1.60) / 1e6


class Counting:
    """Replies with the number of the call; a question with "fail" in it fails."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self._lock = threading.Lock()

    def complete(self, request: Request) -> Response:
        self.gate.wait()
        question = request.messages[-1].text or ""
        with self._lock:
            self.asked.append(question)
            number = len(self.asked)
        if "fail" in question:
            raise ServerError("out of order", provider="test")
        message = Message.assistant([TextPart(f"reply {number}")])
        tokens = Tokens(input_tokens=1000, output_tokens=100)
        return Response(id=None, model=request.model, message=message, finish_reason="stop", usage=tokens)


@pytest.fixture
def counting() -> Counting:
    return Counting()


def model(counting: Counting, calls: ReplyCache, temperature: float = 0.0) -> CachedLM:
    engine = RateLimitedEngine(counting, AdaptiveLimiter(8), RetryPolicy(max_retries=0))
    lm = dspy.LM(MODEL, engine=engine, temperature=temperature, max_tokens=50, num_retries=0, cache=False)
    return with_reply_cache(lm, calls)


def ask_on(lm: CachedLM, what: str = "question") -> None:
    for number in range(100):
        lm(f"{what} {number}?")


def test_a_reply_is_asked_for_once_in_all_runs_and_counts_in_each(counting: Counting, tmp_path: Path) -> None:
    first = ReplyCache(tmp_path / "calls.jsonl")
    lm = model(counting, first)
    assert [lm("A?"), lm("B?"), lm("A?")] == [["reply 1"], ["reply 2"], ["reply 1"]]
    first.close()
    second = ReplyCache(tmp_path / "calls.jsonl")
    assert model(counting, second)("A?") == ["reply 1"]
    assert counting.asked == ["A?", "B?"]
    assert (first.used, second.used) == (2, 1)
    assert second.paid.calls == 0
    assert second.usage.cost_usd == pytest.approx(CALL_USD)


def test_a_reply_that_is_remembered_costs_nothing_on_the_meter(counting: Counting, tmp_path: Path) -> None:
    lm = model(counting, ReplyCache(tmp_path / "calls.jsonl"))
    with track_usage() as first:
        lm("A?")
    with track_usage() as second:
        lm("A?")
    assert first.usage.cost_usd == pytest.approx(CALL_USD)
    assert (second.usage.calls, second.usage.cost_usd) == (0, 0.0)
    assert [call.finish_reason for call in second.calls] == [
        "stop"
    ]  # whether it was cut is known all the same


def test_samples_of_one_request_are_told_apart_by_rollout_id(counting: Counting, tmp_path: Path) -> None:
    lm = model(counting, ReplyCache(tmp_path / "calls.jsonl"))
    samples = [lm.copy(rollout_id=number, temperature=1.0) for number in (0, 1, 0)]
    assert [sample("A?") for sample in samples] == [["reply 1"], ["reply 2"], ["reply 1"]]
    assert lm.copy(rollout_id=7)("A?") == lm("A?") == ["reply 3"]  # at temperature 0 there are no samples


def test_another_model_temperature_or_limit_is_another_call(counting: Counting, tmp_path: Path) -> None:
    lm = model(counting, ReplyCache(tmp_path / "calls.jsonl"))
    variants = [lm, lm.copy(model="openai/other"), lm.copy(temperature=0.5), lm.copy(max_tokens=7)]
    assert len({variant("A?")[0] for variant in variants}) == 4


def test_what_fails_is_counted_and_asked_again(counting: Counting, tmp_path: Path) -> None:
    calls = ReplyCache(tmp_path / "calls.jsonl")
    lm = model(counting, calls)
    for _ in range(2):
        with pytest.raises(dspy.LMError, match="out of order"):
            lm("fail?")
    assert (len(counting.asked), calls.used, calls.paid.calls) == (2, 2, 0)
    assert lm.tally == SuccessCounter(failed=2, first_failure="ServerError: out of order (test)")
    lm.copy(rollout_id=1, temperature=1.0)("A?")
    assert lm.tally.succeeded == 1


def test_what_failed_in_an_earlier_try_counts_towards_the_limit(counting: Counting, tmp_path: Path) -> None:
    for used in (2, 3, 3):  # the limit is reached in the second try
        with closing(ReplyCache(tmp_path / "calls.jsonl", max_calls=3)) as calls:
            lm = model(counting, calls)
            for _ in range(2):
                with pytest.raises((dspy.LMError, RunStopped)):
                    lm("fail?")
            assert calls.used == used
    assert len(counting.asked) == 3


def test_threads_that_ask_the_same_at_once_share_one_call(counting: Counting, tmp_path: Path) -> None:
    calls = ReplyCache(tmp_path / "calls.jsonl")
    lm = model(counting, calls)
    counting.gate.clear()
    with ThreadPoolExecutor(6) as pool:
        replies = [pool.submit(lm, "A?") for _ in range(6)]
        counting.gate.set()
        assert {reply.result()[0] for reply in replies} == {"reply 1"}
    assert (len(counting.asked), calls.used) == (1, 1)
    assert calls.usage.cost_usd == pytest.approx(CALL_USD)


@pytest.mark.parametrize("threads", [1, 6])
def test_the_limit_of_calls_is_never_passed(counting: Counting, tmp_path: Path, threads: int) -> None:
    calls = ReplyCache(tmp_path / "calls.jsonl", max_calls=5)
    lm = model(counting, calls)
    with ThreadPoolExecutor(threads) as pool:
        outcomes = [pool.submit(lm, f"{number}?").exception() for number in range(12)]
    stops = [outcome for outcome in outcomes if outcome is not None]
    assert (len(counting.asked), len(stops)) == (5, 7)
    assert all(isinstance(stop, RunStopped) and stop.reason is StopReason.LIMIT for stop in stops)
    assert str(stops[0]) == "max_calls=5 is reached"
    assert not isinstance(stops[0], Exception)  # which optimisers would swallow


def test_calls_of_an_earlier_try_count_towards_the_limit(counting: Counting, tmp_path: Path) -> None:
    with closing(ReplyCache(tmp_path / "calls.jsonl")) as earlier:
        model(counting, earlier)("0?")
    lm = model(counting, ReplyCache(tmp_path / "calls.jsonl", max_calls=2))
    assert (lm("0?"), lm("1?")) == (["reply 1"], ["reply 2"])
    with pytest.raises(RunStopped):
        lm("2?")
    assert counting.asked == ["0?", "1?"]


def test_the_limit_of_dollars_stops_as_soon_as_it_is_reached(counting: Counting, tmp_path: Path) -> None:
    lm = model(counting, ReplyCache(tmp_path / "calls.jsonl", max_cost_usd=2.5 * CALL_USD))
    for number in range(3):
        lm(f"{number}?")
    with pytest.raises(RunStopped, match=r"max_cost=.* is reached"):
        lm("3?")
    assert len(counting.asked) == 3


def test_a_part_leaves_what_is_reserved_to_what_comes_after_it(counting: Counting, tmp_path: Path) -> None:
    calls = ReplyCache(tmp_path / "calls.jsonl", max_calls=10)
    lm = model(counting, calls)
    with pytest.raises(RunStopped) as search, calls.reserve_calls(3):
        ask_on(lm, "search")
    assert search.value.message == "max_calls=10 is reached but for what is kept for the comparison"
    assert calls.used == 7
    for number in range(3):
        lm(f"finals {number}?")
    with pytest.raises(RunStopped) as finals:
        lm("one more?")
    assert finals.value.message == "max_calls=10 is reached"


def test_dollars_that_are_kept_are_told_from_dollars_that_are_spent(
    counting: Counting, tmp_path: Path
) -> None:
    max_cost_usd = 9.5 * CALL_USD
    calls = ReplyCache(tmp_path / "calls.jsonl", max_cost_usd=max_cost_usd)
    lm = model(counting, calls)
    lm("baseline?")
    with pytest.raises(RunStopped) as search, calls.reserve_calls(3):
        ask_on(lm, "search")
    told = f"max_cost={max_cost_usd!r} is reached"
    assert search.value.message == f"{told} but for what is kept for the comparison"
    with pytest.raises(RunStopped) as finals:
        ask_on(lm, "finals")
    assert finals.value.message == told


def test_where_nothing_can_be_kept_the_limit_itself_is_reached(counting: Counting, tmp_path: Path) -> None:
    calls = ReplyCache(tmp_path / "calls.jsonl", max_calls=1)
    with pytest.raises(RunStopped, match=r"^max_calls=1 is reached$"), calls.reserve_calls(3):
        ask_on(model(counting, calls))


def test_no_part_is_left_with_less_than_half(counting: Counting, tmp_path: Path) -> None:
    calls = ReplyCache(tmp_path / "calls.jsonl", max_calls=10)
    with pytest.raises(RunStopped), calls.reserve_calls(1000):
        ask_on(model(counting, calls))
    assert calls.used == 5


def test_threads_left_behind_by_a_part_stay_stopped(counting: Counting, tmp_path: Path) -> None:
    calls = ReplyCache(tmp_path / "calls.jsonl", max_calls=4)
    lm = model(counting, calls)
    part_is_over = threading.Event()

    def ask_late() -> list[str]:
        part_is_over.wait()
        return lm("late?")

    with ThreadPoolExecutor(1) as pool:
        with calls.reserve_calls(2):
            late = pool.submit(contextvars.copy_context().run, ask_late)
            with pytest.raises(RunStopped):
                ask_on(lm)
        part_is_over.set()
        assert isinstance(late.exception(), RunStopped)
    assert lm("after?") == ["reply 3"]


def test_a_stopped_run_gives_not_even_what_it_has(counting: Counting, tmp_path: Path) -> None:
    calls = ReplyCache(tmp_path / "calls.jsonl")
    lm = model(counting, calls)
    lm("A?")
    calls.stop(StopReason.PROGRAM_ERROR, "KeyError: 'x'")
    calls.stop(StopReason.LIMIT, "later")
    with pytest.raises(RunStopped, match="KeyError: 'x'") as caught:
        lm("A?")
    assert caught.value.reason is StopReason.PROGRAM_ERROR


def test_closing_waits_for_the_calls_in_flight(counting: Counting, tmp_path: Path) -> None:
    calls = ReplyCache(tmp_path / "calls.jsonl")
    lm = model(counting, calls)
    counting.gate.clear()
    with ThreadPoolExecutor(2) as pool:
        reply = pool.submit(lm, "A?")
        while not calls._pending:
            pass
        closing = pool.submit(calls.close)
        assert not closing.done()
        counting.gate.set()
        closing.result(timeout=10)
        assert reply.result() == ["reply 1"]
    assert len(ReplyCache(tmp_path / "calls.jsonl").journal.records) == 1


def test_a_copied_program_shares_the_replies(counting: Counting, tmp_path: Path) -> None:
    program = dspy.Predict("question -> answer")
    program.set_lm(model(counting, ReplyCache(tmp_path / "calls.jsonl")))
    copy = program.deepcopy()
    assert copy.get_lm().engine is program.get_lm().engine


def test_the_model_itself_is_asked_each_time(counting: Counting, tmp_path: Path) -> None:
    calls = ReplyCache(tmp_path / "calls.jsonl")
    lm = model(counting, calls).uncached
    assert [lm("A?"), lm("A?")] == [["reply 1"], ["reply 2"]]
    assert (lm.model, lm.kwargs["temperature"], lm.kwargs["max_tokens"]) == (MODEL, 0.0, 50)
    assert calls.used == 0


def test_no_key_is_kept(counting: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    calls = ReplyCache(tmp_path / "calls.jsonl")
    model(counting, calls)("A?")
    calls.close()
    assert "sk-secret" not in (tmp_path / "calls.jsonl").read_text()
