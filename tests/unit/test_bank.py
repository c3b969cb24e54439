"""A bank is its log: the laws of fork, at, undo, diff, replay and rebase."""

import random
import sys
import threading
import time
from collections.abc import Callable
from datetime import date, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_program.bank.bank import MemoryBank
from memory_program.bank.memory import (
    CORE_LIMIT_CHARS,
    MEMORY_KINDS,
    Draft,
    Memory,
    MemoryKind,
    Operation,
    OperationKind,
    Provenance,
)
from memory_program.core.errors import MemoryOperationError, UnknownMemoryError

BY = Provenance("semantic", "session_1", "because")
SEMANTIC = MemoryKind.SEMANTIC


def fact(text: str, *sources: str, at: date | None = None) -> Draft:
    return Draft(text, SEMANTIC, at, sources)


def bank_of(*texts: str) -> MemoryBank:
    bank = MemoryBank("test")
    for text in texts:
        bank.create([fact(text)], BY)
    return bank


def ids(bank: MemoryBank) -> list[str]:
    return [memory.memory_id for memory in bank.live()]


def texts(bank: MemoryBank) -> list[str]:
    return [memory.text for memory in bank.live()]


def write_at_random(bank: MemoryBank, rng: random.Random, count: int) -> None:
    """Append operations of every kind."""
    for _ in range(count):
        live = ids(bank)
        draft = Draft(f"text {rng.random()}", rng.choice(MEMORY_KINDS), sources=(f"D{rng.randint(1, 9)}:1",))
        match rng.choice(["create", "create", "update", "delete", "merge", "split", "core"]):
            case "update" if live:
                bank.update(rng.choice(live), draft, BY)
            case "delete" if live:
                bank.delete(rng.choice(live), BY)
            case "merge" if len(live) > 1:
                bank.merge(rng.sample(live, rng.randint(2, min(4, len(live)))), draft, BY)
            case "split" if live:
                bank.split(rng.choice(live), [draft] * rng.randint(2, 3), BY)
            case "core":
                bank.edit_core(f"core {rng.random()}", BY)
            case _:
                bank.create([draft] * rng.randint(1, 3), BY)


def contents(bank: MemoryBank) -> tuple[object, ...]:
    """Everything that can be seen of a bank."""
    made = [memory for operation in bank.operations() for memory in operation.created]
    everything = [bank.get(memory.memory_id) for memory in made]
    return bank.version, bank.core, len(bank), bank.live(), everything, bank.operations()


# -- laws ----------------------------------------------------------------------------------------

SEEDS = st.integers(0, 2**32)
COUNTS = st.integers(0, 150)  # beyond the checkpoints at 64 and 128


@given(seed=SEEDS, count=COUNTS)
@settings(max_examples=20)
def test_replaying_the_log_gives_the_bank(seed: int, count: int) -> None:
    bank = MemoryBank("test")
    write_at_random(bank, random.Random(seed), count)
    assert contents(MemoryBank.replay("test", bank.operations())) == contents(bank)


@given(seed=SEEDS, count=COUNTS, share=st.floats(0, 1))
@settings(max_examples=20)
def test_at_gives_the_bank_as_it_was(seed: int, count: int, share: float) -> None:
    rng = random.Random(seed)
    bank = MemoryBank("test")
    before = int(count * share)
    write_at_random(bank, rng, before)
    snapshot = contents(bank)
    version = bank.version
    write_at_random(bank, rng, count - before)
    assert contents(bank.at(version)) == snapshot
    assert contents(bank.undo(bank.version - version)) == snapshot


@given(seed=SEEDS, common=COUNTS, mine=st.integers(0, 80), yours=st.integers(0, 80))
@settings(max_examples=20)
def test_forks_never_see_each_other(seed: int, common: int, mine: int, yours: int) -> None:
    rng = random.Random(seed)
    bank = MemoryBank("test")
    write_at_random(bank, rng, common)
    snapshot, version = contents(bank), bank.version
    fork = bank.fork()
    write_at_random(fork, random.Random(seed + 1), yours)
    assert contents(bank) == snapshot
    yours_alone = contents(fork)
    write_at_random(bank, random.Random(seed + 2), mine)
    assert contents(fork) == yours_alone
    for line in (bank, fork):
        assert contents(MemoryBank.replay("test", line.operations())) == contents(line)
        assert contents(line.at(version)) == snapshot
        assert line.extends(bank.at(version))
        assert line.extends(line.fork())
    assert bank.extends(fork) == (yours == 0)
    assert fork.extends(bank) == (mine == 0)


