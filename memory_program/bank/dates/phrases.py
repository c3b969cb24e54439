"""Patterns of date phrases, each with the function that resolves a match to a span of days.

A span is computed from the calendar, always relative to the anchor: the day on which the phrase was said.
"""

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import date, timedelta

from dateutil.relativedelta import relativedelta
from dateutil.relativedelta import weekday as nth_weekday

from memory_program.bank.dates.date_span import (
    MONTH_NAMES,
    DateSpan,
    day_span,
    format_day,
    format_month,
    month_span,
    year_span,
)
from memory_program.bank.dates.holidays import WEEKDAY_HOLIDAY, holiday_span

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

COUNT = (  # not the end of another number: "1.5 years", "a quarter of a year", "a hundred and one days"
    r"(?<![-.,\d])(?<!half )(?<!half of )(?<!quarter of )(?<!hundred )(?<!hundred and )"
    r"(?P<count>\d{1,3}|(?:a )?(?:couple(?: of)?|few)|several|an?"
    rf"|(?:{'|'.join(_TENS)})(?:[ -](?:{'|'.join(_NUMBERS[:9])}))?|{'|'.join(reversed(_NUMBERS))})"
)
MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
WEEKDAY = r"(?P<weekday>mon|tues?|wed(?:nes)?|thu(?:rs?)?|fri|sat(?:ur)?|sun)(?:day)?"
FULL_WEEKDAY = r"(?P<weekday>mon|tues|wednes|thurs|fri|satur|sun)day"
SEASON = rf"(?P<season>{'|'.join(_SEASONS)})"
WHICH = r"(?P<which>last|this past|past|this|next|this coming|coming|previous)"
THE_WHICH = rf"(?:the )?{WHICH}"
YEAR = r"(?P<year>(?:19|20)\d\d)"
ORDINAL = r"(?P<day>\d{1,2})(?:st|nd|rd|th)"
_DAY = rf"{ORDINAL}?"
WEEKDAY_NAME = r"(?:mon|tues|wednes|thurs|fri|satur|sun)day"
_COUNTED_THING = (  # "on the 7th floor"; "on the 1st of every month" is no single day
    r"(?! (?:floor|day|try|attempt|time|birthday|anniversary|row|page|lap|hole|street|avenue|grade"
    r"|of (?:each|every|any))\b)"
)
_ON = rf"(?:{WEEKDAY_NAME},? )?(?:the )?"
SHORT_YEAR = (  # "7 June 23", not "7 June 23 people came"; "7 June '23" and "07 June 23" may go on
    r"(?:,? ['’](?=\d\d(?!\w))| (?=\d\d(?!\s?\w|[:.,]\d|%)))(?P<year>\d\d)"
)
_ABBREVIATED = r"(?:\.(?! (?-i:[A-Z])))?"  # not the end of a sentence: "We met in June. Last year ..."
_UNIT = r"(?P<unit>day|week|weekend|month|year)s?"
_NTH = ("first", "second", "third", "fourth", "fifth")
_DENIAL = re.compile(r"(?:n['’]t|\bnot|\bnever)\b(?! wait\b)", re.IGNORECASE)  # "can't wait" denies nothing
_COUNTED_TIME = re.compile(  # "for the first time in three weeks", but not "next time in three weeks"
    r"\b(?:once|twice|times|(?:first|second|third|only|last|\d(?:st|nd|rd|th)) time) $", re.IGNORECASE
)
_COMPLETION = re.compile(  # "I finished it in five days": how long it took
    r"\b(?:finished|completed|learned|learnt|wrote|built|lost|gained)\b", re.IGNORECASE
)
_CLAUSE_END = re.compile(r"[.!?,;:\n]|\bbut\b", re.IGNORECASE)
_CLAUSE_CHARS = 200
_NEXT_WORD = re.compile(r" \w")


def relative_direction(match: re.Match[str]) -> int:
    """Return -1 for the last one, 0 for this one, 1 for the next."""
    which = match["which"].lower()
    return {"this": 0, "next": 1, "this coming": 1, "coming": 1}.get(which, -1)


def _relative_phrase(name: str, direction: int, anchor: date) -> str:
    return f"The {name} {('before', 'of', 'after')[direction + 1]} {format_day(anchor)}"


