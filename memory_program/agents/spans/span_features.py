"""Features of the spans that may answer a question: one row of numbers each."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from locomo.types import Turn
from memory_program.agents.spans.candidate_spans import (
    MAX_SPAN_WORDS,
    Passage,
    WordColumn,
    join_passages,
    parse_turn,
    stem_prefixes,
)
from memory_program.agents.spans.question_analysis import QuestionClues
from memory_program.agents.spans.word_classes import WordClass
from memory_program.bank.archive import Archive, ScoredTurn

Matrix = NDArray[np.float64]

TURN_FEATURES = (
    "score",
    "told by the one who is named",
    "told by the other",
    "is a question",
    "coverage",
    "covers all",
    "coverage by count",
    "coverage by beginnings of words",
    "coverage by image",
    "coverage by best sentence",
    "coverage by turn before",
    "coverage with turn before",
    "coverage by turn after",
    "turn before is a question",
    "answers a question that covers",
    "pairs of words",
    "has rarest word",
    "log words",
    "has image",
)
_COUNTED_CLASSES = (
    WordClass.NAME,
    WordClass.DIGITS,
    WordClass.NUMBER,
    WordClass.PRONOUN,
    WordClass.AUXILIARY,
    WordClass.COMMON_VERB,
    WordClass.ING,
    WordClass.PREPOSITION,
    WordClass.CONJUNCTION,
    WordClass.ADVERB,
    WordClass.OTHER,
    WordClass.PLURAL,
)
_PLACES = ("first", "last", "before", "after")
SPAN_FEATURES = (
    *TURN_FEATURES,
    "sentence in first person",
    "sentence in second person",
    "sentence coverage",
    "sentence covers half",
    "sentence covers most of all",
    "starts sentence",
    "ends sentence",
    "in caption",
    "quoted",
    "share of question's words",
    "share of telling words",
    "has telling word",
    "closeness to telling word before",
    "closeness to telling word after",
    "right behind telling word",
    "right before telling word",
    "sentence has no other telling word",
    "mean rarity",
    "rarity",
    "rarity if new",
    *(f"share of {word_class.name}" for word_class in _COUNTED_CLASSES),
    "all names",
    *(f"{count} words" for count in range(1, MAX_SPAN_WORDS + 1)),
    *(f"{place} {word_class.name}" for place in _PLACES for word_class in WordClass),
)
"""Column names of ``span_features``; the bundled weights are stored under them."""

MAX_DISTANCE = 12
_EMPTY_TURN = Turn("", "", "")
_CLASS_ROWS = np.eye(len(WordClass))
_COUNT_ROWS = np.eye(MAX_SPAN_WORDS)


class Evidence:
    """A question, the turns retrieved for it, and the share of the question that they contain."""

    def __init__(self, clues: QuestionClues, hits: Sequence[ScoredTurn], archive: Archive) -> None:
        """Split the turns into words and match them with the question."""
        self.clues = clues
        self.excerpts = join_passages(hits)
        self.archive = archive
        unseen_idf = math.log(len(archive) + 1)
        self._idf = {stem: archive.stem_idf(stem) or unseen_idf for stem in clues.content_stems}
        self._total_idf = sum(self._idf.values()) or 1.0
        self._rarest = max(sorted(self._idf), key=self._idf.__getitem__, default="")
        self._prefixes = stem_prefixes(clues.content_stems)
        turn_rows: list[list[float]] = []
        for hit, passage in zip(self.excerpts.hits, self.excerpts.passages, strict=True):
            turn = hit.turn
            before, after = _neighbor_passage(hit, -1), _neighbor_passage(hit, 1)
            coverage, coverage_before = self.coverage(passage.vocabulary), self.coverage(before.vocabulary)
            turn_rows.append(
                [
                    hit.score,
                    clues.named_speakers == frozenset({turn.speaker}),
                    len(clues.named_speakers) == 1 and turn.speaker not in clues.named_speakers,
                    passage.is_question,
                    coverage,
                    coverage > 0.99,
                    len(passage.vocabulary & clues.content_stems) / max(1, len(clues.content_stems)),
                    len(passage.stem_prefixes & self._prefixes) / max(1, len(clues.content_stems)),
                    self.coverage(passage.image_stems),
                    max((self.coverage(stems) for stems in passage.sentences), default=0.0),
                    coverage_before,
                    self.coverage(passage.vocabulary | before.vocabulary),
                    self.coverage(after.vocabulary),
                    before.is_question,
                    before.is_question * coverage_before,
                    min(3, len(passage.bigrams & clues.bigrams)),
                    self._rarest in passage.vocabulary,
                    math.log1p(len(passage.stems)),
                    turn.caption is not None,
                ]
            )
        self.turn_rows: Matrix = np.array(turn_rows).reshape(-1, len(TURN_FEATURES))
        """Shape (hits, turn features)."""
        self.sentence_coverage: Matrix = np.array(
            [self.coverage(stems) for passage in self.excerpts.passages for stems in passage.sentences]
        )
        """Shape (sentences,)."""

    def coverage(self, stems: frozenset[str]) -> float:
        """Return the share of the question's content stems that are among these, weighted by IDF."""
        if self.clues.content_stems.isdisjoint(stems):
            return 0.0
        return sum(self._idf[stem] for stem in stems & self.clues.content_stems) / self._total_idf


