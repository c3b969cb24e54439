"""Passages of long turns: a few sentences, so that a search finds the part that is about a question."""

import re
from collections.abc import Iterator

import regex

from locomo.unspaced_scripts import UNSPACED_RUN

PASSAGE_WORDS = 120
"""A passage has at most this many words. Turns of up to half as many again stay whole: all of LoCoMo's."""

_WHOLE_WORDS = 1.5 * PASSAGE_WORDS
_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])|\n+")
_CLAUSE_MARKS = r"\s,;，、；：၊။។៕"
_CLAUSE = re.compile(rf"[^{_CLAUSE_MARKS}]+[{_CLAUSE_MARKS}]*|[{_CLAUSE_MARKS}]+")
_CHARACTER = regex.compile(r"\X")  # a letter with its marks


def split_passages(text: str) -> list[str]:
    """Split a long text after sentences and lines; a shorter one stays as it is.

    A sentence that is longer than a passage is cut between words; one of a script without spaces between
    words is cut after clauses and spaces, or else between characters.

    Example:
        >>> [len(part.split()) for part in split_passages("So it was a day. " * 60)]
        [120, 120, 60]
        >>> split_passages("Short. Whole.")
        ['Short. Whole.']
    """
    if count_words(text) <= _WHOLE_WORDS:
        return [text]
    passages, current, length = list[str](), list[str](), 0
    for sentence in _SENTENCE_END.split(text):
        for piece in _pieces(sentence):
            words = count_words(piece)
            if current and length + words > PASSAGE_WORDS:
                passages.append(" ".join(current))
                current, length = [], 0
            current.append(piece)
            length += words
    return [*passages, " ".join(current)] if current else passages


def whole_sentences(text: str) -> str:
    """Return a text up to the last end of a sentence that something follows; '' if there is none.

    Example:
        >>> whole_sentences("Pip is a dog. Pip is three ye")
        'Pip is a dog.'
    """
    ends = [end.start() for end in _SENTENCE_END.finditer(text)]
    return text[: ends[-1]] if ends else ""


def count_words(text: str) -> int:
    """Count the words of a text; two characters of a script without spaces count as a word."""
    return len(text.split()) + _count_unspaced(text) // 2


def _pieces(sentence: str) -> Iterator[str]:
    """Cut a sentence into pieces that fit into a passage."""
    said = sentence.split()
    for start in range(0, len(said), PASSAGE_WORDS):
        piece = " ".join(said[start : start + PASSAGE_WORDS])
        if count_words(piece) <= _WHOLE_WORDS:
            yield piece
            continue
        # text with few spaces is cut after clauses and spaces; a clause that is too long, between characters
        current, length = list[str](), 0.0
        for clause in _CLAUSE.findall(piece):
            is_long = count_words(clause) > PASSAGE_WORDS
            for part in _CHARACTER.findall(clause) if is_long else [clause]:
                words = part.count(" ") + _count_unspaced(part) / 2
                if current and length + words > PASSAGE_WORDS - 1:
                    yield "".join(current).strip()
                    current, length = [], 0.0
                current.append(part)
                length += words
        yield "".join(current).strip()


def _count_unspaced(text: str) -> int:
    return 0 if text.isascii() else sum(map(len, UNSPACED_RUN.findall(text)))
