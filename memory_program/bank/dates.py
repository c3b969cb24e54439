"""When something happened: expressions of time, resolved against the day on which they were said.

Days are worked out by dateparser, always relative to the anchor: nothing here looks at the clock of the
machine. What is ours is how long the stretch of time is that an expression names, and how to write it down
(a speaker who says "last week" on 9 June 2023 means "The week before 9 June 2023", not a day).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from typing import Literal

from dateparser.date import DateDataParser
from dateutil.relativedelta import relativedelta

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
_MONTH_NAMES = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_MONTHS = tuple(name[:3].lower() for name in _MONTH_NAMES)
_SEASONS = {"winter": 12, "spring": 3, "summer": 6, "fall": 9, "autumn": 9}

_COUNT = (  # not the end of another number: "1.5 years", "half a year", "a hundred and one days"
    r"(?<![-.,\d])(?<!half )(?<!hundred )(?<!hundred and )"
    r"(?P<count>\d{1,3}|(?:a )?(?:couple(?: of)?|few)|several|an?"
    rf"|(?:{'|'.join(_TENS)})(?:[ -](?:{'|'.join(_NUMBERS[:9])}))?|{'|'.join(reversed(_NUMBERS))})"
)
_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WEEKDAY = r"(?P<weekday>mon|tues?|wed(?:nes)?|thu(?:rs?)?|fri|sat(?:ur)?|sun)(?:day)?"
_FULL_WEEKDAY = r"(?P<weekday>mon|tues|wednes|thurs|fri|satur|sun)day"
_SEASON = rf"(?P<season>{'|'.join(_SEASONS)})"
_WHICH = r"(?P<which>last|this past|past|this|next|this coming|coming|previous)"
_YEAR = r"(?P<year>(?:19|20)\d\d)"
_ORDINAL = r"(?P<day>\d{1,2})(?:st|nd|rd|th)"
_DAY = rf"{_ORDINAL}?"
_ON = r"(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day,? )?(?:the )?"
_HOUR = re.compile(
    r",? (?:at |around |about |by )*(?:\d{1,2}(?::\d\d)? ?[ap]\.?m\.?|\d{1,2}:\d\d|noon|midnight)$"
    r"|,?(?: in the)? (?:morning|afternoon|evening|night)$",
    re.IGNORECASE,
)
_NUMBERED_MONTH = re.compile(r"(?!0000)\d{4}-(?:0[1-9]|1[0-2])")
_BESIDE = re.compile(r" (?:before|of|after) ")
_UNIT = r"(?P<unit>day|week|weekend|month|year)s?"
_AFTER_PREPOSITION = re.compile(
    r"\b(?:in|on|since|by|until|from|of|during|about|around|early|mid|late)(?: the)?[ -]$", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Stretch:
    """The days that an expression of time names, both ends included, and how an answer writes them."""

    first: date
    last: date
    phrase: str

    @property
    def is_day(self) -> bool:
        """Whether it is a single day."""
        return self.first == self.last

    def told_in(self, sentence: str, said: str) -> str:
        """Let a sentence tell when it was: in place of what was said, if it repeats that, or at its end.

        Example:
            >>> january = Stretch(date(2023, 1, 1), date(2023, 1, 31), "January 2023")
            >>> january.told_in("Ana visited Rome.", "last month")
            'Ana visited Rome in January 2023.'
            >>> january.told_in("Last month Ana visited Rome.", "last month")
            'In January 2023 Ana visited Rome.'
            >>> january.told_in("Ana lives there since last month!", "last month")
            'Ana lives there since January 2023!'
        """
        if self.phrase.casefold() in sentence.casefold():
            return sentence
        is_beside = _BESIDE.search(self.phrase)  # "The week before 9 June 2023"
        told = self.phrase[0].lower() + self.phrase[1:] if is_beside else f"in {self.phrase}"
        repeated = re.search(rf"\b{re.escape(said)}\b", sentence, re.IGNORECASE)
        if repeated is None:
            body = sentence.rstrip(".!?")
            return f"{body} {told}{sentence[len(body) :]}"
        if _AFTER_PREPOSITION.search(sentence[: repeated.start()]):
            told = told.removeprefix("in ")
        if repeated.start() == 0:
            told = told[0].upper() + told[1:]
        return f"{sentence[: repeated.start()]}{told}{sentence[repeated.end() :]}"


@dataclass(frozen=True, slots=True)
class DateMention:
    """An expression of time in a text: ``text[start:end]``, and what it names."""

    start: int
    end: int
    stretch: Stretch


def spelled_day(day: date) -> str:
    """Write a day as answers write it: ``7 May 2023``."""
    return f"{day.day} {_MONTH_NAMES[day.month - 1]} {day.year}"


def spelled_month(day: date) -> str:
    """Write a day's month as answers write it: ``May 2023``."""
    return f"{_MONTH_NAMES[day.month - 1]} {day.year}"


