"""The tools through which a model reads and writes one bank.

Six tools and ``edit_core``, bound to a space, a session and that session's date. A bad call returns an error
that the model can act on and is counted; it never raises through the agent and never half-applies. What a
model is told of them stands in ``signatures.TOOLS``.
"""

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

from pydantic import ConfigDict, ValidationError, validate_call

from locomo.json_at import INVALID_CHARACTERS
from locomo.types import Session
from memory_program.agents.citations import find_source_turns
from memory_program.agents.memory_lines import format_with_date, render_memories
from memory_program.bank.dates.date_span import DateSpan, format_day
from memory_program.bank.dates.resolve import find_dates, resolve_date_span
from memory_program.bank.diversity import select_diverse
from memory_program.bank.memory import (
    MEMORY_KINDS,
    Draft,
    Memory,
    MemoryKind,
    Operation,
    Provenance,
)
from memory_program.bank.space import MemorySpace
from memory_program.core.errors import MemoryOperationError

MEMORY_LIMIT_CHARS = 2000
"""The longest text of one memory. A memory is a fact, not a transcript."""

DATE_LIMIT_CHARS = 100
"""The longest expression of time that is looked at."""

MAX_MERGED = 5
"""The most memories that one merge takes, and the most parts that one split makes (MemUpdate)."""

KindArgument = Literal["episodic", "semantic", "procedural", ""]

