"""The arrays of an index: which documents hold a term, and how often; each grows at its end only.

A fork shares every array with its origin. Only one of them, the owner, writes behind what both see; another
copies before its first write, so nobody's entries ever change.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

_Scalar = TypeVar("_Scalar", bound=np.generic)
_MIN_TAIL_CAPACITY = 1024  # values


class GrowingArray(Generic[_Scalar]):
    """An array that grows at its end, in amortised constant time: a long part, and a short one behind it.

    Forks share the long part. The first write of a fork copies the short part only, so it costs little
    however many values there are; when the short one has grown to an eighth, the two become one.
    """

    def __init__(self, values: NDArray[_Scalar]) -> None:
        """Begin with some values, which are never written to."""
        self._long, self._short = values, values[:0]
        self._size = len(values)
        self._owns_long = self._owns_short = False

    def __len__(self) -> int:
        """Count the values."""
        return self._size

    def __getitem__(self, position: int) -> _Scalar:
        """Give the value at a position."""
        long = len(self._long)
        return self._long[position] if position < long else self._short[position - long]

    @property
    def values(self) -> NDArray[_Scalar]:
        """Everything that was added, shape (len,); where it was added one by one, a copy."""
        short = self._short[: self._size - len(self._long)]
        return np.concatenate([self._long, short]) if len(short) else self._long

    def at(self, rising: NDArray[np.integer]) -> NDArray[_Scalar]:
        """Give the values at rising positions."""
        long = len(self._long)
        if not len(rising) or rising[-1] < long:
            return self._long[rising]
        split = int(np.searchsorted(rising, long))
        return np.concatenate([self._long[rising[:split]], self._short[rising[split:] - long]])

    def extend(self, values: ArrayLike) -> None:
        """Add values at the end."""
        added = np.asarray(values, dtype=self._long.dtype)
        used = self._size - len(self._long)
        self._size += len(added)
        if used + len(added) > max(_MIN_TAIL_CAPACITY, len(self._long) // 8):
            self._long = np.concatenate([self._long, self._short[:used], added])
            self._short, self._owns_long = self._long[:0], True
            return
        if used + len(added) > len(self._short) or not self._owns_short:
            self._short = _with_capacity(self._short, used, used + len(added))
            self._owns_short = True
        self._short[used : used + len(added)] = added

    def replace(self, position: int, value: ArrayLike) -> None:
        """Write another value at a position."""
        long = len(self._long)
        if position < long:
            self._long = self._long if self._owns_long else self._long.copy()
            self._long[position], self._owns_long = value, True
        else:
            self._short = self._short if self._owns_short else self._short.copy()
            self._short[position - long], self._owns_short = value, True

    def fork(self) -> "GrowingArray[_Scalar]":
        """Copy in O(1); neither sees what the other writes."""
        fork = copy(self)
        for either in (self, fork):
            either._owns_long = either._owns_short = False
        return fork


class PostingList(NamedTuple):
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

    def extended(self, later: "PostingList", owner: object) -> "PostingList":
        """Append the entries of later documents; only an owner's arrays are written in place."""
        size = self.size + later.size
        positions, counts = self.positions, self.counts
        if size > len(positions) or owner is not self.owner:
            positions = _with_capacity(positions, self.size, size)
            counts = _with_capacity(counts, self.size, size)
        positions[self.size : size], counts[self.size : size] = later.entries()
        return PostingList(
            positions,
            counts,
            size,
            self.live + later.live,
            max(self.top_count, later.top_count),
            min(self.shortest, later.shortest),
            owner,
        )

    def with_one_removed(self, removed: "GrowingArray[np.bool_]") -> "PostingList":
        """Count one document less; the arrays are rewritten only when more than half of them is removed."""
        posting = self._replace(live=self.live - 1)
        if 2 * posting.live >= posting.size:
            return posting
        positions, counts = self.entries()
        kept = ~removed.at(positions)
        return posting._replace(positions=positions[kept], counts=counts[kept], size=posting.live, owner=None)


def build_postings(
    documents: Sequence[Mapping[str, int]], lengths: Sequence[int], first_position: int
) -> dict[str, PostingList]:
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
        term: PostingList(
            positions_E[start:end], counts_E[start:end], end - start, end - start, int(top), least
        )
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
    def from_postings(
        cls, postings: Iterable[tuple[str, PostingList]], lengths_D: NDArray[np.int32]
    ) -> "PostingColumns":
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

    def get(self, term: str) -> PostingList | None:
        """Give the posting of a term, as a view; None if no document holds it."""
        row = self._row_by_term.get(term)
        if row is None:
            return None
        start, end = int(self.ends_T[row - 1]) if row else 0, int(self.ends_T[row])
        return PostingList(
            self.positions_E[start:end],
            self.counts_E[start:end],
            end - start,
            end - start,
            int(self.tops_T[row]),
            int(self.shortest_T[row]),
        )

    @cached_property
    def _row_by_term(self) -> dict[str, int]:
        return {term: row for row, term in enumerate(self.terms)}


NO_POSTINGS = PostingColumns.from_postings((), np.zeros(0, np.int32))
"""The columns of no documents."""


def _with_capacity(array: NDArray[_Scalar], used: int, needed: int) -> NDArray[_Scalar]:
    """Copy the used part of an array into one that has room for what is needed, or for twice as much."""
    capacity = len(array) if needed <= len(array) else max(2 * len(array), needed)
    longer = np.empty(capacity, dtype=array.dtype)
    longer[:used] = array[:used]
    return longer
