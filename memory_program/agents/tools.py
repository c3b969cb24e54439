"""The tools through which a model reads and writes one bank.

Six tools and ``edit_core``, bound to a space, a session and that session's date. A bad call returns an error
that the model can act on and is counted; it never raises through the agent and never applies in part.
The docstring of a tool is what a model reads of it, and a golden file pins it; ``tool_schema`` renders it.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from inspect import Parameter, signature
from typing import Any, Literal, get_origin

from pydantic import ConfigDict, ValidationError, validate_call

from locomo.json_at import INVALID_CHARACTERS
from locomo.reply_markers import is_no_value
from locomo.types import Session
from memory_program.agents.citations import find_source_turns
from memory_program.agents.grounding import is_grounded, is_placeholder
from memory_program.agents.memory_lines import format_with_date, render_memories
from memory_program.bank.dates.date_span import add_words_of_time, format_day
from memory_program.bank.dates.resolve import find_dates, resolve_date_span
from memory_program.bank.diversity import select_diverse
from memory_program.bank.memory import (
    MEMORY_KINDS,
    MEMORY_LIMIT_CHARS,
    Draft,
    Memory,
    MemoryKind,
    Operation,
    Provenance,
)
from memory_program.bank.space import MemorySpace
from memory_program.core.errors import MemoryOperationError

DATE_LIMIT_CHARS = 100
"""The longest expression of time that is parsed."""

MAX_MERGED = 5
"""The most memories of one merge, and the most parts of one split (MemUpdate)."""

KindArgument = Literal["episodic", "semantic", "procedural", ""]

_validate_arguments = validate_call(config=ConfigDict(strict=True, extra="forbid"))


class Refusal(StrEnum):
    """The reason of a refused call: not from the session, the prompt's example, or malformed."""

    INVENTED = "invented"
    COPIED = "copied"
    MALFORMED = "malformed"


