"""LoCoMo's JSON schema, read into the benchmark's types.

The flaws of the official file are repaired here (empty date entries, malformed and dangling evidence, numbers
for answers); everything else that is not in the schema is refused, and the error says where it stands.
"""

import re
import reprlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Self, cast

from locomo.conversation import ANSWERABLE, Category, Conversation, Question, Session, Turn
from locomo.errors import DatasetError

DATE_FORMAT = "%I:%M %p on %d %B, %Y"
"""How LoCoMo writes a session's date, for example ``1:56 pm on 8 May, 2023``."""

_SESSION_KEY = re.compile(r"session_([0-9]{1,6})")
_EVIDENCE_ID = re.compile(r"D:?([0-9]{1,6}):([0-9]{1,6})")
_NOT_TEXT = re.compile("[\x00\ud800-\udfff]")
"""What no database and no model can carry: NUL, and one half of a surrogate pair."""


def conversations_in(document: object, source: str) -> list[Conversation]:
    """Read a decoded JSON document in LoCoMo's schema.

    Args:
        document: A list of samples, each with ``sample_id`` and ``conversation``; ``qa`` may be absent.
        source: The name of the file, for errors.

    Raises:
        DatasetError: something is missing, doubled or of the wrong type; the message says where, what was
            expected and what to do.
    """
    samples = _Located(document, source)
    conversations = [_conversation(sample) for sample in samples.elements("sample")]
    if not conversations:
        raise samples.error("holds no conversation", "add one, or name another file")
    _refuse_doubled([c.conversation_id for c in conversations], samples, "sample_id")
    return conversations


@dataclass(frozen=True, slots=True)
class _Located:
    """A JSON value and the place where it stands, so that every complaint can name both."""

    value: object
    place: str

    def error(self, complaint: str, remedy: str) -> DatasetError:
        return DatasetError(f"{self.place}: {reprlib.repr(self.value)} {complaint}; {remedy}")

    def wrong_type(self, expected: str) -> DatasetError:
        return self.error(f"is not {expected}", "correct the file")

    def at(self, name: str) -> Self:
        """The same value under a place that says more."""
        return replace(self, place=f"{self.place}: {name}")

    def members(self) -> Mapping[str, object]:
        if not isinstance(self.value, dict):
            raise self.wrong_type("an object")
        return cast(dict[str, object], self.value)

    def optional(self, name: str) -> "_Located | None":
        """The member of this name; None if it is absent or null."""
        value = self.members().get(name)
        return None if value is None else _Located(value, f"{self.place}: {name}")

    def required(self, name: str) -> "_Located":
        found = self.optional(name)
        if found is None:
            raise DatasetError(f"{self.place}: {name} is missing; add it, LoCoMo's schema requires it")
        return found

    def elements(self, name: str) -> "list[_Located]":
        """The elements of a list, named and counted from 1."""
        if not isinstance(self.value, list):
            raise self.wrong_type("a list")
        values = cast(list[object], self.value)
        return [_Located(value, f"{self.place}: {name} {i}") for i, value in enumerate(values, start=1)]

    def text(self) -> str:
        """The string without outer whitespace; it may be empty."""
        if not isinstance(self.value, str):
            raise self.wrong_type("a string")
        found = _NOT_TEXT.search(self.value)
        if found:
            raise DatasetError(
                f"{self.place}: character {found.start()} is {found[0]!r}, which is not text; remove it"
            )
        return self.value.strip()

    def name(self) -> str:
        """The string, which must say something."""
        text = self.text()
        if not text:
            raise self.error("is empty", "fill it in")
        return text


def _conversation(sample: _Located) -> Conversation:
    conversation_id = sample.required("sample_id").name()
    sample = sample.at(conversation_id)
    talk = sample.required("conversation")
    speakers = (talk.required("speaker_a").name(), talk.required("speaker_b").name())
    if speakers[0] == speakers[1]:
        raise talk.error(f"calls both speakers {speakers[0]!r}", "tell them apart by their names")
    sessions = _sessions(talk, speakers)
    turn_ids = [turn.turn_id for session in sessions for turn in session.turns]
    _refuse_doubled(turn_ids, talk, "dia_id")
    asked = sample.optional("qa")
    questions = [] if asked is None else asked.elements("question")
    return Conversation(
        conversation_id,
        speakers,
        tuple(sessions),
        tuple(_question(q, conversation_id, i, set(turn_ids)) for i, q in enumerate(questions)),
    )


