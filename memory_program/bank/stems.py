"""The words by which texts are found, reduced to their stems as bm25s does."""

import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache

from bm25s.stopwords import STOPWORDS_EN
from Stemmer import Stemmer

_WORD = re.compile(r"\w\w+")
_STOP_WORDS = frozenset(STOPWORDS_EN)


class _ThreadStemmer(threading.local):
    """PyStemmer's stemmers keep state in a call: each thread has its own."""

    def __init__(self) -> None:
        self.stem = Stemmer("english").stemWord


_stemmer = _ThreadStemmer()


def tokenize(text: str) -> list[str]:
    """Split a text into stems as bm25s does: words of two characters or more, no stop words, Snowball."""
    return stem_words(word for word in _WORD.findall(text.lower()) if word not in _STOP_WORDS)


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