def find_dates(text: str, anchor: date) -> list[DateMention]:
    """List the expressions of time in a text that was said on ``anchor``, in their order; none overlap.

    A day without a year is in the year that brings it closest to the anchor; "Friday" alone is the last one.

    Example:
        >>> said_on = date(2023, 6, 9)
        >>> [found.stretch.phrase for found in find_dates("I ran yesterday, and two weeks ago.", said_on)]
        ['8 June 2023', 'Two weeks before 9 June 2023']
    """
    found: list[DateMention] = []
    for pattern, read in _RULES:
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
    resolved = resolve_time(expression, anchor)
    return resolved and resolved.first


def resolve_time(expression: str, anchor: date) -> Stretch | None:
    """Resolve an expression that was said on ``anchor``: a day, or the stretch that it names.

    Takes ISO dates, the expressions of ``find_dates``, and whatever else dateparser reads in English.

    Returns:
        None for what is no expression of time.

    Example:
        >>> resolve_time("next month", date(2023, 12, 15)).phrase
        'January 2024'
    """
    expression = " ".join(expression.split()).strip(".,;")
    if _NUMBERED_MONTH.fullmatch(expression):
        return _month(datetime.strptime(expression, "%Y-%m").date())
    try:
        return _day(datetime.fromisoformat(expression).date())
    except ValueError:
        pass  # most are written in words
    for said in dict.fromkeys((expression, _HOUR.sub("", expression))):
        for mention in find_dates(said, anchor):
            if mention.end == len(said) and _LEADING_WORDS.fullmatch(said[: mention.start]):
                return mention.stretch
        if alone := _DAY_ALONE.fullmatch(said):
            return _day_of_month(alone, anchor)
    if expression.isdigit() or _MISREAD.search(expression):
        return None
    return _read(expression, anchor)


_DAY_ALONE = re.compile(rf"the {_ORDINAL}", re.IGNORECASE)
_MISREAD = re.compile(
    r"\d0s\b"  # dateparser takes the 80s for seconds
    r"|\b(?:before|after|half)\b"  # and of these sees what stands beside them
    rf"|^(?=.*\d).*\b{_MONTH}\b",  # of "10-12 June" it makes the year 2012
    re.IGNORECASE,
)
_LEADING_WORDS = re.compile(
    r"(?:(?:on|in|around|about|since|by|during|the|early|mid|late|of|end)[ -])*", re.I
)


@lru_cache(maxsize=4096)
def _parsed(
    expression: str, anchor: date, prefer: Literal["past", "future"] = "past"
) -> tuple[date, str] | None:
    """What dateparser makes of an expression: the first day, and how long it is ("day", "month", ...).

    The cache is there because it takes milliseconds.
    """
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
        return None  # beyond the calendar
    return None if found.date_obj is None else (found.date_obj.date(), str(found.period))


def _read(expression: str, anchor: date) -> Stretch | None:
    """Read what no rule of ours does, as long as dateparser takes it to be; a week or a quarter is not."""
    if (parsed := _parsed(expression, anchor)) is None:
        return None
    day, period = parsed
    if period == "month":
        return _month(day)
    if period == "year":
        return _year(day.year)
    return _day(day) if period in ("day", "part_of_day", "time") else None


def _first_day(expression: str, anchor: date, prefer: Literal["past", "future"] = "past") -> date | None:
    parsed = _parsed(expression, anchor, prefer)
    return None if parsed is None else parsed[0]


def _closest(expression: str, anchor: date) -> date | None:
    days = [_first_day(expression, anchor, "past"), _first_day(expression, anchor, "future")]
    return min((day for day in days if day), key=lambda day: abs(day - anchor), default=None)


def _day(day: date | None) -> Stretch | None:
    return None if day is None else Stretch(day, day, spelled_day(day))


