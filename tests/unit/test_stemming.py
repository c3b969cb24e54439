"""Stems: NLTK's own are the reference, because the official scorer takes those."""

import random
from pathlib import Path

import pytest
from nltk.stem.porter import PorterStemmer

from locomo.stemming import stem

OFFICIAL = PorterStemmer()
ENDINGS = (
    "s ss es ies sses ed eed ied ing y ly ational tional enci anci izer bli alli entli eli ousli ization "
    "ation ator alism iveness fulness ousness aliti iviti biliti fulli logi icate ative alize iciti ical "
    "ful ness al ance ence er ic able ible ant ement ment ent ion sion tion ou ism ate iti ous ive ize e "
    "ll at bl iz"
)


@pytest.mark.parametrize(
    ("word", "stemmed"),
    [
        ("caresses", "caress"),
        ("ponies", "poni"),
        ("ties", "tie"),
        ("agreed", "agre"),
        ("feed", "feed"),
        ("hopping", "hop"),
        ("falling", "fall"),
        ("filing", "file"),
        ("happy", "happi"),
        ("enjoy", "enjoy"),
        ("dying", "die"),
        ("controlling", "control"),
        ("adoption", "adopt"),
        ("as", "as"),
        ("", ""),
    ],
)
def test_a_stem_by_hand(word: str, stemmed: str) -> None:
    assert stem(word) == stemmed


def piece(rng: random.Random) -> str:
    """An ending, some letters, or up to two characters of any kind (without surrogates)."""
    match rng.randrange(3):
        case 0:
            return rng.choice(ENDINGS.split(" "))
        case 1:
            return "".join(rng.choices("aeioubcdlnstwxyz", k=rng.randrange(5)))
        case _:
            planes = (range(0x80), range(0x300), range(0xD800), range(0xE000, 0x110000))
            return "".join(chr(rng.choice(rng.choice(planes))) for _ in range(rng.randrange(3)))


def test_any_word_has_the_stem_that_the_official_scorer_takes() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # pytest shows it when the test fails
    rng = random.Random(seed)  # Hypothesis takes a hundred times as long to make up a word
    words = {"".join(piece(rng) for _ in range(rng.randrange(6))) for _ in range(10_000)}
    assert {word: stem(word) for word in words} == {word: OFFICIAL.stem(word) for word in words}


@pytest.mark.dataset
def test_every_word_of_locomo_has_the_stem_that_the_official_scorer_takes(locomo_path: Path) -> None:
    words = set(locomo_path.read_text(encoding="utf-8").split())
    assert len(words) > 20_000
    assert {word: stem(word) for word in words} == {word: OFFICIAL.stem(word) for word in words}
