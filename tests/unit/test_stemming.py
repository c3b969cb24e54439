"""Stems: NLTK's own are the reference, because the official scorer takes those."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.stem.porter import PorterStemmer

from locomo.stemming import stem

OFFICIAL = PorterStemmer()
ENDINGS = (
    "s ss es ies sses ed eed ied ing y ly ational tional enci anci izer bli alli entli eli ousli ization "
    "ation ator alism iveness fulness ousness aliti iviti biliti fulli logi icate ative alize iciti ical "
    "ful ness al ance ence er ic able ible ant ement ment ent ion sion tion ou ism ate iti ous ive ize e "
    "ll at bl iz"
)


PIECES = st.one_of(
    st.sampled_from(ENDINGS.split(" ")), st.text("aeioubcdlnstwxyz", max_size=4), st.text(max_size=2)
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


@settings(max_examples=3000)
@given(st.lists(PIECES, max_size=5).map("".join))
def test_any_word_has_the_stem_that_the_official_scorer_takes(word: str) -> None:
    assert stem(word) == OFFICIAL.stem(word)


@pytest.mark.dataset
def test_every_word_of_locomo_has_the_stem_that_the_official_scorer_takes(locomo_path: Path) -> None:
    words = set(locomo_path.read_text(encoding="utf-8").split())
    assert len(words) > 20_000
    assert {word: stem(word) for word in words} == {word: OFFICIAL.stem(word) for word in words}