@given(seed=SEEDS, count=COUNTS, cuts=st.tuples(st.floats(0, 1), st.floats(0, 1)))
@settings(max_examples=20)
def test_a_diff_turns_the_older_live_memories_into_the_newer(
    seed: int, count: int, cuts: tuple[float, float]
) -> None:
    bank = MemoryBank("test")
    write_at_random(bank, random.Random(seed), count)
    older, newer = sorted(int(cut * bank.version) for cut in cuts)
    diff = bank.diff(older, newer)
    before, after = bank.at(older), bank.at(newer)
    created, superseded = [m.memory_id for m in diff.created], [m.memory_id for m in diff.superseded]
    assert set(ids(after)) == (set(ids(before)) - set(superseded)) | set(created)
    assert set(superseded) <= set(ids(before))
    assert set(created).isdisjoint(ids(before))
    assert [m for m in after.live() if m.memory_id in created] == list(diff.created)
    assert (diff.core_before, diff.core_after) == (before.core, after.core)
    assert all(m.superseded is not None and older < m.superseded <= newer for m in diff.superseded)


@given(seed=SEEDS, common=st.integers(0, 80), mine=st.integers(0, 40), yours=st.integers(0, 40))
@settings(max_examples=30)
def test_a_rebase_only_renumbers_the_memories_of_the_fork(
    seed: int, common: int, mine: int, yours: int
) -> None:
    bank = MemoryBank("test")
    write_at_random(bank, random.Random(seed), common)
    fork = bank.fork()
    write_at_random(fork, random.Random(seed + 1), yours)
    for number in range(mine):  # creations only: whatever the fork ends is still live here
        bank.create([fact(f"mine {number}")], BY)
    recorded = fork.operations(since=bank.version - mine)
    version = bank.version
    expected = {m.text for m in bank.live() if m.text.startswith("mine")} | set(texts(fork))
    grafted = bank.rebase(recorded)
    assert bank.operations(since=version) == grafted
    assert [(o.kind, o.provenance, o.core) for o in grafted] == [
        (o.kind, o.provenance, o.core) for o in recorded
    ]
    assert set(texts(bank)) == expected
    assert contents(MemoryBank.replay("test", bank.operations())) == contents(bank)


@given(seed=SEEDS, count=COUNTS)
@settings(max_examples=20)
def test_ids_are_sequential_and_never_used_twice(seed: int, count: int) -> None:
    bank = MemoryBank("test")
    write_at_random(bank, random.Random(seed), count)
    made = [memory.memory_id for operation in bank.operations() for memory in operation.created]
    assert made == [f"m{number}" for number in range(1, len(made) + 1)]


# -- operations ----------------------------------------------------------------------------------


def test_an_update_keeps_the_old_sources_and_date() -> None:
    bank = MemoryBank("test")
    bank.create([fact("Alice lives in Oslo.", "D1:1", at=date(2023, 5, 7))], BY)
    operation = bank.update("m1", fact("Alice lives in Bergen.", "D2:1", "D1:1"), BY)
    assert operation == Operation(
        OperationKind.UPDATE,
        2,
        BY,
        ("m1",),
        (Memory("m2", SEMANTIC, "Alice lives in Bergen.", date(2023, 5, 7), ("D1:1", "D2:1"), 2),),
    )
    assert bank.get("m1").superseded == 2


@pytest.mark.parametrize(
    ("days", "kept"), [([1, 1], 1), ([None, 1], 1), ([1, 2], None), ([None, None], None)]
)
def test_a_merge_keeps_all_sources_and_an_undisputed_date(days, kept) -> None:
    bank = MemoryBank("test")
    dates = {day: date(2023, 5, day) if day else None for day in (*days, kept)}
    bank.create([fact("A.", "D1:1", at=dates[days[0]]), fact("B.", "D1:2", at=dates[days[1]])], BY)
    merged = bank.merge(["m1", "m2"], fact("A and B."), BY).created[0]
    assert (merged.sources, merged.happened_at) == (("D1:1", "D1:2"), dates[kept])
    assert ids(bank) == ["m3"]


def test_a_split_gives_each_part_the_sources_and_the_date() -> None:
    bank = MemoryBank("test")
    bank.create([fact("A and B.", "D1:1", at=date(2023, 5, 1))], BY)
    parts = bank.split("m1", [fact("A.", "D1:2"), fact("B.", at=date(2024, 1, 1))], BY).created
    assert [part.sources for part in parts] == [("D1:1", "D1:2"), ("D1:1",)]
    assert [part.happened_at for part in parts] == [date(2023, 5, 1), date(2024, 1, 1)]


