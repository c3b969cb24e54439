"""The quality of what is stored: against the truth of worlds, and against LoCoMo's notes."""

from dataclasses import replace

import pytest

from locomo.observations import Observation
from memory_program.agents.systems import make_system, set_models
from memory_program.bank.bank import MemoryBank
from memory_program.bank.memory import Draft, MemoryKind, Provenance
from memory_program.bank.space import MemorySpace
from memory_program.configs.groups import SystemSettings
from memory_program.evaluation.scoring.question_scores import BootstrapSampler
from memory_program.evaluation.scoring.stored_facts import measure_stored_facts
from memory_program.worlds import Action, generate_worlds
from memory_program.worlds.oracle import oracle_lm
from tests.conversations import session

WORLDS = generate_worlds(1, 2, held_out=True)
RESAMPLING = BootstrapSampler(0)


def remember(worlds):
    system, model = make_system("memory", SystemSettings()), oracle_lm(worlds)
    set_models(system, writer_lm=model, reader_lm=model)
    banks = {}
    for world in worlds:
        space = MemorySpace(world.conversation.conversation_id)
        for told in world.conversation.sessions:
            system.remember(space, told)
        banks[space.bank.namespace] = space.bank
    return banks


@pytest.fixture(scope="module")
def banks():
    return remember(WORLDS)


def measure(banks, worlds=WORLDS):
    return measure_stored_facts([world.conversation for world in worlds], banks, worlds, RESAMPLING)


def assert_perfect(found):
    for scores in (found["all"], *found["by_agent"].values()):
        assert [scores[name]["value"] for name in ("precision", "recall", "f1")] == [1.0, 1.0, 1.0]
    assert found["all"]["memories"] == found["all"]["correct"] == found["all"]["facts"]
    assert [found["changes"][kind][name] for kind in found["changes"] for name in ("missed", "wrong")] == [
        0
    ] * 4
    assert found["reference"] == "truth"


def test_the_oracle_stores_every_fact_and_makes_every_change(banks):
    assert_perfect(measure(banks))


@pytest.mark.slow
def test_the_oracle_is_perfect_on_20_worlds():
    worlds = generate_worlds(1, 20, held_out=True)
    assert_perfect(measure(remember(worlds), worlds))


def bank_of(*texts, session_id="session_1"):
    bank = MemoryBank(WORLDS[0].conversation.conversation_id)
    by = Provenance(actor="semantic", session_id=session_id)
    for text in texts:
        bank.create([Draft(text, MemoryKind.SEMANTIC)], by)
    return bank


def test_duplicates_stale_and_invented_memories_are_told_apart():
    world = WORLDS[0]
    number = len(world.conversation.sessions)
    live = next(fact.text for fact in world.live_facts_after(number) if fact.schema.kind == "semantic")
    change = next(o for o in world.operations if o.action is Action.UPDATE and o.kind == "semantic")
    bank = bank_of(live, live, change.old_text, "Nobody bought a submarine.")
    found = measure({world.conversation.conversation_id: bank}, [world])["all"]
    assert {name: found[name] for name in ("correct", "duplicate", "stale", "invented")} == {
        "correct": 1,
        "duplicate": 1,
        "stale": 1,
        "invented": 1,
    }
    assert (found["precision"]["value"], found["stale_found"]) == (0.25, 1)


def test_an_update_is_missed_if_the_old_fact_stays_and_wrong_if_the_new_one_is_lost():
    world = WORLDS[0]
    change = next(o for o in world.operations if o.action is Action.UPDATE and o.kind == "semantic")
    by = Provenance("semantic", f"session_{change.session_number}")
    missed, wrong = bank_of(change.old_text), bank_of(change.old_text)
    wrong.update("m1", Draft("Something else.", MemoryKind.SEMANTIC), by)
    name = world.conversation.conversation_id
    kept = measure({name: missed}, [world])["changes"]["update"]
    lost = measure({name: wrong}, [world])["changes"]["update"]
    assert (lost["wrong"] - kept["wrong"], kept["missed"] - lost["missed"]) == (1, 1)


