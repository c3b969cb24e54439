"""A made-up protagonist in the schema of PerLTQA (version 2), with the quirks of the real files."""

import json
from pathlib import Path
from typing import Any

from locomo.perltqa import MEMORY_FILE, QA_FILE


def memory() -> dict[str, Any]:
    """What is known of Mira Olsen; of Ole Dahl, about whom nobody asks, next to nothing."""
    return {
        "Mira Olsen": {
            "profile": {
                "Protagonist": "Mira Olsen",
                "Age": 31,
                "Occupation": "Bridge engineer",
                "Nickname": "",
            },
            "profile_description": "Mira Olsen builds bridges and sails &#39;Petrel&#39;.",
            "social_relationship": {
                "3_0": {
                    "Supporting Characters": "Jonas Olsen",
                    "Description": "Mira's brother, who keeps bees.",
                    "Relationship": "younger brother",
                },
                "3_1": {"Supporting Characters": "Kari Moe", "Description": "", "Relationship": "neighbour"},
            },
            "events": {
                "3_0_0": {
                    "content": "Mira and Jonas sailed to Fedje and anchored in the old harbour.",
                    "summary": "Sail to Fedje",
                    "Characters": ["3_0"],
                    "Creation Time": "July 9, 2021",
                    "Last Accessed Time": "",
                    "Theme": "Sailing with a brother",
                },
                "3_0_1": {
                    "content": "Jonas showed Mira his new hives.",
                    "summary": "The hives",
                    "Characters": ["3_0"],
                    "Creation Time": "Midsummer night",
                    "Last Accessed Time": "",
                    "Theme": "Bees",
                },
                "3_1_0": {
                    "content": "Kari borrowed a ladder and never gave it back.",
                    "summary": "The ladder",
                    "Characters": ["3_1"],
                    "Creation Time": "one windy day",
                    "Last Accessed Time": "",
                    "Theme": "Neighbours",
                },
            },
            "dialogues": {
                "3_0_1#1": {
                    "events": "3_0_1",
                    "contents": {
                        "2022-06-23 21:00": [
                            "Jonas Olsen: Four hives now, Mira!",
                            "Mira Olsen: It&#39;s loud: do they sting?",
                            "They both laughed.",
                        ],
                        "2022-06-24 08:30": ["Jonas Olsen: One stung me at night."],
                    },
                },
            },
        },
        "Ole Dahl": {"profile": {}, "social_relationship": {}, "events": {}, "dialogues": {}},
    }


def item(question: str, answer: str, reference: str) -> dict[str, Any]:
    anchors = [{answer: [-1, -1]}]
    return {"Question": question, "Answer": answer, "Reference Memory": reference, "Memory Anchors": anchors}


def questions() -> list[dict[str, Any]]:
    """Questions about Mira: one of each kind, and a dialogue's that names its memory wrongly."""
    return [
        {
            "Mira Olsen": {
                "profile": [item("How old is Mira Olsen?", "Mira Olsen is 31 years old.", "Age")],
                "social_relationship": [
                    {"3_0": [item("Who keeps bees?", "Jonas Olsen keeps bees.", "['3_0']")]}
                ],
                "events": [
                    {
                        "3_0_0": [
                            item(
                                "Where did Mira&#39;s boat anchor?",
                                "In the old harbour of Fedje.",
                                "['3_0_0']",
                            ),
                            item("What did Mira see?", "The sea and hives.", "['3_0_0', '3_0_1']"),
                        ]
                    }
                ],
                "dialogues": [{"3_0_1#1": [item("How many hives are there?", "Four hives.", "['3_9_9#7']")]}],
            }
        }
    ]


def write_perltqa(folder: Path) -> Path:
    """Write both files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MEMORY_FILE).write_text(json.dumps(memory()), encoding="utf-8")
    (folder / QA_FILE).write_text(json.dumps(questions()), encoding="utf-8")
    return folder
