"""The fold of a bank's log: the state after its operations, and the checks that each operation must pass.

State is held in persistent maps (Bagwell 2001, hash array mapped tries): a state shares everything with the
one before it, so keeping an old one costs next to nothing.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime

from immutables import Map

from memory_program.bank.columns import NO_MEMORIES, MemoryColumns
from memory_program.bank.memory import MEMORY_KINDS, Memory, Operation, OperationKind, memory_number
from memory_program.core.errors import MemoryOperationError, UnknownMemoryError


@dataclass(frozen=True, slots=True)
class BankState:
    """The fold of a log prefix: the memories of a snapshot, and those made or superseded since.

    ``frozen`` is empty unless the bank was opened from a snapshot; ``changed`` holds superseded memories too.
    """

    changed: Map[str, Memory] = field(default_factory=Map)
    frozen: MemoryColumns = NO_MEMORIES
    live_count: int = 0
    core: str = ""
    version: int = 0
    next_number: int = 1

    def get(self, memory_id: str) -> Memory | None:
        """Look a memory up, live or superseded; None if no operation made it."""
        return self.changed.get(memory_id) or self.frozen.get(memory_id)

    def live(self) -> list[Memory]:
        """List the live memories in the order in which they were made."""
        numbers = self.frozen.live_numbers.tolist()
        kept = [self.frozen.memory(number) for number in numbers if f"m{number}" not in self.changed]
        new = [memory for memory in self.changed.values() if memory.is_live]
        return kept + sorted(new, key=lambda memory: memory_number(memory.memory_id))

    def compacted(self) -> "BankState":
        """Give the same state with every memory in the columns, for a snapshot."""
        return replace(self, changed=Map(), frozen=self.frozen.updated(list(self.changed.values())))


def apply_operation(state: BankState, operation: Operation) -> BankState:
    """Apply one operation to a state. A deletion may name a memory that was replaced before.

    Raises:
        MemoryOperationError: the operation does not follow from the state.
    """
    if operation.version != state.version + 1:
        raise MemoryOperationError(
            f"operation {operation.version} cannot follow version {state.version}: "
            f"expected version {state.version + 1}"
        )
    changed, number, ended = state.changed.mutate(), state.next_number, 0
    for memory_id in operation.superseded:
        memory = changed.get(memory_id) or state.frozen.get(memory_id)
        if memory is not None and memory.is_live:
            changed[memory_id] = replace(memory, superseded=operation.version)
            ended += 1
        elif (
            memory is None
            or operation.kind is not OperationKind.DELETE
            or memory.superseded == operation.version  # named twice
        ):
            raise UnknownMemoryError(f"{memory_id!r} is not live in version {state.version}")
    for memory in operation.created:
        if memory.memory_id != f"m{number}":
            raise MemoryOperationError(f"expected the id 'm{number}', not {memory.memory_id!r}")
        if not memory.text or memory.kind not in MEMORY_KINDS:
            raise MemoryOperationError(
                f"a memory of kind {memory.kind.value} with text {memory.text!r:.80} cannot be stored: "
                f"give a text, and one of the kinds {', '.join(MEMORY_KINDS)}"
            )
        if isinstance(memory.happened_at, datetime) or memory.created != operation.version:
            raise MemoryOperationError(
                f"happened_at={memory.happened_at!r} must be a date without a time, and "
                f"created={memory.created} the version of the operation, {operation.version}"
            )
        changed[memory.memory_id] = memory
        number += 1
    return BankState(
        changed.finish(),
        state.frozen,
        state.live_count + len(operation.created) - ended,
        state.core if operation.core is None else operation.core,
        operation.version,
        number,
    )
