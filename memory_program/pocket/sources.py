"""Which line of its prompt each piece of a reply is from."""

import math
from collections import Counter
from collections.abc import Iterator

from memory_program.pocket.lines import Example, Marks, Numbers, Parts, Run

COVERED = 0.6
"""The share of an answer's tokens that a line has which it is from."""

_NOWHERE = (0, 1)  # the first token of every prompt is the same


def pointers(example: Example, parts: Parts, marks: Marks) -> Iterator[tuple[int, int, int]]:
    """Say which line each piece of a reply is from, from before the piece and from one token earlier.

    It is the line that a piece of a writer quotes, or the one that it shares the rarest tokens with, of those
    that an answer is from; where nothing is left to say, it is the first token of the prompt.

    Yields:
        a place, and the places from which on and up to which the line goes.
    """
    reply_start, pieces = parts.reply_start, parts.pieces
    answer = tuple(parts.tokens[reply_start + 1 :][: len(marks.not_mentioned)].tolist())
    if not parts.is_writer and answer == marks.not_mentioned:
        yield reply_start, *_NOWHERE
    elif pieces:
        yield pieces[-1][1] - 1, *_NOWHERE
        for place, line in _sources(example, parts, marks):
            yield place - 1, *line
            if place - 2 >= reply_start:
                yield place - 2, *line
    else:
        yield reply_start + 1, *_NOWHERE


def _sources(example: Example, parts: Parts, marks: Marks) -> Iterator[tuple[int, Run]]:
    """Say of which line each piece is; a writer may also quote any line, whole or up to its colon."""
    tokens, lines = parts.tokens, parts.lines
    held = {line: frozenset(tokens[slice(*line)].tolist()) for line in lines}
    counts = Counter(token for line in lines for token in held[line])
    worth = {token: math.log(1 + len(lines) / count) for token, count in counts.items()}
    evidence = [line for line in lines if line[0] in example.evidence]
    context = frozenset(tokens[slice(*lines[-1])].tolist() if lines and not parts.is_writer else ())
    for first, end in parts.pieces if parts.is_writer else parts.listed(marks.comma):
        said = frozenset(tokens[first:end].tolist())
        if parts.is_writer:
            candidates = parts.told
            quoted = [line for line in lines if _is_quoted(tokens, line, (first, end), marks.colon)]
        else:
            candidates, quoted = [ln for ln in evidence if len(held[ln] & said) >= COVERED * len(said)], []
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


def _is_quoted(tokens: Numbers, line: Run, part: Run, colon: int) -> bool:
    """Whether a part is a line, or what stands before its colon: m1 is no quotation of ``m12: ...``."""
    after = line[0] + part[1] - part[0]
    is_begun = bool((tokens[line[0] : after] == tokens[slice(*part)]).all())
    return is_begun and (after == line[1] or tokens[after] == colon)
