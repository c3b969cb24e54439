"""Exports of other memory systems and chat programs, as memories and as turns that wait to be written.

Memories: mem0's ``get_all``, Zep's edges, Letta's passages and the blocks of its agent files. Conversations:
``conversations.json`` of ChatGPT and of Claude, the messages of a Zep thread and of a Letta agent file. The
fields are those that the systems' documentation named in November 2026. Others are not looked at.
"""

import json
import textwrap
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any, TypeVar, cast
from uuid import uuid4

from pydantic import BaseModel, TypeAdapter, ValidationError

from locomo.types import Session
from memory_program.bank.memory import CORE_LIMIT_CHARS, MEMORY_LIMIT_CHARS, Draft, MemoryKind, Provenance
from memory_program.bank.store import BankStore
from memory_program.bank.turn_buffer import RequestKey, SessionRule, SpokenTurn, TurnBuffer
from memory_program.core.errors import StoreError
from memory_program.core.hashing import content_hash

_T = TypeVar("_T")
_SPEAKERS = {"user": "User", "human": "User", "assistant": "Assistant"}
_SAME_IMPORT_S = 60.0
_MOST_CHARS = 16_000  # of a turn: a longer message becomes several


@dataclass(frozen=True, slots=True)
class ForeignExport:
    """The content of a file: memories, profile, conversations, and what is left out, each with its number."""

    origin: str
    drafts: Sequence[Draft] = ()
    profile: str = ""
    talks: Sequence[Sequence[SpokenTurn]] = ()
    left_out: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class ImportCounts:
    """The outcome of an import: memories and turns that were added, and those that were there before."""

    memories: int
    turns: int
    known: int


def read_foreign_export(document: object) -> ForeignExport:
    """Read an export; its form tells where it is from.

    Raises:
        StoreError: no importer knows the form, or a part of it is not as expected.
    """
    first: object = document[0] if isinstance(document, list) and document else document
    keys = set(first) if isinstance(first, dict) else set[object]()
    for needed, origin, read in _READERS:
        if needed <= keys:
            try:
                return read(document)
            except ValidationError as error:
                where = error.errors(include_input=False)[0]
                raise StoreError(
                    f"not an export of {origin}: {'.'.join(map(str, where['loc']))}: {where['msg']}"
                ) from error
    raise StoreError(
        "the file is of no known form: expected an export of this program, memories of mem0, Zep or Letta, "
        "or conversations.json of ChatGPT or Claude"
    )


