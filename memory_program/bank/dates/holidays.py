"""Holidays by which people date events."""

import re
from collections.abc import Callable
from datetime import date, timedelta

from dateutil.easter import easter
from dateutil.relativedelta import MO, SU, TH, relativedelta

from memory_program.bank.dates.date_span import DateSpan, day_span

_NEAR = timedelta(60)


def _fixed(month: int, day: int) -> Callable[[int], date]:
    return lambda year: date(year, month, day)


def _weekday_of(month: int, weekday: relativedelta) -> Callable[[int], date]:
    return lambda year: date(year, month, 1) + weekday


def _from_easter(days: int) -> Callable[[int], date]:
    return lambda year: easter(year) + timedelta(days)


_HOLIDAYS: dict[str, Callable[[int], date]] = {
    r"new year'?s?'? eve|nye": _fixed(12, 31),
    r"new year'?s?'?(?: day)?": _fixed(1, 1),
    r"(?:(?:st|saint)\.? )?valentine'?s?'?(?: day)?": _fixed(2, 14),
    r"(?:st|saint)\.? patrick'?s?(?: day)?": _fixed(3, 17),
    r"good friday": _from_easter(-2),
    r"easter monday": _from_easter(1),
    r"easter(?: sunday| day)?": _from_easter(0),
    r"mother'?s?'? day": _weekday_of(5, relativedelta(weekday=SU(2))),
    r"memorial day": _weekday_of(5, relativedelta(day=31, weekday=MO(-1))),
    r"father'?s?'? day": _weekday_of(6, relativedelta(weekday=SU(3))),
    r"independence day|(?:the )?(?:fourth|4th) of july": _fixed(7, 4),
    r"labor day": _weekday_of(9, relativedelta(weekday=MO(1))),
    r"hallowe'?en": _fixed(10, 31),
    r"thanksgiving(?: day)?": _weekday_of(11, relativedelta(weekday=TH(4))),
    r"black friday": lambda year: date(year, 11, 1) + relativedelta(weekday=TH(4)) + timedelta(1),
    r"(?:christmas|xmas) eve": _fixed(12, 24),
    r"(?:christmas|xmas)(?: day)?": _fixed(12, 25),
    r"boxing day": _fixed(12, 26),
}
HOLIDAY = rf"(?P<holiday>{'|'.join(_HOLIDAYS)})"
"""A pattern of all their names; those that move with the year are the ones of the United States."""


WEEKDAY_HOLIDAY = r"(?P<holiday>good friday|black friday|easter (?:monday|sunday))"
"""Those that would be read as a day of the week inside a text."""


def holiday_span(match: re.Match[str], anchor: date, direction: int | None = None) -> DateSpan | None:
    """Resolve the holiday of a match with ``HOLIDAY``.

    Args:
        match: it may have a year, as ``year``.
        anchor: the day on which it was said.
        direction: -1 for the last one before the anchor, 1 for the next one after it, 0 for that of the
            anchor's year. None takes that year's, too, unless the one of another year is within 60 days: said
            in January, "Christmas" was in December.
    """
    name = match["holiday"]
    day_of = next(day for names, day in _HOLIDAYS.items() if re.fullmatch(names, name, re.IGNORECASE))
    if match["year"]:
        return day_span(day_of(int(match["year"])))
    before, same, after = (day_of(anchor.year + shift) for shift in (-1, 0, 1))
    if direction is not None:
        choice = {-1: same if same < anchor else before, 0: same, 1: same if same > anchor else after}
        return day_span(choice[direction])
    near = [day for day in (before, after) if abs(day - anchor) <= min(_NEAR, abs(same - anchor))]
    return day_span(near[0] if near else same)
