from datetime import date

import pytest

from memory_program.bank.dates.date_span import format_day
from memory_program.bank.dates.resolve import find_dates, resolve_date, resolve_date_span

FRIDAY = date(2023, 6, 9)


def phrases(text, anchor=FRIDAY):
    return [found.date_span.phrase for found in find_dates(text, anchor)]


@pytest.mark.parametrize(
    ("said", "phrase", "first", "last"),
    [
        ("yesterday", "8 June 2023", (2023, 6, 8), (2023, 6, 8)),
        ("last night", "8 June 2023", (2023, 6, 8), (2023, 6, 8)),
        ("this morning", "9 June 2023", (2023, 6, 9), (2023, 6, 9)),
        ("tomorrow", "10 June 2023", (2023, 6, 10), (2023, 6, 10)),
        ("the day before yesterday", "7 June 2023", (2023, 6, 7), (2023, 6, 7)),
        ("the day after tomorrow", "11 June 2023", (2023, 6, 11), (2023, 6, 11)),
        ("twenty-one days ago", "19 May 2023", (2023, 5, 19), (2023, 5, 19)),
        ("twenty five years ago", "1998", (1998, 1, 1), (1998, 12, 31)),
        ("fourteen days ago", "26 May 2023", (2023, 5, 26), (2023, 5, 26)),
        ("this March", "March 2023", (2023, 3, 1), (2023, 3, 31)),
        ("this December", "December 2023", (2023, 12, 1), (2023, 12, 31)),
        ("two days ago", "7 June 2023", (2023, 6, 7), (2023, 6, 7)),
        ("in 3 days", "12 June 2023", (2023, 6, 12), (2023, 6, 12)),
        ("a few days ago", "A few days before 9 June 2023", (2023, 6, 6), (2023, 6, 6)),
        ("last Friday", "The Friday before 9 June 2023", (2023, 6, 2), (2023, 6, 2)),
        ("last Tues", "The Tuesday before 9 June 2023", (2023, 6, 6), (2023, 6, 6)),
        ("next Tuesday", "The Tuesday after 9 June 2023", (2023, 6, 13), (2023, 6, 13)),
        ("next Friday", "The Friday after 9 June 2023", (2023, 6, 16), (2023, 6, 16)),
        ("in two weeks", "Two weeks after 9 June 2023", (2023, 6, 23), (2023, 6, 23)),
        ("on Monday", "The Monday before 9 June 2023", (2023, 6, 5), (2023, 6, 5)),
        ("last week", "The week before 9 June 2023", (2023, 5, 29), (2023, 6, 4)),
        ("this week", "The week of 9 June 2023", (2023, 6, 5), (2023, 6, 11)),
        ("next week", "The week after 9 June 2023", (2023, 6, 12), (2023, 6, 18)),
        ("two weeks ago", "Two weeks before 9 June 2023", (2023, 5, 26), (2023, 5, 26)),
        ("this past weekend", "The weekend before 9 June 2023", (2023, 6, 3), (2023, 6, 4)),
        ("two weekends ago", "Two weekends before 9 June 2023", (2023, 5, 26), (2023, 5, 26)),
        ("next month", "July 2023", (2023, 7, 1), (2023, 7, 31)),
        ("2 months ago", "April 2023", (2023, 4, 1), (2023, 4, 30)),
        (
            "a couple of months ago",
            "A couple of months before June 2023",
            (2023, 4, 1),
            (2023, 4, 30),
        ),
        ("in December", "December 2023", (2023, 12, 1), (2023, 12, 31)),
        ("last June", "June 2022", (2022, 6, 1), (2022, 6, 30)),
        ("last August", "August 2022", (2022, 8, 1), (2022, 8, 31)),
        ("next May", "May 2024", (2024, 5, 1), (2024, 5, 31)),
        ("February 2024", "February 2024", (2024, 2, 1), (2024, 2, 29)),
        ("last summer", "summer 2022", (2022, 6, 1), (2022, 8, 31)),
        ("next summer", "summer 2024", (2024, 6, 1), (2024, 8, 31)),
        ("fall of 2021", "fall 2021", (2021, 9, 1), (2021, 11, 30)),
        ("last year", "2022", (2022, 1, 1), (2022, 12, 31)),
        ("ten years ago", "2013", (2013, 1, 1), (2013, 12, 31)),
        ("a few years ago", "A few years before 2023", (2020, 1, 1), (2020, 12, 31)),
        ("since 2016", "2016", (2016, 1, 1), (2016, 12, 31)),
        ("7 May", "7 May 2023", (2023, 5, 7), (2023, 5, 7)),
        ("May 7th, 2021", "7 May 2021", (2021, 5, 7), (2021, 5, 7)),
        ("June the 10th", "10 June 2023", (2023, 6, 10), (2023, 6, 10)),
        ("on Saturday, June 10", "10 June 2023", (2023, 6, 10), (2023, 6, 10)),
        ("on Sunday the 7th of May", "7 May 2023", (2023, 5, 7), (2023, 5, 7)),
        ("on 29 February", "29 February 2024", (2024, 2, 29), (2024, 2, 29)),
        ("2020-02-29", "29 February 2020", (2020, 2, 29), (2020, 2, 29)),
        ("on the 15th", "15 May 2023", (2023, 5, 15), (2023, 5, 15)),
        ("on the 9th", "9 June 2023", (2023, 6, 9), (2023, 6, 9)),
        ("on the 31st", "31 May 2023", (2023, 5, 31), (2023, 5, 31)),
    ],
)
def test_a_phrase_resolves_to_a_span_and_its_name(said, phrase, first, last):
    (found,) = find_dates(f"We talked {said}, you know.", FRIDAY)
    stretch = found.date_span
    assert (stretch.phrase, stretch.first, stretch.last) == (phrase, date(*first), date(*last))


