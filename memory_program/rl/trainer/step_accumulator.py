"""What a step gathers while it goes through its passes: batches, sums over their tokens, and the report."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from memory_program.rl.trainer.packing import PackedSequence, Sample


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a step did. Means are over the tokens of its samples; ``forward_tokens`` went through the network.

    ``sampler_logprob_gap`` is the mean difference between the log-probabilities of sampling and those computed here:
    it grows where rollouts and training do not see the same text or weights. None where they are not known.
    ``kl`` is None where there is no reference (``beta`` is 0).
    """

    loss: float
    kl: float | None
    entropy: float
    clip_fraction: float
    grad_norm: float
    sampler_logprob_gap: float | None
    samples: int
    tokens: int
    forward_tokens: int
    seconds: float


class PackedBatch:
    """A packed sequence, and what is known of its completion tokens, one number each."""

    def __init__(self, packed: PackedSequence, samples: Sequence[Sample]) -> None:
        """Spread what is known of the samples over their tokens."""
        self.packed = packed
        device, of_token = packed.tokens_T.device, packed.samples_N
        self.advantages = torch.tensor([s.advantage for s in samples], device=device)[of_token]
        self.old_logprobs: Tensor | None = None
        self.reference_logprobs: Tensor | None = None
        self.sampled_logprobs = self._sampled(samples)
        self.gap: float | None = None

    def _sampled(self, samples: Sequence[Sample]) -> Tensor | None:
        found: list[float] = []
        for index in dict.fromkeys(self.packed.samples_N.tolist()):  # a sample's tokens stand together
            logprobs = samples[index].logprobs
            if logprobs is None:
                return None
            found += logprobs
        return torch.tensor(found, device=self.packed.tokens_T.device)


@dataclass(slots=True)
class StepAccumulator:
    """Sums over the tokens of a step, but for the norm of its gradient."""

    loss: float = 0.0
    kl: float = 0.0
    entropy: float = 0.0
    clipped_tokens: int = 0
    grad_norm: float = 0.0

    def report(
        self,
        drawn: "StepAccumulator",
        batches: Sequence[PackedBatch],
        samples: int,
        tokens: int,
        seconds: float,
    ) -> StepReport:
        """Divide by the tokens.

        Args:
            drawn: the sums of the first pass. The weights were those that drew the samples, and only of such
                samples is the estimate of the divergence one: of weights that have moved, it has no bound.
            batches: all that went through the passes.
            samples: how many.
            tokens: of their completions.
            seconds: that it took.
        """
        gaps = [batch.gap for batch in batches if batch.gap is not None]
        has_reference = all(batch.reference_logprobs is not None for batch in batches)
        return StepReport(
            loss=self.loss,
            kl=drawn.kl / max(1, tokens) if has_reference else None,
            entropy=drawn.entropy / max(1, tokens),
            clip_fraction=self.clipped_tokens / max(1, tokens),
            grad_norm=self.grad_norm,
            sampler_logprob_gap=fmean(gaps) if gaps else None,
            samples=samples,
            tokens=tokens,
            forward_tokens=sum(len(batch.packed.tokens_T) for batch in batches),
            seconds=seconds,
        )
