"""What a user had forgotten or corrected is in nothing that a reader sees: profile, past, turns, queue."""

from datetime import UTC, date, datetime

import pytest

from locomo.types import Session, Turn
from memory_program.agents.profile_edit import strike_fact
from memory_program.bank.memory import Draft, MemoryKind, Provenance
from memory_program.bank.outcomes import SessionRecord
from memory_program.bank.store import BankStore
from memory_program.bank.turn_buffer import SessionRule
from memory_program.core.errors import MemoryOperationError, UnknownMemoryError
from tests.memory_services import running, said
from tests.model_server import ModelServer

PROFILE = "Alice: lives with Viktor in Bergen; works as a nurse.\nHer therapist is Doctor Zarquon."


@pytest.fixture
def service(tmp_path):
    """A service over two sessions: Alice lives with Viktor, then alone; her boat and her therapist."""
    url = f"sqlite:///{tmp_path / 'm.sqlite'}"
    with BankStore(url) as store:
        space = store.load("ana")
        first, second = (Provenance("semantic", f"session_{number}") for number in (1, 2))
        said_first = (
            Turn("D1:1", "Alice", "I live with Viktor in Bergen, and I own a boat."),
            Turn("D1:2", "Alice", "My therapist is called Doctor Zarquon."),
        )
        drafts = [
            Draft("Alice lives with Viktor in Bergen.", MemoryKind.SEMANTIC, None, ("D1:1",)),
            Draft("Alice owns a boat in Bergen.", MemoryKind.SEMANTIC, None, ("D1:1",)),
            Draft("Alice's therapist is called Doctor Zarquon.", MemoryKind.SEMANTIC, None, ("D1:2",)),
        ]
        space.bank.create(drafts, first)
        space.bank.edit_core(PROFILE, first)
        ingest(space, 1, datetime(2024, 1, 8, tzinfo=UTC), said_first)
        space.bank.update("m1", Draft("Alice lives alone in Oslo.", MemoryKind.SEMANTIC), second)
        space.bank.delete("m2", second)
        moved = (Turn("D2:1", "Alice", "I moved to Oslo, alone, and sold the boat."),)
        ingest(space, 2, datetime(2024, 5, 6, tzinfo=UTC), moved)
        store.save(space)
    with ModelServer() as model, running(url, model.url, SessionRule(pause_s=3600)) as service:
        yield service


def ingest(space, number, day, turns):
    record = SessionRecord(session_id=f"session_{number}")
    space.ingest(Session(number, day, turns), record)


def shown(service, query, as_of=None):
    context = service.context("ana", query, as_of)
    return "\n".join([context.core, context.memories, context.excerpts])


def test_the_profile_does_not_tell_what_was_forgotten_now_or_in_the_past(service):
    past = date(2024, 2, 1)
    assert shown(service, "therapist").count("Zarquon") == 2
    done = service.forget("ana", ["m3"])
    assert [one["kind"] for one in done.operations] == ["delete", "edit_core"]
    for as_of in (None, past):
        assert "Zarquon" not in shown(service, "therapist", as_of)
        assert "works as a nurse" in shown(service, "therapist", as_of)
    service.undo("ana")
    assert shown(service, "therapist").count("Zarquon") == 2


def test_a_correction_replaces_what_the_profile_says(service):
    service.correct("ana", "m3", "Alice's therapist is called Doctor Quist.")
    context = service.context("ana", "therapist")
    assert "Zarquon" not in context.core + context.memories
    assert "Doctor Quist" in context.core


def test_a_memory_that_a_session_replaced_or_deleted_can_be_forgotten(service):
    past, question = date(2024, 2, 1), "Where did Alice live in February 2024, and was there a boat?"
    before = shown(service, question, past)
    assert "Viktor in Bergen" in before
    assert "a boat" in before
    service.forget("ana", ["m1", "m2"])
    for as_of in (None, past):
        assert "Viktor" not in shown(service, question, as_of)
        assert "boat" not in shown(service, question, as_of)
    assert "Oslo" in shown(service, "Where does Alice live?")
    assert service.status("ana").memories == 2
    with pytest.raises(UnknownMemoryError, match="'m2' was forgotten before"):
        service.forget("ana", ["m2"])
    reopened = service.store.load("ana")
    assert [memory.memory_id for memory in reopened.bank.live()] == ["m3", "m4"]
    assert [memory.memory_id for memory in reopened.bank.diff(2).superseded] == ["m1", "m2"]
    assert reopened.bank.diff(4).superseded == ()


def test_turns_are_not_shown_from_which_a_forgotten_memory_was_made(service):
    space = service.store.load("ana")
    assert space.search_turns("therapist Zarquon", 5)[0].turn.turn_id == "D1:2"
    service.forget("ana", ["m3"])
    space = service.store.load("ana")
    for view in (space, space.at_date(date(2024, 2, 1))):
        assert "D1:2" not in {hit.turn.turn_id for hit in view.search_turns("therapist Zarquon boat", 5)}
        assert view.search_turns("boat", 5)


def test_what_was_just_said_can_be_forgotten(service):
    service.add("ana", [said("My secret hamster is called Quuxbert."), said("It rains.")])
    found = next(hit for hit in service.search("ana", "hamster") if hit.kind is None)
    assert found.item_id.startswith("new:")
    with pytest.raises(MemoryOperationError, match="is a turn and not a memory yet"):
        service.correct("ana", found.item_id, "x")
    with pytest.raises(UnknownMemoryError, match="m99"):
        service.forget("ana", [found.item_id, "m99"])
    assert "Quuxbert" in shown(service, "hamster")
    service.forget("ana", [found.item_id])
    assert "Quuxbert" not in shown(service, "hamster")
    assert "It rains." in shown(service, "rain")
    with pytest.raises(UnknownMemoryError, match="not a turn of the open session"):
        service.forget("ana", [found.item_id])
    with pytest.raises(UnknownMemoryError, match="agents are writing"):
        service.forget("ana", ["D9:1"])


def test_the_id_of_a_turn_is_never_that_of_a_later_one(service):
    service.add("ana", [said("My secret hamster is called Quuxbert.")])
    found = next(hit for hit in service.search("ana", "hamster") if hit.kind is None)
    service.end_session("ana")
    assert service.wait("ana", 15)  # now no turn waits
    service.add("ana", [said("I paint birds.")])
    with pytest.raises(UnknownMemoryError, match="not a turn of the open session"):
        service.forget("ana", [found.item_id])
    assert "I paint birds." in shown(service, "birds")


@pytest.mark.parametrize(
    ("profile", "fact", "left"),
    [
        ("Alice: allergic to nuts. Lives in Bonn.", "Alice is allergic to nuts.", "Alice: Lives in Bonn."),
        ("Name: Alice Meyer\nJob: nurse", "Alice Meyer works as a nurse.", "Name: Alice Meyer"),
        ("Alice lives in Bonn.", "Alice has a dog.", "Alice lives in Bonn."),
        ("Alice has a dog", "Alice has a dog.", ""),
        ("", "Alice has a dog.", ""),
    ],
)
def test_a_fact_is_struck_from_a_profile_and_nothing_else(profile, fact, left):
    assert strike_fact(profile, fact, {"alic", "meyer"}) == left
