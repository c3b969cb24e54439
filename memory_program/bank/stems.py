"""The words by which texts are found, reduced to their stems as bm25s does."""

import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache

import regex
from Stemmer import Stemmer

_WORD = re.compile(r"\w\w+")
_MARKED_WORD = regex.compile(r"[\w--\p{M}]\w+", regex.V1)  # as scripts of India need, whose vowels are marks

STOP_WORDS = (
    *("a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no"),
    *("not", "of", "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this"),
    *("to", "was", "will", "with"),
)
"""English words that nothing is found by: those of Lucene and bm25s. Importing them from the latter would
start JAX where it is installed, which takes three quarters of a GPU's memory."""

_STOP_WORDS = frozenset(STOP_WORDS)


class _ThreadStemmer(threading.local):
    """PyStemmer's stemmers keep state in a call: each thread has its own."""

    def __init__(self) -> None:
        self.stem = Stemmer("english").stemWord


_stemmer = _ThreadStemmer()


def tokenize(text: str) -> list[str]:
    """Split a text into stems as bm25s does: words of two characters or more, no stop words, Snowball.

    Deviation: letters and their marks are composed first, and marks that stay are parts of words.
    """
    return stem_words(word for word in _split_words(text) if word not in _STOP_WORDS)


def _split_words(text: str) -> list[str]:
    if text.isascii():
        return _WORD.findall(text.lower())
    return _MARKED_WORD.findall(normalize_nfc(text).lower())


def normalize_nfc(text: str) -> str:
    """Write a letter and its marks as one character, where there is one."""
    return unicodedata.normalize("NFC", text)


def stem_words(words: Iterable[str]) -> list[str]:
    """Reduce lower-case words to their stems."""
    return list(map(_stem, words))


@lru_cache(maxsize=512)  # every agent looks for its session's text, and a memory is looked for, then indexed
def stem_counts(text: str) -> Mapping[str, int]:
    """Count the stems of a text; what is given is shared, and not to be changed."""
    return Counter(tokenize(text))


@lru_cache(maxsize=2**16)  # a stemmer remembers words too, but no longer than its thread lives
def _stem(word: str) -> str:
    return _stemmer.stem(word)
