"""The data of the question browser on the report page, as JSON: conversations, banks, questions, results."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from locomo.types import Benchmark, Conversation, Question
from memory_program.bank.memory import operation_to_json
from memory_program.bank.validity import find_valid_times
from memory_program.core.json_files import Json
from memory_program.evaluation.report.score_tables import score_label
from memory_program.evaluation.scoring.bank_growth import system_retained_turns
from memory_program.evaluation.scoring.error_types import is_wrong
from memory_program.evaluation.scoring.system_records import ScoredSystem


@dataclass(slots=True)
class SizeBudget:
    """The number of characters of turns and memories that a page still has room for."""

    remaining_chars: int = 12_000_000
    """A page holds about a third of them in bytes; this is four times LoCoMo with a bank of every turn."""

    def try_reserve(self, content: Json) -> bool:
        """Reserve room for some content; False if there is not enough."""
        size = len(json.dumps(content, separators=(",", ":")))
        if size > self.remaining_chars:
            return False
        self.remaining_chars -= size
        return True


@dataclass(frozen=True, slots=True)
class BrowserData:
    """The content of the browser, and the ids of the conversations that did not fit."""

    content: Json
    abridged_conversations: tuple[str, ...]


def build_browser_data(
    name: str,
    conversations: Mapping[str, Conversation],
    questions: Sequence[Question],
    systems: Mapping[str, ScoredSystem],
    room: SizeBudget,
) -> BrowserData:
    """Gather what the page shows of some systems on one dataset.

    Args:
        name: name of the dataset on the page.
        conversations: by id. One that does not fit keeps only its evidence turns, and no bank.
        questions: all questions that any of the systems was asked.
        systems: by the names to show; a system has no result for a question that it was not asked.
        room: room left on the page; what this content takes is subtracted.
    """
    id_lists: dict[tuple[str, ...], int] = {}  # equal lists once: many questions show a whole conversation
    results = [_system_results(system, conversations, id_lists) for system in systems.values()]
    talks: Json = {}
    abridged: list[str] = []
    for key, conversation in conversations.items():
        days = {session.session_id: session.date_time.date() for session in conversation.sessions}
        banks: dict[str, list[Json]] = {}
        for system_name, system in systems.items():
            if key in system.banks:
                operations = system.banks[key].operations()
                validity = find_valid_times(operations, days).memories
                banks[system_name] = [operation_to_json(operation, validity) for operation in operations]
        talks[key] = {
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
            "banks": banks,
        }
        if not room.try_reserve(talks[key]):
            evidence = {turn_id for q in questions if q.conversation_id == key for turn_id in q.evidence}
            turns = {turn_id: turn for turn_id, turn in talks[key]["turns"].items() if turn_id in evidence}
            talks[key] = {**talks[key], "isWhole": False, "turns": turns, "banks": {}}
            abridged.append(key)
    benchmark = questions[0].benchmark if questions else Benchmark.LOCOMO
    content = {
        "name": name,
        "metric": score_label(benchmark),
        "systems": list(systems),
        "conversations": talks,
        "questions": [
            {
                "id": question.question_id,
                "conversation": question.conversation_id,
                "text": question.text,
                "category": question.category.label,
                "gold": gold_answer_text(question),
                "asked": None if question.asked_at is None else f"{question.asked_at:%Y-%m-%d %H:%M}",
                "evidence": list(question.evidence),
                "results": [of_system.get(question.question_id) for of_system in results],
            }
            for question in questions
        ],
        "shown": list(id_lists),
    }
    return BrowserData(content, tuple(abridged))


def gold_answer_text(question: Question) -> str:
    """Return the gold answer as text."""
    return str(question.answer) if question.is_answerable else "none: the conversation does not say"


def _system_results(
    system: ScoredSystem, conversations: Mapping[str, Conversation], id_lists: dict[tuple[str, ...], int]
) -> dict[str, Json]:
    """Describe the answers of a system by question id; lists of shown ids become places in ``id_lists``."""
    kept = {
        name: system_retained_turns(system.run.system, talk, system.banks)
        for name, talk in conversations.items()
    }
    results: dict[str, Json] = {}
    for item, diagnosis in zip(system.scored, system.diagnoses, strict=True):
        question = item.question
        answer = item.record.answer if item.record is not None else None
        if item.record is None:
            state = "missing"
        elif not item.is_answered:
            state = "failed"
        elif item.locomo_f1 is None:
            state = "unscored"
        else:
            state = "wrong" if is_wrong(item) else "right"
        reached = kept[question.conversation_id].shown_turns(answer) if answer is not None else None
        shown = None  # not recorded
        if answer is not None and reached is not None:
            shown = id_lists.setdefault(answer.shown, len(id_lists))
        first_ranks: dict[str, int] = {}  # of each turn, the rank of the first item that cites it
        for rank, ranked in enumerate((answer.ranked if answer is not None else None) or (), start=1):
            for turn_id in ranked.sources:
                first_ranks.setdefault(turn_id, rank)
        results[question.question_id] = {
            "state": state,
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
            "ranks": [first_ranks.get(turn_id) for turn_id in question.evidence],
            "reached": [turn_id in (reached or ()) for turn_id in question.evidence],
            "shown": shown,
        }
    return results
