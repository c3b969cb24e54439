"""What a sort of fact is: its slots, its one canonical sentence, how people say it, what may become of it."""

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
class Probe:
    """A question that a fact answers.

    ``texts`` are its phrasings, all naming the same slots; facts that agree in these share the answer, so
    that several make a list. ``answer`` is a template of slots, or ``WHEN``.
    """

    texts: tuple[str, ...]
    answer: str

    @cached_property
    def named(self) -> tuple[str, ...]:
        """The slots that the question names, without the articles of their fields."""
        fields = {slot.removeprefix("a_") for slot in fields_of(self.texts[0])}
        return tuple(sorted(fields - {"name"}))


@dataclass(frozen=True)
class Change:
    """What may become of a fact later.

    ``replaces`` lists slots that get another value, and the old fact is superseded; ``becomes`` names the
    schema that it turns into (a plan that came true); ``redates`` moves its date; with none of these it
    ends. ``event`` names the schema of an event that is remembered besides (the move itself).
    """

    says: tuple[str, ...]
    reason: str
    replaces: tuple[str, ...] = ()
    becomes: str | None = None
    redates: bool = False
    event: str | None = None
    tense: Tense | None = None

    @property
    def ends(self) -> bool:
        """Whether nothing stands in the old fact's place."""
        return not (self.replaces or self.becomes or self.redates)


@dataclass(frozen=True)
class Role:
    """Who somebody is to a speaker: the fact of ``schema`` that introduced them, by its two slots."""

    schema: str
    subject: str
    role: str


@dataclass(frozen=True)
class Schema:
    """A sort of fact.

    ``text`` is the canonical memory, ``says`` what its speaker says, ``asked`` pairs of the other's question
    and the answer to it, ``fragments`` the same where the answer says nothing without its question, ``shown``
    pairs of a text and an image's caption that alone tells the rest.
    ``key`` names the slots that only one live fact of a subject may have the same; ``at_most`` bounds the
    live facts of a subject. ``also`` names a schema that becomes true at the same moment. ``about`` says
    whose it is, where that is not the speaker, and ``bridges`` ask for it by the ``{role}`` that the subject
    has for the speaker. ``regroups`` names a slot whose value is often that of an earlier fact. ``corrects``
    names the slot that a slip of the tongue hits. A schema of weight 0 is only the consequence of a change.
    """

    name: str
    kind: Kind
    text: str
    slots: Mapping[str, str]
    says: tuple[str, ...]
    probes: tuple[Probe, ...]
    bridges: tuple[Probe, ...] = ()
    asked: tuple[tuple[str, str], ...] = ()
    fragments: tuple[tuple[str, str], ...] = ()
    shown: tuple[tuple[str, str], ...] = ()
    key: tuple[str, ...] = ()
    at_most: int | None = None
    tense: Tense | None = None
    changes: tuple[Change, ...] = field(default=())
    also: str | None = None
    about: tuple[Role, ...] = ()
    regroups: str | None = None
    corrects: str | None = None
    weight: float = 1.0


def when_probe(*texts: str) -> Probe:
    """Make the probe that asks for a fact's date."""
    return Probe(texts, WHEN)


@lru_cache(maxsize=4096)
def fields_of(template: str) -> tuple[str, ...]:
    """List the fields of a template."""
    return tuple(name for _, name, _, _ in string.Formatter().parse(template) if name)


def fill(template: str, values: Mapping[str, str]) -> str:
    """Fill a template in; ``{a_thing}`` is the slot ``thing`` after its article. Spaces are tidied.

    Raises:
        KeyError: a field has no value.
    """
    filled = {
        name: with_article(values[name.removeprefix("a_")]) if name.startswith("a_") else values[name]
        for name in fields_of(template)
    }
    return " ".join(template.format_map(filled).split())
