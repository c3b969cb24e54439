"""Valid time: when each memory held, the bank as of a day, and what a reader is shown of an earlier time."""

import json
import random
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from locomo.types import Session, Turn
from memory_program.agents.context import MemoryContext
from memory_program.agents.earlier_versions import find_named_times
from memory_program.agents.program import MemoryProgram
from memory_program.bank.__main__ import main
from memory_program.bank.budget import BUDGET_ACTOR
from memory_program.bank.dense import DenseIndex
from memory_program.bank.memory import MEMORY_KINDS, Draft, MemoryKind, Operation, Provenance, Validity
from memory_program.bank.outcomes import SessionRecord
from memory_program.bank.record_json import space_from_json, space_to_json
from memory_program.bank.space import MemorySpace
from memory_program.bank.store import BankStore
from memory_program.worlds import sample_worlds
from memory_program.worlds.rendered_prompts import parse_input_fields
from tests.scripted_lm import ScriptedLM, fields

SEMANTIC, EPISODIC = MemoryKind.SEMANTIC, MemoryKind.EPISODIC
USER = Provenance("user", "request_1")
EARLY, MAY, JUNE, LATE = date(2023, 3, 1), date(2023, 5, 8), date(2023, 6, 20), date(2023, 9, 1)


def by(number: int) -> Provenance:
    return Provenance("semantic", f"session_{number}")


def ingest(space: MemorySpace, number: int, day: date) -> None:
    moment = datetime(day.year, day.month, day.day, 13, 56, tzinfo=UTC)
    turn = Turn(f"D{number}:1", "Mara", f"Line of session {number} about Oslo.")
    space.ingest(Session(number, moment, (turn,)), SessionRecord(f"session_{number}"))


def write_at_random(space: MemorySpace, rng: random.Random, actor: Provenance, days: list[date]) -> None:
    """Append an operation of any kind; its drafts have one of the days, or none."""
    bank, live = space.bank, [memory.memory_id for memory in space.bank.live()]

    def draft() -> Draft:
        day = rng.choice(days) if days and rng.random() < 0.4 else None
        return Draft(f"text {rng.random()}", rng.choice(MEMORY_KINDS), day)

    match rng.choice(["create", "create", "update", "update", "delete", "merge", "split", "core"]):
        case "update" if live:
            bank.update(rng.choice(live), draft(), actor, keeps_date=rng.random() < 0.5)
        case "delete" if live:
            bank.delete(rng.choice(live), actor)
        case "merge" if len(live) > 1:
            bank.merge(rng.sample(live, 2), draft(), actor)
        case "split" if live:
            bank.split(rng.choice(live), [draft(), draft()], actor)
        case "core":
            bank.edit_core(f"core {rng.random()}", actor)
        case _:
            bank.create([draft() for _ in range(rng.randint(1, 2))], actor)


def space_of_sessions(
    rng: random.Random, *, has_events: bool, is_ordered: bool, has_edits: bool
) -> MemorySpace:
    """A space of a few sessions, each with operations; some after it are no session's."""
    space, first = MemorySpace("test"), date(2023, 1, 1)
    shifts = [rng.randint(0, 60) for _ in range(rng.randint(1, 5))]
    shifts = sorted(shifts) if is_ordered else shifts
    days = [first + timedelta(shift) for shift in shifts]
    events = [first + timedelta(rng.randint(-30, 90)) for _ in range(4)] if has_events else []
    for number, day in enumerate(days, start=1):
        for _ in range(rng.randint(0, 8)):
            write_at_random(space, rng, by(number), events)
        ingest(space, number, day)
        for _ in range(rng.randint(0, 2) if has_edits else 0):
            write_at_random(space, rng, USER, events)
    return space


def made_by(operation: Operation) -> list[str]:
    return [memory.memory_id for memory in operation.created]


