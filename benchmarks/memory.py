"""The estimated memory of training steps against the measured peak, each setting in a process of its own.

A setting loads a model, samples a few short texts (GRPO only) and takes two steps on sequences that fill a
pass. On a CPU, the peak is that of the process (resident memory), above what it takes before a model is
loaded, with an allocator that gives freed blocks back. On a GPU, it is the most memory that PyTorch's tensors
took at once. Each method computes there as ``train.py`` does by default: in bfloat16.

    python benchmarks/memory.py --models local:PATH ...
    python benchmarks/memory.py --models local:PATH ... --device cuda --batch-tokens 8192
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from memory_program.inference.loading import DeviceName
from memory_program.models.model_names import model_source

METHODS, TUNINGS = ("sft", "grpo"), ("lora", "full")


def main() -> None:
    """Measure each setting, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", required=True, help="models in this process, local:PATH")
    parser.add_argument("--batch-tokens", type=int, default=512, help="tokens of a pass")
    parser.add_argument("--samples", type=int, default=4, help="samples of a step")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to measure")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        print(json.dumps(_measure(**json.loads(arguments.one))))
        return
    print("| model | method | tuning | estimate, GiB | measured, GiB | ratio |")
    print("|---|---|---|---|---|---|")
    for model, method, tuning in product(arguments.models, METHODS, TUNINGS):
        setting = {
            "model": model,
            "method": method,
            "tuning": tuning,
            "batch_tokens": arguments.batch_tokens,
            "samples": arguments.samples,
            "device": arguments.device,
        }
        command = [sys.executable, __file__, "--models", model, "--one", json.dumps(setting)]
        # without it glibc keeps freed blocks of a few MB: adapters of the 135M then take half as much again
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**20)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            raise SystemExit(f"{model} {method} {tuning} failed:\n{done.stderr[-2000:]}")
        found = json.loads(done.stdout.splitlines()[-1])
        estimated, measured = found["estimated"] / 2**30, found["measured"] / 2**30
        name = model.rstrip("/").rpartition("/")[2]
        row = f"{estimated:.2f} | {measured:.2f} | {estimated / measured:.2f}"
        print(f"| {name} | {method} | {tuning} | {row} |", flush=True)


def _measure(
    model: str, method: str, tuning: str, batch_tokens: int, samples: int, device: DeviceName
) -> dict[str, int]:
    """Take two steps, and return the estimated and the measured bytes."""
    import dspy
    import torch
    from dspy.lm15 import Config, Message, Request

    from memory_program.configs.trainer_groups import ReinforceSettings
    from memory_program.inference.engine import LocalSettings
    from memory_program.inference.loading import read_network_shape
    from memory_program.models.local_model import LocalModel
    from memory_program.rl.memory_estimate import Sampling, estimate_memory
    from memory_program.rl.trainer.packing import Sample
    from memory_program.rl.trainer.policy_step import LocalTrainer
    from memory_program.sft.sft_training import SftSplit
    from memory_program.sft.trl_training import fine_tune

    source, is_grpo, is_cuda = model_source(model), method == "grpo", device == "cuda"
    settings = ReinforceSettings(
        tuning=tuning,
        learning_rate=1e-6,
        warmup_steps=0,
        beta=0.04 if is_grpo else 0.0,
        ema_decay=0.0,
        bf16=is_cuda,
        batch_tokens=batch_tokens,
    )
    is_half = is_cuda and tuning == "lora"  # train.py keeps all weights in float32 to train them
    shape, rng = read_network_shape(source), random.Random(0)
    before = _peak_bytes()
    sampled = 0
    local = LocalModel(
        LocalSettings(source=source, dtype="bfloat16" if is_half else "float32", device=device)
    )
    engine = local.local
    start = batch_tokens // 8
    prompt = tuple(rng.randrange(1000, 2000) for _ in range(start))
    completions = [
        tuple(rng.randrange(1000, 2000) for _ in range(batch_tokens - start)) for _ in range(samples)
    ]
    texts = [Sample(prompt, text, rng.choice([-1.0, 1.0])) for text in completions]
    sampling = Sampling(concurrency=samples, prompt_tokens=start, reply_tokens=16)
    request = Request(
        model="m",
        messages=(Message.user("word " * (start - 40)),),
        config=Config(max_tokens=sampling.reply_tokens, temperature=1.0),
    )
    if is_grpo:
        trainer = LocalTrainer(engine, settings)
        for _ in range(2):
            with ThreadPoolExecutor(samples) as threads:
                list(threads.map(engine.complete, [request] * samples))
            sampled = torch.cuda.max_memory_allocated() if is_cuda else 0  # an update counts anew
            trainer.policy_gradient_step(texts)
    else:
        asked = {"role": "user", "content": request.messages[0].text}
        text = {"messages": [asked, {"role": "assistant", "content": "word " * (batch_tokens - start)}]}
        lm, lessons = dspy.LM(model, engine=local, cache=False), SftSplit([text] * samples, [text])
        with TemporaryDirectory() as folder:
            fine_tune(lm, lessons, Path(folder), settings.optimizer, epochs=2, batch=samples)
    measured = max(sampled, torch.cuda.max_memory_allocated()) if is_cuda else _peak_bytes() - before
    engine.close()
    estimate = estimate_memory(
        shape, settings, weight_bytes=2 if is_half else 4, sampling=sampling if is_grpo else None
    )
    return {"estimated": estimate.total, "measured": measured}


def _peak_bytes() -> int:
    """Return the most memory that this process had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
