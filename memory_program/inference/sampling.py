"""Which token comes next: greedy or sampled, and whether rounding could have changed it.

The same text in another batch goes through matrix products of other shapes, and its logits differ in the
last bits. So a choice says whether it is certain: whether it stays the same when logits move that little.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn.

    At temperature 0 the likeliest; else one of the ``top_k`` likeliest, and of these one of the likeliest
    that together hold ``top_p`` of the probability.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether chance has no part in it."""
        return self.temperature == 0

    @property
    def is_unfiltered(self) -> bool:
        """Whether every token of the vocabulary may be drawn."""
        return self.is_greedy or (self.top_k is None and self.top_p >= 1)


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """The next token of each row of a batch.

    ``logprobs`` are the model's own: natural logarithms, before temperature, ``top_k`` and ``top_p``.
    """

    tokens: list[int]
    logprobs: list[float]
    is_batch_invariant: list[bool]


def gumbel_noise(vocabulary: int, random: torch.Generator) -> Tensor:
    """Draw what makes the largest of the noisy logits a sample of their softmax, one number for each token.

    Source: Gumbel 1954, National Bureau of Standards Applied Mathematics Series 33 (the "Gumbel-max trick").
    """
    uniform = torch.rand(vocabulary, generator=random, device=random.device)
    return uniform.log_().neg_().log_().neg_()


def sample_next(
    logits_B_V: Tensor,
    samplings: Sequence[SamplingParams],
    noise: Sequence[Tensor | None],
    rounding: Sequence[float],
) -> SampledTokens:
    """Choose the next token of each row.

    The token is the first one with the largest ``logit + temperature * noise``. Unlike a walk along the
    cumulated probabilities, this is as stable for a sample as for the likeliest token. The tolerance of a
    row is its rounding times its largest absolute logit: when all logits move by less than half of it,
    another token can win only where two came within the tolerance, and for a sample the probability of
    that is below ``tolerance / temperature``.

    Args:
        logits_B_V: the model's output, rows by vocabulary, in float32.
        samplings: how each row draws.
        noise: ``gumbel_noise`` for each row that is not greedy.
        rounding: of each row; 0 calls every choice certain.
    """
    scores = logits_B_V.clone()
    tolerances = logits_B_V.abs().amax(dim=-1) * torch.tensor(rounding, device=scores.device)
    floors = torch.full(scores.shape[:1], -torch.inf, device=scores.device)
    for row, (sampling, gumbel) in enumerate(zip(samplings, noise, strict=True)):
        if sampling.is_greedy or gumbel is None:
            continue
        scores[row] += sampling.temperature * gumbel
        if not sampling.is_unfiltered:
            tolerance = float(tolerances[row])
            lowest_kept, highest_left_out = _filter_bounds(logits_B_V[row], sampling, tolerance)
            scores[row].masked_fill_(logits_B_V[row] < lowest_kept - tolerance, -torch.inf)
            floors[row] = highest_left_out + tolerance
    tokens = scores.argmax(dim=-1)
    best_two = scores.topk(2, dim=-1).values
    chosen = logits_B_V.gather(-1, tokens[:, None])[:, 0]
    is_certain = (best_two[:, 0] - best_two[:, 1] >= tolerances) & (chosen >= floors)
    logprobs = chosen - logits_B_V.logsumexp(dim=-1)
    return SampledTokens(tokens.tolist(), logprobs.tolist(), is_certain.tolist())


def _filter_bounds(logits: Tensor, sampling: SamplingParams, tolerance: float) -> tuple[float, float]:
    """Find the lowest logit that the filters may keep, and the highest that they may leave out."""
    ordered = logits.sort(descending=True).values
    kept = ordered[: sampling.top_k]
    widest = narrowest = len(kept)
    if sampling.top_p < 1:
        probabilities = (kept / sampling.temperature).softmax(dim=-1)
        before = probabilities.cumsum(dim=-1) - probabilities
        slack = tolerance / (4 * sampling.temperature)  # the most that it moves a cumulated probability
        widest = max(1, int((before < sampling.top_p + slack).sum()))
        narrowest = max(1, int((before < sampling.top_p - slack).sum()))
    left_out = float(ordered[narrowest]) if narrowest < len(ordered) else -torch.inf
    return float(ordered[widest - 1]), left_out
