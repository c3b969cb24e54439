"""Tokens of the lexical index: words without stop words, without accents, stemmed by Snowball."""

import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

import regex
from Stemmer import Stemmer

from locomo.unspaced_scripts import UNSPACED_RUN, is_syllable, split_characters

# C++, C#, A+; then longer words; then single characters, but not those of "it's", "don't" and "I'm"
_WORD = re.compile(r"[a-z](?:\+\+|[+#](?!\w))|\w\w+|(?<!\w')[^\W_]")
_MARKED_WORD = regex.compile(  # the vowels of the scripts of India are marks
    r"[a-z](?:\+\+|[+#](?!\w))|[\w--\p{M}]\w+|(?<!\w['’])[\w--[\p{M}_]]", regex.V1
)
_LETTER_NAME = re.compile(r"(?<=[a-z\d] )[AST](?![\w'’+#])")
"""A letter that is a name: vitamin A, Model S. In lower case, these three are a stop word and endings."""

_CAPITALIZED = re.compile(r"(?<=[\w,] )[A-Z]\w*")
"""A word with a capital letter inside a sentence: "Does Will know?", but not "Will it rain?"."""

_ACCENT = regex.compile(r"[\p{M}&&\p{Inherited}--[\u3099\u309a]]", regex.V1)  # those two make other Kana
_PLAIN_LETTERS = str.maketrans(
    {"ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe", "ħ": "h", "ı": "i", "ŧ": "t"}
)

STOP_WORDS = (
    *("a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no"),
    *("not", "of", "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this"),
    *("to", "was", "will", "with"),
)
"""English words that are not indexed: those of Lucene and bm25s. Importing them from bm25s would start JAX
where it is installed, which takes three quarters of a GPU's memory."""


_STOP_WORDS = frozenset(STOP_WORDS) | {"i", "s", "t"}


class _ThreadStemmer(threading.local):
    """One stemmer for each thread: PyStemmer's are not thread-safe."""

    def __init__(self) -> None:
        self.stem = Stemmer("english").stemWord


_stemmer = _ThreadStemmer()


def tokenize(text: str, left_out: Collection[str] = ()) -> list[str]:
    """Split a text into stems, without stop words and without the words (in lower case) that are left out.

    Text without spaces between words (``locomo.unspaced_scripts``) gives pairs of neighbouring characters,
    and the characters that are syllables or stand alone: Nie et al. 2000, IRAL, "On the use of words and
    n-grams for Chinese information retrieval", found both together to be as good as words.

    Example:
        >>> tokenize("Zoë's notes on C++")
        ['zoe', 'note', 'c++']
        >>> tokenize("橘猫")
        ['橘', '猫', '橘猫']
    """
    letters = [one for found in _LETTER_NAME.findall(text) if (one := found.lower()) not in left_out]
    if text.isascii():
        words = _WORD.findall(text.lower())
        return [_stem(w) for w in words if w not in _STOP_WORDS and w not in left_out] + letters
    stems = letters
    for word in split_words(text):
        if UNSPACED_RUN.match(word):
            characters = split_characters(word)
            stems += [one for one in characters if len(characters) == 1 or is_syllable(one)]
            stems += [one + other for one, other in pairwise(characters)]
        elif word not in _STOP_WORDS and word not in left_out:
            stems.append(_stem(word))
    return stems


def split_words(text: str) -> list[str]:
    """Split a text into lower-case words; a run of a script without spaces is one."""
    if text.isascii():
        return _WORD.findall(text.lower())
    text = unicodedata.normalize("NFKC", text).lower()
    if UNSPACED_RUN.search(text) is None:
        return _MARKED_WORD.findall(text)
    words = list[str]()
    for place, part in enumerate(UNSPACED_RUN.split(text)):
        words += [part] if place % 2 else _MARKED_WORD.findall(part)
    return words


def fold_accents(word: str) -> str:
    """Write a lower-case word without accents, in the letters of English: ``łódź`` is ``lodz``."""
    if word.isascii():
        return word
    letters = unicodedata.normalize("NFKD", word.casefold())
    return unicodedata.normalize("NFC", _ACCENT.sub("", letters).translate(_PLAIN_LETTERS))


def find_named(text: str, names: Sequence[str]) -> list[str]:
    """List the names of which a text holds a word, with or without its accents.

    A name that is a stop word, such as Will or An, counts only with a capital letter inside a sentence.

    Example:
        >>> find_named("Does Zoe know 小林的猫?", ["Zoë Ek", "小林", "Ben"])
        ['Zoë Ek', '小林']
    """
    capitalized = {word.lower() for word in _CAPITALIZED.findall(text)}
    plain = [word for word in split_words(text) if word not in _STOP_WORDS or word in capitalized]
    words = [fold_accents(word) for word in plain]
    runs = " ".join(word for word in words if UNSPACED_RUN.match(word))
    found = list[str]()
    for name in names:
        parts = [fold_accents(word) for word in split_words(name)]
        if any(part in words or (UNSPACED_RUN.match(part) and part in runs) for part in parts):
            found.append(name)
    return found


def stem_words(words: Iterable[str]) -> list[str]:
    """Reduce lower-case words to their stems, without accents."""
    return list(map(_stem, words))


@lru_cache(maxsize=512)  # all agents search for the text of a session; a memory is searched, then indexed
def stem_counts(text: str) -> Mapping[str, int]:
    """Count the stems of a text; the result is cached and not to be changed."""
    return Counter(tokenize(text))


@lru_cache(maxsize=2**16)  # a stemmer has a cache, too, but only for its thread
def _stem(word: str) -> str:
    return _stemmer.stem(fold_accents(word))
