"""Records of memories and of the operations that create and supersede them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Any

from memory_program.core.errors import MemoryOperationError

CORE_LIMIT_CHARS = 5000
"""The maximum length of the core block, in characters (MemBuilder, arXiv 2601.05488, section 3)."""

_MEMORY_ID = re.compile(r"m([1-9][0-9]{0,17})")


class MemoryKind(StrEnum):
    """The kinds of memory. The core block is one text per bank and has no memories."""

    CORE = "core"
    EPISODIC = "episodic"
    SEMANTIC = "semantic"
    PROCEDURAL = "procedural"


MEMORY_KINDS = (MemoryKind.EPISODIC, MemoryKind.SEMANTIC, MemoryKind.PROCEDURAL)
"""The kinds that a single memory can have."""


class OperationKind(StrEnum):
    """The kinds of operation."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    MERGE = "merge"
    SPLIT = "split"
    EDIT_CORE = "edit_core"


MEMORY_LIMIT_CHARS = 2000
"""The longest text of one memory. A memory is a fact, not a transcript."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A memory before a bank has numbered it."""

    text: str
    kind: MemoryKind
    happened_at: date | None = None
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Memory:
    """One memory. Its text never changes: an update supersedes it by another memory.

    ``created`` and ``superseded`` are versions of the bank: the memory is live in every version ``v`` with
    ``created <= v`` and (``superseded is None`` or ``v < superseded``).
    """

    memory_id: str
    kind: MemoryKind
    text: str
    happened_at: date | None
    sources: tuple[str, ...]
    created: int
    superseded: int | None = None

    @property
    def is_live(self) -> bool:
        """True unless an operation superseded it."""
        return self.superseded is None

    @property
    def line(self) -> str:
        """The memory as a reader sees it: ``[2023-05-07] Caroline ran.``, or its text if it has no date."""
        return f"[{self.happened_at.isoformat()}] {self.text}" if self.happened_at else self.text


@dataclass(frozen=True, slots=True)
class Validity:
    """The days on which a memory held: from ``valid_from`` to the day before ``valid_to``.

    ``valid_from`` is None if nothing says when it began: it counts as always true. ``valid_to`` is None while
    it holds. A memory that held on no day ends where it begins, or in the year 1.
    """

    valid_from: date | None
    valid_to: date | None

    def held_during(self, first: date, last: date) -> bool:
        """Say whether it held on some day from ``first`` to ``last``."""
        begin = self.valid_from or date.min
        return begin <= last and (self.valid_to is None or max(begin, first) < self.valid_to)


@dataclass(frozen=True, slots=True)
class Provenance:
    """The agent that asked for an operation, the session, and the reason."""

    actor: str
    session_id: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Operation:
    """One entry of a bank's log; replaying it needs only the state before it.

    ``version`` is the version of the bank after it. ``superseded`` names the memories that it superseded,
    ``created`` holds those that it created, ``core`` the whole core block after an ``edit_core``.
    """

    kind: OperationKind
    version: int
    provenance: Provenance
    superseded: tuple[str, ...] = ()
    created: tuple[Memory, ...] = ()
    core: str | None = None


def memory_number(memory_id: str) -> int:
    """Read the number in a memory id: ``m12`` is 12.

    Raises:
        MemoryOperationError: the text is not a memory id.
    """
    match = _MEMORY_ID.fullmatch(memory_id)
    if match is None:
        raise MemoryOperationError(f"{memory_id!r} is not a memory id: ids look like 'm12'")
    return int(match[1])


def operation_to_json(
    operation: Operation, validity: Mapping[str, Validity] | None = None
) -> dict[str, Any]:  # Any: a JSON object
    """Write an operation as a JSON object; ``operation_from_json`` reads it back unchanged.

    With ``validity``, by memory id, each memory also says when it held. That is for other programs: it
    follows from the log and is not read back.
    """
    return {
        "kind": operation.kind.value,
        "version": operation.version,
        "actor": operation.provenance.actor,
        "session_id": operation.provenance.session_id,
        "reason": operation.provenance.reason,
        "superseded": list(operation.superseded),
        "created": [
            {
                "memory_id": memory.memory_id,
                "kind": memory.kind.value,
                "text": memory.text,
                "happened_at": memory.happened_at.isoformat() if memory.happened_at else None,
                "sources": list(memory.sources),
                **({} if validity is None else validity_to_json(validity[memory.memory_id])),
            }
            for memory in operation.created
        ],
        "core": operation.core,
    }


def validity_to_json(validity: Validity) -> dict[str, str | None]:
    """Write the days on which a memory held as JSON."""
    return {
        "valid_from": validity.valid_from.isoformat() if validity.valid_from else None,
        "valid_to": validity.valid_to.isoformat() if validity.valid_to else None,
    }


def operation_from_json(record: dict[str, Any]) -> Operation:  # Any: a JSON object
    """Read an operation that ``operation_to_json`` wrote.

    Raises:
        MemoryOperationError: a key is missing or holds a value of another type.
    """
    try:
        version = int(record["version"])
        return Operation(
            kind=OperationKind(record["kind"]),
            version=version,
            provenance=Provenance(
                _require_str(record["actor"]),
                _require_str(record["session_id"]),
                _require_str(record["reason"]),
            ),
            superseded=_require_strings(record["superseded"]),
            created=tuple(
                Memory(
                    memory_id=_require_str(entry["memory_id"]),
                    kind=MemoryKind(entry["kind"]),
                    text=_require_str(entry["text"]),
                    happened_at=date.fromisoformat(entry["happened_at"]) if entry["happened_at"] else None,
                    sources=_require_strings(entry["sources"]),
                    created=version,
                )
                for entry in record["created"]
            ),
            core=None if record["core"] is None else _require_str(record["core"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise MemoryOperationError(f"not a logged operation: {record!r:.200} ({error})") from error


def _require_str(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is not a string")
    return value


def _require_strings(values: Sequence[object]) -> tuple[str, ...]:
    if isinstance(values, str):
        raise TypeError(f"{values!r:.80} is not a list of strings")
    return tuple(_require_str(value) for value in values)