def save_foreign_export(store: BankStore, namespace: str, found: ForeignExport) -> ImportCounts:
    """Add memories to a bank, and conversations to the turns that wait to be written.

    What was imported before is not added again; of a conversation that went on, the later turns are added.
    A profile that has no room in that of the bank becomes memories.

    Raises:
        StoreError: the database fails, or somebody saved the namespace meanwhile.
    """
    buffer = TurnBuffer(store.database, SessionRule(), most_waiting=10**9)
    waiting = buffer.sessions(namespace)  # before the bank: what is written meanwhile is in one of them
    space = store.load(namespace)
    by = Provenance("import", f"import_{uuid4().hex[:12]}", f"from {found.origin}")
    made = (memory for operation in space.bank.operations() for memory in operation.created)
    known = {source for memory in made for source in memory.sources}
    cores = [operation.core for operation in space.bank.operations() if operation.core]
    told_lines = {line for core in cores for line in core.splitlines()}  # an agent may have reworded them
    is_known = any(found.profile in core for core in cores)
    new_lines = [] if is_known else [one for one in found.profile.splitlines() if one not in told_lines]
    profile = "\n".join(filter(None, [space.bank.core, *new_lines]))
    offered = list(dict.fromkeys(found.drafts))
    if new_lines and len(profile) > CORE_LIMIT_CHARS:
        source = f"{found.origin.lower()}:profile"
        offered += [
            draft for line in new_lines for draft in _make_drafts(line, f"{source}:{content_hash(line)}")
        ]
        profile = space.bank.core
    drafts = [draft for draft in offered if not known.issuperset(draft.sources)]
    if drafts:
        space.bank.create(drafts, by)
    if profile != space.bank.core:
        space.bank.edit_core(profile, by)
    told = [one.session for one in space.sessions.values()] + waiting
    begun = dict[str, list[Session]]()
    for session in told:
        if session.turns:
            begun.setdefault(session.turns[0].text, []).append(session)
    talks = list[Sequence[SpokenTurn]]()
    for talk in found.talks:
        # A session begins with a turn of the same time and text. A turn whose time is the clock's has another
        # time at each import: there all texts of the session must be those of the talk.
        first_timed = next((place for place, turn in enumerate(talk) if turn.has_own_time), len(talk))
        start = 0  # of what is in no session yet
        while start < len(talk):
            longest, rest = 0, talk[start:]
            for session in begun.get(rest[0].text, ()):
                if start >= first_timed and session.date_time != rest[0].time:
                    continue
                pairs = zip(session.turns, rest, strict=False)
                same = sum(1 for _ in takewhile(lambda pair: pair[0].text == pair[1].text, pairs))
                is_whole = same == min(len(session.turns), len(rest))
                if start >= first_timed or is_whole:
                    longest = max(longest, same)
            if not longest:
                talks.append(rest)
                break
            start += longest
    if space.bank.version > space.saved.version:
        store.save(space)
    added = 0
    for number, talk in enumerate(sorted(talks, key=lambda talk: talk[0].time)):
        try:
            buffer.add(namespace, (), ends=True)  # an open session is another conversation
            done = buffer.add(namespace, talk, ends=True, request=_talk_key(talk))
        except StoreError as error:
            raise StoreError(
                f"{number} of {len(talks)} conversations are imported, and then: {error}; the same command "
                "imports the others"
            ) from error
        added += 0 if done.is_repeated else done.added
    skipped = len(offered) - len(drafts) + sum(map(len, found.talks)) - added
    return ImportCounts(len(drafts), added, skipped)


def _talk_key(talk: Sequence[SpokenTurn]) -> RequestKey:
    """Return a key that lets only one of several imports at once add a conversation."""
    told = [[turn.speaker, turn.text, turn.time.isoformat() if turn.has_own_time else None] for turn in talk]
    digest = content_hash("import", told)
    return RequestKey(f"import:{digest}", digest, _SAME_IMPORT_S)


# -- memories ----------------------------------------------------------------------------------------


class _Mem0Memory(BaseModel):
    id: str
    memory: str


class _ZepEdge(BaseModel):
    uuid: str
    fact: str
    valid_at: datetime | None = None
    invalid_at: datetime | None = None
    expired_at: datetime | None = None


class _Message(BaseModel):
    """A message of Zep or Letta; parts of the content that are no text are calls of tools."""

    role: str = ""
    role_type: str = ""
    name: str | None = None
    content: str | list[dict[str, Any]] | None = None  # Any: each kind of part its own
    text: str | None = None
    tool_calls: list[dict[str, Any]] | None = None  # Any: as above
    created_at: datetime | None = None

    @property
    def sent(self) -> str | None:
        """The text that a Letta agent sent by a tool; then its content is what it thought."""
        for call in self.tool_calls or ():
            function = call.get("function")
            if isinstance(function, dict) and function.get("name") == "send_message":
                with suppress(ValueError, RecursionError):
                    arguments = json.loads(str(function.get("arguments")))
                    if isinstance(arguments, dict) and isinstance(arguments.get("message"), str):
                        return arguments["message"]
        return None


class _LettaPassage(BaseModel):
    id: str
    text: str


class _LettaBlock(BaseModel):
    label: str
    value: str


class _LettaAgent(BaseModel):
    messages: list[_Message] = []


class _LettaFile(BaseModel):
    agents: list[_LettaAgent] = []
    blocks: list[_LettaBlock] = []
    core_memory: list[_LettaBlock] = []
    messages: list[_Message] = []


def _make_drafts(text: str, source: str, day: datetime | None = None) -> list[Draft]:
    """Make the memory of a text, or several of a long one; none if it is empty."""
    happened_at = day.date() if day is not None else None
    wrapper = textwrap.TextWrapper(
        MEMORY_LIMIT_CHARS, expand_tabs=False, replace_whitespace=False, break_on_hyphens=False
    )
    return [Draft(part, MemoryKind.SEMANTIC, happened_at, (source,)) for part in wrapper.wrap(text.strip())]


