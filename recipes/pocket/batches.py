"""Batches: examples of similar length, padded, with the tokens and the auxiliary targets to learn."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recipes.pocket.aux_targets import AuxTargets, make_aux_targets
from recipes.pocket.parsed_example import MarkerTokens, PretrainExample

_LENGTH_MULTIPLE = 16  # few different lengths: ``aux_losses.pad_rows`` says why


@dataclass(frozen=True, slots=True)
class PaddedExamples:
    """Examples as rows, padded at the end; two arrays of shape (examples, longest example).

    ``is_reply`` marks the tokens of replies. Padding needs no mask: attention looks back only, so no token
    before the padding sees it.
    """

    tokens: NDArray[np.int32]
    is_reply: NDArray[np.bool_]

    @classmethod
    def from_examples(cls, examples: Sequence[PretrainExample]) -> "PaddedExamples":
        """Pad examples to one length."""
        shape = (len(examples), max(_padded_length(example) for example in examples))
        made = cls(np.zeros(shape, np.int32), np.zeros(shape, np.bool_))
        for row, example in enumerate(examples):
            made.tokens[row, : len(example.tokens)] = example.tokens
            made.is_reply[row, example.reply_start : len(example.tokens)] = True
        return made


@dataclass(frozen=True, slots=True)
class PretrainBatch:
    """A batch of examples.

    ``places`` are the tokens that count in the loss, as indices into the flattened ``tokens[:, 1:]``;
    ``is_reply`` says which of them belong to replies. ``aux_targets`` index the flattened ``tokens``.
    ``size`` counts the tokens without padding.
    """

    layout: PaddedExamples
    places: NDArray[np.int64]
    is_reply: NDArray[np.bool_]
    aux_targets: AuxTargets
    size: int


def group_by_length(
    examples: Sequence[PretrainExample], batch_tokens: int, rng: random.Random
) -> list[list[PretrainExample]]:
    """Group examples of similar length, to pad little. A padded group has at most ``batch_tokens`` tokens."""
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
    """Make batches of at most ``batch_tokens`` padded tokens.

    Instead of weighting every prompt token with ``prompt_weight``, that share of them is drawn and counts in
    full. The expectation is the same, and the output matrix, a third of the work, is applied to fewer tokens.
    """
    random_numbers = np.random.default_rng(rng.getrandbits(64))
    made: list[PretrainBatch] = []
    for group in group_by_length(examples, batch_tokens, rng):
        layout = PaddedExamples.from_examples(group)
        lengths = np.array([len(example.tokens) for example in group])
        width = layout.tokens.shape[1]
        is_reply = layout.is_reply[:, 1:]
        is_token = np.arange(1, width) < lengths[:, None]
        is_counted = is_reply | (is_token & (random_numbers.random(is_reply.shape) < prompt_weight))
        targets = [make_aux_targets(example, marks, random_numbers) for example in group]
        made.append(
            PretrainBatch(
                layout=layout,
                places=np.flatnonzero(is_counted),
                is_reply=is_reply[is_counted],
                aux_targets=AuxTargets.concatenated(
                    [of_row.moved(row * width) for row, of_row in enumerate(targets)]
                ),
                size=int(lengths.sum()),
            )
        )
    return made