def test_a_deleted_memory_is_not_live_but_can_be_recovered() -> None:
    bank = bank_of("A.", "B.")
    bank.delete("m1", BY)
    assert texts(bank) == ["B."]
    assert "m1" not in bank
    assert (bank.get("m1").text, bank.get("m1").superseded) == ("A.", 3)
    assert texts(bank.undo()) == ["A.", "B."]


def test_the_live_memories_of_one_kind_are_listed_in_order() -> None:
    bank = MemoryBank("test")
    bank.create([Draft(f"text {number}", MEMORY_KINDS[number % 3]) for number in range(30)], BY)
    bank.update("m2", Draft("later", MemoryKind.SEMANTIC), BY)
    assert [m.memory_id for m in bank.live(MemoryKind.SEMANTIC)] == [
        *(f"m{number}" for number in range(5, 30, 3)),
        "m31",
    ]


def test_text_is_stripped_and_the_core_is_kept_as_written() -> None:
    bank = bank_of("  A.\n")
    bank.edit_core("  a core\n", BY)
    assert (bank.get("m1").text, bank.core) == ("A.", "  a core\n")


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda bank: bank.create([], BY), "nothing to create"),
        (lambda bank: bank.create([fact("ok"), fact(" \n")], BY), "give a text"),
        (lambda bank: bank.create([Draft("x", MemoryKind.CORE)], BY), "episodic, semantic, procedural"),
        (lambda bank: bank.create([fact("x", at=datetime(2023, 5, 7))], BY), "a date without a time"),
        (lambda bank: bank.update("m9", fact("x"), BY), "'m9' is not a memory here .ids run from m1 to m3"),
        (lambda bank: bank.update("m3", fact("x"), BY), "superseded in version 4: search again"),
        (lambda bank: bank.update("m1", fact(""), BY), "give a text"),
        (lambda bank: bank.delete("M1", BY), "'M1' is not a memory here"),
        (lambda bank: bank.merge(["m1"], fact("x"), BY), "at least two different"),
        (lambda bank: bank.merge(["m1", "m1"], fact("x"), BY), "at least two different"),
        (lambda bank: bank.merge(["m1", "m9"], fact("x"), BY), "'m9'"),
        (lambda bank: bank.split("m1", [fact("x")], BY), "1 parts: a split needs at least two"),
        (lambda bank: bank.edit_core("x" * (CORE_LIMIT_CHARS + 1), BY), "at most 5000 fit"),
        (lambda bank: bank.at(5), "must be from 0 to 4"),
        (lambda bank: bank.at(-1), "must be from 0 to 4"),
        (lambda bank: bank.undo(5), "count=5 must be from 0 to 4"),
        (lambda bank: bank.undo(-1), "count=-1"),
        (lambda bank: bank.diff(3, 2), "older=3 must not be above newer=2"),
        (lambda bank: bank.diff(0, 9), "version=9"),
        (lambda bank: bank.get("m9"), "ids run from m1 to m3"),
        (lambda bank: bank.history("m9"), "ids run from m1 to m3"),
        (lambda bank: bank.append(bank.operations()[0]), "cannot follow version 4"),
    ],
)
def test_a_bad_operation_says_why_and_changes_nothing(act: Callable[[MemoryBank], object], says: str) -> None:
    bank = bank_of("A.", "B.", "C.")
    bank.delete("m3", BY)
    before = contents(bank)
    with pytest.raises(MemoryOperationError, match=says):
        act(bank)
    assert contents(bank) == before


def test_an_unknown_id_is_a_key_error_with_a_plain_message() -> None:
    with pytest.raises(KeyError) as caught:
        bank_of().get("m1")
    assert str(caught.value) == "'m1' is not in bank 'test' (it has no memories yet)"
    assert isinstance(caught.value, UnknownMemoryError)


