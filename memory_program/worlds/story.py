"""The story: what happens in each session, told in turns and kept in the timeline."""

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import date

from memory_program.worlds import small_talk
from memory_program.worlds.catalogue import SCHEMAS
from memory_program.worlds.fact_generator import FactInventor
from memory_program.worlds.facts import Fact, FactPool, Timeline
from memory_program.worlds.mentions import mention_date, shift_mention
from memory_program.worlds.small_talk import build_sentence, to_second_person
from memory_program.worlds.vocabulary import Vocabulary
from memory_program.worlds.world_schema import fill_template
from memory_program.worlds.world_sessions import SessionBuilder


class StoryTeller:
    """Tells one conversation, session by session.

    The methods that tell give the fact that was told, or None when it could not be.
    """

    def __init__(self, speakers: tuple[str, str], vocabulary: Vocabulary, rng: random.Random) -> None:
        """Start with an empty timeline."""
        self.timeline = Timeline()
        self._inventor = FactInventor(self.timeline, speakers, vocabulary, rng)
        self._vocabulary = vocabulary
        self._rng = rng
        self._days: dict[int, date] = {}  # of the sessions, by their numbers
        self._planned_on: dict[str, date] = {}  # for what was planned, the day on which the plan was told

    def tell_session(self, book: SessionBuilder, facts: int) -> None:
        """Fill a session with a number of facts and changes, and with talk around them.

        Args:
            book: the session, still empty.
            facts: how many things happen to the truth; restatements and distractors come on top.
        """
        self._days[book.number] = book.today
        book.greet()
        for _ in range(facts):
            step = self._rng.random()
            told = None
            if step < 0.24:
                told = self._tell_change(book)
            elif step < 0.32:
                told = self._tell_correction(book)
            told = told or self._tell_new(book, has_slip=step > 0.93)
            if told is not None:
                book.react(told.main_value)
            if self._rng.random() < 0.14:
                # A distractor sounds like a fact about a speaker and is none.
                vocabulary, text = self._rng.choice(small_talk.DISTRACTORS)
                value = self._vocabulary.draw(vocabulary)
                if value is not None:
                    book.say(book.other(book.turns[-1].speaker), fill_template(text, {vocabulary: value}))
            again = None
            if self._rng.random() < 0.12:
                again = self._choose_earlier_fact(self.timeline.live_pool, book)
            if again is not None and again.schema.statements and not again.is_overdue(book.today):
                # Something known is said again, by its speaker or by the other: there is nothing to do.
                body = self._undated_statement(again)
                if self._rng.random() < 0.5:
                    book.say(again.speaker, build_sentence(self._rng.choice(small_talk.REMINDERS), body))
                else:
                    listener = book.other(again.speaker)
                    recall = self._rng.choice(small_talk.RECALLS).format(body=to_second_person(body))
                    book.say(listener, recall, is_news=False)
                    confirmation = self._rng.choice(small_talk.CONFIRMATIONS).format(other=listener)
                    book.say(again.speaker, confirmation, is_news=False)
        book.say_goodbye()

    # -- something new ---------------------------------------------------------------------------

    def _tell_new(self, book: SessionBuilder, *, has_slip: bool) -> Fact | None:
        fact = self._inventor.invent_fact(book.number, book.today)
        if fact is None:
            return None
        wrong = self._inventor.invent_wrong_value(fact) if has_slip and fact.schema.correctable_slot else None
        if wrong:
            # Said wrong, and right a moment later: only the right one is to be remembered.
            body = self._rng.choice(fact.schema.statements)
            values = {**fact.utterance_values, fact.schema.correctable_slot or "": wrong}
            slipped = book.state(fact.speaker, fill_template(body, values))
            body = self._undated_statement(fact)
            sources = (slipped, self._say_correction(book, fact, small_talk.CORRECTION_OPENERS, body, wrong))
            evidence = sources
        else:
            # A fact is said in one of its ways; the evidence are the turns that suffice.
            schema, values, chance = fact.schema, fact.utterance_values, self._rng.random()
            exchanges = (*schema.asked, *schema.elliptical_exchanges)
            if schema.shown and chance < 0.4:
                text, caption = (fill_template(part, values) for part in self._rng.choice(schema.shown))
                sources = evidence = (book.say(fact.speaker, build_sentence("", text), caption),)
            elif exchanges and chance > 0.75:
                question, reply = exchange = self._rng.choice(exchanges)
                asked = book.say(book.other(fact.speaker), fill_template(question, values))
                answer = book.say(fact.speaker, build_sentence("", fill_template(reply, values)))
                sources = (asked, answer)
                evidence = sources if exchange in schema.elliptical_exchanges else (answer,)
            else:
                text = fill_template(self._rng.choice(schema.statements), values)
                sources = evidence = (book.state(fact.speaker, text),)
        fact = self.timeline.begin(replace(fact, evidence=evidence), sources)
        if fact.schema.implied_schema:
            also = Fact(
                SCHEMAS[fact.schema.implied_schema], fact.speaker, fact.slots, None, book.number, fact.subject
            )
            self.timeline.mark_uncorrectable(self.timeline.begin(replace(also, evidence=evidence), sources))
        return fact

    # -- something wrong, set right --------------------------------------------------------------

    def _tell_correction(self, book: SessionBuilder) -> Fact | None:
        """Let a fact of an earlier session be set right."""
        old = self._choose_earlier_fact(self.timeline.live_pool, book)
        if old is None or not old.schema.correctable_slot or self.timeline.is_uncorrectable(old):
            return None
        if old.when and old.when.day and old.schema.tense == "past" and self._rng.random() < 0.5:
            right = shift_mention(old.when, self._rng, book.today)
            planned_on = self._planned_on.get(old.fact_id, date.min)
            if right.first <= planned_on:  # nothing comes true before it is planned
                return None
            wrong = mention_date(old.when.day, self._rng, book.today).expression
            new = replace(old, when=right, session_number=book.number)
            body = f"{self._undated_statement(new)} {right.expression}"
            turn = self._say_correction(book, new, small_talk.LATE_CORRECTION_OPENERS, body, wrong)
            new = self.timeline.replace(old, replace(new, evidence=(turn,)), (turn,), "corrected")
            self._planned_on[new.fact_id] = planned_on
            return new
        new = self._inventor.invent_correction(old, book.number)
        if new is None:
            return None
        wrong = old.slots[old.schema.correctable_slot]
        body = self._undated_statement(new)
        turn = self._say_correction(book, new, small_talk.LATE_CORRECTION_OPENERS, body, wrong)
        evidence = (*old.evidence, turn) if old.when else (turn,)
        new = self.timeline.replace(old, replace(new, evidence=evidence), (turn,), "corrected")
        self._planned_on[new.fact_id] = self._planned_on.get(old.fact_id, date.min)
        return new

    def _say_correction(
        self, book: SessionBuilder, fact: Fact, openers: Sequence[str], body: str, wrong: str
    ) -> str:
        return book.say(fact.speaker, build_sentence(self._rng.choice(openers), f"{body}, not {wrong}"))

    # -- something else now ----------------------------------------------------------------------

    def _tell_change(self, book: SessionBuilder) -> Fact | None:
        """Let a fact of an earlier session be superseded, come true, be put off, or end."""
        old = self._choose_earlier_fact(self.timeline.changeable_pool, book)
        if old is None:
            return None
        turnabout = self._inventor.plan_change(old, self._days[old.session_number], book.number, book.today)
        if turnabout is None:
            return None
        change, new, event = turnabout.change, turnabout.new, turnabout.event
        values = {**old.utterance_values, **(event.slots if event else {}), **(new.slots if new else {})}
        values |= {f"old_{slot}": old.slots[slot] for slot in change.replaced_slots}
        values["when"] = turnabout.when.expression if turnabout.when else ""
        sources = (book.state(old.speaker, fill_template(self._rng.choice(change.statements), values)),)
        if new is None:
            self.timeline.end(old, book.number, sources, change.reason)
        else:
            new = self.timeline.replace(old, replace(new, evidence=sources), sources, change.reason)
            if change.becomes:
                self._planned_on[new.fact_id] = self._days[old.session_number]
        if event is not None:
            self.timeline.begin(replace(event, evidence=sources), sources)
            if new is not None:
                self.timeline.mark_uncorrectable(new)
        return new or old

    # -- nothing new -----------------------------------------------------------------------------

    # -- inside ----------------------------------------------------------------------------------

    def _choose_earlier_fact(self, pool: FactPool, book: SessionBuilder) -> Fact | None:
        fact = self._inventor.choose_from(pool)
        return fact if fact and fact.session_number < book.number else None

    def _undated_statement(self, fact: Fact) -> str:
        return fill_template(self._rng.choice(fact.schema.statements), {**fact.utterance_values, "when": ""})
