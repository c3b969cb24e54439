"""What a question asks for and what it speaks of, read off its words alone."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Literal

from memory_program.agents.baselines.word_classes import FUNCTION_CLASSES, WORD, normalize_word, word_class
from memory_program.bank.archive import QUESTION_WORDS
from memory_program.bank.stems import stem_words


class AnswerType(StrEnum):
    """The kind of answer that a question asks for."""

    DATE = "date"
    NUMBER = "number"
    YES_OR_NO = "yes-or-no"
    GUESS = "guess"
    """Would somebody do something? Nobody said so; the answer is a likelihood."""
    NAME = "name"
    """A person, a place, a title: who, where, what is it called."""
    MANNER = "manner"
    """Why and how."""
    WHICH = "which"
    """One of a kind that the question names: what book, which sport."""
    WHAT = "what"
    """Anything else."""


_QUESTION_FORMS: tuple[tuple[AnswerType, re.Pattern[str]], ...] = tuple(
    (asked, re.compile(pattern, re.IGNORECASE))
    for asked, pattern in (
        (
            AnswerType.DATE,
            r"^(?:(?:on|in|around|during|since|by) )?(?:what|which) (?:year|month|date|day|week|time)\b",
        ),
        (AnswerType.DATE, r"^(?:.* )?when (?:did|is|was|does|will|has)\b|^when\b"),
        (AnswerType.NUMBER, r"\bhow (?:long|many|much|often)\b"),
        (AnswerType.NAME, r"\b(?:who|whose|whom)\b|^where\b"),
        (
            AnswerType.NAME,
            r"^(?:in )?(?:what|which) (?:city|country|state|place|cities|countries|states|places)\b",
        ),
        (AnswerType.GUESS, r"^(?:would|is it likely)\b"),
        (AnswerType.YES_OR_NO, r"^(?:did|does|do|is|are|was|were|has|have|had|can|could|will)\b"),
        (AnswerType.MANNER, r"^(?:\w+ ){0,2}why\b|^what (?:inspired|motivated)\b|^how\b"),
        (AnswerType.WHICH, r"\b(?:might|would|could|likely|potentially)\b"),
        (AnswerType.NAME, r"^(?:what|which)\b.*\b(?:names?|called|named|title)\b"),
        (AnswerType.WHAT, r"^what (?:did|does|do|has|have|is|was|will|would|are|were|had)\b"),
    )
)
_SINGULARS = frozenset(
    WORD.findall(
        "does is was has this his its always class process stress business fitness series news address basis "
        "kindness tennis success loss illness bus campus focus canvas sports"
    )
)
_VERBS_AFTER_HEAD = frozenset(
    WORD.findall(
        "did does do is was has have are were would might could can will had that in on to for by from at "
        "with"
    )
)
_DONE_OFTEN = re.compile(
    r"^(?:what|where|who|which)\b.*\b(?:has|have)\b.*\b(?:\w+ed|been|made|done|gone|written|read|seen)\b"
)


@dataclass(frozen=True, slots=True)
class QuestionClues:
    """What can be known of an answer from its question.

    ``content_stems`` are the stems that say what it is about, ``stems`` all of them in order; ``named_speakers`` are the
    speakers that it names. A date is wanted to the ``year``, to the ``month``, or as exactly as it is known.
    """

    text: str
    answer_type: AnswerType
    stems: tuple[str, ...]
    content_stems: frozenset[str]
    bigrams: frozenset[tuple[str, str]]
    """Stems that stand next to each other, unless both only hold the question together."""
    named_speakers: frozenset[str]
    wants_several: bool
    date_granularity: Literal["year", "month", "any"]
    is_about_future: bool
    """Whether it asks about something to come."""


def parse_question(text: str, speakers: Sequence[str]) -> QuestionClues:
    """Read a question between these speakers.

    Example:
        >>> clues = parse_question("What instruments does Ana play?", ["Ana", "Ben"])
        >>> clues.answer_type.value, clues.wants_several, sorted(clues.content_stems), sorted(clues.named_speakers)
        ('which', True, ['instrument', 'play'], ['Ana'])
    """
    words = [normalize_word(word).removesuffix("'s") for word in WORD.findall(text)]
    stems = stem_words(words)
    named = {
        speaker
        for speaker in speakers
        if not {normalize_word(word) for word in WORD.findall(speaker)}.isdisjoint(words)
    }
    names = {normalize_word(word) for speaker in named for word in WORD.findall(speaker)}
    telling = {
        stem
        for word, stem in zip(words, stems, strict=True)
        if len(word) > 1 and word not in names and not _is_function_word(word)
    }
    lowered = " ".join(words)
    return QuestionClues(
        text=text,
        answer_type=next(
            (asked for asked, form in _QUESTION_FORMS if form.search(lowered)), AnswerType.WHICH
        ),
        stems=tuple(stems),
        content_stems=frozenset(telling),
        bigrams=frozenset(pair for pair in pairwise(stems) if not QUESTION_WORDS.issuperset(pair)),
        named_speakers=frozenset(named),
        wants_several=_wants_several(lowered),
        date_granularity=_grain(lowered),
        is_about_future=re.search(r"\b(?:will|is|are|plan|planning|upcoming)\b", lowered) is not None,
    )


def _is_function_word(word: str) -> bool:
    return word in QUESTION_WORDS or word_class(word, is_first=True) in FUNCTION_CLASSES


def _grain(lowered: str) -> Literal["year", "month", "any"]:
    asked = re.search(r"\b(?:what|which) (year|month)\b", lowered)
    if asked is None:
        return "any"
    return "year" if asked[1] == "year" else "month"


def _wants_several(lowered: str) -> bool:
    """Whether the noun that is asked for is a plural, or the question is what somebody has done so far."""
    asked = re.match(r"(?:what|which|who|where) (.*)", lowered)
    if asked is None:
        return False
    words = asked[1].split()
    if words[0] in ("are", "were") or _DONE_OFTEN.search(lowered):
        return True
    head: list[str] = []
    for word in words:
        if word in ("kind", "type"):
            return False
        if word in _VERBS_AFTER_HEAD:
            break
        head.append(word)
    return (
        bool(head) and head[-1].endswith("s") and head[-1] not in _SINGULARS and not head[-1].endswith("ss")
    )
