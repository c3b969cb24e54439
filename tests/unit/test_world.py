"""Properties of made-up worlds: what is asked can be answered, and what is true never contradicts itself."""

import re
import string
from collections import Counter
from datetime import date
from itertools import pairwise

import pytest

from locomo.benchmark_errors import WorldError
from locomo.types import Category, WorldQuestionType
from memory_program.bank.dates.date_span import format_day
from memory_program.bank.dates.resolve import find_dates, resolve_date_span
from memory_program.worlds import CATEGORY_SHARES, KINDS, Action, World, generate_worlds, is_held_out
from memory_program.worlds.catalogue import SCHEMAS
from memory_program.worlds.consequences import CONSEQUENCES
from memory_program.worlds.small_talk import DISTRACTORS, REACTIONS, build_sentence
from memory_program.worlds.vocabulary import identifying_word
from memory_program.worlds.world_schema import fill_template

WORD = re.compile(r"[\w'-]+")


@pytest.fixture(scope="module")
def worlds() -> list[World]:
    return generate_worlds(21, 30)


@pytest.fixture(scope="module")
def held_out_worlds() -> list[World]:
    return generate_worlds(21, 30, held_out=True)


def evidence_text(world: World, turn_ids: tuple[str, ...]) -> str:
    return "\n".join(world.conversation.turns[turn_id].line for turn_id in turn_ids)


def open_words(world: World) -> set[str]:
    """Every open-class word of a world's facts, and of its speakers' names."""
    return {
        word.lower()
        for fact in world.facts.values()
        for slot, value in fact.slots.items()
        if (word := identifying_word(fact.schema.slots[slot], value))
    } | {speaker.lower() for speaker in world.conversation.speakers}


def all_words(world: World) -> set[str]:
    texts = [turn.line for turn in world.conversation.turns.values()]
    texts += [question.text for question in world.conversation.questions]
    texts += [fact.text for fact in world.facts.values()]
    return {word.lower() for text in texts for word in WORD.findall(text)}


def test_a_world_does_not_depend_on_how_many_are_made() -> None:
    assert generate_worlds(3, 4)[2] == generate_worlds(3, 3)[2]


def test_other_seeds_give_other_speakers() -> None:
    assert len({generate_worlds(seed)[0].conversation.speakers for seed in range(20)}) == 20


def test_the_two_speakers_never_share_a_name(worlds: list[World]) -> None:
    assert all(len(set(world.conversation.speakers)) == 2 for world in worlds)


def test_nobody_in_a_story_is_named_like_a_speaker(worlds: list[World]) -> None:
    for world in worlds:
        people = {fact.slots["person"] for fact in world.facts.values() if "person" in fact.slots}
        assert people.isdisjoint(world.conversation.speakers)


def test_sessions_are_numbered_from_one_on_days_that_increase(worlds: list[World]) -> None:
    for world in worlds:
        sessions = world.conversation.sessions
        days = [session.date_time.date() for session in sessions]
        assert 4 <= len(sessions) <= 32
        assert [session.number for session in sessions] == list(range(1, len(sessions) + 1))
        assert days == sorted(set(days))


def test_speakers_take_turns(worlds: list[World]) -> None:
    for world in worlds:
        for session in world.conversation.sessions:
            speakers = [turn.speaker for turn in session.turns]
            assert all(one != next_one for one, next_one in pairwise(speakers))
            assert [turn.turn_id for turn in session.turns] == [
                f"D{session.number}:{number}" for number in range(1, len(speakers) + 1)
            ]


def test_every_question_has_evidence_among_the_turns(worlds: list[World]) -> None:
    for world in worlds:
        for question in world.conversation.questions:
            assert question.evidence
            assert set(question.evidence) <= world.conversation.turns.keys()


def test_the_evidence_says_what_the_facts_behind_a_question_say(worlds: list[World]) -> None:
    """Values stand there letter for letter, and so does the day as it was mentioned."""
    for world in worlds:
        for fact in world.facts.values():
            said = evidence_text(world, fact.evidence)
            assert all(value in said for value in fact.slots.values()), (fact.text, said)
            if fact.when and fact.schema.statements:
                assert fact.when.expression.lower() in said.lower(), (fact.when, said)