def test_a_mention_has_its_place_in_the_text():
    text = "Well, we met two weeks ago."
    (found,) = find_dates(text, FRIDAY)
    assert text[found.start : found.end] == "two weeks ago"


def test_mentions_are_in_order_and_do_not_overlap():
    text = "Since 2016 I paint; last Friday, on 2 June 2023, I sold one, and yesterday another."
    assert phrases(text) == ["2016", "The Friday before 9 June 2023", "2 June 2023", "8 June 2023"]


def test_a_day_without_a_year_is_the_closest_to_the_anchor():
    new_year = date(2024, 1, 2)
    assert phrases("on 28 December", new_year) == ["28 December 2023"]
    assert phrases("on 5 February", new_year) == ["5 February 2024"]
    assert phrases("in December", new_year) == ["December 2023"]


def test_a_season_that_is_not_over_is_not_the_last_one():
    assert phrases("last summer", date(2023, 7, 20)) == ["summer 2022"]
    assert phrases("last summer", date(2023, 12, 26)) == ["summer 2023"]
    assert phrases("this summer", date(2023, 5, 2)) == ["summer 2023"]


@pytest.mark.parametrize(
    ("said_on", "last", "this", "following"),
    [
        (date(2023, 11, 30), 2022, 2023, 2023),
        (date(2023, 12, 31), 2022, 2023, 2024),
        (date(2024, 1, 15), 2022, 2023, 2024),
        (date(2024, 2, 29), 2022, 2023, 2024),
        (date(2024, 3, 1), 2023, 2024, 2024),
    ],
)
def test_a_winter_has_the_year_in_which_it_began(said_on, last, this, following):
    for which, year in (("last", last), ("this", this), ("next", following)):
        assert phrases(f"{which} winter", said_on) == [f"winter {year}"]


@pytest.mark.parametrize(
    "text",
    [
        *("I may go", "the sun is out", "he sat down", "31 February", "a march", "12"),
        *("this may be the best day", "half a year ago", "1.5 years ago", "half-a-year ago"),
        *("a hundred and two days ago"),
    ],
)
def test_words_that_only_look_like_dates_are_ignored(text):
    assert find_dates(text, FRIDAY) == []


@pytest.mark.parametrize(
    ("expression", "said_on"), [("last friday", date(1, 1, 2)), ("this monday", date(9999, 12, 31))]
)
def test_a_date_outside_the_calendar_is_not_resolved(expression, said_on):
    assert resolve_date_span(expression, said_on) is None


def test_a_date_outside_the_calendar_is_not_found():
    assert find_dates("999 weeks ago, 99 months ago, 20 years ago", date(2, 1, 1)) == []
    assert find_dates("in 12 years", date(9999, 1, 1)) == []


