"""Classes of English words by short lists and by endings: a minimal part-of-speech tagger."""

import re
from enum import IntEnum
from functools import lru_cache

from locomo.unspaced_scripts import CHARACTER, LETTERS

_LETTER = rf"[^\W_{LETTERS}]"
WORD = re.compile(rf"{CHARACTER}|[A-Za-z](?:\+\+|#)(?!\w)|{_LETTER}+(?:['’.&-]{_LETTER}+)*")
"""A word, including marks that join its parts: ``don't``, ``J.K``, ``self-care``, ``C++``. Of scripts without
spaces, one character."""


class WordClass(IntEnum):
    """The class of a word. ``EDGE`` and ``MARK`` stand for the neighbour of a span that is not a word."""

    EDGE = 0  # the beginning or the end of a sentence
    MARK = 1  # a comma, a bracket, a quotation mark
    DETERMINER = 2
    PREPOSITION = 3
    CONJUNCTION = 4
    PRONOUN = 5
    AUXILIARY = 6
    ADVERB = 7
    COMMON_VERB = 8
    NUMBER = 9
    DIGITS = 10
    NAME = 11
    ING = 12
    ED = 13
    LY = 14
    PLURAL = 15
    OTHER = 16


_LISTS = {
    WordClass.DETERMINER: """
        a an the this that these those my your his her its our their some any every each all both another
    """,
    WordClass.PREPOSITION: """
        of in on at to for with from by about into through over after before during between around like as
        up out off down under near without against across behind since until than
    """,
    WordClass.CONJUNCTION: """
        and or but so because if when while where which who whom whose how why what though although then
    """,
    WordClass.PRONOUN: """
        i you he she it we they me him us them myself yourself himself herself ourselves themselves everyone
        everything something anything nothing someone anyone mine yours
    """,
    WordClass.AUXILIARY: """
        am is are was were be been being have has had do does did will would can could should might may must
        i'm it's that's i've you're we're they're he's she's there's i'd i'll we've we'll you've they've
        let's don't didn't can't couldn't won't wasn't isn't doesn't haven't hasn't aren't weren't wouldn't
        shouldn't what's gonna wanna gotta
    """,
    WordClass.ADVERB: """
        really just very too also even still only now here there always never often again already maybe
        definitely totally super pretty quite actually lately recently soon ever well much more most such
        not no yes yeah hey oh wow hi thanks thank sure glad
    """,
    WordClass.COMMON_VERB: """
        go going went gone get got getting make made making take took taking see saw seen know knew think
        thought feel felt feels want wanted need needed say said tell told give gave keep kept find found
        love loved like liked looks look looking come came coming hope try tried trying use used work
    """,
    WordClass.NUMBER: """
        one two three four five six seven eight nine ten eleven twelve once twice thrice half dozen couple
        few several many
    """,
}
_CLASS_OF = {word: word_class for word_class, words in _LISTS.items() for word in words.split()}

FUNCTION_CLASSES = frozenset(
    {
        WordClass.DETERMINER,
        WordClass.PREPOSITION,
        WordClass.CONJUNCTION,
        WordClass.PRONOUN,
        WordClass.AUXILIARY,
    }
)
"""Classes of function words, which do not tell the topic of a sentence."""

FIRST_PERSON = frozenset(WORD.findall("i i'm i've i'd i'll me my mine myself we we're we've us our"))
SECOND_PERSON = frozenset(WORD.findall("you you're you've you'll your yours"))


def normalize_word(word: str) -> str:
    """Return a word in lower case, with straight apostrophes."""
    return word.lower().replace("’", "'")


_ENDINGS = (
    ("ing", 5, WordClass.ING),
    ("ed", 4, WordClass.ED),
    ("ly", 4, WordClass.LY),
    ("s", 4, WordClass.PLURAL),
)


@lru_cache(maxsize=32_768)
def word_class(word: str, is_first: bool) -> WordClass:
    """Classify a word; a capital says nothing about the first word of a sentence.

    Example:
        >>> [word_class(word, is_first=False).name for word in ("the", "Oslo", "running", "3rd", "dog")]
        ['DETERMINER', 'NAME', 'ING', 'DIGITS', 'OTHER']
    """
    lowered = normalize_word(word)
    if lowered in _CLASS_OF:
        return _CLASS_OF[lowered]
    if any(character.isdigit() for character in word):
        return WordClass.DIGITS
    if word[0].isupper() and not is_first:
        return WordClass.NAME
    for ending, shortest, found in _ENDINGS:
        if lowered.endswith(ending) and len(lowered) >= shortest and not lowered.endswith("ss"):
            return found
    return WordClass.OTHER