def test_an_answer_that_says_nothing_without_its_question_is_evidence_together_with_it(
    worlds: list[World],
) -> None:
    replies = Counter[bool]()
    for world in worlds:
        for fact in world.facts.values():
            turns = [world.conversation.turns[turn_id] for turn_id in fact.evidence]
            for _, reply in fact.schema.elliptical_exchanges:
                if turns[-1].text == build_sentence("", fill_template(reply, fact.utterance_values)):
                    replies[len(turns) == 2 and turns[0].text.endswith("?")] += 1
    assert (replies[False], replies[True] > 20) == (0, True)


def test_what_changes_a_fact_happened_after_it_was_told_and_not_after_today(worlds: list[World]) -> None:
    dated = 0
    for world in worlds:
        days = {session.number: session.date_time.date() for session in world.conversation.sessions}
        told = {fact.fact_id: days[fact.session_number] for fact in world.facts.values()}
        for operation in world.operations:
            fact, old = world.facts[operation.fact_id], world.facts.get(operation.supersedes or "")
            if (
                old is None
                or operation.reason == "corrected"
                or not operation.time_expression
                or not fact.when
            ):
                continue
            if fact.schema.tense == "past":
                dated += 1
                assert told[old.fact_id] < fact.when.first <= fact.when.last <= days[operation.session_number]
                if old.when:
                    assert old.when.first <= days[operation.session_number]
    assert dated > 10


def test_consequences_happened_after_what_they_follow_from_was_told(worlds: list[World]) -> None:
    """The events of changes: a move, another job, something sold, a pet given away."""
    ends = Counter[str]()
    for world in worlds:
        days = {session.number: session.date_time.date() for session in world.conversation.sessions}
        by_sources = {
            operation.sources: world.facts[operation.supersedes]
            for operation in world.operations
            if operation.supersedes
        }
        for operation in world.operations:
            fact = world.facts[operation.fact_id]
            if fact.schema in CONSEQUENCES and operation.action is Action.CREATE:
                assert fact.when is not None
                old = by_sources[operation.sources]
                assert days[old.session_number] < fact.when.first, (old.text, fact.text, fact.when)
                ends[fact.schema.name] += 1
    assert len(ends) == len(CONSEQUENCES)


@pytest.mark.parametrize("seed", [212, 262, 534])
def test_a_plan_that_gets_a_new_date_gets_another_one(seed: int) -> None:
    (world,) = generate_worlds(seed)
    put_off = [
        (world.facts[operation.supersedes], world.facts[operation.fact_id])
        for operation in world.operations
        if operation.reason == "put off" and operation.supersedes
    ]
    assert put_off
    for old, new in put_off:
        assert old.when != new.when
        assert old.happened_at is None or old.happened_at != new.happened_at


@pytest.mark.parametrize("seed", [332, 658])
def test_a_correction_leaves_what_was_planned_after_its_plan(seed: int) -> None:
    (world,) = generate_worlds(seed, coined=0.5)
    days = {session.number: session.date_time.date() for session in world.conversation.sessions}
    planned_on: dict[str, date] = {}
    for operation in world.operations:
        old = world.facts.get(operation.supersedes or "")
        if old is not None and operation.reason == "plan came true":
            planned_on[operation.fact_id] = days[old.session_number]
        elif old is not None and old.fact_id in planned_on:
            planned_on[operation.fact_id] = planned_on[old.fact_id]
    assert planned_on
    for fact_id, day in planned_on.items():
        when = world.facts[fact_id].when
        assert when is not None
        assert when.first > day


