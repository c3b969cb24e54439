"""Greedy decoding and sampling, with a check that rounding could not have changed the chosen token.

The same sequence in another batch goes through matrix products of other shapes, and its logits differ in the
last bits. Each choice therefore reports if it stays the same when logits move by that little.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Temperature and filters of sampling.

    Temperature 0 takes the most probable token. Otherwise the ``top_k`` most probable tokens are kept, and of
    these the smallest set of the most probable ones with a total probability of at least ``top_p``.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None

    @property
    def is_greedy(self) -> bool:
        """True if no randomness is involved."""
        return self.temperature == 0


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """The next token of each row of a batch.

    ``logprobs`` are the model's own: natural logarithms, before a grammar, temperature and filters.
    ``is_batch_invariant`` is False where rounding could have changed the token.
    """

    tokens: list[int]
    logprobs: list[float]
    is_batch_invariant: list[bool]


def gumbel_noise(vocabulary: int, random: torch.Generator) -> Tensor:
    """Draw Gumbel noise for each token: the argmax of logits plus noise is a sample of their softmax.

    Source: Gumbel 1954, National Bureau of Standards Applied Mathematics Series 33 (the "Gumbel-max trick").
    """
    uniform = torch.rand(vocabulary, generator=random, device=random.device)
    return uniform.log_().neg_().log_().neg_()


def sample_next(
    logits_B_V: Tensor,
    params: Sequence[SamplingParams],
    noise: Sequence[Tensor | None],
    relative_tolerances: Sequence[float],
    forbidden: Sequence[Tensor | None] = (),
) -> SampledTokens:
    """Choose the next token of each row.

    The token is the first one with the largest ``logit + temperature * noise``. Unlike a walk along the
    cumulative probabilities, this is as stable for a sample as for the most probable token. The tolerance of
    a row is its relative tolerance times its largest absolute logit. When all logits move by less than half
    of it, another token can win only where two came within the tolerance. For a sample the probability of
    that is below ``tolerance / temperature``.

    Args:
        logits_B_V: the model's output, rows by vocabulary, in float32.
        params: temperature and filters of each row.
        noise: ``gumbel_noise`` for each row that is not greedy.
        relative_tolerances: of each row; 0 calls every choice batch invariant.
        forbidden: the tokens that a row may not choose, as booleans; None for a row without a grammar, and
            empty if no row has one. They are left out before the filters, and count in ``logprobs``.
    """
    if any(is_forbidden_V is not None for is_forbidden_V in forbidden):
        none_V = torch.zeros(logits_B_V.shape[-1], dtype=torch.bool)
        rows = [none_V if is_forbidden_V is None else is_forbidden_V for is_forbidden_V in forbidden]
        is_forbidden_B_V = torch.stack(rows).to(logits_B_V.device)  # one copy to the GPU
        scores = torch.where(is_forbidden_B_V, -torch.inf, logits_B_V)
    else:
        scores = logits_B_V.clone()
    largest = torch.maximum(logits_B_V.amax(dim=-1), -logits_B_V.amin(dim=-1))  # faster than abs()
    tolerances = largest * torch.tensor(relative_tolerances, device=scores.device)
    floors = torch.full(scores.shape[:1], -torch.inf, device=scores.device)
    for row, (sampling, gumbel) in enumerate(zip(params, noise, strict=True)):
        if sampling.is_greedy or gumbel is None:
            continue
        if sampling.top_k is not None or sampling.top_p < 1:
            tolerance = float(tolerances[row])
            ordered = scores[row].sort(descending=True).values
            kept = ordered[: sampling.top_k]
            most = fewest = len(kept)  # of the tokens that the filters keep
            if sampling.top_p < 1:
                probabilities = (kept / sampling.temperature).softmax(dim=-1)
                before = probabilities.cumsum(dim=-1) - probabilities
                # the most that rounding moves a cumulative probability
                slack = tolerance / (4 * sampling.temperature)
                most = max(1, int((before < sampling.top_p + slack).sum()))
                fewest = max(1, int((before < sampling.top_p - slack).sum()))
            scores[row].masked_fill_(scores[row] < float(ordered[most - 1]) - tolerance, -torch.inf)
            if fewest < len(ordered):
                floors[row] = float(ordered[fewest]) + tolerance  # above the highest that they may drop
        scores[row] += sampling.temperature * gumbel
    tokens = scores.argmax(dim=-1)
    best = scores.gather(-1, tokens[:, None])[:, 0]
    second_best = scores.scatter_(-1, tokens[:, None], -torch.inf).amax(dim=-1)  # faster than topk(2)
    chosen = logits_B_V.gather(-1, tokens[:, None])[:, 0]
    is_invariant = (best - second_best >= tolerances) & (chosen >= floors)
    logprobs = chosen - logits_B_V.logsumexp(dim=-1)
    return SampledTokens(tokens.tolist(), logprobs.tolist(), is_invariant.tolist())
