"""Memories as arrays: a large bank is opened from them without making an object of each memory.

A memory of 90 characters takes about 150 bytes here, and about 700 as an object.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
from numpy.typing import NDArray

from memory_program.bank.memory import MEMORY_KINDS, Memory, memory_number
from memory_program.core.errors import MemoryOperationError

MEMORY_DTYPE = np.dtype(
    [
        ("kinds", "|u1"),  # the place in MEMORY_KINDS
        ("days", "<i4"),  # since 1 January of year 1 (that day is 1); 0 without a date
        ("created", "<i4"),
        ("superseded", "<i4"),  # 0 while it is live
        ("text_ends", "<i8"),
        ("source_ends", "<i8"),
    ]
)
"""One memory of ``MemoryColumns``; the fields are named as the parts of a snapshot."""


@dataclass(frozen=True, slots=True)
class MemoryColumns:
    """The memories m1 to mM of a bank, live and superseded.

    Texts are UTF-8, sources JSON, each joined without separators: those of a memory end at its ``text_ends``
    and ``source_ends``.
    """

    rows_M: NDArray[np.void]  # of MEMORY_DTYPE
    texts: bytes
    sources: bytes

    @classmethod
    def from_memories(cls, memories: Sequence[Memory]) -> "MemoryColumns":
        """Copy memories to arrays; the first of them becomes m1."""
        texts = [memory.text.encode(errors="surrogatepass") for memory in memories]
        sources = [json.dumps(memory.sources).encode() for memory in memories]
        days = [0 if memory.happened_at is None else memory.happened_at.toordinal() for memory in memories]
        rows_M = np.zeros(len(memories), MEMORY_DTYPE)
        rows_M["kinds"] = [MEMORY_KINDS.index(memory.kind) for memory in memories]
        rows_M["days"] = days
        rows_M["created"] = [memory.created for memory in memories]
        rows_M["superseded"] = [memory.superseded or 0 for memory in memories]
        rows_M["text_ends"] = np.cumsum([len(text) for text in texts])
        rows_M["source_ends"] = np.cumsum([len(source) for source in sources])
        return cls(rows_M, b"".join(texts), b"".join(sources))

    def __len__(self) -> int:
        """Count the memories, live and superseded."""
        return len(self.rows_M)

    @property
    def live_numbers(self) -> NDArray[np.int32]:
        """The numbers of the live memories, rising."""
        return (np.flatnonzero(self.rows_M["superseded"] == 0) + 1).astype(np.int32)

    def get(self, memory_id: str) -> Memory | None:
        """Look a memory up; None if it is not among these."""
        try:
            number = memory_number(memory_id)
        except MemoryOperationError:
            return None
        return self.memory(number) if number <= len(self) else None

    def memory(self, number: int) -> Memory:
        """Make the object of a memory, given its number from 1 to M."""
        kind, day, created, superseded, text_end, source_end = self.rows_M[number - 1].item()
        text_start, source_start = self.rows_M[number - 2].item()[-2:] if number > 1 else (0, 0)
        return Memory(
            memory_id=f"m{number}",
            kind=MEMORY_KINDS[kind],
            text=self.texts[text_start:text_end].decode(errors="surrogatepass"),
            happened_at=date.fromordinal(day) if day else None,
            sources=tuple(json.loads(self.sources[source_start:source_end])),
            created=created,
            superseded=superseded or None,
        )

    def with_live(self, numbers: Sequence[int]) -> "MemoryColumns":
        """Give the same memories, of which only those of these numbers are live."""
        rows_M, is_live = self.rows_M.copy(), np.zeros(len(self), np.bool_)
        is_live[np.array(numbers, np.intp) - 1] = True
        # a live memory, or one that is not made yet, gets the version in which it was made
        ended = np.maximum(rows_M["superseded"], rows_M["created"])
        rows_M["superseded"] = np.where(is_live, 0, ended)
        return MemoryColumns(rows_M, self.texts, self.sources)

    def updated(self, changed: Sequence[Memory]) -> "MemoryColumns":
        """Give the columns after some memories were superseded, and new ones were added at the end."""
        by_number = sorted((memory_number(memory.memory_id), memory) for memory in changed)
        new = MemoryColumns.from_memories([memory for number, memory in by_number if number > len(self)])
        new.rows_M["text_ends"] += len(self.texts)
        new.rows_M["source_ends"] += len(self.sources)
        rows_M = np.concatenate([self.rows_M, new.rows_M])
        for number, memory in by_number:
            rows_M["superseded"][number - 1] = memory.superseded or 0
        return MemoryColumns(rows_M, self.texts + new.texts, self.sources + new.sources)


NO_MEMORIES = MemoryColumns.from_memories(())
"""The columns of an empty bank."""
