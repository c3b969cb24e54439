"""Confidence intervals and paired tests. All of them resample whole conversations, never single questions.

Questions about one conversation share its difficulty, so they are not independent; an interval that takes
them as such is too narrow. LoCoMo has ten conversations: ten clusters.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from locomo.benchmark_errors import ScoringError

_MAX_EXACT_CLUSTERS = 12
"""Clusters up to which every sign pattern is tried (4,096 of them); above, patterns are drawn."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over ``n`` questions and its interval; None where one cluster is all there is."""

    value: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """The mean of A minus B over the same ``n`` questions; the interval is None with a single cluster."""

    difference: float
    low: float | None
    high: float | None
    p_value: float
    n: int


def clustered_interval(
    scores: Sequence[float],
    clusters: Sequence[str],
    *,
    rng: np.random.Generator,
    weights: Sequence[float] | None = None,
    resamples: int = 10_000,
    level: float = 0.95,
) -> Interval:
    """Compute the mean of the scores and its percentile interval by bootstrap over clusters.

    A resample draws as many clusters as there are, with replacement, and takes the mean over all questions
    in them. With one cluster every resample is the same, which says nothing: the interval is None.
    Source: Cameron, Gelbach and Miller 2008, Review of Economics and Statistics 90 (pairs cluster
    bootstrap); Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapter 13 (percentile interval).

    Args:
        scores: One per question.
        clusters: Its conversation, in the same order.
        rng: The source of randomness.
        weights: How much each score counts, the same in every resample; alike unless given. One over the
            number of scores in its group, for example, makes the mean that of the groups' means.
        resamples: How many are drawn.
        level: The share of resamples inside the interval.

    Raises:
        ScoringError: no scores, scores that are not finite, or arguments that do not fit together.
    """
    if not 0 < level < 1 or resamples < 1:
        raise ScoringError(
            f"level={level!r} must lie between 0 and 1, and resamples={resamples!r} be at least 1"
        )
    totals = _sum_by_cluster(scores, clusters, weights)
    count, n = len(totals.sums_C), len(scores)
    value = float(totals.sums_C.sum() / totals.sizes_C.sum())
    if count == 1:
        return Interval(value, None, None, n)
    drawn_R_C = rng.multinomial(count, np.full(count, 1 / count), size=resamples)
    means_R = (drawn_R_C @ totals.sums_C) / (drawn_R_C @ totals.sizes_C)
    low, high = np.quantile(means_R, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high), n)


def paired_comparison(
    scores_a: Sequence[float],
    scores_b: Sequence[float],
    clusters: Sequence[str],
    *,
    rng: np.random.Generator,
    resamples: int = 10_000,
) -> PairedComparison:
    """Compare two systems on the same questions: mean difference A - B, its interval, and a p-value.

    The interval is ``clustered_interval`` of the differences. The p-value is two-sided, from a randomisation
    test: if the systems are equal, the difference of a whole cluster might as well have the other sign, so p
    is the share of sign patterns whose mean difference is at least as large. All patterns are tried up to
    12 clusters; above, ``resamples`` patterns are drawn and the observed one counts among them. With C
    clusters p cannot fall below 2 / 2**C: ten conversations reach 0.002, three only 0.25.
    Source: Noreen 1989, Computer-Intensive Methods for Testing Hypotheses, chapter 2; Phipson and Smyth 2010
    for counting the observed pattern.

    Raises:
        ScoringError: as in ``clustered_interval``, or the two systems have another number of scores.
    """
    if len(scores_a) != len(scores_b):
        raise ScoringError(
            f"{len(scores_a)} scores of A against {len(scores_b)} of B; score both on the same questions"
        )
    differences = np.subtract(scores_a, scores_b).tolist()
    interval = clustered_interval(differences, clusters, rng=rng, resamples=resamples)
    sums_C = _sum_by_cluster(differences, clusters).sums_C
    count, observed = len(sums_C), abs(sums_C.sum())
    slack = 1e-9 * np.abs(sums_C).sum()  # sums in another order differ in their last digits
    if count <= _MAX_EXACT_CLUSTERS:
        signs_R_C = 1 - 2 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
        p_value = float(np.mean(np.abs(signs_R_C @ sums_C) >= observed - slack))
    else:
        signs_R_C = rng.choice((-1, 1), size=(resamples, count))
        as_large = np.count_nonzero(np.abs(signs_R_C @ sums_C) >= observed - slack)
        p_value = float((as_large + 1) / (resamples + 1))
    return PairedComparison(interval.value, interval.low, interval.high, p_value, interval.n)


def cohen_kappa(a: Sequence[Hashable], b: Sequence[Hashable]) -> float:
    """Compute the agreement of two raters beyond chance.

    (observed agreement - chance agreement) / (1 - chance agreement), where chance agreement is the sum over
    labels of the product of the two raters' shares. 1 where both give every item the same single label,
    for which the ratio is not defined.
    Source: Cohen 1960, Educational and Psychological Measurement 20, equation 1.

    Raises:
        ScoringError: no items, or another number of ratings in ``b`` than in ``a``.
    """
    if len(a) != len(b) or not a:
        raise ScoringError(f"{len(a)} and {len(b)} ratings; give two raters' labels of the same items")
    n = len(a)
    counts_a, counts_b = Counter(a), Counter(b)
    observed = sum(x == y for x, y in zip(a, b, strict=True)) / n
    chance = sum(counts_a[label] * counts_b[label] for label in counts_a) / n**2
    return 1.0 if chance == 1 else (observed - chance) / (1 - chance)


@dataclass(frozen=True, slots=True)
class _ClusterTotals:
    """Sums of the weighted scores and of the weights of each cluster: all that a resampled mean needs."""

    sums_C: NDArray[np.float64]
    sizes_C: NDArray[np.float64]


def _sum_by_cluster(
    scores: Sequence[float], clusters: Sequence[str], weights: Sequence[float] | None = None
) -> _ClusterTotals:
    weights_Q = np.ones(len(scores)) if weights is None else np.asarray(weights, dtype=np.float64)
    if len(scores) == 0 or not len(scores) == len(clusters) == len(weights_Q):
        raise ScoringError(
            f"{len(scores)} scores in {len(clusters)} clusters with {len(weights_Q)} weights; give one "
            "cluster, and one weight if any, for each score"
        )
    scores_Q = np.asarray(scores, dtype=np.float64)
    if not np.isfinite(scores_Q).all():
        raise ScoringError("a score is not a finite number; leave failed questions out, and count them")
    _, cluster_Q = np.unique(clusters, return_inverse=True)
    return _ClusterTotals(
        sums_C=np.bincount(cluster_Q, weights=scores_Q * weights_Q).astype(np.float64),
        sizes_C=np.bincount(cluster_Q, weights=weights_Q).astype(np.float64),
    )
