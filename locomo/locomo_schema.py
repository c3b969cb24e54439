"""LoCoMo's JSON schema, read into the benchmark's types.

The flaws of the official file are repaired here (empty date entries, malformed and dangling evidence, numbers
for answers); everything else that is not in the schema is refused, and the error says where it stands.
"""

import re
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime

from locomo.json_at import JsonAt, reject_duplicates
from locomo.observations import find_turn_ids, read_observations
from locomo.types import Category, Conversation, Question, Session, Turn, WorldQuestionType

LOCOMO_DATE_FORMAT = "%I:%M %p on %d %B, %Y"
"""How LoCoMo writes a session's date, for example ``1:56 pm on 8 May, 2023``."""

_SESSION_KEY = re.compile(r"session_([0-9]{1,6})")


def parse_locomo(document: object, source: str, dangling: list[str] | None = None) -> list[Conversation]:
    """Read a decoded JSON document in LoCoMo's schema.

    Args:
        document: A list of samples, each with ``sample_id`` and ``conversation``; ``qa`` may be absent.
        source: The name of the file, for errors.
        dangling: Takes the evidence ids that name no turn, and are left out, in order.

    Raises:
        DatasetError: something is missing, doubled or of the wrong type; the message says where, what was
            expected and what to do.
    """
    samples = JsonAt(document, source)
    dangling = [] if dangling is None else dangling
    conversations: list[Conversation] = []
    for sample in samples.elements("sample"):
        conversation_id = sample.required("sample_id").name()
        sample = sample.at(conversation_id)
        talk = sample.required("conversation")
        speakers = (talk.required("speaker_a").name(), talk.required("speaker_b").name())
        if speakers[0] == speakers[1]:
            raise talk.error(f"calls both speakers {speakers[0]!r}", "tell them apart by their names")
        # A date without a session, which the official file has, is no session.
        numbered = sorted((int(key[1]), key[0]) for key in map(_SESSION_KEY.fullmatch, talk.members()) if key)
        if not numbered:
            raise talk.error("is empty: it has no session_1", "add the sessions, or remove the conversation")
        reject_duplicates([f"session_{number}" for number, _ in numbered], talk, "session number")
        sessions = [_session(talk, number, key, speakers) for number, key in numbered]
        turn_ids = [turn.turn_id for session in sessions for turn in session.turns]
        reject_duplicates(turn_ids, talk, "dia_id")
        known = set(turn_ids)
        sessions = [replace(s, observations=read_observations(sample, s.number, known)) for s in sessions]
        questions = sample.optional_elements("qa", "question")
        conversations.append(
            Conversation(
                conversation_id,
                speakers,
                tuple(sessions),
                tuple(_question(q, conversation_id, i, known, dangling) for i, q in enumerate(questions)),
            )
        )
    if not conversations:
        raise samples.error("holds no conversation", "add one, or name another file")
    reject_duplicates([c.conversation_id for c in conversations], samples, "sample_id")
    return conversations


def _session(talk: JsonAt, number: int, key: str, speakers: tuple[str, str]) -> Session:
    listed = talk.required(key)
    turns: list[Turn] = []
    for turn in listed.elements("turn"):
        speaker = turn.required("speaker")
        if speaker.text() not in speakers:
            known = " or ".join(map(repr, speakers))
            raise speaker.error(
                f"is an unknown speaker, not {known}", "correct it, or speaker_a and speaker_b"
            )
        link = turn.optional_elements("img_url", "link")[:1]
        turns.append(
            Turn(
                turn_id=turn.required("dia_id").name(),
                speaker=speaker.text(),
                text=turn.required("text").text(),
                caption=turn.optional_text("blip_caption"),
                image_url=link[0].text() if link else None,
                image_query=turn.optional_text("query"),
            )
        )
    if not turns:
        raise listed.error("has no turns", "add its turns, or remove the session")
    written = talk.required(f"{key}_date_time")
    text = written.text()
    try:
        moment = datetime.strptime(text, LOCOMO_DATE_FORMAT).replace(tzinfo=UTC)
    except ValueError as error:
        raise written.error("is not a date", "write it like '1:56 pm on 8 May, 2023'") from error
    return Session(number, moment, tuple(turns))


def _question(
    asked: JsonAt, conversation_id: str, index: int, turn_ids: Collection[str], dangling: list[str]
) -> Question:
    written = asked.required("category")
    known = {category.value: category for category in (*Category, *WorldQuestionType)}
    value = written.value
    if isinstance(value, bool) or not isinstance(value, int | str) or value not in known:
        named = ", ".join(f"{category.value} ({category.label})" for category in Category)
        others = ", ".join(repr(kind.value) for kind in WorldQuestionType)
        raise written.error("is an unknown category", f"choose from {named}, {others}")
    category = known[value]
    text = asked.required("question").name()
    is_answerable = category is not Category.ADVERSARIAL
    given = asked.required("answer") if is_answerable else asked.optional("answer")
    answer = None if given is None else given.text_or_number()
    if given is not None and answer == "" and is_answerable:
        raise given.error("is empty", "fill it in")
    # The official file has several ids in one string, ``D:11:26``, ``D30:05``, a bare ``D``, and ids of turns
    # that do not exist. One rule repairs them all: split, normalise, drop doubles and dead links.
    evidence: list[str] = []
    for entry in asked.optional_elements("evidence", "entry"):
        named = entry.text()
        ids = [named] if named in turn_ids else find_turn_ids(named)  # your own may name turns otherwise
        evidence += ids
        dangling += [unknown for unknown in ids or [named] if unknown not in turn_ids]
    return Question(
        conversation_id=conversation_id,
        index=index,
        text=text,
        category=category,
        answer=answer,
        evidence=tuple(dict.fromkeys(turn_id for turn_id in evidence if turn_id in turn_ids)),
        adversarial_answer=asked.optional_text("adversarial_answer"),
    )
