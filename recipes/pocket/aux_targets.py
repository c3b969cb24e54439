"""Targets of the auxiliary losses: questions about the lines of a prompt and the sources of a reply.

A turn, a memory and a question are lines, and each begins with the person that it is about. On the way to a
reply a small network needs to know who speaks, what the line has said so far and which line the reply
comes from. The loss of the replies alone hardly teaches this. So the auxiliary losses ask for it in every
batch, and read the answers off the layers in between.

A reader's prompt has the question before the memories. So at each memory we can ask with the question in
mind: which of its words are in the question, whether the answer comes from it, and which of its words are the
answer. A writer's prompt has the memories before the session. So at each turn we ask which of its words the
memories have, whether a call comes from it, which of its words the call uses, and which line it changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recipes.pocket.fact_sources import MIN_COVERAGE, find_source_lines
from recipes.pocket.parsed_example import IntArray, MarkerTokens, ParsedExample, PretrainExample, TokenSpan

IGNORE_INDEX = -100
"""The target where nothing is asked: PyTorch's cross entropy leaves it out by default."""

LINE_PREFIX_TOKENS = 3
"""The number of tokens to predict of a line's beginning."""

_LINE_TARGET_SHARE = 0.04  # share of the tokens that are asked about their line
_CHAT_TURN_SHARE = 0.25  # share to ask about of the turns that no call comes from: most turns are chat


@dataclass(frozen=True, slots=True)
class AuxTargets:
    """Targets of the auxiliary losses, as arrays. The first column is the index of the token to read from.

    ``lines`` (questions, 5): the first three tokens of the token's line, and a random token of the line up to
    there. Before a piece of the reply, only a random token of that piece. ``IGNORE_INDEX`` asks for nothing.

    ``pointers`` (pieces, 3): the token before a piece of the reply, and the span of the line that the piece
    comes from; or the last token of a turn, and the span of the line that changes because of it.

    ``words`` (words, 3): for each token of a reader's memories, whether the question has it and whether the
    answer uses it; for each token of a writer's turns, whether the memories have it and whether a call uses
    it.

    ``matches`` (lines, 2): for the last token of a memory or turn, whether the reply comes from it.

    ``answers`` (lines, 4): for the last token of a memory that the answer comes from, the first three tokens
    of the part that it gives; for the last token of a turn that changes a line, the first three tokens of
    that line's name (the memory's id, or the line).
    """

    lines: IntArray
    pointers: IntArray
    words: IntArray
    matches: IntArray
    answers: IntArray

    @property
    def arrays(self) -> tuple[IntArray, ...]:
        """All arrays, in order."""
        return self.lines, self.pointers, self.words, self.matches, self.answers

    def moved(self, by: int) -> "AuxTargets":
        """Add an offset to every token index."""
        pointers = self.pointers + by
        lines, words, matches, answers = (
            array + by * (np.arange(array.shape[1]) == 0)
            for array in (self.lines, self.words, self.matches, self.answers)
        )
        return AuxTargets(lines, pointers, words, matches, answers)

    @classmethod
    def concatenated(cls, parts: Sequence["AuxTargets"]) -> "AuxTargets":
        """Join the targets of some examples."""
        return cls(*(np.concatenate(arrays) for arrays in zip(*(part.arrays for part in parts), strict=True)))


def make_aux_targets(
    example: PretrainExample, marks: MarkerTokens, random: np.random.Generator
) -> AuxTargets:
    """Make the targets of one example."""
    parts = ParsedExample.parse(example, marks)
    line_at = {line[0]: line for line in parts.lines}
    changes = [(line_at[turn], line_at[changed]) for turn, changed in example.changes]
    pointers = [
        *find_source_lines(example, parts, marks),
        *((turn[1] - 1, *line) for turn, line in changes),
    ]
    return AuxTargets(
        _line_targets(parts, random),
        np.array(pointers, np.int64).reshape(-1, 3),
        *_evidence_targets(example, parts, changes, marks, random),
    )


