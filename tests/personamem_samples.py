"""A history and its questions in PersonaMem's schema, made up here."""

import csv
import json
from pathlib import Path

MESSAGES = [
    {"role": "system", "content": "Current user persona: Mara, 31, a baker."},
    {"role": "user", "content": "User: I like rye bread."},
    {"role": "assistant", "content": "Assistant: Rye is a fine choice."},
    {"role": "system", "content": "Current user persona: Mara, 31, a baker."},
    {"role": "user", "content": "User: I have come to prefer wheat bread."},
    {"role": "assistant", "content": "Assistant: Noted."},
]
ROW = {
    "persona_id": "0",
    "question_id": "q1",
    "question_type": "track_full_preference_evolution",
    "topic": "food",
    "user_question_or_message": "User: Which bread shall I bake?",
    "correct_answer": "(b)",
    "all_options": str(["(a) Rye bread.", "(b) Wheat bread.", "(c) Buns.", "(d) None."]),
    "shared_context_id": "h1",
    "end_index_in_shared_context": "6",
}


def write_personamem(
    folder: Path, *rows: dict[str, str], messages: list[dict[str, str]] | None = None
) -> Path:
    """Write both files, and return the folder; each row differs from ``ROW`` by what it names."""
    history = {"h1": MESSAGES if messages is None else messages}
    (folder / "shared_contexts_32k.jsonl").write_text(json.dumps(history) + "\n")
    with (folder / "questions_32k.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROW))
        writer.writeheader()
        writer.writerows({**ROW, **row} for row in rows or ({},))
    return folder
