"""Attention for prefill (prompts, in chunks) and for decode (one token of each running sequence).

Transformers' networks call it in place of their own attention. Keys and values are kept here, not there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from memory_program.inference.kv_cache import KVCache

ATTENTION_NAME = "growing_texts"
"""The name of this attention, as transformers' ``attn_implementation``."""


AttentionPass = Callable[[int, Tensor, Tensor, Tensor, float], Tensor]
"""One run of the network over new tokens, called with a layer's index, query, key, value and scaling.

It stores the keys and values, and returns the attention output: rows, tokens, heads, width."""


def _attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    attention_pass: AttentionPass | None = None,
    scaling: float,
    **options: Any,  # noqa: ANN401  # transformers' options for its own attention
) -> tuple[Tensor, None]:
    """Attend as the pass says; without one, in training for example, as transformers does."""
    if attention_pass is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    layer: Any = module  # Any: an attention module of any architecture
    return attention_pass(layer.layer_idx, query, key, value, scaling), None


AttentionInterface.register(ATTENTION_NAME, _attend)
AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """The tokens of one prompt from ``start`` to ``end``, to be computed now.

    ``kv_LKHTD`` holds the keys and values of the tokens before them, with room for theirs.
    """

    kv_LKHTD: Tensor
    start: int
    end: int


class PrefillPass:
    """Chunks of different prompts, which lie one after the other as if they were one sequence."""

    def __init__(self, chunks: Sequence[PrefillChunk]) -> None:
        """Compute these chunks."""
        self._chunks = chunks
        self._sizes = [chunk.end - chunk.start for chunk in chunks]
        self._masks: list[Tensor | None] = []
        for chunk, size in zip(chunks, self._sizes, strict=True):
            mask = None  # the first chunk of a prompt has torch's own causal mask, and one token needs none
            if chunk.start and size > 1:
                positions = torch.arange(chunk.end, device=chunk.kv_LKHTD.device)
                mask = positions <= positions[chunk.start :, None]
            self._masks.append(mask)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attend to the chunk and what is before it; see ``AttentionPass``."""
        new = zip(*(part.split(self._sizes, dim=2) for part in (query, key, value)), strict=True)
        attended: list[Tensor] = []
        for chunk, mask, (chunk_query, *new_kv) in zip(self._chunks, self._masks, new, strict=True):
            kept_KHTD = chunk.kv_LKHTD[layer]
            for kept_HTD, new_NHTD in zip(kept_KHTD, new_kv, strict=True):
                kept_HTD[:, chunk.start : chunk.end] = new_NHTD[0]
            keys, values = kept_KHTD[:, None, :, : chunk.end]
            groups = query.shape[1] // keys.shape[1]
            if mask is not None and query.is_cuda and groups > 1:
                # CUDA's fast kernels take a mask or shared heads; for both, torch keeps all scores in memory
                keys, values = (part.repeat_interleave(groups, dim=1) for part in (keys, values))
            attended_NHTD = F.scaled_dot_product_attention(
                chunk_query,
                keys,
                values,
                attn_mask=mask,
                is_causal=not chunk.start,
                scale=scaling,
                enable_gqa=query.shape[1] != keys.shape[1],
            )
            attended.append(attended_NHTD.transpose(1, 2))
        return torch.cat(attended, dim=1)


class DecodePass:
    """The next token of each sequence of a KV cache."""

    def __init__(self, cache: KVCache) -> None:
        """Append a token to each row of the cache."""
        rows, columns = len(cache.lengths), max(cache.lengths) + 1
        cache.reserve(rows, columns)
        self._keys_LNHDT = cache.keys_LNHDT[:, :rows, ..., :columns]
        self._values_LNHTD = cache.values_LNHTD[:, :rows, :, :columns]
        self._rows = torch.arange(rows, device=self._keys_LNHDT.device)
        self._positions = torch.tensor(cache.lengths, device=self._keys_LNHDT.device)
        columns_T = torch.arange(columns, device=self._keys_LNHDT.device)
        self._is_padding_N_1_1_T = (columns_T > self._positions[:, None])[:, None, None]

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attend in float32; see ``AttentionPass``."""
        rows, heads, _, width = key.shape
        keys_NHDT, values_NHTD = self._keys_LNHDT[layer], self._values_LNHTD[layer]
        keys_NHDT[self._rows, :, :, self._positions] = key[:, :, 0]
        values_NHTD[self._rows, :, self._positions] = value[:, :, 0]
        query_N_H_R_D = query.reshape(rows, heads, -1, width) * scaling  # R query heads share keys
        scores = query_N_H_R_D.float() @ keys_NHDT.float()
        shares = scores.masked_fill_(self._is_padding_N_1_1_T, -torch.inf).softmax(dim=-1)
        attended = shares @ values_NHTD.float()
        return attended.to(query.dtype).view(rows, 1, -1, width)
