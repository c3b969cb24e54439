"""What the network is asked on the side while it learns: about the lines of a prompt, and replies' sources.

A turn, a memory, a question is a line, and begins with who it is about. What a small network needs on the way
to a reply (who says this, what has the line said so far, which line is this reply from) it hardly finds out
from the loss of replies alone. So each batch asks for it, and the answers are read off the layers in between.

A reader is told the question before the memories, so a memory can be asked about with the question in mind:
which of its words the question has, whether the answer is from it, which of its words are the answer. A
writer is told the memories before the session, so a turn can be asked about with these in mind: which of its
words they have, whether a call is from it, which of its words the call takes, and what it changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recipes.pocket.example import IntArray, MarkerTokens, ParsedExample, PretrainExample, TokenSpan
from recipes.pocket.fact_sources import MIN_COVERAGE, find_source_lines

IGNORE_INDEX = -100
"""Stands where nothing is asked: what PyTorch's cross entropy leaves out by default."""

LINE_PREFIX_TOKENS = 3
"""How many tokens of a line's beginning are asked for."""

_LINE_TARGET_SHARE = 0.04  # the share of tokens that are asked about their lines
_CHAT_TURN_SHARE = (
    0.25  # the share of turns that are asked about although no call is from them: most are chat
)


@dataclass(frozen=True, slots=True)
class AuxTargets:
    """What an example is asked on the side; arrays of which each row begins with the place that is asked.

    ``lines`` has the shape (asked, 5): the first three tokens of the line of the place, and one token drawn
    from those up to it. Before a piece of the reply only a token of that piece is asked for. What is not
    asked is ``IGNORE_INDEX``.

    ``find_source_lines`` has the shape (pieces, 3): a place before a piece of the reply, and the places from which on
    and up to which the line goes that the piece is from; or the last token of a turn, and the line that is
    changed because of it.

    ``words`` has the shape (words, 3): of each token that a reader remembers, whether the question has it,
    and whether the answer takes it; of each that a writer is told, whether the memories have it, and whether
    a call takes it. ``matches`` has the shape (lines, 2): of the last token of each memory or turn, whether
    the reply is from it. ``answers`` has the shape (lines, 4): of the last token of each memory that the
    answer is from, the first three tokens of what it takes, and of each turn that changes something, those of
    what a call names the changed line by: a memory's id, or the line.
    """

    lines: IntArray
    pointers: IntArray
    words: IntArray
    matches: IntArray
    answers: IntArray

    @property
    def arrays(self) -> tuple[IntArray, ...]:
        """All of them, in order."""
        return self.lines, self.pointers, self.words, self.matches, self.answers

    def moved(self, by: int) -> "AuxTargets":
        """Count places from an earlier one on."""
        pointers = self.pointers + by
        lines, words, matches, answers = (
            array + by * (np.arange(array.shape[1]) == 0)
            for array in (self.lines, self.words, self.matches, self.answers)
        )
        return AuxTargets(lines, pointers, words, matches, answers)

    @classmethod
    def concatenated(cls, parts: Sequence["AuxTargets"]) -> "AuxTargets":
        """Ask all of some examples."""
        return cls(*(np.concatenate(arrays) for arrays in zip(*(part.arrays for part in parts), strict=True)))


def make_aux_targets(example: PretrainExample, marks: MarkerTokens, draws: np.random.Generator) -> AuxTargets:
    """Ask about an example."""
    parts = ParsedExample.parse(example, marks)
    line_at = {line[0]: line for line in parts.lines}
    changes = [(line_at[turn], line_at[changed]) for turn, changed in example.changes]
    pointed = [
        *find_source_lines(example, parts, marks),
        *((line[1] - 1, *other) for line, other in changes),
    ]
    return AuxTargets(
        _line_targets(parts, draws),
        np.array(pointed, np.int64).reshape(-1, 3),
        *_evidence_targets(example, parts, changes, marks, draws),
    )


