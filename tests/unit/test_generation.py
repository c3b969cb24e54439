"""How texts join, end and fail in the running batch, played with a decoder that only counts."""

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch

from memory_program.core.errors import ModelError
from memory_program.inference.batcher import Batcher, Continuation, GenerationRequest, NumericalTolerance
from memory_program.inference.decoder import PREFILL_CHUNK_TOKENS, PrefilledPrompt
from memory_program.inference.sampling import SamplingParams
from tests.counting_decoder import (
    PATIENCE_S,
    POISONOUS,
    STOP,
    UNREADABLE,
    CountingDecoder,
    job,
    made,
    make_batcher,
    until,
)


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while made:
        made.pop().close()


def test_a_text_grows_to_its_stop_token_and_counts_what_was_known_of_its_prompt() -> None:
    continuation = make_batcher(CountingDecoder()).generate(job(5, 5, 3))
    assert (continuation.tokens, continuation.has_ended, continuation.cached_tokens) == (
        [2, 1, 0, STOP],
        True,
        2,
    )
    assert len(continuation.logprobs) == 4


def test_a_text_is_cut_at_its_limit() -> None:
    continuation = make_batcher(CountingDecoder()).generate(job(5, tokens=2))
    assert (continuation.tokens, continuation.has_ended) == ([4, 3], False)


def test_a_text_of_one_token_takes_no_step() -> None:
    decoder = CountingDecoder()
    assert make_batcher(decoder).generate(job(5, tokens=1)).tokens == [4]
    assert decoder.steps == 0


def test_texts_join_a_running_batch_and_leave_it_without_waiting_for_the_longest() -> None:
    decoder = CountingDecoder()
    batcher = make_batcher(decoder)
    decoder.gate.clear()
    with ThreadPoolExecutor(4) as threads:
        long = threads.submit(batcher.generate, job(6))
        until(lambda: len(decoder.texts) == 1)
        short = [threads.submit(batcher.generate, job(1)) for _ in range(3)]
        decoder.gate.set()
        assert [text.result(timeout=PATIENCE_S).tokens for text in (long, *short)] == [
            [5, 4, 3, 2, 1, 0, STOP]
        ] + [[0, STOP]] * 3
    assert decoder.batches == [1, 4, 1, 1, 1, 1] or decoder.steps == 6


def test_more_texts_than_slots_wait_for_their_turn() -> None:
    decoder = CountingDecoder()
    batcher = make_batcher(decoder, slots=2)
    with ThreadPoolExecutor(9) as threads:
        texts = list(threads.map(batcher.generate, [job(n % 6 + 1) for n in range(9)]))
    assert [len(text.tokens) for text in texts] == [n % 6 + 2 for n in range(9)]
    assert max(decoder.batches) == 2


@pytest.mark.parametrize("rounding", [0.0, 10.0])
def test_every_text_is_its_own_whatever_runs_beside_it_and_however_often_it_is_read_again(
    rounding: float,
) -> None:
    batcher = make_batcher(CountingDecoder(), rounding=rounding)
    with ThreadPoolExecutor(16) as threads:
        texts = list(threads.map(batcher.generate, [job(n % 6 + 1) for n in range(60)]))
    assert [text.tokens for text in texts] == [[*range(n % 6, -1, -1), STOP] for n in range(60)]


def test_a_prompt_that_cannot_be_read_fails_alone() -> None:
    decoder = CountingDecoder()
    batcher = make_batcher(decoder)
    decoder.gate.clear()
    with ThreadPoolExecutor(2) as threads:
        good = threads.submit(batcher.generate, job(3))
        until(lambda: len(decoder.texts) == 1)
        bad = threads.submit(batcher.generate, job(UNREADABLE))
        decoder.gate.set()
        with pytest.raises(MemoryError, match="no room"):
            bad.result(timeout=PATIENCE_S)
        assert good.result(timeout=PATIENCE_S).tokens == [2, 1, 0, STOP]


