"""Every reply is paid for once, limits hold, and optimisers cannot swallow the end of a run."""

import contextvars
import errno
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import dspy
import pytest
from dspy.lm15 import (
    Config,
    FinishReason,
    Message,
    Request,
    Response,
    ServerError,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from dspy.lm15 import Usage as Tokens

from memory_program.models.rate_limit import AdaptiveLimiter, RateLimitedEngine, RetryPolicy
from memory_program.models.usage import track_usage
from memory_program.optimization.call_journal import CallReply, ReplyCache, RunStopped, StopReason
from memory_program.optimization.failure_count import SuccessCounter
from memory_program.optimization.reply_cache import CachedLM, with_reply_cache

MODEL = "openai/gpt-4.1-mini"  # listed at $0.40 and $1.60 a million tokens
CALL_USD = (1000 * 0.40 + 100 * 1.60) / 1e6
RESERVED = " (the rest is reserved for the final comparison)"
LINE_OF_0_1_0 = (
    '{"key":"61f01beb03944180f2fefc60bb07e4de6cfea249506cbfd0b2af58bdab5a3d20","reply":{"id":"r-1",'
    '"model":"openai/gpt-4.1-mini","message":{"role":"assistant","parts":[{"type":"thinking","text":"Hm."},'
    '{"type":"text","text":"forty-two"},{"type":"tool_call","id":"call-1","name":"search_memory",'
    '"input":{"query":""}}]},"finish_reason":"tool_call","usage":{"input_tokens":1000,"output_tokens":100,'
    '"total_tokens":1100,"cache_read_tokens":0},"logprobs":[{"token":"forty","logprob":-0.5,"token_id":7,'
    '"top":[{"token":"fifty","logprob":-1.5}]}]},"usage":{"calls":1,"input_tokens":1000,"cached_tokens":0,'
    '"output_tokens":100,"cost_usd":0.00056,"seconds":0.00028754899994964944,"retries":0,"failed_calls":0,'
    '"unpriced_calls":0,"saved_usd":0.0}}\n'
)
"""A line of a ``calls.jsonl`` that version 0.1.0 wrote."""


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


Open = Callable[..., ReplyCache]


@pytest.fixture
def journal(tmp_path: Path) -> Open:
    """Opens the same journal each time, with the limits that are given."""
    return lambda **limits: ReplyCache(tmp_path / "calls.jsonl", **limits)


@pytest.fixture
def calls(journal: Open) -> ReplyCache:
    return journal()


@pytest.fixture
def lm(counting: Counting, calls: ReplyCache) -> CachedLM:
    return model(counting, calls)


def model(counting: Counting, calls: ReplyCache, template: dict[str, bool] | None = None) -> CachedLM:
    limits = AdaptiveLimiter(8), RetryPolicy(max_retries=0)
    engine = RateLimitedEngine(counting, *limits, chat_template_kwargs=template)
    lm = dspy.LM(MODEL, engine=engine, temperature=0.0, max_tokens=50, num_retries=0, cache=False)
    return with_reply_cache(lm, calls)


def ask_on(lm: CachedLM, what: str = "question") -> str:
    """Ask until the run is stopped, and return the message."""
    for number in range(100):
        try:
            lm(f"{what} {number}?")
        except RunStopped as stop:
            return stop.message
    raise AssertionError("the run was not stopped")


def test_a_reply_under_other_arguments_of_the_chat_template_is_asked_for(
    counting: Counting, journal: Open
) -> None:
    for template in (None, {"enable_thinking": False}, {"enable_thinking": False}, {}):
        with closing(journal()) as calls:
            model(counting, calls, template)("A?")
    assert counting.asked == ["A?", "A?"]


def test_a_reply_is_asked_for_once_in_all_runs_and_counts_in_each(counting: Counting, journal: Open) -> None:
    with closing(journal()) as first:
        lm = model(counting, first)
        assert [lm("A?"), lm("B?"), lm("A?")] == [["reply 1"], ["reply 2"], ["reply 1"]]
    second = journal()
    assert model(counting, second)("A?") == ["reply 1"]
    assert counting.asked == ["A?", "B?"]
    assert (first.used, second.used) == (2, 1)
    assert second.usage.cost_usd == pytest.approx(CALL_USD)


def test_a_reply_that_an_earlier_version_stored_is_found(
    counting: Counting, journal: Open, tmp_path: Path
) -> None:
    (tmp_path / "calls.jsonl").write_text(LINE_OF_0_1_0)
    calls, config = journal(), Config(max_tokens=50, temperature=0.0)
    request = Request(MODEL, (Message.user("A?"),), system="Answer.", config=config)
    reply = calls.complete(counting, request, 0)
    assert counting.asked == []
    assert calls.usage.cost_usd == pytest.approx(CALL_USD)
    call = ToolCallPart("call-1", "search_memory", {"query": ""})
    assert reply.message.parts == (ThinkingPart("Hm."), TextPart("forty-two"), call)
    assert (reply.id, reply.finish_reason, reply.usage.total_tokens) == ("r-1", "tool_call", 1100)
    assert reply.logprobs is not None
    assert [(token.token_id, token.top[0].token) for token in reply.logprobs] == [(7, "fifty")]


def test_a_reply_is_stored_in_the_format_of_the_earlier_version(journal: Open, tmp_path: Path) -> None:
    (tmp_path / "calls.jsonl").write_text(LINE_OF_0_1_0)
    request = Request(MODEL, (Message.user("A?"),), system="Answer.", config=Config(50, 0.0))
    reply = journal().complete(Counting(), request, 0)

    class Replies(Counting):
        def complete(self, request: Request) -> Response:
            return reply

    (tmp_path / "calls.jsonl").unlink()
    with closing(journal()) as calls:
        calls.complete(Replies(), request, 0)
    stored, expected = (json.loads(t) for t in ((tmp_path / "calls.jsonl").read_text(), LINE_OF_0_1_0))
    assert (stored["key"], stored["reply"]) == (expected["key"], expected["reply"])


def test_a_stored_reply_costs_nothing_on_the_meter(lm: CachedLM) -> None:
    with track_usage() as first:
        lm("A?")
    with track_usage() as second:
        lm("A?")
    assert first.usage.cost_usd == pytest.approx(CALL_USD)
    assert (second.usage.calls, second.usage.cost_usd) == (0, 0.0)
    assert [call.finish_reason for call in second.calls] == ["stop"]  # so that a cut reply is seen again


def test_samples_of_one_request_differ_by_rollout_id(lm: CachedLM) -> None:
    samples = [lm.copy(rollout_id=number, temperature=1.0) for number in (0, 1, 0)]
    assert [sample("A?") for sample in samples] == [["reply 1"], ["reply 2"], ["reply 1"]]
    assert lm.copy(rollout_id=7)("A?") == lm("A?") == ["reply 3"]  # at temperature 0 there are no samples


def test_another_model_temperature_or_limit_is_another_call(lm: CachedLM) -> None:
    variants = [lm, lm.copy(model="openai/other"), lm.copy(temperature=0.5), lm.copy(max_tokens=7)]
    assert len({variant("A?")[0] for variant in variants}) == 4


def test_a_failed_call_is_counted_and_made_again(counting: Counting, calls: ReplyCache, lm: CachedLM) -> None:
    for _ in range(2):
        with pytest.raises(dspy.LMError, match="out of order"):
            lm("fail?")
    assert (len(counting.asked), calls.used, calls.usage.failed_calls) == (2, 2, 2)
    assert lm.tally == SuccessCounter(failed=2, first_failure="ServerError: out of order (test)")
    lm.copy(rollout_id=1, temperature=1.0)("A?")
    assert lm.tally.succeeded == 1


def test_a_failed_call_of_an_earlier_try_counts_towards_the_limit(counting: Counting, journal: Open) -> None:
    for used in (2, 3, 3):  # the limit is reached in the second try
        with closing(journal(max_calls=3)) as calls:
            lm = model(counting, calls)
            for _ in range(2):
                with pytest.raises((dspy.LMError, RunStopped)):
                    lm("fail?")
            assert calls.used == used
    assert len(counting.asked) == 3


def test_a_failed_call_is_not_made_again_once_the_calls_are_spent(counting: Counting, journal: Open) -> None:
    for is_again in (False, True):
        with closing(journal(max_calls=3)) as calls:
            lm = model(counting, calls)
            with pytest.raises(dspy.LMError, match="failed before" if is_again else "out of order"):
                lm("fail?")
            assert (lm("0?"), lm("1?")) == (["reply 2"], ["reply 3"])
            assert (calls.used, calls.usage.calls, calls.usage.failed_calls) == (3, 3, 1)
            with pytest.raises(RunStopped, match="max_calls=3 is reached"):
                lm("2?")
    assert len(counting.asked) == 3


def test_threads_that_ask_the_same_at_once_share_one_call(
    counting: Counting, calls: ReplyCache, lm: CachedLM
) -> None:
    counting.gate.clear()
    with ThreadPoolExecutor(6) as pool:
        replies = [pool.submit(lm, "A?") for _ in range(6)]
        counting.gate.set()
        assert {reply.result()[0] for reply in replies} == {"reply 1"}
    assert (len(counting.asked), calls.used) == (1, 1)
    assert calls.usage.cost_usd == pytest.approx(CALL_USD)


@pytest.mark.parametrize("threads", [1, 6])
def test_the_limit_of_calls_is_never_passed(counting: Counting, journal: Open, threads: int) -> None:
    lm = model(counting, journal(max_calls=5))
    with ThreadPoolExecutor(threads) as pool:
        outcomes = [pool.submit(lm, f"{number}?").exception() for number in range(12)]
    stops = [outcome for outcome in outcomes if outcome is not None]
    assert (len(counting.asked), len(stops)) == (5, 7)
    assert all(isinstance(stop, RunStopped) and stop.reason is StopReason.LIMIT for stop in stops)
    assert str(stops[0]) == "max_calls=5 is reached"
    assert not isinstance(stops[0], Exception)  # which optimisers would swallow


def test_calls_of_an_earlier_try_count_towards_the_limit(counting: Counting, journal: Open) -> None:
    with closing(journal()) as earlier:
        model(counting, earlier)("0?")
    lm = model(counting, journal(max_calls=2))
    assert (lm("0?"), lm("1?")) == (["reply 1"], ["reply 2"])
    with pytest.raises(RunStopped):
        lm("2?")
    assert counting.asked == ["0?", "1?"]


def test_the_limit_of_dollars_stops_as_soon_as_it_is_reached(counting: Counting, journal: Open) -> None:
    limit_usd = 2.5 * CALL_USD
    assert ask_on(model(counting, journal(max_cost_usd=limit_usd))) == f"max_cost={limit_usd!r} is reached"
    assert len(counting.asked) == 3


def test_a_part_leaves_the_reserved_calls_to_the_next_one(counting: Counting, journal: Open) -> None:
    calls = journal(max_calls=10)
    lm = model(counting, calls)
    with calls.reserve_calls(3):
        assert ask_on(lm, "search") == f"max_calls=10 is reached{RESERVED}"
    assert calls.used == 7
    assert ask_on(lm, "finals") == "max_calls=10 is reached"
    assert calls.used == 10


def test_reserved_dollars_are_distinguished_from_spent_ones(counting: Counting, journal: Open) -> None:
    calls = journal(max_cost_usd=9.5 * CALL_USD)
    lm = model(counting, calls)
    lm("baseline?")
    message = f"max_cost={9.5 * CALL_USD!r} is reached"
    with calls.reserve_calls(3):
        assert ask_on(lm, "search") == message + RESERVED
    assert ask_on(lm, "finals") == message


def test_where_nothing_can_be_reserved_the_limit_itself_is_reached(counting: Counting, journal: Open) -> None:
    calls = journal(max_calls=1)
    with calls.reserve_calls(3):
        assert ask_on(model(counting, calls)) == "max_calls=1 is reached"


def test_no_part_is_left_with_less_than_half(counting: Counting, journal: Open) -> None:
    calls = journal(max_calls=10)
    with calls.reserve_calls(1000):
        ask_on(model(counting, calls))
    assert calls.used == 5


def test_threads_left_behind_by_a_part_stay_stopped(counting: Counting, journal: Open) -> None:
    calls, part_is_over = journal(max_calls=4), threading.Event()
    lm = model(counting, calls)

    def ask_late() -> list[str]:
        part_is_over.wait()
        return lm("late?")

    with ThreadPoolExecutor(1) as pool:
        with calls.reserve_calls(2):
            late = pool.submit(contextvars.copy_context().run, ask_late)
            ask_on(lm)
        part_is_over.set()
        assert isinstance(late.exception(), RunStopped)
    assert lm("after?") == ["reply 3"]


def test_a_stopped_run_gives_not_even_stored_replies(calls: ReplyCache, lm: CachedLM) -> None:
    lm("A?")
    calls.stop(StopReason.PROGRAM_ERROR, "KeyError: 'x'")
    calls.stop(StopReason.LIMIT, "later")
    with pytest.raises(RunStopped, match="KeyError: 'x'") as caught:
        lm("A?")
    assert caught.value.reason is StopReason.PROGRAM_ERROR


def test_closing_waits_for_the_calls_in_flight(
    counting: Counting, calls: ReplyCache, lm: CachedLM, journal: Open
) -> None:
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
    assert len(journal().journal.records) == 1


@pytest.mark.parametrize("question", ["A?", "fail?"])
def test_a_reply_that_cannot_be_stored_ends_the_run_and_closing_does_not_wait_for_it(
    question: str, calls: ReplyCache, lm: CachedLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(record: CallReply) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(calls.journal, "add", add)
    for _ in range(2):
        with pytest.raises(RunStopped, match="No space left on device") as caught:
            lm(question)
    assert caught.value.reason is StopReason.DISK_ERROR
    closing = threading.Thread(target=calls.close, daemon=True)
    closing.start()
    closing.join(5)
    assert not closing.is_alive()


class Saying(Counting):
    """Replies with a text; ``finish_reason`` says why it ended there."""

    def __init__(self, text: str, finish_reason: FinishReason = "stop") -> None:
        super().__init__()
        self._text = text
        self._finish_reason: FinishReason = finish_reason

    def complete(self, request: Request) -> Response:
        message = Message.assistant([TextPart(self._text)])
        return replace(super().complete(request), message=message, finish_reason=self._finish_reason)


def test_half_an_emoji_in_a_proposal_is_replaced_so_that_it_can_be_an_instruction(calls: ReplyCache) -> None:
    for _ in range(2):  # a new reply, and the stored one
        (said,) = model(Saying("Be brief \ud83d."), calls)("A?")
        assert dspy.Signature("question -> answer").with_instructions(said).instructions == "Be brief \ufffd."


def test_a_stored_reply_that_repeats_itself_is_told_as_such_again(calls: ReplyCache) -> None:
    lm = model(Saying("1. " * 200, "length"), calls)
    with track_usage() as meter:
        lm("A?")
        lm("A?")
    assert [call.is_repetitive for call in meter.calls] == [True, True]


def test_a_copied_program_shares_the_replies(lm: CachedLM) -> None:
    program = dspy.Predict("question -> answer")
    program.set_lm(lm)
    assert program.deepcopy().get_lm().engine is program.get_lm().engine


def test_the_model_itself_is_asked_each_time(calls: ReplyCache, lm: CachedLM) -> None:
    uncached = lm.uncached
    assert [uncached("A?"), uncached("A?")] == [["reply 1"], ["reply 2"]]
    settings = (uncached.model, uncached.kwargs["temperature"], uncached.kwargs["max_tokens"])
    assert settings == (MODEL, 0.0, 50)
    assert calls.used == 0


def test_no_key_is_stored(
    counting: Counting, calls: ReplyCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    model(counting, calls)("A?")
    calls.close()
    assert "sk-secret" not in (tmp_path / "calls.jsonl").read_text()


def test_samples_of_a_model_share_what_is_known_of_its_response_formats(tmp_path: Path) -> None:
    engine = RateLimitedEngine(Counting(), AdaptiveLimiter(1), RetryPolicy(0, 0.01))
    lm = dspy.LM("test/endpoint", engine=engine, cache=False, num_retries=0, temperature=0.0)
    cached = with_reply_cache(lm, ReplyCache(tmp_path / "calls.jsonl"))
    assert cached.copy(rollout_id=1).engine is not cached.engine
    assert cached.copy(rollout_id=1).engine.endpoint is cached.engine.endpoint is engine
