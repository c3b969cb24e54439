"""Turns split into words and sentences, and their spans that could be an answer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from locomo.types import Turn
from memory_program.agents.spans.word_classes import (
    FIRST_PERSON,
    SECOND_PERSON,
    WORD,
    WordClass,
    normalize_word,
    word_class,
)
from memory_program.bank.archive import ScoredTurn
from memory_program.bank.stems import stem_words, tokenize

MAX_SPAN_WORDS = 9
_PREFIX_CHARS = 5
_MAX_TURN_CHARS = 4_000  # answers are short, and a turn may hold megabytes

_SENTENCE_END = re.compile(r"[.!?\n…。！？]|--|\s[–—-]\s|[\U0001F300-\U0001FAFF]")
_QUOTE_MARKS = frozenset('"“”')
_CLOSING_QUOTE = re.compile(r'[.,!?]?["“”]')
_MARK = re.compile(r'[,;:()"“”，、；：「」]')
_CAPTION_OPENING = re.compile(r"(?:an? )?(?:photo\w*|picture|image|screenshot|close up)s? of ", re.IGNORECASE)
_NEVER_FIRST = frozenset(
    WORD.findall("a an the and or but of so because if that which my your our its i is was are were am be to")
) | {"i'm", "it's"}
_NEVER_LAST = frozenset(
    WORD.findall(
        "a an the and or but of to in on at for with from by about into my your his her its our their is was "
        "are were am be been i we he she they so because if that which as than this these those very really "
        "have has had do does did will would can could just"
    )
) | {"i'm", "it's", "i've"}


class WordColumn(IntEnum):
    """The features of each word, as rows of ``Passage.columns``."""

    CLASS = 0
    CLASS_BEFORE = 1
    CLASS_AFTER = 2
    SENTENCE = 3
    SENTENCE_START = 4  # the index of the first word of the sentence
    AFTER_MARK = 5
    IN_CAPTION = 6
    FIRST_PERSON = 7  # the sentence has "I" or the like
    SECOND_PERSON = 8  # the sentence has "you" or the like
    OPENS_QUOTE = 9
    CLOSES_QUOTE = 10


@dataclass(frozen=True, eq=False)
class Passage:
    """The words of a turn, followed by those of its image's caption.

    ``columns`` has the shape (columns, words). ``spans`` has the shape (2, spans): span k has the words from
    ``spans[0, k]`` to ``spans[1, k]`` (exclusive). A span has at most nine words of one sentence, and does
    not begin or end with a word with which answers never do.
    """

    stems: tuple[str, ...]
    columns: NDArray[np.int32]
    spans: NDArray[np.int32]
    texts: tuple[str, str]
    char_offsets: tuple[tuple[int, int], ...]
    """The position of each word in its text: ``texts[0]`` is the utterance, ``texts[1]`` the caption."""
    vocabulary: frozenset[str]
    sentences: tuple[frozenset[str], ...]
    """The stems of each sentence."""
    bigrams: frozenset[tuple[str, str]]
    """Pairs of neighbouring stems."""
    image_stems: frozenset[str]
    """The stems of the caption and of the image's search query."""
    is_question: bool
    """True if the turn ends with a question mark."""

    @cached_property
    def stem_prefixes(self) -> frozenset[str]:
        """The result of ``stem_prefixes`` for the whole vocabulary."""
        return stem_prefixes(self.vocabulary)

    def text(self, start: int, end: int) -> str:
        """Return the words from ``start`` to ``end`` (exclusive) as they were written."""
        text = self.texts[self.columns[WordColumn.IN_CAPTION, start]]
        return " ".join(text[self.char_offsets[start][0] : self.char_offsets[end - 1][1]].split())


def stem_prefixes(stems: frozenset[str]) -> frozenset[str]:
    """Return the first five characters of each stem, to match inflections that the stemmer misses."""
    return frozenset(stem[:_PREFIX_CHARS] for stem in stems)


