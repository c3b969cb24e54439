"""The timeline: what is true when, and the memory operations that keep a bank in step with it."""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum
from functools import cached_property

from memory_program.worlds.mentions import TimeMention
from memory_program.worlds.world_schema import FactSchema, Kind, fill_template

_REUSE_WINDOW = 6  # how far back a new fact looks for a place or person to take up


class Action(StrEnum):
    """Actions of a gold operation."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    APPEND_CORE = "append_core"
    REPLACE_CORE = "replace_core"


@dataclass(frozen=True)
class Fact:
    """Something true, in one version; a change makes another fact.

    ``speaker`` tells it, ``subject`` is whom it is about: the same, or a person or pet of the speaker, and
    then ``parent`` is the fact that introduced these. ``evidence`` names the turns that say it, enough to
    answer any question about it; the timeline gives the id.
    """

    schema: FactSchema
    speaker: str
    slots: Mapping[str, str]
    when: TimeMention | None
    session_number: int
    subject: str
    parent: str | None = None
    evidence: tuple[str, ...] = ()
    fact_id: str = ""

    @cached_property
    def text(self) -> str:
        """The canonical memory: one sentence, the same for the same truth."""
        return self._text(self.when.phrase if self.when else "")

    @property
    def undated_text(self) -> str:
        """The canonical memory, but for the time of it where that is no day."""
        return self._text("")

    def _text(self, when: str) -> str:
        values = {**self.slots, "name": self.speaker, "subject": self.subject, "when": when}
        return fill_template(self.schema.text, values)

    @property
    def happened_at(self) -> date | None:
        """The exact day, where one was said."""
        return self.when.day if self.when else None

    def is_overdue(self, today: date) -> bool:
        """True for a plan whose time has passed without anybody saying if it came true."""
        return self.schema.tense == "future" and self.when is not None and self.when.last < today

    @property
    def key(self) -> tuple[str, ...]:
        """The uniqueness key among live facts: the schema, the subject and the key slots' values."""
        return (self.schema.name, self.subject, *(self.slots[slot] for slot in self.schema.key))

    @property
    def utterance_values(self) -> dict[str, str]:
        """The values that fill the slots of an utterance about this fact."""
        when = self.when.expression if self.when else ""
        return {**self.slots, "name": self.speaker, "subject": self.subject, "when": when}

    @property
    def main_value(self) -> str:
        """The value that a listener would repeat: the last slot's."""
        return next(reversed(tuple(self.slots.values())))


@dataclass(frozen=True, slots=True)
class GoldOperation:
    """The operation that a perfect writer makes for a fact when its session ends.

    ``fact_id`` names the fact that the written memory states (of a deletion: the fact that ended);
    ``supersedes`` the fact whose memory is replaced or ended, ``old_text`` what that memory says. ``text`` is
    what the memory says then; empty for a deletion. ``time_expression`` is the time of it in the words of the
    session ("last Friday", "next month"), and ``text_without_time`` the text without that; it is empty where
    the session does not say it, and the memory that is replaced keeps its time. ``sources`` are turns of this
    session.
    """

    session_number: int
    action: Action
    kind: Kind
    fact_id: str
    text: str
    happened_at: date | None
    time_expression: str
    text_without_time: str
    sources: tuple[str, ...]
    supersedes: str | None = None
    old_text: str = ""
    reason: str = ""


class FactPool:
    """Fact ids to choose from at random, each step in O(1)."""

    def __init__(self) -> None:
        """Start empty."""
        self._ids: list[str] = []
        self._positions: dict[str, int] = {}

    def add(self, fact_id: str) -> None:
        """Put an id in."""
        self._positions[fact_id] = len(self._ids)
        self._ids.append(fact_id)

    def remove(self, fact_id: str) -> None:
        """Take an id out, if it is in."""
        position = self._positions.pop(fact_id, None)
        if position is None:
            return
        last = self._ids.pop()
        if last != fact_id:
            self._ids[position] = last
            self._positions[last] = position

    def choose(self, rng: random.Random) -> str | None:
        """Choose an id; None if there is none."""
        return rng.choice(self._ids) if self._ids else None


