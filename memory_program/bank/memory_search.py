"""Memory search by words (BM25) and, with an embedding function, by meaning as well."""

import threading
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from memory_program.bank.bank import MemoryBank
from memory_program.bank.columns import MemoryColumns
from memory_program.bank.dates.date_span import format_day, format_month
from memory_program.bank.dense import DenseIndex, hybrid_scores
from memory_program.bank.lexical import BM25Index, Hit, top_positions
from memory_program.bank.memory import MEMORY_KINDS, Memory, MemoryKind, memory_number
from memory_program.bank.postings import PostingColumns, SharedArray
from memory_program.bank.stems import stem_counts
from memory_program.core.errors import ConfigError, IndexingError

_INDEX_BATCH_SIZE = 10_000  # documents indexed at once, so that their words take little memory

_DocId = TypeVar("_DocId")


@dataclass(frozen=True, slots=True)
class ScoredMemory:
    """A retrieved memory and its score."""

    memory: Memory
    score: float


class HasScore(Protocol):
    """Any search result."""

    @property
    def score(self) -> float:
        """At least 0; higher is better."""
        ...


_Scored = TypeVar("_Scored", bound=HasScore)


def filter_by_relative_score(found: Sequence[_Scored], floor: float) -> list[_Scored]:
    """Drop what scores below ``floor`` times the best score; the order stays."""
    least = floor * max((scored.score for scored in found), default=0.0)
    return [scored for scored in found if scored.score >= least]


def reciprocal_rank_fusion(rankings: Sequence[Sequence[_DocId]], k: int = 60) -> list[Hit[_DocId]]:
    """Fuse rankings: an id scores the sum of 1 / (k + rank) over the rankings that contain it.

    Cormack, Clarke and Buettcher 2009, SIGIR, with their k of 60; ranks begin at 1. A tie keeps first-seen
    order.
    """
    scores: dict[_DocId, float] = {}
    for ranking in rankings:
        for rank, doc_id in enumerate(ranking, start=1):
            scores[doc_id] = scores.get(doc_id, 0.0) + 1.0 / (k + rank)
    return sorted((Hit(name, score) for name, score in scores.items()), key=lambda hit: -hit.score)


def searchable_text(memory: Memory) -> str:
    """Return the text of which a memory's vector is made: its own, and its date in words."""
    return f"{memory.text} {format_day(memory.happened_at)}" if memory.happened_at else memory.text


def _words(memory: Memory) -> str:
    """Return the text of which a memory's words are indexed: "room 7" is not about the 7th of a month."""
    day = memory.happened_at
    return f"{memory.text} {format_month(day)}" if day and day.day < 10 else searchable_text(memory)


