"""Tokens per second of the in-process engine, beside transformers' own ways to generate, in one run.

The requests are alike: a long beginning in common, an end of their own, 40 new tokens, greedy. The network is
random and of the size of the embedded model, unless another one is named. Every way gets the requests twice,
each time with the ways in turn, and its best time counts, since other programs may use the machine.

Run it with ``python benchmarks/local_engine.py --help``.
"""

import copy
import logging
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from dspy.lm15 import Config, Message, Request
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    ContinuousBatchingConfig,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging as transformers_logging

from memory_program.learning.decoding import Decoder
from memory_program.learning.local import LocalEngine, LocalSettings
from memory_program.learning.weights import LoadedModel

_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Benchmark:
    """What is measured."""

    model: str | None = None
    """A folder or hub id; None makes a random network: 7.6 M parameters, 4 layers of 256, 8,192 tokens."""

    requests: int = 16
    """How many requests; each way answers all of them."""

    concurrency: int = 16
    """How many threads ask the engine at once, and how many texts transformers batches."""

    common_tokens: int = 150
    """Tokens that all prompts begin with, the fixed ones of the chat template aside."""

    own_tokens: tuple[int, int] = (50, 250)
    """Tokens of its own that each prompt has, from and to. The program's prompts for the embedded model have
    300 together on average, and a third to two thirds of a reader's or a rollout's are known."""

    new_tokens: int = 40
    """Tokens of each reply."""

    threads: int = 2
    """Processor threads of each way."""


def main(benchmark: Benchmark) -> None:
    """Measure, and print a table."""
    torch.set_num_threads(benchmark.threads)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        source = benchmark.model or str(_save_random_model(Path(folder)))
        engine = LocalEngine(LocalSettings(source=source))
        _measure(engine, benchmark)
        engine.close()


@dataclass(frozen=True)
class _Speed:
    tokens_per_s: float = 0.0
    cpu_ms_per_token: float = 0.0


def _measure(engine: LocalEngine, benchmark: Benchmark) -> None:
    requests, at_once = _requests(engine, benchmark), benchmark.concurrency
    prompts = [engine.prompt_tokens(request) for request in requests]
    network, sizes = engine.model.network, sorted(map(len, prompts))
    millions = sum(weight.numel() for weight in network.parameters()) / 1e6
    print(f"{millions:.1f} M parameters, {network.dtype}, {network.device}, {benchmark.threads} threads")
    print(
        f"{len(prompts)} prompts of {sizes[0]} to {sizes[-1]} tokens, {benchmark.new_tokens} new tokens each"
    )
    theirs = copy.deepcopy(engine.model)
    theirs.network.set_attn_implementation("sdpa")  # with the attention of the engine it does not batch
    ways: dict[str, Callable[[], int]] = {
        "engine, one call at a time": lambda: _ask(engine, requests, 1),
        f"engine, {at_once} at once": lambda: _ask(engine, requests, at_once),
        "generate, one by one": lambda: _generate(theirs, prompts, 1, benchmark),
        f"generate, batches of {at_once}": lambda: _generate(theirs, prompts, at_once, benchmark),
        "generate_batch (continuous)": lambda: _generate_batch(theirs, prompts, benchmark),
    }
    speeds = dict.fromkeys(ways, _Speed())
    for _ in range(2):
        for name, way in ways.items():
            with engine.updating():  # forgets what the prompts have in common
                pass
            speed = _timed(way)
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


def _timed(way: Callable[[], int]) -> _Speed:
    started, cpu_started = time.perf_counter(), time.process_time()
    tokens = way()
    elapsed_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
    return _Speed(tokens / elapsed_s, 1000 * cpu_s / tokens)


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
            **batch.to(network.device), max_new_tokens=benchmark.new_tokens, do_sample=False
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
            max_new_tokens=benchmark.new_tokens,
            do_sample=False,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        ),
        # by default it fills most of the memory first; from 64 to 2,048 tokens a pass were about as fast
        continuous_batching_config=ContinuousBatchingConfig(
            num_blocks=64, max_batch_tokens=256, max_requests_per_batch=benchmark.concurrency
        ),
    )
    return sum(len(output.generated_tokens) for output in outputs.values())


def _rounding(
    engine: LocalEngine, dtype: torch.dtype, prompts: Sequence[Sequence[int]]
) -> tuple[float, float]:
    """Compute the same logits in a batch that grows, and from one text alone; how far apart are they?

    Returns:
        The largest difference as a share of its row's largest logit, and the largest logit of all.
    """
    network = copy.deepcopy(engine.model.network)
    decoder = Decoder(network.to(dtype).eval(), engine.model.kv_shape, prefix_tokens=4096)
    choose = random.Random(0)
    texts = [list(prompt) for prompt in prompts]
    for text in texts:
        decoder.begin(text)
    shares, largest = [0.0], 0.0
    for _ in range(8):
        new = [choose.randrange(engine.model.tokenizer.vocab_size) for _ in texts]
        together = decoder.step(new)
        for row, (text, token) in enumerate(zip(texts, new, strict=True)):
            text.append(token)
            if row % 4 == 0:
                alone = decoder.reread(text)[0]
                shares.append(float((together[row] - alone).abs().max() / alone.abs().max()))
                largest = max(largest, float(alone.abs().max()))
    return max(shares), largest


def _requests(engine: LocalEngine, benchmark: Benchmark) -> list[Request]:
    choose = random.Random(1)
    words = [_word(choose) for _ in range(2000)]

    def text(tokens: int) -> str:
        said = ""
        while len(engine.reply_tokens(said)) <= tokens:  # one more than the text has: the token that ends it
            said += f"{choose.choice(words)} "
        return said

    common = text(benchmark.common_tokens)
    config = Config(temperature=0.0, max_tokens=benchmark.new_tokens)
    return [
        Request(
            model="local:benchmark",
            system=common,
            messages=(Message.user(text(choose.randint(*benchmark.own_tokens))),),
            config=config,
        )
        for _ in range(benchmark.requests)
    ]


def _word(choose: random.Random) -> str:
    return "".join(
        choose.choice("bdfgklmnprstv") + choose.choice("aeiou") for _ in range(choose.randint(1, 3))
    )


def _save_random_model(folder: Path) -> Path:
    """Save a random network, whose logits are as large as a trained one's, with a tokenizer."""
    choose = random.Random(2)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=8192,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator((" ".join(_word(choose) for _ in range(100)) for _ in range(500)), trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        chat_template=_TEMPLATE,
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)
    torch.manual_seed(3)
    network = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=8192,
            hidden_size=256,
            intermediate_size=768,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=8,
            max_position_embeddings=4096,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=tokenizer.token_to_id("<|im_end|>"),
            pad_token_id=tokenizer.token_to_id("<|im_end|>"),
        )
    )
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(3.0 if weight.ndim == 2 else 1.0)
    network.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    main(tyro.cli(Benchmark, description=__doc__))