def test_nobody_is_asked_what_is_planned_where_a_plan_is_overdue(worlds: list[World]) -> None:
    """Whether such a plan came true, nobody has said: neither "plans to" nor "never did" would be right."""
    asked = 0
    for world in worlds:
        today = world.conversation.sessions[-1].date_time.date()
        live = world.live_facts_after(len(world.conversation.sessions))
        overdue = [fact for fact in live if fact.is_overdue(today)]
        done = {
            (change.becomes, fact.subject)
            for fact in overdue
            for change in fact.schema.changes
            if change.becomes
        }
        for question, answer in zip(world.conversation.questions, world.answers, strict=True):
            facts = [world.facts[fact_id] for fact_id in answer.fact_ids]
            if question.category is Category.TEMPORAL:
                continue
            if any(fact.schema.tense == "future" for fact in facts):
                asked += 1
                assert not any(fact in overdue for fact in facts), question
            for schema, subject in done if not facts else ():
                lists = [probe for probe in SCHEMAS[schema].question_templates if not probe.named]
                texts = {fill_template(text, {"name": subject}) for probe in lists for text in probe.texts}
                assert question.text not in texts
    assert asked


def test_golds_can_be_read_off_the_memories_of_their_facts(worlds: list[World]) -> None:
    for world in worlds:
        for question, answer in zip(world.conversation.questions, world.answers, strict=True):
            facts = [world.facts[fact_id] for fact_id in answer.fact_ids]
            shown = " ".join(
                fact.text + (f" {format_day(fact.happened_at)}" if fact.happened_at else "") for fact in facts
            )
            if question.category in (Category.MULTI_HOP, Category.TEMPORAL, Category.SINGLE_HOP):
                assert all(part in shown for part in str(question.answer).split(", ")), (question, shown)


def test_golds_of_every_answerable_category_come_from_facts_that_are_true_at_the_end(
    worlds: list[World],
) -> None:
    for world in worlds:
        live = {fact.fact_id for fact in world.live_facts_after(len(world.conversation.sessions))}
        for question, answer in zip(world.conversation.questions, world.answers, strict=True):
            assert answer.question_id == question.question_id
            assert set(answer.fact_ids) <= live
            assert bool(answer.fact_ids) == (question.category is not Category.ADVERSARIAL)


def test_traps_have_no_gold_and_name_the_speaker_of_whom_it_is_not_true(worlds: list[World]) -> None:
    for world in worlds:
        asked = {q.text: q for q in world.conversation.questions}
        swap = dict(zip(world.conversation.speakers, reversed(world.conversation.speakers), strict=True))
        for trap in asked.values():
            if trap.category is not Category.ADVERSARIAL:
                assert trap.adversarial_answer is None
                continue
            assert trap.answer is None
            assert trap.adversarial_answer
            named = [speaker for speaker in swap if speaker in trap.text]
            assert len(named) == 1
            tellers = {world.conversation.turns[turn_id].speaker for turn_id in trap.evidence}
            assert swap[named[0]] in tellers  # the other one may have asked


def test_a_question_text_has_one_gold(worlds: list[World]) -> None:
    for world in worlds:
        texts = [question.text for question in world.conversation.questions]
        assert len(texts) == len(set(texts))


def test_no_two_facts_that_are_true_together_contradict_each_other(worlds: list[World]) -> None:
    for world in worlds:
        live: dict[str, tuple[str, ...]] = {}
        for operation in world.operations:
            if operation.supersedes:
                assert world.facts[operation.supersedes].text == operation.old_text
                del live[operation.supersedes]
            if operation.action is not Action.DELETE:
                fact = world.facts[operation.fact_id]
                assert fact.key not in live.values(), fact.text
                live[fact.fact_id] = fact.key


def test_operations_come_by_session_then_kind_and_cite_turns_of_their_session(worlds: list[World]) -> None:
    for world in worlds:
        order = [(operation.session_number, KINDS.index(operation.kind)) for operation in world.operations]
        assert order == sorted(order)
        listed = [
            operation
            for session in world.conversation.sessions
            for kind in KINDS
            for operation in world.session_operations(session.number, kind)
        ]
        assert tuple(listed) == world.operations
        for operation in world.operations:
            assert operation.sources
            assert all(source.startswith(f"D{operation.session_number}:") for source in operation.sources)