def test_what_breaks_in_the_thread_reaches_all_who_wait_and_the_next_call_works() -> None:
    decoder = CountingDecoder()
    batcher = make_batcher(decoder)
    decoder.gate.clear()
    decoder.breaks = True
    with ThreadPoolExecutor(3) as threads:
        texts = [threads.submit(batcher.generate, job(3)) for _ in range(3)]
        until(lambda: len(decoder.texts) >= 1)
        decoder.gate.set()
        for text in texts:
            with pytest.raises(RuntimeError, match="a layer broke"):
                text.result(timeout=PATIENCE_S)
    decoder.breaks = False
    assert batcher.generate(job(1)).tokens == [0, STOP]


@pytest.mark.parametrize("readers", [0, 1])
def test_a_device_that_is_gone_leaves_nobody_waiting(readers: int) -> None:
    decoder = CountingDecoder()
    batcher = make_batcher(decoder, readers=readers)
    decoder.gate.clear()
    decoder.breaks = decoder.breaks_for_good = True
    with ThreadPoolExecutor(9) as threads:
        texts = [threads.submit(batcher.generate, job(n % 3 + 3)) for n in range(8)]
        until(lambda: len(decoder.texts) >= 1)

        def pause() -> None:
            with batcher.paused():
                pass

        pausing = threads.submit(pause)
        decoder.gate.set()
        for text in texts:
            with pytest.raises((RuntimeError, ModelError), match=r"a layer broke|device is gone|is closed"):
                text.result(timeout=PATIENCE_S)
        pausing.exception(timeout=PATIENCE_S)
    with pytest.raises(ModelError, match="is closed"):
        batcher.generate(job(1))


def test_a_thread_that_the_system_refuses_is_an_error_and_is_asked_for_again(monkeypatch) -> None:
    batcher, start = make_batcher(CountingDecoder(), readers=1), threading.Thread.start
    refused = iter([False, True])

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "local-engine" and next(refused, False):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        batcher.generate(job(3))
    assert batcher.generate(job(1)).tokens == [0, STOP]
    assert len(batcher._workers) == 2
    batcher.close()


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_while_it_waits_leaves_nothing_paused() -> None:
    decoder = CountingDecoder()
    batcher = make_batcher(decoder)
    decoder.gate.clear()
    caller = threading.get_ident()

    def interrupt() -> None:
        until(lambda: batcher._paused_by is not None)
        time.sleep(0.5)
        signal.pthread_kill(caller, signal.SIGINT)

    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(batcher.generate, job(3))
        until(lambda: len(decoder.texts) == 1)
        interrupting = threads.submit(interrupt)
        with pytest.raises(KeyboardInterrupt), batcher.paused():
            pass
        interrupting.result(timeout=PATIENCE_S)
        decoder.gate.set()
        assert running.result(timeout=PATIENCE_S).tokens == [2, 1, 0, STOP]
    assert batcher.generate(job(1)).tokens == [0, STOP]


def test_logits_that_are_no_numbers_are_an_error() -> None:
    batcher = make_batcher(CountingDecoder())
    with pytest.raises(ModelError, match="not numbers"):
        batcher.generate(job(POISONOUS))
    assert batcher.generate(job(1)).tokens == [0, STOP]


