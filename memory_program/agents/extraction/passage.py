"""Turns cut into words and sentences, and the spans of them that could be an answer."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from locomo.conversation import Turn
from memory_program.agents.extraction.words import (
    FIRST_PERSON,
    SECOND_PERSON,
    WORD,
    WordClass,
    plain,
    word_class,
)
from memory_program.bank.archive import ScoredTurn
from memory_program.bank.lexical import stem_words

MAX_SPAN_WORDS = 9
_MAX_TURN_CHARS = 4_000  # answers are short, and a turn may hold megabytes

_SENTENCE_END = re.compile(r"[.!?\n…]|--|\s[–—-]\s|[\U0001F300-\U0001FAFF]")
_QUOTE_MARKS = frozenset('"“”')
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


class Column(IntEnum):
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


@dataclass(frozen=True, slots=True, eq=False)
class Passage:
    """The words of a turn, and behind them those of its image's caption.

    ``columns`` has the shape (columns, words). ``spans`` has the shape (2, spans): span k is the words from
    ``spans[0, k]`` to ``spans[1, k]`` (exclusive); at most nine, of one sentence, and neither beginning nor
    ending with a word with which answers do not.
    """

    words: tuple[str, ...]
    stems: tuple[str, ...]
    columns: NDArray[np.int32]
    spans: NDArray[np.int32]
    texts: tuple[str, str]
    places: tuple[tuple[int, int], ...]
    """Where each word stands in its text: ``texts[0]`` is what was said, ``texts[1]`` the caption."""
    vocabulary: frozenset[str]
    sentences: tuple[frozenset[str], ...]
    """The stems of each sentence."""
    pairs: frozenset[tuple[str, str]]
    """Stems that stand next to each other."""
    asks: bool
    """Whether the turn ends with a question."""

    def text(self, start: int, end: int) -> str:
        """The words from ``start`` to ``end`` (exclusive), as they were written."""
        text = self.texts[self.columns[Column.IN_CAPTION, start]]
        return " ".join(text[self.places[start][0] : self.places[end - 1][1]].split())


@lru_cache(maxsize=2048)
def passage_of(turn: Turn) -> Passage:
    """Cut a turn into words; only the first 4,000 characters of what was said are looked at."""
    caption = _CAPTION_OPENING.sub("", turn.caption or "", count=1)
    texts = (turn.text[:_MAX_TURN_CHARS], caption[:_MAX_TURN_CHARS])
    words, places, rows = list[str](), list[tuple[int, int]](), list[list[int]]()
    sentence = -1
    for in_caption, text in enumerate(texts):
        end = -1
        for match in WORD.finditer(text):
            gap = text[end : match.start()] if end >= 0 else "\n"
            begins = _SENTENCE_END.search(gap) is not None
            sentence += begins
            start = len(words) if begins else rows[-1][Column.SENTENCE_START]
            after_mark = not begins and _MARK.search(gap) is not None
            opens = text[match.start() - 1 : match.start()] in _QUOTE_MARKS
            closes = not _QUOTE_MARKS.isdisjoint(text[match.end() : match.end() + 2])
            row = [
                word_class(match[0], begins),
                0,
                0,
                sentence,
                start,
                after_mark,
                in_caption,
                0,
                0,
                opens,
                closes,
            ]
            words.append(match[0])
            places.append(match.span())
            rows.append(row)
            end = match.end()
    plain_words = [plain(word) for word in words]
    columns = np.array(rows, dtype=np.int32).reshape(-1, len(Column)).T
    _add_neighbours(columns)
    _add_persons(columns, plain_words)
    stems = stem_words([word.removesuffix("'s") for word in plain_words])
    starts = np.flatnonzero(columns[Column.SENTENCE_START] == np.arange(len(words))).tolist()
    return Passage(
        words=tuple(words),
        stems=tuple(stems),
        columns=columns,
        spans=np.array(list(_spans(plain_words, columns[Column.SENTENCE])), np.int32).reshape(-1, 2).T,
        texts=texts,
        places=tuple(places),
        vocabulary=frozenset(stems),
        sentences=tuple(frozenset(stems[a:b]) for a, b in pairwise([*starts, len(stems)])),
        pairs=frozenset(pairwise(stems)),
        asks=turn.text.rstrip().endswith("?"),
    )


def _add_neighbours(columns: NDArray[np.int32]) -> None:
    count = columns.shape[1]
    starts = columns[Column.SENTENCE_START] == np.arange(count)
    marks = columns[Column.AFTER_MARK].astype(np.bool_)
    for column, shift, is_edge, is_mark in (
        (Column.CLASS_BEFORE, 1, starts, marks),
        (Column.CLASS_AFTER, -1, np.append(starts[1:], True)[:count], np.append(marks[1:], False)[:count]),
    ):
        beside = np.where(is_mark, WordClass.MARK, np.roll(columns[Column.CLASS], shift))
        columns[column] = np.where(is_edge, WordClass.EDGE, beside)


def _add_persons(columns: NDArray[np.int32], plain_words: Sequence[str]) -> None:
    for column, pronouns in ((Column.FIRST_PERSON, FIRST_PERSON), (Column.SECOND_PERSON, SECOND_PERSON)):
        spoken = [word in pronouns for word in plain_words]
        columns[column] = np.isin(columns[Column.SENTENCE], columns[Column.SENTENCE][spoken])


def _spans(plain_words: Sequence[str], sentences: NDArray[np.int32]) -> Iterator[tuple[int, int]]:
    for start, word in enumerate(plain_words):
        if word in _NEVER_FIRST:
            continue
        for end in range(start + 1, min(len(plain_words), start + MAX_SPAN_WORDS) + 1):
            if sentences[end - 1] != sentences[start]:
                break
            if plain_words[end - 1] not in _NEVER_LAST:
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


def excerpts_of(hits: Sequence[ScoredTurn]) -> Excerpts:
    """Cut the turns that were found into words, and lay them end to end."""
    passages = tuple(passage_of(hit.turn) for hit in hits)
    offsets = np.cumsum([0, *(len(passage.words) for passage in passages)], dtype=np.intp)
    span_counts = [passage.spans.shape[1] for passage in passages]
    columns = np.concatenate([np.zeros((len(Column), 0), np.int32), *(p.columns for p in passages)], axis=1)
    shifts = np.repeat(offsets[:-1], np.diff(offsets))
    columns[Column.SENTENCE_START] += shifts
    columns[Column.SENTENCE] = np.cumsum(columns[Column.SENTENCE_START] == np.arange(len(shifts))) - 1
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