class MemoryIndex:
    """The live memories of one bank, ready to be searched.

    Each search first applies the operations that the bank has and the index has not, so it never returns a
    superseded memory. An index belongs to one branch: fork it together with its bank. Any thread may use it.

    Every method that takes a bank raises an IndexingError if the bank's log does not begin with the
    operations that were indexed, and an EmbeddingMismatchError if the embedder broke its contract.
    """

    def __init__(self, dense: DenseIndex | None = None) -> None:
        """Make an empty index: BM25, fused with an (empty) dense index if one is given."""
        self.dense = dense
        self._lexical = BM25Index()
        # By position: the number of the memory, rising, and the place of its kind in MEMORY_KINDS.
        self._numbers, self._kinds = SharedArray(np.zeros(0, np.int32)), SharedArray(np.zeros(0, np.uint8))
        self._seen = MemoryBank("")
        self._lock = threading.Lock()

    @classmethod
    def from_snapshot(
        cls, bank: MemoryBank, memories: MemoryColumns, postings: PostingColumns
    ) -> "MemoryIndex":
        """Restore the index of a bank at the version of a snapshot."""
        index = cls()
        numbers = memories.live_numbers
        index._lexical = BM25Index(columns=postings)
        index._numbers = SharedArray(numbers)
        index._kinds = SharedArray(memories.rows_M["kinds"][numbers - 1])
        index._seen = bank.fork()
        return index

    def __len__(self) -> int:
        """Count the indexed memories."""
        return len(self._lexical)

    @property
    def version(self) -> int:
        """The version of the bank up to which its operations were applied."""
        return self._seen.version

    def search(
        self, bank: MemoryBank, query: str, top_k: int = 10, kind: MemoryKind | None = None
    ) -> list[ScoredMemory]:
        """Rank the live memories of a bank, best first; of equals the earlier one first.

        Lexical scores are BM25. With a dense index, they are divided by the best one and fused with cosines
        (``hybrid_scores``), and memories without a common word can be found.

        Raises:
            ConfigError: the kind is the core block, which has no memories.
            IndexingError: ``top_k`` is below 1.
        """
        return self.search_any(bank, [query], top_k, kind)

    def search_any(
        self, bank: MemoryBank, queries: Sequence[str], top_k: int = 10, kind: MemoryKind | None = None
    ) -> list[ScoredMemory]:
        """Rank the live memories of a bank by their best score for any of several queries.

        With a dense index, the best scores that others are divided by are the best of all queries, so a turn
        of small talk does not put its memories as high as a turn that is about one. Without a query the
        result is empty.
        """
        vectors = self.dense.embed_queries(queries) if self.dense is not None and queries else None
        scores: dict[int, float] = {}
        with self._lock:
            self._catch_up(bank)
            allowed = None
            if kind is not None:
                if kind not in MEMORY_KINDS:
                    raise ConfigError(
                        f"kind={kind.value!r} names no memories: choose from {', '.join(MEMORY_KINDS)}"
                    )
                allowed = self._kinds.values == MEMORY_KINDS.index(kind)
            if vectors is not None and self.dense is not None:
                if top_k < 1:
                    raise IndexingError(f"top_k={top_k} must be at least 1")
                is_allowed = self._lexical.live if allowed is None else self._lexical.live & allowed
                lexical = np.where(
                    is_allowed, [self._lexical.score_documents(query) for query in queries], 0.0
                )
                cosines = np.where(is_allowed, [self.dense.score_documents(one) for one in vectors], 0.0)
                lexical /= lexical.max(initial=0.0) or 1.0
                fused = hybrid_scores(lexical, cosines, self.dense.weight).max(axis=0)
                hits = [Hit(place, float(fused[place])) for place in top_positions(fused, top_k)]
            else:
                hits = [hit for query in queries for hit in self._lexical.search(query, top_k, allowed)]
            for hit in hits:
                scores[hit.doc_id] = max(hit.score, scores.get(hit.doc_id, 0.0))
            # Each of the best of all is among the best for the query that scores it highest.
            places = sorted(scores, key=lambda place: (-scores[place], place))[:top_k]
            numbers = self._numbers.values[places].tolist() if places else []
        return [
            ScoredMemory(bank.get(f"m{number}"), scores[place])
            for number, place in zip(numbers, places, strict=True)
        ]

    def find_with_all_words(self, bank: MemoryBank, text: str) -> list[Memory]:
        """List the live memories with every word of a text, the earliest first: all for one without words."""
        with self._lock:
            self._catch_up(bank)
            places = self._lexical.find_with_all_words(text)
            numbers = self._numbers.values[places].tolist() if places else []
        return [bank.get(f"m{number}") for number in numbers]

    def refresh(self, bank: MemoryBank) -> None:
        """Apply the operations that the bank has and the index has not; an error leaves it unchanged."""
        with self._lock:
            self._catch_up(bank)

    def postings(self, bank: MemoryBank) -> PostingColumns:
        """Copy the index of a bank to arrays, for a snapshot: one document for each live memory."""
        with self._lock:
            self._catch_up(bank)
            return self._lexical.columns()

    def fork(self) -> "MemoryIndex":
        """Copy the index for a fork of its bank; neither copy sees later changes of the other."""
        with self._lock:
            fork = copy(self)
            fork.dense = self.dense.fork() if self.dense is not None else None
            fork._lexical = self._lexical.fork()
        fork._lock = threading.Lock()
        return fork

    def empty_copy(self) -> "MemoryIndex":
        """Make an empty index for another bank, with the same embedding function and its cached vectors."""
        return MemoryIndex(None if self.dense is None else self.dense.empty_copy(keeps_vectors=True))

    def _catch_up(self, bank: MemoryBank) -> None:
        current = bank.fork()  # another thread may write to the bank meanwhile
        since = self._seen.version
        if not current.extends(self._seen):
            raise IndexingError(
                f"this index holds version {since} of another branch of bank {bank.namespace!r}: fork the "
                "index together with its bank, or start a new MemoryIndex()"
            )
        if current.version == since:
            return
        ended = list[str]()
        if since == 0:
            made = current.live()
        else:
            operations = current.operations(since)
            created = [memory for operation in operations for memory in operation.created]
            made = [memory for memory in created if memory.memory_id in current]
            superseded = dict.fromkeys(name for operation in operations for name in operation.superseded)
            ended = [name for name in superseded if name in self._seen]
        if self.dense is not None:
            self.dense.add([searchable_text(memory) for memory in made])  # the only step that can fail
        ended_numbers = np.array([memory_number(name) for name in ended], np.int32)
        positions = np.searchsorted(self._numbers.values, ended_numbers).tolist()
        for name, position in zip(ended, positions, strict=True):
            self._lexical.remove(position, _words(current.get(name)))
        for start in range(0, len(made), _INDEX_BATCH_SIZE):
            batch = made[start : start + _INDEX_BATCH_SIZE]
            self._lexical.add_all([stem_counts(_words(memory)) for memory in batch])
        self._numbers = self._numbers.extended([memory_number(memory.memory_id) for memory in made])
        self._kinds = self._kinds.extended([MEMORY_KINDS.index(memory.kind) for memory in made])
        self._seen = current
