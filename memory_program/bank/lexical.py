"""BM25 that grows and shrinks one document at a time: nothing that is indexed is ever indexed again.

Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework", in the variant of Lucene as defined by
Kamphuis et al. 2020, ECIR, table 1. Only counts are stored; idf and the mean length are those of the moment
of the query, so the scores equal those of an index that was built afresh from the live documents.
"""

import math
import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from bm25s.stopwords import STOPWORDS_EN
from immutables import Map
from numpy.typing import NDArray
from Stemmer import Stemmer

from memory_program.errors import IndexingError

_WORD = re.compile(r"\b\w\w+\b")
_STOP_WORDS = frozenset(STOPWORDS_EN)
_FIRST_CAPACITY = 4
_Scalar = TypeVar("_Scalar", bound=np.generic)


class _ThreadStemmer(threading.local):
    """PyStemmer's stemmers keep state in a call: each thread has its own."""

    def __init__(self) -> None:
        self.stem = Stemmer("english").stemWords


_stemmer = _ThreadStemmer()


def tokenize(text: str) -> list[str]:
    """Split a text into stems as bm25s does: words of two characters or more, no stop words, Snowball."""
    return stem_words([word for word in _WORD.findall(text.lower()) if word not in _STOP_WORDS])


def stem_words(words: Sequence[str]) -> list[str]:
    """Reduce lower-case words to their stems."""
    return _stemmer.stem(list(words))


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that was found, and its score."""

    doc_id: str
    score: float


class _Posting(NamedTuple):
    """The documents that hold a term: the first ``size`` entries of two growing arrays.

    ``live`` of them have not been removed. Only the index that is the ``owner`` writes behind ``size``; a
    fork copies the arrays before its first write, so nobody's entries ever change.
    """

    positions: NDArray[np.int32]
    counts: NDArray[np.float32]
    size: int
    live: int
    owner: object


class _Document(NamedTuple):
    doc_id: str
    terms: tuple[str, ...]


class BM25Index:
    """Documents by id, found by the words they share with a query.

    The score of document d, of n live ones, for a query q, summed over the words of q (a word that stands
    twice counts twice), with f its count in d, m the number of documents that hold it, and L the number of
    words in d:

        log(1 + (n - m + 0.5) / (m + 0.5)) * f / (f + k1 * (1 - b + b * L / mean L))

    Every document has a position: 0 for the first that was ever added, never used twice. Reading is safe
    from any thread while nobody writes.

    Example:
        >>> index = BM25Index()
        >>> index.add("m1", "Alice adopted a dog.")
        >>> index.add("m2", "Bob paints dogs and cats.")
        >>> [hit.doc_id for hit in index.search("Who adopted dogs?", top_k=2)]
        ['m1', 'm2']
    """

    def __init__(self, k1: float = 1.5, b: float = 0.75) -> None:
        """Make an empty index."""
        self.k1 = k1
        self.b = b
        self._postings: Map[str, _Posting] = Map()
        self._positions: Map[str, int] = Map()
        self._documents: Map[int, _Document] = Map()
        self._lengths: NDArray[np.float64] = np.zeros(_FIRST_CAPACITY)
        self._removed: NDArray[np.bool_] = np.zeros(_FIRST_CAPACITY, dtype=np.bool_)
        self._size = 0
        self._total_length = 0
        self._owner = object()
        self._owns_lengths = True

    def __len__(self) -> int:
        """Count the live documents."""
        return len(self._positions)

    def __contains__(self, doc_id: object) -> bool:
        """Say whether a document of this id is live."""
        return doc_id in self._positions

    @property
    def size(self) -> int:
        """The number of positions: every document that was ever added."""
        return self._size

    def position(self, doc_id: str) -> int:
        """Look up where a live document stands in ``score_documents`` and ``allow``.

        Raises:
            IndexingError: there is no live document of this id.
        """
        position = self._positions.get(doc_id)
        if position is None:
            raise IndexingError(f"{doc_id!r} is not in the index of {len(self)} documents: add it first")
        return position

    def doc_id(self, position: int) -> str:
        """Look up which document was added at a position, live or removed."""
        return self._documents[position].doc_id

    def document_frequency(self, stem: str) -> int:
        """Count the live documents that hold a stem (of ``tokenize``)."""
        posting = self._postings.get(stem)
        return 0 if posting is None else posting.live

    @property
    def live(self) -> NDArray[np.bool_]:
        """Whether the document at each position is live, shape (size,)."""
        return ~self._removed[: self._size]

    def add(self, doc_id: str, text: str) -> None:
        """Index one more document, in time that depends on its own length only.

        Raises:
            IndexingError: a live document has this id; nothing was added.
        """
        self.add_counts(doc_id, Counter(tokenize(text)))

    def add_counts(self, doc_id: str, counts: Mapping[str, int]) -> None:
        """Index one more document, given how often each stem (of ``tokenize``) stands in it.

        Raises:
            IndexingError: a live document has this id; nothing was added.
        """
        if doc_id in self._positions:
            raise IndexingError(f"{doc_id!r} is already in the index: remove it before it is added anew")
        position = self._append_document(_Document(doc_id, tuple(counts)), sum(counts.values()))
        postings = self._postings.mutate()
        for term, count in counts.items():
            postings[term] = self._extended(postings.get(term), position, count)
        self._postings = postings.finish()
        self._positions = self._positions.set(doc_id, position)

    def remove(self, doc_id: str) -> None:
        """Take a document out. A posting is rewritten only when more than half of it is gone.

        Raises:
            IndexingError: there is no live document of this id.
        """
        position = self.position(doc_id)
        self._positions = self._positions.delete(doc_id)
        self._total_length -= int(self._lengths[position])
        self._removed = self._removed.copy()  # forks look at the old one
        self._removed[position] = True
        postings = self._postings.mutate()
        for term in self._documents[position].terms:
            posting = postings[term]
            posting = posting._replace(live=posting.live - 1)
            if posting.live == 0:
                del postings[term]
            else:
                postings[term] = posting if 2 * posting.live >= posting.size else self._compacted(posting)
        self._postings = postings.finish()

    def score_documents(self, query: str) -> NDArray[np.float64]:
        """Score every position, shape (size,); removed documents and those without a word of it have 0."""
        scores = np.zeros(self._size)
        if not len(self):
            return scores
        mean_length = self._total_length / len(self) or 1.0
        floor, slope = self.k1 * (1 - self.b), self.k1 * self.b / mean_length
        for term, repeats in Counter(tokenize(query)).items():
            posting = self._postings.get(term)
            if posting is None:
                continue
            positions, counts = posting.positions[: posting.size], posting.counts[: posting.size]
            idf = math.log(1 + (len(self) - posting.live + 0.5) / (posting.live + 0.5))
            norms = floor + slope * self._lengths[positions]
            scores[positions] += repeats * idf * (counts / (counts + norms))
        if len(self) < self._size:
            scores[self._removed[: self._size]] = 0.0
        return scores

    def search(self, query: str, top_k: int, allow: NDArray[np.bool_] | None = None) -> list[Hit]:
        """Rank the documents that share a word with the query, best first; of equals the earlier one first.

        Args:
            query: Words; their order does not matter.
            top_k: How many to give at most.
            allow: Shape (size,): the positions that may be found; all by default.

        Raises:
            IndexingError: ``top_k`` is below 1.
        """
        scores = self.score_documents(query)
        if allow is not None:
            scores[~allow] = 0.0
        return [Hit(self.doc_id(place), float(scores[place])) for place in best(scores, top_k)]

    def fork(self) -> "BM25Index":
        """Copy the index in O(1); what either does afterwards, the other does not see."""
        copy = BM25Index(self.k1, self.b)
        copy._postings, copy._positions = self._postings, self._positions
        copy._documents, copy._lengths, copy._removed = self._documents, self._lengths, self._removed
        copy._size, copy._total_length = self._size, self._total_length
        copy._owns_lengths = False
        return copy

    def _append_document(self, document: _Document, length: int) -> int:
        position = self._size
        if not self._owns_lengths:  # somebody else writes behind our last position
            self._lengths, self._owns_lengths = self._lengths.copy(), True
        if position == len(self._lengths):
            self._lengths, self._removed = _doubled(self._lengths), _doubled(self._removed)
        self._documents = self._documents.set(position, document)
        self._lengths[position] = length
        self._size += 1
        self._total_length += length
        return position

    def _extended(self, posting: _Posting | None, position: int, count: int) -> _Posting:
        if posting is None:
            positions, counts = np.empty(1, np.int32), np.empty(1, np.float32)
            positions[0], counts[0] = position, count
            return _Posting(positions, counts, 1, 1, self._owner)
        positions, counts, size, live, owner = posting
        if size == len(positions):
            positions, counts = _doubled(positions), _doubled(counts)
        elif owner is not self._owner:
            positions, counts = positions.copy(), counts.copy()
        positions[size], counts[size] = position, count
        return _Posting(positions, counts, size + 1, live + 1, self._owner)

    def _compacted(self, posting: _Posting) -> _Posting:
        positions = posting.positions[: posting.size]
        kept = ~self._removed[positions]
        return _Posting(
            positions[kept], posting.counts[: posting.size][kept], posting.live, posting.live, self._owner
        )


def best(scores: NDArray[np.float64], top_k: int) -> list[int]:
    """List the positions of the highest scores above zero, best first; of equals the earlier one first.

    Raises:
        IndexingError: ``top_k`` is below 1.
    """
    if top_k < 1:
        raise IndexingError(f"top_k={top_k} must be at least 1")
    found = np.flatnonzero(scores > 0)
    if len(found) > top_k:
        values = scores[found]
        found = found[values >= np.partition(values, -top_k)[-top_k]]  # ties at the edge stay in
    return found[np.argsort(-scores[found], kind="stable")][:top_k].tolist()


def _doubled(array: NDArray[_Scalar]) -> NDArray[_Scalar]:
    """Copy an array into one twice as long, whose second half is zero."""
    longer = np.zeros(2 * len(array), dtype=array.dtype)
    longer[: len(array)] = array
    return longer
