"""The examples of supervised fine-tuning: the recorded exchanges of an expert."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from memory_program.core.errors import ConfigError
from memory_program.sft.session_lines import SessionLine

SftExample = dict[str, Any]  # Any: a JSON object, ``{"messages": [...]}``


@dataclass(frozen=True, slots=True)
class SftSplit:
    """The training and the validation examples."""

    train: list[SftExample]
    val: list[SftExample]


def sft_examples(lines: Sequence[SessionLine]) -> list[SftExample]:
    """Make an example of each valid reply; invalid ones are not taught."""
    return [
        {"messages": [*call["messages"], {"role": "assistant", "content": call["reply"]}]}
        for line in lines
        for call in line["calls"]
        if call["is_valid"]
    ]


def split_by_conversation(
    lines: Sequence[SessionLine],
    held_out_share: float,
    seed: int,
    make_examples: Callable[[Sequence[SessionLine]], list[SftExample]] = sft_examples,
) -> SftSplit:
    """Split trajectories by conversation; raise ``ConfigError`` if there are fewer than two."""
    names = sorted({line["episode"]["conversation_id"] for line in lines})
    if len(names) < 2:
        raise ConfigError(
            f"{len(names)} conversations of trajectories: there must be one to learn from and one to "
            "validate on; collect more with --mode trajectories"
        )
    random.Random(f"{seed}:held out").shuffle(names)
    count = min(max(1, round(held_out_share * len(names))), len(names) - 1)
    held_out = set(names[:count])
    learned = [line for line in lines if line["episode"]["conversation_id"] not in held_out]
    validating = [line for line in lines if line["episode"]["conversation_id"] in held_out]
    return SftSplit(make_examples(learned), make_examples(validating))