def _sessions(talk: _Located, speakers: tuple[str, str]) -> list[Session]:
    """Sessions by their numbers. A date without a session, which the official file has, is no session."""
    numbered = sorted((int(key[1]), key[0]) for key in map(_SESSION_KEY.fullmatch, talk.members()) if key)
    if not numbered:
        raise talk.error("is empty: it has no session_1", "add the sessions, or remove the conversation")
    return [_session(talk, number, key, speakers) for number, key in numbered]


def _session(talk: _Located, number: int, key: str, speakers: tuple[str, str]) -> Session:
    listed = talk.required(key)
    turns = [_turn(turn, speakers) for turn in listed.elements("turn")]
    if not turns:
        raise listed.error("has no turns", "add its turns, or remove the session")
    return Session(number, _date_time(talk.required(f"{key}_date_time")), tuple(turns))


def _date_time(written: _Located) -> datetime:
    text = written.text()
    try:
        return datetime.strptime(text, DATE_FORMAT).replace(tzinfo=UTC)
    except ValueError as error:
        raise written.error("is not a date", "write it like '1:56 pm on 8 May, 2023'") from error


def _turn(turn: _Located, speakers: tuple[str, str]) -> Turn:
    speaker = turn.required("speaker")
    if speaker.text() not in speakers:
        known = " or ".join(map(repr, speakers))
        raise speaker.error(f"is an unknown speaker, not {known}", "correct it, or speaker_a and speaker_b")
    links = turn.optional("img_url")
    link = links.elements("link")[:1] if links else []
    return Turn(
        turn_id=turn.required("dia_id").name(),
        speaker=speaker.text(),
        text=turn.required("text").text(),
        caption=_optional_text(turn, "blip_caption"),
        image_url=link[0].text() if link else None,
        image_query=_optional_text(turn, "query"),
    )


def _question(asked: _Located, conversation_id: str, index: int, turn_ids: Collection[str]) -> Question:
    category = _category(asked.required("category"))
    return Question(
        conversation_id=conversation_id,
        index=index,
        text=asked.required("question").name(),
        category=category,
        answer=_answer(asked, category),
        evidence=_evidence(asked, turn_ids),
        adversarial_answer=_optional_text(asked, "adversarial_answer"),
    )


def _category(written: _Located) -> Category:
    known = {category.value: category for category in Category}
    if type(written.value) is int and written.value in known:  # True is an int, but not a category
        return known[written.value]
    named = ", ".join(f"{value} ({category.label})" for value, category in known.items())
    raise written.error("is an unknown category", f"choose from {named}")


def _answer(asked: _Located, category: Category) -> str | int | None:
    given = asked.required("answer") if category in ANSWERABLE else asked.optional("answer")
    if given is None or type(given.value) is int:
        return None if given is None else cast(int, given.value)
    if isinstance(given.value, str):
        return given.text()
    raise given.wrong_type("a string or a whole number")


def _evidence(asked: _Located, turn_ids: Collection[str]) -> tuple[str, ...]:
    """List the turns that hold the answer, repaired: split, normalised, without doubles and dead links.

    The official file has several ids in one string, ``D:11:26``, ``D30:05``, a bare ``D``, and ids of turns
    that do not exist; one rule covers them all.
    """
    listed = asked.optional("evidence")
    found: list[str] = []
    for entry in listed.elements("entry") if listed else []:
        text = entry.text()
        ids = [f"D{int(session)}:{int(turn)}" for session, turn in _EVIDENCE_ID.findall(text)]
        found += [text] if text in turn_ids else ids  # conversations of one's own may name turns otherwise
    return tuple(dict.fromkeys(turn_id for turn_id in found if turn_id in turn_ids))


def _optional_text(owner: _Located, name: str) -> str | None:
    found = owner.optional(name)
    return (found.text() or None) if found else None


def _refuse_doubled(ids: list[str], owner: _Located, field: str) -> None:
    seen: set[str] = set()
    for identity in ids:
        if identity in seen:
            raise DatasetError(f"{owner.place}: {field}={identity!r} occurs twice; give each its own")
        seen.add(identity)