def test_an_operation_never_touches_what_its_own_session_wrote(worlds: list[World]) -> None:
    """The specialists see the bank as it was before the session."""
    for world in worlds:
        for operation in world.operations:
            if operation.supersedes:
                assert world.facts[operation.supersedes].session_number < operation.session_number


def test_only_the_core_kind_has_core_actions_and_only_deletions_have_no_text(worlds: list[World]) -> None:
    for world in worlds:
        for operation in world.operations:
            is_core_action = operation.action in (Action.APPEND_CORE, Action.REPLACE_CORE)
            assert is_core_action == (operation.kind == "core")
            assert bool(operation.text) == (operation.action is not Action.DELETE)
            assert bool(operation.supersedes) == (
                operation.action in (Action.UPDATE, Action.DELETE, Action.REPLACE_CORE)
            )


def test_an_update_that_has_no_day_follows_a_memory_that_had_none(worlds: list[World]) -> None:
    """A bank keeps the old day otherwise, and the memory would say two dates."""
    for world in worlds:
        for operation in world.operations:
            if operation.action is Action.UPDATE and operation.happened_at is None:
                assert world.facts[operation.supersedes or ""].happened_at is None


def test_a_time_is_said_in_words_that_mean_it_or_not_at_all(worlds: list[World]) -> None:
    for world in worlds:
        days = {session.number: session.date_time.date() for session in world.conversation.sessions}
        for operation in world.operations:
            if operation.time_expression:
                said_on = days[operation.session_number]
                time = resolve_date_span(operation.time_expression, said_on)
                assert time is not None
                assert operation.happened_at == (time.first if time.is_day else None)
                told = (
                    operation.text_without_time
                    if time.is_day
                    else time.insert_into(operation.text_without_time, operation.time_expression)
                )
                assert operation.text == told
                continue
            assert operation.text_without_time == operation.text
            if operation.happened_at:
                assert operation.happened_at == world.facts[operation.supersedes or ""].happened_at


def test_a_line_to_be_replaced_stands_in_the_core_exactly_once(worlds: list[World]) -> None:
    for world in worlds:
        core: list[str] = []
        for operation in world.operations:
            if operation.action is Action.REPLACE_CORE:
                assert "\n".join(core).count(operation.old_text) == 1
                core[core.index(operation.old_text)] = operation.text
            elif operation.action is Action.APPEND_CORE:
                core.append(operation.text)
        assert len("\n".join(core)) < 5000


def test_no_memory_is_created_that_is_live_already(worlds: list[World]) -> None:
    for world in worlds:
        live: dict[str, str] = {}
        for operation in world.operations:
            live.pop(operation.supersedes or "", None)
            if operation.text:
                assert operation.text not in live.values()
                live[operation.fact_id] = operation.text


def test_a_slip_of_the_tongue_is_not_remembered(worlds: list[World]) -> None:
    slips = 0
    for world in worlds:
        for operation in world.operations:
            if operation.action in (Action.CREATE, Action.APPEND_CORE) and len(operation.sources) == 2:
                correction = world.conversation.turns[operation.sources[1]].text.rstrip(".")
                if ", not " in correction:
                    slips += 1
                    assert correction.rpartition(", not ")[2] not in operation.text
    assert slips > 10


def test_plans_and_possessions_end_and_homes_change(worlds: list[World]) -> None:
    reasons = Counter(operation.reason for world in worlds for operation in world.operations)
    for reason in ("plan dropped", "plan came true", "put off", "moved", "changed jobs", "sold", "corrected"):
        assert reasons[reason] > 2, reason


def test_earlier_states_are_asked_for_too(worlds: list[World]) -> None:
    texts = [question.text for world in worlds for question in world.conversation.questions]
    assert any(re.search(r"Where did \w+ live before \w+\?", text) for text in texts)
    assert any(re.search(r"What was \w+'s job before changing to \w+\?", text) for text in texts)


def test_captions_carry_facts_that_the_text_leaves_out(worlds: list[World]) -> None:
    carried = 0
    for world in worlds:
        for fact in world.facts.values():
            turns = [world.conversation.turns[turn_id] for turn_id in fact.evidence]
            in_text = all(any(value in turn.text for turn in turns) for value in fact.slots.values())
            carried += not in_text
    assert carried > 30


