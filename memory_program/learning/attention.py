"""Attention over texts that grow: a prompt is read in pieces, then each text gets one token at a time.

Transformers' networks call it in the place of their own attention, and keep nothing themselves. Texts that
begin alike share a stem, whose keys and values lie in memory once: one matrix product scores it for all of
them (Juravsky et al. 2024, "Hydragen", arXiv 2402.05099, section 3.2).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "growing_texts"
"""The name of this attention, as transformers' ``attn_implementation``."""

_FIRST_CAPACITY = 256


class Pass(Protocol):
    """One run of the network over new tokens."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Keep what a layer computed of new tokens; give what they attend to, texts by tokens by heads."""
        ...


def _attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    growing: Pass | None = None,
    scaling: float,
    **options: Any,  # noqa: ANN401  # what transformers tells its attention
) -> tuple[Tensor, None]:
    """Attend as the pass says; without one, while training for example, as transformers does."""
    if growing is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    layer: Any = module  # Any: an attention module of any architecture
    return growing.attend(layer.layer_idx, query, key, value, scaling), None


AttentionInterface.register(ATTENTION, _attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


class ReadingPass:
    """The next tokens of one text; ``values_LKHTD`` holds what was computed before them, and has room."""

    def __init__(self, values_LKHTD: Tensor, first: int, end: int) -> None:
        """Read the tokens from ``first`` up to ``end``."""
        self._values_LKHTD = values_LKHTD
        self._first, self._end = first, end
        self._mask: Tensor | None = None
        if first and end - first > 1:
            positions = torch.arange(end, device=values_LKHTD.device)
            is_later = positions > positions[first:, None]
            self._mask = _masked(is_later, values_LKHTD.dtype)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """See ``Pass``."""
        kept_KHTD = self._values_LKHTD[layer]
        for kept_HTD, new_NHTD in zip(kept_KHTD, (key, value), strict=True):
            kept_HTD[:, self._first : self._end] = new_NHTD[0]
        keys, values = kept_KHTD[:, None, :, : self._end]
        attended = F.scaled_dot_product_attention(
            query,
            keys,
            values,
            attn_mask=self._mask,
            is_causal=not self._first,
            scale=scaling,
            enable_gqa=query.shape[1] != keys.shape[1],
        )
        return attended.transpose(1, 2)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Stem:
    """Keys and values that texts begin with."""

    values_LKHTD: Tensor

    @property
    def tokens(self) -> int:
        """How many tokens it has."""
        return self.values_LKHTD.shape[3]


class LeafCache:
    """Keys and values of what each text has beyond its stem, in slots, each from the left.

    ``values_LKNHTD`` holds layers, keys or values, slots (texts), heads, tokens, and the width of a head.
    """

    def __init__(self, kv_shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> None:
        """Make room for one short leaf; it grows with what is kept."""
        layers, heads, width = kv_shape
        # zeros, not empty: masked tokens have weight 0, and 0 times what was in the memory may not be 0
        self._first = partial(
            torch.zeros, (layers, 2, 1, heads, _FIRST_CAPACITY, width), dtype=dtype, device=device
        )
        self.values_LKNHTD = self._first()

    def clear(self) -> None:
        """Forget everything, numbers that are none included."""
        if self.values_LKNHTD.device.type == "cpu":  # there, memory that is new costs more than to clear it
            self.values_LKNHTD.zero_()
        else:  # and here, whatever changes the weights meanwhile needs it
            self.values_LKNHTD = self._first()

    def reserve(self, tokens: int, texts: int) -> None:
        """Make room for so many leaves of ``tokens`` tokens; what is there is kept."""
        old = self.values_LKNHTD
        _, _, slots, _, capacity, _ = old.shape
        if tokens > capacity or texts > slots:
            shape = list(old.shape)
            shape[2] = slots if texts <= slots else max(texts, 2 * slots)
            shape[4] = capacity if tokens <= capacity else max(tokens, 2 * capacity)
            self.values_LKNHTD = old.new_zeros(shape)
            self.values_LKNHTD[:, :, :slots, :, :capacity] = old


class GrowingPass:
    """The next token of each text."""

    def __init__(self, leaves: LeafCache, lengths: Sequence[int], stems: Sequence[Stem | None]) -> None:
        """Append a token to the leaves, which have these lengths, each behind its stem if it has one."""
        texts, end, device = len(lengths), max(lengths) + 1, leaves.values_LKNHTD.device
        self._kept_LKNHTD = leaves.values_LKNHTD[:, :, :texts, :, :end]
        self._texts = torch.arange(texts, device=device)
        self._positions = torch.tensor(lengths, device=device)
        is_later = torch.arange(end, device=device) > self._positions[:, None]
        self._mask_N_1_1_T = _masked(is_later, torch.float32)[:, None, None]
        rows: dict[Stem, list[int]] = {}
        for row, stem in enumerate(stems):
            if stem is not None:
                rows.setdefault(stem, []).append(row)
        self._rows = {stem: torch.tensor(of_stem, device=device) for stem, of_stem in rows.items()}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """See ``Pass``."""
        kept_KNHTD = self._kept_LKNHTD[layer]
        kept_KNHTD[:, self._texts, :, self._positions] = torch.stack((key[:, :, 0], value[:, :, 0]), dim=1)
        keys, values = kept_KNHTD
        texts, heads, _, width = keys.shape
        query_N_H_R_D = query.reshape(texts, heads, -1, width) * scaling  # R query heads share keys
        attended, scores = _weighed(query_N_H_R_D, keys, values, self._mask_N_1_1_T)
        for stem, rows in self._rows.items():
            stem_keys, stem_values = stem.values_LKHTD[layer]
            of_stem = query_N_H_R_D[rows].transpose(0, 1)  # the texts become rows of one matrix for each head
            shape = of_stem.shape
            of_stem, stem_scores = _weighed(of_stem.flatten(1, 2), stem_keys, stem_values)
            of_stem = of_stem.view(shape).transpose(0, 1)
            stem_scores = stem_scores.view(*shape[:3], 1).transpose(0, 1)
            # what both parts weigh in one softmax: e^a / (e^a + e^b) is the sigmoid of a - b
            share = torch.sigmoid(stem_scores - scores[rows])
            attended[rows] = torch.lerp(attended[rows], of_stem, share)
        return attended.to(query.dtype).view(texts, 1, -1, width)


def _weighed(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Give the mean of the values by attention, and the logarithm of what they weigh, in float32."""
    scores = queries.float() @ keys.float().mT
    if mask is not None:
        scores += mask
    shares = scores.softmax(dim=-1)
    # by way of the largest share: exp() of torch is ten times as slow where it underflows, softmax() is not
    weight = scores.amax(dim=-1, keepdim=True) - shares.amax(dim=-1, keepdim=True).log()
    return shares @ values.float(), weight


def _masked(is_hidden: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(is_hidden.shape, dtype=dtype, device=is_hidden.device).masked_fill_(
        is_hidden, -torch.inf
    )
