"""Memories found by their words and, where an embedder is given, by their meaning."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memory_program.bank.bank import MemoryBank
from memory_program.bank.dates import spelled_day
from memory_program.bank.dense import DenseIndex
from memory_program.bank.lexical import BM25Index, Hit, best
from memory_program.bank.memory import MEMORY_KINDS, Memory, MemoryKind
from memory_program.errors import ConfigError, IndexingError

_LEXICAL_WEIGHT = 2.0
_DENSE_WEIGHT = 1.0
_FUSION_DEPTH = 100


@dataclass(frozen=True, slots=True)
class ScoredMemory:
    """A memory that was found, and its score."""

    memory: Memory
    score: float


def reciprocal_rank_fusion(
    rankings: Sequence[Sequence[str]], weights: Sequence[float] | None = None, k: int = 60
) -> list[Hit]:
    """Join rankings into one: an id scores the sum of weight / (k + rank) over the rankings that hold it.

    Cormack, Clarke and Buettcher 2009, SIGIR, with their k of 60; ranks begin at 1.
    Deviation: rankings may be weighted (all 1 by default). Of equals the one first seen comes first.

    Raises:
        ConfigError: there is not one weight for each ranking.
    """
    weights = [1.0] * len(rankings) if weights is None else weights
    if len(weights) != len(rankings):
        raise ConfigError(f"{len(weights)} weights for {len(rankings)} rankings: give one for each")
    scores: dict[str, float] = {}
    for ranking, weight in zip(rankings, weights, strict=True):
        for rank, doc_id in enumerate(ranking, start=1):
            scores[doc_id] = scores.get(doc_id, 0.0) + weight / (k + rank)
    return sorted((Hit(*entry) for entry in scores.items()), key=lambda hit: -hit.score)


def document_of(memory: Memory) -> str:
    """Write the text by which a memory is found: its own, and the words of its date."""
    if memory.happened_at is None:
        return memory.text
    return f"{memory.text} {spelled_day(memory.happened_at)}"


class MemoryIndex:
    """An index over the live memories of one bank.

    Each search first takes in the operations that the bank has and the index has not; nothing is indexed
    twice. Any thread may search. An index follows one line of a bank: a fork of the bank needs a fork of it.
    """

    def __init__(self, dense: DenseIndex | None = None) -> None:
        """Make an empty index: BM25, fused with an (empty) dense index where one is given."""
        self.dense = dense
        self._lexical = BM25Index()
        self._kinds = bytearray()  # by position, the place of the kind in MEMORY_KINDS
        self._seen = MemoryBank("")
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Count the memories that the index holds."""
        return len(self._lexical)

    def search(
        self, bank: MemoryBank, query: str, top_k: int = 10, kind: MemoryKind | None = None
    ) -> list[ScoredMemory]:
        """Rank the live memories of a bank, best first; of equals the earlier one first.

        Lexical scores are BM25; with a dense index they are those of ``reciprocal_rank_fusion`` over the
        first 100 of both, lexical weighted double, and memories without a common word can be found.

        Raises:
            IndexingError: the bank's log does not begin with the operations that were indexed, or
                ``top_k`` is below 1.
            EmbeddingMismatchError: the embedder broke its contract.
        """
        query_vector = self.dense.query_vector(query) if self.dense is not None else None
        with self._lock:
            self._catch_up(bank)
            allowed = self._allowed(kind)
            if query_vector is None:
                hits = self._lexical.search(query, top_k, allowed)
            else:
                hits = self._fused(query, query_vector, top_k, allowed)
        return [ScoredMemory(bank.get(hit.doc_id), hit.score) for hit in hits]

    def refresh(self, bank: MemoryBank) -> None:
        """Take in what the bank has and the index has not.

        Raises:
            IndexingError: the bank's log does not begin with the operations that were indexed.
            EmbeddingMismatchError: the embedder broke its contract; the index is unchanged.
        """
        with self._lock:
            self._catch_up(bank)

    def fork(self) -> "MemoryIndex":
        """Copy the index for a fork of its bank; what either takes in, the other does not see."""
        with self._lock:
            copy = MemoryIndex(self.dense.fork() if self.dense is not None else None)
            copy._lexical, copy._kinds, copy._seen = self._lexical.fork(), bytearray(self._kinds), self._seen
        return copy

    def _catch_up(self, bank: MemoryBank) -> None:
        now = bank.fork()  # another thread may write to the bank meanwhile
        if not now.extends(self._seen):
            raise IndexingError(
                f"this index holds version {self._seen.version} of another branch of bank "
                f"{bank.namespace!r}: fork the index together with its bank, or start a new MemoryIndex()"
            )
        operations = now.operations(since=self._seen.version)
        made = [memory for operation in operations for memory in operation.created if memory.memory_id in now]
        ended = [name for operation in operations for name in operation.superseded if name in self._lexical]
        documents = [document_of(memory) for memory in made]
        if self.dense is not None:
            self.dense.add(documents)  # the only step that can fail
        for name in ended:
            self._lexical.remove(name)
        for memory, document in zip(made, documents, strict=True):
            self._lexical.add(memory.memory_id, document)
            self._kinds.append(MEMORY_KINDS.index(memory.kind))
        self._seen = now

    def _allowed(self, kind: MemoryKind | None) -> NDArray[np.bool_] | None:
        if kind is None:
            return None
        if kind not in MEMORY_KINDS:
            raise ConfigError(f"kind={kind.value!r} names no memories: choose from {', '.join(MEMORY_KINDS)}")
        return np.frombuffer(self._kinds, dtype=np.uint8) == MEMORY_KINDS.index(kind)

    def _fused(
        self, query: str, query_vector: NDArray[np.float32], top_k: int, allowed: NDArray[np.bool_] | None
    ) -> list[Hit]:
        assert self.dense is not None
        depth = max(top_k, _FUSION_DEPTH) if top_k >= 1 else top_k
        cosines = self.dense.score_documents(query_vector)
        cosines[~self._lexical.live] = 0.0
        if allowed is not None:
            cosines[~allowed] = 0.0
        by_words = [hit.doc_id for hit in self._lexical.search(query, depth, allowed)]
        by_meaning = [self._lexical.doc_id(position) for position in best(cosines, depth)]
        return reciprocal_rank_fusion([by_words, by_meaning], [_LEXICAL_WEIGHT, _DENSE_WEIGHT])[:top_k]
