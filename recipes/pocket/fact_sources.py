"""Find the line of the prompt that each piece of a reply comes from."""

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np

from recipes.pocket.parsed_example import MarkerTokens, ParsedExample, PretrainExample, TokenSpan

MIN_COVERAGE = 0.6
"""The least share of an answer's tokens that its source line has."""

_NO_SOURCE = (0, 1)  # the first token, which is the same in every prompt


def find_source_lines(
    example: PretrainExample, parts: ParsedExample, marks: MarkerTokens
) -> Iterator[tuple[int, int, int]]:
    """Yield the source line of each piece of a reply.

    The source is the line that a writer's piece quotes; else, of the lines that the reply may come from, the
    one that shares the rarest tokens with the piece. Where the reply ends or abstains, it is the first token
    of the prompt.

    Yields:
        The index of the token before the piece (and, inside the reply, of the one before that), and the span
        of the source line.
    """
    reply_start, pieces = parts.reply_start, parts.pieces
    answer = tuple(parts.tokens[reply_start + 1 :][: len(marks.not_mentioned)].tolist())
    if not parts.is_writer and answer == marks.not_mentioned:
        yield reply_start, *_NO_SOURCE
    elif pieces:
        yield pieces[-1][1] - 1, *_NO_SOURCE
        for first, line in _piece_sources(example, parts, marks):
            yield first - 1, *line
            if first - 2 >= reply_start:
                yield first - 2, *line
    else:
        yield reply_start + 1, *_NO_SOURCE


def _piece_sources(
    example: PretrainExample, parts: ParsedExample, marks: MarkerTokens
) -> Iterator[tuple[int, TokenSpan]]:
    """Yield the first token of each piece, and its source line; pieces without a source are left out."""
    tokens, lines = parts.tokens, parts.lines
    names = {line: tokens[slice(*marks.find_line_name(tokens, line))] for line in lines}
    tokens_by_line = {line: frozenset(tokens[slice(*line)].tolist()) for line in lines}
    counts = Counter(token for line in lines for token in tokens_by_line[line])
    idf = {token: math.log(1 + len(lines) / count) for token, count in counts.items()}
    evidence = [line for line in lines if line[0] in example.evidence]
    context = frozenset(tokens[slice(*lines[-1])].tolist() if lines and not parts.is_writer else ())
    for first, end in parts.pieces if parts.is_writer else parts.split_list_items(marks.comma):
        said = frozenset(tokens[first:end].tolist())
        if parts.is_writer:  # a writer may also name any line, by its id or as it stands
            candidates = parts.content_lines
            quoted = [line for line in lines if np.array_equal(names[line], tokens[first:end])]
        else:
            enough = MIN_COVERAGE * len(said)
            candidates = [line for line in evidence if len(tokens_by_line[line] & said) >= enough]
            quoted = []
        if len(quoted) == 1:
            yield first, quoted[0]
        elif candidates:
            scores = [
                sum(idf[t] * (1.0 if t in said else 0.5) for t in tokens_by_line[line] & (said | context))
                for line in candidates
            ]
            best = max(range(len(candidates)), key=scores.__getitem__)
            if scores[best] > 0:
                yield first, candidates[best]
        if parts.is_writer:
            context = said  # the date of an event is in the line of the event
