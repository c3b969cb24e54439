"""Conversations written in LoCoMo's JSON schema."""

from collections.abc import Sequence
from typing import Any

from locomo.types import Conversation


def as_locomo_json(conversations: Sequence[Conversation]) -> list[dict[str, Any]]:  # Any: JSON
    """Write conversations as the samples of a LoCoMo file; its reader gives the same conversations back."""
    samples: list[dict[str, Any]] = []  # Any: JSON
    for conversation in conversations:
        talk: dict[str, Any] = dict(zip(("speaker_a", "speaker_b"), conversation.speakers, strict=True))
        for session in conversation.sessions:
            moment = session.date_time
            half = "am" if moment.hour < 12 else "pm"
            talk[f"{session.session_id}_date_time"] = (  # 1:56 pm on 8 May, 2023
                f"{moment.hour % 12 or 12}:{moment:%M} {half} on {moment.day} {moment:%B}, {moment.year}"
            )
            talk[session.session_id] = [
                {"speaker": turn.speaker, "dia_id": turn.turn_id, "text": turn.text}
                | ({} if turn.caption is None else {"blip_caption": turn.caption})
                for turn in session.turns
            ]
        questions: list[dict[str, Any]] = []
        for question in conversation.questions:
            written = {
                "question": question.text,
                "answer": question.answer,
                "evidence": list(question.evidence),
                "category": question.category.value,
                "adversarial_answer": question.adversarial_answer,
            }
            questions.append({name: value for name, value in written.items() if value is not None})
        samples.append({"sample_id": conversation.conversation_id, "conversation": talk, "qa": questions})
    return samples