def named_day(match: re.Match[str], anchor: date) -> DateSpan | None:
    """Resolve ``7 May 2023``, ``7 May '23``, ``May 7th``; without a year, the day closest to the anchor."""
    parts = match.groupdict()
    near = range(anchor.year - 8, anchor.year + 9)  # leap years may be eight years apart
    days = list[date]()
    for year in [full_year(parts["year"], anchor)] if parts.get("year") else near:
        with suppress(ValueError):  # 29 February in another year
            days.append(date(year, month_number(match), int(parts["day"])))
    return day_span(closest_day(days, anchor))


def full_year(year: str, anchor: date) -> int:
    """Read a year; one of two digits is the closest to the anchor, at most ten years after it.

    People are born in '70 more often than they plan for it.
    """
    year = year.lstrip("'")
    if len(year) > 2:
        return int(year)
    century = anchor.year - anchor.year % 100
    years = [century + shift + int(year) for shift in (-100, 0, 100)]
    return min((y for y in years if y <= anchor.year + 10), key=lambda y: abs(y - anchor.year))


def day_in_figures(match: re.Match[str], anchor: date) -> DateSpan | None:
    """Resolve ``6/7/2023``: month and day, or day and month if there is no such month."""
    year, first, second = full_year(match["year"], anchor), int(match["first"]), int(match["second"])
    for month, day in ((first, second), (second, first)):
        with suppress(ValueError):
            return day_span(date(year, month, day))
    return None


def closest_day(days: Iterable[date], anchor: date) -> date | None:
    """Return the day closest to the anchor; of two the earlier."""
    return min(days, key=lambda day: (abs(day - anchor), day), default=None)


def day_of_month(match: re.Match[str], anchor: date) -> DateSpan | None:
    """Resolve ``on the 15th`` to the day of that number that is closest to the anchor, before or after it.

    ``Monday the 12th`` is the closest 12th that is a Monday, at most two months away.
    """
    parts, months = match.groupdict(), [anchor.replace(day=1) + relativedelta(months=m) for m in range(-2, 3)]
    days = [month + relativedelta(day=int(parts["day"])) for month in months if int(parts["day"])]
    days = [day for day in days if day.day == int(parts["day"])]  # relativedelta makes 30 February the 28th
    if weekday := parts.get("weekday"):
        days = [day for day in days if day.weekday() == weekday_number(weekday)]
    return day_span(closest_day(days, anchor))


def day_of_relative_month(match: re.Match[str], anchor: date) -> DateSpan | None:
    """Resolve ``the 5th of next month``."""
    first = anchor.replace(day=1) + relativedelta(months=relative_direction(match))
    with suppress(ValueError):  # a 31st of a shorter month
        return day_span(first.replace(day=int(match["day"])))
    return None


def weekday_number(name: str) -> int:
    """Return 0 for Monday to 6 for Sunday."""
    return _WEEKDAYS.index(name[:3].lower())


def _relative_day(match: re.Match[str], anchor: date) -> DateSpan | None:
    """Resolve ``yesterday``, ``tonight``, ``this morning``, ``the day after tomorrow``."""
    shift = {"yesterday": -1, "last night": -1, "tomorrow": 1}
    shift |= {"day before yesterday": -2, "day after tomorrow": 2}
    return day_span(anchor + timedelta(shift.get(match[0].lower(), 0)))


def relative_weekday(match: re.Match[str], anchor: date) -> DateSpan | None:
    """Resolve ``last Friday``, ``next Friday`` and ``Friday`` (the last); only ``this`` may be the anchor."""
    if _is_other_word(match):
        return None
    is_past = "which" not in match.groupdict() or relative_direction(match) < 0
    days_ahead = (weekday_number(match["weekday"]) - anchor.weekday()) % 7
    if not (is_past or days_ahead) and match["which"].lower() == "this":
        return day_span(anchor)
    day = anchor + timedelta(days_ahead - 7 if is_past else days_ahead or 7)
    return DateSpan(day, day, _relative_phrase(f"{day:%A}", -1 if is_past else 1, anchor))


def _is_other_word(match: re.Match[str]) -> bool:
    """Tell a verb or a noun from a name in a text: ``What comes next may surprise you``, ``this sun``."""
    if match[0].split()[-1] not in ("may", "march", "sun", "sat", "wed") or match[0] == match.string:
        return False
    return match["which"].lower() == "this" or _NEXT_WORD.match(match.string, match.end()) is not None


