"""The clipped policy gradient objective, on tokens with given advantages."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from memory_program.configs.trainer_groups import LossType, ReinforceSettings
from memory_program.core.settings import filled_in

IMPORTANCE_CLIP = 2.0
"""The largest importance weight of a token, as TRL's ``vllm_importance_sampling_cap`` was first."""


@dataclass(frozen=True, slots=True)
class Objective:
    """The clipped objective with its KL penalty and entropy bonus.

    - ``grpo``: mean over samples of the mean over a sample's tokens (DeepSeekMath, arXiv 2402.03300,
      equation 3).
    - ``dapo``: mean over all tokens (arXiv 2503.14476, equation 8).
    - ``dr_grpo``: sum over tokens divided by samples * ``max_completion_tokens``, so that tokens of long
      samples weigh no less (arXiv 2503.20783, section 3.2).
    """

    loss_type: LossType = "dapo"
    clip_low: float = 0.2
    clip_high: float = 0.2
    beta: float = 0.0
    """Weight of the KL divergence from the reference model."""
    entropy_weight: float = 0.0
    """Weight of the entropy bonus."""
    max_completion_tokens: int = 512
    loss_per_agent: bool = False
    """Average the loss of each agent by itself (MemBuilder, arXiv 2601.05488: 1/|a_m| for agent m)."""

    @classmethod
    def from_settings(cls, settings: ReinforceSettings) -> "Objective":
        """Take the objective's part of the settings."""
        return cls(
            loss_type=settings.loss_type,
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            beta=filled_in(settings.beta),
            entropy_weight=settings.entropy_weight,
            max_completion_tokens=settings.max_completion_tokens,
            loss_per_agent=filled_in(settings.loss_per_agent),
        )

    def token_weights(self, lengths: Sequence[int]) -> list[float]:
        """Return the weight of one token of each sample, independent of how the step is cut into batches."""
        samples, tokens = len(lengths), sum(lengths)
        if self.loss_type == "grpo":
            return [1 / (samples * max(length, 1)) for length in lengths]
        if self.loss_type == "dr_grpo":
            return [1 / (samples * self.max_completion_tokens)] * samples
        return [1 / max(tokens, 1)] * samples

    def sample_token_weights(self, lengths: Sequence[int], agents: Sequence[str]) -> list[float]:
        """Return ``token_weights``, with ``loss_per_agent`` those of each agent divided by their number."""
        if not self.loss_per_agent:
            return self.token_weights(lengths)
        places: dict[str, list[int]] = {}
        for place, agent in enumerate(agents):
            places.setdefault(agent, []).append(place)
        weights = [0.0] * len(lengths)
        for own in places.values():
            for place, weight in zip(own, self.token_weights([lengths[n] for n in own]), strict=True):
                weights[place] = weight / len(places)
        return weights

    def loss(self, terms: "TokenTerms") -> Tensor:
        """Return the part of the loss that some tokens of a step contribute; the parts sum to the loss."""
        ratio = torch.exp(terms.logprobs - terms.old_logprobs)
        clipped = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        token_losses = -torch.minimum(ratio * terms.advantages, clipped * terms.advantages)
        if terms.importance_weights is not None:
            token_losses = token_losses * terms.importance_weights
        if self.beta and terms.reference_logprobs is not None:
            token_losses = token_losses + self.beta * kl_k3(terms.logprobs, terms.reference_logprobs)
        loss = (token_losses * terms.weights).sum()
        if not self.entropy_weight:
            return loss
        return loss - self.entropy_weight * terms.entropies.sum() / terms.step_tokens

    def find_clipped(self, terms: "TokenTerms") -> tuple[Tensor, Tensor]:
        """Mark the tokens whose gradient is cut off at the lower, and at the upper end of the clip range."""
        ratio = torch.exp(terms.logprobs - terms.old_logprobs)
        too_low = (ratio < 1 - self.clip_low) & (terms.advantages < 0)
        return too_low, (ratio > 1 + self.clip_high) & (terms.advantages > 0)


@dataclass(frozen=True, slots=True)
class TokenTerms:
    """The inputs of the objective, one number for each token; ``step_tokens`` counts all of the step."""

    logprobs: Tensor
    old_logprobs: Tensor
    reference_logprobs: Tensor | None
    entropies: Tensor
    advantages: Tensor
    weights: Tensor
    step_tokens: int
    importance_weights: Tensor | None = None
    """Of tokens that another process sampled; see ``importance_weights``."""


def importance_weights(old_logprobs: Tensor, sampled_logprobs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the importance weight of each token before it is cut, and cut at ``IMPORTANCE_CLIP``.

    A server samples in another precision and with other kernels, so from a slightly different policy. The
    weight, trainer's over sampler's probability, corrects this; the cut bounds the variance.

    Source: truncated importance sampling (Ionides 2008, J. Comp. Graph. Stat. 17(2)), per token as TRL's
    ``vllm_importance_sampling_correction`` in mode ``token_truncate``.
    """
    ratios = torch.exp(old_logprobs - sampled_logprobs)
    return ratios, ratios.clamp(max=IMPORTANCE_CLIP)


def kl_k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Estimate the KL divergence from a reference at sampled tokens: exp(r - p) - (r - p) - 1.

    Source: Schulman 2020, "Approximating KL Divergence" (k3), as in DeepSeekMath, equation 4.
    """
    difference = reference - logprobs
    return torch.exp(difference) - difference - 1


def token_entropies(logits: Tensor) -> Tensor:
    """Return the entropy of each row of logits, in nats."""
    logprobs = logits.log_softmax(dim=-1)
    return -(logprobs.exp() * logprobs).sum(dim=-1)


def target_logprobs(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the log-probability of each target."""
    return logits.gather(-1, targets[:, None])[:, 0] - logits.logsumexp(dim=-1)