_validate_arguments = validate_call(config=ConfigDict(strict=True, extra="forbid"))


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call gave: the text for the model, and whether it was refused."""

    tool: str
    text: str
    is_error: bool


class MemoryTools:
    """The tools of one agent over one space during one session.

    ``kind`` binds them to one kind of memory (a specialist's); None lets a call name any kind (a
    generalist's). ``operations`` lists what the calls did to the bank.
    """

    def __init__(
        self,
        space: MemorySpace,
        session: Session,
        actor: str,
        kind: MemoryKind | None = None,
    ) -> None:
        """Bind the tools."""
        self._space = space
        self._session = session
        self._actor = actor
        self._kind = kind
        self._indexed = space.bank.fork()  # as far as its memories are in the index
        self.operations: list[Operation] = []
        self.read_results: list[ToolResult] = []

    def call(self, name: str, arguments: dict[str, Any], allowed: Sequence[str]) -> ToolResult:
        """Run one call as a model made it. ``arguments`` may hold anything; nothing is raised.

        Args:
            name: the tool's name as the model wrote it.
            arguments: its arguments as the model wrote them.
            allowed: the names of the tools that this agent has.
        """
        if name not in allowed:
            return ToolResult(name, f"there is no tool {name!r}: use one of {', '.join(allowed)}", True)
        tool: Callable[..., str] = getattr(self, name)
        try:
            result = ToolResult(name, tool(**arguments), False)
        except ValidationError as error:
            result = ToolResult(name, _format_validation_error(error), True)
        except MemoryOperationError as error:
            result = ToolResult(name, str(error), True)
        if name in READ_TOOLS:
            self.read_results.append(result)
        return result

    # -- the tools -------------------------------------------------------------------------------

    @_validate_arguments
    def search_memory(self, query: str, top_k: int = 10, kind: KindArgument = "") -> str:
        """Look for live memories by keywords."""
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
        """Store one new memory, or replace the one of ``memory_id`` by a corrected text."""
        draft = self._draft(text, self._require_kind(kind, memory_id), happened_at, cites=True)
        if action == "update":
            if not memory_id:
                raise MemoryOperationError("an update needs the memory_id of the memory that it replaces")
            self._get_writable(memory_id)
            by, keeps_date = self._provenance("update"), not happened_at.strip()
            return self._record_operation(
                self._space.bank.update(memory_id, draft, by, keeps_date=keeps_date)
            )
        if memory_id:
            raise MemoryOperationError(
                f"a create takes no memory_id, got {memory_id!r}: use update to replace it"
            )
        twin = self._find_duplicate(draft)
        if twin is not None:
            return f"already stored as {twin.memory_id}"
        return self._record_operation(self._space.bank.create([draft], self._provenance("create")))

    @_validate_arguments
    def delete_memory(self, memory_id: str, reason: str) -> str:
        """End a memory that was wrong or no longer holds, and say why."""
        self._get_writable(memory_id)
        return self._record_operation(self._space.bank.delete(memory_id, self._provenance(reason)))

    @_validate_arguments
    def sample_memory(
        self,
        mode: Literal["random", "diverse", "recent"],
        count: int = 5,
        kind: KindArgument = "",
    ) -> str:
        """Show some live memories: at random, as different from each other as possible, or the newest."""
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
        """Replace two to five memories about the same thing by one; ``concatenate`` needs no text.

        Days that differ are told in the text: a memory has one date.
        """
        if not 2 <= len(memory_ids) <= MAX_MERGED:
            raise MemoryOperationError(f"{len(memory_ids)} memory_ids: a merge takes 2 to {MAX_MERGED}")
        old = [self._get_writable(memory_id) for memory_id in memory_ids]
        if len({memory.kind for memory in old}) != 1:
            raise MemoryOperationError("the memories to merge must all be of one kind")
        days = {memory.happened_at for memory in old if memory.happened_at}
        if mode == "concatenate":
            text = " ".join(format_with_date(memory) if len(days) > 1 else memory.text for memory in old)
        elif text.strip() and len(days) > 1:
            text = self._append_missing_days(text, days)
        draft = self._draft(text, old[0].kind)
        return self._record_operation(self._space.bank.merge(memory_ids, draft, self._provenance(mode)))

    @_validate_arguments
    def split_memory(
        self,
        memory_id: str,
        by: Literal["temporal", "thematic", "speaker"],
        parts: list[str],
    ) -> str:
        """Replace a memory that says several things by two to five that say one each."""
        if not 2 <= len(parts) <= MAX_MERGED:
            raise MemoryOperationError(f"{len(parts)} parts: a split makes 2 to {MAX_MERGED}")
        kind = self._get_writable(memory_id).kind
        drafts = [self._draft(part, kind) for part in parts]
        return self._record_operation(self._space.bank.split(memory_id, drafts, self._provenance(by)))

    @_validate_arguments
    def edit_core(
        self,
        action: Literal["append", "replace", "rewrite"],
        text: str,
        old_text: str = "",
    ) -> str:
        """Append a line to the core block, replace a part of it, or write it anew."""
        text, core = _clean_block(text), self._space.bank.core
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
        return self._record_operation(self._space.bank.edit_core(core, self._provenance(action)))

    # -- inside ----------------------------------------------------------------------------------

    def _provenance(self, reason: str) -> Provenance:
        return Provenance(self._actor, self._session.session_id, reason)

    def _record_operation(self, operation: Operation) -> str:
        self.operations.append(operation)
        made = ", ".join(memory.memory_id for memory in operation.created)
        ended = ", ".join(operation.superseded)
        if made and ended:
            return f"{ended} is now {made}"
        return f"stored as {made}" if made else f"ended {ended}" if ended else "profile changed"

    def _get_writable(self, memory_id: str) -> Memory:
        """Give a live memory that this agent may change."""
        memory = self._space.bank.get(memory_id)
        if self._kind is not None and memory.kind is not self._kind:
            raise MemoryOperationError(
                f"{memory_id!r} is a {memory.kind} memory: you may only change {self._kind} ones"
            )
        return memory

    def _resolve_kind(self, kind: str) -> MemoryKind | None:
        return MemoryKind(kind) if kind else self._kind

    def _require_kind(self, kind: str, memory_id: str) -> MemoryKind:
        wanted = self._resolve_kind(kind)
        if wanted is None and memory_id:
            wanted = self._space.bank.get(memory_id).kind
        if wanted is None:
            raise MemoryOperationError(f"kind is needed: one of {', '.join(MEMORY_KINDS)}")
        if self._kind is not None and wanted is not self._kind:
            raise MemoryOperationError(f"kind={kind!r} is not yours: you write {self._kind} memories")
        return wanted

    def _draft(self, text: str, kind: MemoryKind, happened_at: str = "", *, cites: bool = False) -> Draft:
        """Make a draft. A day becomes the memory's date; of a longer time the text tells.

        It cites turns of the session only if it says what was said there: what is merged or split may be of
        others, and inherits its sources.
        """
        said = " ".join(happened_at.split())
        time = self._parse_time(said) if said else None
        text = " ".join(INVALID_CHARACTERS.sub(" ", text).split())
        if not any(character.isprintable() and character != " " for character in text):
            raise MemoryOperationError("text is empty: say what is to be remembered in a full sentence")
        timed = text if time is None or time.is_day else time.insert_into(text, said)
        if len(timed) > MEMORY_LIMIT_CHARS:
            raise MemoryOperationError(
                f"text has {len(timed)} characters: a memory holds at most {MEMORY_LIMIT_CHARS}; "
                "store several short ones"
            )
        day = time.first if time and time.is_day else None
        return Draft(timed, kind, day, find_source_turns(self._session, text) if cites else ())

    def _append_missing_days(self, text: str, days: Collection[date]) -> str:
        """Add the days that a text does not tell."""
        told = {found.date_span.first for found in find_dates(text, self._session.date_time.date())}
        untold = ", ".join(format_day(day) for day in sorted(days) if day not in told)
        return f"{text} [{untold}]" if untold else text

    def _parse_time(self, expression: str) -> DateSpan:
        is_short = len(expression) <= DATE_LIMIT_CHARS  # a longer one takes seconds to be found wrong
        resolved = resolve_date_span(expression, self._session.date_time.date()) if is_short else None
        if resolved is None:
            raise MemoryOperationError(
                f"happened_at={expression!r:.60} is not a time: write YYYY-MM-DD or what was said "
                "('last Friday', 'next month'), or leave it empty"
            )
        return resolved

    def _find_duplicate(self, draft: Draft) -> Memory | None:
        """Find a live memory that already says the same, so that a repeated fact does not pile up.

        What was there at the last search is found by the index, and what was made since by going through it:
        to index each memory as it is made, in an index that ends with the session, took half of its time.
        """
        if self._space.index.version > self._indexed.version:  # somebody else searched
            self._indexed = self._space.bank.fork()
        found = self._space.index.find_with_all_words(self._indexed, draft.text)
        made = [m for o in self._space.bank.operations(self._indexed.version) for m in o.created]
        text = draft.text.casefold()
        for memory in [*found, *made]:
            is_same = memory.kind is draft.kind and memory.text.casefold() == text
            is_live = memory.memory_id in self._space.bank
            if is_same and is_live and draft.happened_at in (None, memory.happened_at):
                return memory
        return None


READ_TOOLS = ("search_memory", "sample_memory")
"""Tools whose result a model has to see to make use of it: offered when it may take several turns."""

MEMORY_TOOLS = ("manage_memory", "delete_memory", "merge_memory", "split_memory")
"""Tools that write memories."""

CORE_TOOLS = ("edit_core",)
"""The one tool that writes the core block."""

ALL_TOOLS = (*READ_TOOLS, *MEMORY_TOOLS, *CORE_TOOLS)


def _format_validation_error(error: ValidationError) -> str:
    """Write pydantic's findings in one line: which argument, what is wrong."""
    return "; ".join(
        f"{'.'.join(str(part) for part in entry['loc'])}: {entry['msg']}" for entry in error.errors()
    )


def _clean_block(text: str) -> str:
    lines = (" ".join(line.split()) for line in INVALID_CHARACTERS.sub(" ", text).splitlines())
    return "\n".join(line for line in lines if line)
