"""A chat and its questions in BEAM's schema, made up here."""

import json
from pathlib import Path
from typing import Any

CHAT = [
    {
        "batch_number": 1,
        "time_anchor": None,
        "turns": [
            [
                {
                    "role": "user",
                    "id": 0,
                    "time_anchor": "March-15-2024",
                    "index": "1,1",
                    "question_type": "main_question",
                    "content": "I bought a green kayak. ->-> 1,1",
                },
                {"role": "assistant", "id": 1, "content": "Enjoy it."},
            ],
            [
                {
                    "role": "user",
                    "id": 2,
                    "index": "1,2",
                    "question_type": "main_question",
                    "content": "Then I painted it red. ->-> 1,2",
                },
                {"role": "assistant", "id": 3, "content": "A fine colour."},
                {"role": "user", "id": 4, "question_type": "followup_question", "content": "Is it?"},
            ],
        ],
    },
    {
        "batch_number": 2,
        "time_anchor": "April-02-2024",
        "turns": [
            [
                {
                    "role": "user",
                    "id": 5,
                    "index": "2,1",
                    "question_type": "main_question",
                    "content": "I sold the kayak.",
                }
            ]
        ],
    },
]
QUESTIONS: dict[str, Any] = {
    "abstention": [
        {
            "question": "Who bought my kayak?",
            "ideal_response": "The chat does not say.",
            "why_unanswerable": "No buyer is named.",
            "rubric": ["The chat does not say who bought it"],
        }
    ],
    "event_ordering": [
        {
            "question": "In which order did I tell of my kayak?",
            "answer": "Bought, painted, sold.",
            "source_chat_ids": [[0, 2], [5]],
            "rubric": ["Buying it", "Painting it", "Selling it"],
        }
    ],
    "knowledge_update": [
        {
            "question": "Which colour is my kayak?",
            "answer": "Red",
            "source_chat_ids": {"original_info": [0], "updated_info": [2, 99]},
            "rubric": ["should state: red", "should mention: it was green"],
        }
    ],
}


def write_beam(folder: Path, *, chat: object = CHAT, questions: object = QUESTIONS) -> Path:
    """Write one chat of 100K as the authors' repository has it, and return the folder of the size."""
    place = folder / "chats" / "100K" / "1"
    (place / "probing_questions").mkdir(parents=True)
    (place / "chat.json").write_text(json.dumps(chat))
    (place / "probing_questions" / "probing_questions.json").write_text(json.dumps(questions))
    return place.parent
