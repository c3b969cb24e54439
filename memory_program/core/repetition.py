"""Detects a text that has ended in a loop, as small models write: ``1. 1. 1. 1.`` until the limit."""

from typing import TypeVar

CHECKED_TOKENS = 1024
"""The most tokens at the end that are searched. Longer loops than a quarter of that are not found."""

_CHECKED_CHARACTERS = 4096
_MIN_REPEATS = 4  # a chorus or a signature comes twice, a list of equal items may have three
_MIN_TOKENS, _MIN_CHARACTERS = 100, 200  # "no no no" and a rule of dashes are no loops

_Sequence = TypeVar("_Sequence", str, list[int])


def find_repetition(sequence: _Sequence) -> _Sequence:
    """Return the part that a text repeats at its end; empty if it does not end in a loop.

    It ends in a loop if one part is written again and again, letter by letter the same: at least four times,
    and over at least 100 tokens or 200 characters. The last part may be cut, and any text may come before
    the loop. Counters make the parts of a loop differ (``1. Yes. 2. Yes.``): such a loop is not found, since
    a real list looks like it.

    The longest end with period ``p`` is read off the Z function of the reversed text (Gusfield 1997,
    "Algorithms on Strings, Trees and Sequences", section 1.3), so the time is linear in its length.

    Args:
        sequence: the characters of a text, or its tokens.

    Example:
        >>> find_repetition("A list: " + "1. " * 80)
        '1. '
        >>> find_repetition("no no no no no")
        ''
    """
    is_text = isinstance(sequence, str)
    least = _MIN_CHARACTERS if is_text else _MIN_TOKENS
    end = sequence[-(_CHECKED_CHARACTERS if is_text else CHECKED_TOKENS) :]
    backwards = end[::-1]
    length = len(backwards)
    matches, left, right = [0] * length, 0, 0  # matches[i]: elements from i on that equal the beginning
    for period in range(1, length):
        match = min(right - period, matches[period - left]) if period < right else 0
        while period + match < length and backwards[match] == backwards[period + match]:
            match += 1
        if period + match > right:
            left, right = period, period + match
        matches[period] = match
        if period + match >= max(least, _MIN_REPEATS * period):
            return end[length - period :]
        if _MIN_REPEATS * period > length:
            break
    return end[:0]