@pytest.mark.parametrize("readers", [0, 1])
def test_texts_beside_logits_that_are_no_numbers_are_not_lost(readers: int) -> None:
    batcher = make_batcher(CountingDecoder(), readers=readers)

    def outcome(number: int) -> list[int] | None:
        try:
            return batcher.generate(job(number)).tokens
        except ModelError:
            return None

    with ThreadPoolExecutor(8) as threads:
        numbers = [POISONOUS if n % 3 == 2 else n % 3 + 1 for n in range(60)]
        texts = [threads.submit(outcome, number) for number in numbers]
        found = [text.result(timeout=PATIENCE_S) for text in texts]
    assert all(tokens is None for tokens, number in zip(found, numbers, strict=True) if number == POISONOUS)
    assert {tuple(tokens) for tokens in found if tokens} <= {(0, STOP), (1, 0, STOP)}


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let SIGINT interrupt, as it does in a terminal: jobs in the background begin with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_caller_gives_its_slot_free() -> None:
    decoder = CountingDecoder()
    batcher = make_batcher(decoder, slots=1)
    decoder.gate.clear()
    caller = threading.get_ident()

    def interrupt() -> None:
        until(lambda: len(decoder.texts) == 1)
        time.sleep(0.5)  # on a busy machine the caller waits a moment later: a signal before that may be lost
        signal.pthread_kill(caller, signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        batcher.generate(job(6))
    interrupting.join()
    decoder.gate.set()
    assert batcher.generate(job(1)).tokens == [0, STOP]
    assert decoder.steps < 6


def test_a_pause_waits_for_running_texts_and_holds_others_back() -> None:
    decoder = CountingDecoder()
    batcher = make_batcher(decoder)
    decoder.gate.clear()
    with ThreadPoolExecutor(3) as threads:
        running = threads.submit(batcher.generate, job(3))
        until(lambda: len(decoder.texts) == 1)
        entered, leave = threading.Event(), threading.Event()

        def pause() -> list[int]:
            with batcher.paused():
                entered.set()
                assert leave.wait(timeout=PATIENCE_S)
                return list(decoder.batches)

        pausing = threads.submit(pause)
        assert not entered.wait(timeout=0.1)
        held = threads.submit(batcher.generate, job(1))
        decoder.gate.set()
        assert entered.wait(timeout=PATIENCE_S)
        assert running.result(timeout=PATIENCE_S).tokens == [2, 1, 0, STOP]
        with pytest.raises(TimeoutError):
            held.result(timeout=0.1)
        leave.set()
        assert pausing.result(timeout=PATIENCE_S) == [1, 1, 1]
        assert held.result(timeout=PATIENCE_S).tokens == [0, STOP]


def test_pauses_of_two_threads_follow_one_another() -> None:
    batcher, inside = make_batcher(CountingDecoder()), []

    def pause(number: int) -> None:
        with batcher.paused():
            inside.append(number)
            time.sleep(0.01)
            assert inside[-1] == number

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(pause, range(8)))
    assert sorted(inside) == list(range(8))


def test_a_thread_that_holds_a_pause_can_neither_generate_nor_pause_again() -> None:
    batcher = make_batcher(CountingDecoder())
    with batcher.paused():
        with pytest.raises(ModelError, match="changing the weights"):
            batcher.generate(job(1))
        with pytest.raises(ModelError, match="changing the weights"), batcher.paused():
            pass
    assert batcher.generate(job(1)).tokens == [0, STOP]


def test_closing_ends_the_thread_and_fails_who_waits_and_who_comes_later() -> None:
    decoder = CountingDecoder()
    batcher = make_batcher(decoder, slots=1)
    decoder.gate.clear()
    with ThreadPoolExecutor(2) as threads:
        texts = [threads.submit(batcher.generate, job(3)) for _ in range(2)]
        until(lambda: len(decoder.texts) == 1)
        closing = threading.Thread(target=batcher.close)
        closing.start()
        decoder.gate.set()
        closing.join(timeout=PATIENCE_S)
        assert not closing.is_alive()
        for text in texts:
            with pytest.raises(ModelError, match="closed"):
                text.result(timeout=PATIENCE_S)
    batcher.close()
    with pytest.raises(ModelError, match="closed"):
        batcher.generate(job(1))
    assert "local-engine" not in {thread.name for thread in threading.enumerate()}


def test_closing_before_the_first_call_starts_nothing() -> None:
    batcher = make_batcher(CountingDecoder())
    batcher.close()
    with pytest.raises(ModelError, match="closed"):
        batcher.generate(job(1))


def test_a_seed_decides_a_sampled_text() -> None:
    batcher = make_batcher(CountingDecoder())

    def sampled(seed: int) -> Continuation:
        return batcher.generate(GenerationRequest((3,), 20, SamplingParams(temperature=5.0), seed))

    texts = [sampled(seed).tokens for seed in range(20)]
    assert [sampled(seed).tokens for seed in range(20)] == texts
    assert len({tuple(text) for text in texts}) > 10


