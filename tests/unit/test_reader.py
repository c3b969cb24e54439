"""The reader: what it is shown under its budget, how it searches, how it fails."""

import json
from dataclasses import replace
from datetime import UTC, date, datetime

import dspy
import pytest
from dspy.lm15 import ServerError

from locomo.types import Session, Turn
from memory_program.agents.baselines.reader_only import ReaderOnly
from memory_program.agents.context import FullContext, MemoryContext, NoContext, ReaderContext
from memory_program.agents.program import MemoryProgram
from memory_program.agents.reader import QAReader
from memory_program.bank.memory import Draft, MemoryKind, Provenance
from memory_program.bank.outcomes import Outcome, SessionRecord
from memory_program.bank.space import MemorySpace
from memory_program.worlds.rendered_prompts import parse_input_fields
from tests.conversations import session
from tests.scripted_lm import ScriptedLM, fields

BY = Provenance("test")


@pytest.fixture
def space() -> MemorySpace:
    space = MemorySpace("mara")
    space.bank.edit_core("Mara is a nurse.", BY)
    for text, day, source in (
        ("Mara sold the red bicycle.", date(2023, 6, 2), "D2:1"),
        ("Mara bought a red bicycle.", date(2023, 5, 7), "D1:1"),
        ("Tom plays the violin.", None, "D1:2"),
    ):
        space.bank.create([Draft(text, MemoryKind.EPISODIC, day, (source,))], BY)
    first = session(1, "Mara: I bought a red bicycle yesterday.", "Tom: I play the violin.", day=8)
    space.ingest(first, SessionRecord("session_1"))
    space.ingest(session(2, "Mara: The red bicycle is sold.", day=20), SessionRecord("session_2"))
    return space


def test_the_best_memory_is_shown_last_and_each_with_its_date(space):
    context = MemoryContext(min_relative_score=0.0).build(space, ["Which bicycle was bought?"])
    assert context.memories.splitlines() == [
        "Mara sold the red bicycle. [2 June 2023]",
        "Mara bought a red bicycle. [7 May 2023]",
    ]
    assert context.core == "Mara is a nurse."
    assert context.excerpts == "(none)"


def test_memories_far_below_the_best_score_are_ranked_but_not_shown(space):
    question = "Who sold a bicycle?"
    scores = [found.score for found in space.index.search(space.bank, question, 10)]
    ratio = scores[1] / scores[0]
    assert 0 < ratio < 1
    below, above = (
        MemoryContext(min_relative_score=floor).build(space, [question])
        for floor in (ratio - 0.01, ratio + 0.01)
    )
    assert (below.shown, above.shown) == (("m1", "m2"), ("m1",))
    assert below.ranked == above.ranked


def test_each_query_has_its_own_relevance_threshold(space):
    context = MemoryContext(min_relative_score=1.0).build(space, ["Mara sold", "Tom violin"])
    assert context.shown == ("m1", "m3")


def test_excerpts_come_in_conversation_order(space):
    context = MemoryContext(with_archive=True, min_relative_score=0.0).build(space, ["Mara sold the bicycle"])
    days = [line[:13] for line in context.excerpts.splitlines()]
    assert days == sorted(days, key=["[8 May 2023] ", "[20 May 2023]"].index)
    assert len(set(days)) == 2


def test_the_ranking_names_sources_best_first(space):
    context = MemoryContext().build(space, ["Who sold a bicycle?"])
    assert [item.sources for item in context.ranked] == [("D2:1",), ("D1:1",)]


def test_the_budget_holds_and_keeps_the_best(space):
    whole = MemoryContext(min_relative_score=0.0).build(space, ["Who sold a bicycle?"])
    assert whole.shown == ("m1", "m2")
    tight = MemoryContext(budget=whole.tokens - 1).build(space, ["Who sold a bicycle?"])
    assert tight.tokens <= whole.tokens - 1
    assert tight.shown == ("m1",)


@pytest.mark.parametrize("budget", [1, 3, 10, 20, 30, 100])
def test_no_budget_is_ever_exceeded(space, budget):
    context = MemoryContext(budget=budget, with_archive=True).build(space, ["Who sold a bicycle?"])
    assert context.tokens <= budget


