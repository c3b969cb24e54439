"""The collector rests while a bulk of memories is read, and is afterwards as it was."""

import gc
import threading

import pytest

from memory_program.bank.bulk import gc_paused
from memory_program.bank.memory import Draft, MemoryKind, Provenance
from memory_program.bank.store import BankStore


@pytest.fixture(autouse=True)
def enabled():
    gc.enable()
    yield
    gc.enable()


def test_the_collector_is_off_for_many_objects_and_on_for_few():
    with gc_paused(999):
        assert gc.isenabled()
    with gc_paused(1000):
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_is_on_again_after_an_error():
    with pytest.raises(KeyError), gc_paused(1000):
        raise KeyError
    assert gc.isenabled()


def test_whoever_turned_it_off_keeps_it_off():
    gc.disable()
    with gc_paused(1000):
        pass
    assert not gc.isenabled()


def test_the_last_of_several_threads_turns_it_on():
    inside, leave = threading.Event(), threading.Event()

    def read() -> None:
        with gc_paused(1000):
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=read)
    thread.start()
    assert inside.wait(10)
    with gc_paused(1000):
        pass
    assert not gc.isenabled()
    leave.set()
    thread.join(10)
    assert gc.isenabled()


def test_a_log_is_replayed_without_the_collector(tmp_path):
    url = f"sqlite:///{tmp_path}/bank.sqlite"
    by = Provenance("semantic", "session_1")
    with BankStore(url) as store:
        space = store.load("alice")
        for number in range(1500):
            space.bank.create([Draft(f"Alice owns {number} spoons.", MemoryKind.SEMANTIC)], by)
        space.snapshot_version = space.bank.version  # none is written: all is read from the log
        store.save(space)
    collected: list[str] = []
    threshold = gc.get_threshold()
    gc.set_threshold(100, *threshold[1:])
    gc.callbacks.append(lambda phase, _: collected.append(phase))
    try:
        with BankStore(url) as store:
            bank = store.bank("alice")
    finally:
        gc.callbacks.pop()
        gc.set_threshold(*threshold)
    assert len(bank.live()) == 1500
    assert len(collected) < 120  # of rows that are fetched; with the making of memories they were 230
