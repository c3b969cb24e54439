"""Examples side by side: what they share once, and what of them is to be learned.

Readers' prompts about the same memories differ in their last line only. Such examples share a row: the prompt
once, then what each has of its own, which sees the shared part and itself, as if it stood alone. A question
more costs 30 tokens then, not 300.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memory_program.pocket.asking import Marks, Questions, questions_about

_LEAST_SHARED = 0.5  # the share of an example that it must have in common with a row to join it
_LEAST_OWN = 2  # tokens of its prompt that an example keeps to itself, so that its reply has one before it


@dataclass(frozen=True, slots=True)
class Example:
    """An exchange in tokens; the reply begins at ``reply_start``."""

    tokens: tuple[int, ...]
    reply_start: int


@dataclass(frozen=True, slots=True)
class Row:
    """Examples whose first ``shared`` tokens are the same; they stand there once."""

    examples: tuple[Example, ...]
    shared: int = 0

    @property
    def length(self) -> int:
        """How many tokens it has."""
        return self.shared + sum(len(example.tokens) - self.shared for example in self.examples)

    @property
    def starts(self) -> list[int]:
        """Where in the row the own part of each example begins."""
        lengths = [len(example.tokens) - self.shared for example in self.examples]
        return [self.shared + sum(lengths[:number]) for number in range(len(lengths))]


@dataclass(frozen=True, slots=True)
class Layout:
    """Rows side by side, padded at the end; four arrays of shape (rows, longest).

    ``positions`` are the places that tokens have in their own example, ``segments`` is 0 for what is shared
    and n for what the n-th example of a row has of its own. ``is_reply`` marks the tokens of replies.

    Padding needs no mask: attention looks back only, so nothing before it sees it.
    """

    tokens: NDArray[np.int32]
    positions: NDArray[np.int32]
    segments: NDArray[np.int32]
    is_reply: NDArray[np.bool_]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "Layout":
        """Lay rows out."""
        shape = (len(rows), max(row.length for row in rows))
        tokens, positions, segments = (np.zeros(shape, np.int32) for _ in range(3))
        made = cls(tokens, positions, segments, np.zeros(shape, np.bool_))
        for number, row in enumerate(rows):
            made.tokens[number, : row.shared] = row.examples[0].tokens[: row.shared]
            made.positions[number, : row.shared] = np.arange(row.shared)
            for segment, (example, start) in enumerate(zip(row.examples, row.starts, strict=True), 1):
                own = slice(start, start + len(example.tokens) - row.shared)
                made.tokens[number, own] = example.tokens[row.shared :]
                made.positions[number, own] = np.arange(row.shared, len(example.tokens))
                made.segments[number, own] = segment
                made.is_reply[number, start + example.reply_start - row.shared : own.stop] = True
        return made


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows side by side, and what of them is to be learned.

    ``places`` says which tokens count in the loss, by their places in the flattened ``tokens[:, 1:]`` of the
    layout; ``is_reply`` which of those are replies'. ``asked`` are places in the flattened ``tokens``,
    ``lines`` and ``pointers`` what is asked on the side (see ``asking.Questions``; a pointer has its row
    first). ``size`` is how many tokens there are, unpadded.
    """

    layout: Layout
    places: NDArray[np.int64]
    is_reply: NDArray[np.bool_]
    asked: NDArray[np.int64]
    lines: NDArray[np.int64]
    pointers: NDArray[np.int64]
    size: int

    @property
    def is_shared(self) -> bool:
        """Whether examples share rows, so that looking back is not enough to keep them apart."""
        return bool(self.layout.segments.max() > 1)


def alone(examples: Sequence[Example]) -> list[Row]:
    """Give each example a row of its own."""
    return [Row((example,)) for example in examples]


