"""A dense index: cosine similarity under any embedding function."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from copy import copy

import numpy as np
from immutables import Map
from numpy.typing import ArrayLike, NDArray

from locomo.types import without_day
from memory_program.bank.postings import SharedArray
from memory_program.core.errors import ConfigError, EmbeddingMismatchError

EmbeddingFunction = Callable[[list[str]], ArrayLike]
"""A function from texts to one vector each, shape (texts, dimension); a ``dspy.Embedder`` is one."""

TokenFunction = Callable[[list[str]], Sequence[NDArray[np.float32]]]
"""A function from texts to the unit vectors of their tokens, shape (tokens, dimension) each."""

DENSE_WEIGHT = 1.0
"""The weight of the best cosine beside the best BM25 score."""


def text_digest(text: str) -> str:
    """Return the SHA-256 of a text: the key of its vector, here and in a store."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


class DenseIndex:
    """Unit vectors by position: 0 for the first text that was ever added.

    A text is embedded once: vectors are cached by the digest of their text, and a store fills and saves that
    cache (``remember``, ``unsaved``, ``mark_saved``).

    ``weight`` is that of the best cosine in a hybrid score, where the best BM25 score counts 1; None ranks by
    cosine alone. ``embed_tokens`` is for a second ranking of turns (see ``Archive``).

    Embedding raises an EmbeddingMismatchError if the function returns vectors of another shape, or numbers
    that are not finite.
    """

    def __init__(
        self,
        embed: EmbeddingFunction,
        model: str,
        dimension: int,
        batch_size: int = 128,
        *,
        embed_query: EmbeddingFunction | None = None,
        weight: float | None = DENSE_WEIGHT,
        embed_tokens: TokenFunction | None = None,
    ) -> None:
        """Make an empty index over an embedding function.

        Args:
            embed: Called with at most ``batch_size`` texts at a time.
            model: The name of the embedding model, which a store records with its vectors.
            dimension: The length of the vectors.
            batch_size: The maximum number of texts in one call.
            embed_query: Embeds queries, for models that embed them in another way; by default ``embed``.
            weight: See above.
            embed_tokens: See above.

        Raises:
            ConfigError: the model has no name, or a number is below 1.
        """
        if not model or dimension < 1 or batch_size < 1:
            raise ConfigError(
                f"model={model!r}, dimension={dimension}, batch_size={batch_size}: "
                "name the model, and give numbers of at least 1"
            )
        self.model = model
        self.dimension = dimension
        self.weight = weight
        self.embed_tokens = embed_tokens
        self._embed, self._embed_query = embed, embed_query or embed
        self._batch_size = batch_size
        self._known: Map[str, NDArray[np.float32]] = Map()
        self._unsaved: Map[str, NDArray[np.float32]] = Map()
        self._rows = SharedArray(np.zeros((0, dimension), dtype=np.float32))

    def __len__(self) -> int:
        """Count the positions."""
        return len(self._rows.values)

    def embed(self, texts: Sequence[str]) -> None:
        """Compute and cache the vectors of texts that are not cached yet."""
        missing = list(dict.fromkeys(text for text in texts if text_digest(text) not in self._known))
        for start in range(0, len(missing), self._batch_size):
            batch = missing[start : start + self._batch_size]
            rows = self._unit_vectors(self._embed, batch)
            fresh = {text_digest(text): row for text, row in zip(batch, rows, strict=True)}
            self._known, self._unsaved = self._known.update(fresh), self._unsaved.update(fresh)

    def add(self, texts: Sequence[str]) -> None:
        """Give each text the next position, and embed those that are not cached; an error adds nothing."""
        self.embed(texts)
        self._rows = self._rows.extended([self._known[text_digest(text)] for text in texts])

    def embed_queries(self, queries: Sequence[str]) -> NDArray[np.float32]:
        """Embed queries, shape (queries, dimension), without caching them.

        The day on which a question is asked is left out: it would draw the vector towards talk of dates.
        """
        queries = [without_day(query) for query in queries]
        batches = [queries[at : at + self._batch_size] for at in range(0, len(queries), self._batch_size)]
        return np.concatenate([self._unit_vectors(self._embed_query, list(batch)) for batch in batches])

    @property
    def vectors(self) -> NDArray[np.float32]:
        """The vectors by position, shape (size, dimension); not to be written to."""
        return self._rows.values

    def score_documents(self, query_vector: NDArray[np.float32]) -> NDArray[np.float64]:
        """Compute the cosine of every position with a unit vector, shape (size,)."""
        return (self._rows.values @ query_vector).astype(np.float64)

    def fork(self) -> "DenseIndex":
        """Copy the index in O(1); neither copy sees later changes of the other."""
        return copy(self)  # all parts are immutable, and replaced by a change

    def empty_copy(self, *, keeps_vectors: bool = False) -> "DenseIndex":
        """Make an empty index over the same function, with the cached vectors if asked for."""
        copied = copy(self)
        if not keeps_vectors:
            copied._known = copied._unsaved = Map()
        copied._rows = SharedArray(np.zeros((0, self.dimension), dtype=np.float32))
        return copied

    def weighted(self, weight: float) -> "DenseIndex":
        """Make an empty index over the same function with another weight."""
        copied = self.empty_copy()
        copied.weight = weight
        return copied

    def unsaved(self) -> Mapping[str, NDArray[np.float32]]:
        """Return the vectors, by digest of the text, that were computed and not marked as saved."""
        return self._unsaved

    def mark_saved(self, digests: Sequence[str]) -> None:
        """Record that a store has the vectors of these digests."""
        unsaved = self._unsaved.mutate()
        for name in digests:
            unsaved.pop(name, None)
        self._unsaved = unsaved.finish()

    def remember(self, vectors: Mapping[str, NDArray[np.float32]]) -> None:
        """Cache vectors that a store has, by digest of the text."""
        self._known = self._known.update(vectors)

    def _unit_vectors(self, embed: EmbeddingFunction, texts: list[str]) -> NDArray[np.float32]:
        vectors = np.asarray(embed(texts), dtype=np.float32)
        if vectors.shape != (len(texts), self.dimension):
            raise EmbeddingMismatchError(
                f"{self.model!r} gave vectors of shape {vectors.shape} for {len(texts)} texts, expected "
                f"{(len(texts), self.dimension)}: set the dimension to that of the model"
            )
        if not np.isfinite(vectors).all():
            raise EmbeddingMismatchError(f"{self.model!r} gave numbers that are not finite: try again")
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return (vectors / np.where(lengths == 0, 1, lengths)).astype(np.float32)


def hybrid_scores(
    lexical: NDArray[np.float64], cosines: NDArray[np.float64], weight: float | None
) -> NDArray[np.float64]:
    """Fuse scores by words with cosines: ``lexical + weight * max(cosine, 0) / best cosine``.

    A convex combination, as of Bruch, Gai and Ingber 2023, "An Analysis of Fusion Functions for Hybrid
    Retrieval", TOIS 42; lexical scores are at most 1 or little more. On LoCoMo it finds more than
    reciprocal rank fusion, whose ranks forget by how much the first was better.

    Args:
        lexical: Shape (documents,) or (queries, documents); 0 for those without a word of the query.
        cosines: The same shape; the best cosine is that of all queries.
        weight: None returns the cosines alone.
    """
    above = np.maximum(cosines, 0.0)
    similarity = above / (above.max(initial=0.0) or 1.0)
    return similarity if weight is None else lexical + weight * similarity
