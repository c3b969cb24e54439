"""Scripts that are written without spaces between words: Chinese, Japanese, Thai, Lao, Khmer and Burmese.

Korean is among them: it has spaces, but its particles are glued to the words. Such text is split into
characters: a letter with the marks that it carries.
"""

import re
from unicodedata import category

_SYLLABIC = (  # Chinese characters, Korean syllables, Yi: each is a syllable, and mostly has a meaning
    "\u2e80-\u2fd5\u3005-\u3007\u3021-\u3029\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
    "\u1100-\u11ff\u3131-\u318e\ua960-\ua97c\uac00-\ud7fb\ua000-\ua48c"
)
_ALPHABETIC_BLOCKS = (
    *(
        (0x0E00, 0x0EFF),
        (0x1000, 0x109F),
        (0x1780, 0x17FF),
        (0x1950, 0x19DF),
        (0x1A20, 0x1AAF),
    ),  # Thai to Tai
    *((0x3041, 0x3130), (0x31A0, 0x31BF), (0x31F0, 0x31FF)),  # Kana, Bopomofo
    *((0xA9E0, 0xA9FF), (0xAA60, 0xAA7F), (0xFF66, 0xFF9F)),  # Burmese, half-width Kana
)
_ALPHABETIC = [
    chr(code)
    for first, last in _ALPHABETIC_BLOCKS
    for code in range(first, last + 1)
    if category(chr(code))[0] in "LMN"
]
LETTERS = _SYLLABIC + "".join(_ALPHABETIC)
"""The letters, marks and digits of these scripts, as they stand in a character class of a pattern."""

_MARKS = "".join(letter for letter in _ALPHABETIC if category(letter)[0] == "M")

CHARACTER = rf"[{LETTERS}][{_MARKS}]*"
"""A pattern of one character of these scripts."""

UNSPACED_RUN = re.compile(f"([{LETTERS}]+)")
"""Text of these scripts without anything between."""

_CHARACTER = re.compile(CHARACTER)
_SYLLABLE = re.compile(rf"[{_SYLLABIC}].*|..+", re.DOTALL)
_PUNCTUATION = {  # Chinese commas separate the items of a list, as "," does
    **dict.fromkeys(map(ord, "\u3001\uff0c"), ", "),
    ord("\uff1b"): "; ",
    **dict.fromkeys(
        map(
            ord, "\u3002\u300a\u300b\u300c\u300d\u300e\u300f\u3010\u3011\u30fb\uff01\uff08\uff09\uff1a\uff1f"
        ),
        " ",
    ),
    **dict.fromkeys(map(ord, "\u104a\u104b\u17d4\u17d5"), " "),
}


def split_characters(run: str) -> list[str]:
    """Split text of these scripts into its characters.

    Example:
        >>> split_characters("กินข้าว")
        ['กิ', 'น', 'ข้', 'า', 'ว']
    """
    return _CHARACTER.findall(run)


def is_syllable(character: str) -> bool:
    """True for a character that is a whole syllable: Chinese, Korean, or a letter with a vowel sign."""
    return _SYLLABLE.fullmatch(character) is not None


def separate_characters(text: str) -> str:
    """Put spaces around every character of these scripts; their commas become English, other marks spaces.

    A metric that splits at spaces then compares characters, as MLQA's evaluation does for Chinese (Lewis et
    al. 2020, ACL, ``mixed_segmentation`` in ``mlqa_evaluation_v1.py``). Other text stays as it is.

    Example:
        >>> separate_characters("他去了 Oslo。")
        '他 去 了 Oslo'
        >>> separate_characters("Oslo, in May")
        'Oslo, in May'
    """
    if UNSPACED_RUN.search(text) is None:
        return text
    spaced = _CHARACTER.sub(lambda match: f" {match[0]} ", text.translate(_PUNCTUATION))
    return " ".join(spaced.split())
