"""Sequences join, end and fail in the running batch; the decoder of these tests only counts."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from memory_program.core.errors import ModelError
from memory_program.inference.batcher import (
    Batcher,
    Continuation,
    Ending,
    GenerationRequest,
    NumericalTolerance,
)
from memory_program.inference.decoder import PREFILL_CHUNK_TOKENS, PrefilledPrompt
from memory_program.inference.reply_grammar import ReplyGrammar
from memory_program.inference.sampling import SamplingParams
from tests.counting_decoder import (
    NOT_A_NUMBER,
    PATIENCE_S,
    STOP,
    TOO_LARGE,
    CountingDecoder,
    greedy,
    made,
    make_batcher,
    until,
)


@pytest.fixture
def decoder() -> CountingDecoder:
    return CountingDecoder()


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while made:
        made.pop().close()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as threads:
        yield threads


def countdown(number: int) -> list[int]:
    return [*range(number - 1, -1, -1), STOP]


def tokens(call: Future[Continuation]) -> list[int]:
    return call.result(timeout=PATIENCE_S).tokens


def start_and_hold(
    threads: ThreadPoolExecutor, batcher: Batcher, decoder: CountingDecoder, request: GenerationRequest
) -> Future[Continuation]:
    """Start a request whose first decode step waits until ``decode_gate`` is set."""
    decoder.decode_gate.clear()
    call = threads.submit(batcher.generate, request)
    until(lambda: len(decoder.batches) == 1)
    return call


def test_a_sequence_ends_with_its_stop_token_and_counts_cached_tokens(decoder: CountingDecoder) -> None:
    continuation = make_batcher(decoder).generate(greedy(5, 5, 3))
    assert (continuation.tokens, continuation.has_ended) == ([2, 1, 0, STOP], True)
    assert continuation.cached_tokens == 2
    assert len(continuation.logprobs) == 4


def test_a_sequence_is_cut_at_its_limit(decoder: CountingDecoder) -> None:
    continuation = make_batcher(decoder).generate(greedy(5, max_new_tokens=2))
    assert (continuation.tokens, continuation.has_ended) == ([4, 3], False)


class Looping(CountingDecoder):
    """Continues everything by 3, 2, 1, 3, 2, 1 and so on."""

    def decode(self, tokens: Sequence[int]) -> torch.Tensor:
        return super().decode([4 if token == 1 else token for token in tokens])


def test_a_sequence_that_repeats_itself_is_stopped() -> None:
    continuation = make_batcher(Looping()).generate(greedy(4, max_new_tokens=1000))
    assert (continuation.ending, continuation.has_ended) == (Ending.REPETITION, False)
    assert continuation.tokens == [3, 2, 1] * 42 + [3, 2]


class CountdownGrammar(ReplyGrammar):
    """Forbids the numbers from 6 on, and breaks at 2."""

    def __init__(self) -> None:
        pass

    def forbidden_tokens(self) -> torch.Tensor:
        return torch.arange(10) > 5

    def append(self, token: int) -> bool:
        if token == 2:
            raise ModelError("too complex")
        return token == 3


def test_a_grammar_ends_its_sequence_and_one_that_breaks_fails_alone(
    decoder: CountingDecoder, threads: ThreadPoolExecutor
) -> None:
    batcher = make_batcher(decoder)
    free = start_and_hold(threads, batcher, decoder, greedy(8))
    held, broken = (
        threads.submit(batcher.generate, replace(greedy(prompt), grammar=CountdownGrammar()))
        for prompt in (5, 3)
    )
    until(lambda: batcher._open_calls == 3)
    decoder.decode_gate.set()
    with pytest.raises(ModelError, match="too complex"):
        tokens(broken)
    assert (tokens(held), held.result().ending) == ([4, 3], Ending.GRAMMAR)
    assert tokens(free) == countdown(8)


def test_a_single_token_needs_no_decode_step(decoder: CountingDecoder) -> None:
    assert make_batcher(decoder).generate(greedy(5, max_new_tokens=1)).tokens == [4]
    assert decoder.batches == []


def test_sequences_join_a_running_batch_and_leave_before_the_longest_ends(
    decoder: CountingDecoder, threads: ThreadPoolExecutor
) -> None:
    batcher = make_batcher(decoder)
    long = start_and_hold(threads, batcher, decoder, greedy(6))
    short = [threads.submit(batcher.generate, greedy(1)) for _ in range(3)]
    until(lambda: len(batcher._waiting) == 3)
    decoder.decode_gate.set()
    assert [tokens(call) for call in (long, *short)] == [countdown(6)] + [[0, STOP]] * 3
    assert decoder.batches == [1, 4, 1, 1, 1, 1]


def test_more_sequences_than_slots_wait_for_their_turn(
    decoder: CountingDecoder, threads: ThreadPoolExecutor
) -> None:
    batcher = make_batcher(decoder, slots=2)
    continuations = list(threads.map(batcher.generate, [greedy(n % 6 + 1) for n in range(9)]))
    assert [len(continuation.tokens) for continuation in continuations] == [n % 6 + 2 for n in range(9)]
    assert max(decoder.batches) == 2


@pytest.mark.parametrize("tolerance", [0.0, 10.0])
def test_a_result_does_not_depend_on_the_batch_or_on_recomputed_logits(
    tolerance: float, decoder: CountingDecoder, threads: ThreadPoolExecutor
) -> None:
    batcher = make_batcher(decoder, tolerance=tolerance)
    continuations = list(threads.map(batcher.generate, [greedy(n % 6 + 1) for n in range(60)]))
    assert [each.tokens for each in continuations] == [countdown(n % 6 + 1) for n in range(60)]


def test_a_prompt_that_cannot_be_prefilled_fails_alone(
    decoder: CountingDecoder, threads: ThreadPoolExecutor
) -> None:
    batcher = make_batcher(decoder)
    good = start_and_hold(threads, batcher, decoder, greedy(3))
    bad = threads.submit(batcher.generate, greedy(TOO_LARGE))
    decoder.decode_gate.set()
    with pytest.raises(MemoryError, match="no room"):
        tokens(bad)
    assert tokens(good) == countdown(3)


def test_an_error_of_the_decoder_reaches_all_open_calls_and_the_next_call_works(
    decoder: CountingDecoder, threads: ThreadPoolExecutor
) -> None:
    batcher = make_batcher(decoder)
    decoder.is_broken = True
    calls = [start_and_hold(threads, batcher, decoder, greedy(3))]
    calls += [threads.submit(batcher.generate, greedy(3)) for _ in range(2)]
    decoder.decode_gate.set()
    for call in calls:
        with pytest.raises(RuntimeError, match="a layer broke"):
            tokens(call)
    decoder.is_broken = False
    assert batcher.generate(greedy(1)).tokens == [0, STOP]


@pytest.mark.parametrize("prefill_threads", [0, 1])
def test_a_lost_device_leaves_nobody_waiting(
    prefill_threads: int, decoder: CountingDecoder, threads: ThreadPoolExecutor
) -> None:
    def pause() -> None:
        with batcher.paused():
            pass

    batcher = make_batcher(decoder, prefill_threads=prefill_threads)
    decoder.is_broken = decoder.is_gone = True
    calls = [start_and_hold(threads, batcher, decoder, greedy(3))]
    calls += [threads.submit(batcher.generate, greedy(n % 3 + 3)) for n in range(1, 8)]
    pausing = threads.submit(pause)
    decoder.decode_gate.set()
    for call in calls:
        with pytest.raises((RuntimeError, ModelError), match=r"a layer broke|device is gone|is closed"):
            tokens(call)
    pausing.exception(timeout=PATIENCE_S)
    with pytest.raises(ModelError, match="is closed"):
        batcher.generate(greedy(1))


def engine_threads() -> set[threading.Thread]:
    """The threads of engines; other tests in this process may have left some."""
    return {thread for thread in threading.enumerate() if thread.name == "local-engine"}


def test_a_thread_that_the_system_refuses_is_an_error_and_is_started_later(
    monkeypatch: pytest.MonkeyPatch, decoder: CountingDecoder
) -> None:
    batcher, start = make_batcher(decoder, prefill_threads=1), threading.Thread.start
    refused = iter([False, True])

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "local-engine" and next(refused, False):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        batcher.generate(greedy(3))
    assert batcher.generate(greedy(1)).tokens == [0, STOP]
    assert len(batcher._workers) == 2
    batcher.close()


def test_nan_logits_are_an_error(decoder: CountingDecoder) -> None:
    batcher = make_batcher(decoder)
    with pytest.raises(ModelError, match="not numbers"):
        batcher.generate(greedy(NOT_A_NUMBER))
    assert batcher.generate(greedy(1)).tokens == [0, STOP]


@pytest.mark.parametrize("prefill_threads", [0, 1])
def test_every_call_beside_nan_logits_returns(
    prefill_threads: int, decoder: CountingDecoder, threads: ThreadPoolExecutor
) -> None:
    batcher = make_batcher(decoder, prefill_threads=prefill_threads)

    def outcome(number: int) -> list[int] | None:
        try:
            return batcher.generate(greedy(number)).tokens
        except ModelError:
            return None

    numbers = [NOT_A_NUMBER if n % 3 == 2 else n % 3 + 1 for n in range(60)]
    calls = [threads.submit(outcome, number) for number in numbers]
    found = [call.result(timeout=PATIENCE_S) for call in calls]
    for tokens, number in zip(found, numbers, strict=True):
        assert tokens is None or (number != NOT_A_NUMBER and tokens == countdown(number))


@pytest.fixture
def interrupt_after() -> Iterator[Callable[[Callable[[], bool]], threading.Thread]]:
    """Return a function that sends SIGINT to the test's thread soon after a condition holds."""
    caller = threading.get_ident()

    def interrupt_after(condition: Callable[[], bool]) -> threading.Thread:
        def interrupt() -> None:
            until(condition)
            time.sleep(0.5)  # a signal that comes before the caller waits may be lost
            signal.pthread_kill(caller, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        return thread

    # as in a terminal: in jobs in the background SIGINT is ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield interrupt_after
    signal.signal(signal.SIGINT, before)


def test_an_interrupted_pause_ends(
    interrupt_after: Callable[[Callable[[], bool]], threading.Thread],
    decoder: CountingDecoder,
    threads: ThreadPoolExecutor,
) -> None:
    batcher = make_batcher(decoder)
    running = start_and_hold(threads, batcher, decoder, greedy(3))
    interrupting = interrupt_after(lambda: batcher._paused_by is not None)
    with pytest.raises(KeyboardInterrupt), batcher.paused():
        pass
    interrupting.join()
    decoder.decode_gate.set()
    assert tokens(running) == countdown(3)
    assert batcher.generate(greedy(1)).tokens == [0, STOP]


def test_an_interrupted_caller_frees_its_slot(
    interrupt_after: Callable[[Callable[[], bool]], threading.Thread], decoder: CountingDecoder
) -> None:
    batcher = make_batcher(decoder, slots=1)
    decoder.decode_gate.clear()
    interrupting = interrupt_after(lambda: len(decoder.sequences) == 1)
    with pytest.raises(KeyboardInterrupt):
        batcher.generate(greedy(6))
    interrupting.join()
    decoder.decode_gate.set()
    assert batcher.generate(greedy(1)).tokens == [0, STOP]
    assert len(decoder.batches) < 6


def test_a_pause_waits_for_running_sequences_and_holds_others_back(
    decoder: CountingDecoder, threads: ThreadPoolExecutor
) -> None:
    batcher = make_batcher(decoder)
    running = start_and_hold(threads, batcher, decoder, greedy(3))
    entered, leave = threading.Event(), threading.Event()

    def pause() -> list[int]:
        with batcher.paused():
            entered.set()
            assert leave.wait(timeout=PATIENCE_S)
            return list(decoder.batches)

    pausing = threads.submit(pause)
    assert not entered.wait(timeout=0.1)
    held = threads.submit(batcher.generate, greedy(1))
    until(lambda: batcher._paused_by is not None)
    decoder.decode_gate.set()
    assert entered.wait(timeout=PATIENCE_S)
    assert tokens(running) == countdown(3)
    with pytest.raises(TimeoutError):
        held.result(timeout=0.1)
    leave.set()
    assert pausing.result(timeout=PATIENCE_S) == [1, 1, 1]
    assert tokens(held) == [0, STOP]


def test_pauses_of_two_threads_follow_one_another(
    decoder: CountingDecoder, threads: ThreadPoolExecutor
) -> None:
    batcher, inside = make_batcher(decoder), list[int]()

    def pause(number: int) -> None:
        with batcher.paused():
            inside.append(number)
            time.sleep(0.01)
            assert inside[-1] == number

    list(threads.map(pause, range(8)))
    assert sorted(inside) == list(range(8))


def test_a_thread_that_holds_a_pause_can_neither_generate_nor_pause_again(decoder: CountingDecoder) -> None:
    batcher = make_batcher(decoder)
    with batcher.paused():
        with pytest.raises(ModelError, match="changing the weights"):
            batcher.generate(greedy(1))
        with pytest.raises(ModelError, match="changing the weights"), batcher.paused():
            pass
    assert batcher.generate(greedy(1)).tokens == [0, STOP]


def test_close_fails_open_and_later_calls_and_ends_the_thread(
    decoder: CountingDecoder, threads: ThreadPoolExecutor
) -> None:
    others, batcher = engine_threads(), make_batcher(decoder, slots=1)
    calls = [start_and_hold(threads, batcher, decoder, greedy(3))]
    calls.append(threads.submit(batcher.generate, greedy(3)))
    closing = threads.submit(batcher.close)
    until(lambda: batcher._is_closed)
    decoder.decode_gate.set()
    closing.result(timeout=PATIENCE_S)
    for call in calls:
        with pytest.raises(ModelError, match="closed"):
            tokens(call)
    batcher.close()
    with pytest.raises(ModelError, match="closed"):
        batcher.generate(greedy(1))
    assert engine_threads() <= others


def test_close_before_the_first_call_starts_nothing(decoder: CountingDecoder) -> None:
    batcher = make_batcher(decoder)
    batcher.close()
    with pytest.raises(ModelError, match="closed"):
        batcher.generate(greedy(1))


def test_the_seed_determines_a_sampled_sequence(decoder: CountingDecoder) -> None:
    batcher, sampling = make_batcher(decoder), SamplingParams(temperature=5.0)
    first, second = (
        [tuple(batcher.generate(GenerationRequest((3,), 20, sampling, seed)).tokens) for seed in range(20)]
        for _ in range(2)
    )
    assert first == second
    assert len(set(first)) > 10


def test_a_batcher_sets_processor_threads_for_its_own_threads_only() -> None:
    class Asked(CountingDecoder):
        def prefill(self, prompts: Sequence[Sequence[int]]) -> list[PrefilledPrompt]:
            seen.append(torch.get_num_threads())
            return super().prefill(prompts)

    seen: list[int] = []
    others = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        tolerance = NumericalTolerance(0.0, 0.0)
        made.append(Batcher(Asked(), frozenset({STOP}), slots=1, tolerance=tolerance, threads=1))
        made[-1].generate(greedy(5))
        assert seen == [1]
        with ThreadPoolExecutor(1) as new_thread:
            in_new_thread = new_thread.submit(torch.get_num_threads).result()
        assert (torch.get_num_threads(), in_new_thread) == (3, 3)
    finally:
        torch.set_num_threads(others)


# prefill threads


def test_prompts_are_prefilled_while_others_decode(
    decoder: CountingDecoder, threads: ThreadPoolExecutor
) -> None:
    batcher = make_batcher(decoder, prefill_threads=1)
    first = start_and_hold(threads, batcher, decoder, greedy(6))
    second = threads.submit(batcher.generate, greedy(3))
    until(lambda: len(decoder.prompts) == 2)
    assert decoder.prefilled_by[0] is not decoder.prefilled_by[1]
    decoder.decode_gate.set()
    assert (tokens(first), tokens(second)) == (countdown(6), countdown(3))
    assert max(decoder.batches) == 2


@pytest.mark.parametrize("prefill_threads", [0, 1, 3])
def test_prefill_threads_change_no_result_and_use_no_more_slots(
    prefill_threads: int, decoder: CountingDecoder, threads: ThreadPoolExecutor
) -> None:
    batcher = make_batcher(decoder, slots=3, prefill_threads=prefill_threads)
    continuations = list(threads.map(batcher.generate, [greedy(n % 6 + 1) for n in range(90)]))
    assert [each.tokens for each in continuations] == [countdown(n % 6 + 1) for n in range(90)]
    assert max(decoder.batches) <= 3


@pytest.mark.parametrize("prefill_threads", [0, 1])
def test_a_prompt_of_several_calls_is_prefilled_once(
    prefill_threads: int, decoder: CountingDecoder, threads: ThreadPoolExecutor
) -> None:
    batcher = make_batcher(decoder, slots=8, prefill_threads=prefill_threads)
    decoder.decode_gate.clear()
    calls = [threads.submit(batcher.generate, greedy(7, 3)) for _ in range(4)]
    until(lambda: len(decoder.sequences) >= 1)
    calls += [threads.submit(batcher.generate, greedy(7, 3)) for _ in range(4)]
    until(lambda: batcher._open_calls == 8)
    if prefill_threads:  # else it may come so late that the first calls have ended
        until(lambda: not batcher._waiting)
    decoder.decode_gate.set()
    assert [tokens(call) for call in calls] == [countdown(3)] * 8
    assert len(decoder.prompts) == 1


def test_a_prompt_that_a_prefill_thread_cannot_prefill_fails_alone(
    decoder: CountingDecoder, threads: ThreadPoolExecutor
) -> None:
    batcher = make_batcher(decoder, prefill_threads=1)
    good = start_and_hold(threads, batcher, decoder, greedy(3))
    bad = threads.submit(batcher.generate, greedy(TOO_LARGE))
    with pytest.raises(MemoryError, match="no room"):
        tokens(bad)
    assert decoder.prefilled_by[0] is not decoder.prefilled_by[1]
    decoder.decode_gate.set()
    assert tokens(good) == countdown(3)


def occupy_prefill(
    decoder: CountingDecoder, batcher: Batcher, threads: ThreadPoolExecutor, prefill_threads: int
) -> list[Future[Continuation]]:
    """Give every thread of the batcher a prompt, at which it stays until ``prefill_gate`` is set."""
    decoder.prefill_gate.clear()
    calls: list[Future[Continuation]] = []
    for number in range(1 + prefill_threads):
        calls.append(threads.submit(batcher.generate, greedy(8 - number)))
        until(lambda: len(decoder.prefilled_by) == len(calls))
    return calls


@pytest.mark.parametrize("prefill_threads", [0, 1])
def test_short_prompts_are_prefilled_together_and_long_ones_alone(
    prefill_threads: int, decoder: CountingDecoder, threads: ThreadPoolExecutor
) -> None:
    batcher = make_batcher(decoder, slots=8, prefill_threads=prefill_threads)
    occupy_prefill(decoder, batcher, threads, prefill_threads)
    calls: list[Future[Continuation]] = []
    long = [[4] * PREFILL_CHUNK_TOKENS + [number] for number in (1, 2)]
    for prompt in ([1], [2], [3], *long):
        calls.append(threads.submit(batcher.generate, greedy(*prompt)))
        until(lambda: len(batcher._waiting) == len(calls))  # in this order
    decoder.prefill_gate.set()
    assert [len(tokens(call)) for call in calls] == [2, 3, 4, 2, 3]
    assert sorted(decoder.prefill_sizes[1 + prefill_threads :]) == [1, 1, 3]


@pytest.mark.parametrize("prefill_threads", [0, 1])
def test_a_prompt_among_others_that_cannot_be_prefilled_fails_alone(
    prefill_threads: int, decoder: CountingDecoder, threads: ThreadPoolExecutor
) -> None:
    batcher = make_batcher(decoder, slots=8, prefill_threads=prefill_threads)
    first = occupy_prefill(decoder, batcher, threads, prefill_threads)
    good, bad, better = [threads.submit(batcher.generate, greedy(n)) for n in (3, TOO_LARGE, 2)]
    until(lambda: len(batcher._waiting) == 3)
    decoder.prefill_gate.set()
    with pytest.raises(MemoryError, match="no room"):
        tokens(bad)
    assert (tokens(good), tokens(better)) == (countdown(3), countdown(2))
    assert all(call.result(timeout=PATIENCE_S).has_ended for call in first)
    assert decoder.prefill_sizes[1 + prefill_threads :] == [3, 1, 1, 1]


def test_a_pause_waits_for_a_prefill(decoder: CountingDecoder, threads: ThreadPoolExecutor) -> None:
    batcher = make_batcher(decoder, prefill_threads=1)
    running = start_and_hold(threads, batcher, decoder, greedy(1))
    decoder.prefill_gate.clear()
    prefilled = threads.submit(batcher.generate, greedy(3))
    until(lambda: len(decoder.prefilled_by) == 2)
    decoder.decode_gate.set()
    assert tokens(running) == [0, STOP]
    entered = threading.Event()

    def pause() -> None:
        with batcher.paused():
            entered.set()

    pausing = threads.submit(pause)
    assert not entered.wait(timeout=0.1)
    decoder.prefill_gate.set()
    assert tokens(prefilled) == countdown(3)
    pausing.result(timeout=PATIENCE_S)


def test_close_waits_for_prefill_threads_and_fails_their_calls(
    decoder: CountingDecoder, threads: ThreadPoolExecutor
) -> None:
    others, batcher = engine_threads(), make_batcher(decoder, prefill_threads=1)
    decoder.prefill_gate.clear()
    calls = [threads.submit(batcher.generate, greedy(n)) for n in (3, 4, 5)]
    until(lambda: len(decoder.prefilled_by) > 0)
    closing = threads.submit(batcher.close)
    with pytest.raises(TimeoutError):
        closing.result(timeout=0.1)
    decoder.prefill_gate.set()
    closing.result(timeout=PATIENCE_S)
    for call in calls:
        with pytest.raises(ModelError, match="closed"):
            tokens(call)
    assert engine_threads() <= others


def test_busy_time_grows_while_a_call_is_open(decoder: CountingDecoder, threads: ThreadPoolExecutor) -> None:
    batcher = make_batcher(decoder, prefill_threads=1)
    assert batcher.busy_s == 0.0
    held = start_and_hold(threads, batcher, decoder, greedy(3))
    before = batcher.busy_s
    until(lambda: batcher.busy_s > before)
    decoder.decode_gate.set()
    tokens(held)
    until(lambda: not batcher._open_calls)
    after = batcher.busy_s
    assert after > before
    assert batcher.busy_s == after
