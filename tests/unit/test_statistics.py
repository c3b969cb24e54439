"""Intervals and comparisons over conversations: worked-out cases and properties."""

import itertools
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from locomo.benchmark_errors import ScoringError
from locomo.statistics import clustered_interval, cohen_kappa, paired_comparison


def rng(seed=0):
    return np.random.default_rng(seed)


SCORED = st.lists(st.tuples(st.floats(0, 1), st.sampled_from("abcdef")), min_size=2, max_size=40).filter(
    lambda rows: len({cluster for _, cluster in rows}) > 1
)


def interval(rows, **more):
    return clustered_interval([s for s, _ in rows], [c for _, c in rows], rng=rng(), resamples=500, **more)


@settings(max_examples=50)
@given(SCORED)
def test_the_value_is_the_mean_over_questions_and_lies_within_the_scores(rows):
    found = interval(rows)
    scores = [score for score, _ in rows]
    assert found.value == pytest.approx(np.mean(scores))
    assert min(scores) - 1e-9 <= found.low <= found.high <= max(scores) + 1e-9
    assert found.n == len(rows)


def test_weights_make_it_the_mean_of_the_means_of_groups():
    rows = [(1.0, "a"), (0.0, "b"), (1.0, "c"), (1.0, "d"), (0.5, "e")]
    found = interval(rows, weights=[1 / 4] * 4 + [1])
    assert found.value == pytest.approx((0.75 + 0.5) / 2)
    assert found.low < found.value < found.high
    assert found.n == 5


@settings(max_examples=50)
@given(SCORED, st.floats(0.1, 10))
def test_equal_weights_change_nothing(rows, weight):
    weighted, plain = interval(rows, weights=[weight] * len(rows)), interval(rows)
    for one, other in zip(astuple(weighted), astuple(plain), strict=True):
        assert one == pytest.approx(other)


@settings(max_examples=50)
@given(SCORED, st.randoms())
def test_the_order_of_questions_does_not_matter(rows, random):
    one, other = interval(rows), interval(random.sample(rows, len(rows)))
    assert (one.low, one.high) == pytest.approx((other.low, other.high))


@settings(max_examples=50)
@given(SCORED)
def test_a_higher_level_gives_a_wider_interval(rows):
    wide, narrow = interval(rows, level=0.99), interval(rows, level=0.5)
    assert wide.low <= narrow.low <= narrow.high <= wide.high


def test_the_same_seed_gives_the_same_interval():
    rows = [(0.1, "a"), (0.9, "b"), (0.4, "c")]
    assert interval(rows) == interval(rows)


def test_the_interval_is_the_one_of_all_resamples_of_clusters():
    """Three clusters have 27 equally likely resamples: their quantiles are the truth to approach."""
    clusters = {"a": [0.0, 0.0], "b": [1.0], "c": [0.5, 0.5, 0.5]}
    rows = [(score, name) for name, scores in clusters.items() for score in scores]
    means = [
        np.mean([score for name in names for score in clusters[name]])
        for names in itertools.product(clusters, repeat=3)
    ]
    found = clustered_interval(
        [s for s, _ in rows], [c for _, c in rows], rng=rng(), resamples=200_000, level=0.8
    )
    expected = np.quantile(np.repeat(means, 10_000), [0.1, 0.9])
    assert (found.low, found.high) == pytest.approx(tuple(expected))


def test_questions_that_repeat_within_a_conversation_do_not_narrow_the_interval():
    few = [(0.0, "a"), (1.0, "b"), (0.0, "c"), (1.0, "d")]
    assert interval(few * 100).low == pytest.approx(interval(few).low)
    assert interval(few * 100).high == pytest.approx(interval(few).high)


def test_equal_clusters_leave_no_doubt():
    found = interval([(0.0, "a"), (1.0, "a"), (0.0, "b"), (1.0, "b")])
    assert (found.low, found.value, found.high) == (0.5, 0.5, 0.5)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    source = rng(7)
    hits = 0
    for _ in range(300):
        means = source.normal(0.5, 0.1, size=30)
        scores = (means[:, None] + source.normal(0, 0.2, size=(30, 20))).ravel()
        found = clustered_interval(
            scores, np.repeat(np.arange(30), 20).astype(str), rng=source, resamples=500
        )
        hits += found.low <= 0.5 <= found.high
    assert 0.88 <= hits / 300 <= 0.98  # percentile intervals of 30 clusters are a little too narrow


def test_one_cluster_says_nothing_about_others():
    found = clustered_interval([0.0, 1.0], ["a", "a"], rng=rng())
    assert (found.value, found.low, found.high, found.n) == (0.5, None, None, 2)


@pytest.mark.parametrize(
    ("scores", "clusters", "message"),
    [
        ([], [], "0 scores"),
        ([0.5], [], "1 scores in 0 clusters"),
        ([0.5, float("nan")], ["a", "b"], "not a finite number"),
        ([0.5, float("inf")], ["a", "b"], "not a finite number"),
    ],
)
def test_scores_that_have_no_mean_are_refused(scores, clusters, message):
    with pytest.raises(ScoringError, match=message):
        clustered_interval(scores, clusters, rng=rng())


@pytest.mark.parametrize("more", [{"level": 0}, {"level": 1}, {"level": 95}, {"resamples": 0}])
def test_a_level_or_a_number_of_resamples_out_of_range_is_refused(more):
    with pytest.raises(ScoringError, match="must lie between 0 and 1"):
        clustered_interval([0.5], ["a"], rng=rng(), **more)


