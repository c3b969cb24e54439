"""What a step of reinforcement makes smaller: the clipped objective, on tokens with given advantages."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from memory_program.configs.trainer_groups import LossType, ReinforceSettings


@dataclass(frozen=True, slots=True)
class Objective:
    """The clipped objective with its penalties.

    ``grpo`` takes the mean over samples of the mean over a sample's tokens (DeepSeekMath, arXiv 2402.03300,
    equation 3), ``dapo`` the mean over all tokens (arXiv 2503.14476, equation 8), ``dr_grpo`` the sum over
    tokens by samples times ``max_completion_tokens``, so that long samples weigh no less a token
    (arXiv 2503.20783, section 3.2).
    """

    loss_type: LossType = "dapo"
    clip_low: float = 0.2
    clip_high: float = 0.2
    beta: float = 0.0
    """Weight of the divergence from the reference model."""
    entropy: float = 0.0
    """Weight of the bonus for entropy."""
    max_completion_tokens: int = 512

    @classmethod
    def from_settings(cls, settings: ReinforceSettings) -> "Objective":
        """Take what settings say of it."""
        return cls(
            loss_type=settings.loss_type,
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            beta=settings.beta,
            entropy=settings.entropy_weight,
            max_completion_tokens=settings.max_completion_tokens,
        )

    def token_weights(self, lengths: Sequence[int]) -> list[float]:
        """Give what a token of each sample of a step counts, however the step is cut into batches."""
        samples, tokens = len(lengths), sum(lengths)
        if self.loss_type == "grpo":
            return [1 / (samples * max(length, 1)) for length in lengths]
        if self.loss_type == "dr_grpo":
            return [1 / (samples * self.max_completion_tokens)] * samples
        return [1 / max(tokens, 1)] * samples

    def loss(self, of: "TokenTerms") -> Tensor:
        """Give the part of the loss that some tokens of a step make up; the parts add up to the whole."""
        ratio = torch.exp(of.logprobs - of.old_logprobs)
        clipped = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        terms = -torch.minimum(ratio * of.advantages, clipped * of.advantages)
        if of.reference_logprobs is not None:
            terms = terms + self.beta * kl_k3(of.logprobs, of.reference_logprobs)
        loss = (terms * of.weights).sum()
        return loss - self.entropy * of.entropies.sum() / of.step_tokens if self.entropy else loss

    def is_clipped(self, of: "TokenTerms") -> Tensor:
        """Tell of each token whether its gradient is cut off."""
        ratio = torch.exp(of.logprobs - of.old_logprobs)
        too_high = (ratio > 1 + self.clip_high) & (of.advantages > 0)
        return too_high | ((ratio < 1 - self.clip_low) & (of.advantages < 0))


@dataclass(frozen=True, slots=True)
class TokenTerms:
    """What the objective needs of some tokens, one number each; ``step_tokens`` counts those of the step."""

    logprobs: Tensor
    old_logprobs: Tensor
    reference_logprobs: Tensor | None
    entropies: Tensor
    advantages: Tensor
    weights: Tensor
    step_tokens: int


def kl_k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Estimate the divergence from a reference at sampled tokens: exp(r - p) - (r - p) - 1.

    Source: Schulman 2020, "Approximating KL Divergence" (k3), as in DeepSeekMath, equation 4.
    """
    difference = reference - logprobs
    return torch.exp(difference) - difference - 1


def token_entropies(logits: Tensor) -> Tensor:
    """Give the entropy of each row of logits, in nats."""
    logprobs = logits.log_softmax(dim=-1)
    return -(logprobs.exp() * logprobs).sum(dim=-1)


def target_logprobs(logits: Tensor, targets: Tensor) -> Tensor:
    """Give the natural logarithm of each target's probability."""
    return logits.gather(-1, targets[:, None])[:, 0] - logits.logsumexp(dim=-1)
