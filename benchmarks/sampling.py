"""Tokens per second of the in-process engine, of transformers and of vLLM, in one run.

The requests are those of the program's own writer and reader about generated conversations. There are
enough of them that the last replies, in smaller and smaller batches, count little. Every method answers the
same token ids greedily, up to the same limit, twice, in turn with the others. Its best time counts, since
other programs may use the machine.

Run it with ``python benchmarks/sampling.py --help``. vLLM takes part if its executable is on the PATH or
named by the variable ``VLLM``.
"""

import contextlib
import copy
import logging
import os
import random
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import httpx
import torch
import tyro
from dspy.lm15 import Config, Message, Request
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the recipe of pocket has the exchanges

from memory_program.core.command_line import run_script
from memory_program.inference.decoder import Decoder
from memory_program.inference.engine import LocalEngine, LocalSettings
from memory_program.inference.loading import DtypeName, LoadedModel
from memory_program.inference.prefix_cache import PrefixCache
from memory_program.inference.vllm_server import serve_model, stop_servers
from memory_program.models.model_names import POCKET, model_source
from memory_program.worlds import generate_worlds
from recipes.pocket.training_text import collect_exchanges

_ROUNDS = 2


@dataclass(frozen=True)
class Benchmark:
    """Settings of the benchmark."""

    models: tuple[str, ...] = (POCKET,)
    """The embedded model, or "local:" and a folder or hub id of a model made for chat; several are measured
    one after the other."""

    dtype: DtypeName | None = None
    """The number format of the model; None takes the engine's own choice."""

    conversations: int = 4
    """Generated conversations."""

    sessions: int = 8
    """Sessions of each."""

    concurrency: tuple[int, ...] = (1, 16)
    """Calls at once of the engine and of vLLM, and the batch sizes of transformers."""

    most_tokens: int = 128
    """Most tokens of a reply."""

    threads: int = 2
    """Processor threads of each method."""

    seed: int = 1
    """Seed of the conversations."""


def main(benchmark: Benchmark) -> None:
    """Measure, and print a table."""
    torch.set_num_threads(benchmark.threads)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
    for model in benchmark.models:
        engine = LocalEngine(LocalSettings(source=model_source(model), dtype=benchmark.dtype))
        _measure(model, engine, benchmark)
        engine.close()


@dataclass(frozen=True)
class _Speed:
    tokens_per_s: float = 0.0
    cpu_ms_per_token: float = 0.0


