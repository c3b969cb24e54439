"""The best of many documents, without scoring every one of them."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from memory_program.bank.postings import PostingList
from memory_program.core.errors import IndexingError

_SLACK = 1e-9  # bounds are added up in another order than scores


class WeightedTerm(NamedTuple):
    """A term of a query, the documents that hold it, and the most that it can add to a score.

    ``weight`` is its idf, times how often it stands in the query.
    """

    weight: float
    posting: PostingList
    bound: float


def maxscore_candidates(
    terms: Sequence[WeightedTerm],
    top_k: int,
    gains: Callable[[WeightedTerm], tuple[NDArray[np.int32], NDArray[np.float64]]],
    read_limit: int,
) -> NDArray[np.int32] | None:
    """List, in rising order, positions among which the best must be.

    MaxScore (Turtle and Flood 1995, "Query evaluation: strategies and optimizations", Information Processing
    and Management 31): terms are read from the one that can add most to the one that can add least, until no
    document without any of those read can reach the k-th best score any more; of the documents seen, those
    that cannot reach it are dropped.

    Args:
        terms: of the query.
        top_k: how many of the best are wanted.
        gains: the positions that may be found by a term, in rising order, and what it adds to the score of
            each.
        read_limit: how many entries to read at most.

    Returns:
        None if more entries would have to be read; to score every document is then as fast.
    """
    places, scores = np.zeros(0, np.int32), np.zeros(0)
    ranked = sorted(terms, key=lambda term: -term.bound)
    read = 0
    for number, term in enumerate(ranked):
        rest = sum(later.bound for later in ranked[number:]) * (1 + _SLACK)
        reached = _kth_best_score(scores, top_k)
        if rest < reached:
            return places[scores + rest >= reached]
        read += term.posting.size
        if read > read_limit:
            return None
        positions, added = gains(term)
        places, scores = _add_scores(places, scores, positions, added)
    return places[scores >= _kth_best_score(scores, top_k)]


def _add_scores(
    places: NDArray[np.int32],
    scores: NDArray[np.float64],
    positions: NDArray[np.int32],
    added: NDArray[np.float64],
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Add scores of positions to those that there are; both lists of positions rise."""
    if not len(places):
        return positions, added
    union = np.concatenate([places, positions])
    order = np.argsort(union, kind="stable")  # two rising runs are merged, not sorted
    union = union[order]
    is_first = np.concatenate([[True], union[1:] != union[:-1]])
    sums = np.add.reduceat(np.concatenate([scores, added])[order], np.flatnonzero(is_first))
    return union[is_first], sums


def top_positions(scores: NDArray[np.float64], top_k: int) -> list[int]:
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


def _kth_best_score(scores: NDArray[np.float64], top_k: int) -> float:
    """Give a little less than the k-th best score; minus infinity while there are fewer."""
    if not 1 <= top_k <= len(scores):
        return -math.inf
    return float(np.partition(scores, -top_k)[-top_k]) * (1 - _SLACK)
