"""Tokens of the lexical index: words without stop words, stemmed as bm25s does."""

import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache

import regex
from Stemmer import Stemmer

_WORD = re.compile(r"\w\w+")
_MARKED_WORD = regex.compile(r"[\w--\p{M}]\w+", regex.V1)  # for the scripts of India, whose vowels are marks

STOP_WORDS = (
    *("a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no"),
    *("not", "of", "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this"),
    *("to", "was", "will", "with"),
)
"""English words that are not indexed: those of Lucene and bm25s. Importing them from bm25s would start JAX
where it is installed, which takes three quarters of a GPU's memory."""


_STOP_WORDS = frozenset(STOP_WORDS)


class _ThreadStemmer(threading.local):
    """One stemmer for each thread: PyStemmer's are not thread-safe."""

    def __init__(self) -> None:
        self.stem = Stemmer("english").stemWord


_stemmer = _ThreadStemmer()


def tokenize(text: str) -> list[str]:
    """Split a text into stems as bm25s does: words of two characters or more, no stop words, Snowball.

    Deviation: letters and their marks are composed first, and the remaining marks are parts of words.
    """
    is_ascii = text.isascii()
    words = _WORD.findall(text.lower()) if is_ascii else _MARKED_WORD.findall(normalize_nfc(text).lower())
    return stem_words(word for word in words if word not in _STOP_WORDS)


def normalize_nfc(text: str) -> str:
    """Compose each letter and its marks to one character, if Unicode has it."""
    return unicodedata.normalize("NFC", text)


def stem_words(words: Iterable[str]) -> list[str]:
    """Reduce lower-case words to their stems."""
    return list(map(_stem, words))


@lru_cache(maxsize=512)  # all agents search for the text of a session; a memory is searched, then indexed
def stem_counts(text: str) -> Mapping[str, int]:
    """Count the stems of a text; the result is cached and not to be changed."""
    return Counter(tokenize(text))


@lru_cache(maxsize=2**16)  # a stemmer has a cache, too, but only for its thread
def _stem(word: str) -> str:
    return _stemmer.stem(word)