def test_the_archive_adds_excerpts_with_session_dates(space):
    context = MemoryContext(with_archive=True).build(space, ["red bicycle"])
    assert "[8 May 2023] Mara: I bought a red bicycle yesterday." in context.excerpts.splitlines()


@pytest.mark.parametrize(
    "builder", [MemoryContext(with_archive=True, adds_dates=True), FullContext(adds_dates=True)]
)
def test_turns_name_the_days_that_their_words_mean_where_that_is_asked_for(space, builder):
    shown = builder.build(space, ["Which bicycle was bought?"])
    assert "Mara: I bought a red bicycle yesterday (7 May 2023)." in shown.excerpts
    assert "Tom: I play the violin." in shown.excerpts
    as_said = replace(builder, adds_dates=False).build(space, ["Which bicycle was bought?"])
    assert "I bought a red bicycle yesterday." in as_said.excerpts
    assert as_said.tokens < shown.tokens


def test_a_turn_and_a_memory_may_have_the_same_id():
    space = MemorySpace("mara")
    space.bank.create([Draft("Mara's cat is called Rex.", MemoryKind.SEMANTIC)], BY)
    said = Session(
        1,
        datetime(2023, 5, 8, 12, tzinfo=UTC),
        (Turn("m1", "Mara", "My cat is asleep."), Turn("m2", "Tom", "Oh.")),
    )
    space.ingest(said, SessionRecord("session_1"))
    context = MemoryContext(with_archive=True).build(space, ["What is Mara's cat called?"])
    assert context.memories == "Mara's cat is called Rex."
    assert context.ranked is not None
    assert [(item.item_id, item.sources) for item in context.ranked if item.item_id == "m1"] == [
        ("m1", ()),
        ("m1", ("m1",)),
    ]


def test_the_reader_answers_from_its_context(space):
    with ScriptedLM([fields(answer=" 2 June 2023 ")]) as lm, dspy.context(lm=lm):
        answer = MemoryProgram().ask(space, "When did Mara sell the bicycle?")
        (prompt,) = lm.requests
    assert (answer.text, answer.outcome) == ("2 June 2023", Outcome.OK)
    assert "Mara sold the red bicycle. [2 June 2023]" in prompt.user
    assert "I bought a red bicycle yesterday" not in prompt.user


def test_a_reader_may_search_for_other_words(space):
    search = {"tool_calls": [{"name": "search_memory", "args": {"query": "violin music"}}]}
    replies = [fields(tool_calls=json.dumps(search), answer=""), fields(answer="the violin")]
    reader = QAReader(MemoryContext(), max_searches=1)
    with ScriptedLM(replies) as lm, dspy.context(lm=lm):
        answer = reader.ask(space, "Which instrument does he have a bicycle for?")
        assert "Tom plays the violin." not in lm.requests[0].user
        assert "Tom plays the violin." in lm.requests[1].user
    assert (answer.text, answer.searches) == ("the violin", 1)


def test_a_reader_that_answers_at_once_does_not_search(space):
    replies = [fields(tool_calls='{"tool_calls": []}', answer="red")]
    with ScriptedLM(replies) as lm, dspy.context(lm=lm):
        answer = QAReader(MemoryContext(), max_searches=2).ask(space, "Which bicycle?")
    assert (answer.text, answer.searches) == ("red", 0)


@pytest.mark.parametrize("form", [fields, lambda **reply: json.dumps(reply)], ids=["chat", "json"])
@pytest.mark.parametrize("said", ["None", "N/A", "(empty)", "**none**"])
def test_a_search_is_made_although_the_answer_says_that_there_is_none(space, said, form):
    search = {"tool_calls": [{"name": "search_memory", "args": {"query": "violin music"}}]}
    replies = [form(tool_calls=json.dumps(search), answer=said), fields(answer="the violin")]
    with ScriptedLM(replies) as lm, dspy.context(lm=lm):
        answer = QAReader(MemoryContext(), max_searches=1).ask(space, "Which instrument?")
    assert (answer.text, answer.searches) == ("the violin", 1)


