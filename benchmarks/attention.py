"""Milliseconds of attention in a training step of the embedded model, ours beside PyTorch's, in one run.

Forward and backward pass of one layer in half precision, of batches like those of a training. The ways take
turns, and the best time of each counts, since other programs may use the machine.

Run it with ``python benchmarks/attention.py --help``.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import tyro
from rich.console import Console
from rich.table import Table
from torch import Tensor

from memory_program.pocket.attention import attend
from memory_program.pocket.training import keep_freed_memory

_WIDTH = 32  # of a head
_SCALE = _WIDTH**-0.5


@dataclass(frozen=True)
class Benchmark:
    """What is measured."""

    batches: tuple[tuple[int, int], ...] = ((19, 208), (10, 400), (6, 612), (2, 1800), (1, 3900))
    """Examples and tokens of each batch; a training's have some 4,000 tokens, most of 200 to 600 each."""

    heads: int = 8
    """Heads of the network."""

    rounds: int = 10
    """How many times each way has its turn."""

    threads: int = 2
    """Processor threads."""


def main(benchmark: Benchmark) -> None:
    """Measure, and print a table."""
    torch.set_num_threads(benchmark.threads)
    keep_freed_memory()  # as a training does
    table = Table("examples", "tokens", "ours, ms", "PyTorch's, ms", "times")
    for examples, tokens in benchmark.batches:
        drawn = torch.randn(4, examples * benchmark.heads, tokens, _WIDTH)
        ours, theirs = _fastest_ms([attend, _flash], drawn, benchmark.rounds)
        table.add_row(str(examples), str(tokens), *(f"{cell:.1f}" for cell in (ours, theirs, theirs / ours)))
    Console().print(table)


_Attention = Callable[[Tensor, Tensor, Tensor, float], Tensor]


def _flash(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Attend in float32: in half precision, PyTorch's backward pass takes twice as long."""
    got = torch.nn.functional.scaled_dot_product_attention(
        query[None], key[None], value[None].float(), is_causal=True, scale=scale
    )
    return got[0].to(value.dtype)


def _fastest_ms(ways: list[_Attention], drawn: Tensor, rounds: int) -> list[float]:
    query, key, value, of_got = drawn
    inputs = [tensor.requires_grad_() for tensor in (query.clone(), key.clone(), value.bfloat16())]
    best = [float("inf")] * len(ways)
    for _ in range(rounds):
        for place, attention in enumerate(ways):
            started = time.perf_counter()
            attention(*inputs, _SCALE).backward(of_got.bfloat16())
            best[place] = min(best[place], 1000 * (time.perf_counter() - started))
    return best


if __name__ == "__main__":
    main(tyro.cli(Benchmark, description=__doc__))
