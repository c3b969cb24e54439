"""Stands in for Intel's extension, whose attention vLLM 0.10 uses on a CPU: it needs an older torch."""

import torch
from torch.nn.functional import scaled_dot_product_attention


class PagedAttention:
    """Attention to keys and values in blocks: ``[block, head, token of the block, width]``."""

    @staticmethod
    def reshape_and_cache(
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        slots: torch.Tensor,
    ) -> None:
        size, slots = key_cache.shape[2], slots.long()
        key_cache[slots // size, :, slots % size] = key
        value_cache[slots // size, :, slots % size] = value

    @staticmethod
    def flash_attn_varlen_func(
        output: torch.Tensor,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        query_starts: torch.Tensor,
        key_starts: torch.Tensor,
        longest_query: int,
        longest_key: int,
        scale: float,
        is_causal: bool,
        block_tables: torch.Tensor,
        alibi_slopes: None,
    ) -> None:
        bounds, lengths = query_starts.tolist(), key_starts.diff().tolist()
        for start, end, length, blocks in zip(bounds[:-1], bounds[1:], lengths, block_tables, strict=True):
            output[start:end] = _attend(query[start:end], key_cache, value_cache, blocks, length, scale)

    @staticmethod
    def single_query_cached_kv_attention(
        output: torch.Tensor,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        head_mapping: torch.Tensor,
        scale: float,
        block_tables: torch.Tensor,
        lengths: torch.Tensor,
        block_size: int,
        longest: int,
        alibi_slopes: None,
    ) -> None:
        for row, (length, blocks) in enumerate(zip(lengths.tolist(), block_tables, strict=True)):
            output[row] = _attend(query[row : row + 1], key_cache, value_cache, blocks, length, scale)[0]


def _attend(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    blocks: torch.Tensor,
    length: int,
    scale: float,
) -> torch.Tensor:
    """Attention of the last tokens of a sequence of ``length``, ``[token, head, width]``."""
    used = blocks[: -(-length // key_cache.shape[2])].long()
    key, value = (
        cache[used].transpose(0, 1).flatten(1, 2)[None, :, :length] for cache in (key_cache, value_cache)
    )
    mask = torch.ones(len(query), length, dtype=torch.bool).tril(length - len(query))
    rows = query.transpose(0, 1)[None]
    found = scaled_dot_product_attention(rows, key, value, attn_mask=mask, scale=scale, enable_gqa=True)
    return found[0].transpose(0, 1)
