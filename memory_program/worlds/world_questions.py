"""Questions about the final state of a story, with gold, evidence and the facts that answer them."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta

from dateutil.relativedelta import relativedelta

from locomo.types import Category, Question, QuestionType, WorldQuestionType
from memory_program.bank.dates.date_span import format_day
from memory_program.worlds.catalogue import SCHEMAS
from memory_program.worlds.facts import Fact, Timeline
from memory_program.worlds.inferred_answers import implied_questions
from memory_program.worlds.vocabulary import Vocabulary
from memory_program.worlds.world_schema import WHEN, QuestionTemplate, fill_template

CATEGORY_SHARES: Mapping[Category, float] = {
    category: count / 1986 for category, count in zip(Category, (282, 321, 96, 841, 446), strict=True)
}
"""The share of each category: LoCoMo's own."""

_MAX_ANSWER_PARTS = 4  # an answer of more parts would not fit what a reader is shown


@dataclass(frozen=True, slots=True)
class QuestionCandidate:
    """A question that could be asked.

    ``facts`` hold the answer; of a trap (adversarial), which has no answer, they are those of the other
    speaker, and ``answer`` is what would be said of these.
    """

    text: str
    category: QuestionType
    answer: str | int
    facts: tuple[Fact, ...]

    @property
    def fact_ids(self) -> tuple[str, ...]:
        """The ids of the facts."""
        return tuple(fact.fact_id for fact in self.facts)


@dataclass(frozen=True, slots=True)
class GoldAnswer:
    """The facts that answer a question; none if the question has no answer."""

    question_id: str
    fact_ids: tuple[str, ...]


def list_question_candidates(
    timeline: Timeline, speakers: tuple[str, str], vocabulary: Vocabulary, rng: random.Random, today: date
) -> dict[QuestionType, list[QuestionCandidate]]:
    """List the questions that a story which is complete today can answer, by category, each text once."""
    found: dict[QuestionType, list[QuestionCandidate]] = {category: [] for category in Category}
    seen: set[str] = set()
    told = _FactQuestions(timeline, speakers, rng, today)
    implied = (
        QuestionCandidate(i.text, Category.OPEN_DOMAIN, i.answer, (i.fact,))
        for i in implied_questions(timeline, vocabulary, rng)
    )
    for candidate in (*told.direct_questions(), *told.multi_hop_questions(), *implied):
        if candidate.text not in seen:
            seen.add(candidate.text)
            found[candidate.category].append(candidate)
    return found


def list_earlier_questions(
    timeline: Timeline, session_days: Mapping[int, date], rng: random.Random
) -> list[QuestionCandidate]:
    """List a question about each state that a later one replaced, at a time when it held.

    That is a month, if it held for a whole one, or else a day. It had been told by then, and what is told of
    the change says that it came later. Corrections are no changes: what was wrong never held.
    """
    found: list[QuestionCandidate] = []
    for operation in timeline.operations:
        new, old = timeline.facts[operation.fact_id], timeline.facts.get(operation.supersedes or "")
        asked = None if old is None else old.schema.earlier_question
        if old is None or asked is None or old.schema is not new.schema or operation.reason == "corrected":
            continue
        told = session_days[old.session_number]
        events = (fact.when for fact in timeline.facts.values() if fact.evidence == new.evidence)
        changed = min([session_days[new.session_number], *(when.first for when in events if when)])
        if changed <= told:
            continue
        months = [told.replace(day=1) + relativedelta(months=n) for n in range(1, 25)]
        whole = [first for first in months if first + relativedelta(months=1) <= changed]
        if whole:
            then = f"in {rng.choice(whole):%B %Y}"
        else:
            then = f"on {format_day(told + timedelta(rng.randrange((changed - told).days)))}"
        text = fill_template(rng.choice(asked.texts), {**_question_values(old), "then": then})
        answer = fill_template(asked.answer, old.slots)
        found.append(QuestionCandidate(text, WorldQuestionType.EARLIER_STATE, answer, (old,)))
    return found


def sample_questions(
    found: Mapping[QuestionType, Sequence[QuestionCandidate]], wanted: float, rng: random.Random
) -> list[QuestionCandidate]:
    """Choose about ``wanted`` questions in LoCoMo's proportions.

    A category that has too few makes the others' share smaller too, down to a quarter of what is wanted.
    """
    possible = min(len(found[category]) / share for category, share in CATEGORY_SHARES.items())
    wanted = min(wanted, max(possible, wanted / 4))
    chosen: list[QuestionCandidate] = []
    for category, share in CATEGORY_SHARES.items():
        count = int(min(wanted * share, len(found[category])) + rng.random())
        chosen += rng.sample(found[category], count)
    return chosen