def _weekday_of_week(match: re.Match[str], anchor: date) -> DateSpan | None:
    """Resolve ``Friday of last week``; weeks begin on Monday."""
    monday = anchor + timedelta(7 * relative_direction(match) - anchor.weekday())
    return day_span(monday + timedelta(weekday_number(match["weekday"])))


def weekday_of_month(match: re.Match[str], anchor: date) -> DateSpan | None:
    """Resolve ``the 2nd Saturday of June 2023`` and ``the last Friday of June``."""
    month, nth = named_month(match, anchor), match["nth"].lower()
    count = -1 if nth == "last" else _NTH.index(nth) + 1 if nth in _NTH else int(nth[0])
    if month is None:
        return None
    start = month.last if count < 0 else month.first
    day = start + relativedelta(weekday=nth_weekday(weekday_number(match["weekday"]), count))
    return day_span(day) if day <= month.last else None  # there is no fifth one


def day_from_day(match: re.Match[str], anchor: date) -> DateSpan | None:
    """Resolve ``a week from Friday``, counted from the coming one, and ``two days from tomorrow``."""
    start, ahead = match["start"].lower(), 0
    if start not in ("today", "tomorrow"):
        ahead = (weekday_number(start) - anchor.weekday()) % 7
    elif start == "tomorrow":
        ahead = 1
    if re.search("couple|few|several", match["count"], re.IGNORECASE):
        return None
    days = 7 if match["unit"].lower() == "week" else 1
    return day_span(anchor + timedelta(ahead + days * number_from_words(match["count"])))


def named_month(match: re.Match[str], anchor: date) -> DateSpan | None:
    """Resolve ``February 2024`` and ``in December``; without a year, to the month closest to the anchor."""
    year, month = match.groupdict().get("year"), month_number(match)
    years = (
        [full_year(year, anchor)] if year else range(max(1, anchor.year - 1), min(anchor.year + 1, 9999) + 1)
    )
    return month_span(closest_day([date(y, month, 1) for y in years], anchor))


def month_number(match: re.Match[str]) -> int:
    """Return the number of a month in words or figures."""
    return (
        int(match["month"]) if match["month"].isdecimal() else _MONTHS.index(match["month"][:3].lower()) + 1
    )


def _month_of_relative_year(match: re.Match[str], anchor: date) -> DateSpan | None:
    """Resolve ``May of last year`` and ``last year in May``, but not ``May this year bring you joy``."""
    is_verb = match["month"] in ("may", "march") or match["which"].lower() == "this"
    if is_verb and match["month"].lower() in ("may", "march") and not re.search(r"\b(?:of|in)\b", match[0]):
        return None
    return month_span(date(anchor.year + relative_direction(match), month_number(match), 1))


def named_year(match: re.Match[str], _: date) -> DateSpan | None:
    """Resolve ``2021``."""
    return year_span(int(match["year"]))


def _season_span(match: re.Match[str], anchor: date) -> DateSpan | None:
    """Resolve ``fall of 2021``, ``last summer`` (that is over) and ``next summer`` (that has not begun).

    ``this summer`` is that of the year; in January and February, ``this winter`` began in the year before.
    Winter has the year in which it begins.
    """
    season, given = match["season"].lower(), match.groupdict().get("year")
    first, year = date(int(given or anchor.year), _SEASONS[season], 1), relativedelta(years=1)
    direction = relative_direction(match) if given is None else None
    while direction == -1 and first + relativedelta(months=3) > anchor:
        first -= year
    if direction == 0 and first - relativedelta(months=9) > anchor:
        first -= year
    if direction == 1 and first <= anchor:
        first += year
    return DateSpan(first, first + relativedelta(months=3, days=-1), f"{season} {first.year}")


