"""Milliseconds of attention in a training step of the embedded model, ours beside PyTorch's, in one run.

Forward and backward pass of one layer in half precision, of batches like those of a training. The ways take
turns, and the best time of each counts, since other programs may use the machine.

Run it with ``python benchmarks/attention.py --help``.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import tyro
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from memory_program.core.command_line import run_script
from memory_program.core.errors import ConfigError
from recipes.pocket.amx_attention import AMX_HEAD_WIDTH, attend, is_amx_available
from recipes.pocket.pretraining import keep_freed_memory


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
    if not is_amx_available():
        raise ConfigError("this processor does not multiply tiles (AMX): there is nothing to compare")
    torch.set_num_threads(benchmark.threads)
    keep_freed_memory()  # as a training does
    table = Table("examples", "tokens", "ours, ms", "PyTorch's, ms", "times")
    for examples, tokens in benchmark.batches:
        drawn = torch.randn(4, examples, tokens, benchmark.heads, AMX_HEAD_WIDTH).bfloat16()
        ours, theirs = _fastest_ms([attend, _flash], drawn, benchmark.rounds)
        table.add_row(str(examples), str(tokens), *(f"{cell:.1f}" for cell in (ours, theirs, theirs / ours)))
    Console().print(table)


_Attention = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def _flash(query: Tensor, key: Tensor, value: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Attend in float32: in half precision, PyTorch's backward pass takes twice as long."""
    query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
    whole = (torch.cat((half, half), -1)[None] for half in (cosines, sines))
    query, key = apply_rotary_pos_emb(query, key, *whole)
    got = torch.nn.functional.scaled_dot_product_attention(query, key, value.float(), is_causal=True)
    return got.transpose(1, 2).bfloat16()


def _fastest_ms(ways: list[_Attention], drawn: Tensor, rounds: int) -> list[float]:
    query, key, value, of_got = drawn
    inputs = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    angles = torch.arange(query.shape[1])[:, None] * 10_000 ** -torch.linspace(0, 1, AMX_HEAD_WIDTH // 2)
    best = [float("inf")] * len(ways)
    for _ in range(rounds):
        for place, attention in enumerate(ways):
            started = time.perf_counter()
            attention(*inputs, angles.cos(), angles.sin()).backward(of_got)
            best[place] = min(best[place], 1000 * (time.perf_counter() - started))
    return best


if __name__ == "__main__":
    sys.exit(run_script(lambda: main(tyro.cli(Benchmark, description=__doc__))))