class _UngroundedError(MemoryOperationError):
    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call: its text for the model, and why it was refused, if it was.

    ``is_repaired`` tells that an empty optional argument was written as ``none`` or null.
    """

    tool: str
    text: str
    refusal: Refusal | None = None
    is_repaired: bool = False

    @property
    def is_error(self) -> bool:
        """True if the call was refused."""
        return self.refusal is not None


class MemoryTools:
    """The tools of one agent over one space during one session.

    ``kind`` binds them to one kind of memory (a specialist's); with None a call may name any kind (a
    generalist's). ``operations`` lists the changes that the calls made to the bank.
    """

    def __init__(
        self,
        space: MemorySpace,
        session: Session,
        actor: str,
        kind: MemoryKind | None = None,
        *,
        checks_grounding: bool = False,
    ) -> None:
        """Bind the tools; with ``checks_grounding`` texts that are not from the session are refused."""
        self._space = space
        self._session = session
        self._actor = actor
        self._kind = kind
        self._checks_grounding = checks_grounding
        self._indexed = space.bank.fork()  # the bank as of the index's last update
        self.operations: list[Operation] = []
        self._odd_date = ""
        self.odd_dates: list[str] = []
        """The times of stored memories that are no dates: each is in the text of its memory, or left out."""

    def call(self, name: str, arguments: dict[str, Any], allowed: Sequence[str]) -> ToolResult:
        """Run one call of a model. ``arguments`` may hold anything; nothing is raised.

        Args:
            name: the tool's name as the model wrote it.
            arguments: its arguments as the model wrote them.
            allowed: the names of this agent's tools.
        """
        if name not in allowed:
            text = f"there is no tool {name!r}: use one of {', '.join(allowed)}"
            return ToolResult(name, text, Refusal.MALFORMED)
        tool: Callable[..., str] = getattr(self, name)
        given = normalize_arguments(name, arguments)
        is_repaired = given != arguments
        self._odd_date = ""
        try:
            return ToolResult(name, tool(**given), None, is_repaired)
        except ValidationError as error:
            wrong = [(".".join(map(str, entry["loc"])), entry["msg"]) for entry in error.errors()]
            text, refusal = "; ".join(f"{where}: {message}" for where, message in wrong), Refusal.MALFORMED
        except _UngroundedError as error:
            text, refusal = str(error), error.refusal
        except MemoryOperationError as error:
            text, refusal = str(error), Refusal.MALFORMED
        return ToolResult(name, text, refusal, is_repaired)

    # -- the tools -------------------------------------------------------------------------------

    @_validate_arguments
    def search_memory(self, query: str, top_k: int = 10, kind: KindArgument = "") -> str:
        """Look for memories by keywords."""
        if not 1 <= top_k <= 50:
            raise MemoryOperationError(f"top_k={top_k} must be from 1 to 50")
        self._indexed = self._space.bank.fork()
        found = self._space.index.search(self._indexed, query, top_k, self._resolve_kind(kind))
        return render_memories([scored.memory for scored in found])

    @_validate_arguments
    def manage_memory(
        self,
        action: Literal["create", "update"],
        text: str,
        kind: KindArgument = "",
        memory_id: str = "",
        happened_at: str = "",
    ) -> str:
        """Store one new memory, or replace the one of that memory_id by a corrected text.

        happened_at is the time of the event, as YYYY-MM-DD or as it was said (yesterday, last Friday, next
        month): it is counted from the session's date. Empty if it has none.
        """
        wanted = self._resolve_kind(kind)
        if wanted is None and memory_id:
            wanted = self._space.bank.get(memory_id).kind
        if wanted is None:
            raise MemoryOperationError(f"kind is needed: one of {', '.join(MEMORY_KINDS)}")
        if self._kind is not None and wanted is not self._kind:
            raise MemoryOperationError(f"kind={kind!r} is not yours: you write {self._kind} memories")
        draft = self._draft(text, wanted, happened_at, cites=True)
        if action == "update":
            if not memory_id:
                raise MemoryOperationError("an update needs the memory_id of the memory that it replaces")
            self._check_grounded(text, [self._get_writable(memory_id).text])
            by, keeps_date = self._provenance("update"), bool(self._odd_date) or not happened_at.strip()
            return self._record_operation(
                self._space.bank.update(memory_id, draft, by, keeps_date=keeps_date)
            )
        if memory_id:
            raise MemoryOperationError(
                f"a create takes no memory_id, got {memory_id!r}: use update to replace it"
            )
        self._check_grounded(text)
        # A repeated fact is stored once. The index finds memories from before the last search; newer ones are
        # compared one by one. Indexing each new memory, in an index that ends with the session, took half of
        # a session's time.
        if self._space.index.version > self._indexed.version:  # another agent searched
            self._indexed = self._space.bank.fork()
        found = self._space.index.find_with_all_words(self._indexed, draft.text)
        made = [m for o in self._space.bank.operations(self._indexed.version) for m in o.created]
        folded = draft.text.casefold()
        for memory in [*found, *made]:
            is_same = memory.kind is draft.kind and memory.text.casefold() == folded
            is_live = memory.memory_id in self._space.bank
            if is_same and is_live and draft.happened_at in (None, memory.happened_at):
                return f"already stored as {memory.memory_id}"
        return self._record_operation(self._space.bank.create([draft], self._provenance("create")))

    @_validate_arguments
    def delete_memory(self, memory_id: str, reason: str) -> str:
        """End a memory that was wrong or no longer holds."""
        self._get_writable(memory_id)
        return self._record_operation(self._space.bank.delete(memory_id, self._provenance(reason)))

    @_validate_arguments
    def sample_memory(
        self, mode: Literal["random", "diverse", "recent"], count: int = 5, kind: KindArgument = ""
    ) -> str:
        """Show some of the memories."""
        if not 1 <= count <= 50:
            raise MemoryOperationError(f"count={count} must be from 1 to 50")
        memories = self._space.bank.live(self._resolve_kind(kind))
        if mode == "recent":
            return render_memories(memories[-count:])
        rng = random.Random(f"{self._space.namespace}:{self._space.bank.version}")
        if mode == "random":
            return render_memories(rng.sample(memories, min(count, len(memories))))
        return render_memories(select_diverse(memories, count))

    @_validate_arguments
    def merge_memory(
        self,
        memory_ids: list[str],
        mode: Literal["summarize", "concatenate", "extract_common"],
        text: str = "",
    ) -> str:
        """Replace two to five memories about the same thing by one.

        text is the one that stays; concatenate joins the old texts and needs none.
        """
        if not 2 <= len(memory_ids) <= MAX_MERGED:
            raise MemoryOperationError(f"{len(memory_ids)} memory_ids: a merge takes 2 to {MAX_MERGED}")
        old = [self._get_writable(memory_id) for memory_id in memory_ids]
        if len({memory.kind for memory in old}) != 1:
            raise MemoryOperationError("the memories to merge must all be of one kind")
        days = {memory.happened_at for memory in old if memory.happened_at}  # a memory has one date
        if mode == "concatenate":
            text = " ".join(format_with_date(memory) if len(days) > 1 else memory.text for memory in old)
        elif text.strip() and len(days) > 1:
            mentions = find_dates(text, self._session.date_time.date())
            missing = sorted(days - {mention.date_span.first for mention in mentions})
            text += f" [{', '.join(format_day(day) for day in missing)}]" if missing else ""
        draft = self._draft(text, old[0].kind)
        self._check_grounded(text, [memory.text for memory in old])
        return self._record_operation(self._space.bank.merge(memory_ids, draft, self._provenance(mode)))

    @_validate_arguments
    def split_memory(
        self, memory_id: str, by: Literal["temporal", "thematic", "speaker"], parts: list[str]
    ) -> str:
        """Replace a memory that says several things by two to five that say one each; parts are their texts."""  # noqa: E501
        if not 2 <= len(parts) <= MAX_MERGED:
            raise MemoryOperationError(f"{len(parts)} parts: a split makes 2 to {MAX_MERGED}")
        whole = self._get_writable(memory_id)
        drafts = [self._draft(part, whole.kind) for part in parts]
        for part in parts:
            self._check_grounded(part, [whole.text])
        return self._record_operation(self._space.bank.split(memory_id, drafts, self._provenance(by)))

    @_validate_arguments
    def edit_core(
        self, action: Literal["append", "replace", "rewrite"], text: str, old_text: str = ""
    ) -> str:
        """Change the profile: append a line, replace old_text (copied exactly) by text, or rewrite the whole.

        It holds at most 5,000 characters.
        """
        lines = [" ".join(line.split()) for line in INVALID_CHARACTERS.sub(" ", text).splitlines()]
        text, core = "\n".join(line for line in lines if line), self._space.bank.core
        if action == "append":
            if not text:
                raise MemoryOperationError("text is empty: give the line to append")
            known = set(core.splitlines())
            new = [line for line in text.splitlines() if line not in known]
            if not new:
                return "already in the profile"
            core = "\n".join([*core.splitlines(), *new]).strip()
        elif action == "replace":
            if not old_text or core.count(old_text) != 1:
                raise MemoryOperationError(
                    f"old_text={old_text!r:.80} must be a part of the profile that occurs exactly once: "
                    f"it occurs {core.count(old_text) if old_text else 0} times"
                )
            core = core.replace(old_text, text).strip()
        elif not text:
            raise MemoryOperationError("text is empty: give the whole profile, not a part of it")
        else:
            core = text
        if text:
            self._check_grounded(text, [self._space.bank.core])
        return self._record_operation(self._space.bank.edit_core(core, self._provenance(action)))

    # -- inside ----------------------------------------------------------------------------------

    def _provenance(self, reason: str) -> Provenance:
        return Provenance(self._actor, self._session.session_id, reason)

    def _record_operation(self, operation: Operation) -> str:
        self.operations.append(operation)
        note, odd_date = "", self._odd_date
        if odd_date:
            self.odd_dates.append(f"{self._actor}: happened_at={odd_date!r:.60}")
            note = (
                f"; happened_at={odd_date!r:.60} is not a date: write YYYY-MM-DD, what was said, or nothing"
            )
        made = ", ".join(memory.memory_id for memory in operation.created)
        ended = ", ".join(operation.superseded)
        if made and ended:
            return f"{ended} is now {made}{note}"
        return f"stored as {made}{note}" if made else f"ended {ended}" if ended else "profile changed"

    def _get_writable(self, memory_id: str) -> Memory:
        """Return a live memory that this agent may change."""
        memory = self._space.bank.get(memory_id)
        if self._kind is not None and memory.kind is not self._kind:
            raise MemoryOperationError(
                f"{memory_id!r} is a memory of kind {memory.kind}: you may only change {self._kind} ones"
            )
        return memory

    def _check_grounded(self, text: str, replaced: Sequence[str] = ()) -> None:
        if is_placeholder(text):
            raise _UngroundedError(
                Refusal.COPIED, f"text={text!r:.80} is the example of the prompt: write what the session says"
            )
        if self._checks_grounding and not is_grounded(text, self._session, replaced):
            raise _UngroundedError(
                Refusal.INVENTED,
                f"text={text!r:.80} is not from the session: write what was said there, in its words",
            )

    def _resolve_kind(self, kind: str) -> MemoryKind | None:
        return MemoryKind(kind) if kind else self._kind

    def _draft(self, text: str, kind: MemoryKind, happened_at: str = "", *, cites: bool = False) -> Draft:
        """Make a draft. A day becomes the memory's date; a longer or unknown time is written into the text.

        Only new text cites turns of the session: a merge or a split may come from other sessions, and
        inherits its sources.
        """
        said, time = " ".join(INVALID_CHARACTERS.sub(" ", happened_at).split()), None
        if len(said) <= DATE_LIMIT_CHARS:  # parsing a longer one takes seconds
            time = resolve_date_span(said, self._session.date_time.date())
        self._odd_date = said if time is None else ""
        text = " ".join(INVALID_CHARACTERS.sub(" ", text).split())
        if not any(character.isprintable() and character != " " for character in text):
            raise MemoryOperationError("text is empty: say what is to be remembered in a full sentence")
        if time is None:
            timed = add_words_of_time(text, said) if len(said) <= DATE_LIMIT_CHARS else text
            timed = timed if len(timed) <= MEMORY_LIMIT_CHARS else text
        else:
            timed = text if time.is_day else time.insert_into(text, said)
        if len(timed) > MEMORY_LIMIT_CHARS:
            raise MemoryOperationError(
                f"text has {len(timed)} characters: a memory holds at most {MEMORY_LIMIT_CHARS}; "
                "store several short ones"
            )
        day = time.first if time and time.is_day else None
        return Draft(timed, kind, day, find_source_turns(self._session, text) if cites else ())


def normalize_arguments(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Read arguments of a tool that can only mean one thing: without those that say that there is none.

    A number may be a text, a text a list of one, and a choice may have capitals.
    """
    parameters, given = signature(getattr(MemoryTools, tool)).parameters, dict[str, Any]()
    for name, value in arguments.items():
        parameter = parameters.get(name)
        if parameter is None:
            given[name] = value
            continue
        if isinstance(value, list) and len(value) == 1 and parameter.annotation != list[str]:
            (value,) = value
        is_optional = parameter.default is not Parameter.empty
        says_none = value.strip() != "" and is_no_value(value) if isinstance(value, str) else value is None
        if is_optional and (says_none or (isinstance(parameter.default, str) and value in (0, [], {}))):
            continue
        if get_origin(parameter.annotation) is Literal and isinstance(value, str):
            value = value.strip().lower()
        elif isinstance(parameter.default, str) and isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        elif parameter.annotation is int and isinstance(value, str) and re.fullmatch(r"\s*\d{1,9}\s*", value):
            value = int(value)
        given[name] = value
    new = given.get("memory_id")
    if (
        given.get("action") == "create"
        and isinstance(new, str)
        and not re.fullmatch(r"(?:m\d+)?", new.strip())
    ):
        del given["memory_id"]  # "new"
    return given


READ_TOOLS = ("search_memory", "sample_memory")
"""Tools that only show memories: offered to agents that may take several turns."""

MEMORY_TOOLS = ("manage_memory", "delete_memory", "merge_memory", "split_memory")
"""Tools that write memories."""

CORE_TOOLS = ("edit_core",)
"""The one tool that writes the core block."""

WRITE_TOOLS = (*MEMORY_TOOLS, *CORE_TOOLS)
"""Tools that write anything: those of a generalist."""

ALL_TOOLS = (*READ_TOOLS, *WRITE_TOOLS)
