"""Date phrases in a text, found and resolved relative to the day on which they were said.

Nothing here reads the clock of the machine. A resolved phrase has a span and a name: "last week", said on
9 June 2023, becomes "The week before 9 June 2023" and not a single day.
"""

import re
from dataclasses import dataclass
from datetime import date, datetime

from memory_program.bank.dates.date_span import DateSpan, day_span, month_span, year_span
from memory_program.bank.dates.phrases import MONTH, ORDINAL, PHRASES, day_of_month, parse_with_dateparser

_HOUR = re.compile(
    r",? (?:at |around |about |by )*(?:\d{1,2}(?::\d\d)? ?[ap]\.?m\.?|\d{1,2}:\d\d|noon|midnight)$"
    r"|,?(?: in the)? (?:morning|afternoon|evening|night)$",
    re.IGNORECASE,
)
_NUMBERED_MONTH = re.compile(r"(?!0000)\d{4}-(?:0[1-9]|1[0-2])")
_DAY_ALONE = re.compile(rf"the {ORDINAL}", re.IGNORECASE)
_MISREAD = re.compile(
    r"\d0s\b"  # dateparser reads "80s" as seconds
    r"|\b(?:before|after|half)\b"  # it ignores these words
    rf"|^(?=.*\d).*\b{MONTH}\b",  # it reads the 12 of "10-12 June" as the year 2012
    re.IGNORECASE,
)
_LEADING_WORDS = re.compile(
    r"(?:(?:on|in|around|about|since|by|during|the|early|mid|late|of|end)[ -])*", re.I
)


@dataclass(frozen=True, slots=True)
class DateMention:
    """A date phrase in a text, at ``text[start:end]``, and the span that it names."""

    start: int
    end: int
    date_span: DateSpan


def find_dates(text: str, anchor: date) -> list[DateMention]:
    """List the date phrases in a text that was said on ``anchor``, in their order; none overlap.

    A day without a year is in the year that brings it closest to the anchor; "Friday" alone is the last one.

    Example:
        >>> said_on = date(2023, 6, 9)
        >>> [found.date_span.phrase for found in find_dates("I ran yesterday, and two weeks ago.", said_on)]
        ['8 June 2023', 'Two weeks before 9 June 2023']
    """
    found: list[DateMention] = []
    for pattern, reader in PHRASES:
        for match in pattern.finditer(text):
            if any(match.start() < other.end and other.start < match.end() for other in found):
                continue
            try:
                span = reader(match, anchor)
            except (OverflowError, ValueError):
                continue  # outside the calendar: "999 years ago", said in the year 8
            if span is not None:
                found.append(DateMention(match.start(), match.end(), span))
    return sorted(found, key=lambda mention: mention.start)


def resolve_date(expression: str, anchor: date) -> date | None:
    """Resolve a date phrase that was said on ``anchor`` to the first day of its span.

    Returns:
        None if it is not a date phrase.

    Example:
        >>> resolve_date("last Friday", date(2023, 7, 15))
        datetime.date(2023, 7, 14)
    """
    resolved = resolve_date_span(expression, anchor)
    return resolved and resolved.first


def resolve_date_span(expression: str, anchor: date) -> DateSpan | None:
    """Resolve a date phrase that was said on ``anchor`` to its span of days.

    It may be an ISO date, a phrase that ``find_dates`` finds, or anything else that dateparser reads in
    English.

    Returns:
        None if it is not a date phrase.

    Example:
        >>> resolve_date_span("next month", date(2023, 12, 15)).phrase
        'January 2024'
    """
    expression = " ".join(expression.split()).strip(".,;")
    if _NUMBERED_MONTH.fullmatch(expression):
        return month_span(datetime.strptime(expression, "%Y-%m").date())
    try:
        return day_span(datetime.fromisoformat(expression).date())
    except ValueError:
        pass  # most phrases are words
    for phrase in dict.fromkeys((expression, _HOUR.sub("", expression))):
        for mention in find_dates(phrase, anchor):
            if mention.end == len(phrase) and _LEADING_WORDS.fullmatch(phrase[: mention.start]):
                return mention.date_span
        if alone := _DAY_ALONE.fullmatch(phrase):
            return day_of_month(alone, anchor)
    if expression.isdigit() or _MISREAD.search(expression):
        return None
    if (parsed := parse_with_dateparser(expression, anchor)) is None:
        return None
    day, period = parsed
    if period == "month":
        return month_span(day)
    if period == "year":
        return year_span(day.year)
    return day_span(day) if period in ("day", "part_of_day", "time") else None