@pytest.mark.parametrize("query", ["Which bicycle?", "", " ", None])
def test_a_reader_without_an_answer_or_a_new_search_must_answer(space, query):
    search = {"tool_calls": [{"name": "search_memory", "args": {"query": query}}]}
    replies = [fields(tool_calls=json.dumps(search), answer=""), fields(answer="the red one")]
    with ScriptedLM(replies) as lm, dspy.context(lm=lm):
        answer = QAReader(MemoryContext(), max_searches=2).ask(space, "Which bicycle?")
    assert (answer.text, answer.searches) == ("the red one", 0)


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (ServerError("down", status=500), Outcome.ERROR),
        ("It was red.", Outcome.UNPARSED),
        ("", Outcome.UNPARSED),
    ],
)
def test_a_failed_call_is_an_outcome_of_the_answer(space, reply, outcome):
    with ScriptedLM([reply]) as lm, dspy.context(lm=lm):
        answer = MemoryProgram().ask(space, "Which bicycle?")
    assert (answer.text, answer.outcome) == ("", outcome)
    assert answer.message.startswith("reader.answer: ")


def test_a_reader_that_checks_answerability_abstains_without_a_call():
    space, told = MemorySpace("talk"), session(1, "Ana: I teach chess.", "Ben: I started to learn the cello.")
    space.bank.create([Draft("Ben started to learn the cello.", MemoryKind.EPISODIC, None, ("D1:2",))], BY)
    space.ingest(told, SessionRecord("session_1"))
    reader = QAReader(MemoryContext(), checks_answerability=True)
    with ScriptedLM([fields(answer="the cello")]) as lm, dspy.context(lm=lm):
        abstained = reader.ask(space, "Which instrument did Ana start to learn?")
        answered = reader.ask(space, "Which instrument did Ben start to learn?")
    assert (abstained.text, abstained.outcome) == ("Not mentioned in the conversation", Outcome.OK)
    assert [item.item_id for item in abstained.ranked or ()] == ["m1"]
    assert answered.text == "the cello"


def test_the_full_context_is_every_turn_with_dates(space):
    context = FullContext().build(space, ["anything"])
    assert context.excerpts == (
        "8 May 2023\nMara: I bought a red bicycle yesterday.\nTom: I play the violin."
        "\n\n20 May 2023\nMara: The red bicycle is sold."
    )
    assert context.ranked is None


def test_a_full_context_over_its_limit_loses_its_oldest_turns(space):
    whole = FullContext().build(space, ["anything"])
    found = {}
    for budget in range(whole.tokens + 10):
        context = FullContext(budget).build(space, ["anything"])
        assert context.tokens <= budget
        assert context.shown == whole.shown[len(whole.shown) - len(context.shown) :]
        assert context.excerpts == "(none)" or whole.excerpts.endswith(context.excerpts.splitlines()[-1])
        found[len(context.shown)] = context.excerpts
    assert list(found) == [0, 1, 2, 3]
    assert found[2] == "8 May 2023\nTom: I play the violin.\n\n20 May 2023\nMara: The red bicycle is sold."
    assert found[3] == whole.excerpts


def test_the_no_memory_baseline_has_an_empty_context(space):
    with ScriptedLM([fields(answer="red")]) as lm, dspy.context(lm=lm):
        ReaderOnly(NoContext()).ask(space, "Which bicycle?")
        shown = parse_input_fields(lm.requests[0].user)
    assert shown == ReaderContext().inputs("Which bicycle?")
    assert {text for name, text in shown.items() if "question" not in name} == {"(none)"}


def test_the_rag_context_has_no_memories(space):
    context = MemoryContext(with_memories=False, with_archive=True).build(space, ["red bicycle"])
    assert (context.core, context.memories) == ("(none)", "(none)")
    assert {source for item in context.ranked for source in item.sources} <= {"D1:1", "D1:2", "D2:1"}


def test_a_second_search_adds_as_many_memories_as_the_first():
    space = MemorySpace("mara")
    for text in ("Mara sold a bicycle.", "Tom plays the violin."):
        space.bank.create([Draft(text, MemoryKind.EPISODIC)], Provenance("test"))
    assert set(MemoryContext(top_k=1).build(space, ["bicycle", "violin"]).shown) == {"m1", "m2"}
