"""The store loads saved spaces unchanged and in order; a refused save writes nothing.

Every test of ``store_url`` runs on SQLite, and on PostgreSQL where TEST_POSTGRES_URL names a database.
"""

import json
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import create_engine, make_url, select, text

from locomo.types import Session, Turn
from memory_program.bank.db_schema import VECTORS
from memory_program.bank.dense import DenseIndex
from memory_program.bank.forgetting import forget_namespace
from memory_program.bank.memory import MEMORY_KINDS, Draft, MemoryKind, Provenance
from memory_program.bank.outcomes import CallFailure, Outcome, SessionRecord
from memory_program.bank.rows import read_embedding_model
from memory_program.bank.snapshot import Snapshot
from memory_program.bank.space import MemorySpace
from memory_program.bank.store import BankStore, RetractedOperation
from memory_program.core.errors import (
    ConfigError,
    ConflictError,
    EmbeddingMismatchError,
    MemoryOperationError,
    SessionConflictError,
    StoreError,
)
from tests.conversations import session
from tests.databases import DATABASES, NO_POSTGRES, POSTGRES_URL, empty_database, execute

BY = Provenance("semantic", "session_1", "because")
ODD_TEXTS = ["nul\0byte", "\ud800 half", "🏖️ beach", "שלום עולם", "a'b\"c; DROP TABLE x --", "é" * 100_000]


