"""Question analysis: the type of the answer and the content words, from the question alone."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise, takewhile
from typing import Literal

from memory_program.agents.spans.word_classes import FUNCTION_CLASSES, WORD, normalize_word, word_class
from memory_program.bank.archive import QUESTION_WORDS
from memory_program.bank.stems import find_named, fold_accents, stem_words


class AnswerType(StrEnum):
    """The kind of answer that a question asks for."""

    DATE = "date"
    NUMBER = "number"
    YES_OR_NO = "yes-or-no"
    GUESS = "guess"
    """Would somebody do something? The answer is a likelihood, since nobody said it."""
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
    """Features of a question that say what its answer looks like.

    ``stems`` are all stems in order, ``content_stems`` those that tell the topic; ``named_speakers`` are the
    speakers that it names. A date is asked for to the ``year``, to the ``month``, or as exactly as known.
    """

    text: str
    answer_type: AnswerType
    stems: tuple[str, ...]
    content_stems: frozenset[str]
    bigrams: frozenset[tuple[str, str]]
    """Pairs of neighbouring stems, without pairs of two question words."""
    named_speakers: frozenset[str]
    wants_several: bool
    date_granularity: Literal["year", "month", "any"]
    is_about_future: bool
    """True if it asks about something in the future."""


def parse_question(text: str, speakers: Sequence[str]) -> QuestionClues:
    """Analyse a question about a conversation between these speakers.

    Example:
        >>> clues = parse_question("What instruments does Ana play?", ["Ana", "Ben"])
        >>> clues.answer_type.value, clues.wants_several, sorted(clues.named_speakers)
        ('which', True, ['Ana'])
        >>> sorted(clues.content_stems)
        ['instrument', 'play']
    """
    words = [normalize_word(word).removesuffix("'s") for word in WORD.findall(text)]
    stems = stem_words(words)
    named = frozenset(find_named(text, speakers))
    names = {fold_accents(normalize_word(word)) for speaker in named for word in WORD.findall(speaker)}
    content_stems = frozenset(
        stem
        for word, stem in zip(words, stems, strict=True)
        if word not in QUESTION_WORDS
        and fold_accents(word) not in names
        and word_class(word, is_first=True) not in FUNCTION_CLASSES
    )
    lowered = " ".join(words)
    opening = re.match(r"(?:what|which|who|where) (.*)", lowered)
    following = opening[1].split() if opening is not None else []
    head = list(takewhile(lambda word: word not in _VERBS_AFTER_HEAD, following))
    noun = head[-1] if head else ""
    is_plural = noun.endswith("s") and not noun.endswith("ss") and noun not in _SINGULARS
    asks_for_plural = following[:1] in (["are"], ["were"]) or (is_plural and not {"kind", "type"} & set(head))
    asks_for_all = _DONE_OFTEN.search(lowered) is not None  # that somebody has done so far
    asked_date = re.search(r"\b(?:what|which) (year|month)\b", lowered)
    return QuestionClues(
        text=text,
        answer_type=next(
            (asked for asked, form in _QUESTION_FORMS if form.search(lowered)), AnswerType.WHICH
        ),
        stems=tuple(stems),
        content_stems=content_stems,
        bigrams=frozenset(pair for pair in pairwise(stems) if not QUESTION_WORDS.issuperset(pair)),
        named_speakers=named,
        wants_several=opening is not None and (asks_for_plural or asks_for_all),
        date_granularity="any" if asked_date is None else "year" if asked_date[1] == "year" else "month",
        is_about_future=re.search(r"\b(?:will|is|are|plan|planning|upcoming)\b", lowered) is not None,
    )
