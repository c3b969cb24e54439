"""The attention of training on processors: what PyTorch's gives, and its gradients."""

import math

import pytest
import torch
from torch import Tensor

from memory_program.pocket.attention import attend

SCALE = 0.2


def drawn(heads: int, tokens: int, width: int, count: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    return [2 * torch.randn(heads, tokens, width, generator=generator) for _ in range(count)]


def theirs(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)


def with_gradients(attention, inputs: list[Tensor], of_got: Tensor) -> list[Tensor]:
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    got = attention(*leaves, SCALE)
    got.backward(of_got.to(got.dtype))
    return [got.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 128, 200])
def test_it_gives_what_pytorch_gives_with_the_same_gradients(tokens):
    *inputs, of_got = drawn(3, tokens, 32)
    for ours, expected in zip(
        with_gradients(attend, inputs, of_got), with_gradients(theirs, inputs, of_got), strict=True
    ):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_in_half_precision_it_errs_no_more_than_half_precision_does():
    *inputs, of_got = drawn(2, 150, 32)
    query, key, value = inputs
    exact = with_gradients(theirs, [query, key, value.bfloat16().float()], of_got)
    for ours, expected in zip(
        with_gradients(attend, [query, key, value.bfloat16()], of_got), exact, strict=True
    ):
        assert (ours.float() - expected).abs().max() < 0.02 * expected.abs().max()


def test_sharp_scores_that_lie_close_are_told_apart_in_half_precision_too():
    query, key, value = torch.ones(1, 2, 32), torch.ones(1, 2, 32), torch.eye(2, 32)[None]
    key[:, 1] += 1 / 64  # its score is 40.6 where the other is 40: half precision would make it 40.5
    got = attend(query * 6.25, key, value.bfloat16(), SCALE)
    first, second = got[0, 1, :2].tolist()
    assert second / first == pytest.approx(math.exp(0.625), rel=0.02)


def test_nothing_looks_ahead():
    query, key, value = drawn(2, 100, 32, count=3)
    before = attend(query, key, value, SCALE)
    key[:, 70:] += 5
    value[:, 70:] += 5
    assert torch.equal(attend(query, key, value, SCALE)[:, :70], before[:, :70])


def test_a_compiler_is_told_what_it_gives():
    *inputs, _ = drawn(2, 100, 32)
    leaves = [tensor.requires_grad_() for tensor in inputs]
    torch.library.opcheck(torch.ops.memory_program.attention.default, (*leaves, SCALE))