def _line_targets(parts: ParsedExample, random: np.random.Generator) -> IntArray:
    tokens, reply_start = parts.tokens, parts.reply_start
    indices = np.arange(len(tokens))
    starts = np.maximum.accumulate(np.where(parts.is_break, indices + 1, 0))
    depths = indices - starts
    is_chosen = random.random(len(tokens)) < _LINE_TARGET_SHARE
    asked = np.flatnonzero((depths >= LINE_PREFIX_TOKENS) & is_chosen)
    about = asked
    in_lines = np.flatnonzero(~parts.is_break[:reply_start])
    if len(in_lines) and depths[in_lines[-1]] >= LINE_PREFIX_TOKENS:
        # The last line is the question: up to the answer, all tokens are asked about it.
        last = int(in_lines[-1])
        after = np.arange(last + 1, reply_start + 1)
        asked, about = np.append(asked, after), np.append(asked, np.full(len(after), last))
    held = starts[about] + (random.random(len(about)) * (depths[about] + 1)).astype(np.int64)
    prefix = [tokens[starts[about] + number] for number in range(LINE_PREFIX_TOKENS)]
    lines = np.stack([asked, *prefix, tokens[held]], axis=1)
    ahead = np.full((len(parts.pieces), LINE_PREFIX_TOKENS + 2), IGNORE_INDEX)
    for row, (first, end) in enumerate(parts.pieces):
        ahead[row, 0], ahead[row, -1] = first - 1, tokens[random.integers(first, end)]
    return np.concatenate([lines, ahead])


def _evidence_targets(
    example: PretrainExample,
    parts: ParsedExample,
    changes: Sequence[tuple[TokenSpan, TokenSpan]],
    marks: MarkerTokens,
    random: np.random.Generator,
) -> tuple[IntArray, IntArray, IntArray]:
    """Make ``words``, ``matches`` and ``answers``."""
    tokens = parts.tokens
    words: list[IntArray] = [np.empty((0, 3), np.int64)]
    matches: list[tuple[int, bool]] = []
    answers = [
        (turn[1] - 1, *_prefix_tokens(tokens, *marks.find_line_name(tokens, line))) for turn, line in changes
    ]
    known, written = parts.gather_tokens(parts.context_lines), parts.gather_tokens(parts.pieces)
    items = parts.split_list_items(marks.comma)
    for first, end in parts.content_lines:
        is_source = first in example.evidence
        if parts.is_writer and not is_source and random.random() >= _CHAT_TURN_SHARE:
            continue
        is_used = np.zeros(end - first, np.int64)
        if is_source and parts.is_writer:
            is_used = np.isin(tokens[first:end], written).astype(np.int64)
        elif is_source:
            for item in items:
                found = find_quoted_span(tokens[first:end], tokens[slice(*item)])
                if found:
                    is_used[slice(*found)] = 1
                    answers.append((end - 1, *_prefix_tokens(tokens, *item)))
                    break
        matches.append((end - 1, is_source))
        is_known = np.isin(tokens[first:end], known).astype(np.int64)
        words.append(np.stack([np.arange(first, end), is_known, is_used], axis=1))
    return (
        np.concatenate(words),
        np.array(matches, np.int64).reshape(-1, 2),
        np.array(answers, np.int64).reshape(-1, 1 + LINE_PREFIX_TOKENS),
    )


def _prefix_tokens(tokens: IntArray, first: int, end: int) -> list[int]:
    """Give the first tokens of a span, padded with ``IGNORE_INDEX``."""
    prefix = tokens[first : min(end, first + LINE_PREFIX_TOKENS)].tolist()
    return [*prefix, *(IGNORE_INDEX,) * (LINE_PREFIX_TOKENS - len(prefix))]


def find_quoted_span(line: IntArray, part: IntArray) -> TokenSpan | None:
    """Find the span of a line that quotes a part of an answer, the token before it included; None if none.

    A quotation begins with another token than the part, since the line has a space before it.

    Example:
        >>> find_quoted_span(np.array([5, 6, 7, 8]), np.array([9, 7, 8]))
        (1, 4)
    """
    best = (0, 0, 0)  # length, index in the line, index in the part
    for at in range(len(line)):
        for begin in range(len(part)):
            length = 0
            for ours, theirs in zip(line[at:], part[begin:], strict=False):
                if ours != theirs:
                    break
                length += 1
            best = max(best, (length, -at, -begin))
    length, at, begin = best[0], -best[1], -best[2]
    if length < MIN_COVERAGE * len(part):
        return None
    return max(0, at - begin), at + length