def _relative_period(match: re.Match[str], anchor: date) -> DateSpan | None:
    """Resolve ``last week``, ``this month``, ``next year``; weeks begin on Monday, weekends on Saturday.

    ``the past week`` ends with the anchor; ``this coming weekend`` is the first that has not begun. ``last
    May`` and ``next May`` are a year away in May itself; ``this May`` is that of the year.
    """
    direction, which = relative_direction(match), match["which"].lower()
    if "month" in match.groupdict():
        if _is_other_word(match):
            return None
        first = anchor.replace(month=month_number(match), day=1)
        is_this_year = (first.month < anchor.month) if direction < 0 else (first.month > anchor.month)
        is_shifted = which != "this" and not is_this_year
        return month_span(first + relativedelta(years=direction) if is_shifted else first)
    unit = match["unit"].lower()
    if which.endswith("past") and unit != "weekend":
        length = {"week": relativedelta(weeks=1), "month": relativedelta(months=1)}
        first = anchor - length.get(unit, relativedelta(years=1))
        return DateSpan(first, anchor, f"The {unit} up to {format_day(anchor)}")
    if which.endswith("coming") and unit == "weekend" and anchor.weekday() < 5:
        direction = 0
    if unit == "year":
        return year_span(anchor.year + direction)
    if unit == "month":
        return month_span(anchor + relativedelta(months=direction))
    monday = anchor + timedelta(7 * direction - anchor.weekday())
    first = monday + timedelta(5) if unit == "weekend" else monday
    return DateSpan(first, monday + timedelta(6), _relative_phrase(unit, direction, anchor))


def relative_holiday(match: re.Match[str], anchor: date) -> DateSpan | None:
    """Resolve ``Good Friday 2023``, ``last Black Friday`` (that is over) and ``Christmas`` (the closest)."""
    return holiday_span(match, anchor, relative_direction(match) if match["which"] else None)


def _period_at_offset(match: re.Match[str], anchor: date) -> DateSpan | None:
    """Resolve ``two weeks ago``, ``in 3 days`` (an exact day); ``a few`` counts as three.

    ``in two days`` is no date if its clause denies something, or if it is the length of something: ``we
    haven't talked in two days``, ``for the first time in two years``, ``twice in a week``, ``I built it in a
    week``.
    """
    if match[0].lower().startswith("in "):
        before = match.string[max(0, match.start() - _CLAUSE_CHARS) : match.start()]
        clause = _CLAUSE_END.split(before)[-1]
        if _DENIAL.search(clause) or _COMPLETION.search(clause) or _COUNTED_TIME.search(before):
            return None
    words, unit = match["count"].lower(), match["unit"].lower()
    sign, side = (-1, "before") if match.groupdict().get("ago") else (1, "after")
    shift, word = sign * number_from_words(words), words.removeprefix("a ").removesuffix(" of")
    is_vague = word in ("couple", "few", "several")
    is_single = words in ("a", "an", "one", "1")
    phrase = f"{words.capitalize()} {unit}{'' if is_single else 's'} {side}"
    if unit == "weekend":
        saturday = anchor + timedelta(7 * shift + 5 - anchor.weekday())
        return DateSpan(saturday, saturday + timedelta(1), f"{phrase} {format_day(anchor)}")
    if unit in ("day", "week"):
        day = anchor + timedelta(shift if unit == "day" else 7 * shift)
        is_exact = unit == "day" and not is_vague
        return day_span(day) if is_exact else DateSpan(day, day, f"{phrase} {format_day(anchor)}")
    is_month = unit == "month"
    span = month_span(anchor + relativedelta(months=shift)) if is_month else year_span(anchor.year + shift)
    if span is None or not is_vague:
        return span
    return DateSpan(span.first, span.last, f"{phrase} {format_month(anchor) if is_month else anchor.year}")


def number_from_words(words: str) -> int:
    """Read the count of a match with ``COUNT``: ``3``, ``twenty-one``, ``a couple of``."""
    word = words.lower().removeprefix("a ").removesuffix(" of")
    return int(word) if word.isdecimal() else sum(_COUNTS[part] for part in re.split("[ -]", word))


PhraseReader = Callable[[re.Match[str], date], DateSpan | None]
"""A function from a match and its anchor to a span; None if the words are not a date after all."""

