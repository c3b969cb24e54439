"""Expressions that are dates as a whole: what a model writes as the time of an event.

``phrases`` has what is found inside a text; here is what is only read if nothing else stands beside it.
"""

import re
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from functools import lru_cache

from dateparser.date import DateDataParser

from memory_program.bank.dates.date_span import (
    DateSpan,
    day_span,
    format_day,
    format_month,
    year_span,
)
from memory_program.bank.dates.holidays import HOLIDAY
from memory_program.bank.dates.phrases import (
    COUNT,
    FULL_WEEKDAY,
    MONTH,
    ORDINAL,
    PHRASES,
    SHORT_YEAR,
    THE_WHICH,
    WEEKDAY,
    WEEKDAY_NAME,
    PhraseReader,
    day_in_figures,
    day_of_month,
    month_number,
    named_day,
    named_month,
    named_year,
    number_from_words,
    relative_direction,
    relative_holiday,
    relative_weekday,
    weekday_number,
)

_YEAR = r"(?P<year>[12]\d{3})"
_ANY_YEAR = r"(?P<year>[12]\d{3}|'\d\d)"
_OF = r"(?:,? (?:of |in )?)"

_HOUR_12 = r"(?:0?[1-9]|1[0-2])(?:[:.][0-5]\d){0,2} ?[ap]\.?m\.?"
_HOUR_24 = r"(?:[01]?\d|2[0-3])(?::[0-5]\d){1,2}(?: ?(?:h|hrs|hours|utc|gmt))?"
_SPOKEN_HOUR = r"(?:half|a quarter|quarter) (?:past|to) (?:\d{1,2}|[a-z]{3,6})|\d{1,2} o'?clock"
_PART_OF_DAY = r"(?:morning|afternoon|evening|night|noon|midday|midnight|dawn|lunchtime|dinnertime|bedtime)"
_TWELVE = r"12 (?:at |in the )?(?:noon|midday|midnight|morning|afternoon|night)"
_TIMES = [  # "12 noon" first as a time of day, then as the end of "May 12 noon"
    r"(?:(?:at|around|about|by|in|on|the|early|late|later|that|this|from)[ ,]+)*"
    rf"(?:{twelve}{_HOUR_12}|{_HOUR_24}|{_SPOKEN_HOUR}|{_PART_OF_DAY}|(?<=at )\d{{1,2}})"
    for twelve in (f"{_TWELVE}|", "")
]
_TIMES_AROUND = [
    (
        re.compile(rf"(?:^|[ ,]+){time}$", re.IGNORECASE),
        re.compile(rf"^{time}(?:,? (?:on|of)\b)?(?:[ ,]+|$)", re.IGNORECASE),
    )
    for time in _TIMES
]

_LEADING_WORD = re.compile(
    r"(?:on|in|at|around|about|approximately|roughly|circa|since|by|during|from|until|till|the|early|mid|late"
    r"|earlier|later|of|end|sometime|some time|maybe|perhaps|probably|just|exactly|almost|nearly)(?:[ -]|, )",
    re.IGNORECASE,
)
_NAMED_COUNTS = {"fortnight": "two weeks", "decade": "ten years"}
_WEEKDAY_OF_DAY = re.compile(
    rf"\b{WEEKDAY}\.?,? (?:the )?(?:\d{{1,2}}(?:st|nd|rd|th)?[- ](?:of )?)?{MONTH}\b", re.IGNORECASE
)
_OTHER_DAY = re.compile(rf"\bafter\b|\b{ORDINAL} {WEEKDAY}\b", re.IGNORECASE)  # "the 2nd Sat of May 2023"
_IN_BRACKETS = re.compile(r"(?P<said>.+?),? \((?P<same>[^()]+)\)")


