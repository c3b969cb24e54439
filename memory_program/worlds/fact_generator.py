"""Generate the next facts and changes. They never contradict a fact that is still true."""

import random
from dataclasses import dataclass
from datetime import date

from memory_program.worlds.catalogue import SCHEMAS, SCHEMAS_BY_KIND
from memory_program.worlds.facts import Fact, FactPool, Timeline
from memory_program.worlds.mentions import TimeMention, future_mention, mention_since, past_mention
from memory_program.worlds.vocabulary import Vocabulary
from memory_program.worlds.world_schema import KINDS, FactChange, FactSchema

_KIND_WEIGHTS = (0.14, 0.40, 0.30, 0.16)
_FIRST_KIND_WEIGHTS = (0.40, 0.20, 0.30, 0.10)
_PROFILE_SESSIONS = 2
_KIND_TRIES, _TRIES = 4, 5


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """A change about to happen to a fact: what takes its place, if anything, and the event of it, if any."""

    change: FactChange
    old: Fact
    new: Fact | None
    event: Fact | None
    when: TimeMention | None


class FactInventor:
    """Invents facts and changes for one conversation; the timeline is only read here."""

    def __init__(
        self, timeline: Timeline, speakers: tuple[str, str], vocabulary: Vocabulary, rng: random.Random
    ) -> None:
        """Work on a timeline that others write."""
        self._timeline = timeline
        self._speakers = speakers
        self._vocabulary = vocabulary
        self._rng = rng

    def invent_fact(self, number: int, today: date) -> Fact | None:
        """Invent a fact, of another kind where one has no room; None if nothing came to mind."""
        weights = _FIRST_KIND_WEIGHTS if number <= _PROFILE_SESSIONS else _KIND_WEIGHTS
        for kind in self._rng.choices(KINDS, weights, k=_KIND_TRIES):
            for _ in range(_TRIES):
                schemas = SCHEMAS_BY_KIND[kind]
                schema = self._rng.choices(schemas, [schema.weight for schema in schemas])[0]
                speaker, parent, subject = self._rng.choice(self._speakers), None, None
                if schema.about:
                    role = self._rng.choice(schema.about)
                    parent = self.choose_from(self._timeline.parents.get((role.schema, speaker)))
                    if parent is None:
                        continue
                    subject = parent.slots[role.subject]
                subject = subject or speaker
                slots = self._draw_slots(schema, subject)
                if slots is None or not self._timeline.allows(schema, subject, slots):
                    continue
                implied = SCHEMAS[schema.implied_schema] if schema.implied_schema else None
                if implied and not self._timeline.allows(implied, speaker, slots):
                    continue
                draw = past_mention if schema.tense == "past" else future_mention
                when = draw(self._rng, today) if schema.tense else None
                parent_id = parent.fact_id if parent else None
                return Fact(schema, speaker, slots, when, number, subject, parent_id)
        return None

    def plan_change(self, old: Fact, told: date, number: int, today: date) -> PlannedChange | None:
        """Invent what became of a fact after the day it was told; None if that would contradict another."""
        change = self._rng.choice(old.schema.changes)
        slots = self._redraw_slots(old, change.replaced_slots)
        if slots is None or (change.becomes and old.when and old.when.first > today):
            return None  # what is planned for later has not come true
        when = None
        # The bank keeps the old day of a memory that is updated without one: a change of date is exact.
        if change.tense == "future":
            when = future_mention(self._rng, today, is_exact=not change.event)
            while old.when and when.day == old.when.day:  # who puts a plan off names another day
                when = future_mention(self._rng, today, is_exact=not change.event)
        elif change.tense:
            when = mention_since(told, self._rng, today, is_exact=not change.event)
        event = None
        if change.event is not None:
            schema = SCHEMAS[change.event]
            known = {**slots, **{f"old_{slot}": old.slots[slot] for slot in change.replaced_slots}}
            filled = {
                slot: known.get(slot) or self._vocabulary.draw(schema.slots[slot]) for slot in schema.slots
            }
            values = {slot: value for slot, value in filled.items() if value is not None}
            if len(values) < len(filled) or not self._timeline.allows(schema, old.speaker, values):
                return None
            event = Fact(schema, old.speaker, values, when, number, old.speaker)
        new = None
        if not change.is_ending:
            schema = SCHEMAS[change.becomes] if change.becomes else old.schema
            new_when = when if change.becomes or change.changes_date else old.when
            new = Fact(schema, old.speaker, slots, new_when, number, old.subject, old.parent)
        return PlannedChange(change, old, new, event, when)

    def invent_correction(self, old: Fact, number: int) -> Fact | None:
        """Invent what a fact should have been; None if that would contradict another."""
        assert old.schema.correctable_slot
        slots = self._redraw_slots(old, (old.schema.correctable_slot,))
        if slots is None:
            return None
        new = Fact(old.schema, old.speaker, slots, old.when, number, old.subject, old.parent)
        return new if new.key == old.key or self._timeline.allows(new.schema, new.subject, slots) else None

    def invent_wrong_value(self, fact: Fact) -> str | None:
        """Invent what somebody might say by a slip in place of the slot that ``correctable_slot`` names."""
        assert fact.schema.correctable_slot
        slots = self._redraw_slots(fact, (fact.schema.correctable_slot,))
        return slots[fact.schema.correctable_slot] if slots else None

    def choose_from(self, pool: FactPool | None) -> Fact | None:
        """Choose one of a pool's facts; None if there is none."""
        fact_id = pool.choose(self._rng) if pool else None
        return self._timeline.facts[fact_id] if fact_id else None

    # -- inside ----------------------------------------------------------------------------------

    def _draw_slots(self, schema: FactSchema, subject: str) -> dict[str, str] | None:
        slots: dict[str, str] = {}
        for slot, vocabulary in schema.slots.items():
            value = None
            if slot == schema.reused_slot:
                # Reuse the place or person of an earlier fact, so that some answers get several parts.
                earlier = [fact.slots[slot] for fact in self._timeline.latest_facts(schema, subject)]
                if earlier and self._rng.random() >= 0.2:
                    value = self._rng.choice(earlier)
                    value = value if earlier.count(value) < 3 else None
            value = value or self._vocabulary.draw(vocabulary)
            if value is None:
                return None
            slots[slot] = value
        return slots

    def _redraw_slots(self, old: Fact, replaced: tuple[str, ...]) -> dict[str, str] | None:
        slots = dict(old.slots)
        for slot in replaced:
            value = self._vocabulary.draw(old.schema.slots[slot], exclude=old.slots.values())
            if value is None:
                return None
            slots[slot] = value
        return slots
