"""The grounding check: a memory with hardly a content word of its session was invented, or is the prompt's.

A weak model fills a valid call with the nearest text: with an example call in the prompt, 11 of 15 memories
of Qwen2.5-Coder-0.5B were the example. ``benchmarks/grounding.py`` measures the false refusals.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import regex

from locomo.types import Session
from memory_program.bank.dates.date_span import MONTH_NAMES
from memory_program.bank.stems import stem_words, tokenize

PLACEHOLDERS = {
    "text": "<one fact from the session>",
    "old_text": "<a part of the profile>",
    "query": "<words to look for>",
    "happened_at": "",
    "reason": "<why>",
    "memory_id": "<id>",
    "answer": "<a short answer>",
    "question": "<a question>",
    "turn_id": "<id>",
}
"""The texts of the examples in prompts: nothing that could be taken for a fact."""

LEAST_SHARE = 0.2
"""The least share of a memory's content words that its session has.

One word in five refuses 1 of LoCoMo's 2,541 facts wrongly, as a single common word would, and finds 69 % of
facts about strangers (``benchmarks/grounding.py``)."""

_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_TIME_WORDS = (
    *(
        "today",
        "yesterday",
        "tomorrow",
        "tonight",
        "day",
        "days",
        "week",
        "weeks",
        "weekend",
        "month",
        "months",
    ),
    *("year", "years", "ago", "last", "next", "early", "late", "recently", "date", "time", "session"),
)
_FUNCTION_WORDS = """
about above after again all also always am any anything anyone because been before being below both can
cannot could did do does doing done down during each enough ever every few first from further get gets
getting go goes going gone got had has have having he her here hers him himself his how however it its
itself just know like made make makes making many may me might more most much must my myself need never
new now off once one only other others our ours out over own person people really same say says saying she
should since so some someone something still such take than that them themselves they thing things think
this those though through too two under until up us use used very want wants was way we well were what
when where whether which while who whom whose why will would yes yet you your yours don doesn didn isn
wasn aren won ll ve re
"""
_EMPTY_WORDS = frozenset(
    stem_words([*_WEEKDAYS, *map(str.lower, MONTH_NAMES), *_TIME_WORDS, *re.findall(r"\w+", _FUNCTION_WORDS)])
)
_FIGURE = re.compile(r"\d+")
_DATE_FIGURE = re.compile(r"\d+(?:st|nd|rd|th)?")
_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]+")
_LATIN = regex.compile(r"\p{Latin}+")
_PLACEHOLDER = re.compile(r"[^\w<]*<[^<>]+>\W*")
_EXAMPLES = [text for text in PLACEHOLDERS.values() if " " in text]
_COPIED = {re.sub(r"\W+", " ", text).strip().lower() for text in _EXAMPLES}


def is_placeholder(text: str) -> bool:
    """Tell if a text is an example of the prompt and no content, or holds one beside its content.

    Example:
        >>> is_placeholder("<one fact from the session>"), is_placeholder("One fact from the session.")
        (True, True)
        >>> is_placeholder("Mara wrote <b> on the wall."), is_placeholder("")
        (False, False)
    """
    bare = re.sub(r"\W+", " ", text).strip().lower()
    is_example = bare in _COPIED or _PLACEHOLDER.fullmatch(text) is not None
    return is_example or any(example in text.lower() for example in _EXAMPLES)


def is_grounded(text: str, session: Session, replaced: Iterable[str] = ()) -> bool:
    """Tell if a fifth of a text's content words are in its session or in the memories that it replaces.

    Words are compared by their stems. Names of speakers, stop words and expressions of time are no content;
    figures count if they were said. A text of such words alone is compared by them.

    A text that is mostly in a script without spaces between words is compared by pairs of characters, or by
    characters if it has no pair. It says nothing against a session in another script, nor the reverse: it may
    be a translation. The same holds for a text in Latin letters and a session in others, or the reverse.
    """
    said = _session_content(session)
    sources = tuple(replaced)
    if _is_mostly(_UNSPACED, text):
        known_pairs = said.pairs.union(*map(_pairs, sources))
        said_here = _pairs(text)
        pairs = {pair for pair in said_here if len(pair) > 1} or said_here
        return not known_pairs or bool(pairs & known_pairs)
    if said.is_unspaced or (said.all_stems and _is_mostly(_LATIN, text) != said.is_latin):
        return True
    words, known = content_stems(text) - said.names, said.stems.union(*map(content_stems, sources))
    if not words:  # "Tom gets up at 5:45"
        words, known = set(tokenize(text)) - said.names, said.all_stems.union(*map(tokenize, sources))
    figures = set(_FIGURE.findall(text)) & said.figures
    return len(words & known) + len(figures) >= max(1, LEAST_SHARE * len(words))


@dataclass(frozen=True, slots=True)
class _SessionContent:
    stems: frozenset[str]
    all_stems: frozenset[str]
    figures: frozenset[str]
    names: frozenset[str]
    pairs: frozenset[str]
    is_unspaced: bool
    is_latin: bool


@lru_cache(maxsize=64)  # for every call of every agent
def _session_content(session: Session) -> _SessionContent:
    said = "\n".join(turn.utterance for turn in session.turns)
    names = frozenset(stem for turn in session.turns for stem in tokenize(turn.speaker))
    return _SessionContent(
        frozenset(content_stems(said) - names),
        frozenset(tokenize(said)) - names,
        frozenset(_FIGURE.findall(said)),
        names,
        frozenset(_pairs(said)),
        _is_mostly(_UNSPACED, said),
        _is_mostly(_LATIN, said),
    )


def content_stems(text: str) -> set[str]:
    """Return the stems of a text without stop words, expressions of time and figures of dates."""
    return {stem for stem in tokenize(text) if stem not in _EMPTY_WORDS and not _DATE_FIGURE.fullmatch(stem)}


def _is_mostly(script: regex.Pattern[str], text: str) -> bool:
    return sum(map(len, script.findall(text))) > sum(map(str.isalpha, text)) / 2


def _pairs(text: str) -> set[str]:
    """List the pairs of neighbours, and the characters alone."""
    runs: list[str] = _UNSPACED.findall(text)
    return {run[place : place + size] for run in runs for size in (1, 2) for place in range(len(run))}
