from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_program.bank.dates.date_span import format_day
from memory_program.bank.dates.resolve import add_dates, find_dates, resolve_date, resolve_date_span

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
        ("two weekends ago", "Two weekends before 9 June 2023", (2023, 5, 27), (2023, 5, 28)),
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
        ("on 2021/05/07", "7 May 2021", (2021, 5, 7), (2021, 5, 7)),
        ("by May 7,\n2021", "7 May 2021", (2021, 5, 7), (2021, 5, 7)),
        ("on the 5th of next month", "5 July 2023", (2023, 7, 5), (2023, 7, 5)),
        ("the 20th of last month", "20 May 2023", (2023, 5, 20), (2023, 5, 20)),
        ("7 May", "7 May 2023", (2023, 5, 7), (2023, 5, 7)),
        ("May 7th, 2021", "7 May 2021", (2021, 5, 7), (2021, 5, 7)),
        ("June the 10th", "10 June 2023", (2023, 6, 10), (2023, 6, 10)),
        ("on Saturday, June 10", "10 June 2023", (2023, 6, 10), (2023, 6, 10)),
        ("on Sunday the 7th of May", "7 May 2023", (2023, 5, 7), (2023, 5, 7)),
        ("on 29 February", "29 February 2024", (2024, 2, 29), (2024, 2, 29)),
        ("2020-02-29", "29 February 2020", (2020, 2, 29), (2020, 2, 29)),
        ("on the 15th", "15 June 2023", (2023, 6, 15), (2023, 6, 15)),
        ("Monday the 12th", "12 June 2023", (2023, 6, 12), (2023, 6, 12)),
        ("on 07 June 23", "7 June 2023", (2023, 6, 7), (2023, 6, 7)),
        ("on 7 June '21", "7 June 2021", (2021, 6, 7), (2021, 6, 7)),
        ("on 3 May '99 in Oslo", "3 May 1999", (1999, 5, 3), (1999, 5, 3)),
        ("on 07 June 19 and later", "7 June 2019", (2019, 6, 7), (2019, 6, 7)),
        ("in May '22 and later", "May 2022", (2022, 5, 1), (2022, 5, 31)),
        ("on Good Friday", "7 April 2023", (2023, 4, 7), (2023, 4, 7)),
        ("on Black Friday", "24 November 2023", (2023, 11, 24), (2023, 11, 24)),
        ("on Easter Monday 2022", "18 April 2022", (2022, 4, 18), (2022, 4, 18)),
        ("this Friday", "9 June 2023", (2023, 6, 9), (2023, 6, 9)),
        ("this coming Friday", "The Friday after 9 June 2023", (2023, 6, 16), (2023, 6, 16)),
        ("on the 9th", "9 June 2023", (2023, 6, 9), (2023, 6, 9)),
        ("on the 31st", "31 May 2023", (2023, 5, 31), (2023, 5, 31)),
        ("on the 2nd Saturday of June 2023", "10 June 2023", (2023, 6, 10), (2023, 6, 10)),
        ("on the last Friday in June 2023", "30 June 2023", (2023, 6, 30), (2023, 6, 30)),
        ("on the fourth Thursday of Nov. 2022", "24 November 2022", (2022, 11, 24), (2022, 11, 24)),
        ("a week from Friday", "16 June 2023", (2023, 6, 16), (2023, 6, 16)),
        ("two weeks from Tuesday", "27 June 2023", (2023, 6, 27), (2023, 6, 27)),
        ("three days from tomorrow", "13 June 2023", (2023, 6, 13), (2023, 6, 13)),
        ("Tuesday next week", "13 June 2023", (2023, 6, 13), (2023, 6, 13)),
        ("next week on Monday", "12 June 2023", (2023, 6, 12), (2023, 6, 12)),
        ("last year in December", "December 2022", (2022, 12, 1), (2022, 12, 31)),
        ("August last year", "August 2022", (2022, 8, 1), (2022, 8, 31)),
        ("on May 7 '21", "7 May 2021", (2021, 5, 7), (2021, 5, 7)),
        ("on 8 Jun. 2021", "8 June 2021", (2021, 6, 8), (2021, 6, 8)),
        ("on 05/07/2021", "7 May 2021", (2021, 5, 7), (2021, 5, 7)),
        ("at 2021-05-07T10:00:00+02:00", "7 May 2021", (2021, 5, 7), (2021, 5, 7)),
        ("on 3 May '70", "3 May 1970", (1970, 5, 3), (1970, 5, 3)),
        ("on 3 May '33", "3 May 2033", (2033, 5, 3), (2033, 5, 3)),
        ("this coming weekend", "The weekend of 9 June 2023", (2023, 6, 10), (2023, 6, 11)),
        ("in the past week", "The week up to 9 June 2023", (2023, 6, 2), (2023, 6, 9)),
        ("this past month", "The month up to 9 June 2023", (2023, 5, 9), (2023, 6, 9)),
        ("over the past year", "The year up to 9 June 2023", (2022, 6, 9), (2023, 6, 9)),
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
        *("a hundred and two days ago", "on 31 June 2023", "it was 2023-13-01", "Friday the 13th was bad"),
        *("what comes next may surprise you", "the past may haunt you", "this sun is killing me"),
        *("the last week of August", "the last weekend of May", "a quarter of a year ago", "on 31/13/2021"),
        *("we haven't talked in a few days", "Rome wasn’t built in a day", "we never met in two years"),
        *("a few days from Friday", "the 5th Saturday of June 2023"),
        *("I live on the 7th floor", "on the 1st of every month", "on the 3rd try"),
        *("I ran for the first time in three weeks", "I swim twice in a week", "I won 3 times in two years"),
        *("I finished the book in five days", "She lost ten pounds in two months"),
    ],
)
def test_words_that_only_look_like_dates_are_ignored(text):
    assert find_dates(text, FRIDAY) == []


