"""Which line of its prompt each piece of a reply is from."""

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np

from recipes.pocket.example import MarkerTokens, ParsedExample, PretrainExample, TokenSpan

MIN_COVERAGE = 0.6
"""The share of an answer's tokens that a line has which it is from."""

_NO_SOURCE = (0, 1)  # the first token of every prompt is the same


def find_source_lines(
    example: PretrainExample, parts: ParsedExample, marks: MarkerTokens
) -> Iterator[tuple[int, int, int]]:
    """Say which line each piece of a reply is from, from before the piece and from one token earlier.

    It is the line that a piece of a writer quotes, or the one that it shares the rarest tokens with, of those
    that an answer is from; where nothing is left to say, it is the first token of the prompt.

    Yields:
        a place, and the places from which on and up to which the line goes.
    """
    reply_start, pieces = parts.reply_start, parts.pieces
    answer = tuple(parts.tokens[reply_start + 1 :][: len(marks.not_mentioned)].tolist())
    if not parts.is_writer and answer == marks.not_mentioned:
        yield reply_start, *_NO_SOURCE
    elif pieces:
        yield pieces[-1][1] - 1, *_NO_SOURCE
        for place, line in _sources(example, parts, marks):
            yield place - 1, *line
            if place - 2 >= reply_start:
                yield place - 2, *line
    else:
        yield reply_start + 1, *_NO_SOURCE


def _sources(
    example: PretrainExample, parts: ParsedExample, marks: MarkerTokens
) -> Iterator[tuple[int, TokenSpan]]:
    """Say of which line each piece is; a writer may also name any line, by its id or as it stands."""
    tokens, lines = parts.tokens, parts.lines
    names = {line: tokens[slice(*marks.find_line_name(tokens, line))] for line in lines}
    held = {line: frozenset(tokens[slice(*line)].tolist()) for line in lines}
    counts = Counter(token for line in lines for token in held[line])
    worth = {token: math.log(1 + len(lines) / count) for token, count in counts.items()}
    evidence = [line for line in lines if line[0] in example.evidence]
    context = frozenset(tokens[slice(*lines[-1])].tolist() if lines and not parts.is_writer else ())
    for first, end in parts.pieces if parts.is_writer else parts.split_list_items(marks.comma):
        said = frozenset(tokens[first:end].tolist())
        if parts.is_writer:
            candidates = parts.content_lines
            quoted = [line for line in lines if np.array_equal(names[line], tokens[first:end])]
        else:
            candidates, quoted = (
                [ln for ln in evidence if len(held[ln] & said) >= MIN_COVERAGE * len(said)],
                [],
            )
        if len(quoted) == 1:
            yield first, quoted[0]
        elif candidates:
            worths = [
                sum(worth[token] * (1.0 if token in said else 0.5) for token in held[line] & (said | context))
                for line in candidates
            ]
            best = max(range(len(candidates)), key=worths.__getitem__)
            if worths[best] > 0:
                yield first, candidates[best]
        if parts.is_writer:
            context = said  # the day of an event is said where the event is