@given(seed=st.integers(0, 2**32), has_events=st.booleans(), is_ordered=st.booleans())
@settings(max_examples=40)
def test_what_replaces_a_memory_begins_on_the_day_on_which_it_ends(seed, has_events, is_ordered):
    space = space_of_sessions(
        random.Random(seed), has_events=has_events, is_ordered=is_ordered, has_edits=False
    )
    held = space.valid_times().memories
    live = {memory.memory_id for memory in space.bank.live()}
    assert {name for name, validity in held.items() if validity.valid_to is None} == live
    for operation in space.bank.operations():
        ends = {held[name].valid_to for name in operation.superseded}
        assert len(ends) <= 1
        if operation.superseded and operation.created:
            assert {held[name].valid_from for name in made_by(operation)} == ends
    for validity in held.values():
        assert validity.valid_from is not None
        assert validity.valid_to is None or validity.valid_from <= validity.valid_to
    cores = [validity for _, validity in space.valid_times().cores]
    assert [core.valid_to for core in cores] == [*(core.valid_from for core in cores[1:]), None][: len(cores)]


@given(seed=st.integers(0, 2**32), shift=st.integers(-5, 70))
@settings(max_examples=40)
def test_without_dated_events_a_day_is_the_version_after_its_last_session(seed, shift):
    rng = random.Random(seed)
    space = space_of_sessions(rng, has_events=False, is_ordered=True, has_edits=False)
    day = date(2023, 1, 1) + timedelta(shift)
    told = [one for one in space.sessions.values() if one.session.date_time.date() <= day]
    then, view = space.bank.at(told[-1].version if told else 0), space.at_date(day)
    assert [memory.text for memory in view.bank.live()] == [memory.text for memory in then.live()]
    assert (view.bank.core, len(view.bank), view.bank.version) == (then.core, len(then), space.bank.version)
    assert view.archive.sessions == [one.session for one in told]


@given(seed=st.integers(0, 2**32), shift=st.integers(-40, 100), is_ordered=st.booleans())
@settings(max_examples=40)
def test_a_day_is_the_replay_of_the_operations_up_to_it(seed, shift, is_ordered):
    rng = random.Random(seed)
    space = space_of_sessions(rng, has_events=True, is_ordered=is_ordered, has_edits=False)
    day, held = date(2023, 1, 1) + timedelta(shift), space.valid_times().memories
    live = set[str]()
    for operation in space.bank.operations():
        if operation.superseded and held[operation.superseded[0]].valid_to <= day:
            assert live.issuperset(operation.superseded)
            live.difference_update(operation.superseded)
        begun = [held[name].valid_from <= day for name in made_by(operation)]
        live.update(name for name, has_begun in zip(made_by(operation), begun, strict=True) if has_begun)
    assert {memory.memory_id for memory in space.at_date(day).bank.live()} == live


@given(seed=st.integers(0, 2**32))
@settings(max_examples=40)
def test_as_of_the_last_day_the_bank_is_what_it_is(seed):
    space = space_of_sessions(random.Random(seed), has_events=True, is_ordered=False, has_edits=True)
    view = space.at_date(date.max)
    assert [memory.text for memory in view.bank.live()] == [memory.text for memory in space.bank.live()]
    assert view.bank.core == space.bank.core


# -- the rules ---------------------------------------------------------------------------------------


@pytest.fixture
def space() -> MemorySpace:
    """Mara moved from Bergen (m1) to Oslo (m3) between May and June; m2 is an event, told afterwards."""
    space = MemorySpace("mara")
    space.bank.create([Draft("Mara lives in Bergen.", SEMANTIC, None, ("D1:1",))], by(1))
    space.bank.edit_core("Mara works as a nurse.\nMara has a son.", by(1))
    ingest(space, 1, MAY)
    space.bank.create([Draft("Mara adopted a dog.", EPISODIC, date(2023, 6, 2), ("D2:1",))], by(2))
    space.bank.update("m1", Draft("Mara lives in Oslo.", SEMANTIC, None, ("D2:1",)), by(2))
    space.bank.edit_core("Mara works as a teacher.\nMara has a son.", by(2))
    ingest(space, 2, JUNE)
    return space


