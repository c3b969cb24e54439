"""Auxiliary losses: heads that predict ``AuxTargets`` from the residual stream between the layers."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from recipes.pocket.aux_targets import IGNORE_INDEX, LINE_PREFIX_TOKENS

_POINTER_WIDTH = 64
_ROWS = 64


@dataclass(frozen=True, slots=True)
class ResidualStreams:
    """The residual stream after two layers, half of them, three quarters of them, and the final norm.

    Each has the shape (batch, tokens, width).
    """

    early: Tensor
    middle: Tensor
    late: Tensor
    last: Tensor


class AuxHeads(nn.Module):
    """Linear heads on the residual stream, one for each auxiliary target; they are used in training only."""

    def __init__(self, width: int) -> None:
        """Make the heads for a stream of this width."""
        super().__init__()
        # These names are in the checkpoints of trainings that version 0.1.0 began.
        self.beginnings = nn.ModuleList(_identity_linear(width) for _ in range(LINE_PREFIX_TOKENS))
        self.content = _identity_linear(width)
        self.query = nn.Linear(width, _POINTER_WIDTH, bias=False)
        self.key = nn.Linear(width, _POINTER_WIDTH, bias=False)
        self.echo, self.taken, self.match = (nn.Linear(width, 1) for _ in range(3))
        self.answers = nn.ModuleList(_identity_linear(width) for _ in range(LINE_PREFIX_TOKENS))

    def losses(
        self,
        model: LlamaForCausalLM,
        streams: ResidualStreams,
        lines: Tensor,
        pointers: Tensor,
        words: Tensor,
        matches: Tensor,
        answers: Tensor,
    ) -> Tensor:
        """Compute the seven mean losses, in the order of ``AUX_LOSS_NAMES``.

        Args:
            model: the network; its output matrix turns what a token head reads into logits.
            streams: the residual streams of a batch.
            lines: the array of ``AuxTargets``, as all that follow; it indexes the flattened batch.
            pointers: of shape (pieces, 3).
            words: of shape (words, 3).
            matches: of shape (memories and turns, 2).
            answers: of shape (source memories and changing turns, 4).
        """
        early, middle = (stream.flatten(0, 1) for stream in (streams.early, streams.middle))
        asked = pad_rows(lines[:, 0], 0)
        of_lines = _token_losses(
            model, [*(read(early[asked]) for read in self.beginnings), self.content(middle[asked])], lines
        )
        late = streams.late.flatten(0, 1)[pad_rows(answers[:, 0], 0)]
        of_answers = _token_losses(model, [read(late) for read in self.answers], answers)
        echo = _binary_losses(self.echo, early[words[:, 0]], words[:, 1]).sum() / max(1, len(words))
        # Divided by the lines, not by the words: the words of a line count as much as its match.
        taken = _binary_losses(self.taken, middle[words[:, 0]], words[:, 2]).sum() / max(1, len(matches))
        match = _binary_losses(self.match, middle[matches[:, 0]], matches[:, 1]).sum() / max(1, len(matches))
        # Pointers: attention from each token to the ones before it, and the probability of the source line.
        length = streams.middle.shape[1]
        rows = pointers[:, 0] // length
        indices, firsts, ends = (pointers - rows[:, None] * length).T
        normed = _rms_norm(streams.middle)
        keys, queries = self.key(normed), self.query(normed)
        scores = torch.einsum("nld,nd->nl", keys[rows], queries[rows, indices]).float()
        at = torch.arange(length, device=scores.device)
        is_source, is_before = (at >= firsts[:, None]) & (at < ends[:, None]), at < indices[:, None]
        of_source, of_all = (
            scores.masked_fill(~mask, -torch.inf).logsumexp(-1) for mask in (is_source, is_before)
        )
        pointing = -(of_source - of_all).sum() / max(1, len(pointers))
        return torch.stack(
            (of_lines[:-1].mean(), of_lines[-1], pointing, echo, taken, match, of_answers.mean())
        )


AUX_LOSS_NAMES = (
    "line_start",
    "line_content",
    "pointer",
    "known_words",
    "used_words",
    "match",
    "answer_start",
)
"""The names of the losses in the log."""


def pad_rows(rows: Tensor, value: int) -> Tensor:
    """Pad to a multiple of 64 rows.

    On a CPU, the first bfloat16 matrix product of a shape takes four times as long as later ones (oneDNN
    compiles a kernel for each shape), and nearly every batch has another number of rows.
    """
    added = -len(rows) % _ROWS
    return torch.cat((rows, rows.new_full((added, *rows.shape[1:]), value)))


def _identity_linear(width: int) -> nn.Linear:
    """Make a linear map that begins as the identity: the stream holds tokens in the form of embeddings."""
    made = nn.Linear(width, width, bias=False)
    nn.init.eye_(made.weight)
    return made


def _rms_norm(stream: Tensor) -> Tensor:
    return nn.functional.rms_norm(stream.float(), stream.shape[-1:])


def _token_losses(model: LlamaForCausalLM, read: list[Tensor], targets: Tensor) -> Tensor:
    """Compute the mean loss of each token head; its targets are a column after the first of ``targets``."""
    logits = model.lm_head(model.model.norm(torch.stack(read, 1).float())).float()
    expected = pad_rows(targets[:, 1:], IGNORE_INDEX)
    losses = nn.functional.cross_entropy(logits.flatten(0, 1), expected.flatten(), reduction="none")
    return losses.unflatten(0, expected.shape).sum(0) / (expected >= 0).sum(0).clamp(min=1)


def _binary_losses(head: nn.Linear, stream: Tensor, is_true: Tensor) -> Tensor:
    # A sum and no matrix product, which would be slow for a new number of rows (see ``pad_rows``).
    logits = (_rms_norm(stream) * head.weight).sum(-1) + head.bias
    return nn.functional.binary_cross_entropy_with_logits(logits, is_true.float(), reduction="none")