@pytest.mark.parametrize(
    "operation",
    [
        Operation(OperationKind.DELETE, 2, BY, superseded=("m1", "m1")),
        Operation(OperationKind.DELETE, 2, BY, superseded=("m2",)),
        Operation(OperationKind.CREATE, 2, BY, created=(Memory("m3", SEMANTIC, "x", None, (), 2),)),
        Operation(OperationKind.CREATE, 2, BY, created=(Memory("m2", SEMANTIC, "x", None, (), 1),)),
        Operation(OperationKind.CREATE, 2, BY, created=(Memory("m2", SEMANTIC, "", None, (), 2),)),
        Operation(OperationKind.CREATE, 3, BY, created=(Memory("m2", SEMANTIC, "x", None, (), 3),)),
    ],
)
def test_a_replay_rejects_an_operation_that_does_not_follow(operation: Operation) -> None:
    log = bank_of("A.").operations()
    with pytest.raises(MemoryOperationError):
        MemoryBank.replay("test", [*log, operation])


def test_a_memory_without_text_is_refused_by_its_kind() -> None:
    memory = Memory("m1", MemoryKind.EPISODIC, "", None, (), 1)
    with pytest.raises(MemoryOperationError, match="a memory of kind episodic with text '' cannot be stored"):
        MemoryBank.replay("test", [Operation(OperationKind.CREATE, 1, BY, created=(memory,))])


# -- history, rebase, threads ---------------------------------------------------------------------


def test_the_history_of_a_memory_lists_its_ancestors_and_descendants() -> None:
    bank = MemoryBank("test")
    bank.create([fact("A."), fact("B.")], BY)  # 1: m1 m2
    bank.create([fact("Z.")], BY)  # 2: m3
    bank.merge(["m1", "m2"], fact("A and B."), BY)  # 3: m4
    bank.update("m3", fact("Z!"), BY)  # 4: m5
    bank.split("m4", [fact("A'."), fact("B'.")], BY)  # 5: m6 m7
    bank.update("m7", fact("B''."), BY)  # 6: m8
    bank.update("m6", fact("A''."), BY)  # 7: m9
    assert [operation.version for operation in bank.history("m6")] == [1, 3, 5, 7]
    assert [operation.version for operation in bank.history("m1")] == [1, 3, 5, 6, 7]
    assert [operation.version for operation in bank.history("m5")] == [2, 4]


def test_a_rebase_renumbers_the_ids_in_later_operations() -> None:
    bank = bank_of("A.")
    one, two = bank.fork(), bank.fork()
    one.create([fact("one")], BY)
    two.create([fact("two")], BY)
    two.update("m2", fact("two again"), BY)
    two.update("m1", fact("A again."), BY)
    bank.rebase(one.operations(since=1))
    bank.rebase(two.operations(since=1))
    assert [(memory.memory_id, memory.text) for memory in bank.live()] == [
        ("m2", "one"),
        ("m4", "two again"),
        ("m5", "A again."),
    ]
    assert [memory.created for memory in bank.live()] == [2, 4, 5]


def test_a_failed_rebase_leaves_the_bank_unchanged() -> None:
    bank = bank_of("A.")
    fork = bank.fork()
    fork.create([fact("B.")], BY)
    fork.delete("m1", BY)
    bank.delete("m1", BY)
    before = contents(bank)
    with pytest.raises(UnknownMemoryError, match="'m1' is not live"):
        bank.rebase(fork.operations(since=1))
    assert contents(bank) == before
    bank.create([fact("C.")], BY)
    assert texts(bank) == ["C."]
    assert texts(fork) == ["B."]


def test_a_fork_can_have_another_name() -> None:
    bank = bank_of("A.")
    assert bank.fork("rollout-1").namespace == "rollout-1"
    assert bank.at(0, "empty").namespace == "empty"
    assert bank.fork().namespace == "test"


def test_many_threads_can_write_to_forks() -> None:
    bank = bank_of("A.", "B.")
    forks = [bank.fork() for _ in range(8)]
    threads = [
        threading.Thread(target=write_at_random, args=(fork, random.Random(seed), 150))
        for seed, fork in enumerate(forks)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, fork in enumerate(forks):
        alone = bank_of("A.", "B.")
        write_at_random(alone, random.Random(seed), 150)
        assert contents(fork) == contents(alone)
    assert texts(bank) == ["A.", "B."]


def test_a_concurrent_reader_never_leaves_a_stale_cache() -> None:
    bank = bank_of()
    bank.create([fact(f"text {number}") for number in range(500)], BY)
    has_ended = threading.Event()

    def read() -> None:
        while not has_ended.is_set():
            bank.live()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # else a switch in the short moment that matters is rare
    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(200):
            bank.create([fact(f"more {number}")], BY)
            time.sleep(0.0005)
            assert bank.live()[-1].text == f"more {number}"
    finally:
        has_ended.set()
        reader.join()
        sys.setswitchinterval(interval)