def held(space: MemorySpace, memory_id: str) -> tuple[date | None, date | None]:
    validity = space.valid_times().memories[memory_id]
    return validity.valid_from, validity.valid_to


def test_a_state_holds_from_its_session_to_the_session_that_changes_it(space):
    assert held(space, "m1") == (MAY, JUNE)
    assert held(space, "m3") == (JUNE, None)


def test_an_event_holds_from_its_own_day(space):
    assert held(space, "m2") == (date(2023, 6, 2), None)


def test_a_plan_holds_from_the_session_that_told_it_to_the_day_on_which_it_came_true(space):
    space.bank.create([Draft("Mara plans to visit Rome.", EPISODIC, date(2023, 8, 5))], by(3))
    ingest(space, 3, date(2023, 7, 1))
    space.bank.update("m4", Draft("Mara visited Rome.", EPISODIC), by(4))
    ingest(space, 4, LATE)
    assert held(space, "m4") == (date(2023, 7, 1), date(2023, 8, 5))
    assert held(space, "m5") == (date(2023, 8, 5), None)


def test_a_better_account_of_an_event_holds_from_the_day_of_the_event(space):
    space.bank.update("m2", Draft("Mara adopted a dog, Pip.", EPISODIC), by(3))
    ingest(space, 3, LATE)
    assert held(space, "m4") == (date(2023, 6, 2), None)
    assert held(space, "m2") == (date(2023, 6, 2), date(2023, 6, 2))
    assert not space.valid_times().memories["m2"].held_during(date.min, date.max)


def test_a_changed_state_that_kept_an_old_date_holds_from_its_session(space):
    space.bank.create([Draft("Mara rents a flat.", SEMANTIC, date(2023, 1, 1))], by(3))
    ingest(space, 3, date(2023, 7, 1))
    space.bank.update("m4", Draft("Mara owns a flat.", SEMANTIC), by(4))
    ingest(space, 4, LATE)
    assert space.bank.get("m5").happened_at == date(2023, 1, 1)
    assert held(space, "m4") == (date(2023, 1, 1), LATE)


def test_a_change_with_a_date_of_its_own_holds_from_that_date(space):
    space.bank.update("m3", Draft("Mara lives in Rome.", SEMANTIC, date(2023, 8, 1)), by(3))
    ingest(space, 3, LATE)
    assert (held(space, "m3"), held(space, "m4")) == ((JUNE, date(2023, 8, 1)), (date(2023, 8, 1), None))


def test_a_correction_of_a_user_takes_over_the_time_of_what_it_corrects(space):
    space.bank.update("m3", Draft("Mara lives in Drammen.", SEMANTIC), USER)
    assert (held(space, "m3"), held(space, "m4")) == ((JUNE, JUNE), (JUNE, None))
    assert [memory.text for memory in space.at_date(JUNE).bank.live(SEMANTIC)] == ["Mara lives in Drammen."]


def test_what_a_user_had_forgotten_never_held_nor_did_its_earlier_versions(space):
    space.bank.delete("m3", USER)
    assert [memory.memory_id for memory in space.at_date(MAY).bank.live()] == []
    assert [memory.memory_id for memory in space.at_date(LATE).bank.live()] == ["m2"]
    assert "Bergen" not in MemoryContext().build(space, ["Where did Mara live in May 2023?"]).memories


def test_an_imported_memory_counts_from_its_date_or_always(space):
    imported = Draft("Mara can swim.", SEMANTIC), Draft("Mara has a car.", SEMANTIC, date(2020, 1, 1))
    space.bank.create(imported, Provenance("import", "import_1"))
    assert (held(space, "m4"), held(space, "m5")) == ((None, None), (date(2020, 1, 1), None))
    space.bank.update("m4", Draft("Mara swims well.", SEMANTIC), USER)
    assert held(space, "m4") == (None, date.min)
    assert "Mara swims well." in [memory.text for memory in space.at_date(EARLY).bank.live()]


