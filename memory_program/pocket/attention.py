"""Causal attention with its gradients in half precision on processors, a block of queries after the other.

PyTorch's own (flash attention for CPUs) takes two to two and a half times as long for heads 32 wide and some
hundred tokens: it was 43 % of a training step (``benchmarks/attention.py``). Here a block is four products of
matrices, which processors do well, and its attention is kept for the backward pass: half of the square, since
nothing looks ahead. In float32, PyTorch's own is as fast.
"""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

_BLOCK = 64  # queries at a time: their scores stay in the cache


def attend(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Attend to what came before.

    Args:
        query: float32, of shape (heads, tokens, width), the heads of a whole batch. In half precision, scores
            of 40, which sharp attention has, would lie a quarter apart.
        key: what queries are compared with, like them.
        value: what they get, of the same shape, float32 or in half precision, which all products but the
            scores' are then computed in.
        scale: what the products of queries and keys are multiplied with.

    Returns:
        What the queries get, like ``value``.
    """
    return _attention(query, key, value, scale)[0]


# Operators of their own, so that a compiler of the network leaves them as they are, for any number of tokens.


@torch.library.custom_op("memory_program::attention", mutates_args=())
def _attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Give what the queries get; and who attended to what, block after block, flat."""
    heads, tokens, _ = value.shape
    got = torch.empty_like(value)
    kept = value.new_empty(heads * _pairs(tokens))
    ahead = torch.full((_BLOCK, _BLOCK), -torch.inf).triu(1)
    scaled = query * scale
    for first, end, attention in _blocks(kept, heads, tokens):
        scores = scaled[:, first:end] @ key[:, :end].mT
        scores[:, :, first:].add_(ahead[: end - first, : end - first])
        attention.copy_(scores.softmax(-1))
        got[:, first:end] = attention @ value[:, :end]
    return got, kept


@_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(value), value.new_empty(value.shape[0] * _pairs(value.shape[1]))


@torch.library.custom_op("memory_program::attention_gradients", mutates_args=())
def _gradients(
    of_got: Tensor, query: Tensor, key: Tensor, value: Tensor, kept: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Give the gradients of queries, keys and values, from that of what the queries got."""
    heads, tokens, _ = value.shape
    of_query = torch.empty_like(query)
    of_key, of_value = torch.zeros_like(key), torch.zeros_like(value, dtype=torch.float32)
    query, key = (query * scale).to(value.dtype), (key * scale).to(value.dtype)
    for first, end, attention in _blocks(kept, heads, tokens):
        of_block = of_got[:, first:end]
        of_value[:, :end] += attention.mT @ of_block
        of_attention = of_block @ value[:, :end].mT
        of_scores = torch.ops.aten._softmax_backward_data(of_attention, attention, -1, attention.dtype)
        of_query[:, first:end] = of_scores @ key[:, :end]
        of_key[:, :end] += of_scores.mT @ query[:, first:end]
    return of_query, of_key, of_value.to(value.dtype)


@_gradients.register_fake
def _(
    of_got: Tensor, query: Tensor, key: Tensor, value: Tensor, kept: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


class _Context(Protocol):
    """What PyTorch passes from an operator to its gradient."""

    scale: float
    saved_tensors: tuple[Tensor, ...]

    def save_for_backward(self, *tensors: Tensor) -> None: ...


def _keep(ctx: _Context, inputs: tuple[Tensor, Tensor, Tensor, float], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, output[1])


def _backward(ctx: _Context, of_got: Tensor, _of_kept: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    return *_gradients(of_got.contiguous(), *ctx.saved_tensors, ctx.scale), None


_attention.register_autograd(_backward, setup_context=_keep)


def _pairs(tokens: int) -> int:
    """Count the pairs of a query and a token that blocks compare."""
    whole, rest = tokens // _BLOCK, tokens % _BLOCK
    return _BLOCK * _BLOCK * (whole * (whole + 1) // 2) + rest * tokens


def _blocks(kept: Tensor, heads: int, tokens: int) -> Iterator[tuple[int, int, Tensor]]:
    """Give the first query and the end of each block, and where its attention is kept."""
    used = 0
    for first in range(0, tokens, _BLOCK):
        end = min(tokens, first + _BLOCK)
        size = heads * (end - first) * end
        yield first, end, kept[used : used + size].view(heads, end - first, end)
        used += size
