"""What the network is asked on the side while it learns: about the lines of a prompt, and replies' sources.

A turn, a memory, a question is a line, and begins with who it is about. What a small network needs on the way
to a reply (who says this, what has the line said so far, which line is this reply from) it hardly finds out
from the loss of replies alone. So each batch asks for it, and the answers are read off the layers in between.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from memory_program.agents.signatures import NOT_MENTIONED

UNASKED = -100
"""Stands where nothing is asked: what PyTorch's cross entropy leaves out by default."""

BEGINNING = 3
"""How many tokens of a line's beginning are asked for."""

_ASKED = 0.04  # the share of tokens that are asked about their lines
_COVERED = 0.6  # the share of an answer's tokens that the line has which it is from
_NOWHERE = (0, 1)  # the first token of every prompt is the same
_SESSION = "[[ ## session ## ]]"


@dataclass(frozen=True, slots=True)
class Marks:
    """Tokens by what they mean for the lines of a prompt.

    ``is_break`` says of each token whether lines end with it: fixed texts, and the line break. ``sessions``
    are the fixed texts before a session, ``not_mentioned`` is the answer of who abstains.
    """

    is_break: NDArray[np.bool_]
    sessions: frozenset[int]
    comma: int
    not_mentioned: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerFast) -> "Marks":
        """Find them in a tokenizer."""
        fixed: dict[str, int] = tokenizer.get_added_vocab()
        is_break = np.zeros(len(tokenizer), np.bool_)
        is_break[list(fixed.values())] = True
        is_break[tokenizer.backend_tokenizer.encode("\n").ids] = True
        sessions = frozenset(n for text, n in fixed.items() if text.rstrip().endswith(_SESSION))
        assert sessions, "the prompts of writers show a session"
        (comma,) = tokenizer.backend_tokenizer.encode(",").ids
        not_mentioned = tokenizer.backend_tokenizer.encode(NOT_MENTIONED).ids
        return cls(is_break, sessions, comma, tuple(not_mentioned))


@dataclass(frozen=True, slots=True)
class Questions:
    """What an example is asked on the side.

    ``places`` has the shape (asked,), ``lines`` (asked, 4): the first three tokens of the line of each place,
    and one token drawn from those up to it. Before a piece of the reply only a token of that piece is asked
    for. What is not asked is ``UNASKED``. ``pointers`` has the shape (pieces, 3): a place before a piece of
    the reply, and where the line begins and ends that the piece is from.
    """

    places: NDArray[np.int64]
    lines: NDArray[np.int64]
    pointers: NDArray[np.int64]


def questions_about(
    tokens: NDArray[np.int64], reply_start: int, marks: Marks, draws: np.random.Generator
) -> Questions:
    """Ask about an example in tokens, whose reply begins at ``reply_start``."""
    ends = marks.is_break[tokens]
    places = np.arange(len(tokens))
    starts = np.maximum.accumulate(np.where(ends, places + 1, 0))
    depths = places - starts
    asked = np.flatnonzero((depths >= BEGINNING) & (draws.random(len(tokens)) < _ASKED))
    about = asked
    in_lines = np.flatnonzero(~ends[:reply_start])
    if len(in_lines) and depths[in_lines[-1]] >= BEGINNING:  # a question: asked about up to its answer
        last = int(in_lines[-1])
        after = np.arange(last + 1, reply_start + 1)
        asked, about = np.append(asked, after), np.append(asked, np.full(len(after), last))
    drawn = starts[about] + (draws.random(len(about)) * (depths[about] + 1)).astype(np.int64)
    lines = np.stack(
        [*(tokens[starts[about] + number] for number in range(BEGINNING)), tokens[drawn]], axis=1
    )

    pieces = _runs(ends, reply_start, len(tokens))
    ahead = np.full((len(pieces), BEGINNING + 1), UNASKED)
    for row, (first, end) in enumerate(pieces):
        ahead[row, -1] = tokens[draws.integers(first, end)]
    return Questions(
        np.append(asked, [first - 1 for first, _ in pieces]).astype(np.int64),
        np.concatenate([lines, ahead]),
        np.array(list(_pointers(tokens, reply_start, ends, pieces, marks)), np.int64).reshape(-1, 3),
    )


_Run = tuple[int, int]  # from a place up to another


def _runs(ends: NDArray[np.bool_], first: int, last: int) -> list[_Run]:
    """List the stretches between two places that no break interrupts."""
    edges = np.flatnonzero(np.diff(np.concatenate(([True], ends[first:last], [True])).astype(np.int8)))
    return [(first + int(start), first + int(end)) for start, end in edges.reshape(-1, 2)]


def _pointers(
    tokens: NDArray[np.int64],
    reply_start: int,
    ends: NDArray[np.bool_],
    pieces: Sequence[_Run],
    marks: Marks,
) -> Iterator[tuple[int, int, int]]:
    """Say which line each piece of a reply is from, from before the piece and from one token earlier.

    It is the line that a piece of a writer quotes, or the one that it shares the rarest tokens with; where
    nothing is left to say, it is ``_NOWHERE``.
    """
    lines = _runs(ends, 0, reply_start)
    sessions = np.flatnonzero(np.isin(tokens[:reply_start], list(marks.sessions)))
    is_writer = len(sessions) > 0
    if not is_writer and tuple(tokens[reply_start + 1 :][: len(marks.not_mentioned)]) == marks.not_mentioned:
        yield reply_start, *_NOWHERE
    elif pieces:
        yield pieces[-1][1] - 1, *_NOWHERE
        parts = pieces if is_writer else [p for piece in pieces for p in _parts(tokens, *piece, marks.comma)]
        told = [line for line in lines if line[0] > sessions[-1]] if is_writer else lines[:-1]
        context = [] if is_writer or not lines else tokens[slice(*lines[-1])].tolist()
        for place, line in _sources(tokens, parts, lines, told, context, quotes=is_writer):
            yield place - 1, *line
            if place - 2 >= reply_start:
                yield place - 2, *line
    else:
        yield reply_start + 1, *_NOWHERE


def _sources(
    tokens: NDArray[np.int64],
    parts: Sequence[_Run],
    lines: Sequence[_Run],
    told: Sequence[_Run],
    question: Sequence[int],
    *,
    quotes: bool,
) -> Iterator[tuple[int, _Run]]:
    held = {line: frozenset(tokens[slice(*line)].tolist()) for line in lines}
    counts = Counter(token for line in lines for token in held[line])
    worth = {token: math.log(1 + len(lines) / count) for token, count in counts.items()}
    context = frozenset(question)
    for first, end in parts:
        said = frozenset(tokens[first:end].tolist())
        quoted = [line for line in lines if (tokens[line[0] :][: end - first] == tokens[first:end]).all()]
        candidates = (
            told if quotes else [line for line in told if len(held[line] & said) >= _COVERED * len(said)]
        )
        if quotes and len(quoted) == 1:
            yield first, quoted[0]
        elif candidates:
            worths = [
                sum(worth[token] * (1.0 if token in said else 0.5) for token in held[line] & (said | context))
                for line in candidates
            ]
            best = max(range(len(candidates)), key=worths.__getitem__)
            if worths[best] > 0:
                yield first, candidates[best]
        if quotes:
            context = said  # the day of an event is said where the event is


def _parts(tokens: NDArray[np.int64], first: int, end: int, comma: int) -> Iterator[_Run]:
    """Cut a list at its commas."""
    cuts = (first + np.flatnonzero(tokens[first:end] == comma)).tolist()
    for before, after in pairwise([first - 1, *cuts, end]):
        if before + 1 < after:
            yield before + 1, after
