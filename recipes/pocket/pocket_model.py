"""The network of the embedded model: a plain Llama whose first weights can already copy.

A small transformer learns a format in minutes, and to copy from its context only after millions of tokens,
suddenly, when induction heads form (Olsson et al. 2022, arXiv 2209.11895). Here the heads are written by
hand, in the spirit of mimetic initialisation (Trockman and Kolter 2023, ICML). The architecture stays the
standard one; only its first weights are chosen.

- An embedding is a constant, and a random vector in the token part of the residual stream.
- Layer 0: two heads attend to the token before, two to the one before that (by rotary positions alone),
  and write what they find into two parts of their own.
- Layer 1: six heads attend to earlier places where the present token and the one before it stood, and write
  the token that followed into the token part, which the tied output matrix reads.

All other weights start at random, with outputs of zero, and everything is trained.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaDecoderLayer

_RESIDUAL_SCALE = 8.0  # of the stream: a step of Muon adds the same amount whatever its scale
_TOKEN_STD = 0.1  # of the token part of an embedding, relative to the scale
_COPIED = 3.0  # weight of the copied token relative to the present one
_SHARPNESS = 7.0  # attention score of one matching token, in nats
_HARMONICS = (50.0, 25.0, 25.0, 25.0, 20.0, 20.0)  # weights of the rotary frequencies that select a distance
_FIRST_SLOW = 7  # rotary pairs from here on turn by less than half a radian in a hundred tokens


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The size of a network. It has at least two layers, and at least eight heads, each 32 wide."""

    width: int = 256
    layers: int = 4
    heads: int = 8
    inner: int = 512
    positions: int = 4096


