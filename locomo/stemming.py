"""Stems of English words as the official scorer takes them: Porter's, with the extensions of NLTK.

The scorer calls ``nltk.PorterStemmer()``. Importing NLTK takes seconds, most of them for SciPy, which no
stem needs; a test compares this module with NLTK's on thousands of made-up words and on all of LoCoMo's.

Source: M. F. Porter, "An algorithm for suffix stripping", Program 14(3), 1980, pages 130-137; the
extensions are described at https://www.nltk.org/api/nltk.stem.porter.html.
"""

from dataclasses import dataclass
from functools import lru_cache

_VOWELS = frozenset("aeiou")
_UNCHANGED = ("sky", "news", "inning", "outing", "canning", "howe", "proceed", "exceed", "succeed")
_IRREGULAR = {
    **{"skies": "sky", "dying": "die", "lying": "lie", "tying": "tie"},
    **{"innings": "inning", "outings": "outing", "cannings": "canning"},
}


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """Take the endings off a word.

    Example:
        >>> stem("trophies"), stem("running"), stem("relational"), stem("enjoy")
        ('trophi', 'run', 'relat', 'enjoy')
    """
    lowered = word.lower()
    if lowered in _IRREGULAR:
        return _IRREGULAR[lowered]
    if len(word) <= 2 or lowered in _UNCHANGED:
        return lowered
    word = lowered
    if word.endswith("ies"):
        word = word[:-1] if len(word) == 4 else word[:-2]
    elif word.endswith("sses"):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    if word.endswith("ied"):
        word = word[:-1] if len(word) == 4 else word[:-2]
    elif word.endswith("eed"):
        word = word[:-1] if _measure(word[:-3]) else word
    else:
        for ending in ("ed", "ing"):
            left = word.removesuffix(ending)
            if left != word and "v" in _consonant_vowel_pattern(left):
                # Give back what a participle took: ``conflat`` gets its e, ``hopp`` its single p.
                if left.endswith(("at", "bl", "iz")):
                    word = left + "e"
                elif len(left) >= 2 and left[-1] == left[-2] and _consonant_vowel_pattern(left)[-1] == "c":
                    word = left if left[-1] in "lsz" else left[:-1]
                else:
                    word = left + "e" if _measure(left) == 1 and _is_short(left) else left
                break
    if word.endswith("y") and len(word) > 2 and _consonant_vowel_pattern(word[:-1])[-1] == "c":
        word = f"{word[:-1]}i"
    if word.endswith("alli") and _measure(word[:-4]):
        word = word[:-2]  # and what is left may end in another double suffix
    for rules in (_DOUBLE, _DERIVED, _DROPPED):
        # The first rule whose ending the word has applies, and no other, even if it does not change the word.
        word = next((rule.apply_to(word) for rule in rules if word.endswith(rule.ending)), word)
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _is_short(word[:-1])):
            word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word


@dataclass(frozen=True, slots=True)
class _Rule:
    """An ending becomes another one if what stands before it has a measure of at least ``measure``.

    ``counted`` letters of the ending count as what stands before it; ``after`` lists the letters that may.
    """

    ending: str
    becomes: str
    measure: int = 1
    counted: int = 0
    after: str = ""

    def apply_to(self, word: str) -> str:
        before = word.removesuffix(self.ending)
        measured = _measure(before + self.ending[: self.counted])
        is_allowed = measured >= self.measure and (not self.after or before[-1] in self.after)
        return before + self.becomes if is_allowed else word


def _rules(measure: int, text: str) -> tuple[_Rule, ...]:
    pairs = (entry.split(":") for entry in text.split())
    return tuple(_Rule(ending, becomes, measure) for ending, becomes in pairs)


_DOUBLE = (
    *_rules(
        1,
        """ational:ate tional:tion enci:ence anci:ance izer:ize bli:ble alli:al entli:ent eli:e ousli:ous
        ization:ize ation:ate ator:ate alism:al iveness:ive fulness:ful ousness:ous aliti:al iviti:ive
        biliti:ble fulli:ful""",
    ),
    _Rule("logi", "log", counted=1),
)
_DERIVED = _rules(1, "icate:ic ative: alize:al iciti:ic ical:ic ful: ness:")
_DROPPED = (
    *_rules(2, "al: ance: ence: er: ic: able: ible: ant: ement: ment: ent:"),
    _Rule("ion", "", 2, after="st"),
    *_rules(2, "ou: ism: ate: iti: ous: ive: ize:"),
)


def _measure(text: str) -> int:
    """Count how often a consonant follows a vowel."""
    return _consonant_vowel_pattern(text).count("vc")


def _consonant_vowel_pattern(text: str) -> str:
    """Write c for each consonant and v for each vowel; y is a vowel after a consonant only."""
    shape = ""
    for letter in text:
        is_vowel = letter in _VOWELS or (letter == "y" and shape.endswith("c"))
        shape += "v" if is_vowel else "c"
    return shape


def _is_short(text: str) -> bool:
    """Tell if a stem is short (it ends like ``hop``, or is a vowel and a consonant) and takes an e."""
    shape = _consonant_vowel_pattern(text)
    return shape == "vc" or (shape.endswith("cvc") and text[-1] not in "wxy")
