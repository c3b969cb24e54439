"""The JSON of the memory server: what its REST door takes and gives, and what the client reads."""

from datetime import date
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)
from pydantic_core import to_jsonable_python

from locomo.json_at import INVALID_CHARACTERS

MOST_CONTENT_CHARS = 32_000
MOST_MESSAGES = 256
MOST_ITEMS = 200


ShownText = Annotated[
    str,
    BeforeValidator(lambda text: INVALID_CHARACTERS.sub("\ufffd", text) if isinstance(text, str) else text),
]
"""Text of a model or a user in a response; half a surrogate pair, which no response can carry, is U+FFFD."""

Kind = Literal["episodic", "semantic", "procedural"]
MemoryId = Annotated[str, Field(pattern=r"^m[1-9][0-9]{0,17}$")]
ItemId = Annotated[str, Field(pattern=r"^(m|new:|D[1-9][0-9]{0,8}:)[1-9][0-9]{0,17}$")]
"""The id of what a search found: a memory, or a turn that waits to be written."""


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ChatMessage(BaseModel):
    """A message as chat APIs have it. Only those of users and assistants with text are remembered."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["user", "assistant", "system", "developer", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None  # Any: parts of other kinds than text
    name: Annotated[str | None, Field(max_length=200)] = None
    time: AwareDatetime | None = None

    @field_validator("content")
    @classmethod
    def _check_depth(cls, content: str | list[dict[str, Any]] | None) -> str | list[dict[str, Any]] | None:
        try:
            to_jsonable_python(content)  # as the hash of a request needs it
        except ValueError as error:
            raise ValueError("the parts are nested too deeply to be read") from error
        return content

    @property
    def speaker(self) -> str:
        """The name of who spoke; that of the role if the message has none, or a blank one."""
        return (self.name or "").strip() or self.role.capitalize()

    @property
    def text(self) -> str:
        """The text of the message; that of its text parts, if it has several."""
        if isinstance(self.content, str):
            return self.content.strip()
        parts = [
            part.get("text") for part in self.content or () if part.get("type") in ("text", "input_text")
        ]
        return "\n".join(part for part in parts if isinstance(part, str)).strip()


class AddRequest(_Request):
    """Messages to remember; ``end`` ends the session after them."""

    messages: Annotated[list[ChatMessage], Field(max_length=MOST_MESSAGES)] = []
    end: bool = False


class AddResponse(BaseModel):
    """The messages that were taken, those left out, and all that wait to be written.

    ``sessions`` are the sessions that ended. ``written`` says, of a request that waited, if they are written.
    """

    added: int
    skipped: int
    waiting: int
    sessions: list[int]
    is_repeated: bool = False
    written: bool | None = None


class AskRequest(_Request):
    """A question to the memories; with ``as_of`` it is answered from what held on that day."""

    question: Annotated[str, Field(min_length=1, max_length=MOST_CONTENT_CHARS)]
    as_of: date | None = None


class AskResponse(BaseModel):
    """An answer, and the ids of the memories and unwritten turns that the reader was shown."""

    answer: ShownText
    shown: list[str]
    context_tokens: int
    searches: int


class ContextResponse(BaseModel):
    """The context of a reader for a question: data, which a prompt has to mark as such."""

    profile: ShownText
    memories: ShownText
    excerpts: ShownText
    tokens: int


class MemoryItem(BaseModel):
    """A memory. ``sources`` are the ids of the turns that it is from.

    It held from ``valid_from`` (null: nothing says when it began) to the day before ``valid_to`` (null: it
    still holds).
    """

    memory_id: str
    kind: Kind
    text: ShownText
    happened_at: date | None
    sources: list[str]
    valid_from: date | None = None
    valid_to: date | None = None


class MemoryPage(BaseModel):
    """Memories in the order of their creation, the profile, and the cursor of the next page, if any."""

    items: list[MemoryItem]
    next_cursor: str | None
    version: int
    profile: ShownText


class SearchHit(BaseModel):
    """A memory, or a turn that is not written yet (``kind`` is null)."""

    item_id: str
    kind: Kind | None
    text: ShownText
    happened_at: date | None
    sources: list[str]
    score: float


class SearchPage(BaseModel):
    """Hits, best first, and the offset of the next page, if any."""

    items: list[SearchHit]
    next_offset: int | None


class OperationItem(BaseModel):
    """An edit of the bank: which agent or user made it, in which session or request, and why."""

    kind: str
    version: int
    actor: ShownText
    session_id: str
    reason: ShownText
    superseded: list[str]
    created: list[MemoryItem]
    core: ShownText | None


class OperationPage(BaseModel):
    """Operations, oldest first, and the cursor of the next page, if any."""

    items: list[OperationItem]
    next_cursor: str | None


class SourceItem(BaseModel):
    """A turn that a memory is from; ``time`` is that of its session.

    If ``has_own_time`` is false, the turn came without a time and has that of the server's clock.
    """

    turn_id: str
    speaker: ShownText
    text: ShownText
    time: AwareDatetime
    has_own_time: bool


class SourceList(BaseModel):
    """The turns that a memory is from, in their order."""

    items: list[SourceItem]


class CorrectRequest(_Request):
    """A memory's new text; without an id the agents find what the text corrects, and read nothing else."""

    text: Annotated[str, Field(min_length=1, max_length=MOST_CONTENT_CHARS)]
    memory_id: ItemId | None = None
    happened_at: date | None = None
    reason: Annotated[str, Field(max_length=500)] = ""

    @model_validator(mode="after")
    def _check_is_used(self) -> Self:
        if self.memory_id is None and (self.happened_at is not None or self.reason):
            raise ValueError("happened_at and reason need memory_id: without one, write them into the text")
        return self


class ForgetRequest(_Request):
    """Memories to take out of all later answers, and turns that wait to be written (``new:1``)."""

    memory_ids: Annotated[list[ItemId], Field(min_length=1, max_length=MOST_ITEMS)]
    reason: Annotated[str, Field(max_length=500)] = ""


class UndoRequest(_Request):
    """The version of the bank to go back to; without it the last change is undone."""

    version: Annotated[int | None, Field(ge=0, le=2**31 - 1)] = None


class ChangeResponse(BaseModel):
    """The version of the bank, and the operations that were made, or undone.

    ``is_pending`` says that the agents have not written a correction yet.
    """

    version: int
    operations: list[OperationItem]
    is_repeated: bool = False
    is_pending: bool = False


class NamespaceItem(BaseModel):
    """The size of a namespace. ``waiting`` counts the turns that are not written yet."""

    namespace: str
    version: int
    memories: int
    sessions: int
    waiting: int


class NamespacePage(BaseModel):
    """Names of namespaces, sorted, and the cursor of the next page, if any."""

    items: list[str]
    next_cursor: str | None


class EraseResponse(BaseModel):
    """The number of deleted rows."""

    rows: int


class Problem(BaseModel):
    """An error (RFC 9457). ``code`` names its kind."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    errors: list[dict[str, Any]] | None = None  # Any: places and messages