def _read_mem0(document: object) -> ForeignExport:
    memories = _validate(list[_Mem0Memory], _items(document, "results"))
    drafts = [draft for one in memories for draft in _make_drafts(one.memory, f"mem0:{one.id}")]
    return ForeignExport("mem0", drafts)


def _read_zep_edges(document: object) -> ForeignExport:
    edges = _validate(list[_ZepEdge], _items(document, "edges"))
    valid = [edge for edge in edges if edge.invalid_at is None and edge.expired_at is None]
    drafts = [draft for one in valid for draft in _make_drafts(one.fact, f"zep:{one.uuid}", one.valid_at)]
    return ForeignExport(
        "Zep", drafts, left_out={"facts that are not valid any more": len(edges) - len(valid)}
    )


def _read_letta_file(document: object) -> ForeignExport:
    file = _validate(_LettaFile, document)
    blocks = [block for block in [*file.blocks, *file.core_memory] if block.value.strip()]
    told = [
        block.value.strip() for block in blocks if block.label != "persona"
    ]  # that is the assistant's own
    talks = _talks([file.messages, *(agent.messages for agent in file.agents)])
    return ForeignExport("Letta", (), "\n".join(told), talks, {"persona blocks": len(blocks) - len(told)})


# -- conversations -----------------------------------------------------------------------------------


class _GptAuthor(BaseModel):
    role: str


class _GptContent(BaseModel):
    content_type: str = "text"
    parts: list[Any] = []  # Any: texts, voices with their text, and references to images


class _GptMessage(BaseModel):
    author: _GptAuthor
    content: _GptContent = _GptContent()
    create_time: datetime | None = None
    recipient: str = "all"
    weight: float = 1.0
    metadata: dict[str, Any] = {}  # Any: JSON


class _GptNode(BaseModel):
    message: _GptMessage | None = None
    parent: str | None = None


class _GptTalk(BaseModel):
    mapping: dict[str, _GptNode]
    current_node: str | None = None
    create_time: datetime | None = None

    def spoken(self) -> list[_GptMessage]:
        """Return the messages from the root to the current one: other branches were edited away."""
        found, at = dict[str, _GptMessage | None](), self.current_node or next(reversed(self.mapping), None)
        while at is not None and at not in found and at in self.mapping:
            found[at] = self.mapping[at].message
            at = self.mapping[at].parent
        return [
            one
            for one in reversed(found.values())
            if one is not None
            and one.content.content_type in ("text", "multimodal_text")
            and one.recipient == "all"  # and no call of a tool
            and one.weight
            and not one.metadata.get("is_visually_hidden_from_conversation")
        ]


class _ClaudeMessage(BaseModel):
    sender: str
    text: str = ""
    content: list[dict[str, Any]] = []  # Any: as above
    attachments: list[dict[str, Any]] = []  # Any: as above; a long text that was pasted is one
    created_at: datetime | None = None

    @property
    def words(self) -> str:
        """The text of the message, and of its attachments; ``text`` has placeholders for tools."""
        attached = (one.get("extracted_content") for one in self.attachments)
        said = [_join_text(self.content) or self.text, *(one for one in attached if isinstance(one, str))]
        return "\n".join(text for text in said if text.strip())


class _ClaudeTalk(BaseModel):
    chat_messages: list[_ClaudeMessage]
    created_at: datetime | None = None

    def spoken(self) -> list[_Message]:
        """Return the messages in the form of the other systems."""
        return [
            _Message(
                role=one.sender,
                content=one.words,
                created_at=one.created_at or (None if place else self.created_at),
            )
            for place, one in enumerate(self.chat_messages)
        ]