def test_a_period_has_its_first_day_and_not_its_last():
    validity = Validity(MAY, JUNE)
    assert validity.held_during(MAY, MAY)
    assert not validity.held_during(JUNE, LATE)
    assert not validity.held_during(EARLY, MAY - timedelta(1))
    assert validity.held_during(EARLY, LATE)


# -- as of a day -------------------------------------------------------------------------------------


def test_a_search_as_of_a_day_finds_what_held_then(space):
    then = space.at_date(MAY)
    hits = then.index.search(then.bank, "Where does Mara live?")
    assert [hit.memory.text for hit in hits] == ["Mara lives in Bergen."]
    assert (then.bank.core, list(then.sessions)) == ("Mara works as a nurse.\nMara has a son.", ["session_1"])
    assert (len(space.at_date(EARLY).bank), space.at_date(EARLY).bank.core) == (0, "")
    assert [memory.memory_id for memory in space.bank.live()] == ["m2", "m3"]


def test_a_question_as_of_a_day_is_answered_from_what_held_then(space):
    with ScriptedLM([fields(answer="Bergen")]) as lm:
        program = MemoryProgram()
        program.set_lm(lm)
        assert program.ask(space, "Where does Mara live?", as_of=MAY).text == "Bergen"
    shown = parse_input_fields(lm.requests[0].user)
    assert (shown["memories"], shown["core_memory"]) == (
        "Mara lives in Bergen.",
        "Mara works as a nurse.\nMara has a son.",
    )


def test_what_ended_after_a_day_has_not_ended_as_of_it(space):
    assert held(space.at_date(MAY), "m1") == (MAY, None)
    assert "m3" not in space.at_date(MAY).valid_times().memories


def test_the_turns_of_an_earlier_day_are_not_embedded_again(space):
    embedded: list[str] = []

    def embed(texts: list[str]) -> np.ndarray:
        embedded.extend(texts)
        return np.ones((len(texts), 2))

    with BankStore("sqlite://", DenseIndex(embed, "ones", 2)) as store:
        stored = store.load("mara")
        ingest(stored, 1, MAY)
        stored.archive.search("home", 5)
        embedded.clear()
        assert len(stored.at_date(MAY).archive.search("home", 5)) == 1
    assert embedded == ["home"]


def test_vectors_at_hand_are_not_computed_again(space):
    batches: list[list[str]] = []

    def embed(texts: list[str]) -> np.ndarray:
        batches.append(list(texts))
        return np.ones((len(texts), 2))

    with BankStore("sqlite://", DenseIndex(embed, "ones", 2)) as store:
        stored = store.load("mara")
        stored.bank.create([Draft("Mara lives in Bergen.", SEMANTIC)], by(1))
        ingest(stored, 1, MAY)
        store.save(stored)
        batches.clear()
        then = store.load("mara").at_date(MAY)
        assert [hit.memory.memory_id for hit in then.index.search(then.bank, "home")] == ["m1"]
    assert batches == [["home"]]


# -- the reader --------------------------------------------------------------------------------------


def test_a_question_about_an_earlier_time_shows_what_held_then_with_its_end(space):
    context = MemoryContext().build(space, ["Where did Mara live on 15 May 2023?"])
    assert sorted(context.memories.splitlines()) == [
        "Mara adopted a dog. [2 June 2023]",  # of the same year
        "Mara lives in Bergen. (until 20 June 2023)",
        "Mara lives in Oslo.",
    ]
    assert context.ranked is not None
    assert {item.item_id for item in context.ranked} == {"m1", "m2", "m3"}


def test_last_month_is_counted_from_the_day_on_which_a_question_is_asked(space):
    asked = "Where did Mara live last month? (Today is 3 {} 2023.)"
    context = MemoryContext(min_relative_score=0).build(space, [asked.format("June")])
    assert "Mara lives in Bergen. (until 20 June 2023)" in context.memories
    context = MemoryContext(min_relative_score=0).build(space, [asked.format("August")])
    assert "Bergen" not in context.memories