@lru_cache(maxsize=2048)
def parse_turn(turn: Turn) -> Passage:
    """Split a turn into words; only the first 4,000 characters of each text are used."""
    caption = _CAPTION_OPENING.sub("", turn.caption or "", count=1)
    texts = (turn.text[:_MAX_TURN_CHARS], caption[:_MAX_TURN_CHARS])
    matches = [[*WORD.finditer(text)] for text in texts]
    plain_words = [normalize_word(match[0]) for match in chain(*matches)]
    stems = stem_words([word.removesuffix("'s") for word in plain_words])
    rows = _rows(texts[0], matches[0], 0, in_caption=False)
    rows += _rows(texts[1], matches[1], len(rows), in_caption=True)
    bounds = [*sorted({row[WordColumn.SENTENCE_START] for row in rows}), len(rows)]
    may_end = [word not in _NEVER_LAST for word in plain_words]
    spans: list[tuple[int, int]] = []
    for sentence, (start, end) in enumerate(pairwise(bounds)):
        is_first_person = not FIRST_PERSON.isdisjoint(plain_words[start:end])
        is_second_person = not SECOND_PERSON.isdisjoint(plain_words[start:end])
        for row in rows[start:end]:
            row[WordColumn.SENTENCE] = sentence
            row[WordColumn.FIRST_PERSON] = is_first_person
            row[WordColumn.SECOND_PERSON] = is_second_person
        for before, row in pairwise(rows[start:end]):  # EDGE, which is 0, remains at both ends
            has_mark = row[WordColumn.AFTER_MARK]
            row[WordColumn.CLASS_BEFORE] = WordClass.MARK if has_mark else before[WordColumn.CLASS]
            before[WordColumn.CLASS_AFTER] = WordClass.MARK if has_mark else row[WordColumn.CLASS]
        for first in range(start, end):
            if plain_words[first] not in _NEVER_FIRST:
                ends = range(first + 1, min(end, first + MAX_SPAN_WORDS) + 1)
                spans += [(first, stop) for stop in ends if may_end[stop - 1]]
    return Passage(
        stems=tuple(stems),
        columns=np.array(rows, dtype=np.int32).reshape(-1, len(WordColumn)).T,
        spans=np.array(spans, dtype=np.int32).reshape(-1, 2).T,
        texts=texts,
        char_offsets=tuple(match.span() for match in chain(*matches)),
        vocabulary=frozenset(stems),
        sentences=tuple(frozenset(stems[start:end]) for start, end in pairwise(bounds)),
        bigrams=frozenset(pairwise(stems)),
        image_stems=frozenset(tokenize(f"{turn.caption or ''} {turn.image_query or ''}")),
        is_question=turn.text.rstrip().endswith("?"),
    )


def _rows(text: str, words: Sequence[re.Match[str]], first: int, *, in_caption: bool) -> list[list[int]]:
    """Make the row of each word from its neighbours in the text; ``first`` is the first word's index."""
    rows: list[list[int]] = []
    ends = [0, *(word.end() for word in words)]
    sentence_start = first
    for place, word in enumerate(words):
        gap = text[ends[place] : word.start()]
        row = [0] * len(WordColumn)
        if gap != " " or place == 0:  # nearly all gaps are a space
            if place == 0 or _SENTENCE_END.search(gap):
                sentence_start = first + place
            elif _MARK.search(gap):
                row[WordColumn.AFTER_MARK] = 1
            row[WordColumn.OPENS_QUOTE] = gap[-1:] in _QUOTE_MARKS
        row[WordColumn.CLOSES_QUOTE] = _CLOSING_QUOTE.match(text, word.end()) is not None
        row[WordColumn.SENTENCE_START] = sentence_start
        row[WordColumn.CLASS] = word_class(word[0], sentence_start == first + place)
        row[WordColumn.IN_CAPTION] = in_caption
        rows.append(row)
    return rows


@dataclass(frozen=True, slots=True, eq=False)
class Excerpts:
    """The passages of several turns, concatenated; indices count through all of them."""

    hits: tuple[ScoredTurn, ...]
    passages: tuple[Passage, ...]
    stems: tuple[str, ...]
    columns: NDArray[np.int32]
    spans: NDArray[np.int32]
    offsets: NDArray[np.intp]
    """The index of each passage's first word, and the number of all words at the end."""
    span_hits: NDArray[np.intp]
    """The index of the hit of each span."""

    def text(self, span: int) -> str:
        """Return the words of a span as they were written."""
        hit = self.span_hits[span]
        start, end = (int(index - self.offsets[hit]) for index in self.spans[:, span])
        return self.passages[hit].text(start, end)


def join_passages(hits: Sequence[ScoredTurn]) -> Excerpts:
    """Split the retrieved turns into words, and concatenate them."""
    passages = tuple(parse_turn(hit.excerpt) for hit in hits)
    offsets = np.cumsum([0, *(len(passage.stems) for passage in passages)], dtype=np.intp)
    span_counts = [passage.spans.shape[1] for passage in passages]
    columns = np.concatenate(
        [np.zeros((len(WordColumn), 0), np.int32), *(p.columns for p in passages)], axis=1
    )
    shifts = np.repeat(offsets[:-1], np.diff(offsets))
    columns[WordColumn.SENTENCE_START] += shifts
    columns[WordColumn.SENTENCE] = np.cumsum(columns[WordColumn.SENTENCE_START] == np.arange(len(shifts))) - 1
    spans = np.concatenate([np.zeros((2, 0), np.int32), *(p.spans for p in passages)], axis=1)
    return Excerpts(
        hits=tuple(hits),
        passages=passages,
        stems=tuple(stem for passage in passages for stem in passage.stems),
        columns=columns,
        spans=spans + np.repeat(offsets[:-1], span_counts).astype(np.int32),
        offsets=offsets,
        span_hits=np.repeat(np.arange(len(hits)), span_counts),
    )
