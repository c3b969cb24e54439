"""Causal attention with rotary places, and its gradients, on processors that multiply tiles (Intel AMX).

PyTorch's own (flash attention for CPUs) was the larger part of a training step for heads 32 wide and some
hundred tokens (``benchmarks/attention.py``). ``attention.cpp`` computes it, compiled when it is first used.
"""

import ctypes
import os
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import torch
from torch import Tensor

from memory_program.core.errors import ConfigError

AMX_HEAD_WIDTH = 32
"""The width of a head that is computed."""

_SCALE = AMX_HEAD_WIDTH**-0.5
_SOURCE = Path(__file__).with_name("attention.cpp")
_FLAGS = ("-O3", "-march=native", "-mamx-tile", "-mamx-bf16", "-fopenmp", "-shared", "-fPIC")
_POINTER, _COUNT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


def is_amx_available() -> bool:
    """Whether this processor multiplies tiles of halves, and the system lets programs do so."""
    return torch.cpu._is_amx_tile_supported() and torch.cpu._init_amx()  # pyright: ignore[reportPrivateUsage]


@cache
def load_amx_library() -> ctypes.CDLL:
    """Compile the operators, which takes some seconds, and load them: once in a process.

    The compiler is ``$CXX``, or ``g++``.

    Raises:
        ConfigError: there is no such compiler, or it fails.
    """
    compiler = os.environ.get("CXX", "g++")
    with TemporaryDirectory() as folder:
        made = Path(folder) / "attention.so"
        try:
            done = subprocess.run(
                [compiler, *_FLAGS, str(_SOURCE), "-o", str(made)],
                capture_output=True,
                text=True,
                check=False,
            )
        except FileNotFoundError as error:
            raise ConfigError(
                f"compile=True takes a C++ compiler, and there is no {compiler!r}: install one (g++), name "
                "yours in CXX, or leave compile out"
            ) from error
        if done.returncode:
            raise ConfigError(
                f"compile=True: {compiler!r} cannot compile {_SOURCE.name}: {done.stderr.strip()[:500]}"
            )
        loaded = ctypes.CDLL(str(made))
    loaded.attend.argtypes = [*[_POINTER] * 5, *[_COUNT] * 3, _FLOAT, *[_POINTER] * 2]
    loaded.attention_gradients.argtypes = [*[_POINTER] * 8, *[_COUNT] * 3, _FLOAT, *[_POINTER] * 3]
    return loaded


def attend(query: Tensor, key: Tensor, value: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Attend to what came before, with queries and keys turned by the places of their tokens.

    Args:
        query: bfloat16, of shape (texts, tokens, heads, 32). Turned, it is compared in float32: in half
            precision, scores of 40, which sharp attention has, would lie a quarter apart.
        key: what queries are compared with, like them.
        value: what they get, like them.
        cosines: float32, of shape (tokens, 16): of the angles by which two halves of a width turn.
        sines: like them.

    Returns:
        What the queries get, like ``value``.
    """
    return _attention(query, key, value, cosines, sines)[0]


# Operators of their own, so that a compiler of the network leaves them as they are, for any number of tokens.


@torch.library.custom_op("memory_program::rotary_attention", mutates_args=())
def _attention(
    query: Tensor, key: Tensor, value: Tensor, cosines: Tensor, sines: Tensor
) -> tuple[Tensor, Tensor]:
    """Give what the queries get; and the logarithms of the sums of their scores' exponentials."""
    given = [tensor.contiguous() for tensor in (query, key, value, cosines, sines)]
    texts, tokens, heads, _ = query.shape
    got, log_sums = torch.empty_like(given[2]), query.new_empty(texts, heads, tokens, dtype=torch.float32)
    load_amx_library().attend(
        *_data_pointers(*given), texts, tokens, heads, _SCALE, *_data_pointers(got, log_sums)
    )
    return got, log_sums


@_attention.register_fake
def _(query: Tensor, _key: Tensor, value: Tensor, *_rest: Tensor) -> tuple[Tensor, Tensor]:
    texts, tokens, heads, _ = query.shape
    return value.new_empty(value.shape), query.new_empty(texts, heads, tokens, dtype=torch.float32)


@torch.library.custom_op("memory_program::rotary_attention_gradients", mutates_args=())
def _gradients(
    of_got: Tensor,
    got: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_sums: Tensor,
    cosines: Tensor,
    sines: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Give the gradients of queries, keys and values, from that of what the queries got."""
    given = [t.contiguous() for t in (of_got, got, query, key, value, log_sums, cosines, sines)]
    made = [torch.empty_like(tensor) for tensor in given[2:5]]
    load_amx_library().attention_gradients(
        *_data_pointers(*given), *query.shape[:3], _SCALE, *_data_pointers(*made)
    )
    return made[0], made[1], made[2]


@_gradients.register_fake
def _(
    _of_got: Tensor, _got: Tensor, query: Tensor, key: Tensor, value: Tensor, *_rest: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    of_query, of_key, of_value = (tensor.new_empty(tensor.shape) for tensor in (query, key, value))
    return of_query, of_key, of_value


class _Context(Protocol):
    """What PyTorch passes from an operator to its gradient."""

    saved_tensors: tuple[Tensor, ...]

    def save_for_backward(self, *tensors: Tensor) -> None: ...


def _setup_backward(ctx: _Context, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, cosines, sines = inputs
    got, log_sums = output
    ctx.save_for_backward(got, query, key, value, log_sums, cosines, sines)


def _backward(ctx: _Context, of_got: Tensor, _of_sums: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
    return *_gradients(of_got, *ctx.saved_tensors), None, None


_attention.register_autograd(_backward, setup_context=_setup_backward)


def _data_pointers(*tensors: Tensor) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]