@pytest.mark.parametrize(
    ("expression", "said_on"), [("last friday", date(1, 1, 2)), ("this monday", date(9999, 12, 31))]
)
def test_a_date_outside_the_calendar_is_not_resolved(expression, said_on):
    assert resolve_date_span(expression, said_on) is None


def test_a_clause_that_denies_nothing_has_a_day_to_come():
    for text in ("I can't wait to see you in two days!", "I don't know, but I leave in two days."):
        assert phrases(text) == ["11 June 2023"]
    assert phrases("See you next time in two days!") == ["11 June 2023"]


def test_a_coming_weekend_begins_with_the_coming_saturday():
    for day in range(5, 12):
        said_on = date(2023, 6, day)
        weekend, saturday = (resolve_date(f"this coming {name}", said_on) for name in ("weekend", "Saturday"))
        assert weekend == saturday


def test_a_month_of_a_year_does_not_reach_into_another_sentence():
    assert phrases("We met in June. Last year we married.") == ["June 2023", "2022"]
    assert phrases("May this year bring you joy!") == ["2023"]


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
        ("mid-May 2022", date(2022, 5, 11)),
        ("about three years ago", date(2020, 1, 1)),
        ("last week", date(2023, 5, 29)),
        ("two hours ago", FRIDAY),
        ("yesterday", date(2023, 6, 8)),
        ("10 June at 7 pm", date(2023, 6, 10)),
        ("Saturday, June 10, 7:30pm", date(2023, 6, 10)),
        ("tomorrow evening", date(2023, 6, 10)),
        ("Friday night", date(2023, 6, 2)),
        ("yesterday at noon", date(2023, 6, 8)),
        ("the 10th", date(2023, 6, 10)),
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
        ("the past week", "Ana visited Rome in the week up to 9 June 2023."),
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
        ("next month", "The wedding is planned for next month.", "The wedding is planned for July 2023."),
        ("last month", "Ana worked over the last month.", "Ana worked over May 2023."),
        ("the last month", "Ana worked over the last month.", "Ana worked over May 2023."),
        ("last month", "Bo came over last month.", "Bo came over in May 2023."),
        ("last week", "Ana was ill over the last week.", "Ana was ill over the week before 9 June 2023."),
        ("past week", "Ana read in the past week.", "Ana read in the week up to 9 June 2023."),
        ("next year", "The trip was postponed to next year.", "The trip was postponed to 2024."),
        ("the last summer", "Bo left the last summer.", "Bo left in summer 2022."),
        ("this summer", "Bo saves for this summer.", "Bo saves for summer 2023."),
        ("until next month", "Bo stays in Rome until next month.", "Bo stays in Rome until July 2023."),
        ("since last year", "Ana has lived in Oslo.", "Ana has lived in Oslo since 2022."),
        ("previous month", "Ana came to the event the previous month.", "Ana came to the event in May 2023."),
        ("the end of May", "Ana moved at the end of May.", "Ana moved in late May 2023."),
        ("May", "Ana may visit Rome in May.", "Ana may visit Rome in May 2023."),
        ("March", "Ana will march for peace.", "Ana will march for peace in March 2023."),
        ("last month", "Ana paid last month's rent.", "Ana paid last month's rent (May 2023)."),
        ("a year ago", "Bo left over a year ago.", "Bo left over a year ago (2022)."),
    ],
)
def test_an_inserted_span_fits_the_words_before_it(said, sentence, told):
    assert resolve_date_span(said, FRIDAY).insert_into(sentence, said) == told


