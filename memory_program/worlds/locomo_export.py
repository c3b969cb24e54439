"""Conversations written in LoCoMo's JSON schema."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from locomo.types import Conversation, Question, Turn


def as_locomo_json(conversations: Sequence[Conversation]) -> list[dict[str, Any]]:  # Any: JSON
    """Write conversations as the samples of a LoCoMo file; its reader gives the same conversations back."""
    return [_sample_to_json(conversation) for conversation in conversations]


def _sample_to_json(conversation: Conversation) -> dict[str, Any]:  # Any: JSON
    talk: dict[str, Any] = dict(zip(("speaker_a", "speaker_b"), conversation.speakers, strict=True))
    for session in conversation.sessions:
        talk[f"{session.session_id}_date_time"] = _format_session_date(session.date_time)
        talk[session.session_id] = [_turn_to_json(turn) for turn in session.turns]
    return {
        "sample_id": conversation.conversation_id,
        "conversation": talk,
        "qa": [_question_to_json(question) for question in conversation.questions],
    }


def _turn_to_json(turn: Turn) -> dict[str, str]:
    written = {"speaker": turn.speaker, "dia_id": turn.turn_id, "text": turn.text}
    return written if turn.caption is None else {**written, "blip_caption": turn.caption}


def _question_to_json(question: Question) -> dict[str, Any]:  # Any: JSON
    written: dict[str, Any] = {
        "question": question.text,
        "answer": question.answer,
        "evidence": list(question.evidence),
        "category": question.category.value,
        "adversarial_answer": question.adversarial_answer,
    }
    return {name: value for name, value in written.items() if value is not None}


def _format_session_date(moment: datetime) -> str:
    """Write a session's date as LoCoMo does: ``1:56 pm on 8 May, 2023``."""
    half = "am" if moment.hour < 12 else "pm"
    return f"{moment.hour % 12 or 12}:{moment:%M} {half} on {moment.day} {moment:%B}, {moment.year}"
