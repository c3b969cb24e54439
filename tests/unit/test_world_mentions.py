"""Relative dates: the generator's truth agrees with the resolver that the program uses."""

import random
from datetime import date, timedelta

import pytest

from memory_program.bank.dates.date_span import format_day
from memory_program.bank.dates.resolve import resolve_date
from memory_program.worlds.mentions import (
    TimeMention,
    future_mention,
    mention_date,
    past_mention,
    shift_mention,
)

FRIDAY = date(2023, 6, 9)


def mentions(seed: int, count: int, today: date) -> list[TimeMention]:
    rng = random.Random(seed)
    return [draw(rng, today) for _ in range(count) for draw in (past_mention, future_mention)]


def gold_of(expression: str) -> str | int:
    return next(m.gold for m in mentions(1, 3000, FRIDAY) if m.expression == expression)


@pytest.mark.parametrize(
    ("expression", "gold"),
    [
        ("today", "9 June 2023"),
        ("yesterday", "8 June 2023"),
        ("last night", "8 June 2023"),
        ("the day before yesterday", "7 June 2023"),
        ("last Friday", "2 June 2023"),
        ("last Thursday", "8 June 2023"),
        ("three days ago", "6 June 2023"),
        ("a week ago", "2 June 2023"),
        ("two weeks ago", "26 May 2023"),
        ("tomorrow", "10 June 2023"),
        ("this Monday", "12 June 2023"),
        ("this coming Thursday", "15 June 2023"),
        ("in two weeks", "23 June 2023"),
        ("last week", "the week before 9 June 2023"),
        ("last weekend", "the weekend before 9 June 2023"),
        ("last month", "May 2023"),
        ("last year", 2022),
        ("next week", "the week after 9 June 2023"),
        ("next month", "July 2023"),
        ("next year", 2024),
    ],
)
def test_an_expression_on_friday_9_june_2023_means(expression: str, gold: str | int) -> None:
    assert gold_of(expression) == gold


def test_months_pass_the_turn_of_the_year() -> None:
    january = [m.gold for m in mentions(2, 500, date(2023, 1, 5)) if m.expression == "last month"]
    december = [m.gold for m in mentions(2, 500, date(2023, 12, 5)) if m.expression == "next month"]
    assert set(january) == {"December 2022"}
    assert set(december) == {"January 2024"}


def test_the_program_s_resolver_agrees_on_every_exact_mention() -> None:
    rng = random.Random(3)
    for _ in range(40):
        today = date(2019, 1, 1) + timedelta(rng.randrange(3000))
        for mention in mentions(rng.randrange(1000), 10, today):
            if mention.day:
                assert resolve_date(mention.expression, today) == mention.day, (mention, today)


def test_an_exact_mention_has_a_day_and_a_coarse_one_a_phrase() -> None:
    for mention in mentions(4, 500, FRIDAY):
        assert (mention.day is None) == bool(mention.phrase)
        assert mention.day is None or mention.gold == format_day(mention.day)
        assert str(mention.gold) in mention.phrase or mention.day


def test_exact_mentions_can_be_asked_for() -> None:
    rng = random.Random(5)
    assert all(past_mention(rng, FRIDAY, is_exact=True).day for _ in range(300))
    assert all(future_mention(rng, FRIDAY, is_exact=True).day for _ in range(300))


def test_past_lies_before_future() -> None:
    rng = random.Random(6)
    for _ in range(300):
        past, future = (
            past_mention(rng, FRIDAY, is_exact=True).day,
            future_mention(rng, FRIDAY, is_exact=True).day,
        )
        assert past is not None
        assert future is not None
        assert past <= FRIDAY < future


def test_a_date_of_another_year_says_its_year() -> None:
    said = mention_date(date(2022, 12, 28), random.Random(1), date(2023, 1, 5)).expression
    assert said.endswith(", 2022")


def test_a_corrected_day_is_one_to_three_days_earlier() -> None:
    rng = random.Random(7)
    first = mention_date(date(2023, 6, 1), rng, FRIDAY)
    days = {shift_mention(first, rng, FRIDAY).day for _ in range(100)}
    assert days == {date(2023, 5, 31), date(2023, 5, 30), date(2023, 5, 29)}
