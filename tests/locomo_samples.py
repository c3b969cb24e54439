"""Small conversations in LoCoMo's JSON schema, for tests that must not need the real file."""

import json
from pathlib import Path
from typing import Any


def turn(speaker: str, turn_id: str, text: str, **more: object) -> dict[str, Any]:
    return {"speaker": speaker, "dia_id": turn_id, "text": text, **more}


def sample(sample_id: str = "talk-1", **more: object) -> dict[str, Any]:
    """Two sessions of Ana and Ben; ``more`` adds members, for example ``qa``."""
    return {
        "sample_id": sample_id,
        "conversation": {
            "speaker_a": "Ana",
            "speaker_b": "Ben",
            "session_1_date_time": "1:56 pm on 8 May, 2023",
            "session_1": [
                turn("Ana", "D1:1", "I went hiking yesterday."),
                turn("Ben", "D1:2", "Nice! Where?"),
            ],
            "session_2_date_time": "9:00 am on 1 June, 2023",
            "session_2": [turn("Ben", "D2:1", "I adopted a dog called Rex.")],
        },
        **more,
    }


def question(text: str = "When did Ana hike?", **more: object) -> dict[str, Any]:
    return {"question": text, "answer": "7 May 2023", "category": 2, "evidence": ["D1:1"], **more}


def write(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document), encoding="utf-8")
    return path
