"""Passages of long turns: a few sentences, so that a search finds the part that is about a question."""

import re

from locomo.unspaced_scripts import UNSPACED_RUN

PASSAGE_WORDS = 120
"""A passage has at most this many words. Turns of up to half as many again stay whole: all of LoCoMo's."""

_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])|\n+")


def split_passages(text: str) -> list[str]:
    """Split a long text after sentences and lines; a shorter one stays as it is.

    A sentence that is longer than a passage is cut between words.

    Example:
        >>> [len(part.split()) for part in split_passages("So it was a day. " * 60)]
        [120, 120, 60]
        >>> split_passages("Short. Whole.")
        ['Short. Whole.']
    """
    if count_words(text) <= 1.5 * PASSAGE_WORDS:
        return [text]
    passages, current, length = list[str](), list[str](), 0
    for sentence in _SENTENCE_END.split(text):
        said = sentence.split()
        for start in range(0, len(said), PASSAGE_WORDS):
            piece = " ".join(said[start : start + PASSAGE_WORDS])
            words = count_words(piece)
            if current and length + words > PASSAGE_WORDS:
                passages.append(" ".join(current))
                current, length = [], 0
            current.append(piece)
            length += words
    return [*passages, " ".join(current)] if current else passages


def count_words(text: str) -> int:
    """Count the words of a text; two characters of a script without spaces count as a word."""
    unspaced = 0 if text.isascii() else sum(map(len, UNSPACED_RUN.findall(text)))
    return len(text.split()) + unspaced // 2
