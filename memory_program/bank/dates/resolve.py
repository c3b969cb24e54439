"""Date phrases, found in a text or given alone, resolved relative to the day on which they were said.

Nothing here reads the clock of the machine. A resolved phrase has a span and a name: "last week", said on
9 June 2023, becomes "The week before 9 June 2023" and not a single day.
"""

import re
from dataclasses import dataclass
from datetime import date

from memory_program.bank.dates.date_span import DateSpan
from memory_program.bank.dates.expressions import resolve_date_span
from memory_program.bank.dates.phrases import DAY_READERS, PHRASES

_WEEKDAY = re.compile(r"(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?", re.IGNORECASE)


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
    found, refused = list[DateMention](), list[re.Match[str]]()
    for pattern, reader in PHRASES:
        for match in pattern.finditer(text):
            places = [*((other.start, other.end) for other in found), *(other.span() for other in refused)]
            if any(match.start() < end and start < match.end() for start, end in places):
                continue
            try:
                span = reader(match, anchor)
            except (OverflowError, ValueError):
                continue  # outside the calendar: "999 years ago", said in the year 8
            if span is not None:
                found.append(DateMention(match.start(), match.end(), span))
            elif reader in DAY_READERS:
                refused.append(match)
    return sorted(found, key=lambda mention: mention.start)


def add_dates(text: str, said_on: date) -> str:
    """Write after each date phrase of a text the date that it means, unless the text has it.

    A weekday alone is left as it is: "Friday" may be the last one or the next.

    Example:
        >>> add_dates("I ran yesterday, and last week. Are you free on Friday?", date(2023, 6, 9))
        'I ran yesterday (8 June 2023), and last week (the week before 9 June 2023). Are you free on Friday?'
    """
    for mention in reversed(find_dates(text, said_on)):
        name, said = mention.date_span.phrase_inside, text[mention.start : mention.end]
        has_date = re.search(rf"(?<!\d){re.escape(name)}", text, re.IGNORECASE)  # 18 June is no 8 June
        if not has_date and not _WEEKDAY.fullmatch(said):
            text = f"{text[: mention.end]} ({name}){text[mention.end :]}"
    return text


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