def test_distractors_name_nothing_that_a_fact_names(worlds: list[World]) -> None:
    patterns = [
        re.compile(
            re.escape(text).replace(re.escape(f"{{a_{name}}}"), "an? (.+)").replace(rf"\{{{name}\}}", "(.+)")
        )
        for name, text in DISTRACTORS
    ]
    found = 0
    for world in worlds:
        values = {value for fact in world.facts.values() for value in fact.slots.values()}
        for turn in world.conversation.turns.values():
            for pattern in patterns:
                match = pattern.fullmatch(turn.text)
                if match:
                    found += 1
                    assert match[1] not in values
    assert found > 60


def test_what_is_said_again_is_not_written_again(worlds: list[World]) -> None:
    """Restating turns exist, and no operation cites them."""
    restated = 0
    for world in worlds:
        cited = {source for operation in world.operations for source in operation.sources}
        for turn in world.conversation.turns.values():
            if turn.text.startswith(("As I said,", "You told me that", "As you know,")):
                restated += 1
                assert turn.turn_id not in cited
    assert restated > 30


def test_categories_are_asked_in_locomo_s_proportions() -> None:
    counts = Counter(q.category for world in generate_worlds(5, 80) for q in world.conversation.questions)
    for category, share in CATEGORY_SHARES.items():
        assert counts[category] / counts.total() == pytest.approx(share, abs=0.01)


def test_proportions_are_locomo_s_own_counts() -> None:
    assert [round(share * 1986) for share in CATEGORY_SHARES.values()] == [282, 321, 96, 841, 446]


def test_yearly_golds_are_numbers_as_in_locomo(worlds: list[World]) -> None:
    answers = [question.answer for world in worlds for question in world.conversation.questions]
    years = [answer for answer in answers if isinstance(answer, int)]
    assert years
    assert all(2018 <= year <= 2026 for year in years)


def test_held_out_worlds_share_no_open_word_with_training_worlds(
    worlds: list[World], held_out_worlds: list[World]
) -> None:
    training = set[str]().union(*(all_words(world) for world in worlds))
    held_out = set[str]().union(*(open_words(world) for world in held_out_worlds))
    assert len(held_out) > 800
    assert not training & held_out


def test_every_open_word_is_on_its_world_s_side(worlds: list[World], held_out_worlds: list[World]) -> None:
    assert not any(is_held_out(word) for world in worlds for word in open_words(world))
    assert all(is_held_out(word) for world in held_out_worlds for word in open_words(world))


def test_coined_words_are_on_their_world_s_side_and_not_among_the_real_ones() -> None:
    coined, plain = (generate_worlds(5, 20, coined=share) for share in (1.0, 0.0))
    things, real = (
        {
            fact.slots["thing"].split()[-1]
            for world in some
            for fact in world.facts.values()
            if "thing" in fact.slots
        }
        for some in (coined, plain)
    )
    assert len(things) > 50
    assert not things & real
    assert not any(is_held_out(word) for word in things)
    assert 0 < sum("-" in word for word in things) < 0.2 * len(things)


def test_names_seldom_repeat_from_world_to_world(worlds: list[World]) -> None:
    names = [
        fact.slots["person"] for world in worlds for fact in world.facts.values() if "person" in fact.slots
    ]
    assert len(set(names)) > 0.4 * len(names)


def test_a_session_fits_a_small_model(worlds: list[World]) -> None:
    words = [len(s.transcript.split()) for world in worlds for s in world.conversation.sessions]
    assert sum(words) / len(words) < 120
    assert max(words) < 300


def test_a_conversation_goes_on_until_it_has_the_turns_asked_for() -> None:
    (world,) = generate_worlds(1, turns=10_000)
    assert 10_000 <= len(world.conversation.turns) < 10_050
    assert len(world.conversation.questions) > 1000
    assert world.conversation.sessions[-1].date_time.date() < date(2035, 1, 1)


