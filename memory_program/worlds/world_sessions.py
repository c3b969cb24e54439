"""One session as it is written down: turns of two people in turn, and what stands between the facts."""

import random
from datetime import date, datetime

from locomo.types import Session, Turn
from memory_program.worlds import small_talk
from memory_program.worlds.small_talk import build_sentence


class SessionBuilder:
    """The turns of a session, as they are said. Two turns in a row never have the same speaker."""

    def __init__(self, number: int, moment: datetime, speakers: tuple[str, str], rng: random.Random) -> None:
        """Open an empty session."""
        self.number = number
        self.moment = moment
        self.turns: list[Turn] = []
        self._is_news = False
        self._speakers = speakers
        self._rng = rng

    @property
    def today(self) -> date:
        """The day on which it takes place; what was said of days is relative to it."""
        return self.moment.date()

    def other(self, speaker: str) -> str:
        """Name whom a speaker talks to."""
        return self._speakers[1] if speaker == self._speakers[0] else self._speakers[0]

    def say(self, speaker: str, text: str, caption: str | None = None, *, is_news: bool = True) -> str:
        """Add a turn, after a filler of the other's if need be, and give its id.

        ``is_news`` says that there is something in it to react to.
        """
        if self.turns and self.turns[-1].speaker == speaker:
            fillers = small_talk.REACTIONS if self._is_news else small_talk.PROMPTS
            self._add_turn(self.other(speaker), self._choose_line(fillers, self.other(speaker)))
        self._is_news = is_news
        return self._add_turn(speaker, text, caption)

    def state(self, speaker: str, body: str) -> str:
        """Say a statement, often between an opener and a closer."""
        opener = self._rng.choice(small_talk.OPENERS) if self._rng.random() < 0.45 else ""
        closer = self._rng.choice(small_talk.CLOSERS) if self._rng.random() < 0.2 else ""
        return self.say(speaker, build_sentence(opener, body, closer))

    def greet(self) -> None:
        """Open the talk."""
        first = self._rng.choice(self._speakers)
        second = self.other(first)
        self.say(first, self._choose_line(small_talk.GREETINGS, first), is_news=False)
        self.say(second, self._choose_line(small_talk.GREETINGS_BACK, second), is_news=False)

    def react(self, value: str) -> None:
        """Let the listener react now and then, or repeat what was said in a word."""
        listener = self.other(self.turns[-1].speaker)
        chance = self._rng.random()
        if chance < 0.12:
            self.say(listener, self._rng.choice(small_talk.ECHOES).format(value=value), is_news=False)
        elif chance < 0.5:
            self.say(listener, self._choose_line(small_talk.REACTIONS, listener), is_news=False)

    def say_goodbye(self) -> None:
        """Close the talk, or let it break off."""
        if self._rng.random() < 0.4:
            first = self.other(self.turns[-1].speaker)
            self.say(first, self._choose_line(small_talk.CLOSINGS, first))
            self.say(self.other(first), self._choose_line(small_talk.CLOSINGS_BACK, self.other(first)))

    def session(self) -> Session:
        """Close the book."""
        return Session(self.number, self.moment, tuple(self.turns))

    def _add_turn(self, speaker: str, text: str, caption: str | None = None) -> str:
        turn_id = f"D{self.number}:{len(self.turns) + 1}"
        self.turns.append(Turn(turn_id, speaker, text, caption))
        return turn_id

    def _choose_line(self, lines: tuple[str, ...], speaker: str) -> str:
        return self._rng.choice(lines).format(other=self.other(speaker))