def _line_targets(parts: ParsedExample, draws: np.random.Generator) -> IntArray:
    tokens, reply_start = parts.tokens, parts.reply_start
    places = np.arange(len(tokens))
    starts = np.maximum.accumulate(np.where(parts.is_break, places + 1, 0))
    depths = places - starts
    asked = np.flatnonzero((depths >= LINE_PREFIX_TOKENS) & (draws.random(len(tokens)) < _LINE_TARGET_SHARE))
    about = asked
    in_lines = np.flatnonzero(~parts.is_break[:reply_start])
    if (
        len(in_lines) and depths[in_lines[-1]] >= LINE_PREFIX_TOKENS
    ):  # a question: asked about up to its answer
        last = int(in_lines[-1])
        after = np.arange(last + 1, reply_start + 1)
        asked, about = np.append(asked, after), np.append(asked, np.full(len(after), last))
    drawn = starts[about] + (draws.random(len(about)) * (depths[about] + 1)).astype(np.int64)
    begun = [tokens[starts[about] + number] for number in range(LINE_PREFIX_TOKENS)]
    lines = np.stack([asked, *begun, tokens[drawn]], axis=1)
    ahead = np.full((len(parts.pieces), LINE_PREFIX_TOKENS + 2), IGNORE_INDEX)
    for row, (first, end) in enumerate(parts.pieces):
        ahead[row, 0], ahead[row, -1] = first - 1, tokens[draws.integers(first, end)]
    return np.concatenate([lines, ahead])


def _evidence_targets(
    example: PretrainExample,
    parts: ParsedExample,
    changes: Sequence[tuple[TokenSpan, TokenSpan]],
    marks: MarkerTokens,
    draws: np.random.Generator,
) -> tuple[IntArray, IntArray, IntArray]:
    """Ask about what a reader remembers, and about what a writer is told."""
    tokens = parts.tokens
    words: list[IntArray] = [np.empty((0, 3), np.int64)]
    matches: list[tuple[int, bool]] = []
    answers = [
        (line[1] - 1, *_prefix_tokens(tokens, *marks.find_line_name(tokens, other)))
        for line, other in changes
    ]
    known, written = parts.gather_tokens(parts.context_lines), parts.gather_tokens(parts.pieces)
    listed = parts.split_list_items(marks.comma)
    for first, end in parts.content_lines:
        is_source = first in example.evidence
        if parts.is_writer and not is_source and draws.random() >= _CHAT_TURN_SHARE:
            continue
        is_taken = np.zeros(end - first, np.int64)
        if is_source and parts.is_writer:
            is_taken = np.isin(tokens[first:end], written).astype(np.int64)
        elif is_source:
            for start, stop in listed:
                found = _find_quoted_span(tokens[first:end], tokens[start:stop])
                if found:
                    is_taken[slice(*found)] = 1
                    answers.append((end - 1, *_prefix_tokens(tokens, start, stop)))
                    break
        matches.append((end - 1, is_source))
        places, is_known = np.arange(first, end), np.isin(tokens[first:end], known)
        words.append(np.stack([places, is_known.astype(np.int64), is_taken], axis=1))
    return (
        np.concatenate(words),
        np.array(matches, np.int64).reshape(-1, 2),
        np.array(answers, np.int64).reshape(-1, 1 + LINE_PREFIX_TOKENS),
    )


def _prefix_tokens(tokens: IntArray, first: int, end: int) -> list[int]:
    """Give the first tokens of a stretch, and ``IGNORE_INDEX`` where it is shorter."""
    return [
        *tokens[first : min(end, first + LINE_PREFIX_TOKENS)].tolist(),
        *(IGNORE_INDEX,) * LINE_PREFIX_TOKENS,
    ][:LINE_PREFIX_TOKENS]


def _find_quoted_span(line: IntArray, part: IntArray) -> TokenSpan | None:
    """Find where a line says a part of an answer, but for the space before it; None if it does not.

    Example:
        >>> _taken(np.array([5, 6, 7, 8]), np.array([9, 7, 8]))
        (1, 4)
    """
    best = (0, 0, 0)  # length, place in the line, place in the part
    for at in range(len(line)):
        for begun in range(len(part)):
            length = 0
            while (
                at + length < len(line)
                and begun + length < len(part)
                and line[at + length] == part[begun + length]
            ):
                length += 1
            best = max(best, (length, -at, -begun))
    length, at, begun = best[0], -best[1], -best[2]
    if length < MIN_COVERAGE * len(part):
        return None
    return max(0, at - begun), at + length
