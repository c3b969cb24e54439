"""The dates that may answer a question: those that a turn speaks of, and the day on which it was said."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memory_program.agents.baselines.candidate_spans import Passage, WordColumn
from memory_program.agents.baselines.question_analysis import QuestionClues
from memory_program.agents.baselines.span_features import MAX_DISTANCE, TURN_FEATURES, Evidence, Matrix
from memory_program.bank.dates.date_span import DateSpan, format_day, format_month
from memory_program.bank.dates.resolve import find_dates

_KINDS = (
    "day",
    "weekday",
    "week",
    "month",
    "season",
    "year",
    "session's day",
    "session's month",
    "week before session",
)
DATE_FEATURES = (
    *TURN_FEATURES,
    *_KINDS,
    "sentence coverage",
    "closeness to telling word",
    "is to come",
    "is to come as asked",
    "is spoken of",
    "session's though another is spoken of",
    "session's though asked about what is to come",
)
"""The names of the columns of ``date_features``."""


@dataclass(frozen=True, slots=True)
class DateCandidate:
    """A date as an answer would write it, which hit it is of, and what speaks for it."""

    text: str
    hit: int
    kind: str
    sentence_coverage: float = 0.0
    distance: int = MAX_DISTANCE
    is_future: bool = False
    is_mentioned: bool = False


def date_candidates(evidence: Evidence) -> list[DateCandidate]:
    """List the dates that the turns which were found speak of, and those of their sessions."""
    return [
        candidate
        for index in range(len(evidence.excerpts.hits))
        for candidate in _turn_date_candidates(evidence, index)
    ]


def date_features(evidence: Evidence, candidates: list[DateCandidate]) -> Matrix:
    """Measure every candidate: shape (candidates, date features)."""
    spoken_of = {candidate.hit for candidate in candidates if candidate.is_mentioned}
    is_ahead = evidence.clues.is_about_future
    rows = [
        [
            *(candidate.kind == kind for kind in _KINDS),
            candidate.sentence_coverage,
            1 / candidate.distance,
            candidate.is_future,
            candidate.is_future and is_ahead,
            candidate.is_mentioned,
            not candidate.is_mentioned and candidate.hit in spoken_of,
            not candidate.is_mentioned and is_ahead,
        ]
        for candidate in candidates
    ]
    turn_rows = evidence.turn_rows[[candidate.hit for candidate in candidates]]
    return np.hstack([turn_rows, np.array(rows, dtype=np.float64).reshape(len(rows), -1)])


def _turn_date_candidates(evidence: Evidence, index: int) -> Iterator[DateCandidate]:
    clues, hit, passage = evidence.clues, evidence.excerpts.hits[index], evidence.excerpts.passages[index]
    said_on = hit.session.date_time.date()
    for mention in find_dates(passage.texts[0], said_on):
        stretch = mention.date_span
        coverage, distance = _surroundings(evidence, passage, mention.start, mention.end)
        yield DateCandidate(
            text=_format_at_granularity(stretch, clues),
            hit=index,
            kind=_date_kind(stretch),
            sentence_coverage=coverage,
            distance=distance,
            is_future=stretch.first > said_on,
            is_mentioned=True,
        )
    if clues.date_granularity != "any":
        yield DateCandidate(
            _format_at_granularity(DateSpan(said_on, said_on, ""), clues), index, "session's day"
        )
        return
    yield DateCandidate(format_day(said_on), index, "session's day")
    yield DateCandidate(format_month(said_on), index, "session's month")
    yield DateCandidate(f"The week before {format_day(said_on)}", index, "week before session")


def _format_at_granularity(stretch: DateSpan, clues: QuestionClues) -> str:
    if clues.date_granularity == "year":
        return str(stretch.first.year)
    return format_month(stretch.first) if clues.date_granularity == "month" else stretch.phrase


def _date_kind(stretch: DateSpan) -> str:
    days = (stretch.last - stretch.first).days + 1
    if re.search(r" (?:before|of|after) ", stretch.phrase):
        return "weekday" if re.match(r"The \w+day ", stretch.phrase) else "week"
    return "day" if days == 1 else "month" if days < 32 else "season" if days < 100 else "year"


def _surroundings(evidence: Evidence, passage: Passage, start: int, end: int) -> tuple[float, int]:
    """The coverage of the sentence of a mention, and how far it is from the nearest telling word there."""
    in_text = passage.columns[WordColumn.IN_CAPTION] == 0
    within = [
        word
        for word, (first, last) in enumerate(passage.char_offsets)
        if in_text[word] and first >= start and last <= end
    ]
    if not within:
        return 0.0, MAX_DISTANCE
    sentence = passage.columns[WordColumn.SENTENCE, within[0]]
    telling = [
        word
        for word in np.flatnonzero(passage.columns[WordColumn.SENTENCE] == sentence)
        if passage.stems[word] in evidence.clues.content_stems
    ]
    nearest = min((abs(int(word) - within[0]) for word in telling), default=MAX_DISTANCE)
    return evidence.coverage(passage.sentences[sentence]), max(1, min(MAX_DISTANCE, nearest))
