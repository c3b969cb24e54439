"""Texts go to the batch that has the fewest, or their prompt; a pause and an end are those of all of them."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from memory_program.errors import ModelError
from memory_program.learning.generation import Batcher
from memory_program.learning.replicas import Replicas
from tests.counting_decoder import (
    PATIENCE_S,
    STOP,
    UNREADABLE,
    CountingDecoder,
    job,
    make_batcher,
    until,
)


@pytest.fixture
def decoders() -> list[CountingDecoder]:
    return [CountingDecoder(), CountingDecoder()]


@pytest.fixture
def replicas(decoders: list[CountingDecoder]) -> Iterator[Replicas]:
    made = Replicas([make_batcher(decoder) for decoder in decoders])
    yield made
    for decoder in decoders:
        decoder.gate.set()
    made.close()


def test_every_batch_gets_as_many_texts_and_each_text_is_its_own(
    replicas: Replicas, decoders: list[CountingDecoder]
) -> None:
    for decoder in decoders:
        decoder.gate.clear()
    with ThreadPoolExecutor(8) as threads:
        texts = [threads.submit(replicas.generate, job(n + 1)) for n in range(8)]
        until(lambda: sum(replicas.open_texts) == 8)
        assert replicas.open_texts == [4, 4]
        for decoder in decoders:
            decoder.gate.set()
        found = [text.result(timeout=PATIENCE_S).tokens for text in texts]
    assert found == [[*range(n, -1, -1), STOP] for n in range(8)]
    assert replicas.open_texts == [0, 0]


def test_texts_with_one_prompt_come_to_one_batch_until_it_has_eight_more_than_another(
    replicas: Replicas, decoders: list[CountingDecoder]
) -> None:
    for decoder in decoders:
        decoder.gate.clear()
    with ThreadPoolExecutor(10) as threads:
        texts = [threads.submit(replicas.generate, job(3)) for _ in range(8)]
        until(lambda: replicas.open_texts == [8, 0])
        texts += [threads.submit(replicas.generate, job(3)) for _ in range(2)]
        until(lambda: sum(replicas.open_texts) == 10)
        assert replicas.open_texts == [9, 1]
        for decoder in decoders:
            decoder.gate.set()
        assert all(text.result(timeout=PATIENCE_S).tokens == [2, 1, 0, STOP] for text in texts)
    assert replicas.open_texts == [0, 0]


def test_a_text_that_fails_no_longer_counts(replicas: Replicas) -> None:
    for _ in range(3):
        with pytest.raises(MemoryError, match="no room"):
            replicas.generate(job(UNREADABLE))
    assert replicas.open_texts == [0, 0]


def test_it_is_busy_while_any_text_is_open(replicas: Replicas, decoders: list[CountingDecoder]) -> None:
    assert replicas.busy_s == 0.0
    decoders[0].gate.clear()
    with ThreadPoolExecutor(2) as threads:
        held = threads.submit(replicas.generate, job(3))
        until(lambda: replicas.open_texts == [1, 0])
        threads.submit(replicas.generate, job(4)).result(timeout=PATIENCE_S)
        before = replicas.busy_s
        until(lambda: replicas.busy_s > before)  # the first is still open
        decoders[0].gate.set()
        held.result(timeout=PATIENCE_S)
    after = replicas.busy_s
    assert after > before
    assert replicas.busy_s == after


def test_a_pause_waits_for_every_batch_and_holds_all_of_them(
    replicas: Replicas, decoders: list[CountingDecoder]
) -> None:
    for decoder in decoders:  # both: a text that is done soon would get the next one beside it
        decoder.gate.clear()
    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(replicas.generate, job(n)) for n in (3, 4)]
        until(lambda: [len(decoder.texts) for decoder in decoders] == [1, 1])
        decoders[0].gate.set()
        entered, leave = threading.Event(), threading.Event()

        def pause() -> None:
            with replicas.paused():
                entered.set()
                assert leave.wait(timeout=PATIENCE_S)

        pausing = threads.submit(pause)
        assert not entered.wait(timeout=0.1)
        decoders[1].gate.set()
        assert entered.wait(timeout=PATIENCE_S)
        found = [text.result(timeout=PATIENCE_S).tokens for text in running]
        assert found == [[2, 1, 0, STOP], [3, 2, 1, 0, STOP]]
        held = threads.submit(replicas.generate, job(1))
        with pytest.raises(TimeoutError):
            held.result(timeout=0.1)
        leave.set()
        pausing.result(timeout=PATIENCE_S)
        assert held.result(timeout=PATIENCE_S).tokens == [0, STOP]


def test_who_holds_a_pause_can_neither_generate_nor_pause_again(replicas: Replicas) -> None:
    with replicas.paused():
        with pytest.raises(ModelError, match="changing the weights"):
            replicas.generate(job(1))
        with pytest.raises(ModelError, match="changing the weights"), replicas.paused():
            pass
    assert replicas.generate(job(1)).tokens == [0, STOP]


def test_closing_ends_every_batch(decoders: list[CountingDecoder]) -> None:
    batchers: list[Batcher] = [make_batcher(decoder) for decoder in decoders]
    replicas = Replicas(batchers)
    replicas.close()
    with pytest.raises(ModelError, match="closed"):
        replicas.generate(job(1))
    for batcher in batchers:
        with pytest.raises(ModelError, match="closed"):
            batcher.generate(job(1))