def _read_chatgpt(document: object) -> ForeignExport:
    talks, without_text = list[list[SpokenTurn]](), 0
    for talk in _validate(list[_GptTalk], document):
        turns = list[SpokenTurn]()
        for one in talk.spoken():
            parts = [{"text": part} if isinstance(part, str) else part for part in one.content.parts]
            text = _join_text(part for part in parts if isinstance(part, dict))  # a voice is a dict with text
            if one.author.role in _SPEAKERS and not text.strip():
                without_text += any(not isinstance(part, str) for part in one.content.parts)
            turns += _say(
                turns, one.author.role, text, one.create_time or (None if turns else talk.create_time)
            )
        talks.append(turns)
    left_out = {"messages without text": without_text}
    return ForeignExport("ChatGPT", talks=[talk for talk in talks if talk], left_out=left_out)


def _talks(found: Iterable[Sequence[_Message]]) -> list[list[SpokenTurn]]:
    talks = list[list[SpokenTurn]]()
    for messages in found:
        turns = list[SpokenTurn]()
        for one in messages:
            text = one.content if isinstance(one.content, str) else _join_text(one.content or [])
            role = one.role_type or one.role
            text = text or one.text or ""
            if one.sent is not None:
                text = one.sent
            if role == "user":  # Letta packs messages as JSON; its own events have no words
                with suppress(ValueError, RecursionError):
                    packed = json.loads(text)
                    if isinstance(packed, dict) and "type" in packed:
                        said = packed.get("message")
                        text = said if packed["type"] == "user_message" and isinstance(said, str) else ""
            name = one.name or (one.role if one.role_type else None)  # older files of Zep: role is a name
            turns += _say(turns, role, text, one.created_at, name)
        talks.append(turns)
    return [talk for talk in talks if talk]


def _join_text(parts: Iterable[dict[str, Any]]) -> str:
    return "\n".join(text for part in parts if isinstance(text := part.get("text"), str))


def _say(
    earlier: Sequence[SpokenTurn], role: str, text: str, time: datetime | None, name: str | None = None
) -> list[SpokenTurn]:
    """Make the turns of a message, in pieces if it is long; none if nobody said it, or nothing.

    Without a time it has that of the turn before, or of the clock.
    """
    text, speaker = text.strip(), _SPEAKERS.get(role)
    if speaker is None or not text:
        return []
    said_at = time or (earlier[-1].time if earlier else datetime.now(UTC))
    said_at = said_at if said_at.tzinfo is not None else said_at.replace(tzinfo=UTC)
    pieces = [text[start : start + _MOST_CHARS] for start in range(0, len(text), _MOST_CHARS)]
    return [SpokenTurn(name or speaker, one, speaker.lower(), said_at, time is not None) for one in pieces]


def _items(document: object, key: str) -> object:
    """Return the list of a document: it is one page of results, the list itself, or one item of it."""
    return cast(dict[str, object], document).get(key, [document]) if isinstance(document, dict) else document


def _validate(kind: type[_T], content: object) -> _T:
    return TypeAdapter(kind).validate_python(content)


_READERS: Sequence[tuple[set[str], str, Callable[[object], ForeignExport]]] = (
    ({"mapping"}, "ChatGPT", _read_chatgpt),
    (
        {"chat_messages"},
        "Claude",
        lambda talks: ForeignExport(
            "Claude", talks=_talks(talk.spoken() for talk in _validate(list[_ClaudeTalk], talks))
        ),
    ),
    ({"results"}, "mem0", _read_mem0),
    ({"memory", "id"}, "mem0", _read_mem0),
    ({"edges"}, "Zep", _read_zep_edges),
    ({"fact", "uuid"}, "Zep", _read_zep_edges),
    ({"agents", "blocks"}, "Letta", _read_letta_file),
    ({"core_memory", "messages"}, "Letta", _read_letta_file),
    (
        {"messages"},
        "Zep",
        lambda thread: ForeignExport(
            "Zep", talks=_talks([_validate(list[_Message], _items(thread, "messages"))])
        ),
    ),
    (
        {"text", "id"},
        "Letta",
        lambda passages: ForeignExport(
            "Letta",
            [
                draft
                for one in _validate(list[_LettaPassage], passages)
                for draft in _make_drafts(one.text, f"letta:{one.id}")
            ],
        ),
    ),
)
"""The keys of a document, or of the first item of a list, that tell its origin."""
