"""Dates that may answer a question: those that a turn mentions, and the date of its session."""

import re
from dataclasses import dataclass

import numpy as np

from memory_program.agents.spans.candidate_spans import WordColumn
from memory_program.agents.spans.question_analysis import QuestionClues
from memory_program.agents.spans.span_features import MAX_DISTANCE, TURN_FEATURES, Evidence, Matrix
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
"""Column names of ``date_features``; the bundled weights are stored under them."""


@dataclass(frozen=True, slots=True)
class DateCandidate:
    """A date as an answer would write it, the index of its hit, and its features."""

    text: str
    hit: int
    kind: str
    sentence_coverage: float = 0.0
    distance: int = MAX_DISTANCE
    is_future: bool = False
    is_mentioned: bool = False


def date_candidates(evidence: Evidence) -> list[DateCandidate]:
    """List the dates that the retrieved turns mention, and the dates of their sessions."""
    candidates: list[DateCandidate] = []
    clues = evidence.clues
    for index, (hit, passage) in enumerate(
        zip(evidence.excerpts.hits, evidence.excerpts.passages, strict=True)
    ):
        said_on = hit.session.date_time.date()
        in_text = passage.columns[WordColumn.IN_CAPTION] == 0
        for mention in find_dates(passage.texts[0], said_on):
            span = mention.date_span
            words = [
                word
                for word, (first, last) in enumerate(passage.char_offsets)
                if in_text[word] and first >= mention.start and last <= mention.end
            ]
            coverage, distance = 0.0, MAX_DISTANCE  # of its sentence, and to the nearest content word there
            if words:
                sentence = passage.columns[WordColumn.SENTENCE, words[0]]
                nearest = min(
                    (
                        abs(int(word) - words[0])
                        for word in np.flatnonzero(passage.columns[WordColumn.SENTENCE] == sentence)
                        if passage.stems[word] in clues.content_stems
                    ),
                    default=MAX_DISTANCE,
                )
                coverage = evidence.coverage(passage.sentences[sentence])
                distance = max(1, min(MAX_DISTANCE, nearest))
            if re.search(r" (?:before|of|after|up to) ", span.phrase):
                kind = "weekday" if re.match(r"The \w+day ", span.phrase) else "week"
            else:
                days = (span.last - span.first).days + 1
                kind = "day" if days == 1 else "month" if days < 32 else "season" if days < 100 else "year"
            candidates.append(
                DateCandidate(
                    text=_format_at_granularity(span, clues),
                    hit=index,
                    kind=kind,
                    sentence_coverage=coverage,
                    distance=distance,
                    is_future=span.first > said_on,
                    is_mentioned=True,
                )
            )
        day = DateSpan(said_on, said_on, format_day(said_on))
        candidates.append(DateCandidate(_format_at_granularity(day, clues), index, "session's day"))
        if clues.date_granularity == "any":
            week = f"The week before {format_day(said_on)}"
            candidates.append(DateCandidate(format_month(said_on), index, "session's month"))
            candidates.append(DateCandidate(week, index, "week before session"))
    return candidates


def date_features(evidence: Evidence, candidates: list[DateCandidate]) -> Matrix:
    """Compute the features of every candidate: shape (candidates, date features)."""
    hits_with_mention = {candidate.hit for candidate in candidates if candidate.is_mentioned}
    asks_future = evidence.clues.is_about_future
    rows = [
        [
            *(candidate.kind == kind for kind in _KINDS),
            candidate.sentence_coverage,
            1 / candidate.distance,
            candidate.is_future,
            candidate.is_future and asks_future,
            candidate.is_mentioned,
            not candidate.is_mentioned and candidate.hit in hits_with_mention,
            not candidate.is_mentioned and asks_future,
        ]
        for candidate in candidates
    ]
    turn_rows = evidence.turn_rows[[candidate.hit for candidate in candidates]]
    return np.hstack([turn_rows, np.array(rows, dtype=np.float64).reshape(len(rows), -1)])


def _format_at_granularity(span: DateSpan, clues: QuestionClues) -> str:
    if clues.date_granularity == "year":
        return str(span.first.year)
    return format_month(span.first) if clues.date_granularity == "month" else span.phrase
