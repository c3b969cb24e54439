"""Days as people mention them, and what they mean on the day of the session."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta

from dateutil.relativedelta import relativedelta

from memory_program.worlds.word_lists import MONTHS, WEEKDAYS

_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@dataclass(frozen=True, slots=True)
class Mention:
    """A day or a stretch of time as it was said, with its truth.

    ``gold`` answers "when", in LoCoMo's style; ``first`` and ``last`` are the days that it means, both
    included. An exact mention has one ``day``; of a coarse one (``last month``) the memory's own text says
    ``phrase`` (`` in April 2023``).
    """

    expression: str
    gold: str | int
    first: date
    last: date
    phrase: str = ""

    @property
    def day(self) -> date | None:
        """The day of an exact mention."""
        return self.first if self.first == self.last else None


def spelled(day: date) -> str:
    """Write a day as golds write it: ``7 May 2023``."""
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"


def mention_on(day: date, rng: random.Random, today: date) -> Mention:
    """Mention a day by its date, without the year where the session's own year is meant."""
    month = MONTHS[day.month - 1]
    said = rng.choice(
        (f"on {day.day} {month}", f"on {month} {day.day}", f"on the {_ordinal(day.day)} of {month}")
    )
    return _exact(said if day.year == today.year else f"{said}, {day.year}", day)


def shifted(mention: Mention, rng: random.Random, today: date) -> Mention:
    """Mention a day one to three days before that of an exact mention."""
    assert mention.day is not None
    return mention_on(mention.day - timedelta(rng.randint(1, 3)), rng, today)


def past_mention(rng: random.Random, today: date, *, is_exact: bool = False) -> Mention:
    """Mention a day up to four weeks back, or now and then, unless ``is_exact``, a coarser stretch."""
    if not is_exact and rng.random() < 0.2:
        return rng.choice(_COARSE_PAST)(today)
    return rng.choice(_PAST)(rng, today)


def mention_since(told: date, rng: random.Random, today: date, *, is_exact: bool = False) -> Mention:
    """Mention a day, or a stretch, that lies after the day on which something was told, and not after today.

    What changes what was told cannot have happened before it.
    """
    assert told < today
    while (mention := past_mention(rng, today, is_exact=is_exact)).first <= told:
        pass
    return mention


def future_mention(rng: random.Random, today: date, *, is_exact: bool = False) -> Mention:
    """Mention a day up to eight weeks ahead, or now and then, unless ``is_exact``, a coarser stretch."""
    if not is_exact and rng.random() < 0.2:
        return rng.choice(_COARSE_FUTURE)(today)
    return rng.choice(_FUTURE)(rng, today)


def _ordinal(number: int) -> str:
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _exact(expression: str, day: date) -> Mention:
    return Mention(expression, spelled(day), day, day)


def _today(rng: random.Random, today: date) -> Mention:
    return _exact(rng.choice(("today", "this morning")), today)


def _yesterday(rng: random.Random, today: date) -> Mention:
    said = rng.choice(("yesterday", "yesterday", "yesterday evening", "last night"))
    return _exact(said, today - timedelta(1))


def _days_ago(rng: random.Random, today: date) -> Mention:
    days = rng.randint(2, 10)
    said = [f"{_NUMBERS[days]} days ago", f"{days} days ago"]
    return _exact(
        rng.choice([*said, "the day before yesterday"] if days == 2 else said), today - timedelta(days)
    )


def _weeks_ago(rng: random.Random, today: date) -> Mention:
    weeks = rng.randint(1, 4)
    said = "a week ago" if weeks == 1 else f"{_NUMBERS[weeks]} weeks ago"
    return _exact(said, today - timedelta(weeks=weeks))


def _last_weekday(rng: random.Random, today: date) -> Mention:
    """The latest day of that name before today."""
    day = today - timedelta(rng.randint(1, 7))
    return _exact(f"last {WEEKDAYS[day.weekday()]}", day)


def _dated_past(rng: random.Random, today: date) -> Mention:
    return mention_on(today - timedelta(rng.randint(2, 28)), rng, today)


def _tomorrow(rng: random.Random, today: date) -> Mention:
    days = rng.randint(1, 2)
    return _exact("tomorrow" if days == 1 else "the day after tomorrow", today + timedelta(days))


def _in_days(rng: random.Random, today: date) -> Mention:
    days = rng.randint(2, 10)
    return _exact(rng.choice((f"in {_NUMBERS[days]} days", f"in {days} days")), today + timedelta(days))


def _in_weeks(rng: random.Random, today: date) -> Mention:
    weeks = rng.randint(1, 4)
    said = "in a week" if weeks == 1 else f"in {_NUMBERS[weeks]} weeks"
    return _exact(said, today + timedelta(weeks=weeks))


def _this_weekday(rng: random.Random, today: date) -> Mention:
    """The next day of that name after today."""
    day = today + timedelta(rng.randint(1, 6))
    return _exact(f"this {rng.choice(('', 'coming '))}{WEEKDAYS[day.weekday()]}", day)


def _dated_future(rng: random.Random, today: date) -> Mention:
    return mention_on(today + timedelta(rng.randint(3, 56)), rng, today)


def _week(expression: str, first: date, gold: str) -> Mention:
    return Mention(expression, gold, first, first + timedelta(6), f" {gold}")


def _last_week(today: date) -> Mention:
    return _week("last week", today - timedelta(7), f"the week before {spelled(today)}")


def _next_week(today: date) -> Mention:
    return _week("next week", today + timedelta(1), f"the week after {spelled(today)}")


def _last_weekend(today: date) -> Mention:
    saturday = today - timedelta(today.weekday() + 2)
    gold = f"the weekend before {spelled(today)}"
    return Mention("last weekend", gold, saturday, saturday + timedelta(1), f" {gold}")


def _month(expression: str, today: date, offset: int) -> Mention:
    first = today.replace(day=1) + relativedelta(months=offset)
    gold = f"{MONTHS[first.month - 1]} {first.year}"
    return Mention(expression, gold, first, first + relativedelta(months=1, days=-1), f" in {gold}")


def _last_month(today: date) -> Mention:
    return _month("last month", today, -1)


def _next_month(today: date) -> Mention:
    return _month("next month", today, 1)


def _year(expression: str, year: int) -> Mention:
    return Mention(expression, year, date(year, 1, 1), date(year, 12, 31), f" in {year}")


def _last_year(today: date) -> Mention:
    return _year("last year", today.year - 1)


def _next_year(today: date) -> Mention:
    return _year("next year", today.year + 1)


_PAST: tuple[Callable[[random.Random, date], Mention], ...] = (
    _today, _yesterday, _yesterday, _days_ago, _weeks_ago, _last_weekday, _last_weekday, _dated_past,
)  # fmt: skip
_FUTURE: tuple[Callable[[random.Random, date], Mention], ...] = (
    _tomorrow, _in_days, _in_weeks, _this_weekday, _this_weekday, _dated_future,
)  # fmt: skip
_COARSE_PAST: tuple[Callable[[date], Mention], ...] = (_last_week, _last_weekend, _last_month, _last_year)
_COARSE_FUTURE: tuple[Callable[[date], Mention], ...] = (_next_week, _next_month, _next_year)
