"""A bank and its index as they were at a version, in a few arrays: a large bank is opened from them at once.

A snapshot says nothing that the log does not say. It is made anew as the log grows, and a rewind to before it
drops it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memory_program.bank.bank import MemoryBank
from memory_program.bank.columns import MemoryColumns
from memory_program.bank.fold import BankState
from memory_program.bank.memory_search import MemoryIndex
from memory_program.bank.postings import PostingColumns

_FORMAT = 2


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a bank, and the index over its live memories."""

    state: BankState
    postings: PostingColumns

    @classmethod
    def from_bank(cls, bank: MemoryBank, index: MemoryIndex) -> "Snapshot":
        """Take a snapshot of a bank, with which its index catches up first.

        Raises:
            IndexingError: the index is of another branch.
        """
        return cls(bank.compacted(), index.postings(bank))

    @property
    def version(self) -> int:
        """The version of the bank that it shows."""
        return self.state.version

    def restore_index(self, bank: MemoryBank) -> MemoryIndex:
        """Make the index of a bank that was opened with this snapshot."""
        return MemoryIndex.from_snapshot(bank.at(self.version), self.state.frozen, self.postings)

    def to_parts(self) -> dict[str, bytes]:
        """Write the snapshot as named runs of bytes; ``from_parts`` reads it back equal."""
        memories, postings = self.state.frozen, self.postings
        count_type = "|u1" if postings.counts_E.max(initial=0) < 256 else "<f4"
        head = {
            "format": _FORMAT,
            "version": self.state.version,
            "live": self.state.live_count,
            "core": self.state.core,
            "terms": postings.terms,
            "count_type": count_type,
        }
        return {
            "head": json.dumps(head).encode(),
            "kinds": memories.kinds_M.tobytes(),
            "days": memories.days_M.astype("<i4").tobytes(),
            "created": memories.created_M.astype("<i4").tobytes(),
            "superseded": memories.superseded_M.astype("<i4").tobytes(),
            "text_ends": memories.text_ends_M.astype("<i8").tobytes(),
            "source_ends": memories.source_ends_M.astype("<i8").tobytes(),
            "texts": memories.texts,
            "sources": memories.sources,
            "posting_ends": postings.ends_T.astype("<i8").tobytes(),
            "tops": postings.tops_T.astype("<i4").tobytes(),
            "shortest": postings.shortest_T.astype("<i4").tobytes(),
            "positions": postings.positions_E.astype("<i4").tobytes(),
            "counts": postings.counts_E.astype(count_type).tobytes(),
            "lengths": postings.lengths_D.astype("<i4").tobytes(),
        }

    @classmethod
    def from_parts(cls, parts: Mapping[str, bytes]) -> "Snapshot | None":
        """Read a snapshot that ``to_parts`` wrote.

        Returns:
            None for one of an earlier version, which had other words: the log has all that it shows.

        Raises:
            ValueError, KeyError, TypeError: it did not.
        """
        head: dict[str, Any] = json.loads(parts["head"])  # Any: a JSON object
        if head["format"] in range(1, _FORMAT):
            return None
        if head["format"] != _FORMAT:
            raise ValueError(f"its snapshot is of format {head['format']!r}, not {_FORMAT}")

        def read(name: str, dtype: str) -> NDArray[Any]:  # Any: as the caller says
            return np.frombuffer(parts[name], dtype)

        memories = MemoryColumns(
            read("kinds", "|u1"),
            read("days", "<i4"),
            read("created", "<i4"),
            read("superseded", "<i4"),
            read("text_ends", "<i8"),
            read("source_ends", "<i8"),
            parts["texts"],
            parts["sources"],
        )
        postings = PostingColumns(
            head["terms"],
            read("posting_ends", "<i8"),
            read("tops", "<i4"),
            read("shortest", "<i4"),
            read("positions", "<i4"),
            read("counts", head["count_type"]).astype(np.float32, copy=False),
            read("lengths", "<i4"),
        )
        state = BankState(
            frozen=memories,
            live_count=head["live"],
            core=head["core"],
            version=head["version"],
            next_number=len(memories) + 1,
        )
        return cls(state, postings)