def test_a_batcher_computes_on_threads_of_its_own_and_leaves_others_as_they_are() -> None:
    class Asked(CountingDecoder):
        def prefill(self, prompts: Sequence[Sequence[int]]) -> list[PrefilledPrompt]:
            seen.append(torch.get_num_threads())
            return super().prefill(prompts)

    def of_a_new_thread() -> int:
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(torch.get_num_threads).result()

    seen: list[int] = []
    others = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        batcher = Batcher(
            Asked(), frozenset({STOP}), slots=1, tolerance=NumericalTolerance(0.0, 0.0), threads=1
        )
        made.append(batcher)
        batcher.generate(job(5))
        assert seen == [1]
        assert (torch.get_num_threads(), of_a_new_thread()) == (3, 3)
    finally:
        torch.set_num_threads(others)


# prompts that another thread reads


def test_prompts_are_read_while_texts_grow() -> None:
    decoder = CountingDecoder()
    batcher = make_batcher(decoder, readers=1)
    decoder.gate.clear()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(batcher.generate, job(6))
        until(lambda: len(decoder.texts) == 1)  # and its first step waits
        second = threads.submit(batcher.generate, job(3))
        until(lambda: len(decoder.prompts) == 2)
        assert decoder.read_by[0] is not decoder.read_by[1]
        decoder.gate.set()
        assert first.result(timeout=PATIENCE_S).tokens == [5, 4, 3, 2, 1, 0, STOP]
        assert second.result(timeout=PATIENCE_S).tokens == [2, 1, 0, STOP]
    assert max(decoder.batches) == 2


@pytest.mark.parametrize("readers", [0, 1, 3])
def test_readers_change_no_text_and_take_no_more_slots_than_there_are(readers: int) -> None:
    decoder = CountingDecoder()
    batcher = make_batcher(decoder, slots=3, readers=readers)
    with ThreadPoolExecutor(16) as threads:
        texts = list(threads.map(batcher.generate, [job(n % 6 + 1) for n in range(90)]))
    assert [text.tokens for text in texts] == [[*range(n % 6, -1, -1), STOP] for n in range(90)]
    assert max(decoder.batches) <= 3


@pytest.mark.parametrize("readers", [0, 1])
def test_texts_with_one_prompt_read_it_once(readers: int) -> None:
    decoder = CountingDecoder()
    batcher = make_batcher(decoder, slots=8, readers=readers)
    decoder.gate.clear()
    with ThreadPoolExecutor(8) as threads:
        texts = [threads.submit(batcher.generate, job(7, 3)) for _ in range(4)]
        until(lambda: len(decoder.texts) >= 1)
        texts += [threads.submit(batcher.generate, job(7, 3)) for _ in range(4)]
        decoder.gate.set()
        found = [text.result(timeout=PATIENCE_S) for text in texts]
    assert [text.tokens for text in found] == [[2, 1, 0, STOP]] * 8
    assert len(decoder.prompts) <= 2  # a second time only if the first four had all ended


def test_a_prompt_that_a_reader_cannot_read_fails_alone() -> None:
    decoder = CountingDecoder()
    batcher = make_batcher(decoder, readers=1)
    decoder.gate.clear()
    with ThreadPoolExecutor(2) as threads:
        good = threads.submit(batcher.generate, job(3))
        until(lambda: len(decoder.texts) == 1)
        bad = threads.submit(batcher.generate, job(UNREADABLE))
        with pytest.raises(MemoryError, match="no room"):
            bad.result(timeout=PATIENCE_S)
        assert decoder.read_by[0] is not decoder.read_by[1]
        decoder.gate.set()
        assert good.result(timeout=PATIENCE_S).tokens == [2, 1, 0, STOP]


@pytest.mark.parametrize("readers", [0, 1])
def test_short_prompts_that_wait_are_read_together_and_long_ones_alone(readers: int) -> None:
    decoder = CountingDecoder()
    batcher = make_batcher(decoder, slots=8, readers=readers)
    with ThreadPoolExecutor(8) as threads:
        occupy_who_reads(decoder, batcher, threads, readers)
        texts: list[Future[Continuation]] = []
        for each in [job(n) for n in (1, 2, 3)] + [job(*[4] * PREFILL_CHUNK_TOKENS, n) for n in (1, 2)]:
            texts.append(threads.submit(batcher.generate, each))
            until(lambda: len(batcher._waiting) == len(texts))  # in this order
        decoder.reading.set()
        assert [len(text.result(timeout=PATIENCE_S).tokens) for text in texts] == [2, 3, 4, 2, 3]
    assert sorted(decoder.read_together[1 + readers :]) == [1, 1, 3]


