"""Recognition of a conversation in any text, by its id and by quotes, under any escaping."""

import base64
import binascii
import gzip
import json
import re
import zlib
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from html import unescape
from pathlib import Path

from memory_program.core.errors import ForgettingError

_MIN_QUOTE_CHARS = 12  # letters and digits: shorter lines ("Thanks!") are in every conversation
_MIN_LONG_QUOTE_CHARS = 30  # captions aside, no two conversations of LoCoMo or of a world share such lines
_PIECE_BYTES = 1 << 22
_MAX_ESCAPED_CHARS = 20  # the maximum length of one letter after two escapings
# JSON writes \u00a0, an export in Markdown \xa0; and an error \xa0: three forms of one blank
_CODE_ESCAPE = re.compile(r"\\+(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{1,5});|x([0-9a-fA-F]{2}))")
_ESCAPE = re.compile(r"\\+[nrtbf]")
_GZIP_BASE64 = re.compile(rb"H4sI[A-Za-z0-9+/=]{40,}")  # gzip in base64: the records of a report
_DAMAGES = (EOFError, gzip.BadGzipFile, zlib.error, binascii.Error)
_NOT_WORD = re.compile(r"[\W_]+")


class QuoteMatcher:
    """A matcher of texts that name a conversation or quote a line of it."""

    def __init__(
        self, name: str, texts: Iterable[str], others: Iterable[str], captions: Iterable[str] = ()
    ) -> None:
        """Keep the lines of a conversation that are in no other one.

        Args:
            name: the conversation's id.
            texts: its lines.
            others: the lines of other conversations.
            captions: the lines among ``texts`` that are captions: images of other people may have the same.
        """
        elsewhere = "\n".join(_letters_and_digits(text) for text in others)
        squashed = {_letters_and_digits(text) for text in texts}
        self._quotes = [t for t in squashed if len(t) >= _MIN_QUOTE_CHARS and t not in elsewhere]
        shared = {_letters_and_digits(text) for text in captions}
        self._long_quotes = [t for t in self._quotes if len(t) >= _MIN_LONG_QUOTE_CHARS and t not in shared]
        # An id as records write it: quoted, in a path, before the number of a question or the hash of its
        # sessions, or in a list of ids. A bare number does not match, since a conversation may be called "1".
        other = r"[\w. -]+" if " " in name else r"[\w.-]+"  # an id in the list before it
        before = rf"""(?:(?<=["'/])|["'](?:{other},\s?)+)"""
        after = r"""(?=["':/\\,]|@[0-9a-f]{16})(?!\\*["']\s*:)"""
        spellings = (name, json.dumps(name)[1:-1], json.dumps(name, ensure_ascii=False)[1:-1])
        escaped = "|".join(re.escape(spelling).replace(r"\\", r"\\+") for spelling in spellings)
        self._name = re.compile(f"{before}(?:{escaped}){after}")

    def matches_text(self, text: str) -> bool:
        """Say whether a text names the conversation or quotes it."""
        return self._name.search(text) is not None or self.matches_quote(text)

    def matches_quote(self, text: str) -> bool:
        """Say whether a text quotes the conversation."""
        squashed = _letters_and_digits(text)
        return any(quote in squashed for quote in self._quotes)

    def matches_name_or_long_quote(self, text: str) -> bool:
        """Say whether a text names the conversation, or quotes a line that is too long for small talk."""
        return self._name.search(text) is not None or self.matches_long_quote(text)

    def matches_long_quote(self, text: str) -> bool:
        """Say whether a text quotes a line that is too long for small talk."""
        squashed = _letters_and_digits(text)
        return any(quote in squashed for quote in self._long_quotes)

    def matches_file(self, path: Path, predicate: Callable[[str], bool] | None = None) -> bool:
        """Say whether a file matches; it is read in pieces that overlap, and unpacked if it ends in ``.gz``.

        Args:
            path: of the file.
            predicate: one of the methods above; ``matches_text`` by default.

        Raises:
            ForgettingError: the file is packed and damaged, so that it cannot be searched.
        """
        predicate = predicate or self.matches_text
        overlap = _MAX_ESCAPED_CHARS * max([1000, *map(len, self._quotes)])
        before, decoder = "", getincrementaldecoder("utf-8")("replace")  # a piece may end within a letter
        try:
            if path.suffix == ".html":
                packed = map(base64.b64decode, _GZIP_BASE64.findall(path.read_bytes()))
                if any(predicate(gzip.decompress(record).decode(errors="replace")) for record in packed):
                    return True
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                while piece := file.read(_PIECE_BYTES):
                    text = before + decoder.decode(piece)
                    if predicate(text):
                        return True
                    before = text[-overlap:]
        except _DAMAGES as error:
            raise ForgettingError(
                f"{str(path)!r} cannot be searched ({error}): delete it, and run the same command again"
            ) from error
        return False


def iter_files(*places: Path) -> Iterator[Path]:
    """Yield the existing files of folders, and the existing files that are named themselves."""
    for place in places:
        inside = sorted(place.rglob("*")) if place.is_dir() else [place]
        yield from (path for path in inside if path.is_file() and path.name != ".lock")


def is_report(path: Path) -> bool:
    """Say whether a file is a report, which holds compressed records; an image may only look like one."""
    for found in _GZIP_BASE64.findall(path.read_bytes()):
        with suppress(*_DAMAGES):
            gzip.decompress(base64.b64decode(found))
            return True
    return False


def _letters_and_digits(text: str) -> str:
    """Reduce a text to its letters and digits, undoing the escapes of JSON, HTML, Markdown and errors."""
    plain = _ESCAPE.sub(
        "", _CODE_ESCAPE.sub(lambda code: chr(int(code[code.lastindex or 0], 16)), unescape(text))
    )
    whole = plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return _NOT_WORD.sub("", whole).casefold()
