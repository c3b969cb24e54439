"""Open vocabularies: names, places and things by the thousand, a fixed part of them kept out of training."""

import hashlib
import random
from collections.abc import Iterable
from functools import lru_cache

from memory_program.bank.dates.date_span import MONTH_NAMES
from memory_program.worlds import word_lists as lists

HELD_OUT_SHARE = 0.25
"""The share of open-class words that no training world ever contains."""


_ONSETS = lists.word_tuple("b d f g h j k l m n p r s t v w z br dr gr kr tr pl fl gl kl sh th st sk sn sv")
_VOWELS = lists.word_tuple("a e i o u a e i o u ai ei ou")
_CODAS = ("", "", "", *lists.word_tuple("n r l s m k t"))
_CLOSES = ("", "", *lists.word_tuple("n r l m x d v th sh nd rk"))
_PERSON_ENDS = lists.word_tuple("a o i us an el in ek or is ia un ette ard ois ael")
_PLACE_ENDS = lists.word_tuple(
    "vik ton burg mere stad holm ford dal nova sund gard by minster haven field ora isk"
)
_TRIES = 60
_HYPHEN_SHARE = 0.04  # the share of coined words that are two


@lru_cache(maxsize=200_000)
def is_held_out(word: str) -> bool:
    """Say whether a word is kept out of training worlds; the same in every process, by SHA-256."""
    first = int.from_bytes(hashlib.sha256(word.lower().encode()).digest()[:4])
    return first < HELD_OUT_SHARE * 2**32


def _syllable(rng: random.Random) -> str:
    return rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS)


def _invent_name(rng: random.Random) -> str:
    return (_syllable(rng) + rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CLOSES)).capitalize()


def _generate_parts(name: str, rng: random.Random) -> tuple[str, str, str]:
    """Generate an entry: its beginning, the open word that identifies it, and its end."""
    match name:
        case "person" if rng.random() < 0.2:
            return "", rng.choice(lists.FIRST_NAMES), ""
        case "person":
            return "", (_syllable(rng) + rng.choice(_ONSETS) + rng.choice(_PERSON_ENDS)).capitalize(), ""
        case "place" if rng.random() < 0.15:
            return "", rng.choice(lists.TOWNS), ""
        case "place":
            middle = _syllable(rng) if rng.random() < 0.3 else ""
            return "", (_syllable(rng) + middle + rng.choice(_PLACE_ENDS)).capitalize(), ""
        case "pet":
            ending = rng.choice(("o", "y", "i", "ie", "a"))
            word = rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_ONSETS) + ending
            return "", word.capitalize(), ""
        case "company":
            return "", _invent_name(rng), f" {rng.choice(lists.COMPANY_SUFFIXES)}"
        case "band":
            return "", _invent_name(rng), f" {rng.choice(lists.BAND_SUFFIXES)}"
        case "title":
            return f"The {rng.choice(lists.TITLE_NOUNS)} of ", _invent_name(rng), ""
        case "thing":
            return f"{rng.choice(lists.MODIFIERS)} ", rng.choice(lists.THINGS), ""
        case _:
            return "", rng.choice(lists.INGREDIENTS), f" {rng.choice(lists.DISH_FORMS)}"


_INVENTED = ("person", "place", "pet", "company", "band", "title")
_OPEN_LISTS: dict[str, tuple[str, ...]] = {
    "ingredient": lists.INGREDIENTS,
    "job": lists.JOBS,
    "hobby": lists.HOBBIES,
    "craft": lists.CRAFTS,
}
_CLOSED_LISTS: dict[str, tuple[str, ...]] = {
    "animal": lists.ANIMALS,
    "room": lists.ROOMS,
    "relation": lists.RELATIONS,
    "weekday": lists.WEEKDAYS,
    "child": ("son", "daughter"),
    "minutes": tuple(f"{minutes} minutes" for minutes in range(5, 100, 5)),
    "clock": tuple(f"{hour}{past} am" for hour in range(4, 12) for past in ("", ":15", ":30", ":45")),
    "birthday": tuple(f"{day} {month}" for month in MONTH_NAMES for day in range(1, 29)),
}
_BLENDABLE_WORDS = tuple(
    word
    for word in (*lists.THINGS, *lists.INGREDIENTS, *lists.JOBS, *lists.HOBBIES, *lists.CRAFTS)
    if len(word) > 3 and not is_held_out(word)
)
VOCABULARIES = (*_INVENTED, "thing", "dish", *_OPEN_LISTS, *_CLOSED_LISTS)
"""The names of all vocabularies."""