def test_turns_are_written_cleanly(worlds: list[World]) -> None:
    for world in worlds:
        for turn in world.conversation.turns.values():
            assert not re.search(r"\s\s|\s[,.!?]|[,.!?;:][,.;:]|[{}]", turn.text), turn.text
            assert not turn.text[0].islower()


def test_nobody_reacts_to_what_the_other_only_replied(worlds: list[World]) -> None:
    """A reaction follows news; after a greeting or a reaction the other is asked for theirs."""
    for world in worlds:
        for session in world.conversation.sessions:
            for turn, reply in pairwise(session.turns):
                is_reaction = [
                    any(t.text == r.format(other=o) for r in REACTIONS for o in world.conversation.speakers)
                    for t in (turn, reply)
                ]
                assert not all(is_reaction), (turn.text, reply.text)


def test_memories_are_plain_sentences(worlds: list[World]) -> None:
    allowed = set(string.ascii_letters + string.digits + " ,.':-")
    for world in worlds:
        for fact in world.facts.values():
            assert set(fact.text) <= allowed
            assert fact.text[0].isupper()
            assert fact.text.endswith(".")
            assert "  " not in fact.text


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"conversations": 0}, "conversations=0 must be at least 1"),
        ({"sessions": (5, 4)}, "sessions=(5, 4)"),
        ({"sessions": (0, 4)}, "sessions=(0, 4)"),
        ({"turns": 0}, "turns=0 must be at least 1"),
        ({"facts_per_session": (3, 1)}, "facts_per_session=(3, 1)"),
        ({"questions_per_session": -1.0}, "questions_per_session=-1.0"),
        ({"questions_per_session": float("inf")}, "questions_per_session=inf"),
        ({"questions_per_session": float("nan")}, "questions_per_session=nan"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, object], complaint: str) -> None:
    with pytest.raises(WorldError, match=re.escape(complaint)):
        generate_worlds(1, **arguments)  # type: ignore[arg-type]  # the table mixes types on purpose


def test_more_questions_than_there_are_asks_all_of_them():
    (asked,), (world,) = (generate_worlds(1, questions_per_session=wanted) for wanted in (1e3, 1e308))
    assert world.conversation.questions == asked.conversation.questions


# -- earlier states ----------------------------------------------------------------------------------


def test_questions_about_earlier_states_come_after_all_others_and_change_nothing():
    plain, asked = generate_worlds(21, 10), generate_worlds(21, 10, earlier_states=True)
    for world, more in zip(plain, asked, strict=True):
        count = len(world.conversation.questions)
        assert more.conversation.sessions == world.conversation.sessions
        assert more.conversation.questions[:count] == world.conversation.questions
        added = more.conversation.questions[count:]
        assert {question.category for question in added} <= {WorldQuestionType.EARLIER_STATE}
        assert [gold.question_id for gold in more.answers] == [
            question.question_id for question in more.conversation.questions
        ]


def test_an_earlier_state_held_at_the_time_that_its_question_names():
    asked, months = 0, 0
    for world in generate_worlds(21, 30, earlier_states=True):
        days = {session.number: session.date_time.date() for session in world.conversation.sessions}
        for question, gold in zip(world.conversation.questions, world.answers, strict=True):
            if question.category is not WorldQuestionType.EARLIER_STATE:
                continue
            (fact,) = (world.facts[fact_id] for fact_id in gold.fact_ids)
            (change,) = (o for o in world.operations if o.supersedes == fact.fact_id)
            (found,) = find_dates(question.text, max(days.values()))
            assert days[fact.session_number] <= found.date_span.first
            assert found.date_span.last < days[change.session_number]
            assert change.reason != "corrected"
            new = world.facts[change.fact_id]
            events = [f.when.first for f in world.facts.values() if f.evidence == new.evidence and f.when]
            assert all(found.date_span.last < first for first in events)
            answer = fact.schema.earlier_question.answer
            assert fill_template(answer, fact.slots) == question.answer != fill_template(answer, new.slots)
            assert all(part in fact.text for part in question.answer.split(", "))
            asked += 1
            months += not found.date_span.is_day
    assert asked > 100
    assert 0 < months < asked