def _month(day: date | None) -> Stretch | None:
    if day is None:
        return None
    first = day.replace(day=1)
    return Stretch(first, first + relativedelta(months=1, days=-1), spelled_month(first))


def _year(year: int) -> Stretch | None:
    return Stretch(date(year, 1, 1), date(year, 12, 31), str(year)) if 1 <= year <= 9999 else None


def _direction(match: re.Match[str]) -> int:
    """-1 for the last one, 0 for this one, 1 for the next."""
    which = match["which"].lower()
    return {"this": 0, "next": 1, "this coming": 1, "coming": 1}.get(which, -1)


def _beside(what: str, direction: int, anchor: date) -> str:
    return f"The {what} {('before', 'of', 'after')[direction + 1]} {spelled_day(anchor)}"


def _named_day(match: re.Match[str], anchor: date) -> Stretch | None:
    """``7 May 2023``, ``May 7th``: without a year, the closest to the anchor."""
    parts = match.groupdict()
    month = parts["month"]
    number = int(month) if month.isdecimal() else _MONTHS.index(month[:3].lower()) + 1
    near = range(anchor.year - 8, anchor.year + 9)  # leap years may be so far apart
    years = [int(parts["year"])] if parts.get("year") else near
    days = [found for year in years if (found := _in_calendar(year, number, int(parts["day"])))]
    return _day(min(days, key=lambda day: abs(day - anchor), default=None))


def _in_calendar(year: int, month: int, day: int) -> date | None:
    try:
        return date(year, month, day)
    except ValueError:
        return None


def _day_of_month(match: re.Match[str], anchor: date) -> Stretch | None:
    """``on the 15th``: the last such day that is not after the anchor."""
    day, month = int(match["day"]), anchor.replace(day=1)
    while 1 <= day <= 31:
        found = month + relativedelta(day=day)
        if found.day == day and found <= anchor:
            return _day(found)
        month -= relativedelta(months=1)
    return None


def _told_day(match: re.Match[str], anchor: date) -> Stretch | None:
    shift = {"yesterday": -1, "last night": -1, "tomorrow": 1}
    shift |= {"day before yesterday": -2, "day after tomorrow": 2}
    return _day(anchor + timedelta(shift.get(match[0].lower(), 0)))


def _weekday(match: re.Match[str], anchor: date) -> Stretch | None:
    """``last Friday``, ``next Friday``; ``Friday`` alone is the last one. Never the anchor itself."""
    is_past = "which" not in match.groupdict() or _direction(match) < 0
    days_ahead = (_WEEKDAYS.index(match["weekday"][:3].lower()) - anchor.weekday()) % 7
    day = anchor + timedelta(days_ahead - 7 if is_past else days_ahead or 7)
    return Stretch(day, day, _beside(f"{day:%A}", -1 if is_past else 1, anchor))


def _named_month(match: re.Match[str], anchor: date) -> Stretch | None:
    return _month(_closest(f"{match['month']} {match.groupdict().get('year', '')}".strip(), anchor))


def _month_beside(match: re.Match[str], anchor: date) -> Stretch | None:
    """``last May``, ``next May``; in May itself, last May was a year ago. ``this May`` is the year's."""
    direction = _direction(match)
    if match["which"].lower() == "this":
        is_verb = match["month"] in ("may", "march")  # "this may be", "this march"
        number = _MONTHS.index(match["month"][:3].lower()) + 1
        return None if is_verb else _month(anchor.replace(month=number, day=1))
    day = _first_day(match["month"], anchor, "past" if direction < 0 else "future")
    if day is not None and direction and day.month == anchor.month:
        day = anchor + relativedelta(years=direction)
    return _month(day)


def _named_year(match: re.Match[str], anchor: date) -> Stretch | None:
    return _year(int(match["year"]))


def _named_season(match: re.Match[str], anchor: date) -> Stretch | None:
    first = date(int(match["year"]), _SEASONS[match["season"].lower()], 1)
    return _quarter(match["season"], first)


def _season_beside(match: re.Match[str], anchor: date) -> Stretch | None:
    """``last summer``: the last one that is over; ``next summer``: the first that has not begun.

    ``this summer`` is the year's; in January and February, ``this winter`` began in the year before.
    """
    direction, year = _direction(match), relativedelta(years=1)
    first = date(anchor.year, _SEASONS[match["season"].lower()], 1)
    while direction < 0 and first + relativedelta(months=3) > anchor:
        first -= year
    if direction == 0 and first - relativedelta(months=9) > anchor:
        first -= year
    if direction > 0 and first <= anchor:
        first += year
    return _quarter(match["season"], first)


