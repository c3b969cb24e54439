"""Attention over texts that grow: a prompt is read in pieces, then each text gets one token at a time.

Transformers' networks call it in the place of their own attention, and keep nothing themselves. Texts that
begin alike share a stem, whose keys and values lie in memory once: one matrix product scores it for all of
them (Juravsky et al. 2024, "Hydragen", arXiv 2402.05099, section 3.2).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "growing_texts"
"""The name of this attention, as transformers' ``attn_implementation``."""

_FIRST_CAPACITY, _CAPACITY_STEP = 256, 64


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

    ``values_LKNHTD`` holds layers, keys or values, slots (texts), heads, tokens, and the width of a head. It
    has few tokens more than the longest leaf, so that a step reads one stream: a processor takes half as much
    time again to read the same numbers with gaps between the heads.
    """

    def __init__(self, kv_shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> None:
        """Make room for one short leaf; it grows with what is kept."""
        self._kv_shape = kv_shape
        self._memory = self._spare = torch.zeros(0, dtype=dtype, device=device)
        self.values_LKNHTD = self._room(1, _CAPACITY_STEP)

    def clear(self) -> None:
        """Forget everything, numbers that are none included."""
        if self._memory.device.type == "cpu":  # there, memory that is new costs more than to clear it
            self._memory.zero_()
            self._spare.zero_()
        else:  # and here, whatever changes the weights meanwhile needs it
            self._memory = self._spare = self._memory.new_zeros(0)
            self.values_LKNHTD = self._room(1, _CAPACITY_STEP)

    def fit(self, tokens: int, texts: int) -> None:
        """Make room for so many leaves of ``tokens`` tokens, and for few more; what is there is kept."""
        old = self.values_LKNHTD
        _, _, slots, _, capacity, _ = old.shape
        wanted = math.ceil(tokens / _CAPACITY_STEP) * _CAPACITY_STEP
        if texts > slots or not wanted <= capacity <= wanted + _CAPACITY_STEP:
            kept = (..., slice(min(texts, slots)), slice(None), slice(min(wanted, capacity)), slice(None))
            self.values_LKNHTD = self._room(slots if texts <= slots else 2 * slots, wanted)
            self.values_LKNHTD[kept] = old[kept]

    def _room(self, slots: int, tokens: int) -> Tensor:
        """Give numbers, whatever they are: masked tokens have weight 0, and 0 times what is none is not 0."""
        layers, heads, width = self._kv_shape
        room = self._spare
        least = layers * 2 * slots * heads * width * max(_FIRST_CAPACITY, 1 << (tokens - 1).bit_length())
        if len(room) < least:
            room = room.new_zeros(least)
        # two in turn: to move within one needs an order, and to take a new one costs a step
        self._spare = self._memory if room.device.type == "cpu" else self._spare
        self._memory = room
        shape = (layers, 2, slots, heads, tokens, width)
        return room[: math.prod(shape)].view(shape)


class GrowingPass:
    """The next token of each text."""

    def __init__(self, leaves: LeafCache, lengths: Sequence[int], stems: Sequence[Stem | None]) -> None:
        """Append a token to the leaves, which have these lengths, each behind its stem if it has one."""
        texts, device = len(lengths), leaves.values_LKNHTD.device
        self._kept_LKNHTD = leaves.values_LKNHTD[:, :, :texts]
        self._texts = torch.arange(texts, device=device)
        self._positions = torch.tensor(lengths, device=device)
        capacity = leaves.values_LKNHTD.shape[4]
        is_later = torch.arange(capacity, device=device) > self._positions[:, None]
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
        attended, shares, scores = _weighed(query_N_H_R_D, keys, values, self._mask_N_1_1_T)
        weight = _weight(shares, scores) if self._rows else scores
        for stem, rows in self._rows.items():
            stem_keys, stem_values = stem.values_LKHTD[layer]
            of_stem = query_N_H_R_D[rows].transpose(0, 1)  # the texts become rows of one matrix for each head
            shape = of_stem.shape
            of_stem, *both = _weighed(of_stem.flatten(1, 2), stem_keys, stem_values)
            of_stem = of_stem.view(shape).transpose(0, 1)
            stem_weight = _weight(*both).view(*shape[:3], 1).transpose(0, 1)
            # what both parts weigh in one softmax: e^a / (e^a + e^b) is the sigmoid of a - b
            share = torch.sigmoid(stem_weight - weight[rows])
            attended[rows] = torch.lerp(attended[rows], of_stem, share)
        return attended.to(query.dtype).view(texts, 1, -1, width)


def _weighed(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Give the mean of the values by attention, the share of each in it, and the scores, in float32."""
    scores = queries.float() @ keys.float().mT
    if mask is not None:
        scores += mask
    shares = scores.softmax(dim=-1)
    return shares @ values.float(), shares, scores


def _weight(shares: Tensor, scores: Tensor) -> Tensor:
    """Give the logarithm of what the values weigh together.

    By way of the largest share: exp() of torch is ten times as slow where it underflows, softmax() is not.
    """
    return scores.amax(dim=-1, keepdim=True) - shares.amax(dim=-1, keepdim=True).log()


def _masked(is_hidden: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(is_hidden.shape, dtype=dtype, device=is_hidden.device).masked_fill_(
        is_hidden, -torch.inf
    )
