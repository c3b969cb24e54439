"""A JSON value with the place where it stands: what the readers of all benchmarks read by."""

import re
import reprlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self, cast

from locomo.benchmark_errors import DatasetError

INVALID_CHARACTERS = re.compile("[\x00\ud800-\udfff]")
"""What no database and no model can carry: NUL, and one half of a surrogate pair."""


@dataclass(frozen=True, slots=True)
class JsonAt:
    """A JSON value and the place where it stands, so that every complaint can name both."""

    value: object
    place: str

    def error(self, complaint: str, remedy: str) -> DatasetError:
        """Complain of the value: where it stands, what it is, and what to do."""
        return DatasetError(f"{self.place}: {reprlib.repr(self.value)} {complaint}; {remedy}")

    def wrong_type(self, expected: str) -> DatasetError:
        """Complain that the value is of another type than expected."""
        return self.error(f"is not {expected}", "correct the file")

    def at(self, name: str) -> Self:
        """The same value under a place that says more."""
        return replace(self, place=f"{self.place}: {name}")

    def members(self) -> Mapping[str, object]:
        """The members of an object, by name."""
        if not isinstance(self.value, dict):
            raise self.wrong_type("an object")
        return cast(dict[str, object], self.value)

    def reject_unknown(self, known: Collection[str]) -> None:
        """Refuse an object with a member of another name."""
        unknown = [name for name in self.members() if name not in known]
        if unknown:
            raise DatasetError(
                f"{self.place}: {unknown[0]!r} is an unknown field; expected {', '.join(sorted(known))}; get "
                "the official file"
            )

    def optional(self, name: str) -> "JsonAt | None":
        """The member of this name; None if it is absent or null."""
        value = self.members().get(name)
        return None if value is None else JsonAt(value, f"{self.place}: {name}")

    def required(self, name: str) -> "JsonAt":
        """The member of this name, which must be there and not null."""
        found = self.optional(name)
        if found is None:
            raise DatasetError(f"{self.place}: {name} is missing; add it, the schema requires it")
        return found

    def elements(self, name: str) -> "list[JsonAt]":
        """The elements of a list, named and counted from 1."""
        if not isinstance(self.value, list):
            raise self.wrong_type("a list")
        values = cast(list[object], self.value)
        return [JsonAt(value, f"{self.place}: {name} {i}") for i, value in enumerate(values, start=1)]

    def optional_elements(self, member: str, name: str) -> "list[JsonAt]":
        """The elements of a member that is a list; none if it is absent or null."""
        found = self.optional(member)
        return found.elements(name) if found else []

    def text(self) -> str:
        """The string without outer whitespace; it may be empty."""
        if not isinstance(self.value, str):
            raise self.wrong_type("a string")
        found = INVALID_CHARACTERS.search(self.value)
        if found:
            raise DatasetError(
                f"{self.place}: character {found.start()} is {found[0]!r}, which is not text; remove it"
            )
        return self.value.strip()

    def web_text(self) -> str:
        """The string as ``text`` gives it, without the characters that are no text.

        One odd character in 250,000 turns from all over the web is no reason to refuse them.
        """
        if not isinstance(self.value, str):
            raise self.wrong_type("a string")
        return INVALID_CHARACTERS.sub("", self.value).strip()

    def choice(self, choices: Iterable[str], what: str) -> str:
        """The string, which must be one of these."""
        known, text = list(choices), self.text()
        if text not in known:
            raise self.error(f"is an unknown {what}", f"choose from {', '.join(known)}")
        return text

    def name(self) -> str:
        """The string, which must say something."""
        text = self.text()
        if not text:
            raise self.error("is empty", "fill it in")
        return text

    def text_or_number(self) -> str | int:
        """The string without outer whitespace, or the whole number."""
        if type(self.value) is int:  # True is an int, but no number
            return self.value
        if isinstance(self.value, str):
            return self.text()
        raise self.wrong_type("a string or a whole number")

    def optional_text(self, name: str) -> str | None:
        """The text of a member; None if it is absent, null or empty."""
        found = self.optional(name)
        return (found.text() or None) if found else None


def reject_duplicates(ids: Sequence[str], owner: JsonAt, field: str) -> None:
    """Refuse ids of which one occurs twice.

    Raises:
        DatasetError: the message names it.
    """
    seen: set[str] = set()
    for identity in ids:
        if identity in seen:
            raise DatasetError(f"{owner.place}: {field}={identity!r} occurs twice; give each its own")
        seen.add(identity)
