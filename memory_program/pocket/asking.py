"""What the network is asked on the side while it learns: about the lines of a prompt, and replies' sources.

A turn, a memory, a question is a line, and begins with who it is about. What a small network needs on the way
to a reply (who says this, what has the line said so far, which line is this reply from) it hardly finds out
from the loss of replies alone. So each batch asks for it, and the answers are read off the layers in between.

A reader is told the question before the memories, so a memory can be asked about with the question in mind:
which of its words the question has, whether the answer is from it, which of its words are the answer. A
writer is told the memories before the session, so a turn can be asked about with these in mind: which of its
words they have, whether a call is from it, which of its words the call takes, and what it changes.
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
_OTHERS = 0.25  # the share of turns that are asked about although no call is from them: most are chat
_COVERED = 0.6  # the share of an answer's tokens that the line has which it is from
_NOWHERE = (0, 1)  # the first token of every prompt is the same
_SESSION, _QUESTION, _AGAIN = (f"[[ ## {name} ## ]]" for name in ("session", "question", "question_again"))


@dataclass(frozen=True, slots=True)
class Example:
    """An exchange in tokens; the reply begins at ``reply_start``.

    ``evidence`` are the places at which those lines of the prompt begin that the reply is from; ``changes``
    pairs of places at which a turn begins, and the line that a call changes because of it.
    """

    tokens: tuple[int, ...]
    reply_start: int
    evidence: tuple[int, ...] = ()
    changes: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Marks:
    """Tokens by what they mean for the lines of a prompt.

    ``is_break`` says of each token whether lines end with it: fixed texts, and the line break. ``sessions``,
    ``questions`` and ``again`` are the fixed texts before a session, before a question, and before it is
    asked once more; ``not_mentioned`` is the answer of who abstains.
    """

    is_break: NDArray[np.bool_]
    sessions: frozenset[int]
    questions: frozenset[int]
    again: frozenset[int]
    comma: int
    colon: int
    not_mentioned: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerFast) -> "Marks":
        """Find them in a tokenizer."""
        fixed: dict[str, int] = tokenizer.get_added_vocab()
        is_break = np.zeros(len(tokenizer), np.bool_)
        is_break[list(fixed.values())] = True
        is_break[tokenizer.backend_tokenizer.encode("\n").ids] = True
        sessions, questions, again = (
            frozenset(number for text, number in fixed.items() if text.rstrip().endswith(header))
            for header in (_SESSION, _QUESTION, _AGAIN)
        )
        assert sessions, "the prompts of writers show a session"
        assert questions, "the prompts of readers show a question"
        assert again, "the prompts of readers show a question twice"
        ((comma,), (colon,)) = (tokenizer.backend_tokenizer.encode(mark).ids for mark in ",:")
        not_mentioned = tokenizer.backend_tokenizer.encode(NOT_MENTIONED).ids
        return cls(is_break, sessions, questions, again, comma, colon, tuple(not_mentioned))


_Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Questions:
    """What an example is asked on the side; arrays of which each row begins with the place that is asked.

    ``lines`` has the shape (asked, 5): the first three tokens of the line of the place, and one token drawn
    from those up to it. Before a piece of the reply only a token of that piece is asked for. What is not
    asked is ``UNASKED``.

    ``pointers`` has the shape (pieces, 3): a place before a piece of the reply, and the places from which on
    and up to which the line goes that the piece is from; or the last token of a turn, and the line that is
    changed because of it.

    ``words`` has the shape (words, 3): of each token that a reader remembers, whether the question has it,
    and whether the answer takes it; of each that a writer is told, whether the memories have it, and whether
    a call takes it. ``matches`` has the shape (lines, 2): of the last token of each memory or turn, whether
    the reply is from it. ``answers`` has the shape (lines, 4): of the last token of each memory that the
    answer is from, the first three tokens of what it takes, and of each turn that changes something, those of
    the line that is changed.
    """

    lines: _Numbers
    pointers: _Numbers
    words: _Numbers
    matches: _Numbers
    answers: _Numbers

    @property
    def arrays(self) -> tuple[_Numbers, ...]:
        """All of them, in order."""
        return self.lines, self.pointers, self.words, self.matches, self.answers

    def moved(self, by: int) -> "Questions":
        """Count places from an earlier one on."""
        pointers = self.pointers + by
        lines, words, matches, answers = (
            array + by * (np.arange(array.shape[1]) == 0)
            for array in (self.lines, self.words, self.matches, self.answers)
        )
        return Questions(lines, pointers, words, matches, answers)

    @classmethod
    def joined(cls, parts: Sequence["Questions"]) -> "Questions":
        """Ask all of some examples."""
        return cls(*(np.concatenate(arrays) for arrays in zip(*(part.arrays for part in parts), strict=True)))


_Run = tuple[int, int]  # from a place up to another


def questions_about(example: Example, marks: Marks, draws: np.random.Generator) -> Questions:
    """Ask about an example."""
    tokens = np.array(example.tokens, np.int64)
    ends = marks.is_break[tokens]
    pieces = _runs(ends, example.reply_start, len(tokens))
    lines = _runs(ends, 0, example.reply_start)
    line_at = {line[0]: line for line in lines}
    changes = [(line_at[turn], line_at[changed]) for turn, changed in example.changes]
    pointers = [
        *_pointers(example, tokens, lines, pieces, marks),
        *((line[1] - 1, *other) for line, other in changes),
    ]
    return Questions(
        _about_lines(tokens, ends, example.reply_start, pieces, draws),
        np.array(pointers, np.int64).reshape(-1, 3),
        *_about_told(example, tokens, lines, pieces, changes, marks, draws),
    )


def _about_lines(
    tokens: _Numbers,
    ends: NDArray[np.bool_],
    reply_start: int,
    pieces: Sequence[_Run],
    draws: np.random.Generator,
) -> _Numbers:
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
    begun = [tokens[starts[about] + number] for number in range(BEGINNING)]
    lines = np.stack([asked, *begun, tokens[drawn]], axis=1)
    ahead = np.full((len(pieces), BEGINNING + 2), UNASKED)
    for row, (first, end) in enumerate(pieces):
        ahead[row, 0], ahead[row, -1] = first - 1, tokens[draws.integers(first, end)]
    return np.concatenate([lines, ahead])


# -- what a reader remembers, and what a writer is told ----------------------------------------------


def _about_told(
    example: Example,
    tokens: _Numbers,
    lines: Sequence[_Run],
    pieces: Sequence[_Run],
    changes: Sequence[tuple[_Run, _Run]],
    marks: Marks,
    draws: np.random.Generator,
) -> tuple[_Numbers, _Numbers, _Numbers]:
    words: list[_Numbers] = [np.empty((0, 3), np.int64)]
    matches: list[tuple[int, bool]] = []
    answers = [(line[1] - 1, *_begun(tokens, *other)) for line, other in changes]
    before, told = _told(tokens[: example.reply_start], lines, marks)
    known = _tokens_of(tokens, before)
    is_writer = bool(np.isin(tokens, list(marks.sessions)).any())
    written = _tokens_of(tokens, pieces)
    parts = [part for piece in pieces for part in _parts(tokens, *piece, marks.comma)]
    for first, end in told:
        if is_writer and first not in example.evidence and draws.random() >= _OTHERS:
            continue
        is_taken = np.zeros(end - first, np.int64)
        if first in example.evidence and is_writer:
            is_taken = np.isin(tokens[first:end], written).astype(np.int64)
        elif first in example.evidence:
            for start, stop in parts:
                found = _taken(tokens[first:end], tokens[start:stop])
                if found:
                    is_taken[slice(*found)] = 1
                    answers.append((end - 1, *_begun(tokens, start, stop)))
                    break
        matches.append((end - 1, first in example.evidence))
        places, is_known = np.arange(first, end), np.isin(tokens[first:end], known)
        words.append(np.stack([places, is_known.astype(np.int64), is_taken], axis=1))
    return (
        np.concatenate(words),
        np.array(matches, np.int64).reshape(-1, 2),
        np.array(answers, np.int64).reshape(-1, 1 + BEGINNING),
    )


def _told(prompt: _Numbers, lines: Sequence[_Run], marks: Marks) -> tuple[list[_Run], list[_Run]]:
    """Find the lines that are asked about, and those that stand before them.

    Of a reader they are the lines after the question and before it is asked again, and before them stands the
    question; of a writer they are the turns, and before them stand profile, memories and date.
    """
    sessions, asked, again = (
        np.flatnonzero(np.isin(prompt, list(numbers)))
        for numbers in (marks.sessions, marks.questions, marks.again)
    )
    if len(sessions):
        return [ln for ln in lines if ln[0] < sessions[-1]], [ln for ln in lines if ln[0] > sessions[-1]]
    if not len(asked) or not len(again):
        return [], []
    question, *others = (line for line in lines if line[0] > asked[-1])
    return [question], [line for line in others if line[0] < again[-1]]


def _begun(tokens: _Numbers, first: int, end: int) -> list[int]:
    """Give the first tokens of a stretch, and ``UNASKED`` where it is shorter."""
    return [*tokens[first : min(end, first + BEGINNING)].tolist(), *(UNASKED,) * BEGINNING][:BEGINNING]


def _tokens_of(tokens: _Numbers, runs: Sequence[_Run]) -> _Numbers:
    return np.concatenate([tokens[:0], *(tokens[slice(*run)] for run in runs)])


def _taken(line: _Numbers, part: _Numbers) -> _Run | None:
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
    if length < _COVERED * len(part):
        return None
    return max(0, at - begun), at + length


# -- where a reply is from ---------------------------------------------------------------------------


def _runs(ends: NDArray[np.bool_], first: int, last: int) -> list[_Run]:
    """List the stretches between two places that no break interrupts."""
    edges = np.flatnonzero(np.diff(np.concatenate(([True], ends[first:last], [True])).astype(np.int8)))
    return [(first + int(start), first + int(end)) for start, end in edges.reshape(-1, 2)]


def _pointers(
    example: Example, tokens: _Numbers, lines: Sequence[_Run], pieces: Sequence[_Run], marks: Marks
) -> Iterator[tuple[int, int, int]]:
    """Say which line each piece of a reply is from, from before the piece and from one token earlier.

    It is the line that a piece of a writer quotes, or the one that it shares the rarest tokens with, of those
    that an answer is from; where nothing is left to say, it is ``_NOWHERE``.
    """
    reply_start = example.reply_start
    sessions = np.flatnonzero(np.isin(tokens[:reply_start], list(marks.sessions)))
    is_writer = len(sessions) > 0
    if not is_writer and tuple(tokens[reply_start + 1 :][: len(marks.not_mentioned)]) == marks.not_mentioned:
        yield reply_start, *_NOWHERE
    elif pieces:
        yield pieces[-1][1] - 1, *_NOWHERE
        parts = pieces if is_writer else [p for piece in pieces for p in _parts(tokens, *piece, marks.comma)]
        told = [
            line for line in lines if (line[0] > sessions[-1] if is_writer else line[0] in example.evidence)
        ]
        context = [] if is_writer or not lines else tokens[slice(*lines[-1])].tolist()
        quotable = marks.colon if is_writer else None
        for place, line in _sources(tokens, parts, lines, told, context, quotable):
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
    colon: int | None,
) -> Iterator[tuple[int, _Run]]:
    """Say of which line each part is; with a colon, which lines a part may quote, whole or up to it."""
    held = {line: frozenset(tokens[slice(*line)].tolist()) for line in lines}
    counts = Counter(token for line in lines for token in held[line])
    worth = {token: math.log(1 + len(lines) / count) for token, count in counts.items()}
    context = frozenset(question)
    for first, end in parts:
        said = frozenset(tokens[first:end].tolist())
        if colon is None:
            quoted, candidates = [], [ln for ln in told if len(held[ln] & said) >= _COVERED * len(said)]
        else:
            quoted, candidates = [ln for ln in lines if _is_quoted(tokens, ln, (first, end), colon)], told
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
        if colon is not None:
            context = said  # the day of an event is said where the event is


def _is_quoted(tokens: _Numbers, line: _Run, part: _Run, colon: int) -> bool:
    """Whether a part is a line, or what stands before its colon: m1 is no quotation of ``m12: ...``."""
    after = line[0] + part[1] - part[0]
    is_begun = bool((tokens[line[0] : after] == tokens[slice(*part)]).all())
    return is_begun and (after == line[1] or tokens[after] == colon)


def _parts(tokens: NDArray[np.int64], first: int, end: int, comma: int) -> Iterator[_Run]:
    """Cut a list at its commas."""
    cuts = (first + np.flatnonzero(tokens[first:end] == comma)).tolist()
    for before, after in pairwise([first - 1, *cuts, end]):
        if before + 1 < after:
            yield before + 1, after