@lru_cache(maxsize=4096)  # parts of a loop ("the end of the end of ...") are read again and again
def resolve_date_span(expression: str, anchor: date) -> DateSpan | None:
    """Resolve a date phrase that was said on ``anchor`` to its span of days.

    - A day of the month ("12th"), a day without a year and a month without one are the closest to the anchor,
      before or after it.
    - A holiday is that of the anchor's year, unless the one of another year is within 60 days.
    - A time of day is the anchor's day.
    - In 6/7/2023 the month comes first, unless there is no such month.

    Returns:
        None if any part of it is not understood, or if there is no such day (31 February).

    Example:
        >>> resolve_date_span("next month", date(2023, 12, 15)).phrase
        'January 2024'
        >>> resolve_date_span("Monday the 12th", date(2023, 6, 14)).phrase
        '12 June 2023'
    """
    text = " ".join(expression.replace("’", "'").replace("–", "-").split()).strip(" .,;:!?\"'[]")
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1].strip()
    for name, count in _NAMED_COUNTS.items():
        text = re.sub(rf"\b(?:a|one) {name}\b", count, text, flags=re.IGNORECASE)
    candidates = [text]
    for after, before in _TIMES_AROUND:
        timeless = text
        for _ in range(3):
            timeless = before.sub("", after.sub("", timeless))
        candidates.append(timeless)
    longer: DateSpan | None = None
    for said in dict.fromkeys(candidates):
        try:
            span = _resolve(said, anchor) if said else day_span(anchor) if text else None
        except (OverflowError, ValueError):
            continue  # outside the calendar: "999 years ago", said in the year 8
        if span is not None and (said == text or span.is_day):
            return span
        longer = longer or span  # what has a time of day is rather a day
    return longer


def _resolve(text: str, anchor: date) -> DateSpan | None:
    """Resolve a text without a time of day."""
    with suppress(ValueError):
        return day_span(datetime.fromisoformat(text).date())
    if bracketed := _IN_BRACKETS.fullmatch(text):  # "Monday, 8 May 2023 (2023-05-08)", "2023/05/08 (Mon)"
        span, same = (resolve_date_span(bracketed[name], anchor) for name in ("said", "same"))
        named = re.fullmatch(rf"{WEEKDAY}\.?", bracketed["same"], re.IGNORECASE)
        is_weekday = named and span and span.first.weekday() == weekday_number(named["weekday"])
        is_same = span is not None and same is not None and (span.first, span.last) == (same.first, same.last)
        return span if is_weekday or is_same else None
    said, span = text, None
    while said and span is None:
        for pattern, reader in (*_EXPRESSIONS, *PHRASES):
            if (match := pattern.fullmatch(said)) and (span := reader(match, anchor)):
                break
        else:
            lead = _LEADING_WORD.match(said)
            said = said[lead.end() :] if lead else ""
    if span is None:
        month = re.search(rf"\b{MONTH}\b", text, re.IGNORECASE)
        numbers = sorted(map(int, re.findall(r"\d+", re.sub(rf"\b(?:{_HOUR_12}|{_HOUR_24})", "", text))))
        if month is not None and len(numbers) == 2 and not _OTHER_DAY.search(text):
            # a day with a month in words and a year, in any order
            parser = DateDataParser(
                languages=["en"],
                settings={
                    "RELATIVE_BASE": datetime.combine(anchor, time(12)),
                    "PARSERS": ["absolute-time"],
                    "REQUIRE_PARTS": ["day", "month", "year"],
                },
            )
            found = parser.get_date_data(text).date_obj
            # dateparser ignores words that it does not know, and moves impossible dates
            if found is not None and sorted((found.day, found.year)) == numbers:
                span = day_span(found.date()) if found.month == month_number(month) else None
    named = _WEEKDAY_OF_DAY.search(text)
    is_other_day = named and span and span.is_day and span.first.weekday() != weekday_number(named["weekday"])
    return None if is_other_day else span


def _weekday_at_offset(match: re.Match[str], anchor: date) -> DateSpan | None:
    """Resolve ``two Fridays ago``, counted from the last Friday before the anchor; ``a Friday`` is none."""
    if match["count"].lower() in ("a", "an"):
        return None
    weekday, count = weekday_number(match["weekday"]), number_from_words(match["count"])
    ahead = (weekday - anchor.weekday()) % 7
    is_past = match.groupdict().get("ago") is not None
    return day_span(anchor + timedelta(ahead - 7 * count if is_past else (ahead or 7) + 7 * (count - 1)))


