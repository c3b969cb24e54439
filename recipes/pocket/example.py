"""An exchange in tokens, and its parts: the lines of a prompt, the pieces of a reply."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from memory_program.agents.signatures import NOT_MENTIONED

IntArray = NDArray[np.int64]

TokenSpan = tuple[int, int]
"""A stretch of tokens: from a place up to another."""

_SESSION, _QUESTION, _AGAIN = (f"[[ ## {name} ## ]]" for name in ("session", "question", "question_again"))


@dataclass(frozen=True, slots=True)
class PretrainExample:
    """An exchange in tokens; the reply begins at ``reply_start``.

    ``evidence`` are the places at which those lines of the prompt begin that the reply is from; ``changes``
    pairs of places at which a turn begins, and the line that a call changes because of it.
    """

    tokens: tuple[int, ...]
    reply_start: int
    evidence: tuple[int, ...] = ()
    changes: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class MarkerTokens:
    """Tokens by what they mean for the lines of a prompt.

    ``is_break`` says of each token whether lines end with it: fixed texts, and the line break. ``sessions``,
    ``questions`` and ``repeated_questions`` are the fixed texts before a session, before a question, and before it is
    asked once more; ``before_id`` is how the id at the end of a memory begins, ``not_mentioned`` the answer
    of who abstains.
    """

    is_break: NDArray[np.bool_]
    sessions: frozenset[int]
    questions: frozenset[int]
    repeated_questions: frozenset[int]
    comma: int
    before_id: tuple[int, ...]
    not_mentioned: tuple[int, ...]

    @classmethod
    def from_tokenizer(cls, tokenizer: PreTrainedTokenizerFast) -> "MarkerTokens":
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
        (comma,), before_id, not_mentioned = (
            tuple(tokenizer.backend_tokenizer.encode(text).ids) for text in (",", " [m", NOT_MENTIONED)
        )
        return cls(is_break, sessions, questions, again, comma, before_id, not_mentioned)

    def find_line_name(self, tokens: IntArray, line: TokenSpan) -> TokenSpan:
        """Find by what a call names a line: a memory's id, in brackets at its end; or all of it."""
        first, end = line
        said = tokens[first:end].tolist()
        for at in range(len(said) - 1, -1, -1):
            if tuple(said[at : at + len(self.before_id)]) == self.before_id:
                return first + at + 1, end - 1
        return line


@dataclass(frozen=True, slots=True)
class ParsedExample:
    """An example taken apart.

    ``lines`` are those of the prompt, ``pieces`` what stands in the reply between its fixed texts. ``content_lines``
    are the lines that it is all about: of a reader those after the question and before it is asked again, of
    a writer the turns. ``context_lines`` stand before them: the question; profile, memories and date.
    """

    tokens: IntArray
    is_break: NDArray[np.bool_]
    reply_start: int
    is_writer: bool
    lines: Sequence[TokenSpan]
    pieces: Sequence[TokenSpan]
    context_lines: Sequence[TokenSpan]
    content_lines: Sequence[TokenSpan]

    @classmethod
    def parse(cls, example: PretrainExample, marks: MarkerTokens) -> "ParsedExample":
        """Take an example apart."""
        tokens = np.array(example.tokens, np.int64)
        is_break = marks.is_break[tokens]
        lines = _unbroken_spans(is_break, 0, example.reply_start)
        pieces = _unbroken_spans(is_break, example.reply_start, len(tokens))
        sessions, asked, again = (
            np.flatnonzero(np.isin(tokens[: example.reply_start], list(numbers)))
            for numbers in (marks.sessions, marks.questions, marks.repeated_questions)
        )
        known, told = list[TokenSpan](), list[TokenSpan]()
        if len(sessions):
            known = [line for line in lines if line[0] < sessions[-1]]
            told = [line for line in lines if line[0] > sessions[-1]]
        elif len(asked) and len(again):
            question, *others = (line for line in lines if line[0] > asked[-1])
            known, told = [question], [line for line in others if line[0] < again[-1]]
        return cls(tokens, is_break, example.reply_start, len(sessions) > 0, lines, pieces, known, told)

    def gather_tokens(self, runs: Sequence[TokenSpan]) -> IntArray:
        """Give the tokens of some stretches, one after the other."""
        return np.concatenate([self.tokens[:0], *(self.tokens[slice(*run)] for run in runs)])

    def split_list_items(self, comma: int) -> list[TokenSpan]:
        """List the pieces of the reply, cut at their commas."""
        return [part for piece in self.pieces for part in _split_at_commas(self.tokens, *piece, comma)]


def _unbroken_spans(ends: NDArray[np.bool_], first: int, last: int) -> list[TokenSpan]:
    """List the stretches between two places that no break interrupts."""
    edges = np.flatnonzero(np.diff(np.concatenate(([True], ends[first:last], [True])).astype(np.int8)))
    return [(first + int(start), first + int(end)) for start, end in edges.reshape(-1, 2)]


def _split_at_commas(tokens: IntArray, first: int, end: int, comma: int) -> Iterator[TokenSpan]:
    """Cut a list at its commas."""
    cuts = (first + np.flatnonzero(tokens[first:end] == comma)).tolist()
    for before, after in pairwise([first - 1, *cuts, end]):
        if before + 1 < after:
            yield before + 1, after