TEN = [f"conv-{i}" for i in range(10)]


def test_a_system_that_wins_every_conversation_has_the_smallest_p():
    found = paired_comparison([0.6] * 10, [0.5] * 10, TEN, rng=rng())
    assert found.difference == pytest.approx(0.1)
    assert found.p_value == 2 / 2**10
    assert found.n == 10


def test_three_conversations_cannot_reach_five_percent():
    assert paired_comparison([1, 1, 1], [0, 0, 0], TEN[:3], rng=rng()).p_value == 0.25


def test_the_p_value_is_the_share_of_sign_patterns():
    """Differences 1, 2, 4: of the sums +-1 +-2 +-4, those of size >= |1 + 2 - 4| = 1 are all eight;
    of size >= 5 (-1 + 2 + 4) are four: 5, 7 and their negatives."""
    assert paired_comparison([1, 2, -4], [0, 0, 0], TEN[:3], rng=rng()).p_value == 1.0
    assert paired_comparison([-1, 2, 4], [0, 0, 0], TEN[:3], rng=rng()).p_value == 0.5


def test_equal_systems_have_p_one_and_no_difference():
    scores = [0.1, 0.7, 0.3]
    found = paired_comparison(scores, scores, TEN[:3], rng=rng())
    assert (found.difference, found.low, found.high, found.p_value) == (0, 0, 0, 1)


def test_one_conversation_proves_nothing():
    found = paired_comparison([1.0] * 50, [0.0] * 50, ["a"] * 50, rng=rng())
    assert (found.difference, found.low, found.high, found.p_value) == (1.0, None, None, 1.0)


@settings(max_examples=50)
@given(SCORED)
def test_swapping_the_systems_turns_the_sign_only(rows):
    a, clusters = [s for s, _ in rows], [c for _, c in rows]
    b = [score**2 for score in a]
    one = paired_comparison(a, b, clusters, rng=rng(), resamples=300)
    other = paired_comparison(b, a, clusters, rng=rng(), resamples=300)
    assert one.difference == pytest.approx(-other.difference)
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low))
    assert one.p_value == other.p_value


def test_a_shared_difficulty_cancels_in_a_paired_comparison():
    hard = [0.1, 0.9, 0.2, 0.8, 0.4, 0.6, 0.3, 0.7, 0.5, 0.55]
    found = paired_comparison([h + 0.05 for h in hard], hard, TEN, rng=rng())
    assert (found.low, found.high) == pytest.approx((0.05, 0.05))


def test_many_clusters_are_drawn_and_the_observed_pattern_counts():
    names = [f"talk-{i}" for i in range(40)]
    clear = paired_comparison([1.0] * 40, [0.0] * 40, names, rng=rng(), resamples=999)
    assert clear.p_value == 1 / 1000
    mixed = paired_comparison([0.0, 1.0] * 20, [1.0, 0.0] * 20, names, rng=rng(), resamples=999)
    assert mixed.p_value == 1.0


def test_drawn_patterns_agree_with_all_patterns():
    """Twelve clusters take all 4,096 patterns; with a thirteenth, which changes nothing, they are drawn."""
    differences = [0.3, -0.1, 0.4, 0.2, -0.3, 0.1, 0.25, -0.05, 0.15, 0.1, -0.2, 0.3]
    names = [f"talk-{i}" for i in range(13)]
    exact = paired_comparison(differences, [0.0] * 12, names[:12], rng=rng())
    drawn = paired_comparison([*differences, 0.0], [0.0] * 13, names, rng=rng(), resamples=100_000)
    assert drawn.p_value == pytest.approx(exact.p_value, abs=0.01)


def test_two_systems_must_be_scored_on_the_same_questions():
    with pytest.raises(ScoringError, match="2 scores of A against 1 of B"):
        paired_comparison([0, 1], [0], ["a", "b"], rng=rng())
    with pytest.raises(ScoringError, match="0 scores"):
        paired_comparison([], [], [], rng=rng())


def ratings(*counts):
    """Labels of two raters from counts of (yes, yes), (yes, no), (no, yes), (no, no)."""
    pairs = [("yes", "yes"), ("yes", "no"), ("no", "yes"), ("no", "no")]
    rated = [pair for pair, count in zip(pairs, counts, strict=True) for _ in range(count)]
    return [a for a, _ in rated], [b for _, b in rated]


@pytest.mark.parametrize(
    ("counts", "kappa"),
    [
        ((20, 5, 10, 15), 0.4),  # observed 0.7, chance 0.5 * 0.6 + 0.5 * 0.4 = 0.5
        ((45, 15, 25, 15), 6 / 46),  # observed 0.6, chance 0.6 * 0.7 + 0.4 * 0.3 = 0.54
        ((10, 0, 0, 10), 1.0),
        ((0, 10, 10, 0), -1.0),
        ((25, 25, 25, 25), 0.0),
        ((10, 0, 0, 0), 1.0),  # one label only
    ],
)
def test_kappa(counts, kappa):
    assert cohen_kappa(*ratings(*counts)) == pytest.approx(kappa)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=1))
def test_kappa_is_symmetric_and_at_most_one(pairs):
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    assert cohen_kappa(a, b) == pytest.approx(cohen_kappa(b, a))
    assert cohen_kappa(a, b) <= 1


def test_kappa_needs_two_ratings_of_each_item():
    with pytest.raises(ScoringError, match="0 and 0 ratings"):
        cohen_kappa([], [])
    with pytest.raises(ScoringError, match="2 and 1 ratings"):
        cohen_kappa(["a", "b"], ["a"])
