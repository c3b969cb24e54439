"""Training examples in tokens, taken apart into the lines of the prompt and the spans of the reply."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from memory_program.agents.signatures import NOT_MENTIONED

IntArray = NDArray[np.int64]

TokenSpan = tuple[int, int]
"""A span of tokens: the index of the first one, and the index after the last one."""


@dataclass(frozen=True, slots=True)
class PretrainExample:
    """A prompt and its reply in tokens; the reply begins at ``reply_start``.

    ``evidence`` holds the first tokens of the prompt's lines that the reply comes from. ``changes`` pairs the
    first token of a turn with the first token of the line that a call changes because of it.
    """

    tokens: tuple[int, ...]
    reply_start: int
    evidence: tuple[int, ...] = ()
    changes: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class MarkerTokens:
    """The tokens that give a prompt its structure.

    ``is_break`` marks the tokens that end a line: fixed texts and the line break. ``sessions``, ``questions``
    and ``repeated_questions`` are the fixed texts before a session, a question and its repetition.
    ``before_id`` are the tokens that the id at the end of a memory begins with, ``not_mentioned`` is the
    answer of a reader that abstains.
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
        """Look the tokens up in a tokenizer."""
        fixed: dict[str, int] = tokenizer.get_added_vocab()
        is_break = np.zeros(len(tokenizer), np.bool_)
        is_break[list(fixed.values())] = True
        is_break[tokenizer.backend_tokenizer.encode("\n").ids] = True
        sessions, questions, repeated = (
            frozenset(token for text, token in fixed.items() if text.rstrip().endswith(f"[[ ## {name} ## ]]"))
            for name in ("session", "question", "question_again")
        )
        assert sessions, "the prompts of writers show a session"
        assert questions, "the prompts of readers show a question"
        assert repeated, "the prompts of readers show a question twice"
        (comma,), before_id, not_mentioned = (
            tuple(tokenizer.backend_tokenizer.encode(text).ids) for text in (",", " [m", NOT_MENTIONED)
        )
        return cls(is_break, sessions, questions, repeated, comma, before_id, not_mentioned)

    def find_line_name(self, tokens: IntArray, line: TokenSpan) -> TokenSpan:
        """Find the part of a line that a call refers to: the id in brackets at its end, or the whole line."""
        first, end = line
        line_tokens = tokens[first:end].tolist()
        for at in range(len(line_tokens) - 1, -1, -1):
            if tuple(line_tokens[at : at + len(self.before_id)]) == self.before_id:
                return first + at + 1, end - 1
        return line


@dataclass(frozen=True, slots=True)
class ParsedExample:
    """An example taken apart.

    ``lines`` are those of the prompt, ``pieces`` the spans of the reply between its fixed texts.
    ``content_lines`` are what the reply is made from: the memories and excerpts of a reader (between the
    question and its repetition), the turns of a writer. ``context_lines`` come before them: the question of a
    reader; the profile, the memories and the date of a writer.
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
        sessions, questions, repeated = (
            np.flatnonzero(np.isin(tokens[: example.reply_start], list(markers)))
            for markers in (marks.sessions, marks.questions, marks.repeated_questions)
        )
        context, content = list[TokenSpan](), list[TokenSpan]()
        if len(sessions):
            context = [line for line in lines if line[0] < sessions[-1]]
            content = [line for line in lines if line[0] > sessions[-1]]
        elif len(questions) and len(repeated):
            question, *others = (line for line in lines if line[0] > questions[-1])
            context, content = [question], [line for line in others if line[0] < repeated[-1]]
        return cls(tokens, is_break, example.reply_start, len(sessions) > 0, lines, pieces, context, content)

    def gather_tokens(self, spans: Sequence[TokenSpan]) -> IntArray:
        """Give the tokens of some spans, one after the other."""
        return np.concatenate([self.tokens[:0], *(self.tokens[slice(*span)] for span in spans)])

    def split_list_items(self, comma: int) -> list[TokenSpan]:
        """Split the pieces of the reply at their commas."""
        items: list[TokenSpan] = []
        for first, end in self.pieces:
            commas = (first + np.flatnonzero(self.tokens[first:end] == comma)).tolist()
            items += [(a + 1, b) for a, b in pairwise([first - 1, *commas, end]) if a + 1 < b]
        return items


def _unbroken_spans(is_break: NDArray[np.bool_], first: int, end: int) -> list[TokenSpan]:
    """List the spans between two indices that no break interrupts."""
    edges = np.flatnonzero(np.diff(np.concatenate(([True], is_break[first:end], [True])).astype(np.int8)))
    return [(first + int(a), first + int(b)) for a, b in edges.reshape(-1, 2)]
