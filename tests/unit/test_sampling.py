"""Greedy and sampled choices, their frequencies, and the check against rounding."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from memory_program.inference.sampling import SampledTokens, SamplingParams, gumbel_noise, sample_next

GREEDY = SamplingParams(temperature=0.0)
LOGITS = [2.0, 1.0, 0.0, -1.0, -2.0]


def frequencies(sampling: SamplingParams, draws: int, logits: list[float] = LOGITS) -> list[float]:
    """Return the relative frequency of each token."""
    random = torch.Generator().manual_seed(7)
    rows = torch.tensor(logits).repeat(draws, 1)
    noise = [gumbel_noise(len(logits), random) for _ in range(draws)]
    tokens = sample_next(rows, [sampling] * draws, noise, [0.0] * draws).tokens
    return [tokens.count(token) / draws for token in range(len(logits))]


def greedy(logits: list[float], relative_tolerance: float) -> SampledTokens:
    return sample_next(torch.tensor([logits]), [GREEDY], [None], [relative_tolerance])


def test_greedy_takes_the_most_probable_token() -> None:
    assert greedy([0.5, 3.0, -1.0, 2.9], 0.0).tokens == [1]


def test_a_tie_takes_the_first_token() -> None:
    assert greedy([0.5, 3.0, 3.0, 3.0], 0.0).tokens == [1]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_samples_follow_the_softmax_at_the_temperature(temperature: float) -> None:
    expected = torch.tensor(LOGITS).div(temperature).softmax(dim=-1).tolist()
    for frequency, probability in zip(frequencies(SamplingParams(temperature), 5000), expected, strict=True):
        assert frequency == pytest.approx(
            probability, abs=4 * math.sqrt(probability * (1 - probability) / 5000)
        )


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (SamplingParams(1.0, top_k=1), {0}),
        (SamplingParams(1.0, top_k=3), {0, 1, 2}),
        (SamplingParams(1.0, top_k=9), {0, 1, 2, 3, 4}),
        # the softmax of LOGITS is 0.636, 0.234, 0.086, 0.032, 0.012
        (SamplingParams(1.0, top_p=0.0), {0}),
        (SamplingParams(1.0, top_p=0.6), {0}),
        (SamplingParams(1.0, top_p=0.7), {0, 1}),
        (SamplingParams(1.0, top_p=0.9), {0, 1, 2}),
        # of the best three, renormalised, the first two hold 0.91
        (SamplingParams(1.0, top_p=0.9, top_k=3), {0, 1}),
        # at temperature 2 the first two hold only 0.66
        (SamplingParams(2.0, top_p=0.7), {0, 1, 2}),
        (SamplingParams(1.0, top_p=1.0), {0, 1, 2, 3, 4}),
    ],
)
def test_filters_keep_only_the_most_probable_tokens(sampling: SamplingParams, kept: set[int]) -> None:
    assert {token for token, frequency in enumerate(frequencies(sampling, 1500)) if frequency} == kept


def test_the_same_noise_draws_the_same_token_in_a_batch() -> None:
    random = torch.Generator().manual_seed(1)
    rows, noise = torch.randn(8, 50, generator=random), [gumbel_noise(50, random) for _ in range(8)]
    samplings = [
        SamplingParams(1.0),
        SamplingParams(0.7, top_p=0.8),
        SamplingParams(1.5, top_k=5),
        GREEDY,
    ] * 2
    together = sample_next(rows, samplings, noise, [0.0] * 8)
    alone = [sample_next(rows[i : i + 1], [samplings[i]], [noise[i]], [0.0]) for i in range(8)]
    assert together.tokens == [choice.tokens[0] for choice in alone]


def test_logprobs_ignore_temperature_and_filters() -> None:
    logits = torch.tensor([LOGITS])
    choice = sample_next(
        logits, [SamplingParams(0.3, top_k=2)], [torch.tensor([0.0, 9.0, 0.0, 0.0, 0.0])], [0.0]
    )
    assert choice.tokens == [1]
    assert choice.logprobs == pytest.approx([math.log(0.23412166)], abs=1e-5)


def test_a_choice_within_the_tolerance_of_another_is_not_batch_invariant() -> None:
    # the largest logit is 8: a relative tolerance of 1/16 is 0.5
    assert greedy([8.0, 7.4, -3.0], 1 / 16).is_batch_invariant == [True]
    assert greedy([8.0, 7.6, -3.0], 1 / 16).is_batch_invariant == [False]
    assert greedy([2.0, 1.6, -8.0], 1 / 16).is_batch_invariant == [False]
    assert greedy([8.0, 8.0, -3.0], 0.0).is_batch_invariant == [True]


def test_a_choice_at_the_edge_of_a_filter_is_not_batch_invariant() -> None:
    third_wins = torch.tensor([0.0, 0.0, 30.0, 0.0])
    near, far = torch.tensor([[8.0, 4.0, 2.2, 2.0]]), torch.tensor([[8.0, 4.0, 2.2, -2.0]])
    for sampling in (SamplingParams(1.0, top_k=3), SamplingParams(9.0, top_p=0.75)):
        assert sample_next(near, [sampling], [third_wins], [1 / 16]).is_batch_invariant == [False]
        assert sample_next(far, [sampling], [third_wins], [1 / 16]).is_batch_invariant == [True]


@given(
    logits=st.lists(st.floats(-8, 8, width=32), min_size=4, max_size=12),
    temperature=st.sampled_from([0.0, 0.5, 1.0]),
    top_k=st.sampled_from([None, 1, 3]),
    top_p=st.sampled_from([0.5, 0.9, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_a_batch_invariant_choice_survives_rounding_below_half_the_tolerance(
    logits: list[float], temperature: float, top_k: int | None, top_p: float, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    sampling, relative_tolerance = SamplingParams(temperature, top_p, top_k), 1 / 32
    row, noise = torch.tensor([logits]), gumbel_noise(len(logits), random)
    choice = sample_next(row, [sampling], [noise], [relative_tolerance])
    moved = (
        row + (torch.rand(row.shape, generator=random) - 0.5) * 0.99 * relative_tolerance * row.abs().amax()
    )
    if choice.is_batch_invariant[0]:
        assert sample_next(moved, [sampling], [noise], [0.0]).tokens == choice.tokens