def _quarter(season: str, first: date) -> Stretch:
    """A season has the year in which it begins."""
    return Stretch(first, first + relativedelta(months=3, days=-1), f"{season.lower()} {first.year}")


def _neighbour(match: re.Match[str], anchor: date) -> Stretch | None:
    """``last week``, ``this month``, ``next year``. A week begins on Monday, its weekend on Saturday."""
    direction, unit = _direction(match), match["unit"].lower()
    if unit == "year":
        return _year(anchor.year + direction)
    if unit == "month":
        return _month(anchor + relativedelta(months=direction))
    monday = anchor + timedelta(7 * direction - anchor.weekday())
    first = monday + timedelta(5) if unit == "weekend" else monday
    return Stretch(first, monday + timedelta(6), _beside(unit, direction, anchor))


def _distance(match: re.Match[str], anchor: date) -> Stretch | None:
    """``two weeks ago``, ``in 3 days``: exact for days; ``a few`` is read as three and written as said."""
    words, unit = match["count"].lower(), match["unit"].lower()
    word = words.removeprefix("a ").removesuffix(" of")
    sign, side = (-1, "before") if match.groupdict().get("ago") else (1, "after")
    shift = sign * (int(word) if word.isdecimal() else sum(_COUNTS[part] for part in re.split("[ -]", word)))
    is_vague = word in ("couple", "few", "several")
    if unit in ("day", "week", "weekend"):
        day = anchor + timedelta(shift if unit == "day" else 7 * shift)
        if unit == "day" and not is_vague:
            return _day(day)
        return Stretch(day, day, f"{_plural(words, unit)} {side} {spelled_day(anchor)}")
    stretch = _month(anchor + relativedelta(months=shift)) if unit == "month" else _year(anchor.year + shift)
    if stretch is None or not is_vague:
        return stretch
    here = spelled_month(anchor) if unit == "month" else str(anchor.year)
    return Stretch(stretch.first, stretch.last, f"{_plural(words, unit)} {side} {here}")


def _plural(count: str, unit: str) -> str:
    return f"{count.capitalize()} {unit}{'' if count in ('a', 'an', 'one', '1') else 's'}"


_Reading = Callable[[re.Match[str], date], Stretch | None]
_RULES: tuple[tuple[re.Pattern[str], _Reading], ...] = tuple(
    (re.compile(rf"\b{pattern}\b", re.IGNORECASE), read)
    for pattern, read in (
        (r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)", _named_day),
        (r"(?P<day>\d{1,2})\.(?P<month>\d{1,2})\.(?P<year>(?:19|20)\d\d)", _named_day),
        (rf"{_ON}{_MONTH}\.? (?:the )?{_DAY},? {_YEAR}", _named_day),
        (rf"{_ON}{_MONTH}\.? (?:the )?{_DAY}", _named_day),
        (rf"{_ON}{_DAY} (?:of )?{_MONTH},? {_YEAR}", _named_day),
        (rf"{_ON}{_DAY} (?:of )?{_MONTH}", _named_day),
        (
            "day before yesterday|day after tomorrow|yesterday|last night|today|tonight|tomorrow",
            _told_day,
        ),
        (r"this (?:morning|afternoon|evening)", _told_day),
        (rf"{_COUNT} {_UNIT} (?P<ago>ago|back)", _distance),
        (rf"in {_COUNT} {_UNIT}", _distance),
        (rf"{_COUNT} {_UNIT} from now", _distance),
        (rf"{_WHICH} (?P<unit>weekend|week|month|year)", _neighbour),
        (rf"{_WHICH} {_WEEKDAY}", _weekday),
        (rf"{_WHICH} {_MONTH}", _month_beside),
        (rf"{_WHICH} {_SEASON}", _season_beside),
        (rf"{_MONTH},? (?:of )?{_YEAR}", _named_month),
        (rf"{_SEASON},? (?:of )?{_YEAR}", _named_season),
        (rf"(?:in|since|until|by|early|mid|late)[ -]{_MONTH}", _named_month),
        (_FULL_WEEKDAY, _weekday),
        (rf"on the {_ORDINAL}", _day_of_month),
        (_YEAR, _named_year),
    )
)
