"""Conversations written in LoCoMo's JSON schema."""

from collections.abc import Sequence
from typing import Any

from locomo.types import Conversation


def as_locomo_json(conversations: Sequence[Conversation]) -> list[dict[str, Any]]:  # Any: JSON
    """Write conversations as the samples of a LoCoMo file; its reader gives the same conversations back."""
    samples: list[dict[str, Any]] = []  # Any: JSON
    for conversation in conversations:
        talk: dict[str, Any] = dict(zip(("speaker_a", "speaker_b"), conversation.speakers, strict=True))
        notes: dict[str, dict[str, list[Any]]] = {}
        for session in conversation.sessions:
            moment = session.date_time
            half = "am" if moment.hour < 12 else "pm"
            talk[f"{session.session_id}_date_time"] = (  # 1:56 pm on 8 May, 2023
                f"{moment.hour % 12 or 12}:{moment:%M} {half} on {moment.day} {moment:%B}, {moment.year}"
            )
            talk[session.session_id] = [
                {"speaker": turn.speaker, "dia_id": turn.turn_id, "text": turn.text}
                | ({} if turn.image_url is None else {"img_url": [turn.image_url]})
                | ({} if turn.caption is None else {"blip_caption": turn.caption})
                | ({} if turn.image_query is None else {"query": turn.image_query})
                for turn in session.turns
            ]
            for note in session.observations:
                by_speaker = notes.setdefault(f"{session.session_id}_observation", {})
                by_speaker.setdefault(note.speaker, []).append([note.text, list(note.turn_ids)])
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
        sample = {"sample_id": conversation.conversation_id, "conversation": talk, "qa": questions}
        samples.append(sample | ({"observation": notes} if notes else {}))
    return samples