PHRASES: tuple[tuple[re.Pattern[str], PhraseReader], ...] = tuple(
    (re.compile(rf"\b{pattern}\b", re.IGNORECASE), reader)
    for pattern, reader in (
        (r"(?P<year>\d{4})(?P<mark>[-/])(?P<month>\d\d)(?P=mark)(?P<day>\d\d)(?:T\d[\d:.+-]*Z?)?", named_day),
        (rf"(?P<first>\d{{1,2}})/(?P<second>\d{{1,2}})/{YEAR}", day_in_figures),
        (r"(?P<day>\d{1,2})\.(?P<month>\d{1,2})\.(?P<year>(?:19|20)\d\d)", named_day),
        (rf"{_ON}{MONTH}\.? (?:the )?{_DAY}(?:,\s| ){YEAR}", named_day),
        (rf"{_ON}{_DAY} (?:of )?{MONTH}\.?(?:,\s| ){YEAR}", named_day),
        (rf"{_ON}{_DAY} (?:of )?{MONTH}\.?{SHORT_YEAR}", named_day),
        (rf"{_ON}{MONTH}\.? (?:the )?{_DAY}{SHORT_YEAR}", named_day),
        (rf"{_ON}(?P<day>0\d) {MONTH} (?P<year>\d\d)(?![:.,]\d|%)", named_day),
        (rf"{_ON}{_DAY} (?:of )?{MONTH}", named_day),  # before the next: "07 June 23" is no 23 June
        (rf"{_ON}{MONTH}\.? (?:the )?{_DAY}", named_day),
        (
            rf"(?:the )?(?P<nth>[1-5](?:st|nd|rd|th)|{'|'.join(_NTH)}|last) {FULL_WEEKDAY} (?:of|in) "
            rf"{MONTH}\.?(?:,? (?:of )?{YEAR})?",
            weekday_of_month,
        ),
        (
            rf"{COUNT} (?P<unit>day|week)s? from (?P<start>today|tomorrow|{WEEKDAY_NAME})(?! to\b)",
            day_from_day,
        ),
        (rf"(?:the )?{ORDINAL} (?:day )?of {THE_WHICH} month", day_of_relative_month),
        (rf"{FULL_WEEKDAY},?(?: of| in)? {THE_WHICH} week", _weekday_of_week),
        (rf"{THE_WHICH} week,?(?: on)? {FULL_WEEKDAY}", _weekday_of_week),
        (rf"{MONTH}{_ABBREVIATED},? (?:of |in )?{THE_WHICH} year", _month_of_relative_year),
        (rf"{THE_WHICH} year,? (?:in )?{MONTH}", _month_of_relative_year),
        (
            "day before yesterday|day after tomorrow|yesterday|last night|today|tonight|tomorrow",
            _relative_day,
        ),
        (r"this (?:morning|afternoon|evening)", _relative_day),
        (rf"{COUNT} {_UNIT} (?P<ago>ago|back)", _period_at_offset),
        (rf"in {COUNT} {_UNIT}", _period_at_offset),
        (rf"{COUNT} {_UNIT} from now", _period_at_offset),
        (rf"{WHICH} (?P<unit>weekend|week|month|year)(?! of\b)", _relative_period),  # "the last week of May"
        (rf"{WHICH} {WEEKDAY}", relative_weekday),
        (rf"{WHICH} {MONTH}", _relative_period),
        (rf"{WHICH} {SEASON}", _season_span),
        (rf"{MONTH},? (?:of )?{YEAR}", named_month),
        (rf"{MONTH},? ['’](?P<year>\d\d)", named_month),
        (rf"{SEASON},? (?:of )?{YEAR}", _season_span),
        (rf"(?:in|since|until|by|early|mid|late)[ -]{MONTH}", named_month),
        (rf"{FULL_WEEKDAY},? (?:the )?{ORDINAL}", day_of_month),
        (rf"(?:{THE_WHICH} )?{WEEKDAY_HOLIDAY}(?:,? (?:of )?{YEAR})?", relative_holiday),
        (rf"{FULL_WEEKDAY}(?! (?:before last|after next)\b)", relative_weekday),
        (rf"on the {ORDINAL}{_COUNTED_THING}", day_of_month),
        (YEAR, named_year),
    )
)
"""Each pattern with its reader; if two matches overlap in a text, the pattern that comes first here wins."""

DAY_READERS = (
    named_day,
    day_of_month,
    day_of_relative_month,
    day_in_figures,
    weekday_of_month,
    day_from_day,
)
"""If one of them finds no such day (31 June 2023), no part of the phrase is a date either."""