@pytest.fixture(params=DATABASES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with empty_database(request.param, tmp_path) as url:
        yield url


@pytest.fixture
def store(store_url: str) -> Iterator[BankStore]:
    with BankStore(store_url) as store:
        yield store


def remember(space: MemorySpace, number: int, *texts: str, lines: tuple[str, ...] = ()) -> None:
    """Ingest session ``number`` with a memory for each text."""
    spoken = session(number, *(lines or (f"Mara: line of session {number}", "Tom: I see.")))
    for line in texts:
        draft = Draft(line, MemoryKind.SEMANTIC, date(2023, 5, 7), (f"D{number}:1",))
        space.bank.create([draft], Provenance("semantic", spoken.session_id, "said so"))
    space.ingest(spoken, SessionRecord(spoken.session_id, operations=len(texts)))


def assert_same(got: MemorySpace, expected: MemorySpace) -> None:
    assert got.bank.operations() == expected.bank.operations()
    assert got.bank.live() == expected.bank.live()
    assert got.bank.core == expected.bank.core
    assert list(got.sessions.items()) == list(expected.sessions.items())
    assert got.archive.sessions == expected.archive.sessions
    assert got.revision == expected.revision


def texts(space: MemorySpace) -> list[str]:
    return [memory.text for memory in space.bank.live()]


@pytest.mark.skipif(POSTGRES_URL is None, reason=NO_POSTGRES)
def test_these_tests_run_on_postgresql_too() -> None:
    assert "postgresql" in DATABASES


# -- save and load -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_a_space_is_loaded_as_it_was_saved(store_url: str, seed: int) -> None:
    rng = random.Random(seed)
    with BankStore(store_url) as store:
        space = store.load("test")
        for number in range(1, 8):
            for _ in range(rng.randint(0, 12)):
                draft = Draft(rng.choice(ODD_TEXTS), rng.choice(MEMORY_KINDS), None, ("D1:1", "D1:2"))
                live = [memory.memory_id for memory in space.bank.live()]
                if live and rng.random() < 0.3:
                    space.bank.update(rng.choice(live), draft, BY)
                elif live and rng.random() < 0.2:
                    space.bank.delete(rng.choice(live), BY)
                else:
                    space.bank.create([draft] * rng.randint(1, 3), BY)
            space.bank.edit_core(f"core {number} \0 \ud800", BY)
            remember(space, number)
            if rng.random() < 0.6:
                store.save(space)
        store.save(space)
    with BankStore(store_url) as store:
        assert_same(store.load("test"), space)


def test_sessions_and_records_come_back_with_every_field(store: BankStore) -> None:
    when = session(1).date_time.replace(second=7)
    turns = tuple(
        Turn(f"D1:{n}", "Zoë \0", odd, "a cap\0tion", "https://x/y.png", "query")
        for n, odd in enumerate(ODD_TEXTS)
    )
    spoken = Session(1, when, turns)
    record = SessionRecord(
        "session_1",
        operations=3,
        tool_calls=5,
        tool_errors=("semantic: unknown id",),
        failures=(CallFailure("writer.core", Outcome.TRUNCATED, "cut\0 off"),),
        left_out=("m1", "m2"),
    )
    space = store.load("test")
    space.ingest(spoken, record)
    store.save(space)
    assert_same(store.load("test"), space)
    assert store.load("test").has_session(spoken)


def test_a_namespace_that_was_never_saved_is_empty(store: BankStore) -> None:
    space = store.load("nobody")
    assert (space.revision, space.bank.version, space.sessions) == (0, 0, {})
    assert store.namespaces() == []


def test_namespaces_keep_apart_and_are_listed_in_order(store: BankStore) -> None:
    for name in ("zoe", "alice", "Bob's %_ 'x'"):
        space = store.load(name)
        remember(space, 1, f"fact of {name}")
        store.save(space)
    assert store.namespaces() == sorted(["zoe", "alice", "Bob's %_ 'x'"])
    assert texts(store.load("alice")) == ["fact of alice"]


def test_a_save_without_changes_writes_nothing(store: BankStore) -> None:
    space = store.load("test")
    store.save(space)
    assert (store.namespaces(), space.revision) == (["test"], 1)
    store.save(space)
    assert space.revision == store.load("test").revision == 1
    remember(space, 1, "A fact.")
    store.save(space)
    assert space.revision == store.load("test").revision == 2


def test_a_session_without_operations_is_saved(store: BankStore) -> None:
    space = store.load("test")
    remember(space, 1)
    store.save(space)
    assert list(store.load("test").sessions) == ["session_1"]


def test_a_fork_can_be_adopted_and_saved(store: BankStore) -> None:
    space = store.load("test")
    remember(space, 1, "A fact.")
    store.save(space)
    fork = space.fork()
    remember(fork, 2, "Another.")
    space.adopt(fork)
    store.save(space)
    assert texts(store.load("test")) == ["A fact.", "Another."]


def test_a_search_after_loading_finds_what_was_saved(store: BankStore) -> None:
    space = store.load("test")
    remember(space, 1, "Mara lives in Oslo.", lines=("Mara: I moved to Oslo.",))
    store.save(space)
    loaded = store.load("test")
    assert [found.memory.text for found in loaded.index.search(loaded.bank, "oslo")] == [
        "Mara lives in Oslo."
    ]
    assert [found.turn.turn_id for found in loaded.archive.search("oslo")] == ["D1:1"]


# -- conflicts -----------------------------------------------------------------------------------


def test_the_second_of_two_writers_is_refused_and_writes_nothing(store: BankStore) -> None:
    first = store.load("test")
    store.save(first)
    second = store.load("test")
    remember(first, 1, "From the first.")
    remember(second, 2, "From the second.")
    store.save(first)
    with pytest.raises(
        ConflictError, match=r"'test' was saved by another writer .*revision 1.*load it again"
    ):
        store.save(second)
    assert_same(store.load("test"), first)
    again = store.load("test")
    remember(again, 2, "From the second.")
    store.save(again)
    assert texts(store.load("test")) == ["From the first.", "From the second."]


def test_the_second_writer_of_a_new_namespace_is_refused(store: BankStore) -> None:
    first, second = store.load("test"), store.load("test")
    remember(first, 1, "From the first.")
    remember(second, 2, "From the second.")
    store.save(first)
    with pytest.raises(ConflictError, match="before it was first saved"):
        store.save(second)
    assert texts(store.load("test")) == ["From the first."]


def test_a_session_of_another_writer_is_known_after_loading_again(store: BankStore) -> None:
    first, second = store.load("test"), store.load("test")
    remember(first, 1, "A fact.")
    remember(second, 1, "The same fact.")
    store.save(first)
    with pytest.raises(ConflictError):
        store.save(second)
    spoken = first.sessions["session_1"].session
    assert store.load("test").has_session(spoken)
    assert texts(store.load("test")) == ["A fact."]


def test_a_session_with_other_content_is_refused(store: BankStore) -> None:
    first, second = store.load("test"), store.load("test")
    remember(first, 1, "A fact.")
    store.save(first)
    remember(second, 1, "Another fact.", lines=("Mara: something else",))
    with pytest.raises(
        SessionConflictError, match="'session_1' of namespace 'test' was saved with other content"
    ):
        store.save(second)
    assert_same(store.load("test"), first)


def test_every_one_of_many_sessions_is_compared(store: BankStore) -> None:
    first, second = store.load("test"), store.load("test")
    remember(first, 501)
    store.save(first)
    for number in range(1, 502):
        remember(second, number, lines=(f"Mara: number {number}",))
    with pytest.raises(SessionConflictError, match="'session_501' of namespace 'test' was saved with other"):
        store.save(second)


def test_a_fork_of_a_saved_space_saves_its_own_sessions(store: BankStore) -> None:
    space = space_of_three_sessions(store)
    fork = space.fork()
    remember(fork, 4, "one of 4")
    store.save(fork)
    assert_same(store.load("test"), fork)
    space.adopt(fork)
    assert list(space.sessions) == ["session_1", "session_2", "session_3", "session_4"]


def test_a_bank_that_was_undone_is_refused(store: BankStore) -> None:
    space = store.load("test")
    remember(space, 1, "A fact.", "Another.")
    store.save(space)
    space.bank = space.bank.undo()
    for _ in range(2):  # shorter than the saved log, then as long with another end
        with pytest.raises(
            StoreError, match=r"does not begin with the 2 operations .* with BankStore\.rewind"
        ):
            store.save(space)
        space.bank.create([Draft("Something else.", MemoryKind.SEMANTIC)], BY)
    assert texts(store.load("test")) == ["A fact.", "Another."]


# -- rewind --------------------------------------------------------------------------------------


def space_of_three_sessions(store: BankStore) -> MemorySpace:
    space = store.load("test")
    for number in (1, 2, 3):
        remember(space, number, f"one of {number}", f"two of {number}")
        store.save(space)
    return space


def test_a_rewind_retracts_operations_and_sessions(store: BankStore) -> None:
    space = space_of_three_sessions(store)
    log = space.bank.operations()
    rewound = store.rewind("test", 4)
    assert texts(rewound) == ["one of 1", "two of 1", "one of 2", "two of 2"]
    assert list(rewound.sessions) == ["session_1", "session_2"]
    assert len(rewound.archive) == 4
    assert store.retracted("test") == [RetractedOperation(4, operation) for operation in log[4:]]
    assert_same(store.load("test"), rewound)


def test_a_session_can_be_ingested_again_after_a_rewind(store: BankStore) -> None:
    space_of_three_sessions(store)
    space = store.rewind("test", 4)
    remember(space, 3, "three, told anew")
    store.save(space)
    assert_same(store.load("test"), space)
    again = store.rewind("test", 0)
    assert (again.bank.version, again.sessions, again.revision) == (0, {}, 6)
    revisions = [retracted.revision for retracted in store.retracted("test")]
    assert revisions == [4, 4, 6, 6, 6, 6, 6]


def test_retracted_operations_can_be_rebased(store: BankStore) -> None:
    space_of_three_sessions(store)
    space = store.rewind("test", 4)
    space.bank.create([Draft("new", MemoryKind.SEMANTIC)], BY)
    space.bank.rebase([retracted.operation for retracted in store.retracted("test")])
    store.save(space)
    assert texts(store.load("test"))[4:] == ["new", "one of 3", "two of 3"]


def test_a_partly_rewound_session_counts_as_not_ingested(store: BankStore) -> None:
    space_of_three_sessions(store)
    rewound = store.rewind("test", 3)
    assert list(rewound.sessions) == ["session_1"]
    assert texts(rewound) == ["one of 1", "two of 1", "one of 2"]


def test_a_rewind_keeps_later_sessions_that_wrote_nothing(store: BankStore) -> None:
    space = space_of_three_sessions(store)
    by_user = Provenance("user", "request_1")
    space.bank.create([Draft("an edit by a user", MemoryKind.SEMANTIC)], by_user)
    remember(space, 4)
    store.save(space)
    rewound = store.rewind("test", 6)
    assert list(rewound.sessions) == ["session_1", "session_2", "session_3", "session_4"]
    assert "an edit by a user" not in texts(rewound)
    rewound = store.rewind("test", 3)  # the second and third session wrote what is undone
    assert list(rewound.sessions) == ["session_1", "session_4"]
    assert rewound.sessions["session_4"].version == 3
    remember(rewound, 5, "one of 5")
    store.save(rewound)
    assert list(store.load("test").sessions) == ["session_1", "session_4", "session_5"]
    assert_same(store.load("test"), rewound)


def test_a_rewind_of_what_another_writer_has_changed_is_refused(store: BankStore) -> None:
    space = space_of_three_sessions(store)
    loaded = space.revision
    remember(space, 4, "one of 4")
    store.save(space)
    with pytest.raises(ConflictError):
        store.rewind("test", 4, loaded=loaded)
    assert "one of 4" in texts(store.load("test"))
    assert list(store.rewind("test", 6, loaded=space.revision).sessions)[-1] == "session_3"


def test_a_deleted_namespace_is_never_taken_for_a_new_one_of_its_name(store_url: str) -> None:
    with BankStore(store_url) as store:
        held = space_of_three_sessions(store)
        forget_namespace(store_url, "test")
        new = store.load("test")
        for number in range(1, 6):
            remember(new, number, f"new {number}")
            store.save(new)
            assert store.revision("test") == new.revision > held.revision
        remember(held, 4, "too late")
        with pytest.raises(ConflictError):
            store.save(held)
        assert store.load("another").revision == 0


def test_a_writer_that_loaded_before_a_rewind_is_refused(store: BankStore) -> None:
    space = space_of_three_sessions(store)
    store.rewind("test", 6)
    remember(space, 4, "too late")
    with pytest.raises(ConflictError):
        store.save(space)


def test_a_rewind_to_an_unknown_version_changes_nothing(store: BankStore) -> None:
    space = space_of_three_sessions(store)
    for version in (-1, 7):
        with pytest.raises(MemoryOperationError, match=f"version={version} must be from 0 to 6"):
            store.rewind("test", version)
    assert_same(store.load("test"), space)
    with pytest.raises(StoreError, match="'nobody' was never saved"):
        store.rewind("nobody", 0)


# -- vectors -------------------------------------------------------------------------------------


class CountingEmbedder:
    """Embed a text by its length and its vowels, and count the texts."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, texts: list[str]) -> np.ndarray:
        self.texts += texts
        return np.array([[len(text), text.count("a"), text.count("e")] for text in texts], dtype=float)


def dense(embedder: CountingEmbedder, model: str = "counting", dimension: int = 3) -> DenseIndex:
    return DenseIndex(embedder, model, dimension)


def test_a_reopened_store_embeds_no_memory_again(store_url: str) -> None:
    with BankStore(store_url, dense(first := CountingEmbedder())) as store:
        space = store.load("test")
        remember(space, 1, "A beach.", "A sea.")
        store.save(space)
        before = space.index.search(space.bank, "beach")
    assert first.texts == ["A beach. 7 May 2023", "A sea. 7 May 2023", "beach"]
    with BankStore(store_url, dense(second := CountingEmbedder())) as store:
        loaded = store.load("test")
        assert loaded.index.search(loaded.bank, "beach") == before
        assert second.texts == ["beach"]
        remember(loaded, 2, "A lake.")
        store.save(loaded)
        assert second.texts == ["beach", "A lake. 7 May 2023"]


def test_memories_saved_without_a_model_are_embedded_once_later(store_url: str) -> None:
    with BankStore(store_url) as store:
        remember(space := store.load("test"), 1, "A beach.")
        store.save(space)
    with BankStore(store_url, dense(embedder := CountingEmbedder())) as store:
        one, two = store.load("test"), store.load("test")
        store.save(one)
        store.save(two)  # vectors alone are no conflict
        assert one.revision == two.revision == 1
        assert embedder.texts == ["A beach. 7 May 2023"] * 2
    with BankStore(store_url, dense(later := CountingEmbedder())) as store:
        store.save(store.load("test"))
        assert later.texts == []


@pytest.mark.parametrize(("model", "dimension"), [("other", 3), ("counting", 4)])
def test_another_embedding_model_is_refused_until_vectors_are_dropped(
    store_url: str, model: str, dimension: int
) -> None:
    with BankStore(store_url, dense(CountingEmbedder())) as store:
        remember(space := store.load("test"), 1, "A beach.")
        store.save(space)
    with pytest.raises(
        EmbeddingMismatchError,
        match=rf"of 'counting' with dimension 3, not of '{model}' with {dimension}: .*drop_vectors",
    ):
        BankStore(store_url, dense(CountingEmbedder(), model, dimension))
    with BankStore(store_url) as store:
        assert texts(store.load("test")) == ["A beach."]
        store.drop_vectors()
    with BankStore(store_url, dense(CountingEmbedder(), model, dimension)) as store:
        assert store.load("test").index.dense is not None


def test_an_embedding_model_that_changed_since_opening_writes_nothing(store_url: str) -> None:
    with (
        BankStore(store_url, dense(CountingEmbedder())) as one,
        BankStore(store_url, dense(CountingEmbedder(), "other")) as two,
    ):
        remember(space := one.load("test"), 1, "A beach.")
        one.save(space)
        remember(late := two.load("test"), 2, "A sea.")
        with pytest.raises(EmbeddingMismatchError):
            two.save(late)
        assert_same(one.load("test"), space)


@pytest.mark.parametrize("model", ["counting", "other"])
def test_two_writers_of_the_first_vectors_of_a_database_agree_on_their_model(
    store_url: str, model: str
) -> None:
    with (
        BankStore(store_url, dense(CountingEmbedder())) as one,
        BankStore(store_url, dense(CountingEmbedder(), model)) as two,
        ThreadPoolExecutor() as threads,
    ):
        remember(early := one.load("early"), 1, "A beach.")
        remember(late := two.load("late"), 2, "A sea.")
        at_once = list[Future[None]]()

        def save_another(_: object) -> None:
            at_once.append(threads.submit(two.save, late))
            time.sleep(0.3)

        one.save(early, save_another)
        error = at_once[0].exception()
        assert error is None if model == "counting" else isinstance(error, EmbeddingMismatchError), error
        assert two.namespaces() == (["early", "late"] if model == "counting" else ["early"])


def test_vectors_that_are_added_while_all_are_dropped_are_dropped_too(store_url: str) -> None:
    with BankStore(store_url, dense(CountingEmbedder())) as store, ThreadPoolExecutor() as threads:
        remember(space := store.load("test"), 1, "A beach.")
        store.save(space)
        remember(space, 2, "A sea.")

        def drop(_: object) -> None:
            threads.submit(store.drop_vectors)
            time.sleep(0.3)

        store.save(space, drop)
        threads.shutdown()
        with store.database.reading() as connection:
            assert connection.execute(select(VECTORS)).all() == []
            assert read_embedding_model(connection) is None


# -- threads -------------------------------------------------------------------------------------


def in_threads(count: int, work: Callable[[int], None]) -> None:
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def write_five_sessions_in_each_of_twelve_threads(store: BankStore) -> None:
    def work(which: int) -> None:
        for number in range(1, 6):
            space = store.load(f"space {which}")
            remember(space, number, f"fact {number}")
            store.save(space)

    in_threads(12, work)
    assert len(store.namespaces()) == 12
    for name in store.namespaces():
        assert texts(store.load(name)) == [f"fact {number}" for number in range(1, 6)]


def test_vectors_of_a_bank_that_was_erased_meanwhile_are_not_saved(store_url: str) -> None:
    with BankStore(store_url) as store:
        remember(space := store.load("test"), 1, "A beach.")
        store.save(space)
    with BankStore(store_url, dense(CountingEmbedder())) as store:
        stale = store.load("test")
        forget_namespace(store_url, "test")
        store.save(stale)
        with store.database.reading() as connection:
            assert connection.scalar(text("SELECT count(*) FROM memory_vectors")) == 0


def test_many_threads_use_one_store(store: BankStore) -> None:
    write_five_sessions_in_each_of_twelve_threads(store)


def test_many_threads_use_one_database_in_memory() -> None:
    with BankStore("sqlite://") as store:
        write_five_sessions_in_each_of_twelve_threads(store)


def test_threads_that_share_a_namespace_lose_and_repeat_nothing(store: BankStore) -> None:
    def work(which: int) -> None:
        for number in range(4):
            while True:
                space = store.load("shared")
                remember(space, 10 * which + number, f"fact {which} {number}")
                try:
                    store.save(space)
                    break
                except ConflictError:
                    continue

    in_threads(5, work)
    space = store.load("shared")
    assert sorted(texts(space)) == [f"fact {which} {number}" for which in range(5) for number in range(4)]
    assert space.revision == 20


# -- edges ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "x" * 201, "nul\0byte", "half \ud800", "two\nlines"])
def test_an_invalid_namespace_is_refused(store: BankStore, name: str) -> None:
    for act in (store.load, store.retracted, lambda name: store.rewind(name, 0)):
        with pytest.raises(ConfigError, match="1 to 200 characters"):
            act(name)
    with pytest.raises(ConfigError):
        store.save(MemorySpace(name))


def test_a_closed_store_opens_again_when_it_is_used(store: BankStore) -> None:
    store.save(store.load("test"))
    store.close()
    assert store.namespaces() == ["test"]


@pytest.mark.skipif(POSTGRES_URL is None, reason=NO_POSTGRES)
def test_a_save_waits_for_a_locked_row_and_then_fails(tmp_path: Path) -> None:
    with (
        empty_database("postgresql", tmp_path) as store_url,
        BankStore(store_url, busy_timeout_s=0.2) as store,
    ):
        store.save(store.load("test"))
        remember(space := store.load("test"), 1, "A fact.")
        other = create_engine(make_url(store_url).set(drivername="postgresql+psycopg"))
        with other.begin() as connection:
            connection.execute(text("SELECT * FROM memory_namespaces FOR UPDATE"))
            with pytest.raises(
                StoreError, match=r"is locked by another process .* 0\.2 s; nothing was written"
            ):
                store.save(space)
        other.dispose()
        store.save(space)
        assert texts(store.load("test")) == ["A fact."]


@pytest.mark.skipif(POSTGRES_URL is None, reason=NO_POSTGRES)
def test_dropped_connections_lose_nothing_that_was_saved(tmp_path: Path) -> None:
    with empty_database("postgresql", tmp_path) as store_url, ExitStack() as stack:
        name = f"test_{uuid.uuid4().hex}"  # other tests use the same server
        named = make_url(store_url).update_query_dict({"application_name": name})
        store = stack.enter_context(BankStore(named.render_as_string(hide_password=False)))
        remember(space := store.load("test"), 1, "A fact.")
        store.save(space)
        remember(space, 2, "Another.")
        terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = :name"
        execute(store_url, terminate, name=name)
        with pytest.raises(StoreError, match="nothing was written"):
            store.save(space)
        assert space.revision == 1
        store.save(space)
        assert_same(store.load("test"), space)
        assert texts(space) == ["A fact.", "Another."]


def test_a_bank_is_read_without_its_archive():
    with BankStore("sqlite://") as store:
        space = store.load("alice")
        space.bank.create([Draft("Alice lives in Oslo.", MemoryKind.SEMANTIC)], Provenance("semantic"))
        store.save(space)
        assert store.bank("alice").operations() == space.bank.operations()
        assert store.bank("bob").operations() == []
        with pytest.raises(ConfigError, match="namespace=''"):
            store.bank("")


def test_open_existing_creates_no_database(tmp_path: Path):
    path = tmp_path / "banks.sqlite"
    with pytest.raises(StoreError, match=r"no banks are in '.*banks\.sqlite'"):
        BankStore.open_existing(f"sqlite:///{path}")
    assert not path.exists()
    with BankStore(f"sqlite:///{path}") as store:
        store.save(store.load("alice"))
    with BankStore.open_existing(f"sqlite:///{path}") as store:
        assert store.namespaces() == ["alice"]


# -- snapshots -----------------------------------------------------------------------------------


def write_at_random(space: MemorySpace, rng: random.Random) -> None:
    live = [memory.memory_id for memory in space.bank.live()]
    words = rng.choices(["beach", "sea", "dog", "Oslo", "\0", "\ud800", "piano", "race"], k=4)
    draft = Draft(" ".join(words), rng.choice(MEMORY_KINDS), rng.choice([None, date(2023, 5, 7)]), ("D1:1",))
    if live and rng.random() < 0.3:
        space.bank.update(rng.choice(live), draft, BY)
    elif live and rng.random() < 0.2:
        space.bank.delete(rng.choice(live), BY)
    elif rng.random() < 0.1:
        space.bank.edit_core(f"core {rng.random()}", BY)
    else:
        space.bank.create([draft] * rng.randint(1, 3), BY)


def assert_behaves_as(space: MemorySpace, whole: MemorySpace) -> None:
    """Compare a space in everything with one that was never opened from a snapshot."""
    made = [memory.memory_id for operation in whole.bank.operations() for memory in operation.created]
    assert (space.bank.version, len(space.bank)) == (whole.bank.version, len(whole.bank))
    assert [space.bank.get(name) for name in made] == [whole.bank.get(name) for name in made]
    assert [name in space.bank for name in [*made, "m0", "x"]] == [
        name in whole.bank for name in [*made, "m0", "x"]
    ]
    assert_same(space, whole)
    for query in ("dog on the beach", "Oslo 2023", "piano"):
        assert space.index.search(space.bank, query, 20) == whole.index.search(whole.bank, query, 20)
    for version in range(0, whole.bank.version + 1, 7):
        assert space.bank.at(version).live() == whole.bank.at(version).live()
        assert space.bank.diff(version) == whole.bank.diff(version)
        assert space.bank.extends(whole.bank.at(version))
        assert whole.bank.extends(space.bank.at(version))
    for name in made[:: len(made) // 5 + 1]:
        assert space.bank.history(name) == whole.bank.history(name)


@pytest.mark.parametrize("seed", range(2))
def test_a_bank_opened_from_a_snapshot_equals_the_whole_bank(store_url: str, seed: int) -> None:
    rng = random.Random(seed)
    whole = MemorySpace("test")
    for number in range(1, 6):
        with BankStore(store_url, snapshot_every=10) as store:
            space = store.load("test")
            version = space.bank.version
            for _ in range(rng.randint(5, 25)):
                write_at_random(space, rng)
            remember(space, number)
            store.save(space)
            for operation in space.bank.operations(since=version):
                whole.bank.append(operation)
            remember(whole, number)
            whole.revision = space.revision
            opened = store.load("test")
            assert opened.snapshot_version == space.snapshot_version
            assert_behaves_as(opened, whole)
            assert store.bank("test").live() == whole.bank.live()
            fork = opened.fork()
            write_at_random(fork, random.Random(number))
            assert fork.bank.live() != opened.bank.live() or fork.bank.core != opened.bank.core
            assert_behaves_as(opened, whole)
    assert space.snapshot_version > 0


def test_a_snapshot_is_stored_in_the_parts_of_format_3() -> None:
    space = MemorySpace("test")
    for spelling, day in (("Dog!", date(1, 1, 2)), ("dog DOG", None), ("dogs", None)):
        space.bank.create([Draft(spelling, MemoryKind.SEMANTIC, day, ("D1:1",))], BY)
    space.bank.delete("m1", BY)
    space.bank.edit_core("core", BY)
    parts = Snapshot(space.bank.compacted(), space.index.postings(space.bank)).to_parts()
    head = {"format": 3, "version": 5, "live": 2, "core": "core", "terms": ["dog"], "count_type": "|u1"}
    assert json.loads(parts.pop("head")) == head
    assert (parts.pop("texts"), parts.pop("sources")) == (b"Dog!dog DOGdogs", b'["D1:1"]' * 3)
    stored = {
        "kinds": ("<u1", [1, 1, 1]),
        "days": ("<i4", [2, 0, 0]),
        "created": ("<i4", [1, 2, 3]),
        "superseded": ("<i4", [4, 0, 0]),
        "text_ends": ("<i8", [4, 11, 15]),
        "source_ends": ("<i8", [8, 16, 24]),
        "posting_ends": ("<i8", [2]),
        "tops": ("<i4", [2]),
        "shortest": ("<i4", [1]),
        "positions": ("<i4", [0, 1]),
        "counts": ("<u1", [2, 1]),
        "lengths": ("<i4", [2, 1]),
    }
    assert parts == {name: np.array(values, dtype).tobytes() for name, (dtype, values) in stored.items()}


def test_a_snapshot_of_an_old_format_is_ignored_and_replaced(store_url: str, monkeypatch) -> None:
    with BankStore(store_url, snapshot_every=4) as store:
        with monkeypatch.context() as earlier:
            earlier.setattr("memory_program.bank.snapshot._FORMAT", 1)
            whole = space_of_three_sessions(store)
        opened = store.load("test")
        assert (whole.snapshot_version > 0, opened.snapshot_version) == (True, 0)
        assert_behaves_as(opened, whole)
        remember(opened, 4, *(f"fact {place}" for place in range(4)))
        store.save(opened)
        assert store.load("test").snapshot_version == opened.bank.version


def test_a_snapshot_is_made_when_the_log_has_grown_enough(store_url: str) -> None:
    made: list[int] = []
    with BankStore(store_url, snapshot_every=10) as store:
        space = store.load("test")
        for number in range(1, 41):
            remember(space, number, *(f"fact {place} of {number}" for place in range(4)))
            store.save(space)
            if space.snapshot_version not in (0, *made):
                made.append(space.snapshot_version)
    assert made == [12, 24, 36, 48, 60, 72, 84, 96, 108, 120, 136, 152]


def test_a_rewind_to_before_a_snapshot_deletes_it(store_url: str) -> None:
    with BankStore(store_url, snapshot_every=4) as store:
        space = space_of_three_sessions(store)
        assert store.load("test").snapshot_version == space.snapshot_version == 4
        assert store.rewind("test", 5).snapshot_version == 4
        rewound = store.rewind("test", 3)
        assert (rewound.snapshot_version, rewound.bank.version) == (0, 3)
        remember(rewound, 2, "another two", "and three")
        store.save(rewound)
        assert_same(store.load("test"), rewound)


def test_operations_before_a_snapshot_are_refused_after_a_rewind(store_url: str) -> None:
    with BankStore(store_url, snapshot_every=4) as store:
        space_of_three_sessions(store)
        opened = store.load("test")
        store.rewind("test", 3)
        assert len(opened.bank.live()) == 6
        with pytest.raises(ConflictError, match=r"'test' was rewound since it was loaded \(revision 3\)"):
            opened.bank.operations()


def test_forks_diverge_without_reading_operations_before_the_snapshot(store_url: str) -> None:
    with BankStore(store_url, snapshot_every=4) as store:
        space_of_three_sessions(store)
        opened = store.load("test")
        store.rewind("test", 3)  # whoever reads the older operations now is told so
        for number in range(4):
            fork = opened.fork()
            fork.bank.create([Draft(f"quokka {number}", MemoryKind.SEMANTIC)], BY)
            assert len(fork.index.search(fork.bank, "quokka")) == 1
            opened.bank.create([Draft("wombat", MemoryKind.SEMANTIC)], BY)
            assert len(opened.index.search(opened.bank, "wombat")) == number + 1
            assert not opened.bank.extends(fork.bank)


def test_memories_are_embedded_from_a_snapshot_too(store_url: str) -> None:
    with BankStore(store_url, snapshot_every=2) as store:
        space_of_three_sessions(store)
    with BankStore(store_url, dense(embedder := CountingEmbedder()), snapshot_every=2) as store:
        loaded = store.load("test")
        assert loaded.snapshot_version > 0
        assert len(loaded.index.search(loaded.bank, "one", 10)) == 6
        assert len(embedder.texts) == 7


def test_an_old_store_gets_the_snapshot_table(store_url: str) -> None:
    with BankStore(store_url) as store:
        remember(space := store.load("test"), 1, "A fact.")
        store.save(space)
    execute(store_url, "DROP TABLE memory_snapshots")
    with BankStore(store_url, snapshot_every=1) as store:
        remember(space := store.load("test"), 2, "Another.")
        store.save(space)
        assert store.load("test").snapshot_version == 2


def test_snapshot_every_must_be_at_least_one(store_url: str) -> None:
    with pytest.raises(ConfigError, match="snapshot_every=0 must be at least 1"):
        BankStore(store_url, snapshot_every=0)
