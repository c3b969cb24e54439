"""The arrays of an index: which documents hold a term, and how often; each grows at its end only.

A fork shares every array with its origin. Only one of them, the owner, writes behind what both see; another
copies before its first write, so nobody's entries ever change.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

_Scalar = TypeVar("_Scalar", bound=np.generic)


class Column(Generic[_Scalar]):
    """An array that grows at its end, in amortised constant time."""

    def __init__(self, values: NDArray[_Scalar]) -> None:
        """Begin with some values, which are never written to."""
        self._array = values
        self._size = len(values)
        self._is_owner = False
        self._has_forks = False

    def __len__(self) -> int:
        """Count the values."""
        return self._size

    @property
    def values(self) -> NDArray[_Scalar]:
        """Everything that was added, shape (len,)."""
        return self._array[: self._size]

    def extend(self, values: ArrayLike) -> None:
        """Add values at the end."""
        added = np.asarray(values, dtype=self._array.dtype)
        size = self._size + len(added)
        if size > len(self._array) or not self._is_owner:
            self._move(size)
        self._array[self._size : size] = added
        self._size = size

    def replace(self, position: int, value: ArrayLike) -> None:
        """Write another value at a position."""
        if self._has_forks or not self._is_owner:
            self._move(self._size)
        self._array[position] = value

    def fork(self) -> "Column[_Scalar]":
        """Copy in O(1); the first write of the copy moves its values elsewhere."""
        copy = Column(self._array)
        copy._size = self._size
        self._has_forks = True
        return copy

    def _move(self, needed: int) -> None:
        self._array = _with_room(self._array, self._size, needed)
        self._is_owner, self._has_forks = True, False


class Posting(NamedTuple):
    """The documents that hold a term: the first ``size`` entries of two arrays, by rising position.

    ``live`` of them have not been removed. No entry has a higher count than ``top_count``, and no document
    is shorter than ``shortest``: together they bound what the term can add to a score.
    """

    positions: NDArray[np.int32]
    counts: NDArray[np.float32]
    size: int
    live: int
    top_count: int
    shortest: int
    owner: object = None

    def entries(self) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Give positions and counts, each of shape (size,)."""
        return self.positions[: self.size], self.counts[: self.size]

    def extended(self, later: "Posting", owner: object) -> "Posting":
        """Append the entries of later documents; only an owner's arrays are written in place."""
        size = self.size + later.size
        positions, counts = self.positions, self.counts
        if size > len(positions) or owner is not self.owner:
            positions = _with_room(positions, self.size, size)
            counts = _with_room(counts, self.size, size)
        positions[self.size : size], counts[self.size : size] = later.entries()
        return Posting(
            positions,
            counts,
            size,
            self.live + later.live,
            max(self.top_count, later.top_count),
            min(self.shortest, later.shortest),
            owner,
        )

    def without_one(self, removed: NDArray[np.bool_]) -> "Posting":
        """Count one document less; the arrays are rewritten only when more than half of them is removed."""
        posting = self._replace(live=self.live - 1)
        if 2 * posting.live >= posting.size:
            return posting
        positions, counts = self.entries()
        kept = ~removed[positions]
        return posting._replace(positions=positions[kept], counts=counts[kept], size=posting.live, owner=None)


def postings_of(
    documents: Sequence[Mapping[str, int]], lengths: Sequence[int], first_position: int
) -> dict[str, Posting]:
    """Turn documents, as counts by term and their sums, into one posting a term.

    The first document gets ``first_position``, the others follow.
    """
    row_of: dict[str, int] = {}
    rows, positions, counts = list[int](), list[int](), list[int]()
    for position, document in enumerate(documents, start=first_position):
        for term, count in document.items():
            rows.append(row_of.setdefault(term, len(row_of)))
            positions.append(position)
            counts.append(count)
    if not rows:
        return {}
    order = np.argsort(rows, kind="stable")
    positions_E = np.array(positions, dtype=np.int32)[order]  # E: entries, by term and then by position
    counts_E = np.array(counts, dtype=np.float32)[order]
    lengths_E = np.array(lengths)[positions_E - first_position]
    sizes = np.bincount(rows)
    ends = np.cumsum(sizes)
    starts = ends - sizes
    tops = np.maximum.reduceat(counts_E, starts)
    shortest = np.minimum.reduceat(lengths_E, starts)
    bounds = zip(row_of, starts.tolist(), ends.tolist(), tops.tolist(), shortest.tolist(), strict=True)
    return {
        term: Posting(positions_E[start:end], counts_E[start:end], end - start, end - start, int(top), least)
        for term, start, end, top, least in bounds
    }


@dataclass(frozen=True)
class PostingColumns:
    """A whole index as arrays: entries E by term T and then by position, and the length of each document D.

    The entries of term t are those from ``ends_T[t - 1]`` (0 for the first) to ``ends_T[t]``.
    """

    terms: list[str]
    ends_T: NDArray[np.int64]
    tops_T: NDArray[np.int32]
    shortest_T: NDArray[np.int32]
    positions_E: NDArray[np.int32]
    counts_E: NDArray[np.float32]
    lengths_D: NDArray[np.int32]

    @classmethod
    def of(cls, postings: Iterable[tuple[str, Posting]], lengths_D: NDArray[np.int32]) -> "PostingColumns":
        """Lay postings out; ``lengths_D`` has the length of the document at each position."""
        held = list(postings)
        entries = [posting.entries() for _, posting in held]
        return cls(
            [term for term, _ in held],
            np.cumsum([posting.size for _, posting in held], dtype=np.int64),
            np.array([posting.top_count for _, posting in held], dtype=np.int32),
            np.array([posting.shortest for _, posting in held], dtype=np.int32),
            np.concatenate([np.zeros(0, np.int32), *(positions for positions, _ in entries)]),
            np.concatenate([np.zeros(0, np.float32), *(counts for _, counts in entries)]),
            lengths_D,
        )

    def get(self, term: str) -> Posting | None:
        """Give the posting of a term, as a view; None if no document holds it."""
        row = self._row_of.get(term)
        if row is None:
            return None
        start, end = int(self.ends_T[row - 1]) if row else 0, int(self.ends_T[row])
        return Posting(
            self.positions_E[start:end],
            self.counts_E[start:end],
            end - start,
            end - start,
            int(self.tops_T[row]),
            int(self.shortest_T[row]),
        )

    @cached_property
    def _row_of(self) -> dict[str, int]:
        return {term: row for row, term in enumerate(self.terms)}


NO_POSTINGS = PostingColumns.of((), np.zeros(0, np.int32))
"""The columns of no documents."""


def _with_room(array: NDArray[_Scalar], used: int, needed: int) -> NDArray[_Scalar]:
    """Copy the used part of an array into one that has room for what is needed, or for twice as much."""
    capacity = len(array) if needed <= len(array) else max(2 * len(array), needed)
    longer = np.empty(capacity, dtype=array.dtype)
    longer[:used] = array[:used]
    return longer
