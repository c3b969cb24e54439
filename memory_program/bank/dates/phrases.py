"""Patterns of date phrases, each with the function that resolves a match to a span of days.

A span is computed from the calendar or by dateparser, always relative to the anchor: the day on which the
phrase was said.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from typing import Literal

from dateparser.date import DateDataParser
from dateutil.relativedelta import relativedelta

from memory_program.bank.dates.date_span import (
    MONTH_NAMES,
    DateSpan,
    day_span,
    format_day,
    format_month,
    month_span,
    year_span,
)

_NUMBERS = (
    *("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_COUNTS = {
    **{word: count for count, word in enumerate(_NUMBERS, start=1)},
    **{word: 10 * count for count, word in enumerate(_TENS, start=2)},
    **{"a": 1, "an": 1, "couple": 2, "few": 3, "several": 3},
}
_MONTHS = tuple(name[:3].lower() for name in MONTH_NAMES)
_SEASONS = {"winter": 12, "spring": 3, "summer": 6, "fall": 9, "autumn": 9}

_COUNT = (  # not the end of another number: "1.5 years", "half a year", "a hundred and one days"
    r"(?<![-.,\d])(?<!half )(?<!hundred )(?<!hundred and )"
    r"(?P<count>\d{1,3}|(?:a )?(?:couple(?: of)?|few)|several|an?"
    rf"|(?:{'|'.join(_TENS)})(?:[ -](?:{'|'.join(_NUMBERS[:9])}))?|{'|'.join(reversed(_NUMBERS))})"
)
MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WEEKDAY = r"(?P<weekday>mon|tues?|wed(?:nes)?|thu(?:rs?)?|fri|sat(?:ur)?|sun)(?:day)?"
_FULL_WEEKDAY = r"(?P<weekday>mon|tues|wednes|thurs|fri|satur|sun)day"
_SEASON = rf"(?P<season>{'|'.join(_SEASONS)})"
_WHICH = r"(?P<which>last|this past|past|this|next|this coming|coming|previous)"
_YEAR = r"(?P<year>(?:19|20)\d\d)"
ORDINAL = r"(?P<day>\d{1,2})(?:st|nd|rd|th)"
_DAY = rf"{ORDINAL}?"
_ON = r"(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day,? )?(?:the )?"
_UNIT = r"(?P<unit>day|week|weekend|month|year)s?"


@lru_cache(maxsize=4096)  # it takes milliseconds
def parse_with_dateparser(
    expression: str, anchor: date, prefer: Literal["past", "future"] = "past"
) -> tuple[date, str] | None:
    """Parse an expression with dateparser: its first day, and its period ("day", "month", ...)."""
    parser = DateDataParser(
        languages=["en"],
        settings={
            "RELATIVE_BASE": datetime.combine(anchor, time(12)),
            "PREFER_DATES_FROM": prefer,
            "PREFER_DAY_OF_MONTH": "first",
            "PARSERS": ["relative-time", "absolute-time"],
            "RETURN_TIME_AS_PERIOD": True,
        },
    )
    try:
        found = parser.get_date_data(expression)
    except OverflowError:
        return None  # outside the calendar
    return None if found.date_obj is None else (found.date_obj.date(), str(found.period))


def _direction(match: re.Match[str]) -> int:
    """Return -1 for the last one, 0 for this one, 1 for the next."""
    which = match["which"].lower()
    return {"this": 0, "next": 1, "this coming": 1, "coming": 1}.get(which, -1)


def _relative_phrase(name: str, direction: int, anchor: date) -> str:
    return f"The {name} {('before', 'of', 'after')[direction + 1]} {format_day(anchor)}"


def _named_day(match: re.Match[str], anchor: date) -> DateSpan | None:
    """Resolve ``7 May 2023`` and ``May 7th``; without a year, to the day closest to the anchor."""
    parts = match.groupdict()
    month = parts["month"]
    number = int(month) if month.isdecimal() else _MONTHS.index(month[:3].lower()) + 1
    near = range(anchor.year - 8, anchor.year + 9)  # leap years may be eight years apart
    days = list[date]()
    for year in [int(parts["year"])] if parts.get("year") else near:
        with suppress(ValueError):  # 29 February in another year
            days.append(date(year, number, int(parts["day"])))
    return day_span(min(days, key=lambda day: abs(day - anchor), default=None))


def day_of_month(match: re.Match[str], anchor: date) -> DateSpan | None:
    """Resolve ``on the 15th`` to the last such day that is not after the anchor."""
    day, month = int(match["day"]), anchor.replace(day=1)
    while 1 <= day <= 31:
        found = month + relativedelta(day=day)
        if found.day == day and found <= anchor:
            return day_span(found)
        month -= relativedelta(months=1)
    return None


def _relative_day(match: re.Match[str], anchor: date) -> DateSpan | None:
    """Resolve ``yesterday``, ``tonight``, ``this morning``, ``the day after tomorrow``."""
    shift = {"yesterday": -1, "last night": -1, "tomorrow": 1}
    shift |= {"day before yesterday": -2, "day after tomorrow": 2}
    return day_span(anchor + timedelta(shift.get(match[0].lower(), 0)))


def _relative_weekday(match: re.Match[str], anchor: date) -> DateSpan | None:
    """Resolve ``last Friday``, ``next Friday`` and ``Friday`` (the last one); never to the anchor itself."""
    is_past = "which" not in match.groupdict() or _direction(match) < 0
    days_ahead = (_WEEKDAYS.index(match["weekday"][:3].lower()) - anchor.weekday()) % 7
    day = anchor + timedelta(days_ahead - 7 if is_past else days_ahead or 7)
    return DateSpan(day, day, _relative_phrase(f"{day:%A}", -1 if is_past else 1, anchor))


def _named_month(match: re.Match[str], anchor: date) -> DateSpan | None:
    """Resolve ``February 2024`` and ``in December``; without a year, to the month closest to the anchor."""
    expression = f"{match['month']} {match.groupdict().get('year', '')}".strip()
    parsed = [parse_with_dateparser(expression, anchor, prefer) for prefer in ("past", "future")]
    days = [day for day, _ in filter(None, parsed)]
    return month_span(min(days, key=lambda day: abs(day - anchor), default=None))


def _relative_month(match: re.Match[str], anchor: date) -> DateSpan | None:
    """Resolve ``last May`` and ``next May`` (a year away in May itself), and ``this May``, of that year."""
    direction = _direction(match)
    if match["which"].lower() == "this":
        is_verb = match["month"] in ("may", "march")  # "this may be", "this march"
        number = _MONTHS.index(match["month"][:3].lower()) + 1
        return None if is_verb else month_span(anchor.replace(month=number, day=1))
    parsed = parse_with_dateparser(match["month"], anchor, "past" if direction < 0 else "future")
    day = None if parsed is None else parsed[0]
    if day is not None and direction and day.month == anchor.month:
        day = anchor + relativedelta(years=direction)
    return month_span(day)


def _season_span(season: str, first: date) -> DateSpan:
    """Make the span of a season; winter has the year in which it begins."""
    return DateSpan(first, first + relativedelta(months=3, days=-1), f"{season.lower()} {first.year}")


def _named_season(match: re.Match[str], _: date) -> DateSpan | None:
    """Resolve ``fall of 2021``."""
    return _season_span(match["season"], date(int(match["year"]), _SEASONS[match["season"].lower()], 1))


def _named_year(match: re.Match[str], _: date) -> DateSpan | None:
    return year_span(int(match["year"]))


def _relative_season(match: re.Match[str], anchor: date) -> DateSpan | None:
    """Resolve ``last summer`` to the last one that is over, ``next summer`` to the first that has not begun.

    ``this summer`` is that of the year; in January and February, ``this winter`` began in the year before.
    """
    direction, year = _direction(match), relativedelta(years=1)
    first = date(anchor.year, _SEASONS[match["season"].lower()], 1)
    while direction < 0 and first + relativedelta(months=3) > anchor:
        first -= year
    if direction == 0 and first - relativedelta(months=9) > anchor:
        first -= year
    if direction > 0 and first <= anchor:
        first += year
    return _season_span(match["season"], first)


def _adjacent_period(match: re.Match[str], anchor: date) -> DateSpan | None:
    """Resolve ``last week``, ``this month``, ``next year``; weeks begin on Monday, weekends on Saturday."""
    direction, unit = _direction(match), match["unit"].lower()
    if unit == "year":
        return year_span(anchor.year + direction)
    if unit == "month":
        return month_span(anchor + relativedelta(months=direction))
    monday = anchor + timedelta(7 * direction - anchor.weekday())
    first = monday + timedelta(5) if unit == "weekend" else monday
    return DateSpan(first, monday + timedelta(6), _relative_phrase(unit, direction, anchor))


def _period_at_offset(match: re.Match[str], anchor: date) -> DateSpan | None:
    """Resolve ``two weeks ago``, ``in 3 days`` (an exact day); ``a few`` counts as three."""
    words, unit = match["count"].lower(), match["unit"].lower()
    word = words.removeprefix("a ").removesuffix(" of")
    sign, side = (-1, "before") if match.groupdict().get("ago") else (1, "after")
    shift = sign * (int(word) if word.isdecimal() else sum(_COUNTS[part] for part in re.split("[ -]", word)))
    is_vague = word in ("couple", "few", "several")
    is_single = words in ("a", "an", "one", "1")
    phrase = f"{words.capitalize()} {unit}{'' if is_single else 's'} {side}"
    if unit in ("day", "week", "weekend"):
        day = anchor + timedelta(shift if unit == "day" else 7 * shift)
        is_exact = unit == "day" and not is_vague
        return day_span(day) if is_exact else DateSpan(day, day, f"{phrase} {format_day(anchor)}")
    is_month = unit == "month"
    span = month_span(anchor + relativedelta(months=shift)) if is_month else year_span(anchor.year + shift)
    if span is None or not is_vague:
        return span
    return DateSpan(span.first, span.last, f"{phrase} {format_month(anchor) if is_month else anchor.year}")


PhraseReader = Callable[[re.Match[str], date], DateSpan | None]
"""A function from a match and its anchor to a span; None if the words are not a date after all."""

PHRASES: tuple[tuple[re.Pattern[str], PhraseReader], ...] = tuple(
    (re.compile(rf"\b{pattern}\b", re.IGNORECASE), reader)
    for pattern, reader in (
        (r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)", _named_day),
        (r"(?P<day>\d{1,2})\.(?P<month>\d{1,2})\.(?P<year>(?:19|20)\d\d)", _named_day),
        (rf"{_ON}{MONTH}\.? (?:the )?{_DAY},? {_YEAR}", _named_day),
        (rf"{_ON}{MONTH}\.? (?:the )?{_DAY}", _named_day),
        (rf"{_ON}{_DAY} (?:of )?{MONTH},? {_YEAR}", _named_day),
        (rf"{_ON}{_DAY} (?:of )?{MONTH}", _named_day),
        (
            "day before yesterday|day after tomorrow|yesterday|last night|today|tonight|tomorrow",
            _relative_day,
        ),
        (r"this (?:morning|afternoon|evening)", _relative_day),
        (rf"{_COUNT} {_UNIT} (?P<ago>ago|back)", _period_at_offset),
        (rf"in {_COUNT} {_UNIT}", _period_at_offset),
        (rf"{_COUNT} {_UNIT} from now", _period_at_offset),
        (rf"{_WHICH} (?P<unit>weekend|week|month|year)", _adjacent_period),
        (rf"{_WHICH} {_WEEKDAY}", _relative_weekday),
        (rf"{_WHICH} {MONTH}", _relative_month),
        (rf"{_WHICH} {_SEASON}", _relative_season),
        (rf"{MONTH},? (?:of )?{_YEAR}", _named_month),
        (rf"{_SEASON},? (?:of )?{_YEAR}", _named_season),
        (rf"(?:in|since|until|by|early|mid|late)[ -]{MONTH}", _named_month),
        (_FULL_WEEKDAY, _relative_weekday),
        (rf"on the {ORDINAL}", day_of_month),
        (_YEAR, _named_year),
    )
)
"""Each pattern with its reader; if two matches overlap in a text, the pattern that comes first here wins."""