_HEAD = 32
_TOKEN, _CONTEXT = 96, 64  # widths of parts of the residual stream: the token; each of the two before it
_SLOW_DIMS = 2 * (_HEAD // 2 - _FIRST_SLOW)


def make_model(shape: ModelShape, vocabulary: int, eos_token_id: int, seed: int) -> LlamaForCausalLM:
    """Make a network that can copy and knows nothing else.

    Args:
        shape: its size.
        vocabulary: number of tokens.
        eos_token_id: the token that ends a turn; it is the padding token too.
        seed: of the random part of the weights.
    """
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        head_dim=_HEAD,
        max_position_embeddings=shape.positions,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=eos_token_id,
        pad_token_id=eos_token_id,
        dtype="float32",
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        _init_weights(model, torch.Generator().manual_seed(seed))
    return model


def decoder_layers(model: LlamaForCausalLM) -> list[LlamaDecoderLayer]:
    """List the layers of a network."""
    return list(cast("Iterable[LlamaDecoderLayer]", model.model.layers))


def _init_weights(model: LlamaForCausalLM, random: torch.Generator) -> None:
    width = model.config.hidden_size
    # Parts of the residual stream: the token, the one before it, and the one before that.
    token = slice(1, 1 + _TOKEN)
    before = slice(token.stop, token.stop + _CONTEXT)
    earlier = slice(before.stop, before.stop + _CONTEXT)
    for layer in decoder_layers(model):
        at = layer.self_attn
        for matrix in (at.q_proj, at.k_proj, at.v_proj, layer.mlp.gate_proj, layer.mlp.up_proj):
            matrix.weight.normal_(0, width**-0.5, generator=random)
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    embeddings = model.model.embed_tokens.weight.zero_()
    embeddings[:, 0] = _RESIDUAL_SCALE
    tokens = torch.randn(len(embeddings), _TOKEN, generator=random)
    embeddings[:, token] = tokens * _TOKEN_STD * _RESIDUAL_SCALE
    model.model.norm.weight.fill_(1 / _RESIDUAL_SCALE)

    look_back, induce = (layer.self_attn for layer in decoder_layers(model)[:2])
    compressed = _orthogonal(_CONTEXT, _TOKEN, random)
    for distance, part in ((1, before), (2, earlier)):
        for half in range(2):
            head = 2 * (distance - 1) + half
            rows = slice(half * _HEAD, (half + 1) * _HEAD)
            target = torch.arange(part.start, part.stop)[rows]
            _attend_to_distance(look_back, head, distance, width)
            _copy_through_head(look_back, head, compressed[rows], token, target, 1.0, width)
    for head in range(6):
        here, there = (_orthogonal(_SLOW_DIMS, _CONTEXT, random) for _ in range(2))
        pairs: list[tuple[slice, slice, Tensor, Tensor | None]] = [
            (token, before, here, compressed),
            (before, earlier, there, None),
        ]
        _match_context(induce, head, pairs, width)
        rows = slice(head % 3 * _HEAD, (head % 3 + 1) * _HEAD)
        target = torch.arange(token.start, token.stop)[rows]
        _copy_through_head(induce, head, torch.eye(_TOKEN)[rows], token, target, _COPIED / 2, width)


def _orthogonal(rows: int, columns: int, random: torch.Generator) -> Tensor:
    square, _ = torch.linalg.qr(torch.randn(columns, columns, generator=random))
    return square[:rows]


def _norm_gain(width: int) -> float:
    """Give the gain of the norm before a layer, for a stream that holds only the constant and the token."""
    return math.sqrt(width / (1 + _TOKEN * _TOKEN_STD**2))


def _head_rows(head: int) -> slice:
    return slice(head * _HEAD, (head + 1) * _HEAD)


def _attend_to_distance(attention: LlamaAttention, head: int, distance: int, width: int) -> None:
    """Make the attention score depend on the distance alone, with the maximum at ``distance``."""
    strength = torch.zeros(_HEAD // 2)
    strength[: len(_HARMONICS)] = torch.tensor(_HARMONICS).sqrt()
    angle = 1e6 ** (-torch.arange(0, _HEAD, 2) / _HEAD) * distance
    query = torch.cat((strength, torch.zeros(_HEAD // 2)))
    key = torch.cat((strength * torch.cos(angle), strength * torch.sin(angle)))
    for matrix, vector in ((attention.q_proj, query), (attention.k_proj, key)):
        matrix.weight[_head_rows(head)] = 0
        matrix.weight[_head_rows(head), 0] = vector / _norm_gain(width)


def _match_context(
    attention: LlamaAttention,
    head: int,
    pairs: list[tuple[slice, slice, Tensor, Tensor | None]],
    width: int,
) -> None:
    """Make the attention score measure how well parts of the query's stream match parts of the key's."""
    slow = torch.arange(_FIRST_SLOW, _HEAD // 2)
    rows = torch.cat((slow, slow + _HEAD // 2)) + head * _HEAD
    attention.q_proj.weight[_head_rows(head)] = 0
    attention.k_proj.weight[_head_rows(head)] = 0
    scale = math.sqrt(_SHARPNESS * math.sqrt(_HEAD) * _CONTEXT / _SLOW_DIMS) / _norm_gain(width)
    scale *= math.sqrt(2.0)
    for query_part, key_part, projection, compressed in pairs:
        query = projection if compressed is None else projection @ compressed
        for matrix, part, weights in (
            (attention.q_proj, query_part, query),
            (attention.k_proj, key_part, projection),
        ):
            matrix.weight[rows[:, None], torch.arange(part.start, part.stop)] = weights * scale


def _copy_through_head(
    attention: LlamaAttention,
    head: int,
    read: Tensor,
    source: slice,
    target: Tensor,
    gain: float,
    width: int,
) -> None:
    """Copy ``source`` of the tokens that a head attends to into the dimensions ``target``, times ``gain``."""
    attention.v_proj.weight[_head_rows(head)] = 0
    attention.v_proj.weight[_head_rows(head), source] = read / _norm_gain(width)
    columns = torch.arange(head * _HEAD, (head + 1) * _HEAD)
    attention.o_proj.weight[target[:, None], columns] = torch.eye(_HEAD) * gain * _RESIDUAL_SCALE