def span_features(evidence: Evidence) -> Matrix:
    """Compute the features of every span of the retrieved turns: shape (spans, span features)."""
    excerpts, columns = evidence.excerpts, evidence.excerpts.columns
    starts, ends = excerpts.spans
    if not len(starts):
        return np.zeros((0, len(SPAN_FEATURES)))
    lasts = ends - 1
    lengths = (ends - starts).astype(np.float64)
    classes = columns[WordColumn.CLASS]
    is_content = np.array([stem in evidence.clues.content_stems for stem in excerpts.stems])
    in_question = np.array([stem in evidence.clues.stems for stem in excerpts.stems])
    idf_by_stem = {stem: evidence.archive.stem_idf(stem) for stem in set(excerpts.stems)}
    idf = np.array([idf_by_stem[stem] for stem in excerpts.stems])
    covered = evidence.sentence_coverage[columns[WordColumn.SENTENCE]]
    content_share = _sums(is_content, starts, ends) / lengths
    before, after = _distances(is_content, columns)
    span_idf = _sums(idf, starts, ends)
    counts = [_sums(classes == word_class, starts, ends) / lengths for word_class in _COUNTED_CLASSES]
    measured = [
        columns[WordColumn.FIRST_PERSON][starts],
        columns[WordColumn.SECOND_PERSON][starts],
        covered[starts],
        covered[starts] >= 0.5,
        covered[starts] == covered.max(initial=0.0),
        columns[WordColumn.CLASS_BEFORE][starts] == WordClass.EDGE,
        columns[WordColumn.CLASS_AFTER][lasts] == WordClass.EDGE,
        columns[WordColumn.IN_CAPTION][starts],
        columns[WordColumn.OPENS_QUOTE][starts] & columns[WordColumn.CLOSES_QUOTE][lasts],
        _sums(in_question, starts, ends) / lengths,
        content_share,
        content_share > 0,
        1 / before[starts],
        1 / after[lasts],
        before[starts] == 1,
        after[lasts] == 1,
        (before[starts] == MAX_DISTANCE) & (after[lasts] == MAX_DISTANCE),
        span_idf / lengths / 5,
        span_idf / 10,
        span_idf * (content_share == 0) / 10,
        *counts,
        counts[0] == 1.0,
    ]
    return np.concatenate(
        [
            evidence.turn_rows[excerpts.span_hits],
            np.array(measured, dtype=np.float64).T,
            _COUNT_ROWS[ends - starts - 1],
            _CLASS_ROWS[classes[starts]],
            _CLASS_ROWS[classes[lasts]],
            _CLASS_ROWS[columns[WordColumn.CLASS_BEFORE][starts]],
            _CLASS_ROWS[columns[WordColumn.CLASS_AFTER][lasts]],
        ],
        axis=1,
    )


def _sums(values: NDArray[Any], starts: NDArray[np.int32], ends: NDArray[np.int32]) -> Matrix:
    """Sum the values of the words of every span."""
    running = np.concatenate([[0.0], np.cumsum(values)])
    return running[ends] - running[starts]


def _distances(matches: NDArray[np.bool_], columns: NDArray[np.int32]) -> tuple[Matrix, Matrix]:
    """Return each word's distance to the previous and the next match in its sentence; 12 at most."""
    places, sentences = np.arange(len(matches)), columns[WordColumn.SENTENCE]
    last = np.maximum.accumulate(np.where(matches, places, -MAX_DISTANCE))
    before = np.concatenate([[-MAX_DISTANCE], last[:-1]])
    following = np.minimum.accumulate(np.where(matches, places, len(matches) + MAX_DISTANCE)[::-1])[::-1]
    after = np.concatenate([following[1:], [len(matches) + MAX_DISTANCE]])
    is_before_here = before >= columns[WordColumn.SENTENCE_START]
    is_after_here = sentences[np.minimum(after, len(matches) - 1)] == sentences
    is_after_here &= after < len(matches)
    to_before = np.where(is_before_here, np.minimum(places - before, MAX_DISTANCE), MAX_DISTANCE)
    to_after = np.where(is_after_here, np.minimum(after - places, MAX_DISTANCE), MAX_DISTANCE)
    return to_before.astype(np.float64), to_after.astype(np.float64)


def _neighbor_passage(hit: ScoredTurn, offset: int) -> Passage:
    """Return the passage of the turn before or after; an empty one at the ends of the session."""
    turns = hit.session.turns
    place = next(place for place, turn in enumerate(turns) if turn is hit.turn) + offset
    return parse_turn(turns[place] if 0 <= place < len(turns) else _EMPTY_TURN)
