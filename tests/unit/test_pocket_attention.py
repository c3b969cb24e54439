"""The attention of training on processors that multiply tiles: what PyTorch's gives, and its gradients."""

import math

import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from memory_program.core.errors import ConfigError
from recipes.pocket import amx_attention as attention
from recipes.pocket.amx_attention import AMX_HEAD_WIDTH, attend, is_amx_available, load_amx_library
from recipes.pocket.pocket_model import ModelShape, decoder_layers, make_model
from recipes.pocket.pretraining import run_layer_on_amx

needs_tiles = pytest.mark.skipif(
    not is_amx_available(), reason="this processor does not multiply tiles (AMX)"
)


def drawn(texts, tokens, count=4):
    generator = torch.Generator().manual_seed(tokens)
    return [
        2 * torch.randn(texts, tokens, 3, AMX_HEAD_WIDTH, generator=generator).bfloat16()
        for _ in range(count)
    ]


def angles(tokens):
    turned = torch.arange(tokens)[:, None] * 10_000 ** -(
        torch.arange(AMX_HEAD_WIDTH // 2) / (AMX_HEAD_WIDTH // 2)
    )
    return turned.cos(), turned.sin()


def theirs(query, key, value, cosines, sines):
    query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
    whole = [torch.cat((half, half), -1)[None].to(query.dtype) for half in (cosines, sines)]
    query, key = apply_rotary_pos_emb(query, key, *whole)
    got = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    return got.transpose(1, 2)


def with_gradients(way, inputs, of_got):
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    got = way(*leaves, *angles(of_got.shape[1]))
    got.backward(of_got.to(got.dtype))
    return [got.detach(), *(leaf.grad for leaf in leaves)]


@needs_tiles
@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 31, 32, 33, 64, 150, 1801])
def test_it_errs_no_more_than_half_precision_does_and_so_do_its_gradients(tokens):
    *inputs, of_got = drawn(2, tokens)
    exact = with_gradients(theirs, [tensor.double() for tensor in inputs], of_got)
    for ours, expected in zip(with_gradients(attend, inputs, of_got), exact, strict=True):
        assert (ours - expected).norm() <= 0.01 * expected.norm()


@needs_tiles
def test_sharp_scores_that_lie_close_are_told_apart():
    query, key, value = (
        torch.ones(1, 2, 1, AMX_HEAD_WIDTH),
        torch.ones(1, 2, 1, AMX_HEAD_WIDTH),
        torch.eye(2, AMX_HEAD_WIDTH),
    )
    key[:, 1] += 1 / 64  # scores of 35.4 and 35.9: in half precision they would be multiples of 1/4
    given = (tensor.bfloat16() for tensor in (query * 6.25, key, value[None, :, None]))
    got = attend(*given, torch.ones(2, AMX_HEAD_WIDTH // 2), torch.zeros(2, AMX_HEAD_WIDTH // 2))
    first, second = got[0, 1, 0, :2].tolist()
    assert second / first == pytest.approx(math.exp(6.25 * AMX_HEAD_WIDTH**0.5 / 64), rel=0.02)


@needs_tiles
def test_nothing_looks_ahead():
    query, key, value = drawn(2, 100, count=3)
    before = attend(query, key, value, *angles(100))
    key[:, 70:] += 5
    value[:, 70:] += 5
    after = attend(query, key, value, *angles(100))
    assert before[:, :70].equal(after[:, :70])
    assert not before[:, 70:].equal(after[:, 70:])


@needs_tiles
def test_a_compiler_is_told_what_it_gives():
    *inputs, _ = drawn(2, 100)
    leaves = [tensor.requires_grad_() for tensor in inputs]
    torch.library.opcheck(torch.ops.memory_program.rotary_attention.default, (*leaves, *angles(100)))


@needs_tiles
def test_a_layer_gives_what_it_gives_by_itself():
    torch.manual_seed(0)
    model = make_model(ModelShape(256, 2, 8, 512), 1024, 0, 0)
    layer = decoder_layers(model)[0]
    stream = torch.randn(3, 50, 256)
    rotary = model.model.rotary_emb(stream, torch.arange(50)[None])
    with torch.autocast("cpu", torch.bfloat16):
        ours = run_layer_on_amx(layer, stream, *rotary)
        itself = layer(stream, attention_mask=None, position_embeddings=rotary)
    assert (ours - itself).norm() <= 0.01 * (itself - stream).norm()


def test_a_compiler_that_is_not_there_or_fails_is_named(monkeypatch, tmp_path):
    load_amx_library.cache_clear()
    monkeypatch.setenv("CXX", str(tmp_path / "c++"))
    with pytest.raises(ConfigError, match="install one"):
        load_amx_library()
    monkeypatch.setenv("CXX", "g++")
    (tmp_path / "broken.cpp").write_text("int main( {")
    monkeypatch.setattr(attention, "_SOURCE", tmp_path / "broken.cpp")
    with pytest.raises(ConfigError, match=r"cannot compile broken.cpp: .*error"):
        load_amx_library()
    load_amx_library.cache_clear()