def shared_rows(examples: Sequence[Example]) -> list[Row]:
    """Give examples that follow each other and begin alike a row together."""
    rows: list[Row] = []
    for example in examples:
        joined = joined_row(rows[-1], example) if rows else None
        if joined:
            rows[-1] = joined
        else:
            rows.append(Row((example,)))
    return rows


def joined_row(row: Row, example: Example) -> Row | None:
    """Add an example to a row; None if it has too little in common with it."""
    first = row.examples[0]
    pairs = enumerate(zip(first.tokens, example.tokens, strict=False))
    common = next((at for at, (one, other) in pairs if one != other), first.reply_start)
    shared = min(common, first.reply_start - _LEAST_OWN, example.reply_start - _LEAST_OWN)
    if len(row.examples) > 1:
        shared = min(shared, row.shared)
    if shared < _LEAST_SHARED * len(example.tokens):
        return None
    return Row((*row.examples, example), shared)


def grouped(rows: Sequence[Row], batch_tokens: int, rng: random.Random) -> list[list[Row]]:
    """Group rows of like length, so that little is padded; a group has at most so many tokens, padded."""
    groups: list[list[Row]] = []
    mixed = rng.sample(rows, len(rows))
    for row in sorted(mixed, key=lambda row: row.length):
        if not groups or row.length * (len(groups[-1]) + 1) > batch_tokens:
            groups.append([])
        groups[-1].append(row)
    rng.shuffle(groups)
    return groups


def batches(
    examples: Sequence[Example],
    batch_tokens: int,
    prompt_weight: float,
    marks: Marks,
    rng: random.Random,
) -> list[Batch]:
    """Make batches of at most so many tokens, padded.

    A share ``prompt_weight`` of the prompts' tokens counts in full: as much as all of them at that weight, on
    average, and the output matrix, a third of the work, is applied to few.
    """
    draws = np.random.default_rng(rng.getrandbits(64))
    made: list[Batch] = []
    for group in grouped(shared_rows(examples), batch_tokens, rng):
        layout = Layout.of(group)
        lengths = np.array([row.length for row in group])
        follows = np.diff(layout.positions, axis=1) == 1  # the token after another of the same example
        is_said = follows & (np.arange(1, layout.tokens.shape[1]) < lengths[:, None])
        is_reply = layout.is_reply[:, 1:]
        counts = is_reply | (is_said & (draws.random(is_reply.shape) < prompt_weight))
        questions = [_questions_about(row, marks, draws) for row in group]
        width = layout.tokens.shape[1]
        made.append(
            Batch(
                layout=layout,
                places=np.flatnonzero(counts),
                is_reply=is_reply[counts],
                asked=np.concatenate([number * width + q.places for number, q in enumerate(questions)]),
                lines=np.concatenate([q.lines for q in questions]),
                pointers=np.concatenate(
                    [np.insert(q.pointers, 0, number, axis=1) for number, q in enumerate(questions)]
                ),
                size=int(lengths.sum()),
            )
        )
    return made


def _questions_about(row: Row, marks: Marks, draws: np.random.Generator) -> Questions:
    """Ask about each example of a row; of what is shared, once."""
    asked: list[Questions] = []
    for number, (example, start) in enumerate(zip(row.examples, row.starts, strict=True)):
        found = questions_about(np.array(example.tokens, np.int64), example.reply_start, marks, draws)
        is_new = np.full(len(found.places), True) if number == 0 else found.places >= row.shared
        moved = start - row.shared

        def placed(places: NDArray[np.int64], moved: int = moved) -> NDArray[np.int64]:
            return places + np.where(places >= row.shared, moved, 0)

        place, first, end = found.pointers.T
        pointers = np.stack([placed(place), placed(first), placed(end - 1) + 1], axis=1)
        asked.append(Questions(placed(found.places[is_new]), found.lines[is_new], pointers))
    return Questions(*(np.concatenate(parts) for parts in zip(*map(_parts, asked), strict=True)))


def _parts(questions: Questions) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    return questions.places, questions.lines, questions.pointers
