"""Days as people mention them, and what they mean on the day of the session."""

import random
from dataclasses import dataclass
from datetime import date, timedelta

from dateutil.relativedelta import relativedelta

from memory_program.bank.dates.date_span import MONTH_NAMES, format_day, format_month
from memory_program.worlds.word_lists import WEEKDAYS

_SMALL_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@dataclass(frozen=True, slots=True)
class TimeMention:
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


def mention_date(day: date, rng: random.Random, today: date) -> TimeMention:
    """Mention a day by its date, without the year where the session's own year is meant."""
    month = MONTH_NAMES[day.month - 1]
    ending = "th" if 10 < day.day < 14 else {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10, "th")
    said = rng.choice(
        (f"on {day.day} {month}", f"on {month} {day.day}", f"on the {day.day}{ending} of {month}")
    )
    return _exact_mention(said if day.year == today.year else f"{said}, {day.year}", day)


def shift_mention(mention: TimeMention, rng: random.Random, today: date) -> TimeMention:
    """Mention a day one to three days before that of an exact mention."""
    assert mention.day is not None
    return mention_date(mention.day - timedelta(rng.randint(1, 3)), rng, today)


def past_mention(rng: random.Random, today: date, *, is_exact: bool = False) -> TimeMention:
    """Mention a day up to four weeks back, or now and then, unless ``is_exact``, a coarser stretch."""
    if not is_exact and rng.random() < 0.2:
        match rng.choice(("week", "weekend", "month", "year")):
            case "week":
                return _week("last week", today - timedelta(7), f"the week before {format_day(today)}")
            case "weekend":
                saturday = today - timedelta(today.weekday() + 2)
                gold = f"the weekend before {format_day(today)}"
                return TimeMention("last weekend", gold, saturday, saturday + timedelta(1), f" {gold}")
            case "month":
                return _month("last month", today, -1)
            case _:
                return _year("last year", today.year - 1)
    match rng.choice(("today", "yesterday", "yesterday", "days", "weeks", "weekday", "weekday", "date")):
        case "today":
            return _exact_mention(rng.choice(("today", "this morning")), today)
        case "yesterday":
            said = rng.choice(("yesterday", "yesterday", "yesterday evening", "last night"))
            return _exact_mention(said, today - timedelta(1))
        case "days":
            days = rng.randint(2, 10)
            forms = [f"{_SMALL_NUMBERS[days]} days ago", f"{days} days ago"]
            said = rng.choice([*forms, "the day before yesterday"] if days == 2 else forms)
            return _exact_mention(said, today - timedelta(days))
        case "weeks":
            weeks = rng.randint(1, 4)
            said = "a week ago" if weeks == 1 else f"{_SMALL_NUMBERS[weeks]} weeks ago"
            return _exact_mention(said, today - timedelta(weeks=weeks))
        case "weekday":  # the latest day of that name before today
            day = today - timedelta(rng.randint(1, 7))
            return _exact_mention(f"last {WEEKDAYS[day.weekday()]}", day)
        case _:
            return mention_date(today - timedelta(rng.randint(2, 28)), rng, today)


def mention_since(told: date, rng: random.Random, today: date, *, is_exact: bool = False) -> TimeMention:
    """Mention a day, or a stretch, that lies after the day on which something was told, and not after today.

    What changes what was told cannot have happened before it.
    """
    assert told < today
    while (mention := past_mention(rng, today, is_exact=is_exact)).first <= told:
        pass
    return mention


def future_mention(rng: random.Random, today: date, *, is_exact: bool = False) -> TimeMention:
    """Mention a day up to eight weeks ahead, or now and then, unless ``is_exact``, a coarser stretch."""
    if not is_exact and rng.random() < 0.2:
        match rng.choice(("week", "month", "year")):
            case "week":
                return _week("next week", today + timedelta(1), f"the week after {format_day(today)}")
            case "month":
                return _month("next month", today, 1)
            case _:
                return _year("next year", today.year + 1)
    match rng.choice(("tomorrow", "days", "weeks", "weekday", "weekday", "date")):
        case "tomorrow":
            days = rng.randint(1, 2)
            said = "tomorrow" if days == 1 else "the day after tomorrow"
            return _exact_mention(said, today + timedelta(days))
        case "days":
            days = rng.randint(2, 10)
            said = rng.choice((f"in {_SMALL_NUMBERS[days]} days", f"in {days} days"))
            return _exact_mention(said, today + timedelta(days))
        case "weeks":
            weeks = rng.randint(1, 4)
            said = "in a week" if weeks == 1 else f"in {_SMALL_NUMBERS[weeks]} weeks"
            return _exact_mention(said, today + timedelta(weeks=weeks))
        case "weekday":  # the next day of that name after today
            day = today + timedelta(rng.randint(1, 6))
            return _exact_mention(f"this {rng.choice(('', 'coming '))}{WEEKDAYS[day.weekday()]}", day)
        case _:
            return mention_date(today + timedelta(rng.randint(3, 56)), rng, today)


def _exact_mention(expression: str, day: date) -> TimeMention:
    return TimeMention(expression, format_day(day), day, day)


def _week(expression: str, first: date, gold: str) -> TimeMention:
    return TimeMention(expression, gold, first, first + timedelta(6), f" {gold}")


def _month(expression: str, today: date, offset: int) -> TimeMention:
    first = today.replace(day=1) + relativedelta(months=offset)
    gold = format_month(first)
    return TimeMention(expression, gold, first, first + relativedelta(months=1, days=-1), f" in {gold}")


def _year(expression: str, year: int) -> TimeMention:
    return TimeMention(expression, year, date(year, 1, 1), date(year, 12, 31), f" in {year}")
