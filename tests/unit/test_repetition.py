"""Loops at the end of a text are found, and lists, tables and real conversations are none."""

import json
import random
from pathlib import Path

import pytest

from locomo.locomo import read_conversations
from memory_program.core.repetition import find_repetition
from memory_program.worlds import generate_worlds
from recipes.pocket.training_text import collect_exchanges

SENTENCE = "Caroline is proud of her work and wants to help others. "
CALL = {"name": "add_memory", "args": {"text": "Anna adopted a dog called Pip.", "happened_at": "2023-05-08"}}
PARAGRAPH = "".join(
    f"In {month} Melanie painted the lake, and her children swam in it. " for month in range(12)
)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("1. " * 100, "1. "),
        ("The memories are:\n" + "1. " * 100 + "1", ". 1"),
        (SENTENCE * 5, SENTENCE),
        ("She paints. " + SENTENCE * 5 + SENTENCE[:20], SENTENCE[20:] + SENTENCE[:20]),
        ('{"calls": [' + (json.dumps(CALL) + ", ") * 4, json.dumps(CALL) + ", "),
        (PARAGRAPH * 4, PARAGRAPH),
        ("\n" * 300, "\n"),
    ],
)
def test_a_loop_is_found_with_the_part_that_repeats(text: str, part: str) -> None:
    assert find_repetition(text) == part


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1. 1. 1. 1.",
        "no no no no no no no no no",
        "Ha" * 40,
        "-" * 120,
        SENTENCE * 3,  # a refrain
        SENTENCE * 8 + "Then she went home.",  # the loop ended
        "".join(f"{number}. Caroline is proud.\n" for number in range(100)),
        "\n".join(f"{number} | {number * number} | 0.00 | 0.00 | 0.00 | 0.00" for number in range(100)),
        json.dumps([{**CALL, "id": number} for number in range(20)]),
        " ".join(f"{random.Random(seed).random():.2f}" for seed in range(500)),
    ],
)
def test_a_list_a_table_or_a_short_repetition_is_no_loop(text: str) -> None:
    assert find_repetition(text) == ""


def test_a_loop_of_tokens_has_at_least_a_hundred() -> None:
    prompt = list(range(200))
    assert find_repetition([*prompt, *[7, 8] * 50]) == [7, 8]
    assert find_repetition([*prompt, *[7, 8] * 49]) == []
    assert find_repetition([*prompt, *range(60), *range(60), *range(60)]) == []
    assert find_repetition([*prompt, *list(range(60)) * 4]) == list(range(60))


def prefixes_with_loops(texts: list[str]) -> list[str]:
    return [
        text[:end]
        for text in texts
        for end in range(512, len(text) + 512, 512)
        if find_repetition(text[:end])
    ]


@pytest.mark.dataset
def test_no_prefix_of_a_locomo_session_ends_in_a_loop(locomo_path: Path) -> None:
    conversations = read_conversations(locomo_path)
    sessions = [
        "\n".join(f"{turn.speaker}: {turn.text}" for turn in session.turns)
        for conversation in conversations
        for session in conversation.sessions
    ]
    assert len(sessions) == 272
    assert prefixes_with_loops(sessions) == []


def test_no_prefix_of_a_thousand_oracle_replies_ends_in_a_loop() -> None:
    replies: list[str] = []
    for world in generate_worlds(5, 20, sessions=(8, 8), held_out=True):
        replies += [exchange.reply for exchange in collect_exchanges(world, random.Random(1))]
    assert len(replies) >= 1000
    assert prefixes_with_loops(replies) == []