def test_a_memory_that_left_for_the_budget_has_no_end(space):
    ingest(space, 3, date(2023, 7, 20))
    space.bank.delete("m3", Provenance(BUDGET_ACTOR, by(3).session_id))
    context = MemoryContext(min_relative_score=0).build(space, ["Where did Mara live in July 2023?"])
    assert "Mara lives in Oslo." in context.memories.splitlines()


def test_a_replaced_line_of_the_profile_is_shown_with_its_end(space):
    core = MemoryContext().build(space, ["What did Mara work as in May 2023?"]).core
    assert core.splitlines() == [
        "Mara works as a teacher.",
        "Mara has a son.",
        "Mara works as a nurse. (until 20 June 2023)",
    ]


@pytest.mark.parametrize(
    "question",
    [
        "Where does Mara live?",
        "Where did Mara live in September 2023?",  # nothing of that time was replaced
        "Where does Mara live every Monday?",
        "Where did Mara live in April 2023?",  # nothing was told yet
    ],
)
def test_any_other_question_shows_what_holds(space, question):
    context = MemoryContext().build(space, [question])
    assert "Mara lives in Oslo." in context.memories
    assert "Bergen" not in context.memories
    assert context.core == space.bank.core


def test_earlier_memories_take_no_place_of_those_that_hold(space):
    for number in range(12):
        space.bank.create([Draft(f"Mara lives near a park, number {number}.", SEMANTIC)], by(1))
        space.bank.update(
            f"m{4 + 2 * number}", Draft(f"Mara lives near a lake, number {number}.", SEMANTIC), by(2)
        )
    context = MemoryContext(min_relative_score=0).build(space, ["Where did Mara live in May 2023?"])
    lines = context.memories.splitlines()
    assert sum(line.endswith("(until 20 June 2023)") for line in lines) == 10
    assert sum(not line.endswith(")") for line in lines) >= 9
    tight = MemoryContext(budget=60).build(space, ["Where did Mara live in May 2023?"])
    assert tight.tokens <= 60


def test_no_question_of_the_sample_names_an_earlier_time():
    """So what a reader is shown for them, and the scores of the sample, do not depend on valid time."""
    for world in sample_worlds():
        last = world.conversation.sessions[-1].date_time.date()
        assert not any(find_named_times(question.text, last) for question in world.conversation.questions)


# -- files and commands ------------------------------------------------------------------------------


def test_an_export_says_when_each_memory_held_and_is_imported_unchanged(space):
    document = json.loads(json.dumps(space_to_json(space)))
    made = {m["memory_id"]: m for operation in document["operations"] for m in operation["created"]}
    assert (made["m1"]["valid_from"], made["m1"]["valid_to"]) == ("2023-05-08", "2023-06-20")
    assert (made["m3"]["valid_from"], made["m3"]["valid_to"]) == ("2023-06-20", None)
    copy = space_from_json(document)
    assert copy.bank.operations() == space.bank.operations()
    assert copy.valid_times() == space.valid_times()


def test_the_command_shows_a_day_and_the_time_of_each_memory(space, tmp_path, capsys):
    url = f"sqlite:///{tmp_path}/banks.sqlite"
    with BankStore(url) as store:
        store.save(space)

    def run(*arguments: str) -> list[str]:
        assert main([arguments[0], "--db", url, "--namespace", "mara", *arguments[1:]]) == 0
        return capsys.readouterr().out.splitlines()

    assert run("list", "--as-of", "2023-05-20") == [
        "core  Mara works as a nurse. Mara has a son.",
        "m1  semantic  Mara lives in Bergen.  (D1:1)",
    ]
    (found,) = run("search", "--query", "Mara lives", "--as-of", "2023-05-20")
    assert found.endswith("m1  semantic  Mara lives in Bergen.  (D1:1)")
    history = run("history", "--memory", "m3")
    assert "  m1 valid from 2023-05-08 until 2023-06-20" in history
    assert history[-1] == "  m3 valid from 2023-06-20"
    assert main(["list", "--db", url, "--namespace", "mara", "--as-of", "2023-05-20", "--version", "1"]) == 2
    assert main(["list", "--db", url, "--as-of", "2023-05-20"]) == 2
