"""Schemas of facts: slots, one canonical sentence, utterances, and possible later changes."""

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal

from memory_program.worlds.vocabulary import with_article

Tense = Literal["past", "future"]
Kind = Literal["core", "episodic", "semantic", "procedural"]
KINDS: tuple[Kind, ...] = ("core", "episodic", "semantic", "procedural")
"""The kinds of memory, in the order in which a session's operations come."""

WHEN = "when"
"""The answer of a probe that asks for the date."""


@dataclass(frozen=True)
class QuestionTemplate:
    """A question that a fact answers.

    ``texts`` are its phrasings, all naming the same slots; facts that agree in these share the answer, so
    that several make a list. ``answer`` is a template of slots, or ``WHEN``.
    """

    texts: tuple[str, ...]
    answer: str

    @cached_property
    def named(self) -> tuple[str, ...]:
        """The slots that the question names, without the articles of their fields."""
        fields = {slot.removeprefix("a_") for slot in template_fields(self.texts[0])}
        return tuple(sorted(fields - {"name"}))


@dataclass(frozen=True)
class FactChange:
    """A change that may happen to a fact later.

    ``replaced_slots`` lists slots that get another value, and the old fact is superseded; ``becomes`` names
    the schema that it turns into (a plan that came true); ``changes_date`` moves its date; with none of these
    it ends. ``event`` names the schema of an event that is remembered besides (the move itself).
    """

    statements: tuple[str, ...]
    reason: str
    replaced_slots: tuple[str, ...] = ()
    becomes: str | None = None
    changes_date: bool = False
    event: str | None = None
    tense: Tense | None = None

    @property
    def is_ending(self) -> bool:
        """True if no new fact replaces the old one."""
        return not (self.replaced_slots or self.becomes or self.changes_date)


def slot_change(slot: str, reason: str, *statements: str, event: str | None = None) -> FactChange:
    """Make the change that gives one slot another value; one that leaves an event behind has a past date."""
    tense = "past" if event else None
    return FactChange(statements, reason, replaced_slots=(slot,), event=event, tense=tense)


@dataclass(frozen=True)
class RoleReference:
    """A person's role for a speaker: the fact of ``schema`` that introduced them, by its two slots."""

    schema: str
    subject: str
    role: str


@dataclass(frozen=True)
class FactSchema:
    """A sort of fact.

    ``text`` is the canonical memory, ``statements`` what its speaker says, ``asked`` pairs of the other's
    question and the answer to it, ``elliptical_exchanges`` the same where the answer says nothing without its
    question, ``shown`` pairs of a text and an image's caption that alone tells the rest. ``key`` names the
    slots that only one live fact of a subject may have the same; ``max_live_facts`` bounds the live facts of
    a subject. ``implied_schema`` names a schema that becomes true at the same moment. ``about`` says whose it
    is, where that is not the speaker, and ``bridge_templates`` ask for it by the ``{role}`` that the subject
    has for the speaker. ``reused_slot`` names a slot whose value is often that of an earlier fact.
    ``correctable_slot`` names the slot that a slip of the tongue hits. ``earlier_question`` asks for what was
    true ``{then}``, before a change. A schema of weight 0 is only the consequence of a change.
    """

    name: str
    kind: Kind
    text: str
    slots: Mapping[str, str]
    statements: tuple[str, ...]
    question_templates: tuple[QuestionTemplate, ...]
    bridge_templates: tuple[QuestionTemplate, ...] = ()
    asked: tuple[tuple[str, str], ...] = ()
    elliptical_exchanges: tuple[tuple[str, str], ...] = ()
    shown: tuple[tuple[str, str], ...] = ()
    key: tuple[str, ...] = ()
    max_live_facts: int | None = None
    tense: Tense | None = None
    changes: tuple[FactChange, ...] = field(default=())
    implied_schema: str | None = None
    about: tuple[RoleReference, ...] = ()
    reused_slot: str | None = None
    correctable_slot: str | None = None
    earlier_question: QuestionTemplate | None = None
    weight: float = 1.0


def question(answer: str, *texts: str) -> QuestionTemplate:
    """Make a question from its answer's template and its phrasings."""
    return QuestionTemplate(texts, answer)


def date_question(*texts: str) -> QuestionTemplate:
    """Make the probe that asks for a fact's date."""
    return QuestionTemplate(texts, WHEN)


@lru_cache(maxsize=4096)
def template_fields(template: str) -> tuple[str, ...]:
    """List the fields of a template."""
    return tuple(name for _, name, _, _ in string.Formatter().parse(template) if name)


def fill_template(template: str, values: Mapping[str, str]) -> str:
    """Fill a template in; ``{a_thing}`` is the slot ``thing`` after its article. Spaces are tidied.

    Raises:
        KeyError: a field has no value.
    """
    filled = {
        name: with_article(values[name.removeprefix("a_")]) if name.startswith("a_") else values[name]
        for name in template_fields(template)
    }
    return " ".join(template.format_map(filled).split())
