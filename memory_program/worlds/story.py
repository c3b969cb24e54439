"""The story: what happens in each session, told in turns and kept in the timeline."""

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import date

from memory_program.worlds.catalogue import SCHEMAS
from memory_program.worlds.fact_generator import Inventor
from memory_program.worlds.facts import Fact, Pool, Timeline
from memory_program.worlds.mentions import Mention, mention_on, shifted
from memory_program.worlds.small_talk import (
    CONFIRMATIONS,
    DISTRACTORS,
    LATE_SLIPS,
    RECALLS,
    REMINDERS,
    SLIPS,
    second_person,
    sentence,
)
from memory_program.worlds.vocabulary import Vocabulary
from memory_program.worlds.world_schema import fill
from memory_program.worlds.world_sessions import SessionBook


class Teller:
    """Tells one conversation, session by session.

    The methods that tell give the fact that was told, or None when it could not be.
    """

    def __init__(self, speakers: tuple[str, str], vocabulary: Vocabulary, rng: random.Random) -> None:
        """Start with an empty timeline."""
        self.timeline = Timeline()
        self._inventor = Inventor(self.timeline, speakers, vocabulary, rng)
        self._vocabulary = vocabulary
        self._rng = rng
        self._days: dict[int, date] = {}  # of the sessions, by their numbers

    def tell(self, book: SessionBook, facts: int) -> None:
        """Fill a session with so many facts and changes, and with talk around them.

        Args:
            book: the session, still empty.
            facts: how many things happen to the truth; restatements and distractors come on top.
        """
        self._days[book.number] = book.today
        book.greet()
        for _ in range(facts):
            told = self._tell_one(book)
            if told is not None:
                book.react(told.main_value)
            if self._rng.random() < 0.14:
                self._distract(book)
            if self._rng.random() < 0.12:
                self._restate(book)
        book.take_leave()

    def _tell_one(self, book: SessionBook) -> Fact | None:
        step = self._rng.random()
        told = None
        if step < 0.24:
            told = self._tell_change(book)
        elif step < 0.32:
            told = self._tell_correction(book)
        return told or self._tell_new(book, has_slip=step > 0.93)

    # -- something new ---------------------------------------------------------------------------

    def _tell_new(self, book: SessionBook, *, has_slip: bool) -> Fact | None:
        fact = self._inventor.new_fact(book.number, book.today)
        if fact is None:
            return None
        wrong = self._inventor.wrong_value(fact) if has_slip and fact.schema.corrects else None
        sources, evidence = self._slipped(book, fact, wrong) if wrong else self._stated(book, fact)
        fact = self.timeline.begin(replace(fact, evidence=evidence), sources)
        if fact.schema.also:
            also = Fact(SCHEMAS[fact.schema.also], fact.speaker, fact.slots, None, book.number, fact.subject)
            self.timeline.fix(self.timeline.begin(replace(also, evidence=evidence), sources))
        return fact

    def _stated(self, book: SessionBook, fact: Fact) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Let a fact be said in one of its ways; give the turns that say it and those that suffice."""
        schema, values, chance = fact.schema, fact.spoken_values, self._rng.random()
        if schema.shown and chance < 0.4:
            text, caption = self._rng.choice(schema.shown)
            turn = book.say(fact.speaker, sentence("", fill(text, values)), fill(caption, values))
            return (turn,), (turn,)
        exchanges = (*schema.asked, *schema.fragments)
        if exchanges and chance > 0.75:
            question, reply = exchange = self._rng.choice(exchanges)
            asked = book.say(book.other(fact.speaker), fill(question, values))
            answer = book.say(fact.speaker, sentence("", fill(reply, values)))
            return (asked, answer), (asked, answer) if exchange in schema.fragments else (answer,)
        turn = book.state(fact.speaker, fill(self._rng.choice(schema.says), values))
        return (turn,), (turn,)

    # -- something wrong, set right --------------------------------------------------------------

    def _slipped(self, book: SessionBook, fact: Fact, wrong: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Let a fact be said wrong and right a moment later: only the right one is to be remembered."""
        body = self._rng.choice(fact.schema.says)
        values = {**fact.spoken_values, fact.schema.corrects or "": wrong}
        slipped = book.state(fact.speaker, fill(body, values))
        turns = (slipped, self._set_right(book, fact, SLIPS, self._plainly(fact), wrong))
        return turns, turns

    def _tell_correction(self, book: SessionBook) -> Fact | None:
        """Let a fact of an earlier session be set right."""
        old = self._earlier(self.timeline.everything, book)
        if old is None or not old.schema.corrects or self.timeline.is_fixed(old):
            return None
        if old.when and old.when.day and old.schema.tense == "past" and self._rng.random() < 0.5:
            return self._tell_right_day(book, old, old.when)
        new = self._inventor.corrected(old, book.number)
        if new is None:
            return None
        wrong = old.slots[old.schema.corrects]
        turn = self._set_right(book, new, LATE_SLIPS, self._plainly(new), wrong)
        evidence = (*old.evidence, turn) if old.when else (turn,)
        return self.timeline.replace(old, replace(new, evidence=evidence), (turn,), "corrected")

    def _tell_right_day(self, book: SessionBook, old: Fact, when: Mention) -> Fact:
        right = shifted(when, self._rng, book.today)
        wrong = mention_on(when.day or book.today, self._rng, book.today)
        new = replace(old, when=right, session_number=book.number)
        body = f"{self._plainly(new)} {right.expression}"
        turn = self._set_right(book, new, LATE_SLIPS, body, wrong.expression)
        return self.timeline.replace(old, replace(new, evidence=(turn,)), (turn,), "corrected")

    def _set_right(self, book: SessionBook, fact: Fact, openers: Sequence[str], body: str, wrong: str) -> str:
        return book.say(fact.speaker, sentence(self._rng.choice(openers), f"{body}, not {wrong}"))

    # -- something else now ----------------------------------------------------------------------

    def _tell_change(self, book: SessionBook) -> Fact | None:
        """Let a fact of an earlier session be superseded, come true, be put off, or end."""
        old = self._earlier(self.timeline.changeable, book)
        if old is None:
            return None
        turnabout = self._inventor.turnabout(old, self._days[old.session_number], book.number, book.today)
        if turnabout is None:
            return None
        change, new, event = turnabout.change, turnabout.new, turnabout.event
        values = {**old.spoken_values, **(event.slots if event else {}), **(new.slots if new else {})}
        values |= {f"old_{slot}": old.slots[slot] for slot in change.replaces}
        values["when"] = turnabout.when.expression if turnabout.when else ""
        sources = (book.state(old.speaker, fill(self._rng.choice(change.says), values)),)
        if new is None:
            self.timeline.end(old, book.number, sources, change.reason)
        else:
            new = self.timeline.replace(old, replace(new, evidence=sources), sources, change.reason)
        if event is not None:
            self.timeline.begin(replace(event, evidence=sources), sources)
            if new is not None:
                self.timeline.fix(new)
        return new or old

    # -- nothing new -----------------------------------------------------------------------------

    def _restate(self, book: SessionBook) -> None:
        """Let something known be said again, by its speaker or by the other: there is nothing to do."""
        fact = self._earlier(self.timeline.everything, book)
        if fact is None or not fact.schema.says or fact.is_overdue(book.today):
            return
        body = self._plainly(fact)
        if self._rng.random() < 0.5:
            book.say(fact.speaker, sentence(self._rng.choice(REMINDERS), body))
            return
        listener = book.other(fact.speaker)
        book.say(listener, self._rng.choice(RECALLS).format(body=second_person(body)), is_news=False)
        book.say(fact.speaker, self._rng.choice(CONFIRMATIONS).format(other=listener), is_news=False)

    def _distract(self, book: SessionBook) -> None:
        """Let something be said that sounds like a fact about a speaker and is none."""
        vocabulary, text = self._rng.choice(DISTRACTORS)
        value = self._vocabulary.draw(vocabulary)
        if value is not None:
            book.say(book.other(book.turns[-1].speaker), fill(text, {vocabulary: value}))

    # -- inside ----------------------------------------------------------------------------------

    def _earlier(self, pool: Pool, book: SessionBook) -> Fact | None:
        """Choose a live fact that was told in an earlier session."""
        fact = self._inventor.any_of(pool)
        return fact if fact and fact.session_number < book.number else None

    def _plainly(self, fact: Fact) -> str:
        """Say a fact without its date."""
        return fill(self._rng.choice(fact.schema.says), {**fact.spoken_values, "when": ""})
