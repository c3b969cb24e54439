"""What is read off the network between its layers while it learns, and what that costs where it is wrong."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from memory_program.pocket.asking import BEGINNING

_POINTER_WIDTH = 64


@dataclass(frozen=True, slots=True)
class Streams:
    """The stream after the second layer, after half of the layers, and at the end: (batch, tokens, width)."""

    early: Tensor
    middle: Tensor
    last: Tensor


class SideTasks(nn.Module):
    """Linear maps that read what is asked (see ``asking``) off the stream; of use in training only."""

    def __init__(self, width: int) -> None:
        """Make the maps for a stream of this width."""
        super().__init__()
        self.beginnings = nn.ModuleList(_alike(width) for _ in range(BEGINNING))
        self.content = _alike(width)
        self.query = nn.Linear(width, _POINTER_WIDTH, bias=False)
        self.key = nn.Linear(width, _POINTER_WIDTH, bias=False)

    def losses(
        self,
        model: LlamaForCausalLM,
        streams: Streams,
        segments: Tensor,
        asked: Tensor,
        lines: Tensor,
        pointers: Tensor,
    ) -> Tensor:
        """Give three mean losses: of the beginnings of lines, of what they hold, of where replies are from.

        Args:
            model: whose embeddings say which token a map has read.
            streams: of a batch.
            segments: of shape (batch, tokens): which part of a row each token belongs to, as in ``Layout``.
            asked: places of shape (asked,), in the flattened batch.
            lines: tokens of shape (asked, 4), as in ``Questions``.
            pointers: of shape (pieces, 4): a row of the batch, and what ``Questions`` has of it.
        """
        early, middle = (stream.flatten(0, 1)[asked] for stream in (streams.early, streams.middle))
        read = torch.stack([*(reading(early) for reading in self.beginnings), self.content(middle)], 1)
        named = model.lm_head(model.model.norm(read.float())).float()
        costs = nn.functional.cross_entropy(named.flatten(0, 1), lines.flatten(), reduction="none")
        of_lines = costs.unflatten(0, lines.shape).sum(0) / (lines >= 0).sum(0).clamp(min=1)
        return torch.stack(
            (of_lines[:-1].mean(), of_lines[-1], self._pointing(streams.middle, segments, pointers))
        )

    def _pointing(self, stream: Tensor, segments: Tensor, pointers: Tensor) -> Tensor:
        rows, places, firsts, ends = pointers.T
        normed = nn.functional.rms_norm(stream.float(), stream.shape[-1:])
        keys, queries = self.key(normed), self.query(normed[rows, places])
        scores = torch.einsum("nld,nd->nl", keys[rows], queries).float()
        at = torch.arange(stream.shape[1], device=stream.device)
        is_before = (at < places[:, None]) & is_seen(segments[rows], segments[rows, places, None])
        is_source = (at >= firsts[:, None]) & (at < ends[:, None])
        found = _log_sum(scores, is_source) - _log_sum(scores, is_before)
        return -found.sum() / max(1, len(pointers))


def is_seen(segments: Tensor, own: Tensor) -> Tensor:
    """Say which parts of a row are open to a part of it: what is shared, and itself."""
    return (segments == 0) | (segments == own)


def _alike(width: int) -> nn.Linear:
    """Make a map that begins as the identity: what is to be read looks like an embedding."""
    made = nn.Linear(width, width, bias=False)
    nn.init.eye_(made.weight)
    return made


def _log_sum(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -torch.inf).logsumexp(-1)
