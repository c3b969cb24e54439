"""Tokens per second of the in-process engine, compared with transformers' own generation, in one run.

The requests are those of the program's own writer and reader about generated conversations. There are
enough of them that the last replies, in smaller and smaller batches, count little. Every method answers them
greedily, twice, in turn with the others. Its best time counts, since other programs may use the machine.

Run it with ``python benchmarks/local_engine.py --help``.
"""

import copy
import logging
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
import tyro
from dspy.lm15 import Config, Message, Request
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.utils import logging as transformers_logging

from memory_program.inference.decoder import Decoder
from memory_program.inference.engine import LocalEngine, LocalSettings
from memory_program.inference.loading import DtypeName, LoadedModel
from memory_program.inference.prefix_cache import PrefixCache
from memory_program.models.model_names import POCKET, model_source
from memory_program.worlds import generate_worlds
from recipes.pocket.training_text import collect_exchanges

_ROUNDS = 2


@dataclass(frozen=True)
class Benchmark:
    """Settings of the benchmark."""

    model: str = POCKET
    """The embedded model, or "local:" and a folder or hub id of a model made for chat."""

    dtype: DtypeName | None = None
    """The number format of the model; None takes the engine's own choice."""

    conversations: int = 4
    """Generated conversations."""

    sessions: int = 8
    """Sessions of each."""

    concurrency: int = 16
    """Threads that call the engine at once, and the batch size of transformers."""

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
    engine = LocalEngine(LocalSettings(source=model_source(benchmark.model), dtype=benchmark.dtype))
    _measure(engine, benchmark)
    engine.close()


@dataclass(frozen=True)
class _Speed:
    tokens_per_s: float = 0.0
    cpu_ms_per_token: float = 0.0


def _measure(engine: LocalEngine, benchmark: Benchmark) -> None:
    requests, at_once = _requests(benchmark), benchmark.concurrency
    prompts = [engine.prompt_tokens(request) for request in requests]
    network, sizes = engine.model.network, sorted(map(len, prompts))
    millions = sum(weight.numel() for weight in network.parameters()) / 1e6
    print(f"{millions:.1f} M parameters, {network.dtype}, {network.device}, {benchmark.threads} threads")
    print(f"{len(prompts)} prompts of {sizes[0]} to {sizes[-1]} tokens, {sum(sizes)} in all")
    first = prompts[: max(1, at_once // 4)]
    prefill = _timed(lambda: _prefill(engine.model, first))
    print(f"prefill: {prefill.tokens_per_s:.0f} tokens/s, {prefill.cpu_ms_per_token:.2f} CPU ms/token")
    reference = copy.deepcopy(engine.model)
    reference.network.set_attn_implementation("sdpa")  # the attention of the engine does not batch there
    methods: dict[str, Callable[[], int]] = {
        "engine, one call at a time": lambda: _ask(engine, requests, 1),
        f"engine, {at_once} at once": lambda: _ask(engine, requests, at_once),
        "generate, one at a time": lambda: _generate(reference, prompts, 1, benchmark),
        f"generate, batches of {at_once}": lambda: _generate(reference, prompts, at_once, benchmark),
        "generate_batch (continuous)": lambda: _generate_batch(reference, prompts, benchmark),
    }
    speeds = dict.fromkeys(methods, _Speed())
    for _ in range(_ROUNDS):
        for name, method in methods.items():
            with engine.updating():  # clears the prefix cache
                pass
            speed = _timed(method)
            if speed.tokens_per_s > speeds[name].tokens_per_s:
                speeds[name] = speed
    alone = speeds["engine, one call at a time"].tokens_per_s
    print(f"{'':30} {'new tokens/s':>14} {'times':>6} {'CPU ms/token':>14}")
    for name, speed in speeds.items():
        ratio = speed.tokens_per_s / alone
        print(f"{name:30} {speed.tokens_per_s:14.0f} {ratio:6.1f} {speed.cpu_ms_per_token:14.2f}")
    for dtype in (torch.float32, torch.bfloat16):
        share, largest = _rounding(engine, dtype, prompts[:at_once])
        print(
            f"{dtype}: logits in a batch and alone differ by up to {share:.1e} of the largest ({largest:.1f})"
        )


def _timed(method: Callable[[], int]) -> _Speed:
    started, cpu_started = time.perf_counter(), time.process_time()
    tokens = method()
    elapsed_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
    return _Speed(tokens / elapsed_s, 1000 * cpu_s / tokens)


def _prefill(model: LoadedModel, prompts: Sequence[Sequence[int]]) -> int:
    Decoder(model.network, model.kv_shape, PrefixCache(0)).prefill(prompts)
    return sum(map(len, prompts))


def _ask(engine: LocalEngine, requests: Sequence[Request], concurrency: int) -> int:
    with ThreadPoolExecutor(concurrency) as threads:
        responses = list(threads.map(engine.complete, requests))
    return sum(response.usage.output_tokens or 0 for response in responses)


def _generate(
    model: LoadedModel, prompts: Sequence[Sequence[int]], batch_size: int, benchmark: Benchmark
) -> int:
    network, tokenizer, tokens = model.network, model.tokenizer, 0
    tokenizer.padding_side = "left"
    for first in range(0, len(prompts), batch_size):
        batch = tokenizer.pad({"input_ids": list(prompts[first : first + batch_size])}, return_tensors="pt")
        output = network.generate(
            **batch.to(network.device), max_new_tokens=benchmark.most_tokens, do_sample=False
        )
        new = output[:, batch["input_ids"].shape[1] :]
        ended = (new == tokenizer.eos_token_id).cumsum(dim=1)
        tokens += int(((ended == 0) | ((ended == 1) & (new == tokenizer.eos_token_id))).sum())
    return tokens


def _generate_batch(model: LoadedModel, prompts: Sequence[Sequence[int]], benchmark: Benchmark) -> int:
    tokenizer = model.tokenizer
    outputs = model.network.generate_batch(
        [list(prompt) for prompt in prompts],
        generation_config=GenerationConfig(
            max_new_tokens=benchmark.most_tokens,
            do_sample=False,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        ),
        # the default reserves most of the memory; 64 to 2,048 tokens a pass were about as fast
        continuous_batching_config=ContinuousBatchingConfig(
            num_blocks=64, max_batch_tokens=256, max_requests_per_batch=benchmark.concurrency
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
    decoder = Decoder(network.to(dtype).eval(), engine.model.kv_shape, PrefixCache(4096))
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
    main(tyro.cli(Benchmark, description=__doc__))
