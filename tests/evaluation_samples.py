"""Small conversations with questions, and systems without a model, for the tests of the evaluation."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from locomo.types import Session
from memory_program.agents.program import MemorySystem
from memory_program.bank.memory import Draft, MemoryKind, Provenance
from memory_program.bank.outcomes import Answer, CallFailure, Outcome, RankedItem, SessionRecord
from memory_program.bank.space import MemorySpace
from memory_program.configs.groups import SystemSettings
from memory_program.models.usage import CallRecord, Usage, record_call

ANIMALS = ("badger", "cormorant", "dolphin", "ermine", "falcon", "gecko", "heron", "ibex", "jackal", "koala")
CITIES = ("Oslo", "Porto", "Quito", "Riga", "Seoul", "Turin", "Utrecht", "Vienna", "Warsaw", "Yerevan")
ABSTENTION = "Not mentioned in the conversation"


def conversation(number: int, sessions: int = 4) -> dict[str, Any]:
    """One conversation in LoCoMo's schema: each session tells of an animal and of a city."""
    talk: dict[str, Any] = {"speaker_a": "Ana", "speaker_b": "Ben"}
    qa: list[dict[str, Any]] = []
    for session in range(1, sessions + 1):
        animal = ANIMALS[(number + session) % len(ANIMALS)]
        city = CITIES[(number * 3 + session) % len(CITIES)]
        talk[f"session_{session}_date_time"] = f"{session}:30 pm on {session} May, 2023"
        talk[f"session_{session}"] = [
            {"speaker": "Ana", "dia_id": f"D{session}:1", "text": f"Yesterday I photographed a {animal}!"},
            {"speaker": "Ben", "dia_id": f"D{session}:2", "text": "Wonderful, please send me the picture."},
            {
                "speaker": "Ben",
                "dia_id": f"D{session}:3",
                "text": f"My sister is moving to {city} next week.",
            },
        ]
        qa += [
            {
                "question": f"What did Ana do with the {animal}?",
                "answer": f"photographed a {animal}",
                "category": (session - 1) % 4 + 1,
                "evidence": [f"D{session}:1"],
            },
            {
                "question": f"Who is moving to {city}?",
                "answer": "Ben's sister",
                "category": 4,
                "evidence": [f"D{session}:3"],
            },
        ]
    qa.append({"question": "Which violin does Ana own?", "category": 5, "evidence": ["D1:1"]})
    qa[-1]["adversarial_answer"] = "a Stradivari"
    return {"sample_id": f"talk-{number}", "conversation": talk, "qa": qa}


def write_conversations(path: Path, count: int = 3, sessions: int = 4) -> Path:
    """Write a file of conversations, each with ``2 * sessions + 1`` questions."""
    path.write_text(json.dumps([conversation(number, sessions) for number in range(1, count + 1)]))
    return path


class Quoting(MemorySystem):
    """Answers with the best archived turn; ``ask`` and ``remember`` are counted."""

    def __init__(self, delay_s: float = 0.0) -> None:
        super().__init__()
        self.delay_s = delay_s
        self.asked: list[str] = []
        self.remembered: list[str] = []

    def remember(self, space: MemorySpace, session: Session) -> SessionRecord:
        record = SessionRecord(session.session_id)
        if not space.has_session(session):
            self.remembered.append(session.session_id)
            space.ingest(session, record)
        return record

    def ask(self, space: MemorySpace, question: str) -> Answer:
        time.sleep(self.delay_s)
        self.asked.append(question)
        found = space.archive.search(question, 50)
        ranked = tuple(RankedItem(hit.turn.turn_id, (hit.turn.turn_id,), 20) for hit in found)
        text = found[0].turn.text if found else ABSTENTION
        return Answer(
            text, ranked=ranked, shown=tuple(item.item_id for item in ranked[:1]), context_tokens=20
        )


class NoteTaking(Quoting):
    """Writes every turn down as a memory, as a writer would, and answers with the memory that fits best."""

    writes_memories = True

    def remember(self, space: MemorySpace, session: Session) -> SessionRecord:
        if space.has_session(session):
            return space.sessions[session.session_id].record
        self.remembered.append(f"{space.namespace.partition('/')[2]}:{session.session_id}")
        draft = space.fork()
        for turn in session.turns:
            time.sleep(self.delay_s)
            note = Draft(turn.line, MemoryKind.EPISODIC, session.date_time.date(), (turn.turn_id,))
            draft.bank.create([note], Provenance("notes", session.session_id))
        record = SessionRecord(
            session.session_id, operations=len(session.turns), tool_calls=len(session.turns)
        )
        draft.ingest(session, record)
        space.adopt(draft)
        return record

    def ask(self, space: MemorySpace, question: str) -> Answer:
        time.sleep(self.delay_s)
        self.asked.append(question)
        found = [scored.memory for scored in space.index.search(space.bank, question, 50)]
        ranked = tuple(RankedItem(memory.memory_id, memory.sources, 20) for memory in found)
        text = found[0].text if found else ABSTENTION
        return Answer(
            text, ranked=ranked, shown=tuple(item.item_id for item in ranked[:1]), context_tokens=20
        )


class Failing(Quoting):
    """Fails on the questions that ``fails`` picks."""

    def __init__(self, fails: Callable[[str], bool]) -> None:
        super().__init__()
        self.fails = fails

    def ask(self, space: MemorySpace, question: str) -> Answer:
        answer = super().ask(space, question)
        return Answer("", Outcome.ERROR, "reader.answer: no route") if self.fails(question) else answer


class Paid(Quoting):
    """Calls a model once for each answer, for ten cents."""

    def ask(self, space: MemorySpace, question: str) -> Answer:
        usage = Usage(calls=1, input_tokens=1000, output_tokens=20, cost_usd=0.1)
        record_call(CallRecord("openai/gpt-4.1-mini", usage))
        return super().ask(space, question)


class FailingNotes(NoteTaking):
    """Loses the sessions that ``fails`` picks: their record holds a failed call, and nothing is written."""

    def __init__(self, fails: Callable[[str], bool]) -> None:
        super().__init__()
        self.fails = fails

    def remember(self, space: MemorySpace, session: Session) -> SessionRecord:
        if space.has_session(session) or not self.fails(session.session_id):
            return super().remember(space, session)
        self.remembered.append(f"{space.namespace.partition('/')[2]}:{session.session_id}")
        failure = CallFailure("writer.episodic", Outcome.ERROR, "no route")
        record = SessionRecord(session.session_id, failures=(failure,))
        space.ingest(session, record)
        return record


def maker(system: MemorySystem) -> Callable[[str, SystemSettings], MemorySystem]:
    """Make a maker of systems that gives this one, whatever the name."""
    return lambda name, settings: system
