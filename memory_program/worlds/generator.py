"""Worlds: conversations made up by a seed, with everything that is true in them."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from locomo.benchmark_errors import WorldError
from locomo.types import Conversation, Session
from memory_program.worlds.facts import Action, Fact, GoldOperation
from memory_program.worlds.story import StoryTeller
from memory_program.worlds.vocabulary import Vocabulary
from memory_program.worlds.world_questions import (
    GoldAnswer,
    list_earlier_questions,
    list_question_candidates,
    sample_questions,
    to_question,
)
from memory_program.worlds.world_schema import KINDS, Kind
from memory_program.worlds.world_sessions import SessionBuilder

MIN_SESSIONS, MAX_SESSIONS = 4, 32
"""How many sessions a conversation has unless told otherwise; LoCoMo's have 19 to 32."""

MIN_FACTS, MAX_FACTS = 2, 5
"""How many things happen to the truth in a session."""

QUESTIONS_PER_SESSION = 5.0
"""How many questions are asked about a conversation for each of its sessions; LoCoMo has 7.3."""

_FIRST_DAY = date(2019, 1, 7)
_START_DAYS = 5 * 365
_MAX_SPACED_SESSIONS = 64  # beyond that sessions follow each other closely, or decades would pass
_TYPICAL_TURNS = 12


@dataclass(frozen=True)
class World:
    """A conversation and the truth about it.

    ``facts`` are all that were ever true, by id; ``operations`` what a perfect writer does, session by
    session, kinds in the order of ``KINDS``, each kind in the order of the telling; ``answers`` what a
    perfect reader needs for each question, in the order of the questions.
    """

    conversation: Conversation
    facts: Mapping[str, Fact]
    operations: tuple[GoldOperation, ...]
    answers: tuple[GoldAnswer, ...]

    def session_operations(self, session_number: int, kind: Kind) -> tuple[GoldOperation, ...]:
        """Give what the perfect specialist of a kind does after a session; often nothing."""
        return tuple(o for o in self.operations if o.session_number == session_number and o.kind == kind)

    def live_facts_after(self, session_number: int) -> tuple[Fact, ...]:
        """List the facts that a perfect bank holds after a session, the core block's among them."""
        live: dict[str, Fact] = {}
        for operation in self.operations:
            if operation.session_number > session_number:
                break
            if operation.supersedes:
                del live[operation.supersedes]
            if operation.action is not Action.DELETE:
                live[operation.fact_id] = self.facts[operation.fact_id]
        return tuple(live.values())


def generate_worlds(
    seed: int,
    conversations: int = 1,
    *,
    sessions: tuple[int, int] = (MIN_SESSIONS, MAX_SESSIONS),
    turns: int | None = None,
    facts_per_session: tuple[int, int] = (MIN_FACTS, MAX_FACTS),
    questions_per_session: float = QUESTIONS_PER_SESSION,
    held_out: bool = False,
    coined: float = 0.0,
    earlier_states: bool = False,
) -> list[World]:
    """Make up worlds. The same arguments give the same worlds, in any process.

    Args:
        seed: Chooses the worlds; the world at an index does not depend on how many there are.
        conversations: How many worlds.
        sessions: The fewest and the most sessions of a conversation.
        turns: Extend each conversation until it has this number of turns, whatever ``sessions`` says.
        facts_per_session: The fewest and the most things that happen to the truth in a session.
        questions_per_session: Questions for each session of a conversation; there may be fewer.
        held_out: Furnish the worlds with words that no other world ever contains.
        coined: The share of things, foods, jobs and pastimes whose words are made up as well, so that nobody
            learns them by heart.
        earlier_states: Also ask, after all other questions, about each state that a later one replaced.

    Raises:
        WorldError: an argument is out of range.
    """
    _require_positive("conversations", conversations)
    _check_range("sessions", sessions)
    _check_range("facts_per_session", facts_per_session)
    if turns is not None:
        _require_positive("turns", turns)
    if not 0 <= questions_per_session < math.inf:
        raise WorldError(f"questions_per_session={questions_per_session!r} must be a number from 0 up")
    if not 0 <= coined <= 1:
        raise WorldError(f"coined={coined!r} must be a share from 0 to 1")
    return [
        _generate_world(
            seed,
            index,
            sessions,
            turns,
            facts_per_session,
            questions_per_session,
            held_out,
            coined,
            earlier_states,
        )
        for index in range(conversations)
    ]


def _generate_world(
    seed: int,
    index: int,
    sessions: tuple[int, int],
    turns: int | None,
    facts_per_session: tuple[int, int],
    questions_per_session: float,
    held_out: bool,
    coined: float,
    earlier_states: bool,
) -> World:
    name = f"world-{seed}-{index}" + ("-held-out" if held_out else "")
    rng = random.Random(name)  # a string seed goes through SHA-512: the same in every process
    vocabulary = Vocabulary(rng, held_out=held_out, coined=coined)
    first, second = vocabulary.draw("person"), vocabulary.draw("person")
    assert first is not None
    assert second is not None
    speakers = (first, second)
    teller = StoryTeller(speakers, vocabulary, rng)
    # Session after session, until there are enough of them, or enough turns where ``turns`` is given.
    session_count, turn_count = rng.randint(*sessions), 0
    day = _FIRST_DAY + timedelta(rng.randrange(_START_DAYS))
    is_long = max(session_count, (turns or 0) // _TYPICAL_TURNS) > _MAX_SPACED_SESSIONS
    told: list[Session] = []
    while turn_count < turns if turns is not None else len(told) < session_count:
        moment = datetime.combine(day, time(rng.randint(8, 21), rng.randrange(60)), tzinfo=UTC)
        book = SessionBuilder(len(told) + 1, moment, speakers, rng)
        teller.tell_session(book, rng.randint(*facts_per_session))
        told.append(book.session())
        turn_count += len(book.turns)
        day += timedelta(rng.randint(1, 3) if is_long else rng.randint(2, 18))
    found = list_question_candidates(teller.timeline, speakers, vocabulary, rng, told[-1].date_time.date())
    chosen = sample_questions(found, questions_per_session * len(told), rng)
    if earlier_states:
        days = {session.number: session.date_time.date() for session in told}
        chosen += list_earlier_questions(teller.timeline, days, random.Random(f"{name}:earlier"))
    questions = tuple(to_question(candidate, name, number) for number, candidate in enumerate(chosen))
    return World(
        conversation=Conversation(name, speakers, tuple(told), questions),
        facts=teller.timeline.facts,
        operations=tuple(
            sorted(teller.timeline.operations, key=lambda o: (o.session_number, KINDS.index(o.kind)))
        ),
        answers=tuple(
            GoldAnswer(question.question_id, () if question.answer is None else candidate.fact_ids)
            for question, candidate in zip(questions, chosen, strict=True)
        ),
    )


def _require_positive(name: str, value: int) -> None:
    if value < 1:
        raise WorldError(f"{name}={value!r} must be at least 1")


def _check_range(name: str, bounds: Sequence[int]) -> None:
    if len(bounds) != 2 or not 1 <= bounds[0] <= bounds[1]:
        raise WorldError(f"{name}={bounds!r} must be two numbers from 1 up, the smaller one first")
