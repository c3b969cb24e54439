"""BM25 that grows and shrinks one document at a time: nothing that is indexed is ever indexed again.

Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework", in the variant of Lucene as defined by
Kamphuis et al. 2020, ECIR, table 1. Only counts are stored; idf and the mean length are those of the moment
of the query, so the scores equal those of an index that was built afresh from the live documents.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from immutables import Map
from numpy.typing import NDArray

from memory_program.bank.maxscore import WeightedTerm, maxscore_candidates, top_positions
from memory_program.bank.postings import (
    NO_POSTINGS,
    GrowingArray,
    PostingColumns,
    PostingList,
    build_postings,
)
from memory_program.bank.stems import stem_counts, tokenize
from memory_program.core.errors import IndexingError

_DocId = TypeVar("_DocId")
_READ_SHARE = 8  # where more than an eighth would have to be read, to score all is faster
_MAX_CACHED_QUERIES = 64  # queries whose scores are kept until the next change: those of a session's turns
_BATCH_ENTRIES = 2**16  # scored at once: the arrays of many rare words together, of a common one alone


@dataclass(frozen=True, slots=True)
class Hit(Generic[_DocId]):
    """A document that was found, and its score."""

    doc_id: _DocId
    score: float


class BM25Index:
    """Documents, found by the words they share with a query.

    The score of document d, of n live ones, for a query q, summed over the words of q (a word that stands
    twice counts twice), with f its count in d, m the number of documents that hold it, and L the number of
    words in d:

        log(1 + (n - m + 0.5) / (m + 0.5)) * f / (f + k1 * (1 - b + b * L / mean L))

    Every document has a position, which is its id: 0 for the first that was ever added, never used twice.
    Reading is safe from any thread while nobody writes.

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
        columns: PostingColumns | None = None,
        scan_limit: int = 32_768,
    ) -> None:
        """Make an index.

        Args:
            k1: how much a second occurrence of a word counts.
            b: how much the length of a document counts, from 0 to 1.
            columns: the documents to begin with, as ``columns`` gave them; none by default.
            scan_limit: up to so many documents, a search scores every one; of more, only those that can be
                among the best. What it finds is the same.
        """
        columns = NO_POSTINGS if columns is None else columns
        self.k1 = k1
        self.b = b
        self._scan_limit = scan_limit
        self._frozen = columns
        self._postings: Map[str, PostingList] = Map()  # those that changed since they were frozen
        self._lengths = GrowingArray(columns.lengths_D)
        self._removed = GrowingArray(np.zeros(len(columns.lengths_D), dtype=np.bool_))
        self._live_count = len(columns.lengths_D)
        self._total_length = int(columns.lengths_D.sum())
        self._owner = object()
        self._scored: dict[str, NDArray[np.float64]] = {}  # queries since the last change

    def __len__(self) -> int:
        """Count the live documents."""
        return self._live_count

    @property
    def size(self) -> int:
        """The number of positions: every document that was ever added."""
        return len(self._lengths)

    def document_frequency(self, stem: str) -> int:
        """Count the live documents that hold a stem (of ``tokenize``)."""
        posting = self._live_posting(stem)
        return 0 if posting is None else posting.live

    @property
    def live(self) -> NDArray[np.bool_]:
        """Whether the document at each position is live, shape (size,)."""
        return ~self._removed.values

    def add(self, text: str) -> int:
        """Index one more document, in time that depends on its own length only; return its position."""
        return self.add_all([stem_counts(text)])

    def add_all(self, documents: Sequence[Mapping[str, int]]) -> int:
        """Index more documents, given how often each stem (of ``tokenize``) stands in each.

        Returns:
            the position of the first; the others follow.
        """
        first, lengths = self.size, [sum(document.values()) for document in documents]
        changed = self._postings.mutate()
        for term, posting in build_postings(documents, lengths, first).items():
            known = changed.get(term) or self._frozen.get(term)
            changed[term] = known.extended(posting, self._owner) if known and known.live else posting
        self._postings, self._scored = changed.finish(), {}
        self._lengths.extend(lengths)
        self._removed.extend(np.zeros(len(documents), dtype=np.bool_))
        self._live_count += len(documents)
        self._total_length += sum(lengths)
        return first

    def remove(self, position: int, text: str) -> None:
        """Take a document out, given the text under which it was added.

        Raises:
            IndexingError: no live document is there, or its text was another one; nothing was changed.
        """
        stems = tokenize(text)
        if not 0 <= position < self.size or self._removed[position]:
            raise IndexingError(f"position={position} holds none of the {len(self)} documents: add it first")
        if len(stems) != self._lengths[position] or not all(map(self._live_posting, stems)):
            raise IndexingError(f"{text!r:.80} is not the text at position {position}: give the one added")
        self._removed.replace(position, True)
        self._live_count -= 1
        self._total_length -= len(stems)
        changed = self._postings.mutate()
        for term in dict.fromkeys(stems):
            known = changed.get(term) or self._frozen.get(term)
            assert known is not None, "its posting was looked up above"
            changed[term] = known.with_one_removed(self._removed)
        self._postings, self._scored = changed.finish(), {}

    def score_documents(self, query: str) -> NDArray[np.float64]:
        """Score every position, shape (size,); removed documents and those without a word of it have 0.

        The array is kept for later searches, since the agents of a session look for the same turns: not to
        be written to.
        """
        scored = self._scored
        if query not in scored:
            scores = self._scores(self._weighted_terms(query))
            if len(scored) >= (_MAX_CACHED_QUERIES if self.size <= self._scan_limit else 1):
                self._scored = scored = {}  # anew, since other threads and forks may be reading the old one
            scored[query] = scores
            return scores
        return scored[query]

    def search(self, query: str, top_k: int, allow: NDArray[np.bool_] | None = None) -> list[Hit[int]]:
        """Rank the documents that share a word with the query, best first; of equals the earlier one first.

        Args:
            query: Words; their order does not matter.
            top_k: How many to give at most.
            allow: Shape (size,): the positions that may be found; all by default.

        Raises:
            IndexingError: ``top_k`` is below 1.
        """
        if self.size > self._scan_limit:
            terms = self._weighted_terms(query)
            places = self._maxscore_candidates(terms, top_k, allow)
            if places is not None:
                scores = self._scores_at(terms, places)
                return [Hit(int(places[row]), float(scores[row])) for row in top_positions(scores, top_k)]
        scores = self.score_documents(query)
        if allow is not None:
            scores = np.where(allow, scores, 0.0)
        return [Hit(position, float(scores[position])) for position in top_positions(scores, top_k)]

    def find_with_all_words(self, text: str) -> list[int]:
        """List, in rising order, the live documents that hold every word of a text, however often."""
        postings = [self._live_posting(stem) for stem in stem_counts(text)]
        known = sorted(filter(None, postings), key=lambda posting: posting.size)
        if not known or len(known) < len(postings):
            return []
        places = known[0].entries()[0]
        places = places[~self._removed.at(places)]
        for posting in known[1:]:
            if not len(places):
                break
            positions = posting.entries()[0]
            rows = np.minimum(np.searchsorted(positions, places), len(positions) - 1)
            places = places[positions[rows] == places]
        return places.tolist()

    def columns(self) -> PostingColumns:
        """Lay the live documents out as arrays, in their order and without the gaps of removed ones."""
        live = self.live
        moved = np.cumsum(live, dtype=np.int32) - np.int32(1)

        def kept() -> Iterator[tuple[str, PostingList]]:
            new = (term for term in self._postings if self._frozen.get(term) is None)
            for term in itertools.chain(self._frozen.terms, new):
                posting = self._live_posting(term)
                if posting is None:
                    continue
                positions, counts = posting.entries()
                is_kept = live[positions]
                places = moved[positions[is_kept]]
                yield term, posting._replace(positions=places, counts=counts[is_kept], size=posting.live)

        return PostingColumns.from_postings(kept(), self._lengths.values[live])

    def fork(self) -> "BM25Index":
        """Copy the index in O(1); what either does afterwards, the other does not see."""
        fork = copy(self)
        fork._lengths, fork._removed = self._lengths.fork(), self._removed.fork()
        fork._owner = object()
        return fork

    # -- scoring ---------------------------------------------------------------------------------

    def _live_posting(self, term: str) -> PostingList | None:
        posting = self._postings.get(term) or self._frozen.get(term)
        return posting if posting is not None and posting.live else None

    def _weighted_terms(self, query: str) -> list[WeightedTerm]:
        """List the terms of a query that some live document holds, in the order of the query."""
        terms = list[WeightedTerm]()
        floor, slope = self._length_norm()
        for term, repeats in stem_counts(query).items():
            posting = self._live_posting(term)
            if posting is not None:
                idf = math.log(1 + (len(self) - posting.live + 0.5) / (posting.live + 0.5))
                share = posting.top_count / (posting.top_count + floor + slope * posting.shortest)
                terms.append(WeightedTerm(repeats * idf, posting, repeats * idf * share))
        return terms

    def _length_norm(self) -> tuple[float, float]:
        """Give floor and slope: a document of length L has the norm ``floor + slope * L``."""
        mean_length = self._total_length / max(len(self), 1) or 1.0
        return self.k1 * (1 - self.b), self.k1 * self.b / mean_length

    def _scores(self, terms: Sequence[WeightedTerm]) -> NDArray[np.float64]:
        scores, lengths = np.zeros(self.size), self._lengths.values
        for batch in _batches(terms):
            entries = [term.posting.entries() for term in batch]
            positions = np.concatenate([positions for positions, _ in entries])
            counts = np.concatenate([counts for _, counts in entries])
            weights = np.repeat([term.weight for term in batch], [term.posting.size for term in batch])
            # one entry after the other, in the order of the query, on which sums of floats depend
            np.add.at(scores, positions, self._term_scores(weights, lengths[positions], counts))
        if len(self) < self.size:
            scores[self._removed.values] = 0.0
        return scores

    def _scores_at(self, terms: Sequence[WeightedTerm], places: NDArray[np.int32]) -> NDArray[np.float64]:
        """Score some live positions, given in rising order, exactly as ``_scores`` does."""
        scores, lengths = np.zeros(len(places)), self._lengths.at(places)
        for term in terms:  # in the order of the query, on which sums of floats depend
            positions, counts = term.posting.entries()
            rows = np.searchsorted(positions, places)
            rows[rows == len(positions)] = 0
            held = positions[rows] == places
            scores[held] += self._term_scores(term.weight, lengths[held], counts[rows[held]])
        return scores

    def _term_scores(
        self, weight: float | NDArray[np.float64], lengths: NDArray[np.int32], counts: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        floor, slope = self._length_norm()
        return weight * (counts / (counts + (floor + slope * lengths)))

    def _maxscore_candidates(
        self, terms: Sequence[WeightedTerm], top_k: int, allow: NDArray[np.bool_] | None
    ) -> NDArray[np.int32] | None:
        def gains(term: WeightedTerm) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
            positions, counts = term.posting.entries()
            may = ~self._removed.at(positions)
            if allow is not None:
                may &= allow[positions]
            positions, counts = positions[may], counts[may]
            return positions, self._term_scores(term.weight, self._lengths.at(positions), counts)

        return maxscore_candidates(terms, top_k, gains, read_limit=self.size // _READ_SHARE)


def _batches(terms: Sequence[WeightedTerm]) -> Iterator[list[WeightedTerm]]:
    """Yield the terms in their order, so many together that they have entries enough for a batch."""
    batch, entries = list[WeightedTerm](), 0
    for term in terms:
        batch.append(term)
        entries += term.posting.size
        if entries >= _BATCH_ENTRIES:
            yield batch
            batch, entries = [], 0
    if batch:
        yield batch