def _before_last(match: re.Match[str], anchor: date) -> DateSpan | None:
    """Resolve ``the week before last`` and ``the month after next``."""
    unit, steps = match["unit"].lower(), -2 if match["side"].lower() == "before last" else 2
    if unit == "year":
        return year_span(anchor.year + steps)
    if unit == "month":
        return resolve_date_span(format_month(_shifted_month(anchor, steps)), anchor)
    if unit in ("week", "weekend"):
        return resolve_date_span(f"the {unit} of {format_day(anchor + timedelta(7 * steps))}", anchor)
    ahead = (weekday_number(unit) - anchor.weekday()) % 7
    return day_span(anchor + timedelta(ahead - 14 if steps < 0 else (ahead or 7) + 7))


def _shifted_month(day: date, months: int) -> date:
    index = day.year * 12 + day.month - 1 + months
    return date(index // 12, index % 12 + 1, 1)


def _part_of_period(match: re.Match[str], anchor: date) -> DateSpan | None:
    """Resolve ``the end of May``, ``mid-June 2022``, ``early this month``, ``late 2022``.

    Early are the days 1 to 10 and the months January to April, mid the next ten days or four months.
    """
    part = match["part"].lower()
    part = {"beginning": "early", "start": "early", "middle": "mid", "end": "late"}.get(part, part)
    place = ("early", "mid", "late").index(part)
    period = re.sub("^the (month|year)$", r"this \1", match["period"], flags=re.IGNORECASE)
    whole = resolve_date_span(period, anchor)
    join = "-" if part == "mid" else " "
    if whole is not None and whole.phrase == format_month(whole.first):
        first = whole.first.replace(day=1 + 10 * place)
        last = whole.last if part == "late" else first + timedelta(9)
    elif whole is not None and whole.phrase == str(whole.first.year):
        first = whole.first.replace(month=1 + 4 * place)
        last = _shifted_month(first, 4) - timedelta(1)
    else:
        return None
    return DateSpan(first, last, f"{part}{join}{whole.phrase}")


def _hours_away(match: re.Match[str], anchor: date) -> DateSpan | None:
    """Resolve ``three hours ago``, said at noon."""
    unit = {"h": timedelta(hours=1), "m": timedelta(minutes=1), "s": timedelta(seconds=1)}[
        match["unit"][0].lower()
    ]
    shift = number_from_words(match["count"]) * unit
    noon = datetime.combine(anchor, time(12))
    return day_span((noon - shift if match["ago"] else noon + shift).date())


def _relative_to_date(match: re.Match[str], anchor: date) -> DateSpan | None:
    """Resolve ``the week before 9 June 2023`` and ``two days after Easter``, as if said on that date.

    Every phrase that this program writes for a span is of this form, or names its days.
    """
    reference = resolve_date_span(match["date"], anchor)
    if reference is None:
        return None
    unit, counted = match["unit"].lower(), match["counted"].lower()
    side = {"prior to": "before", "following": "after"}.get(match["side"].lower(), match["side"].lower())
    is_long = unit.rstrip("s") in ("month", "year")
    if side == "up to":
        is_one = counted in ("week", "month", "year") and reference.is_day
        return resolve_date_span(f"past {unit}", reference.first) if is_one else None
    if unit in ("day", "night", "evening", "morning", "afternoon"):
        shift = {"before": -1, "of": 0, "after": 1}[side]
        is_day = reference.is_day or shift
        return (
            day_span((reference.last if shift > 0 else reference.first) + timedelta(shift))
            if is_day
            else None
        )
    if side == "of":
        if is_long:
            return reference if counted in ("month", "year") and not reference.is_day else None
        is_week = counted in ("week", "weekend") and reference.is_day
        return resolve_date_span(f"this {unit}", reference.first) if is_week else None
    said_on = reference.last if side == "after" and not is_long else reference.first
    if counted == unit:
        return resolve_date_span(f"{'last' if side == 'before' else 'next'} {unit}", said_on)
    return resolve_date_span(f"{counted} ago" if side == "before" else f"in {counted}", said_on)


_WEEKDAY_LEAD = r"(?:(?:mon|tues?|wed(?:nes)?|thu(?:rs?)?|fri|sat(?:ur)?|sun)(?:day)?\.?,? )?(?:the )?"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_UNIT_BESIDE_DATE = (
    rf"(?P<counted>(?:{COUNT} )?(?P<unit>days?|weeks?|weekends?|months?|years?|night|evening|morning"
    rf"|afternoon|{WEEKDAY_NAME}))"
)

_TABLE: tuple[tuple[str, PhraseReader], ...] = (
    (
        r"(?:right |just )?now|(?:the |this )same day|this day|today's date",
        lambda _, anchor: day_span(anchor),
    ),
    (
        r"(?:the )?other (?:day|night|evening)",
        lambda _, anchor: resolve_date_span("a few days ago", anchor),
    ),
    (rf"{_YEAR}[-/. ](?P<month>\d{{1,2}})[-/. ](?P<day>\d{{1,2}})", named_day),
    (rf"{_YEAR}[-/.](?P<month>0?[1-9]|1[0-2])", named_month),
    (r"(?P<month>0?[1-9]|1[0-2])[-/.](?P<year>[12]\d{3})", named_month),
    (r"(?P<first>\d{1,2})[-/](?P<second>\d{1,2})[-/](?P<year>[12]\d{3}|\d\d)", day_in_figures),
    (_YEAR, named_year),
    (rf"{_WEEKDAY_LEAD}{MONTH}\.?[- ](?:the )?{_DAY},? {_ANY_YEAR}", named_day),
    (rf"{_WEEKDAY_LEAD}{_DAY}[- ](?:of )?{MONTH}\.?[-, ]{{1,2}}{_ANY_YEAR}", named_day),
    (rf"{_WEEKDAY_LEAD}{MONTH}\.?[- ](?:the )?{_DAY}{SHORT_YEAR}", named_day),
    (rf"{_WEEKDAY_LEAD}{_DAY}[- ](?:of )?{MONTH}\.?[-, ]{{1,2}}(?P<year>\d\d)", named_day),
    (rf"{_WEEKDAY_LEAD}{_DAY}[- ](?:of )?{MONTH}\.?", named_day),
    (rf"{_WEEKDAY_LEAD}{MONTH}\.?[- ](?:the )?{_DAY}", named_day),
    (rf"{MONTH}\.?{_OF}{_ANY_YEAR}", named_month),
    (rf"{MONTH}\.?", named_month),
    (rf"{WEEKDAY}\.?", relative_weekday),
    (ORDINAL, day_of_month),
    (rf"{FULL_WEEKDAY},? (?:the )?{ORDINAL}", day_of_month),
    (rf"{COUNT} {FULL_WEEKDAY}s? (?P<ago>ago|back)", _weekday_at_offset),
    (rf"(?:in {COUNT} {FULL_WEEKDAY}s?)", _weekday_at_offset),
    (rf"{COUNT} {FULL_WEEKDAY}s? from now", _weekday_at_offset),
    (
        rf"(?P<unit>week|weekend|month|year|{WEEKDAY_NAME}) "
        r"(?P<side>before last|after next)",
        _before_last,
    ),
    (
        rf"{COUNT} (?P<unit>hour|hr|minute|min|second|moment)s? (?:(?P<ago>ago|back|earlier)|later|from now)",
        _hours_away,
    ),
    (rf"(?:in )?{COUNT} (?P<unit>hour|minute|second)s?(?P<ago>)", _hours_away),
    (
        r"(?:the )?(?P<part>early|mid|late|(?:beginning|start|middle|end)(?= of))(?: of |[ -])(?P<period>.+)",
        _part_of_period,
    ),
    (
        rf"(?:{THE_WHICH} |(?:over )?the )?(?:over )?{HOLIDAY}(?:{_OF}{_YEAR})?",
        relative_holiday,
    ),
    (
        rf"{HOLIDAY}{_OF}{THE_WHICH} year",
        lambda match, anchor: resolve_date_span(
            f"{match['holiday']} {anchor.year + relative_direction(match)}", anchor
        ),
    ),
    (
        r"(?:over |at )?(?:the )?weekend",
        lambda _, anchor: resolve_date_span(
            "this weekend" if anchor.weekday() >= 5 else "last weekend", anchor
        ),
    ),
    (
        rf"(?:the )?{_UNIT_BESIDE_DATE} (?P<side>before|of|after|prior to|following|up to) (?P<date>.+)",
        _relative_to_date,
    ),
)
_EXPRESSIONS = tuple((re.compile(pattern, re.IGNORECASE), reader) for pattern, reader in _TABLE)
