"""A bank and its index at one version, as a few arrays from which a large bank is opened at once.

A snapshot holds nothing that the log does not hold. It is replaced as the log grows, and a rewind to before
it deletes it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from memory_program.bank.columns import MEMORY_DTYPE, MemoryColumns
from memory_program.bank.fold import BankState
from memory_program.bank.postings import TERM_DTYPE, PostingColumns

_FORMAT = 3


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The compacted state of a bank, and the index over its live memories."""

    state: BankState
    postings: PostingColumns

    def to_parts(self) -> dict[str, bytes]:
        """Write the snapshot as named byte strings; ``from_parts`` reads it back equal."""
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
            "texts": memories.texts,
            "sources": memories.sources,
            **{name: memories.rows_M[name].tobytes() for name in MEMORY_DTYPE.names or ()},
            **{name: postings.rows_T[name].tobytes() for name in TERM_DTYPE.names or ()},
            "positions": postings.positions_E.astype("<i4").tobytes(),
            "counts": postings.counts_E.astype(count_type).tobytes(),
            "lengths": postings.lengths_D.astype("<i4").tobytes(),
        }

    @classmethod
    def from_parts(cls, parts: Mapping[str, bytes]) -> "Snapshot | None":
        """Read a snapshot that ``to_parts`` wrote.

        Returns:
            None for a snapshot of formats 1 and 2, which split texts into other words: the log is replayed
            instead.

        Raises:
            ValueError, KeyError, TypeError: the parts are damaged.
        """
        head: dict[str, Any] = json.loads(parts["head"])  # Any: a JSON object
        if head["format"] in range(1, _FORMAT):
            return None
        if head["format"] != _FORMAT:
            raise ValueError(f"its snapshot is of format {head['format']!r}, not {_FORMAT}")

        def read(name: str, dtype: DTypeLike) -> NDArray[Any]:  # Any: as the caller says
            return np.frombuffer(parts[name], dtype)

        def read_rows(dtype: np.dtype[np.void]) -> NDArray[np.void]:
            columns = {name: read(name, dtype[name]) for name in dtype.names or ()}
            rows = np.empty(len(next(iter(columns.values()))), dtype)
            for name, column in columns.items():
                rows[name] = column
            return rows

        memories = MemoryColumns(read_rows(MEMORY_DTYPE), parts["texts"], parts["sources"])
        postings = PostingColumns(
            head["terms"],
            read_rows(TERM_DTYPE),
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
