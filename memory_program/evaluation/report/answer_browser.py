"""What the page's browser of questions needs, as JSON: conversations, banks, questions, and every result."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from locomo.types import Conversation, Question
from memory_program.bank.memory import operation_to_json
from memory_program.bank.outcomes import Answer, Outcome
from memory_program.core.json_files import Json
from memory_program.evaluation.scoring.bank_growth import system_retained_turns
from memory_program.evaluation.scoring.error_types import Diagnosis, RetainedTurns, is_wrong
from memory_program.evaluation.scoring.question_scores import ScoredQuestion
from memory_program.evaluation.scoring.system_records import ScoredSystem


@dataclass(slots=True)
class SizeBudget:
    """How many characters of turns and memories a page has still room for."""

    remaining_chars: int = 12_000_000
    """A page holds about a third of them in bytes; this is four times LoCoMo with a bank of every turn."""

    def try_reserve(self, content: Json) -> bool:
        """Take something in, if there is room for it."""
        size = len(json.dumps(content, separators=(",", ":")))
        if size > self.remaining_chars:
            return False
        self.remaining_chars -= size
        return True


@dataclass(frozen=True, slots=True)
class BrowserData:
    """The content of the browser, and the ids of the conversations that it had no room for."""

    content: Json
    abridged_conversations: tuple[str, ...]


def build_browser_data(
    name: str,
    conversations: Mapping[str, Conversation],
    questions: Sequence[Question],
    systems: Mapping[str, ScoredSystem],
    room: SizeBudget,
) -> BrowserData:
    """Gather what can be looked up of some systems on one dataset.

    Args:
        name: what to call it.
        conversations: by their ids. One that there is no room for keeps its evidence turns only, and no bank.
        questions: all that any of the systems was asked.
        systems: by the names to show; one that was not asked a question has no result for it.
        room: what is left of the page; what is taken of it is gone.
    """
    shown = _IdListTable()
    of_systems = [_results(system, conversations, shown) for system in systems.values()]
    talks: Json = {}
    abridged: list[str] = []
    for key, conversation in conversations.items():
        talks[key] = _conversation_json(conversation, systems)
        if not room.try_reserve(talks[key]):
            evidence = {turn_id for q in questions if q.conversation_id == key for turn_id in q.evidence}
            talks[key] = _abridge_conversation(talks[key], evidence)
            abridged.append(key)
    content = {
        "name": name,
        "systems": list(systems),
        "conversations": talks,
        "questions": [
            {**_question_json(q), "results": [results.get(q.question_id) for results in of_systems]}
            for q in questions
        ],
        "shown": list(shown.places),
    }
    return BrowserData(content, tuple(abridged))


class _IdListTable:
    """Gives equal lists of ids one place: a whole conversation is shown for each of its questions."""

    def __init__(self) -> None:
        self.places: dict[tuple[str, ...], int] = {}

    def intern(self, ids: tuple[str, ...]) -> int:
        return self.places.setdefault(ids, len(self.places))


def _conversation_json(conversation: Conversation, systems: Mapping[str, ScoredSystem]) -> Json:
    banks = {name: system.banks.get(conversation.conversation_id) for name, system in systems.items()}
    return {
        "isWhole": True,
        "sessions": [
            {"id": session.session_id, "date": f"{session.date_time:%Y-%m-%d %H:%M}"}
            for session in conversation.sessions
        ],
        "turns": {
            turn.turn_id: {"session": place, "speaker": turn.speaker, "text": turn.utterance}
            for place, session in enumerate(conversation.sessions)
            for turn in session.turns
        },
        "banks": {
            name: [operation_to_json(operation) for operation in bank.operations()]
            for name, bank in banks.items()
            if bank is not None
        },
    }


def _abridge_conversation(conversation: Json, evidence: set[str]) -> Json:
    turns = {turn_id: turn for turn_id, turn in conversation["turns"].items() if turn_id in evidence}
    return {**conversation, "isWhole": False, "turns": turns, "banks": {}}


def _question_json(question: Question) -> Json:
    return {
        "id": question.question_id,
        "conversation": question.conversation_id,
        "text": question.text,
        "category": question.category.label,
        "gold": gold_answer_text(question),
        "asked": None if question.asked_at is None else f"{question.asked_at:%Y-%m-%d %H:%M}",
        "evidence": list(question.evidence),
    }


def gold_answer_text(question: Question) -> str:
    """Say what the answer should have been."""
    return str(question.answer) if question.is_answerable else "no answer: the conversation has none"


def _results(
    system: ScoredSystem, conversations: Mapping[str, Conversation], shown: _IdListTable
) -> dict[str, Json]:
    kept = {
        name: system_retained_turns(system.run.system, talk, system.banks)
        for name, talk in conversations.items()
    }
    diagnosed = zip(system.scored, system.diagnoses, strict=True)
    return {
        item.question.question_id: _question_result(
            item, diagnosis, kept[item.question.conversation_id], shown
        )
        for item, diagnosis in diagnosed
    }


def _question_result(
    item: ScoredQuestion, diagnosis: Diagnosis | None, kept: RetainedTurns, shown: _IdListTable
) -> Json:
    answer = item.record.answer if item.record is not None else None
    evidence = item.question.evidence
    reached = kept.shown_turns(answer) if answer is not None else set[str]()
    return {
        "state": answer_state(item),
        "answer": answer.text if answer is not None else None,
        "outcome": answer.outcome.value if answer is not None else "missing",
        "message": answer.message if answer is not None else "",
        "f1": item.locomo_f1,
        "verdicts": {
            rubric: record.verdict.value if record is not None and record.verdict is not None else "none"
            for rubric, record in item.judgements.items()
        },
        "tokens": item.tokens,
        "fault": diagnosis.error_type.value if diagnosis is not None else None,
        "lost": list(diagnosis.lost_turns) if diagnosis is not None else [],
        "ranks": [_first_rank_citing(turn_id, answer) for turn_id in evidence],
        "reached": [turn_id in reached for turn_id in evidence],
        "shown": shown.intern(answer.shown if answer is not None else ()),
    }


def answer_state(item: ScoredQuestion) -> str:
    """Say in a word what became of a question."""
    if item.record is None:
        return "missing"
    if item.record.answer.outcome is not Outcome.OK:
        return "failed"
    return "wrong" if is_wrong(item) else "right"


def _first_rank_citing(turn_id: str, answer: Answer | None) -> int | None:
    """Say at which rank, from 1, the first thing that cites a turn was ranked."""
    ranked = (answer.ranked if answer is not None else None) or ()
    return next((rank for rank, item in enumerate(ranked, start=1) if turn_id in item.sources), None)
