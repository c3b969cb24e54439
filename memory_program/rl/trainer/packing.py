"""Completions laid out behind their prompt, so that a group of eight reads its prompt once, not eight times.

A sequence holds prompts, each followed by the different texts that continue it. Every continuation has the
positions that it would have alone and attends to its prompt and itself, so its logits are those of the text
alone. Equal continuations are laid out once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sample:
    """A completion to learn from, in tokens.

    ``advantage`` says how much it is to become likelier. ``logprobs`` are those with which it was sampled
    (natural logarithms, at the temperature of the sampling); None where the present model is the sampler.
    """

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    advantage: float = 1.0
    logprobs: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class PackedSequence:
    """One sequence of T tokens, and where the N completion tokens of its samples are in it.

    ``predictors_N`` are the places whose logits predict ``targets_N``; ``samples_N`` says of which sample
    each is, as an index into the samples that were packed.
    """

    tokens_T: Tensor
    positions_T: Tensor
    groups_T: Tensor
    branches_T: Tensor
    predictors_N: Tensor
    targets_N: Tensor
    samples_N: Tensor

    def mask(self, dtype: torch.dtype) -> Tensor:
        """Give what is added to the attention's logits: 0 where a token may be seen, else minus infinity."""
        groups, branches, positions = self.groups_T, self.branches_T, self.positions_T
        is_seen = groups[:, None] == groups[None]
        is_seen &= (branches[None] == 0) | (branches[:, None] == branches[None])
        is_seen &= positions[None] <= positions[:, None]
        mask_T_T = torch.zeros(is_seen.shape, dtype=dtype, device=is_seen.device)
        return mask_T_T.masked_fill_(~is_seen, -torch.inf)

    def to(self, device: torch.device) -> "PackedSequence":
        """Move everything to a device."""
        return PackedSequence(*(getattr(self, name).to(device) for name in self.__slots__))


def pack_samples(samples: Sequence[Sample], max_tokens: int) -> list[PackedSequence]:
    """Lay samples out in sequences of at most ``max_tokens`` tokens, a longer one where one sample is longer.

    Samples without a token to learn are left out.
    """
    sequences: list[_SequenceBuilder] = []
    for group in _group_by_prompt(samples):
        for part in _split_group(group, max_tokens):
            if not sequences or sequences[-1].length + part.length > max_tokens:
                sequences.append(_SequenceBuilder())
            sequences[-1].add(part)
    return [sequence.build() for sequence in sequences]


@dataclass(frozen=True, slots=True)
class _PromptGroup:
    """A prompt, and its different continuations with the samples that have them."""

    prompt: tuple[int, ...]
    branches: dict[tuple[int, ...], list[int]]

    @property
    def length(self) -> int:
        return len(self.prompt) + sum(map(len, self.branches))


def _group_by_prompt(samples: Sequence[Sample]) -> list[_PromptGroup]:
    groups: dict[tuple[int, ...], _PromptGroup] = {}
    for index, sample in enumerate(samples):
        if sample.completion:
            group = groups.setdefault(sample.prompt, _PromptGroup(sample.prompt, {}))
            group.branches.setdefault(sample.completion, []).append(index)
    return sorted(groups.values(), key=lambda group: -group.length)  # so that short ones fill what is left


def _split_group(group: _PromptGroup, max_tokens: int) -> list[_PromptGroup]:
    """Cut a group that is too long; each part reads the prompt again."""
    parts: list[_PromptGroup] = []
    for completion, indices in group.branches.items():
        if not parts or parts[-1].length + len(completion) > max_tokens:
            parts.append(_PromptGroup(group.prompt, {}))
        parts[-1].branches[completion] = indices
    return parts


class _SequenceBuilder:
    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._positions: list[int] = []
        self._groups: list[int] = []
        self._branches: list[int] = []
        self._predictors: list[int] = []
        self._targets: list[int] = []
        self._samples: list[int] = []
        self._count = 0

    @property
    def length(self) -> int:
        return len(self._tokens)

    def add(self, group: _PromptGroup) -> None:
        prompt = group.prompt
        self._append_tokens(prompt, 0, 0)
        last_of_prompt = self.length - 1
        for branch, (completion, indices) in enumerate(group.branches.items(), start=1):
            first = self.length
            self._append_tokens(completion, len(prompt), branch)
            predictors = [last_of_prompt, *range(first, first + len(completion) - 1)]
            for index in indices:
                self._predictors += predictors
                self._targets += completion
                self._samples += [index] * len(completion)
        self._count += 1

    def _append_tokens(self, tokens: Sequence[int], first_position: int, branch: int) -> None:
        self._tokens += tokens
        self._positions += range(first_position, first_position + len(tokens))
        self._groups += [self._count] * len(tokens)
        self._branches += [branch] * len(tokens)

    def build(self) -> PackedSequence:
        return PackedSequence(
            torch.tensor(self._tokens),
            torch.tensor(self._positions),
            torch.tensor(self._groups),
            torch.tensor(self._branches),
            torch.tensor(self._predictors),
            torch.tensor(self._targets),
            torch.tensor(self._samples),
        )
