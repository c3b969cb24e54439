"""Examples side by side, and what of them is to be learned."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recipes.pocket.aux_targets import AuxTargets, make_aux_targets
from recipes.pocket.example import MarkerTokens, PretrainExample

_LENGTH_MULTIPLE = 16  # lengths are multiples of it, so that there are few: ``side_tasks.filled`` says why


@dataclass(frozen=True, slots=True)
class PaddedExamples:
    """Examples side by side, padded at the end; two arrays of shape (examples, about the longest).

    ``is_reply`` marks the tokens of replies. Padding needs no mask: attention looks back only, so nothing
    before it sees it.
    """

    tokens: NDArray[np.int32]
    is_reply: NDArray[np.bool_]

    @classmethod
    def from_examples(cls, examples: Sequence[PretrainExample]) -> "PaddedExamples":
        """Lay examples out."""
        shape = (len(examples), max(_padded_length(example) for example in examples))
        made = cls(np.zeros(shape, np.int32), np.zeros(shape, np.bool_))
        for row, example in enumerate(examples):
            made.tokens[row, : len(example.tokens)] = example.tokens
            made.is_reply[row, example.reply_start : len(example.tokens)] = True
        return made


@dataclass(frozen=True, slots=True)
class PretrainBatch:
    """Examples side by side, and what of them is to be learned.

    ``places`` says which tokens count in the loss, by their places in the flattened ``tokens[:, 1:]`` of the
    layout; ``is_reply`` which of those are replies'. Places in ``questions`` are those in the flattened
    ``tokens``. ``size`` counts the tokens, padding left out.
    """

    layout: PaddedExamples
    places: NDArray[np.int64]
    is_reply: NDArray[np.bool_]
    questions: AuxTargets
    size: int


def group_by_length(
    examples: Sequence[PretrainExample], batch_tokens: int, rng: random.Random
) -> list[list[PretrainExample]]:
    """Group examples of like length, so that little is padded; a group has at most so many tokens, padded."""
    groups: list[list[PretrainExample]] = []
    mixed = rng.sample(examples, len(examples))
    for example in sorted(mixed, key=lambda example: len(example.tokens)):
        if not groups or _padded_length(example) * (len(groups[-1]) + 1) > batch_tokens:
            groups.append([])
        groups[-1].append(example)
    rng.shuffle(groups)
    return groups


def _padded_length(example: PretrainExample) -> int:
    return -(-len(example.tokens) // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE


def make_batches(
    examples: Sequence[PretrainExample],
    batch_tokens: int,
    prompt_weight: float,
    marks: MarkerTokens,
    rng: random.Random,
) -> list[PretrainBatch]:
    """Make batches of at most so many tokens, padded.

    A share ``prompt_weight`` of the prompts' tokens counts in full: as much as all of them at that weight, on
    average, and the output matrix, a third of the work, is applied to few.
    """
    draws = np.random.default_rng(rng.getrandbits(64))
    made: list[PretrainBatch] = []
    for group in group_by_length(examples, batch_tokens, rng):
        layout = PaddedExamples.from_examples(group)
        lengths = np.array([len(example.tokens) for example in group])
        width = layout.tokens.shape[1]
        is_said = np.arange(1, width) < lengths[:, None]
        is_reply = layout.is_reply[:, 1:]
        counts = is_reply | (is_said & (draws.random(is_reply.shape) < prompt_weight))
        asked = [make_aux_targets(example, marks, draws) for example in group]
        made.append(
            PretrainBatch(
                layout=layout,
                places=np.flatnonzero(counts),
                is_reply=is_reply[counts],
                questions=AuxTargets.concatenated(
                    [questions.moved(row * width) for row, questions in enumerate(asked)]
                ),
                size=int(lengths.sum()),
            )
        )
    return made
