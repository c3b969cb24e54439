"""Episodes: each question belongs to the session after which it can be answered."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from locomo.locomo import load_locomo, read_dataset
from locomo.sessions import questions_by_session, truncate_conversation
from locomo.splits import select_split
from locomo.types import Category, Conversation, Question, Session
from memory_program.bank.memory import Draft, MemoryKind, Provenance
from memory_program.bank.outcomes import CallFailure, Outcome, SessionRecord
from memory_program.bank.space import MemorySpace
from memory_program.bank.store import BankStore
from memory_program.rl.episodes import (
    make_episodes,
    memory_namespace,
    rewind_failed_sessions,
    roll_in,
)
from tests.conversations import session
from tests.evaluation_samples import NoteTaking, write_conversations

ONE = session(1, "Mara: I moved to Oslo.", "Tom: How nice!")
TWO = session(2, "Tom: I got a dog.", day=9)
THREE = session(3, "Mara: I sold the boat.", day=10)


def asked(index: int, *evidence: str) -> Question:
    return Question("talk", index, f"Question {index}?", Category.SINGLE_HOP, "gold", evidence)


def talk(*questions: Question) -> Conversation:
    return Conversation("talk", ("Mara", "Tom"), (ONE, TWO, THREE), questions)


@pytest.fixture
def store(tmp_path: Path) -> BankStore:
    return BankStore(f"sqlite:///{(tmp_path / 'banks.sqlite').as_posix()}")


@pytest.fixture
def conversation(tmp_path: Path) -> Conversation:
    return read_dataset(write_conversations(tmp_path / "talks.json", count=1)).conversations[0]


def placed_ids(conversation: Conversation) -> dict[str, list[int]]:
    placed = questions_by_session(conversation)
    return {name: [question.index for question in questions] for name, questions in placed.items()}


def test_a_question_belongs_to_the_session_of_its_last_evidence() -> None:
    first, both = asked(0, "D1:1"), asked(1, "D3:1", "D1:2")
    assert placed_ids(talk(both, first)) == {"session_1": [0], "session_2": [], "session_3": [1]}


def test_the_last_session_has_the_highest_number() -> None:
    ten = session(10, "Tom: The dog is called Rex.", day=20)
    long = Conversation("talk", ("Mara", "Tom"), (ONE, TWO, ten), (asked(0, "D10:1", "D2:1"),))
    assert placed_ids(long)["session_10"] == [0]


def test_a_question_without_evidence_belongs_to_no_session() -> None:
    conversation = talk(asked(0), asked(1, "D2:1"))
    assert placed_ids(conversation) == {"session_1": [], "session_2": [1], "session_3": []}


def test_a_truncated_conversation_keeps_its_answerable_questions() -> None:
    short = truncate_conversation(
        talk(asked(0, "D1:1"), asked(1, "D1:1", "D3:1"), asked(2), asked(3, "D2:1")), 2
    )
    assert short.sessions == (ONE, TWO)
    assert [question.index for question in short.questions] == [0, 3]


def test_a_short_conversation_is_not_changed() -> None:
    conversation = talk(asked(0))
    assert truncate_conversation(conversation, 3) is conversation


def test_a_roll_in_gives_the_memory_before_each_session(conversation: Conversation, store: BankStore) -> None:
    spaces = roll_in(NoteTaking(), conversation, store, "talk")
    assert [len(space.sessions) for space in spaces] == [0, 1, 2, 3, 4]
    for place, space in enumerate(spaces):
        told = [turn.line for earlier in conversation.sessions[:place] for turn in earlier.turns]
        assert [memory.text for memory in space.bank.live()] == told
        assert [s.number for s in space.archive.sessions] == list(range(1, place + 1))
    found = spaces[2].index.search(spaces[2].bank, conversation.sessions[1].turns[0].text, 1)
    assert found[0].memory.sources == (conversation.sessions[1].turns[0].turn_id,)


def test_snapshots_are_independent(conversation: Conversation, store: BankStore) -> None:
    spaces = roll_in(NoteTaking(), conversation, store, "talk")
    before = [space.bank.version for space in spaces]
    spaces[1].bank.create([Draft("A lie.", MemoryKind.SEMANTIC)], Provenance("test", "session_2"))
    spaces[1].ingest(session(9, "Tom: A session of its own."), SessionRecord("session_9"))
    assert [space.bank.version for space in spaces] == [v + (n == 1) for n, v in enumerate(before)]
    assert [len(space.sessions) for space in spaces] == [0, 2, 2, 3, 4]


def test_a_killed_roll_in_continues_where_it_stopped(conversation: Conversation, store: BankStore) -> None:
    class Dying(NoteTaking):
        def remember(self, space: MemorySpace, session: Session) -> SessionRecord:
            if session.number == 3:
                raise KeyboardInterrupt
            return super().remember(space, session)

    with pytest.raises(KeyboardInterrupt):
        roll_in(Dying(), conversation, store, "talk")
    again = NoteTaking()
    spaces = roll_in(again, conversation, store, "talk")
    assert [name.rpartition(":")[2] for name in again.remembered] == ["session_3", "session_4"]
    assert [len(space.bank.live()) for space in spaces] == [0, 3, 6, 9, 12]
    done = NoteTaking()
    assert len(roll_in(done, conversation, store, "talk")) == 5
    assert done.remembered == []


def test_sessions_after_a_failed_call_are_written_again(conversation: Conversation, store: BankStore) -> None:
    class Unreachable(NoteTaking):
        def remember(self, space: MemorySpace, session: Session) -> SessionRecord:
            record = super().remember(space, session)
            if session.number != 3:
                return record
            lost = replace(record, failures=(CallFailure("semantic", Outcome.ERROR, "the server is down"),))
            space.sessions[session.session_id] = replace(space.sessions[session.session_id], record=lost)
            return lost

    rewind_failed_sessions(store, "talk")  # nothing is there
    roll_in(Unreachable(), conversation, store, "talk")
    rewind_failed_sessions(store, "talk")
    again = NoteTaking()
    spaces = roll_in(again, conversation, store, "talk")
    assert [name.rpartition(":")[2] for name in again.remembered] == ["session_3", "session_4"]
    assert not any(ingested.record.failures for ingested in spaces[-1].sessions.values())
    rewind_failed_sessions(store, "talk")
    done = NoteTaking()
    roll_in(done, conversation, store, "talk")
    assert done.remembered == []


def test_a_namespace_depends_on_the_writer_and_the_conversation(conversation: Conversation) -> None:
    other = talk()
    names = {
        memory_namespace(conversation, {"model": "a"}),
        memory_namespace(conversation, {"model": "b"}),
        memory_namespace(truncate_conversation(conversation, 2), {"model": "a"}),
        memory_namespace(other, {"model": "a"}),
    }
    assert len(names) == 4
    assert memory_namespace(conversation, {"model": "a"}) in names
    assert all(name.partition("/")[2] in (conversation.conversation_id, "talk") for name in names)


def test_each_session_with_questions_makes_an_episode(conversation: Conversation, store: BankStore) -> None:
    spaces = roll_in(NoteTaking(), conversation, store, "talk")
    episodes = make_episodes(conversation, spaces, max_questions=5, rng=random.Random(0))
    assert [episode.episode_id for episode in episodes] == [f"talk-1/session_{n}" for n in (1, 2, 3, 4)]
    assert [len(episode.before.sessions) for episode in episodes] == [0, 1, 2, 3]
    assert [len(episode.questions) for episode in episodes] == [3, 2, 2, 2]
    for episode in episodes:
        here = {turn.turn_id for turn in episode.session.turns}
        assert all(set(question.evidence) & here for question in episode.questions)


def test_a_session_without_questions_makes_no_episode(store: BankStore) -> None:
    conversation = talk(asked(0, "D3:1"))
    episodes = make_episodes(
        conversation, roll_in(NoteTaking(), conversation, store, "t"), max_questions=5, rng=random.Random(0)
    )
    assert [episode.session for episode in episodes] == [THREE]


def test_a_seed_decides_which_of_many_questions_are_asked(store: BankStore) -> None:
    conversation = talk(*(asked(index, "D2:1") for index in range(30)))
    spaces = roll_in(NoteTaking(), conversation, store, "t")

    def drawn(seed: int) -> list[int]:
        (episode,) = make_episodes(conversation, spaces, max_questions=5, rng=random.Random(seed))
        return [question.index for question in episode.questions]

    assert len(drawn(0)) == 5
    assert drawn(0) == sorted(drawn(0)) == drawn(0)
    assert drawn(0) != drawn(1)


def test_replay_questions_come_from_earlier_sessions(store: BankStore) -> None:
    conversation = talk(asked(0, "D1:1"), asked(1, "D1:1"), asked(2, "D2:1"), asked(3, "D3:1"))
    spaces = roll_in(NoteTaking(), conversation, store, "t")
    episodes = make_episodes(
        conversation, spaces, max_questions=5, rng=random.Random(0), max_replay_questions=2
    )
    indices = [[question.index for question in episode.questions] for episode in episodes]
    assert indices[0] == [0, 1]
    assert indices[1][0] == 2
    assert sorted(indices[1][1:]) == [0, 1]
    assert indices[2][0] == 3
    assert len(indices[2]) == 3
    assert set(indices[2][1:]) < {0, 1, 2}


@pytest.mark.dataset
def test_locomos_training_questions_follow_their_evidence(locomo_path: Path) -> None:
    conversations = select_split(load_locomo(locomo_path).conversations, "train")
    placed = unplaced_count = 0
    for conversation in conversations:
        by_session = questions_by_session(conversation)
        for here in conversation.sessions:
            for question in by_session[here.session_id]:
                # LoCoMo numbers a turn by its session: D7:3 is the third turn of session 7
                numbers = [int(turn_id[1:].partition(":")[0]) for turn_id in question.evidence]
                assert max(numbers) == here.number
                placed += 1
        unplaced_count += sum(not question.evidence for question in conversation.questions)
    assert (placed, unplaced_count) == (1155, 2)