class Timeline:
    """Every fact of a conversation and the gold operations, written in the order of the telling."""

    def __init__(self) -> None:
        """Start with nothing true."""
        self.facts: dict[str, Fact] = {}
        self.live: dict[str, Fact] = {}
        self.operations: list[GoldOperation] = []
        self.live_pool, self.changeable_pool = FactPool(), FactPool()
        self.parents: dict[tuple[str, str], FactPool] = {}
        self._keys: set[tuple[str, ...]] = set()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._fixed: set[str] = set()
        self._told: dict[tuple[str, str], list[Fact]] = {}

    # -- asking ----------------------------------------------------------------------------------

    def allows(self, schema: FactSchema, subject: str, slots: Mapping[str, str]) -> bool:
        """Say whether such a fact would contradict none that is live, and is not one too many."""
        key = (schema.name, subject, *(slots[slot] for slot in schema.key))
        has_room = schema.max_live_facts is None or self._counts[schema.name, subject] < schema.max_live_facts
        return has_room and key not in self._keys

    def is_uncorrectable(self, fact: Fact) -> bool:
        """Say whether other facts rest on this one, so that it may not be corrected."""
        return fact.fact_id in self._fixed

    def latest_facts(self, schema: FactSchema, subject: str) -> list[Fact]:
        """List the last few facts of a schema and a subject, live or not."""
        return self._told.get((schema.name, subject), [])[-_REUSE_WINDOW:]

    # -- telling ---------------------------------------------------------------------------------

    def begin(self, fact: Fact, sources: tuple[str, ...]) -> Fact:
        """Let a fact be true, and remember it."""
        fact = self._activate(fact)
        action = Action.APPEND_CORE if fact.schema.kind == "core" else Action.CREATE
        self._record_gold_operation(fact.session_number, action, fact, sources)
        return fact

    def replace(self, old: Fact, new: Fact, sources: tuple[str, ...], reason: str) -> Fact:
        """Let a fact take another's place, and its memory the other memory's."""
        self._deactivate(old)
        new = self._activate(new)
        action = Action.REPLACE_CORE if new.schema.kind == "core" else Action.UPDATE
        self._record_gold_operation(new.session_number, action, new, sources, old, reason)
        return new

    def end(self, fact: Fact, session_number: int, sources: tuple[str, ...], reason: str) -> None:
        """Let a fact be true no longer, and end its memory."""
        self._deactivate(fact)
        self._record_gold_operation(session_number, Action.DELETE, fact, sources, fact, reason)

    def mark_uncorrectable(self, fact: Fact) -> None:
        """Mark a fact as one that another rests on."""
        self._fixed.add(fact.fact_id)

    # -- inside ----------------------------------------------------------------------------------

    def _activate(self, fact: Fact) -> Fact:
        fact = replace(fact, fact_id=f"f{len(self.facts) + 1}")
        assert fact.key not in self._keys, f"{fact.text!r} contradicts a live fact"
        self.facts[fact.fact_id] = self.live[fact.fact_id] = fact
        self._keys.add(fact.key)
        self._counts[fact.schema.name, fact.subject] += 1
        self._told.setdefault((fact.schema.name, fact.subject), []).append(fact)
        if fact.parent:
            self._fixed.add(fact.parent)
        for pool in self._pools(fact):
            pool.add(fact.fact_id)
        return fact

    def _deactivate(self, fact: Fact) -> None:
        del self.live[fact.fact_id]
        self._keys.remove(fact.key)
        self._counts[fact.schema.name, fact.subject] -= 1
        for pool in self._pools(fact):
            pool.remove(fact.fact_id)

    def _pools(self, fact: Fact) -> list[FactPool]:
        pools = [self.live_pool, self.parents.setdefault((fact.schema.name, fact.speaker), FactPool())]
        return [*pools, self.changeable_pool] if fact.schema.changes else pools

    def _record_gold_operation(
        self,
        session_number: int,
        action: Action,
        fact: Fact,
        sources: tuple[str, ...],
        old: Fact | None = None,
        reason: str = "",
    ) -> None:
        is_end = action is Action.DELETE
        is_said = not is_end and fact.when is not None and not (old and old.when is fact.when)
        self.operations.append(
            GoldOperation(
                session_number=session_number,
                action=action,
                kind=fact.schema.kind,
                fact_id=fact.fact_id,
                text="" if is_end else fact.text,
                happened_at=None if is_end else fact.happened_at,
                time_expression=fact.utterance_values["when"] if is_said else "",
                text_without_time="" if is_end else fact.undated_text if is_said else fact.text,
                sources=sources,
                supersedes=old.fact_id if old else None,
                old_text=old.text if old else "",
                reason=reason,
            )
        )
