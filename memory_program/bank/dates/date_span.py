"""Spans of days, and the phrases in which answers name them."""

import re
from dataclasses import dataclass
from datetime import date

from dateutil.relativedelta import relativedelta

MONTH_NAMES = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_RELATION = re.compile(r" (?:before|of|after|up to) ")
_AFTER_PREPOSITION = re.compile(
    r"\b(?:in|on|since|by|until|till|from|of|during|about|around|early|mid|late|for|to|through"
    r"|throughout|within|over(?= the))(?: the)?[ -]$",  # "Bo came over last month"
    re.IGNORECASE,
)
_LEADING_PREPOSITION = re.compile(
    r"(?:since|by|until|till|from|during|about|around|approximately|roughly) ", re.IGNORECASE
)
_ARTICLE = re.compile(r"\b(?:at (?:the )?|the )$", re.IGNORECASE)
_SEASON = re.compile(r"(?:winter|spring|summer|fall|autumn) ")
_BARE_MONTH = re.compile(rf"(?:{'|'.join(name[:3] for name in MONTH_NAMES)})[a-z]*", re.IGNORECASE)
_COMPARED = re.compile(
    r"\b(?:over|under|(?:more|less|fewer) than|at (?:least|most)|almost|nearly|only|just|exactly) $",
    re.IGNORECASE,
)

_GIVEN = r"(?:known|specified|stated|given|mentioned|available|applicable|provided|sure|clear|said)"
_NO_TIME = re.compile(
    r"\W*(?:(?:n/?a|none|null|nil|nan|undefined|empty|tbd|unknown|unclear|unsure|undated"
    rf"|no (?:\w+ )?(?:date|time)(?: (?:is |was )?{_GIVEN})?"
    r"|(?:(?:date|time|day|exact|it|is|was|are) )*"
    rf"(?:un(?:known|specified|stated|clear|certain)|not (?:\w+ly )?{_GIVEN})(?: (?:date|time))?)"
    r"(?:,? (?:in|by|from|during) .+)?)?\W*",  # the conversation
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class DateSpan:
    """A span of days, both ends included, and its name in an answer: ``May 2023``, ``7 May 2023``."""

    first: date
    last: date
    phrase: str

    @property
    def is_day(self) -> bool:
        """True for a single day."""
        return self.first == self.last

    @property
    def phrase_inside(self) -> str:
        """The phrase as it stands inside a sentence: ``the week before 9 June 2023``."""
        is_relative = _RELATION.search(self.phrase) is not None
        return self.phrase[0].lower() + self.phrase[1:] if is_relative else self.phrase

    def insert_into(self, sentence: str, expression: str) -> str:
        """Make a sentence name this span: in place of the expression that it resolves, or at the end.

        Example:
            >>> january = DateSpan(date(2023, 1, 1), date(2023, 1, 31), "January 2023")
            >>> january.insert_into("Ana visited Rome.", "last month")
            'Ana visited Rome in January 2023.'
            >>> january.insert_into("Last month Ana visited Rome.", "last month")
            'In January 2023 Ana visited Rome.'
            >>> january.insert_into("Ana lives there since last month!", "last month")
            'Ana lives there since January 2023!'
            >>> january.insert_into("Ana paid last month's rent.", "last month")
            "Ana paid last month's rent (January 2023)."
        """
        if self.phrase.casefold() in sentence.casefold():
            return sentence
        lead = _LEADING_PREPOSITION.match(expression)  # "since last month"
        said = expression[lead.end() :] if lead else expression
        said = re.sub("^the ", "", said, flags=re.IGNORECASE)  # "over the last month"
        is_relative, phrase = _RELATION.search(self.phrase), self.phrase_inside
        preposition = "" if is_relative and " up to " not in phrase else "in "
        places = list(re.finditer(rf"\b{re.escape(said)}\b", sentence, re.IGNORECASE))
        if _BARE_MONTH.fullmatch(said):  # "Ana may visit Rome in May"
            places = [place for place in places if _AFTER_PREPOSITION.search(sentence[: place.start()])]
        if not places:
            body = sentence.rstrip(".!?")
            return f"{body} {lead[0].lower() if lead else preposition}{phrase}{sentence[len(body) :]}"
        before, after = sentence[: places[0].start()], sentence[places[0].end() :]
        is_compared = said.casefold().endswith(" ago") and _COMPARED.search(before)
        if is_compared or re.match(r"['’]s\b", after):  # "over a year ago", "last month's rent"
            return add_words_of_time(sentence, phrase)
        has_preposition = _AFTER_PREPOSITION.search(before)
        if not (has_preposition and _SEASON.match(phrase)):  # "in the summer 2022", but not "in the May 2023"
            before = _ARTICLE.sub("", before)
        preposition = "" if has_preposition else preposition
        told = f"{preposition}{phrase}"
        return f"{before}{told if before else told[0].upper() + told[1:]}{after}"


def add_words_of_time(sentence: str, words: str) -> str:
    """Add a time that is not understood to a sentence, unless it is there or says that there is none.

    Example:
        >>> add_words_of_time("Ana visited Rome.", "recently")
        'Ana visited Rome (recently).'
        >>> add_words_of_time("Ana visited Rome.", "N/A")
        'Ana visited Rome.'
    """
    if _NO_TIME.fullmatch(words) or words.casefold() in sentence.casefold():
        return sentence
    body = sentence.rstrip(".!?")
    return f"{body} ({words}){sentence[len(body) :]}"


def format_day(day: date) -> str:
    """Write a day as answers do: ``7 May 2023``."""
    return f"{day.day} {MONTH_NAMES[day.month - 1]} {day.year}"


def format_month(day: date) -> str:
    """Write the month of a day as answers do: ``May 2023``."""
    return f"{MONTH_NAMES[day.month - 1]} {day.year}"


def day_span(day: date | None) -> DateSpan | None:
    """Make the span of one day."""
    return None if day is None else DateSpan(day, day, format_day(day))


def month_span(day: date | None) -> DateSpan | None:
    """Make the span of the month that a day is in."""
    if day is None:
        return None
    first = day.replace(day=1)
    return DateSpan(first, first + relativedelta(months=1, days=-1), format_month(first))


def year_span(year: int) -> DateSpan | None:
    """Make the span of a year; None for a year outside 1 to 9999."""
    return DateSpan(date(year, 1, 1), date(year, 12, 31), str(year)) if 1 <= year <= 9999 else None