@pytest.mark.parametrize("readers", [0, 1])
def test_of_prompts_that_are_read_together_one_that_cannot_be_read_fails_alone(readers: int) -> None:
    decoder = CountingDecoder()
    batcher = make_batcher(decoder, slots=8, readers=readers)
    with ThreadPoolExecutor(8) as threads:
        first = occupy_who_reads(decoder, batcher, threads, readers)
        good, bad, better = [threads.submit(batcher.generate, job(n)) for n in (3, UNREADABLE, 2)]
        until(lambda: len(batcher._waiting) == 3)
        decoder.reading.set()
        with pytest.raises(MemoryError, match="no room"):
            bad.result(timeout=PATIENCE_S)
        assert good.result(timeout=PATIENCE_S).tokens == [2, 1, 0, STOP]
        assert better.result(timeout=PATIENCE_S).tokens == [1, 0, STOP]
        assert all(text.result(timeout=PATIENCE_S).has_ended for text in first)
    assert decoder.read_together[1 + readers :] == [3, 1, 1, 1]


def occupy_who_reads(
    decoder: CountingDecoder, batcher: Batcher, threads: ThreadPoolExecutor, readers: int
) -> list[Future[Continuation]]:
    """Give the writer and each reader a prompt, at which they stay until ``decoder.reading`` is set."""
    decoder.reading.clear()
    texts: list[Future[Continuation]] = []
    for number in range(1 + readers):
        texts.append(threads.submit(batcher.generate, job(8 - number)))
        until(lambda: len(decoder.read_by) == len(texts))
    return texts


def test_a_pause_waits_for_a_prompt_that_is_being_read() -> None:
    decoder = CountingDecoder()
    batcher = make_batcher(decoder, readers=1)
    decoder.gate.clear()
    with ThreadPoolExecutor(3) as threads:
        running = threads.submit(batcher.generate, job(1))
        until(lambda: len(decoder.texts) == 1)
        decoder.reading.clear()
        read = threads.submit(batcher.generate, job(3))
        until(lambda: len(decoder.read_by) == 2)
        decoder.gate.set()
        assert running.result(timeout=PATIENCE_S).tokens == [0, STOP]
        entered = threading.Event()

        def pause() -> None:
            with batcher.paused():
                entered.set()

        pausing = threads.submit(pause)
        assert not entered.wait(timeout=0.1)
        decoder.reading.set()
        assert read.result(timeout=PATIENCE_S).tokens == [2, 1, 0, STOP]
        pausing.result(timeout=PATIENCE_S)


def test_closing_ends_readers_and_fails_who_waits_for_them() -> None:
    decoder = CountingDecoder()
    batcher = make_batcher(decoder, readers=1)
    decoder.reading.clear()
    with ThreadPoolExecutor(3) as threads:
        texts = [threads.submit(batcher.generate, job(n)) for n in (3, 4, 5)]
        until(lambda: len(decoder.read_by) > 0)
        closing = threading.Thread(target=batcher.close)
        closing.start()
        closing.join(timeout=0.1)
        assert closing.is_alive()  # it waits for who reads
        decoder.reading.set()
        closing.join(timeout=PATIENCE_S)
        assert not closing.is_alive()
        for text in texts:
            with pytest.raises(ModelError, match="closed"):
                text.result(timeout=PATIENCE_S)
    assert "local-engine" not in {thread.name for thread in threading.enumerate()}


def test_it_is_busy_while_any_text_is_open() -> None:
    decoder = CountingDecoder()
    batcher = make_batcher(decoder, readers=1)
    assert batcher.busy_s == 0.0
    decoder.gate.clear()
    with ThreadPoolExecutor(2) as threads:
        held = threads.submit(batcher.generate, job(3))
        until(lambda: len(decoder.texts) == 1)
        before = batcher.busy_s
        until(lambda: batcher.busy_s > before)
        decoder.gate.set()
        held.result(timeout=PATIENCE_S)
    after = batcher.busy_s
    assert after > before
    assert batcher.busy_s == after
