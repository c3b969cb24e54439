"""Memories as columns: what a million of them take when nobody looks at them one by one.

A memory of 90 characters takes about 150 bytes here, and about 700 as an object; a bank that is opened from a
snapshot makes the objects that somebody asks for.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
from numpy.typing import NDArray

from memory_program.bank.memory import MEMORY_KINDS, Memory, memory_number
from memory_program.core.errors import MemoryOperationError


@dataclass(frozen=True, slots=True)
class MemoryColumns:
    """The memories m1 to mM of a bank, live and superseded, one entry of each array for each.

    Dates are days since 1 January of year 1 (that day is 1), 0 for none; ``superseded_M`` is 0 where a memory
    is live. Texts are UTF-8, sources JSON, each laid end to end.
    """

    kinds_M: NDArray[np.uint8]
    days_M: NDArray[np.int32]
    created_M: NDArray[np.int32]
    superseded_M: NDArray[np.int32]
    text_ends_M: NDArray[np.int64]
    source_ends_M: NDArray[np.int64]
    texts: bytes
    sources: bytes

    @classmethod
    def from_memories(cls, memories: Sequence[Memory]) -> "MemoryColumns":
        """Lay memories out, the first of which becomes m1."""
        texts = [memory.text.encode(errors="surrogatepass") for memory in memories]
        sources = [json.dumps(memory.sources).encode() for memory in memories]
        days = [0 if memory.happened_at is None else memory.happened_at.toordinal() for memory in memories]
        return cls(
            np.array([MEMORY_KINDS.index(memory.kind) for memory in memories], dtype=np.uint8),
            np.array(days, dtype=np.int32),
            np.array([memory.created for memory in memories], dtype=np.int32),
            np.array([memory.superseded or 0 for memory in memories], dtype=np.int32),
            np.cumsum([len(text) for text in texts], dtype=np.int64),
            np.cumsum([len(source) for source in sources], dtype=np.int64),
            b"".join(texts),
            b"".join(sources),
        )

    def __len__(self) -> int:
        """Count the memories, live and superseded."""
        return len(self.kinds_M)

    @property
    def live_numbers(self) -> NDArray[np.int32]:
        """The numbers of the live memories, rising."""
        return (np.flatnonzero(self.superseded_M == 0) + 1).astype(np.int32)

    def get(self, memory_id: str) -> Memory | None:
        """Look a memory up; None if it is not among these."""
        try:
            number = memory_number(memory_id)
        except MemoryOperationError:
            return None
        return self.memory(number) if number <= len(self) else None

    def memory(self, number: int) -> Memory:
        """Make the object of a memory, given its number from 1 to M."""
        row = number - 1
        day, superseded = int(self.days_M[row]), int(self.superseded_M[row])
        return Memory(
            memory_id=f"m{number}",
            kind=MEMORY_KINDS[self.kinds_M[row]],
            text=_row_bytes(self.texts, self.text_ends_M, row).decode(errors="surrogatepass"),
            happened_at=date.fromordinal(day) if day else None,
            sources=tuple(json.loads(_row_bytes(self.sources, self.source_ends_M, row))),
            created=int(self.created_M[row]),
            superseded=superseded or None,
        )

    def updated(self, changed: Sequence[Memory]) -> "MemoryColumns":
        """Give these columns as they are after changes: memories that were ended, and new ones at the end."""
        ended, made = list[Memory](), list[Memory]()
        for memory in sorted(changed, key=lambda memory: memory_number(memory.memory_id)):
            (ended if memory_number(memory.memory_id) <= len(self) else made).append(memory)
        superseded_M = self.superseded_M.copy()
        for memory in ended:
            superseded_M[memory_number(memory.memory_id) - 1] = memory.superseded or 0
        new = MemoryColumns.from_memories(made)
        return MemoryColumns(
            np.concatenate([self.kinds_M, new.kinds_M]),
            np.concatenate([self.days_M, new.days_M]),
            np.concatenate([self.created_M, new.created_M]),
            np.concatenate([superseded_M, new.superseded_M]),
            np.concatenate([self.text_ends_M, new.text_ends_M + len(self.texts)]),
            np.concatenate([self.source_ends_M, new.source_ends_M + len(self.sources)]),
            self.texts + new.texts,
            self.sources + new.sources,
        )


NO_MEMORIES = MemoryColumns.from_memories(())
"""The columns of an empty bank."""


def _row_bytes(joined: bytes, ends_M: NDArray[np.int64], row: int) -> bytes:
    return joined[int(ends_M[row - 1]) if row else 0 : int(ends_M[row])]
