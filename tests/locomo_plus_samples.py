"""Cases in LoCoMo-Plus's schema, made up here."""

import json
from pathlib import Path
from typing import Any

CASES: list[dict[str, Any]] = [
    {
        "relation_type": "causal",
        "cue_dialogue": "A: The ladder slipped, and I hung on the gutter.\nB: You were lucky!",
        "trigger_query": "A: I pay somebody to clean the windows now.",
        "time_gap": "about two weeks later",
        "model_name": "m",
    },
    {
        "relation_type": "goal",
        "cue_dialogue": "A: I want to read a book a week.\\nB: How brave.",  # as 31 cues of the official file
        "trigger_query": "A: My evenings vanish in front of the screen.",
        "time_gap": "several months later",
    },
]


def write_locomo_plus(folder: Path, *cases: dict[str, Any]) -> Path:
    """Write a file of cases, by default of ``CASES``."""
    path = folder / "locomo_plus.json"
    path.write_text(json.dumps(cases or CASES))
    return path
