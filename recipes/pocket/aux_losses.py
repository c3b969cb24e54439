"""What is read off the network between its layers while it learns, and what that costs where it is wrong."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from recipes.pocket.aux_targets import IGNORE_INDEX, LINE_PREFIX_TOKENS

_POINTER_WIDTH = 64
_ROWS = 64


@dataclass(frozen=True, slots=True)
class ResidualStreams:
    """The stream after two layers, after half and three quarters of them, and at the end.

    Each has the shape (batch, tokens, width).
    """

    early: Tensor
    middle: Tensor
    late: Tensor
    last: Tensor


class AuxHeads(nn.Module):
    """Linear maps that read what is asked (see ``asking``) off the stream; of use in training only."""

    def __init__(self, width: int) -> None:
        """Make the maps for a stream of this width."""
        super().__init__()
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
        """Give seven mean losses, in the order of ``AUX_LOSS_NAMES``.

        Args:
            model: whose embeddings say which token a map has read.
            streams: of a batch.
            lines: as in ``Questions``, and so are the others; places are those in the flattened batch.
            pointers: of shape (pieces, 3).
            words: of shape (words, 3).
            matches: of shape (memories and turns, 2).
            answers: of shape (memories that answers are from, and turns that change something, 4).
        """
        early, middle = (stream.flatten(0, 1) for stream in (streams.early, streams.middle))
        asked = pad_rows(lines[:, 0], 0)
        of_lines = _token_losses(
            model, [*(read(early[asked]) for read in self.beginnings), self.content(middle[asked])], lines
        )
        late = streams.late.flatten(0, 1)[pad_rows(answers[:, 0], 0)]
        of_answers = _token_losses(model, [read(late) for read in self.answers], answers)
        echo = _binary_losses(self.echo, early[words[:, 0]], words[:, 1]).sum() / max(1, len(words))
        # A word counts as much as there are words to a memory, so that a memory weighs as much as its match.
        taken = _binary_losses(self.taken, middle[words[:, 0]], words[:, 2]).sum() / max(1, len(matches))
        match = _binary_losses(self.match, middle[matches[:, 0]], matches[:, 1]).sum() / max(1, len(matches))
        pointing = self._pointer_loss(streams.middle, pointers)
        return torch.stack(
            (of_lines[:-1].mean(), of_lines[-1], pointing, echo, taken, match, of_answers.mean())
        )

    def _pointer_loss(self, stream: Tensor, pointers: Tensor) -> Tensor:
        width = stream.shape[1]
        rows = pointers[:, 0] // width
        places, firsts, ends = (pointers - rows[:, None] * width).T
        normed = _rms_norm(stream)
        keys, queries = self.key(normed), self.query(normed)
        scores = torch.einsum("nld,nd->nl", keys[rows], queries[rows, places]).float()
        at = torch.arange(width, device=stream.device)
        is_source = (at >= firsts[:, None]) & (at < ends[:, None])
        found = _masked_logsumexp(scores, is_source) - _masked_logsumexp(scores, at < places[:, None])
        return -found.sum() / max(1, len(pointers))


AUX_LOSS_NAMES = ("beginnings", "content", "pointers", "echoes", "taken", "matches", "answers")
"""The tasks, as they are called in the log."""


def pad_rows(rows: Tensor, value: int) -> Tensor:
    """Add rows of a value until their number is a multiple of 64.

    On processors, a product of matrices in half precision takes four times as long where its shape was not
    met before (oneDNN makes a program for each), and nearly every batch asks for another number of rows.
    """
    added = -len(rows) % _ROWS
    return torch.cat((rows, rows.new_full((added, *rows.shape[1:]), value)))


def _identity_linear(width: int) -> nn.Linear:
    """Make a map that begins as the identity: what is to be read looks like an embedding."""
    made = nn.Linear(width, width, bias=False)
    nn.init.eye_(made.weight)
    return made


def _rms_norm(stream: Tensor) -> Tensor:
    return nn.functional.rms_norm(stream.float(), stream.shape[-1:])


def _token_losses(model: LlamaForCausalLM, read: list[Tensor], asked: Tensor) -> Tensor:
    """Give the mean cost of each of some maps, asked for the tokens in the columns after the first."""
    named = model.lm_head(model.model.norm(torch.stack(read, 1).float())).float()
    targets = pad_rows(asked[:, 1:], IGNORE_INDEX)
    costs = nn.functional.cross_entropy(named.flatten(0, 1), targets.flatten(), reduction="none")
    return costs.unflatten(0, targets.shape).sum(0) / (targets >= 0).sum(0).clamp(min=1)


def _binary_losses(read: nn.Linear, stream: Tensor, is_so: Tensor) -> Tensor:
    # Not as a product of matrices: ``pad_rows`` says what a new number of rows costs.
    said = (_rms_norm(stream) * read.weight).sum(-1) + read.bias
    return nn.functional.binary_cross_entropy_with_logits(said, is_so.float(), reduction="none")


def _masked_logsumexp(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -torch.inf).logsumexp(-1)
