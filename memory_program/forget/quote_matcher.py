"""The words by which a copy of a conversation is known, wherever it lies and however it was escaped."""

import base64
import gzip
import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from html import unescape
from pathlib import Path

_MIN_QUOTE_CHARS = 12  # letters and digits: shorter lines ("Thanks!") are said everywhere
_MIN_LONG_QUOTE_CHARS = (
    30  # captions aside, no two conversations of LoCoMo, or made-up ones, share such lines
)
_PIECE_BYTES = 1 << 22
_MAX_ESCAPED_CHARS = 20  # characters that a letter becomes at most, escaped and escaped once more
_UNICODE_ESCAPE = re.compile(r"\\+u([0-9a-fA-F]{4})")
_ESCAPE = re.compile(r"\\+[nrtbf]")
_GZIP_BASE64 = re.compile(rb"H4sI[A-Za-z0-9+/=]{40,}")  # gzip in base64: the records of a report
_NOT_WORD = re.compile(r"[\W_]+")


class QuoteMatcher:
    """What was told in a conversation, and what it is called."""

    def __init__(
        self, name: str, texts: Iterable[str], others: Iterable[str], captions: Iterable[str] = ()
    ) -> None:
        """Take the texts of a conversation, but those that somebody else said as well.

        Args:
            name: what it is called.
            texts: what was told.
            others: what was told elsewhere.
            captions: which of the texts are captions, in which pictures of anybody may be alike.
        """
        elsewhere = "\n".join(_letters_and_digits(text) for text in others)
        squashed = {_letters_and_digits(text) for text in texts}
        self.texts = [t for t in squashed if len(t) >= _MIN_QUOTE_CHARS and t not in elsewhere]
        alike = {_letters_and_digits(text) for text in captions}
        self._own = [t for t in self.texts if len(t) >= _MIN_LONG_QUOTE_CHARS and t not in alike]
        # As records write ids: quoted, in a path, before the number of a question, or in a list of ids. A
        # conversation may be called "1", which stands everywhere, but not so.
        before, after = r"""(?:(?<=["'/])|["'](?:[\w.-]+,\s?)+)""", r"""(?=["':/\\,])(?!\\*["']\s*:)"""
        self._name = re.compile(before + re.escape(name) + after)

    def matches_text(self, text: str) -> bool:
        """Whether a text quotes the conversation, or names it."""
        return self._name.search(text) is not None or self.matches_quote(text)

    def matches_quote(self, text: str) -> bool:
        """Whether a text quotes the conversation."""
        squashed = _letters_and_digits(text)
        return any(telling in squashed for telling in self.texts)

    def matches_name_or_long_quote(self, text: str) -> bool:
        """Whether a text names the conversation, or quotes what only it can have told: no small talk."""
        return self._name.search(text) is not None or self.matches_long_quote(text)

    def matches_long_quote(self, text: str) -> bool:
        """Whether a text quotes what only the conversation can have told."""
        squashed = _letters_and_digits(text)
        return any(telling in squashed for telling in self._own)

    def matches_file(self, path: Path, predicate: Callable[[str], bool] | None = None) -> bool:
        """Whether a file tells of the conversation, looked at in pieces that overlap.

        Args:
            path: of the file.
            is_in: which of the questions above is asked of its text; without it, ``predicate``.
        """
        predicate = predicate or self.matches_text
        overlap = _MAX_ESCAPED_CHARS * max([1000, *map(len, self.texts)])
        if path.suffix == ".html":
            packed = [
                gzip.decompress(base64.b64decode(found)) for found in _GZIP_BASE64.findall(path.read_bytes())
            ]
            if any(predicate(records.decode(errors="replace")) for records in packed):
                return True
        before, decoder = "", getincrementaldecoder("utf-8")("replace")  # a piece may end within a letter
        with path.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                text = before + decoder.decode(piece)
                if predicate(text):
                    return True
                before = text[-overlap:]
        return False


def iter_files(*places: Path) -> Iterator[Path]:
    """Yield the files of folders, and those named themselves, as far as they are there."""
    for place in places:
        inside = sorted(place.rglob("*")) if place.is_dir() else [place]
        yield from (path for path in inside if path.is_file() and path.name != ".lock")


def is_report(path: Path) -> bool:
    """Whether a file is a report of runs, which holds its records in packed form."""
    return _GZIP_BASE64.search(path.read_bytes()) is not None


def _letters_and_digits(text: str) -> str:
    """The letters and digits of a text, whatever JSON or HTML made of it."""
    told = _ESCAPE.sub("", _UNICODE_ESCAPE.sub(lambda code: chr(int(code[1], 16)), unescape(text)))
    whole = told.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return _NOT_WORD.sub("", whole).casefold()
