"""The fold of a bank's log: what is live after its operations, and what an operation may do to it.

State is held in persistent maps (Bagwell 2001, hash array mapped tries), so a state shares everything with
the one before it, and to keep an old one costs next to nothing.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime

from immutables import Map

from memory_program.bank.memory import MEMORY_KINDS, Memory, Operation
from memory_program.errors import MemoryOperationError, UnknownMemoryError


@dataclass(frozen=True, slots=True)
class BankState:
    """The fold of a log prefix. ``memories`` holds superseded ones too; ``live`` only ids that are live."""

    memories: Map[str, Memory] = field(default_factory=Map)
    live: Map[str, Memory] = field(default_factory=Map)
    core: str = ""
    version: int = 0
    next_number: int = 1


def folded(state: BankState, operation: Operation) -> BankState:
    """Apply one operation to a state.

    Raises:
        MemoryOperationError: the operation does not follow from the state.
    """
    if operation.version != state.version + 1:
        raise MemoryOperationError(
            f"operation {operation.version} cannot follow version {state.version}: "
            f"expected version {state.version + 1}"
        )
    memories, live, number = state.memories.mutate(), state.live.mutate(), state.next_number
    for memory_id in operation.superseded:
        if memory_id not in live:
            raise UnknownMemoryError(f"{memory_id!r} is not live in version {state.version}")
        memories[memory_id] = replace(live.pop(memory_id), superseded=operation.version)
    for memory in operation.created:
        if memory.memory_id != f"m{number}":
            raise MemoryOperationError(f"expected the id 'm{number}', not {memory.memory_id!r}")
        if not memory.text or memory.kind not in MEMORY_KINDS:
            raise MemoryOperationError(
                f"a {memory.kind.value} memory with text {memory.text!r:.80} cannot be stored: give a "
                f"text, and one of the kinds {', '.join(MEMORY_KINDS)}"
            )
        if isinstance(memory.happened_at, datetime) or memory.created != operation.version:
            raise MemoryOperationError(
                f"happened_at={memory.happened_at!r} must be a date without a time, and "
                f"created={memory.created} the version of the operation, {operation.version}"
            )
        memories[memory.memory_id] = live[memory.memory_id] = memory
        number += 1
    return BankState(
        memories.finish(),
        live.finish(),
        state.core if operation.core is None else operation.core,
        operation.version,
        number,
    )