@pytest.mark.parametrize(
    ("expression", "phrase"),
    [
        ("May", "May 2023"),
        ("September", "September 2023"),
        ("twenty years ago", "2003"),
        ("7 May", "7 May 2023"),
        ("3 hours ago", "9 June 2023"),
    ],
)
def test_a_span_is_as_long_as_its_words_say(expression, phrase):
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
        "half a year ago",
        "over a year ago",
        "Friday the 13th",
        "the 32nd",
        "after 7 May 2023",
        "the 2nd Saturday morning of June 2023",
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


SESSION = date(2023, 6, 14)  # a Wednesday
EXPRESSIONS = {
    "Monday the 12th": "2023-06-12",
    "12th": "2023-06-12",
    "the 1st": "2023-06-01",
    "the 28th": "2023-06-28",
    "31st": "2023-05-31",
    "the 5th of last month": "2023-05-05",
    "7pm": "2023-06-14",
    "at noon": "2023-06-14",
    "19:30": "2023-06-14",
    "at 7": "2023-06-14",
    "half past seven": "2023-06-14",
    "in the morning": "2023-06-14",
    "this evening at 7pm": "2023-06-14",
    "noon yesterday": "2023-06-13",
    "Friday night": "2023-06-09",
    "the evening of 7 May": "2023-05-07",
    "May 12, evening": "2023-05-12",
    "May 12 8pm": "2023-05-12",
    "May 12 at noon": "2023-05-12",
    "May 12 noon": "2023-05-12",
    "12 May, 12 noon": "2023-05-12",
    "Friday 12 noon": "2023-06-09",
    "Friday, 12 in the afternoon": "2023-06-09",
    "May 12 in the afternoon": "2023-05-12",
    "07 June 23": "2023-06-07",
    "7 June '85": "1985-06-07",
    "June 7, '23": "2023-06-07",
    "14-Jun-2023": "2023-06-14",
    "Wed Jun 14 13:56:00 2023": "2023-06-14",
    "6/7/2023": "2023-06-07",
    "13/05/2023": "2023-05-13",
    "2023/06/14": "2023-06-14",
    "14.06.2023": "2023-06-14",
    "20230614": "2023-06-14",
    "2023-06-14T13:56:00Z": "2023-06-14",
    "[2023-05-07]": "2023-05-07",
    "Monday, 8 May 2023 (2023-05-08), 13:56": "2023-05-08",
    "1:56 pm on 8 May, 2023": "2023-05-08",
    "yesterday (Tuesday)": "2023-06-13",
    "2023/05/30 (Tue) 23:32": "2023-05-30",
    "7 May 2023 (Sun.)": "2023-05-07",
    "06/2023": "2023-06-01 2023-06-30",
    "June '22": "2022-06-01 2022-06-30",
    "May of last year": "2022-05-01 2022-05-31",
    "the month of May": "2023-05-01 2023-05-31",
    "1024": "1024-01-01 1024-12-31",
    "two Fridays ago": "2023-06-02",
    "three Wednesdays ago": "2023-05-24",
    "in two Saturdays": "2023-06-24",
    "the Friday before last": "2023-06-02",
    "Friday of last week": "2023-06-09",
    "last week on Tuesday": "2023-06-06",
    "Sat": "2023-06-10",
    "a couple of weeks ago": "2023-05-31",
    "a fortnight ago": "2023-05-31",
    "a decade ago": "2013-01-01 2013-12-31",
    "the other day": "2023-06-11",
    "an hour ago": "2023-06-14",
    "36 hours ago": "2023-06-13",
    "right now": "2023-06-14",
    "the week before last": "2023-05-29 2023-06-04",
    "the month before last": "2023-04-01 2023-04-30",
    "over the weekend": "2023-06-10 2023-06-11",
    "the end of May": "2023-05-21 2023-05-31",
    "mid-June": "2023-06-11 2023-06-20",
    "the beginning of the month": "2023-06-01 2023-06-10",
    "the end of last month": "2023-05-21 2023-05-31",
    "early 2022": "2022-01-01 2022-04-30",
    "Friday of the last week": "2023-06-09",
    "the next week Tuesday": "2023-06-20",
    "the 5th of the last month": "2023-05-05",
    "May of the last year": "2022-05-01 2022-05-31",
    "Christmas of the last year": "2022-12-25",
    "the last Christmas": "2022-12-25",
    "the coming Easter": "2024-03-31",
    "over Christmas": "2023-12-25",
    "last may": "2023-05-01 2023-05-31",
    "7/6/62": "1962-07-06",
    "May '68": "1968-05-01 1968-05-31",
    "the 1st Monday of May 2023": "2023-05-01",
    "the last Sunday of June": "2023-06-25",
    "the past week": "2023-06-07 2023-06-14",
    "The month up to 9 June 2023": "2023-05-09 2023-06-09",
    "late last year": "2022-09-01 2022-12-31",
    "Christmas": "2023-12-25",
    "last Christmas": "2022-12-25",
    "next Christmas": "2023-12-25",
    "Christmas of last year": "2022-12-25",
    "Christmas Eve 2021": "2021-12-24",
    "New Year's Eve": "2023-12-31",
    "New Year’s Day": "2023-01-01",
    "Halloween": "2023-10-31",
    "Valentine's Day": "2023-02-14",
    "Thanksgiving": "2023-11-23",
    "last Thanksgiving": "2022-11-24",
    "Easter": "2023-04-09",
    "Easter 2022": "2022-04-17",
    "Good Friday": "2023-04-07",
    "Independence Day": "2023-07-04",
    "the 4th of July": "2023-07-04",
    "Mother's Day": "2023-05-14",
    "the day after Christmas": "2023-12-26",
    "two days before yesterday": "2023-06-11",
    "the week before Easter": "2023-03-27 2023-04-02",
    "The week before 14 June 2023": "2023-06-05 2023-06-11",
    "The weekend of 14 June 2023": "2023-06-17 2023-06-18",
    "A few days before 9 June 2023": "2023-06-06",
    "A couple of months before June 2023": "2023-04-01 2023-04-30",
    "A few years before 2023": "2020-01-01 2020-12-31",
    **dict.fromkeys(["2023-13-01", "2023-06-31", "31 February", "30/02/2023", "29 February 2023", "32nd"]),
    "2023/05/30 (Wed) 23:32": None,
    **dict.fromkeys(["25:00", "May 5 to 7", "10-12 June 2023", "yesterday (2023-06-01)", "recently", "5/6"]),
    **dict.fromkeys(["N/A", "none", "unknown", "last few weeks", "half a year ago", "in his childhood"]),
}
"""What is said on ``SESSION``, and the first and last day of it; None for what is no date."""