def _measure(model: str, engine: LocalEngine, benchmark: Benchmark) -> None:
    requests, most_at_once = _requests(benchmark), max(benchmark.concurrency)
    prompts = [engine.prompt_tokens(request) for request in requests]
    network, sizes = engine.model.network, sorted(map(len, prompts))
    millions = sum(weight.numel() for weight in network.parameters()) / 1e6
    print(f"{model}: {millions:.1f} M parameters, {network.dtype}, {network.device}", end=", ")
    print(f"{benchmark.threads} threads")
    print(f"{len(prompts)} prompts of {sizes[0]} to {sizes[-1]} tokens, {sum(sizes)} in all")
    first = prompts[: max(1, most_at_once // 4)]
    prefill = _timed(lambda: _prefill(engine.model, first))
    print(f"prefill: {prefill.tokens_per_s:.0f} tokens/s, {prefill.cpu_ms_per_token:.2f} CPU ms/token")
    reference = copy.deepcopy(engine.model)
    reference.network.set_attn_implementation("sdpa")  # the attention of the engine does not batch there
    methods: dict[str, Callable[[], int]] = {}
    for size in benchmark.concurrency:
        methods[f"engine, {size} at once"] = partial(_ask, engine, requests, size)
        methods[f"generate, batches of {size}"] = partial(_generate, reference, prompts, size, benchmark)
    methods["generate_batch (continuous)"] = partial(_generate_batch, reference, prompts, benchmark)
    if os.environ.get("VLLM") or shutil.which("vllm"):
        dtype = str(network.dtype).removeprefix("torch.")
        url = serve_model(model, model_source(model), ["--dtype", dtype])
        for size in benchmark.concurrency:
            methods[f"vLLM, {size} at once"] = partial(_ask_vllm, url, model, prompts, size, benchmark)
    speeds = dict.fromkeys(methods, _Speed())
    for _ in range(_ROUNDS):
        for name, method in methods.items():
            with engine.updating():  # clears the prefix cache
                pass
            speed = _timed(method)
            if speed.tokens_per_s > speeds[name].tokens_per_s:
                speeds[name] = speed
    stop_servers()
    alone = next(iter(speeds.values())).tokens_per_s
    print(f"{'':30} {'new tokens/s':>14} {'times':>6} {'CPU ms/token':>14}")
    for name, speed in speeds.items():
        ratio = speed.tokens_per_s / alone
        print(f"{name:30} {speed.tokens_per_s:14.0f} {ratio:6.1f} {speed.cpu_ms_per_token:14.2f}")
    for number_format in (torch.float32, torch.bfloat16):
        share, largest = _rounding(engine, number_format, prompts[:most_at_once])
        print(
            f"{number_format}: logits in a batch and alone differ by up to {share:.1e} of the largest", end=""
        )
        print(f" ({largest:.1f})")


def _timed(method: Callable[[], int]) -> _Speed:
    started, cpu_started = time.perf_counter(), _cpu_seconds()
    tokens = method()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    elapsed_s, cpu_s = time.perf_counter() - started, _cpu_seconds() - cpu_started
    return _Speed(tokens / elapsed_s, 1000 * cpu_s / tokens)


def _cpu_seconds() -> float:
    """Add up the processor time of this process and of all below it (Linux)."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    ticks: dict[int, int] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            fields = file.read_text().rpartition(")")[2].split()
            children[int(fields[1])].append(int(file.parent.name))
            ticks[int(file.parent.name)] = int(fields[11]) + int(fields[12])
    waiting, total = [os.getpid()], 0
    while waiting:
        process = waiting.pop()
        total += ticks.get(process, 0)
        waiting += children[process]
    return total / os.sysconf("SC_CLK_TCK")


def _prefill(model: LoadedModel, prompts: Sequence[Sequence[int]]) -> int:
    Decoder(model.network, model.kv_shape, PrefixCache(0)).prefill(prompts)
    return sum(map(len, prompts))


def _ask(engine: LocalEngine, requests: Sequence[Request], concurrency: int) -> int:
    with ThreadPoolExecutor(concurrency) as threads:
        responses = list(threads.map(engine.complete, requests))
    return sum(response.usage.output_tokens or 0 for response in responses)


def _ask_vllm(
    url: str, model: str, prompts: Sequence[Sequence[int]], concurrency: int, benchmark: Benchmark
) -> int:
    # The salt keeps apart the prefixes that are cached in each round, as the engine's cache is cleared.
    same = {
        "model": model,
        "temperature": 0.0,
        "max_tokens": benchmark.most_tokens,
        "cache_salt": str(uuid4()),
    }

    def complete(prompt: Sequence[int]) -> int:
        reply = client.post(f"{url}/completions", json={**same, "prompt": prompt})
        tokens: int = reply.raise_for_status().json()["usage"]["completion_tokens"]
        return tokens

    with httpx.Client(timeout=None) as client, ThreadPoolExecutor(concurrency) as threads:
        return sum(threads.map(complete, prompts))


def _generate(
    model: LoadedModel, prompts: Sequence[Sequence[int]], batch_size: int, benchmark: Benchmark
) -> int:
    network, tokenizer, tokens = model.network, model.tokenizer, 0
    tokenizer.padding_side = "left"
    for first in range(0, len(prompts), batch_size):
        unpadded: dict[str, Any] = {"input_ids": list(prompts[first : first + batch_size])}
        batch = tokenizer.pad(unpadded, return_tensors="pt")
        output = cast(Any, network).generate(
            **batch.to(network.device), max_new_tokens=benchmark.most_tokens, do_sample=False
        )
        new = output[:, batch["input_ids"].shape[1] :]
        ended = (new == tokenizer.eos_token_id).cumsum(dim=1)
        tokens += int(((ended == 0) | ((ended == 1) & (new == tokenizer.eos_token_id))).sum())
    return tokens


def _generate_batch(model: LoadedModel, prompts: Sequence[Sequence[int]], benchmark: Benchmark) -> int:
    tokenizer = model.tokenizer
    outputs = cast(Any, model.network).generate_batch(
        [list(prompt) for prompt in prompts],
        generation_config=GenerationConfig(
            max_new_tokens=benchmark.most_tokens,
            do_sample=False,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        ),
        # the default reserves most of the memory; 64 to 2,048 tokens a pass were about as fast
        continuous_batching_config=ContinuousBatchingConfig(
            num_blocks=64, max_batch_tokens=256, max_requests_per_batch=max(benchmark.concurrency)
        ),
    )
    return sum(len(output.generated_tokens) for output in outputs.values())


def _rounding(
    engine: LocalEngine, dtype: torch.dtype, prompts: Sequence[Sequence[int]]
) -> tuple[float, float]:
    """Compare logits decoded in a batch with those computed from one sequence alone.

    Returns:
        The largest difference as a share of its row's largest logit, and the largest logit of all.
    """
    network = copy.deepcopy(engine.model.network)
    decoder = Decoder(
        cast(PreTrainedModel, torch.nn.Module.to(network, dtype)).eval(),
        engine.model.kv_shape,
        PrefixCache(4096),
    )
    choose = random.Random(0)
    texts = [list(prompt) for prompt in prompts]
    for prefilled in decoder.prefill(texts):
        decoder.add_sequence(prefilled)
    shares, largest = [0.0], 0.0
    for _ in range(8):
        new = [choose.randrange(engine.model.tokenizer.vocab_size) for _ in texts]
        together = decoder.decode(new)
        for row, (text, token) in enumerate(zip(texts, new, strict=True)):
            text.append(token)
            if row % 4 == 0:
                alone = decoder.recompute_logits(text)[0]
                shares.append(float((together[row] - alone).abs().max() / alone.abs().max()))
                largest = max(largest, float(alone.abs().max()))
    return max(shares), largest


def _requests(benchmark: Benchmark) -> list[Request]:
    size, choose = benchmark.sessions, random.Random(benchmark.seed)
    worlds = generate_worlds(benchmark.seed, benchmark.conversations, sessions=(size, size), held_out=True)
    config = Config(temperature=0.0, max_tokens=benchmark.most_tokens)
    return [
        Request("local:benchmark", (Message.user(call.user),), system=call.system, config=config)
        for world in worlds
        for call in collect_exchanges(world, choose)
    ]


if __name__ == "__main__":
    sys.exit(run_script(lambda: main(tyro.cli(Benchmark, description=__doc__))))