def test_a_deletion_of_what_is_still_true_is_wrong():
    world = WORLDS[0]
    last = len(world.conversation.sessions)
    fact = next(fact for fact in world.live_facts_after(last) if fact.schema.kind == "semantic")
    bank = bank_of(fact.text, session_id=f"session_{fact.session_number}")
    bank.delete("m1", Provenance("semantic", f"session_{last}"))
    assert measure({world.conversation.conversation_id: bank}, [world])["changes"]["delete"]["wrong"] == 1


@pytest.mark.parametrize(
    ("text", "is_stated"),
    [
        ("{text}", True),
        ("It is known that {text}", True),
        ("It is no longer true that {text}", False),
        ("It isn't so that {text}", False),
        ("It stopped: {text}", False),
    ],
)
def test_a_memory_states_a_fact_in_other_words_but_not_its_denial(text, is_stated):
    world = WORLDS[0]
    live = next(fact.text for fact in world.live_facts_after(99) if fact.schema.kind == "semantic")
    found = measure({world.conversation.conversation_id: bank_of(text.format(text=live))}, [world])["all"]
    assert found["correct"] == is_stated


def test_without_a_truth_memories_are_compared_with_the_notes_of_locomo():
    told = session(1, "Ana: I adopted a grey dog.", "Ben: I paint.")
    notes = (
        Observation("Ana", "Ana adopted a grey dog.", ("D1:1",)),
        Observation("Ben", "Ben paints.", ("D1:2",)),
    )
    talk = replace(WORLDS[0].conversation, sessions=(replace(told, observations=notes),))
    bank = bank_of("Ana has adopted a dog, a grey one.", "Ana owns a yacht.")
    found = measure_stored_facts([talk], {talk.conversation_id: bank}, [], RESAMPLING)
    assert (found["reference"], found["changes"]) == ("notes", None)
    assert (found["all"]["precision"]["value"], found["all"]["recall"]["value"]) == (0.5, 0.5)
    assert found["all"]["other"] == 1


def test_an_agent_lacks_the_facts_of_a_conversation_in_which_it_wrote_nothing():
    world, other = WORLDS
    live = next(fact.text for fact in world.live_facts_after(99) if fact.schema.kind == "semantic")
    alone = {world.conversation.conversation_id: bank_of(live)}
    both = {**alone, other.conversation.conversation_id: bank_of()}
    facts = [measure(banks)["by_agent"]["semantic"]["facts"] for banks in (alone, both)]
    assert 0 < facts[0] < facts[1]


def test_a_system_without_banks_has_no_stored_facts():
    assert measure({}) is None


def test_a_session_has_the_memories_that_it_wrote_and_the_facts_that_it_told():
    told = (session(1, "Ana: I adopted a grey dog."), session(2, "Ben: I paint."))
    notes = (
        Observation("Ana", "Ana adopted a grey dog.", ("D1:1",)),
        Observation("Ben", "Ben paints.", ("D2:1",)),
    )
    sessions = tuple(replace(one, observations=(note,)) for one, note in zip(told, notes, strict=True))
    talk = replace(WORLDS[0].conversation, sessions=sessions)
    bank = bank_of("Ana adopted a grey dog.", "Ana owns a yacht.")
    bank.edit_core("Ana has a fast car.", Provenance("core", "session_1"))
    bank.edit_core("Ana has a fast car.\nBen paints.", Provenance("core", "session_2"))
    found = measure_stored_facts([talk], {talk.conversation_id: bank}, [], RESAMPLING)["by_session"]
    counts = {
        name: [of[key] for key in ("memories", "correct", "facts", "stated")] for name, of in found.items()
    }
    assert counts == {"session_1": [3, 1, 1, 1], "session_2": [1, 1, 1, 1]}
    assert found["session_1"]["precision"]["value"] == pytest.approx(1 / 3)


def test_a_memory_is_unasked_if_its_turns_are_evidence_of_no_question(banks):
    world = WORLDS[0]
    asked = world.conversation.questions[0]
    memories = banks[world.conversation.conversation_id].live()
    others = [memory for memory in memories if not set(memory.sources) & set(asked.evidence)]
    for questions, count in (((asked,), len(others)), ((), 0)):  # without any evidence it is unknown
        talk = replace(world.conversation, questions=questions)
        assert measure_stored_facts([talk], banks, [world], RESAMPLING)["all"]["unasked"] == count
    assert 0 < len(others) < len(memories)
