"""Turns cut into words and sentences, and the spans of them that could be an answer."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from locomo.types import Turn
from memory_program.agents.baselines.word_classes import (
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

_SENTENCE_END = re.compile(r"[.!?\n…]|--|\s[–—-]\s|[\U0001F300-\U0001FAFF]")
_QUOTE_MARKS = frozenset('"“”')
_CLOSING_QUOTE = re.compile(r'[.,!?]?["“”]')
_MARK = re.compile(r'[,;:()"“”]')
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
    """What is known of each word, as a row of ``Passage.columns``."""

    CLASS = 0
    CLASS_BEFORE = 1
    CLASS_AFTER = 2
    SENTENCE = 3
    SENTENCE_START = 4  # the index of the first word of the sentence
    AFTER_MARK = 5
    IN_CAPTION = 6
    FIRST_PERSON = 7  # the sentence speaks of the speaker
    SECOND_PERSON = 8  # the sentence speaks of the listener
    OPENS_QUOTE = 9
    CLOSES_QUOTE = 10


@dataclass(frozen=True, eq=False)
class Passage:
    """The words of a turn, and behind them those of its image's caption.

    ``columns`` has the shape (columns, words). ``spans`` has the shape (2, spans): span k is the words from
    ``spans[0, k]`` to ``spans[1, k]`` (exclusive); at most nine, of one sentence, and neither beginning nor
    ending with a word with which answers do not.
    """

    stems: tuple[str, ...]
    columns: NDArray[np.int32]
    spans: NDArray[np.int32]
    texts: tuple[str, str]
    char_offsets: tuple[tuple[int, int], ...]
    """Where each word stands in its text: ``texts[0]`` is what was said, ``texts[1]`` the caption."""
    vocabulary: frozenset[str]
    sentences: tuple[frozenset[str], ...]
    """The stems of each sentence."""
    bigrams: frozenset[tuple[str, str]]
    """Stems that stand next to each other."""
    image_stems: frozenset[str]
    """Those of the caption, and of the words that the image was looked for with."""
    is_question: bool
    """Whether the turn ends with a question."""

    @cached_property
    def stem_prefixes(self) -> frozenset[str]:
        """The first five characters of each stem."""
        return stem_prefixes(self.vocabulary)

    def text(self, start: int, end: int) -> str:
        """The words from ``start`` to ``end`` (exclusive), as they were written."""
        text = self.texts[self.columns[WordColumn.IN_CAPTION, start]]
        return " ".join(text[self.char_offsets[start][0] : self.char_offsets[end - 1][1]].split())


def stem_prefixes(stems: frozenset[str]) -> frozenset[str]:
    """The first five characters of each stem: what inflections that the stemmer misses have in common."""
    return frozenset(stem[:_PREFIX_CHARS] for stem in stems)


@lru_cache(maxsize=2048)
def parse_turn(turn: Turn) -> Passage:
    """Cut a turn into words; only the first 4,000 characters of what was said are looked at."""
    caption = _CAPTION_OPENING.sub("", turn.caption or "", count=1)
    texts = (turn.text[:_MAX_TURN_CHARS], caption[:_MAX_TURN_CHARS])
    matches = [[*WORD.finditer(text)] for text in texts]
    words = [match[0] for match in chain(*matches)]
    plain_words = [normalize_word(word) for word in words]
    stems = stem_words([word.removesuffix("'s") for word in plain_words])
    rows = _rows(texts[0], matches[0], 0, in_caption=False)
    rows += _rows(texts[1], matches[1], len(rows), in_caption=True)
    bounds = [*sorted({row[WordColumn.SENTENCE_START] for row in rows}), len(rows)]
    for sentence, (start, end) in enumerate(pairwise(bounds)):
        _add_sentence(rows[start:end], sentence, plain_words[start:end])
    return Passage(
        stems=tuple(stems),
        columns=np.array(rows, dtype=np.int32).reshape(-1, len(WordColumn)).T,
        spans=np.array([*_spans(plain_words, bounds)], dtype=np.int32).reshape(-1, 2).T,
        texts=texts,
        char_offsets=tuple(match.span() for match in chain(*matches)),
        vocabulary=frozenset(stems),
        sentences=tuple(frozenset(stems[start:end]) for start, end in pairwise(bounds)),
        bigrams=frozenset(pairwise(stems)),
        image_stems=frozenset(tokenize(f"{turn.caption or ''} {turn.image_query or ''}")),
        is_question=turn.text.rstrip().endswith("?"),
    )


def _rows(text: str, words: Sequence[re.Match[str]], first: int, *, in_caption: bool) -> list[list[int]]:
    """What is known of each word from what is right beside it; ``first`` is the first one's index."""
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


def _add_sentence(rows: Sequence[list[int]], sentence: int, plain_words: Sequence[str]) -> None:
    """Add to the rows of a sentence what its other words tell."""
    is_first_person = not FIRST_PERSON.isdisjoint(plain_words)
    is_second_person = not SECOND_PERSON.isdisjoint(plain_words)
    for row in rows:
        row[WordColumn.SENTENCE] = sentence
        row[WordColumn.FIRST_PERSON] = is_first_person
        row[WordColumn.SECOND_PERSON] = is_second_person
    for before, row in pairwise(rows):  # at the edges of the sentence stays EDGE, which is 0
        row[WordColumn.CLASS_BEFORE] = (
            WordClass.MARK if row[WordColumn.AFTER_MARK] else before[WordColumn.CLASS]
        )
        before[WordColumn.CLASS_AFTER] = (
            WordClass.MARK if row[WordColumn.AFTER_MARK] else row[WordColumn.CLASS]
        )


def _spans(plain_words: Sequence[str], bounds: Sequence[int]) -> Iterator[tuple[int, int]]:
    may_end = [word not in _NEVER_LAST for word in plain_words]
    for sentence_start, sentence_end in pairwise(bounds):
        for start in range(sentence_start, sentence_end):
            if plain_words[start] in _NEVER_FIRST:
                continue
            for end in range(start + 1, min(sentence_end, start + MAX_SPAN_WORDS) + 1):
                if may_end[end - 1]:
                    yield start, end


@dataclass(frozen=True, slots=True, eq=False)
class Excerpts:
    """The passages of several turns end to end, as if they were one; indices run through all of them."""

    hits: tuple[ScoredTurn, ...]
    passages: tuple[Passage, ...]
    stems: tuple[str, ...]
    columns: NDArray[np.int32]
    spans: NDArray[np.int32]
    offsets: NDArray[np.intp]
    """The index of each passage's first word, and at last the number of words."""
    span_hits: NDArray[np.intp]
    """Which hit each span is of."""

    def text(self, span: int) -> str:
        """The words of a span, as they were written."""
        hit = self.span_hits[span]
        start, end = (int(index - self.offsets[hit]) for index in self.spans[:, span])
        return self.passages[hit].text(start, end)


def join_passages(hits: Sequence[ScoredTurn]) -> Excerpts:
    """Cut the turns that were found into words, and lay them end to end."""
    passages = tuple(parse_turn(hit.turn) for hit in hits)
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