@pytest.mark.parametrize(("said", "days"), EXPRESSIONS.items())
def test_an_expression_of_time_has_its_days(said, days):
    span = resolve_date_span(said, SESSION)
    first, _, last = (days or "").partition(" ")
    found = None if span is None else (span.first.isoformat(), span.last.isoformat())
    assert found == ((first, last or first) if days else None)


@pytest.mark.parametrize(
    ("said", "said_on", "day"),
    [
        ("Christmas", date(2024, 1, 20), date(2023, 12, 25)),
        ("New Year's Day", date(2023, 12, 20), date(2024, 1, 1)),
        ("New Year's Eve", date(2024, 1, 2), date(2023, 12, 31)),
        ("last Christmas", date(2023, 12, 25), date(2022, 12, 25)),
        ("next Easter", date(2023, 4, 9), date(2024, 3, 31)),
        ("the 31st", date(2023, 1, 2), date(2022, 12, 31)),
    ],
)
def test_at_the_turn_of_the_year_a_day_is_in_the_year_that_is_near(said, said_on, day):
    assert resolve_date(said, said_on) == day


SAID = [
    *EXPRESSIONS,
    *("last Friday", "next Tuesday", "this week", "last weekend", "next month", "two weekends ago"),
    *("a week ago", "twenty-one weeks ago", "in several days", "a few months ago", "in a couple of years"),
    *(
        "the past month",
        "this past year",
        "this coming weekend",
        "the 3rd Friday of May",
        "two weeks from Sunday",
    ),
    *("last summer", "this winter", "7 May", "in December", "ten years ago", "several weeks from now"),
]


