"""Pack the completions of a group behind their shared prompt, so that the network reads the prompt once.

A sequence holds prompts, each followed by its distinct completions. A completion keeps the positions it would
have alone and attends only to its prompt and itself, so its logits are those of the text alone. Equal
completions are packed once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sample:
    """A prompt and a completion in tokens, with the completion's advantage.

    ``logprobs`` are those of the sampler (natural logarithms, at the sampling temperature); None if unknown.
    ``agent`` wrote the completion.
    """

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    advantage: float = 1.0
    logprobs: tuple[float, ...] | None = None
    agent: str = ""


@dataclass(frozen=True, slots=True)
class PackedSequence:
    """One sequence of T tokens, and the places of the N completion tokens of its samples.

    ``predictors_N`` are the places whose logits predict ``targets_N``. ``samples_N`` holds the index of each
    target's sample among those that were packed.
    """

    tokens_T: Tensor
    positions_T: Tensor
    groups_T: Tensor
    branches_T: Tensor
    predictors_N: Tensor
    targets_N: Tensor
    samples_N: Tensor

    def mask(self, dtype: torch.dtype) -> Tensor:
        """Return the additive attention mask: 0 where a token is visible, else minus infinity."""
        groups, branches, positions = self.groups_T, self.branches_T, self.positions_T
        is_visible = groups[:, None] == groups[None]
        is_visible &= (branches[None] == 0) | (branches[:, None] == branches[None])
        is_visible &= positions[None] <= positions[:, None]
        mask_T_T = torch.zeros(is_visible.shape, dtype=dtype, device=is_visible.device)
        return mask_T_T.masked_fill_(~is_visible, -torch.inf)

    def to(self, device: torch.device) -> "PackedSequence":
        """Copy the sequence to a device."""
        return PackedSequence(*(getattr(self, name).to(device) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class _PromptGroup:
    """A prompt, and its distinct completions with the indices of their samples."""

    prompt: tuple[int, ...]
    completions: dict[tuple[int, ...], list[int]]

    @property
    def length(self) -> int:
        return len(self.prompt) + sum(map(len, self.completions))


def pack_samples(samples: Sequence[Sample], max_tokens: int) -> list[PackedSequence]:
    """Pack samples into sequences of at most ``max_tokens`` tokens; one sample may exceed that.

    Samples without a completion token are left out.
    """
    groups: dict[tuple[int, ...], _PromptGroup] = {}
    for index, sample in enumerate(samples):
        if sample.completion:
            group = groups.setdefault(sample.prompt, _PromptGroup(sample.prompt, {}))
            group.completions.setdefault(sample.completion, []).append(index)
    sequences: list[list[_PromptGroup]] = []
    for group in sorted(groups.values(), key=lambda group: -group.length):  # short ones fill the gaps
        parts: list[_PromptGroup] = []  # a group that is too long is cut; each part repeats the prompt
        for completion, indices in group.completions.items():
            if not parts or parts[-1].length + len(completion) > max_tokens:
                parts.append(_PromptGroup(group.prompt, {}))
            parts[-1].completions[completion] = indices
        for part in parts:
            if not sequences or sum(g.length for g in sequences[-1]) + part.length > max_tokens:
                sequences.append([])
            sequences[-1].append(part)
    packed: list[PackedSequence] = []
    for sequence in sequences:
        tokens: list[int] = []
        positions: list[int] = []
        group_ids: list[int] = []
        branches: list[int] = []
        predictors: list[int] = []
        targets: list[int] = []
        sample_ids: list[int] = []
        for group_id, group in enumerate(sequence):
            last_of_prompt = len(tokens) + len(group.prompt) - 1
            for branch, text in enumerate([group.prompt, *group.completions]):
                first, position = len(tokens), len(group.prompt) if branch else 0
                tokens += text
                positions += range(position, position + len(text))
                group_ids += [group_id] * len(text)
                branches += [branch] * len(text)
                for index in group.completions[text] if branch else ():
                    predictors += [last_of_prompt, *range(first, first + len(text) - 1)]
                    targets += text
                    sample_ids += [index] * len(text)
        columns = (tokens, positions, group_ids, branches, predictors, targets, sample_ids)
        packed.append(PackedSequence(*map(torch.tensor, columns)))
    return packed
