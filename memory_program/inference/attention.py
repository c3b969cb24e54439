"""Attention over texts that grow: a prompt is read in pieces, then each text gets one token at a time.

Transformers' networks call it in the place of their own attention, and keep nothing themselves. Texts that
begin alike share a stem, whose keys and values lie in memory once: one matrix product scores it for all of
them (Juravsky et al. 2024, "Hydragen", arXiv 2402.05099, section 3.2).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from memory_program.inference.kv_cache import LengthBucket

ATTENTION_NAME = "growing_texts"
"""The name of this attention, as transformers' ``attn_implementation``."""


class AttentionPass(Protocol):
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
    attention_pass: AttentionPass | None = None,
    scaling: float,
    **options: Any,  # noqa: ANN401  # what transformers tells its attention
) -> tuple[Tensor, None]:
    """Attend as the pass says; without one, while training for example, as transformers does."""
    if attention_pass is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    layer: Any = module  # Any: an attention module of any architecture
    return attention_pass.attend(layer.layer_idx, query, key, value, scaling), None


AttentionInterface.register(ATTENTION_NAME, _attend)
AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)


class PrefillPass:
    """The next tokens of some texts, which lie one after the other as if they were one."""

    def __init__(self, pieces: Sequence["PrefillChunk"]) -> None:
        """Read these pieces of different texts."""
        self._pieces = pieces
        self._sizes = [piece.end - piece.first for piece in pieces]
        self._masks = [_chunk_causal_mask(piece) for piece in pieces]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """See ``AttentionPass``."""
        new = zip(*(part.split(self._sizes, dim=2) for part in (query, key, value)), strict=True)
        attended: list[Tensor] = []
        for piece, mask, (query_of_it, *both) in zip(self._pieces, self._masks, new, strict=True):
            kept_KHTD = piece.kv_LKHTD[layer]
            for kept_HTD, new_NHTD in zip(kept_KHTD, both, strict=True):
                kept_HTD[:, piece.first : piece.end] = new_NHTD[0]
            keys, values = kept_KHTD[:, None, :, : piece.end]
            attended_NHTD = F.scaled_dot_product_attention(
                query_of_it,
                keys,
                values,
                attn_mask=mask,
                is_causal=not piece.first,
                scale=scaling,
                enable_gqa=query.shape[1] != keys.shape[1],
            )
            attended.append(attended_NHTD.transpose(1, 2))
        return torch.cat(attended, dim=1)


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """The tokens of one text from ``first`` up to ``end``, to be read."""

    kv_LKHTD: Tensor
    """What was computed before them, with room for them."""

    first: int
    end: int


def _chunk_causal_mask(piece: PrefillChunk) -> Tensor | None:
    """Make a mask where torch's own for texts without a beginning does not do."""
    if not piece.first or piece.end - piece.first == 1:
        return None
    positions = torch.arange(piece.end, device=piece.kv_LKHTD.device)
    return _additive_mask(positions > positions[piece.first :, None], piece.kv_LKHTD.dtype)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class SharedPrefixKV:
    """Keys and values that texts begin with."""

    kv_LKHTD: Tensor

    @property
    def tokens(self) -> int:
        """How many tokens it has."""
        return self.kv_LKHTD.shape[3]