def to_question(candidate: QuestionCandidate, conversation_id: str, index: int) -> Question:
    """Write a candidate as the benchmark's question."""
    is_trap = candidate.category is Category.ADVERSARIAL
    turns = {turn_id for fact in candidate.facts for turn_id in fact.evidence}
    return Question(
        conversation_id=conversation_id,
        index=index,
        text=candidate.text,
        category=candidate.category,
        answer=None if is_trap else candidate.answer,
        evidence=tuple(sorted(turns, key=lambda turn_id: [int(part) for part in turn_id[1:].split(":")])),
        adversarial_answer=str(candidate.answer) if is_trap else None,
    )


class _FactQuestions:
    """Questions that facts answer as they stand, and the same questions about the wrong speaker."""

    def __init__(
        self, timeline: Timeline, speakers: tuple[str, str], rng: random.Random, today: date
    ) -> None:
        self._timeline = timeline
        self._overdue = {fact.fact_id for fact in timeline.live.values() if fact.is_overdue(today)}
        self._swapped = {speakers[0]: speakers[1], speakers[1]: speakers[0]}
        self._rng = rng
        plans = [timeline.facts[fact_id] for fact_id in self._overdue]
        maybe = [  # what the plans would have become
            replace(plan, schema=SCHEMAS[change.becomes])
            for plan in plans
            for change in plan.schema.changes
            if change.becomes
        ]
        self._ever = {
            _answer_group(fact, probe, fact.subject)
            for fact in (*timeline.facts.values(), *maybe)
            for probe in fact.schema.question_templates
        }

    def direct_questions(self) -> Iterator[QuestionCandidate]:
        """Ask what the probes of the live facts ask; facts that share an answer make it a list."""
        groups: dict[tuple[str, ...], list[Fact]] = {}
        probes: dict[tuple[str, ...], QuestionTemplate] = {}
        for fact in self._timeline.live.values():
            for probe in fact.schema.question_templates:
                key = _answer_group(fact, probe, fact.subject)
                groups.setdefault(key, []).append(fact)
                probes[key] = probe
        for key, facts in groups.items():
            answer = _gold_answer(probes[key], facts)
            if answer is None or (
                probes[key].answer != WHEN and any(fact.fact_id in self._overdue for fact in facts)
            ):
                continue
            category = Category.MULTI_HOP if len(facts) > 1 else Category.SINGLE_HOP
            if probes[key].answer in (WHEN, "{birthday}"):
                category = Category.TEMPORAL
            text = fill_template(self._rng.choice(probes[key].texts), _question_values(facts[0]))
            yield QuestionCandidate(text, category, answer, tuple(facts))
            other = self._swapped.get(facts[0].subject)
            if other and _answer_group(facts[0], probes[key], other) not in self._ever:
                text = self._rng.choice(probes[key].texts)
                trap = fill_template(text, {**_question_values(facts[0]), "name": other})
                yield QuestionCandidate(trap, Category.ADVERSARIAL, answer, tuple(facts))

    def multi_hop_questions(self) -> Iterator[QuestionCandidate]:
        """Ask about somebody by who they are to a speaker: two memories answer it together."""
        for fact in self._timeline.live.values():
            parent = self._timeline.live.get(fact.parent or "")
            if parent is None:
                continue
            for bridge in fact.schema.bridge_templates:
                answer = _gold_answer(bridge, [fact])
                role = next(role.role for role in fact.schema.about if role.schema == parent.schema.name)
                values = {**_question_values(fact), "role": parent.slots[role]}
                text = fill_template(self._rng.choice(bridge.texts), values)
                if answer is not None:
                    yield QuestionCandidate(text, Category.MULTI_HOP, answer, (parent, fact))


def _answer_group(fact: Fact, probe: QuestionTemplate, subject: str) -> tuple[str, ...]:
    """Identify what a probe asks of a subject: facts with the same identity answer together."""
    return (
        fact.schema.name,
        probe.texts[0],
        subject,
        *(_question_values(fact)[slot] for slot in probe.named),
    )


def _question_values(fact: Fact) -> dict[str, str]:
    return {**fact.slots, "name": fact.speaker, "subject": fact.subject}


def _gold_answer(probe: QuestionTemplate, facts: Sequence[Fact]) -> str | int | None:
    """Give the gold of a probe; None if the facts give none, or too much of it."""
    if probe.answer == WHEN:
        when = facts[0].when
        return when.gold if when and len(facts) == 1 else None
    parts = [fill_template(probe.answer, fact.slots) for fact in facts]
    is_list = len(parts) > 1
    if len(parts) > _MAX_ANSWER_PARTS or (is_list and "," in parts[0]):
        return None
    return ", ".join(parts)
