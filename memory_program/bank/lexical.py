"""BM25 over documents that are added and removed one at a time, without indexing any of them again.

Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework", in the variant of Lucene as defined by
Kamphuis et al. 2020, ECIR, table 1. Only counts are stored; idf and the mean length are computed for each
query, so the scores equal those of an index that was built from the live documents.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from immutables import Map
from numpy.typing import NDArray

from memory_program.bank.postings import (
    NO_POSTINGS,
    TERM_DTYPE,
    PostingColumns,
    PostingList,
    SharedArray,
    build_postings,
)
from memory_program.bank.stems import stem_counts, tokenize
from memory_program.core.errors import IndexingError

_DocId = TypeVar("_DocId")
_Numbers = NDArray[np.number] | np.float64
_READ_SHARE = 8  # if more than an eighth would have to be read, scoring everything is faster
_MAX_CACHED_QUERIES = 64  # queries whose scores are kept until the next change: the turns of a session
_SLACK = 1e-9  # relative: bounds are added up in another order than scores


@dataclass(frozen=True, slots=True)
class Hit(Generic[_DocId]):
    """A retrieved document and its score."""

    doc_id: _DocId
    score: float


class _QueryTerm(NamedTuple):
    """A term of a query: its idf times its count in the query, its documents, and its largest score."""

    weight: float
    posting: PostingList
    bound: float


class BM25Index:
    """Documents, retrieved by the words that they share with a query.

    The score of document d, of n live ones, for a query q, summed over the words of q (a word that stands
    twice counts twice), with f its count in d, m the number of documents that hold it, and L the number of
    words in d:

        log(1 + (n - m + 0.5) / (m + 0.5)) * f / (f + k1 * (1 - b + b * L / mean L))

    Every document has a position, which is its id: 0 for the first that was ever added, never used twice.
    Any thread may read while no thread writes.

    Example:
        >>> index = BM25Index()
        >>> index.add("Alice adopted a dog.")
        0
        >>> index.add("Bob paints dogs and cats.")
        1
        >>> [hit.doc_id for hit in index.search("Who adopted dogs?", top_k=2)]
        [0, 1]
    """

    def __init__(
        self,
        k1: float = 1.5,
        b: float = 0.75,
        columns: PostingColumns = NO_POSTINGS,
        scan_limit: int = 32_768,
    ) -> None:
        """Make an index.

        Args:
            k1: how much a second occurrence of a word counts.
            b: how much the length of a document counts, from 0 to 1.
            columns: the documents to begin with, as ``columns`` gave them; none by default.
            scan_limit: a search scores every document if there are at most this many. In a larger index it
                skips those that cannot be among the best; the result is the same.
        """
        self.k1 = k1
        self.b = b
        self._scan_limit = scan_limit
        self._frozen = columns
        self._changed: Map[str, PostingList] = Map()  # the posting lists that differ from the frozen ones
        self._lengths = SharedArray(columns.lengths_D)
        self._live = SharedArray(np.ones(len(columns.lengths_D), dtype=np.bool_))
        self._live_count = len(columns.lengths_D)
        self._total_length = int(columns.lengths_D.sum())
        self._cached_scores: dict[str, NDArray[np.float64]] = {}  # by query, since the last change
        self._owner = object()

    def __len__(self) -> int:
        """Count the live documents."""
        return self._live_count

    @property
    def size(self) -> int:
        """The number of positions: every document that was ever added."""
        return len(self._lengths.values)

    @property
    def live(self) -> NDArray[np.bool_]:
        """True where the document at a position is live, shape (size,); not to be written to."""
        return self._live.values

    def add(self, text: str) -> int:
        """Index one more document, in time that depends on its own length only; return its position."""
        return self.add_all([stem_counts(text)])

    def add_all(self, documents: Sequence[Mapping[str, int]]) -> int:
        """Index more documents, given how often each stem (of ``tokenize``) stands in each.

        Returns:
            the position of the first; the others follow.
        """
        first, lengths = self.size, [sum(document.values()) for document in documents]
        changed = self._changed.mutate()
        for term, posting in build_postings(documents, lengths, first).items():
            known = self._posting(term)
            changed[term] = known.extended(posting, self._owner) if known is not None else posting
        self._changed, self._cached_scores = changed.finish(), {}
        self._lengths = self._lengths.extended(lengths)
        self._live = self._live.extended(np.ones(len(documents), dtype=np.bool_))
        self._live_count += len(documents)
        self._total_length += sum(lengths)
        return first

    def remove(self, position: int, text: str) -> None:
        """Take a document out, given the text under which it was added.

        Raises:
            IndexingError: no live document is there, or its text was another one; nothing was changed.
        """
        stems = tokenize(text)
        if not 0 <= position < self.size or not self.live[position]:
            raise IndexingError(f"position={position} holds none of the {len(self)} documents: add it first")
        postings = {stem: self._posting(stem) for stem in stems}
        if len(stems) != self._lengths.values[position] or not all(postings.values()):
            raise IndexingError(f"{text!r:.80} is not the text at position {position}: give the one added")
        is_live = self.live.copy()
        is_live[position] = False
        self._live = SharedArray(is_live)
        self._live_count -= 1
        self._total_length -= len(stems)
        reduced = {term: known.with_one_removed(is_live) for term, known in postings.items() if known}
        self._changed, self._cached_scores = self._changed.update(reduced), {}

    def score_documents(self, query: str) -> NDArray[np.float64]:
        """Score every position, shape (size,); removed documents and those without a word of it have 0.

        The array is cached, since the agents of a session search for the same turns: it is not to be
        written to.
        """
        cached = self._cached_scores
        if query not in cached:
            scores = self._scores(self._query_terms(query))
            if len(cached) >= (_MAX_CACHED_QUERIES if self.size <= self._scan_limit else 1):
                self._cached_scores = cached = {}  # a new one: other threads and forks may read the old one
            cached[query] = scores
            return scores
        return cached[query]

    def search(self, query: str, top_k: int, allow: NDArray[np.bool_] | None = None) -> list[Hit[int]]:
        """Rank the documents that share a word with the query, best first; of equals the earlier one first.

        Args:
            query: Words; their order does not matter.
            top_k: The maximum number of results.
            allow: Shape (size,): the positions that may be returned; all by default.

        Raises:
            IndexingError: ``top_k`` is below 1.
        """
        if top_k < 1:
            raise IndexingError(f"top_k={top_k} must be at least 1")
        if self.size > self._scan_limit:
            terms = self._query_terms(query)
            places = self._candidates(terms, top_k, allow)
            if places is not None:
                scores = self._scores(terms, places)
                return [Hit(int(places[row]), float(scores[row])) for row in top_positions(scores, top_k)]
        scores = self.score_documents(query)
        if allow is not None:
            scores = np.where(allow, scores, 0.0)
        return [Hit(position, float(scores[position])) for position in top_positions(scores, top_k)]

    def find_with_all_words(self, text: str) -> list[int]:
        """List, in rising order, the live documents that hold every word of a text, however often.

        These are all documents for a text without words, such as an emoji.
        """
        postings = [self._posting(stem) for stem in stem_counts(text)]
        if not postings:
            return np.flatnonzero(self.live).tolist()
        known = sorted((posting.entries()[0] for posting in postings if posting is not None), key=len)
        if len(known) < len(postings):
            return []
        found = known[0][self.live[known[0]]]
        for positions in known[1:]:
            rows = np.minimum(np.searchsorted(positions, found), len(positions) - 1)
            found = found[positions[rows] == found]
        return found.tolist()

    def columns(self) -> PostingColumns:
        """Copy the live documents to arrays, in their order and without the gaps of removed ones."""
        live, terms, postings = self.live, list[str](), list[PostingList]()
        positions, counts = [np.zeros(0, np.int32)], [np.zeros(0, np.float32)]
        new_position = np.cumsum(live, dtype=np.int32) - np.int32(1)
        new_terms = (term for term in self._changed if self._frozen.get(term) is None)
        for term in itertools.chain(self._frozen.terms, new_terms):
            posting = self._posting(term)
            if posting is not None:
                places, found = posting.entries()
                kept = live[places]
                positions.append(new_position[places[kept]])
                counts.append(found[kept])
                terms.append(term)
                postings.append(posting)
        rows_T = np.zeros(len(terms), TERM_DTYPE)
        rows_T["posting_ends"] = np.cumsum([posting.live for posting in postings], dtype=np.int64)
        rows_T["tops"] = [posting.top_count for posting in postings]
        rows_T["shortest"] = [posting.shortest for posting in postings]
        lengths = self._lengths.values[live]
        return PostingColumns(terms, rows_T, np.concatenate(positions), np.concatenate(counts), lengths)

    def fork(self) -> "BM25Index":
        """Copy the index in O(1); neither copy sees later changes of the other."""
        fork = copy(self)  # all parts are immutable, and replaced by a change
        fork._owner = object()
        return fork

    def _posting(self, term: str) -> PostingList | None:
        """Give the posting list of a term that some live document holds."""
        posting = self._changed.get(term) or self._frozen.get(term)
        return posting if posting is not None and posting.live else None

    def _query_terms(self, query: str) -> list[_QueryTerm]:
        """List the terms of a query that some live document holds, in the order of the query."""
        terms = list[_QueryTerm]()
        for term, repeats in stem_counts(query).items():
            posting = self._posting(term)
            if posting is not None:
                idf = math.log(1 + (len(self) - posting.live + 0.5) / (posting.live + 0.5))
                most = self._saturation(np.float64(posting.top_count), np.float64(posting.shortest))
                terms.append(_QueryTerm(repeats * idf, posting, repeats * idf * float(most)))
        return terms

    def _saturation(self, counts: _Numbers, lengths: _Numbers) -> _Numbers:
        """Give ``f / (f + k1 * (1 - b + b * L / mean L))`` for counts f in documents of lengths L."""
        mean_length = self._total_length / max(len(self), 1) or 1.0
        return counts / (counts + (self.k1 * (1 - self.b) + self.k1 * self.b / mean_length * lengths))

    def _scores(
        self, terms: Sequence[_QueryTerm], places: NDArray[np.int32] | None = None
    ) -> NDArray[np.float64]:
        """Score every position, or only some live ones, given in rising order: the scores are equal.

        Terms are added up in the order of the query, since sums of floats depend on it.
        """
        lengths = self._lengths.values
        scores = np.zeros(self.size if places is None else len(places))
        for term in terms:
            positions, counts = term.posting.entries()
            rows = positions
            if places is not None:
                nearest = np.minimum(np.searchsorted(positions, places), len(positions) - 1)
                rows = np.flatnonzero(positions[nearest] == places)
                positions, counts = places[rows], counts[nearest[rows]]
            scores[rows] += term.weight * self._saturation(counts, lengths[positions])
        if places is None and len(self) < self.size:
            scores[~self.live] = 0.0
        return scores

    def _candidates(
        self, terms: Sequence[_QueryTerm], top_k: int, allow: NDArray[np.bool_] | None
    ) -> NDArray[np.int32] | None:
        """List, in rising order, positions among which the best must be.

        MaxScore (Turtle and Flood 1995, "Query evaluation: strategies and optimizations", Information
        Processing and Management 31): terms are read from the one that can add most to the one that can add
        least, until no document without any of those read can reach the k-th best score any more; of the
        documents seen, those that cannot reach it are dropped.

        Returns:
            None if more than an eighth of the index would have to be read: scoring everything is as fast.
        """
        scores, seen, entries_read = np.zeros(self.size), np.zeros(0, np.int32), 0
        kth_best = -math.inf  # of the documents seen, or a little less
        ranked = sorted(terms, key=lambda term: -term.bound)
        for number, term in enumerate(ranked):
            rest = sum(later.bound for later in ranked[number:]) * (1 + _SLACK)
            if rest < kth_best:
                return np.sort(seen[scores[seen] + rest >= kth_best])
            positions, counts = term.posting.entries()
            entries_read += len(positions)
            if entries_read > self.size // _READ_SHARE:
                return None
            is_allowed = self.live[positions] if allow is None else self.live[positions] & allow[positions]
            positions, counts = positions[is_allowed], counts[is_allowed]
            seen = np.concatenate([seen, positions[scores[positions] == 0.0]])
            scores[positions] += term.weight * self._saturation(counts, self._lengths.values[positions])
            if len(seen) >= top_k:
                kth_best = float(np.partition(scores[seen], -top_k)[-top_k]) * (1 - _SLACK)
        return np.sort(seen[scores[seen] >= kth_best])


def top_positions(scores: NDArray[np.float64], top_k: int) -> list[int]:
    """List the positions of the highest scores above zero, best first; of equals the earlier one first."""
    found = np.flatnonzero(scores > 0)
    if len(found) > top_k:
        values = scores[found]
        found = found[values >= np.partition(values, -top_k)[-top_k]]  # ties at the edge stay in
    return found[np.argsort(-scores[found], kind="stable")][:top_k].tolist()
