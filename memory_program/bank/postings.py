"""The arrays of an index: the documents that hold each term, and how often."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

_Scalar = TypeVar("_Scalar", bound=np.generic)
_claiming = threading.Lock()

TERM_DTYPE = np.dtype([("posting_ends", "<i8"), ("tops", "<i4"), ("shortest", "<i4")])
"""One term of ``PostingColumns``: where its entries end, and the two bounds of its ``PostingList``."""


class SharedArray(Generic[_Scalar]):
    """An immutable array of values or rows; ``extended`` gives a longer one that shares its memory.

    The first extension is written behind the values, in amortised constant time. Any other one, by a fork
    for example, copies first: no version ever sees the values of another branch. Any thread may extend.
    """

    __slots__ = ("_buffer", "_used", "values")

    def __init__(self, values: NDArray[_Scalar]) -> None:
        """Begin with some values, which must not be written to afterwards."""
        self.values = values
        self._buffer = values  # the values of this version, and room behind them
        self._used = [len(values)]  # how much of the buffer is taken, shared by all its versions

    def extended(self, added: ArrayLike) -> "SharedArray[_Scalar]":
        """Give these values with others behind them."""
        tail = np.asarray(added, dtype=self.values.dtype)
        start, end = len(self.values), len(self.values) + len(tail)
        if start == end:
            return self
        longer = SharedArray(self.values)
        with _claiming:
            is_ours = self._used[0] == start and end <= len(self._buffer)
            if is_ours:
                self._used[0] = end
        if is_ours:
            longer._buffer, longer._used = self._buffer, self._used
        else:
            longer._buffer = np.empty((max(2 * start, end), *tail.shape[1:]), dtype=tail.dtype)
            longer._used = [end]
            longer._buffer[:start] = self.values
        longer._buffer[start:end] = tail
        longer.values = longer._buffer[:end]
        return longer


class PostingList(NamedTuple):
    """The documents that hold a term: the first ``size`` entries of two arrays, by rising position.

    ``live`` of them have not been removed. No entry has a higher count than ``top_count``, and no document
    is shorter than ``shortest``: together they bound what the term can add to a score. Only the index that is
    the ``owner`` writes behind the entries; any other one copies first. (A ``SharedArray`` for each term
    would do the same, with five times as many objects for the garbage collector.)
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
        """Append the entries of later documents."""
        start, end = self.size, self.size + later.size
        positions, counts = self.positions, self.counts
        if end > len(positions) or owner is not self.owner:
            capacity = max(2 * start, end)
            positions, counts = np.empty(capacity, np.int32), np.empty(capacity, np.float32)
            positions[:start], counts[:start] = self.entries()
        positions[start:end], counts[start:end] = later.entries()
        live, top_count = self.live + later.live, max(self.top_count, later.top_count)
        shortest = min(self.shortest, later.shortest)
        return PostingList(positions, counts, end, live, top_count, shortest, owner)

    def with_one_removed(self, is_live: NDArray[np.bool_]) -> "PostingList":
        """Count one document less; the arrays are rewritten only when more than half of them is removed."""
        posting = self._replace(live=self.live - 1)
        if 2 * posting.live >= posting.size:
            return posting
        positions, counts = self.entries()
        kept = is_live[positions]
        return posting._replace(positions=positions[kept], counts=counts[kept], size=posting.live, owner=None)


def build_postings(
    documents: Sequence[Mapping[str, int]], lengths: Sequence[int], first_position: int
) -> dict[str, PostingList]:
    """Turn documents, given as counts by term, into one posting list a term.

    Args:
        documents: how often each term stands in each document.
        lengths: the sum of each document's counts.
        first_position: the position of the first document; the others follow.
    """
    row_by_term: dict[str, int] = {}
    rows, positions, counts = list[int](), list[int](), list[int]()
    for position, document in enumerate(documents, start=first_position):
        for term, count in document.items():
            rows.append(row_by_term.setdefault(term, len(row_by_term)))
            positions.append(position)
            counts.append(count)
    if not rows:
        return {}
    order = np.argsort(rows, kind="stable")
    positions_E = np.array(positions, dtype=np.int32)[order]  # E: entries, by term and then by position
    counts_E = np.array(counts, dtype=np.float32)[order]
    ends = np.cumsum(np.bincount(rows))
    starts = np.concatenate([[0], ends[:-1]])
    tops = np.maximum.reduceat(counts_E, starts)
    shortest = np.minimum.reduceat(np.array(lengths)[positions_E - first_position], starts)
    bounds = zip(row_by_term, starts.tolist(), ends.tolist(), tops.tolist(), shortest.tolist(), strict=True)
    return {
        term: PostingList(
            positions_E[start:end], counts_E[start:end], end - start, end - start, int(top), least
        )
        for term, start, end, top, least in bounds
    }


@dataclass(frozen=True)
class PostingColumns:
    """A whole index as arrays: entries E by term T and then by position, and the length of each document D.

    The entries of a term end at its ``posting_ends`` and begin where those of the term before it end.
    """

    terms: list[str]
    rows_T: NDArray[np.void]  # of TERM_DTYPE
    positions_E: NDArray[np.int32]
    counts_E: NDArray[np.float32]
    lengths_D: NDArray[np.int32]

    def get(self, term: str) -> PostingList | None:
        """Give the posting list of a term, as a view; None if no document holds it."""
        row = self._row_by_term.get(term)
        if row is None:
            return None
        start = int(self.rows_T[row - 1]["posting_ends"]) if row else 0
        end, top_count, shortest = self.rows_T[row].item()
        positions, counts = self.positions_E[start:end], self.counts_E[start:end]
        return PostingList(positions, counts, end - start, end - start, top_count, shortest)

    @cached_property
    def _row_by_term(self) -> dict[str, int]:
        return {term: row for row, term in enumerate(self.terms)}


NO_POSTINGS = PostingColumns(
    [], np.zeros(0, TERM_DTYPE), np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.int32)
)
"""The columns of no documents."""