@given(st.sampled_from(SAID), st.dates(date(1930, 1, 1), date(2070, 1, 1)), st.dates(date(1930, 1, 1)))
def test_what_the_program_writes_for_a_span_is_read_as_the_same_span(said, said_on, later):
    span = resolve_date_span(said, said_on)
    if span is not None:
        again = resolve_date_span(span.phrase, later)
        assert again is not None
        assert (again.first, again.last, again.phrase.casefold()) == (
            *(span.first, span.last),
            span.phrase.casefold(),
        )
        assert resolve_date_span(span.phrase[0].lower() + span.phrase[1:], later) == again


@pytest.mark.parametrize("said", ["the end of ", "early ", "the week of ", "the day before "])
@pytest.mark.timeout(60)
def test_a_loop_of_a_small_model_is_read_at_once(said):
    assert resolve_date((said * 20)[:100], date(2023, 6, 9)) is None


@given(st.dates(), st.dates())
def test_a_date_in_figures_is_itself(day, said_on):
    assert resolve_date(day.isoformat(), said_on) == day


@given(st.dates(date(1900, 1, 1), date(2099, 12, 31)), st.dates())
def test_a_day_in_words_is_itself(day, said_on):
    assert resolve_date(format_day(day), said_on) == day


def test_a_date_is_added_beside_another_that_ends_like_it():
    text = "I ran yesterday. The race is on 18 June 2023."
    assert add_dates(text, FRIDAY) == "I ran yesterday (8 June 2023). The race is on 18 June 2023."


def test_a_weekday_of_a_longer_phrase_is_not_taken_alone():
    march = date(2024, 3, 1)
    assert phrases("We met last Black Friday and next Good Friday.", march) == [
        "24 November 2023",
        "29 March 2024",
    ]
    assert phrases("We met the Sunday before last.", march) == []