class DecodePass:
    """The next token of each text, bucket by bucket."""

    def __init__(self, buckets: Sequence[LengthBucket], stems: Sequence[SharedPrefixKV | None]) -> None:
        """Append a token to each leaf of the buckets, in their order, each behind its stem if it has one."""
        self._parts = [_BucketDecodePass(bucket) for bucket in buckets]
        device = buckets[0].values_LNHTD.device
        rows: dict[SharedPrefixKV, list[int]] = {}
        for row, stem in enumerate(stems):
            if stem is not None:
                rows.setdefault(stem, []).append(row)
        self._rows = {stem: torch.tensor(of_stem, device=device) for stem, of_stem in rows.items()}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """See ``AttentionPass``."""
        texts, heads, _, width = key.shape
        query_N_H_R_D = query.reshape(texts, heads, -1, width) * scaling  # R query heads share keys
        sizes = [len(part) for part in self._parts]
        new = zip(*(part.split(sizes) for part in (query_N_H_R_D, key[:, :, 0], value[:, :, 0])), strict=True)
        parts = [part.attend(layer, *of_part) for part, of_part in zip(self._parts, new, strict=True)]
        attended = torch.cat([of_part for of_part, _, _ in parts])
        if self._rows:
            weight = torch.cat([_log_normalizer(shares, scores) for _, shares, scores in parts])
            self._merge_shared_prefixes(layer, query_N_H_R_D, attended, weight)
        return attended.to(query.dtype).view(texts, 1, -1, width)

    def _merge_shared_prefixes(
        self, layer: int, query_N_H_R_D: Tensor, attended: Tensor, weight: Tensor
    ) -> None:
        """Put what the texts attend to in their stems into what they attend to in their leaves."""
        for stem, rows in self._rows.items():
            stem_keys, stem_values = stem.kv_LKHTD[layer]
            of_stem = query_N_H_R_D[rows].transpose(0, 1)  # the texts become rows of one matrix for each head
            shape = of_stem.shape
            of_stem, *both = _partial_attention(of_stem.flatten(1, 2), stem_keys.mT, stem_values)
            of_stem = of_stem.view(shape).transpose(0, 1)
            stem_weight = _log_normalizer(*both).view(*shape[:3], 1).transpose(0, 1)
            # what both parts weigh in one softmax: e^a / (e^a + e^b) is the sigmoid of a - b
            share = torch.sigmoid(stem_weight - weight[rows])
            attended[rows] = torch.lerp(attended[rows], of_stem, share)


class _BucketDecodePass:
    """The next token of each text of one bucket."""

    def __init__(self, bucket: LengthBucket) -> None:
        texts, device = len(bucket.leaves), bucket.values_LNHTD.device
        self._keys_LNHDT, self._values_LNHTD = bucket.keys_LNHDT[:, :texts], bucket.values_LNHTD[:, :texts]
        self._texts = torch.arange(texts, device=device)
        self._positions = torch.tensor([leaf.tokens for leaf in bucket.leaves], device=device)
        is_later = torch.arange(bucket.capacity, device=device) > self._positions[:, None]
        self._mask_N_1_1_T = _additive_mask(is_later, torch.float32)[:, None, None]

    def __len__(self) -> int:
        return len(self._texts)

    def attend(
        self, layer: int, query_N_H_R_D: Tensor, key_N_H_D: Tensor, value_N_H_D: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Keep what a layer computed of new tokens; see ``_partial_attention`` for what it gives."""
        keys_NHDT, values_NHTD = self._keys_LNHDT[layer], self._values_LNHTD[layer]
        keys_NHDT[self._texts, :, :, self._positions] = key_N_H_D
        values_NHTD[self._texts, :, self._positions] = value_N_H_D
        return _partial_attention(query_N_H_R_D, keys_NHDT, values_NHTD, self._mask_N_1_1_T)


def _partial_attention(
    queries: Tensor, keys_by_column: Tensor, values: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Give the mean of the values by attention, the share of each in it, and the scores, in float32."""
    scores = queries.float() @ keys_by_column.float()
    if mask is not None:
        scores += mask
    shares = scores.softmax(dim=-1)
    return shares @ values.float(), shares, scores


def _log_normalizer(shares: Tensor, scores: Tensor) -> Tensor:
    """Give the logarithm of what the values weigh together.

    By way of the largest share: exp() of torch is ten times as slow where it underflows, softmax() is not.
    """
    return scores.amax(dim=-1, keepdim=True) - shares.amax(dim=-1, keepdim=True).log()


def _additive_mask(is_hidden: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(is_hidden.shape, dtype=dtype, device=is_hidden.device).masked_fill_(
        is_hidden, -torch.inf
    )
