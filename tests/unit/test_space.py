"""A space ingests each session once, forks as a whole, and never adopts a fork over newer changes."""

import pytest

from memory_program.bank.dense import DenseIndex
from memory_program.bank.memory import Draft, MemoryKind, Provenance
from memory_program.bank.memory_search import MemoryIndex
from memory_program.bank.outcomes import SessionRecord
from memory_program.bank.space import MemorySpace
from memory_program.core.errors import ConflictError, SessionConflictError
from tests.conversations import session

BY = Provenance("semantic", "session_1")
ONE = session(1, "Mara: I moved to Oslo.", "Tom: How nice!")
TWO = session(2, "Tom: I got a dog.")


def remember(space: MemorySpace, number: int, text: str) -> None:
    space.bank.create([Draft(text, MemoryKind.SEMANTIC, sources=(f"D{number}:1",))], BY)
    lines = {1: ONE, 2: TWO}
    space.ingest(lines[number], SessionRecord(f"session_{number}", operations=1))


def test_an_ingested_session_is_known_by_its_content() -> None:
    space = MemorySpace("test")
    assert not space.has_session(ONE)
    remember(space, 1, "Mara lives in Oslo.")
    assert space.has_session(ONE)
    assert space.sessions["session_1"].version == 1
    assert next(found.turn.turn_id for found in space.archive.search("Oslo")) == "D1:1"


def test_other_content_under_the_same_id_is_refused() -> None:
    space = MemorySpace("test")
    remember(space, 1, "Mara lives in Oslo.")
    with pytest.raises(SessionConflictError, match="'session_1' of namespace 'test' was ingested with other"):
        space.has_session(session(1, "Mara: I moved to Bergen."))


def test_a_session_cannot_be_ingested_twice() -> None:
    space = MemorySpace("test")
    remember(space, 1, "Mara lives in Oslo.")
    with pytest.raises(SessionConflictError):
        space.ingest(ONE, SessionRecord("session_1"))
    assert list(space.sessions) == ["session_1"]
    assert len(space.archive) == 2


def test_a_fork_and_its_origin_never_see_each_other() -> None:
    space = MemorySpace("test")
    remember(space, 1, "Mara lives in Oslo.")
    space.index.refresh(space.bank)
    fork = space.fork()
    remember(fork, 2, "Tom has a dog.")
    assert (len(space.bank), list(space.sessions), len(space.archive)) == (1, ["session_1"], 2)
    assert space.index.search(space.bank, "dog") == []
    assert [scored.memory.text for scored in fork.index.search(fork.bank, "dog")] == ["Tom has a dog."]


def test_adopting_a_fork_replaces_the_content() -> None:
    space = MemorySpace("test")
    fork = space.fork()
    remember(fork, 1, "Mara lives in Oslo.")
    space.adopt(fork)
    assert space.has_session(ONE)
    assert [memory.text for memory in space.bank.live()] == ["Mara lives in Oslo."]
    assert [scored.memory.memory_id for scored in space.index.search(space.bank, "oslo")] == ["m1"]


def test_before_returns_the_space_before_a_session() -> None:
    space = MemorySpace("test", index=MemoryIndex(DenseIndex(lambda texts: [[1.0]] * len(texts), "one", 1)))
    remember(space, 1, "Mara lives in Oslo.")
    earlier = space.fork()
    remember(space, 2, "Tom has a dog.")
    space.index.refresh(space.bank)
    before = space.before(TWO)
    assert (before.bank.operations(), list(before.sessions)) == (earlier.bank.operations(), ["session_1"])
    assert before.archive.sessions == [ONE]
    assert [scored.memory.memory_id for scored in before.index.search(before.bank, "a dog")] == ["m1"]
    assert (space.before(ONE).bank.version, len(space.before(ONE).archive)) == (0, 0)
    remember(before, 2, "Tom has a cat.")
    assert [memory.text for memory in space.bank.live()] == ["Mara lives in Oslo.", "Tom has a dog."]


def test_before_a_new_session_a_fork_is_returned() -> None:
    space = MemorySpace("test")
    remember(space, 1, "Mara lives in Oslo.")
    before = space.before(TWO)
    assert (before.bank.operations(), list(before.sessions)) == (space.bank.operations(), ["session_1"])


def test_a_fork_of_an_older_state_is_not_adopted() -> None:
    space = MemorySpace("test")
    one, two = space.fork(), space.fork()
    remember(one, 1, "Mara lives in Oslo.")
    remember(two, 2, "Tom has a dog.")
    space.adopt(one)
    with pytest.raises(ConflictError, match="written since the fork was made"):
        space.adopt(two)
    assert list(space.sessions) == ["session_1"]


def test_a_fork_that_lacks_an_empty_session_is_not_adopted() -> None:
    space = MemorySpace("test")
    fork = space.fork()
    space.ingest(ONE, SessionRecord("session_1"))
    remember(fork, 2, "Tom has a dog.")
    with pytest.raises(ConflictError):
        space.adopt(fork)
    assert list(space.sessions) == ["session_1"]
