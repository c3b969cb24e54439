"""When something happened: expressions of time, resolved against the day on which they were said.

Nothing here looks at the clock of the machine. What is ours is how long the stretch of time is that an
expression names, and how to write it down (a speaker who says "last week" on 9 June 2023 means "The week
before 9 June 2023", not a day).
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
    r"\d0s\b"  # dateparser takes the 80s for seconds
    r"|\b(?:before|after|half)\b"  # and of these sees what stands beside them
    rf"|^(?=.*\d).*\b{MONTH}\b",  # of "10-12 June" it makes the year 2012
    re.IGNORECASE,
)
_LEADING_WORDS = re.compile(
    r"(?:(?:on|in|around|about|since|by|during|the|early|mid|late|of|end)[ -])*", re.I
)


@dataclass(frozen=True, slots=True)
class DateMention:
    """An expression of time in a text: ``text[start:end]``, and what it names."""

    start: int
    end: int
    date_span: DateSpan


def find_dates(text: str, anchor: date) -> list[DateMention]:
    """List the expressions of time in a text that was said on ``anchor``, in their order; none overlap.

    A day without a year is in the year that brings it closest to the anchor; "Friday" alone is the last one.

    Example:
        >>> said_on = date(2023, 6, 9)
        >>> [found.date_span.phrase for found in find_dates("I ran yesterday, and two weeks ago.", said_on)]
        ['8 June 2023', 'Two weeks before 9 June 2023']
    """
    found: list[DateMention] = []
    for pattern, read in PHRASES:
        for match in pattern.finditer(text):
            if any(match.start() < other.end and other.start < match.end() for other in found):
                continue
            try:
                stretch = read(match, anchor)
            except (OverflowError, ValueError):
                continue  # beyond the calendar: "999 years ago", said in the year 8
            if stretch is not None:
                found.append(DateMention(match.start(), match.end(), stretch))
    return sorted(found, key=lambda mention: mention.start)


def resolve_date(expression: str, anchor: date) -> date | None:
    """Resolve an expression that was said on ``anchor``: a day, or the first day of the stretch it names.

    Returns:
        None for what is no expression of time.

    Example:
        >>> resolve_date("last Friday", date(2023, 7, 15))
        datetime.date(2023, 7, 14)
    """
    resolved = resolve_date_span(expression, anchor)
    return resolved and resolved.first


def resolve_date_span(expression: str, anchor: date) -> DateSpan | None:
    """Resolve an expression that was said on ``anchor``: a day, or the stretch that it names.

    Takes ISO dates, the expressions of ``find_dates``, and whatever else dateparser reads in English.

    Returns:
        None for what is no expression of time.

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
        pass  # most are written in words
    for said in dict.fromkeys((expression, _HOUR.sub("", expression))):
        for mention in find_dates(said, anchor):
            if mention.end == len(said) and _LEADING_WORDS.fullmatch(said[: mention.start]):
                return mention.date_span
        if alone := _DAY_ALONE.fullmatch(said):
            return day_of_month(alone, anchor)
    if expression.isdigit() or _MISREAD.search(expression):
        return None
    return _dateparser_span(expression, anchor)


def _dateparser_span(expression: str, anchor: date) -> DateSpan | None:
    """Read what no rule of ours does, as long as dateparser takes it to be; a week or a quarter is not."""
    if (parsed := parse_with_dateparser(expression, anchor)) is None:
        return None
    day, period = parsed
    if period == "month":
        return month_span(day)
    if period == "year":
        return year_span(day.year)
    return day_span(day) if period in ("day", "part_of_day", "time") else None