_KNOWN_WORDS = frozenset(
    word.lower()
    for words in (
        *(
            lists.THINGS,
            lists.INGREDIENTS,
            lists.DISH_FORMS,
            lists.JOBS,
            lists.HOBBIES,
            lists.CRAFTS,
            lists.MODIFIERS,
            MONTH_NAMES,
            lists.WEEKDAYS,
        ),
        *(lists.TITLE_NOUNS, lists.ANIMALS, lists.RELATIONS, lists.ROOMS),
    )
    for word in words
)


class Vocabulary:
    """Draws for one conversation; nothing of an open class is drawn twice.

    ``held_out`` worlds are made of held-out words alone, training worlds of the others, so that no name,
    place or thing occurs in both. ``coined`` is the share of things, foods, jobs and pastimes that are made
    up as names are: there are some hundred real ones, few enough to learn by heart.
    """

    def __init__(self, rng: random.Random, *, held_out: bool = False, coined: float = 0.0) -> None:
        """Start with nothing used."""
        self._rng = rng
        self._held_out = held_out
        self._coined = coined
        self._used: set[str] = set()
        self._pools: dict[str, list[str]] = {}

    def draw(self, name: str, exclude: Iterable[str] = ()) -> str | None:
        """Draw an entry of a vocabulary; None once there is nothing left.

        Args:
            name: one of ``VOCABULARIES``.
            exclude: entries of a closed vocabulary that will not do (open ones never repeat anyway).
        """
        if name in _CLOSED_LISTS:
            choices = [word for word in _CLOSED_LISTS[name] if word not in exclude]
            return self._rng.choice(choices) if choices else None
        if name in _OPEN_LISTS:
            if self._coined and self._rng.random() < self._coined:
                return self._blend_words()
            if name not in self._pools:
                words = _OPEN_LISTS[name]
                self._pools[name] = [word for word in words if is_held_out(word) == self._held_out]
            pool = self._pools[name]
            if not pool:
                return None
            position = self._rng.randrange(len(pool))
            pool[position], pool[-1] = pool[-1], pool[position]
            return pool.pop()
        is_invented = name in _INVENTED
        for _ in range(_TRIES):
            before, word, after = _generate_parts(name, self._rng)
            if not is_invented and self._coined and self._rng.random() < self._coined:
                word = self._blend_words() or word
            if is_held_out(word) != self._held_out or (
                is_invented and not (4 <= len(word) <= 11 and word.lower() not in _KNOWN_WORDS)
            ):
                continue
            entry = before + word + after
            key = word.lower() if is_invented else entry
            if key not in self._used:
                self._used.add(key)
                return entry
        return None

    def _blend_words(self) -> str | None:
        """Join the start of one word to the end of another ("parsctor"), or two words by a hyphen."""
        for _ in range(_TRIES):
            first, second = self._rng.choices(_BLENDABLE_WORDS, k=2)
            word, longest = f"{first}-{second}", 17
            if self._rng.random() >= _HYPHEN_SHARE:
                begins = first[: self._rng.randint(2, len(first) - 1)]
                word, longest = begins + second[self._rng.randint(1, len(second) - 1) :], 11
            is_new = word not in self._used and word not in _KNOWN_WORDS
            if is_new and 4 <= len(word) <= longest and is_held_out(word) == self._held_out:
                self._used.add(word)
                return word
        return None


def identifying_word(name: str, entry: str) -> str | None:
    """Give the word of an entry that ``is_held_out`` decides on; None for a closed vocabulary."""
    if name in _CLOSED_LISTS:
        return None
    if name in ("company", "band", "dish"):
        return entry.split()[0]
    return entry.split()[-1] if name in ("title", "thing") else entry


def with_article(noun: str) -> str:
    """Put a or an before a noun."""
    return f"an {noun}" if noun[0].lower() in "aeiou" and not noun.startswith("uni") else f"a {noun}"