@pytest.mark.parametrize(
    ("expression", "day"),
    [
        ("2023-05-07", date(2023, 5, 7)),
        ("20230507", date(2023, 5, 7)),
        ("2023-05-07T13:56:00", date(2023, 5, 7)),
        ("2023-05", date(2023, 5, 1)),
        ("2022", date(2022, 1, 1)),
        ("  7 May 2023.", date(2023, 5, 7)),
        ("mid-May 2022", date(2022, 5, 1)),
        ("about three years ago", date(2020, 1, 1)),
        ("last week", date(2023, 5, 29)),
        ("two hours ago", FRIDAY),
        ("yesterday", date(2023, 6, 8)),
        ("10 June at 7 pm", date(2023, 6, 10)),
        ("Saturday, June 10, 7:30pm", date(2023, 6, 10)),
        ("tomorrow evening", date(2023, 6, 10)),
        ("Friday night", date(2023, 6, 2)),
        ("yesterday at noon", date(2023, 6, 8)),
        ("the 10th", date(2023, 5, 10)),
        ("the 9th in the morning", FRIDAY),
        ("07.05.2023", date(2023, 5, 7)),
    ],
)
def test_a_phrase_resolves_to_the_first_day_of_its_span(expression, day):
    assert resolve_date(expression, FRIDAY) == day


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("last month", "Ana visited Rome in May 2023."),
        ("2023-05", "Ana visited Rome in May 2023."),
        ("next year", "Ana visited Rome in 2024."),
        ("last summer", "Ana visited Rome in summer 2022."),
        ("last week", "Ana visited Rome the week before 9 June 2023."),
        ("a few months ago", "Ana visited Rome a few months before June 2023."),
    ],
)
def test_a_span_longer_than_a_day_is_written_into_a_sentence(said, told):
    time = resolve_date_span(said, FRIDAY)
    assert not time.is_day
    assert time.insert_into("Ana visited Rome.", said) == told
    assert time.insert_into(told, said) == told
    assert time.insert_into(f"Ana visited Rome {said}.", said) == told


@pytest.mark.parametrize(
    ("said", "sentence", "told"),
    [
        ("Sept 2022", "Ana visited Rome in Sept 2022.", "Ana visited Rome in September 2022."),
        ("summer of 2022", "Ana met Bo in the summer of 2022.", "Ana met Bo in the summer 2022."),
        ("last month", "Ana is ill since last month.", "Ana is ill since May 2023."),
        ("three months ago", "Bo left about three months ago.", "Bo left about March 2023."),
        ("last month", "Ana won the race!", "Ana won the race in May 2023!"),
        ("last week", "Ana is ill since last week.", "Ana is ill since the week before 9 June 2023."),
    ],
)
def test_an_inserted_span_fits_the_words_before_it(said, sentence, told):
    assert resolve_date_span(said, FRIDAY).insert_into(sentence, said) == told


@pytest.mark.parametrize(
    ("expression", "phrase"),
    [
        ("May", "May 2023"),
        ("September", "September 2022"),
        ("twenty years ago", "2003"),
        ("7 May", "7 May 2023"),
        ("3 hours ago", "9 June 2023"),
    ],
)
def test_a_span_has_the_period_that_dateparser_reports(expression, phrase):
    assert resolve_date_span(expression, FRIDAY).phrase == phrase


@pytest.mark.parametrize(
    "expression",
    [
        "the 1990s",
        "in the 80s",
        "Q1 2023",
        "",
        "unknown",
        "soon",
        "n/a",
        "10",
        "no",
        "when yesterday was young",
        "June 10-12",
        "10-12 June",
        "two days before yesterday",
        "half a year ago",
        "the 32nd",
    ],
)
def test_other_text_resolves_to_nothing(expression):
    assert resolve_date(expression, FRIDAY) is None


@pytest.mark.parametrize(
    "expression", ["yesterday", "Friday", "7 May", "May", "last month", "2 hours ago", "now"]
)
@pytest.mark.parametrize("year", [1950, 1999, 2061])
def test_dates_depend_on_the_anchor_and_not_on_the_clock(expression, year):
    anchor = date(year, 5, 20)
    resolved = resolve_date(expression, anchor)
    assert resolved is not None
    assert abs((resolved - anchor).days) <= 50


def test_a_day_is_formatted_as_in_answers():
    assert format_day(date(2023, 5, 7)) == "7 May 2023"


def test_the_31st_skips_short_months_and_next_may_in_may_is_a_year_away():
    assert resolve_date_span("on the 31st", date(2023, 6, 30)).first == date(2023, 5, 31)
    assert resolve_date_span("next May", date(2023, 5, 20)).phrase == "May 2024"
