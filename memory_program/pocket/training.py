"""The training loop of the embedded model: chunk after chunk, with probes, checkpoints and a log."""

import json
import multiprocessing
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, LlamaForCausalLM, PreTrainedTokenizerFast

from locomo.world import generate
from memory_program.errors import ConfigError
from memory_program.pocket.asking import Marks
from memory_program.pocket.examples import (
    Batch,
    batches,
    chunk,
    load_examples,
    save_examples,
    texts_of,
)
from memory_program.pocket.model import Shape, layers_of, make_model
from memory_program.pocket.optimizer import make_optimizers
from memory_program.pocket.probes import Probe, make_probe, measure
from memory_program.pocket.recipe import STAGES, PretrainConfig, Stage
from memory_program.pocket.side_tasks import SideTasks, Streams
from memory_program.pocket.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer

_TOKENIZER_WORLDS = 300
_TOKENIZER_SEED = 9_000_000_000_000_000
_PROBE_SEED = 8_000_000_000_000_000
_PROBE_SESSIONS = (2, 6)
_WARM_UP_STEPS = 30
_LONGEST_NORM = 1.0
_FREE = {  # what may change between a training and its continuation
    "out",
    "minutes",
    "probe_minutes",
    "probe_size",
    "workers",
    "threads",
    "compile",
}


@dataclass(slots=True)
class Progress:
    """How far a training is."""

    chunks: int = 0
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: float = -1.0
    scores: dict[str, float] = field(default_factory=dict[str, float])


def pretrain(config: PretrainConfig) -> Progress:
    """Train, or go on training: a folder that holds a checkpoint is taken up where it was left.

    Raises:
        ConfigError: the folder holds a training with other settings.
    """
    config.out.mkdir(parents=True, exist_ok=True)
    _keep_settings(config)
    torch.set_num_threads(config.threads)
    tokenizer = _tokenizer(config)
    training = Training(config, tokenizer)
    training.resume()
    return training.run()


class Training:
    """One training: network, optimisers, probe and progress."""

    def __init__(self, config: PretrainConfig, tokenizer: PreTrainedTokenizerFast) -> None:
        """Start from the first weights."""
        self.config = config
        self.tokenizer = tokenizer
        self.progress = Progress()
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        shape = Shape(config.width, config.layers, config.width // 32, config.inner)
        assert isinstance(tokenizer.eos_token_id, int)
        model = make_model(shape, len(tokenizer), tokenizer.eos_token_id, config.seed)
        self.model: LlamaForCausalLM = model.to(self.device)  # pyright: ignore[reportArgumentType]
        self.optimizers = make_optimizers(self.model, config.muon_rate, config.adam_rate)
        torch.manual_seed(config.seed)
        self.side_tasks = SideTasks(config.width).to(self.device)
        self.optimizers[-1].add_param_group(
            {"params": list(self.side_tasks.parameters()), "lr": config.adam_rate / 4}
        )
        weights = (config.beginning_weight, config.content_weight, config.pointer_weight)
        self._side_weights = torch.tensor(weights, device=self.device)
        AttentionInterface.register("causal", _causal)
        self.model.set_attn_implementation("causal")
        self._streams: Callable[[Tensor], Streams] = self._run_layers
        if config.compile:
            self._streams = torch.compile(self._run_layers, dynamic=True)
        self._half = torch.autocast(self.device.type, torch.bfloat16, enabled=multiplies_halves(self.device))
        self._held_out: Probe | None = None
        self._since_probe = time.monotonic()

    # -- the loop --------------------------------------------------------------------------------

    def run(self) -> Progress:
        """Train until all tokens or minutes are used; probes and checkpoints on the way."""
        began = time.monotonic()
        if not self.progress.scores:
            self._probe()
        for number, made in self._chunks():
            if number and self._stage(number - 1) is not self._stage(number) is STAGES[-1]:
                self._save_model(self.config.out / "base")
            started = time.monotonic()
            loss, *on_the_side = torch.stack([self._step(batch) for batch in made]).mean(0).tolist()
            size = sum(batch.size for batch in made)
            self.progress.chunks = number + 1
            self.progress.tokens += size
            elapsed_s = time.monotonic() - started
            self.progress.seconds += elapsed_s
            self._log(
                stage=self._stage(number).name,
                loss=round(loss, 4),
                side_losses=[round(cost, 4) for cost in on_the_side],
                rate=round(self._rate(), 4),
                tokens_per_s=round(size / elapsed_s),
            )
            if time.monotonic() - self._since_probe > self.config.probe_minutes * 60:
                self._probe()
            if time.monotonic() - began > self.config.minutes * 60:
                break
        self._probe()
        self._save_model(self.config.out / "model")
        return self.progress

    def _step(self, batch: Batch) -> Tensor:
        """Take a step on a batch; give the mean losses: of replies, and of the tasks on the side."""
        self.model.train()
        for optimizer in self.optimizers:
            for settings in optimizer.param_groups:
                settings["lr"] = settings.setdefault("full_lr", settings["lr"]) * self._rate()
        tokens, places, is_reply, *questions = (
            torch.from_numpy(array).to(self.device, non_blocking=True)
            for array in (
                batch.tokens,
                batch.places,
                batch.is_reply,
                batch.asked,
                batch.lines,
                batch.pointers,
            )
        )
        with self._half:
            streams = self._streams(tokens)
            logits = self.model.lm_head(streams.last[:, :-1].flatten(0, 1)[places])
            on_the_side = self.side_tasks.losses(self.model, streams, *questions)
        targets = tokens[:, 1:].flatten()[places].long()
        losses = torch.nn.functional.cross_entropy(logits.float(), targets, reduction="none")
        (losses.mean() + on_the_side @ self._side_weights).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), _LONGEST_NORM)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.progress.steps += 1
        with torch.no_grad():
            of_replies = (losses * is_reply).sum() / is_reply.sum()
            return torch.cat((of_replies[None], on_the_side))

    def _run_layers(self, tokens: Tensor) -> Streams:
        body = self.model.model
        stream: Tensor = body.embed_tokens(tokens)
        positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        rotary = body.rotary_emb(stream, positions)
        early = middle = stream
        for number, layer in enumerate(layers_of(self.model)):
            stream = layer(stream, position_embeddings=rotary, position_ids=positions)
            if number == 1:
                early = stream
            if number + 1 == len(body.layers) // 2:
                middle = stream
        return Streams(early, middle, body.norm(stream))

    def _rate(self) -> float:
        """What the learning rates are multiplied with: soon 1, and falling to zero at the end."""
        warm = min(1.0, (self.progress.steps + 1) / _WARM_UP_STEPS)
        left = 1 - self.progress.tokens / self.config.tokens
        return warm * min(1.0, max(0.02, left) / self.config.decay if self.config.decay else 1.0)

    # -- text ------------------------------------------------------------------------------------

    def _chunks(self) -> Iterator[tuple[int, list[Batch]]]:
        """Give chunk after chunk, in batches; the next ones are made meanwhile by other processes."""
        first, last = self.progress.chunks, self._chunk_count()
        workers = self.config.workers
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, context, _end_with, (os.getpid(),)) as pool:
            ahead = deque(
                self._submitted(pool, number) for number in range(first, min(first + 2 * workers, last))
            )
            for number in range(first, last):
                made = ahead.popleft().result()
                if number + 2 * workers < last:
                    ahead.append(self._submitted(pool, number + 2 * workers))
                yield number, made

    def _submitted(self, pool: ProcessPoolExecutor, number: int) -> Future[list[Batch]]:
        return pool.submit(_batches_of, self.config, number, self._text_of(number), self._stage(number))

    def _text_of(self, number: int) -> int:
        """Which text of its stage a chunk is: from the stage's second pass on, those of its first again."""
        stages = [self._stage(n).name for n in range(self._chunk_count())]
        first, count = stages.index(stages[number]), stages.count(stages[number])
        return (number - first) % -(-count // self.config.passes)

    def _chunk_count(self) -> int:
        return max(1, self.config.tokens // self.config.chunk_tokens)

    def _stage(self, number: int) -> Stage:
        share = number / self._chunk_count()
        return next(s for s in STAGES if share < s.until or s.name == self.config.last_stage)

    # -- probes, checkpoints, log ----------------------------------------------------------------

    def _probe(self) -> None:
        """Measure, write it down, and keep a checkpoint; the best model so far has a folder of its own."""
        probe = self._held_out = self._held_out or make_probe(
            self.tokenizer, _PROBE_SEED, self.config.probe_size, _PROBE_SESSIONS
        )
        self.model.eval()
        started = time.monotonic()
        with self._half:
            found = measure(self.model, probe, self.config.batch_tokens)
        self.progress.scores = found
        value = sum(found.values())
        if value >= self.progress.best:
            self.progress.best = value
            self._save_model(self.config.out / "best")
        self._log(
            probe={name: round(score, 4) for name, score in found.items()},
            probe_s=round(time.monotonic() - started, 1),
        )
        self._save_checkpoint()
        self._since_probe = time.monotonic()

    def _save_model(self, folder: Path) -> None:
        deepcopy(self.model).half().save_pretrained(folder)
        save_tokenizer(self.tokenizer, folder)

    def _save_checkpoint(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "side_tasks": self.side_tasks.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "progress": {name: getattr(self.progress, name) for name in self.progress.__slots__},
        }
        draft = self.config.out / "checkpoint.draft"
        torch.save(state, draft)
        draft.replace(self.config.out / "checkpoint.pt")  # whole or not at all

    def resume(self) -> None:
        """Take up the checkpoint of the folder, if there is one."""
        path = self.config.out / "checkpoint.pt"
        if not path.exists():
            return
        state: dict[str, Any] = torch.load(path, map_location=self.device)  # Any: what torch stores
        self.model.load_state_dict(state["model"])
        self.side_tasks.load_state_dict(state["side_tasks"])
        for optimizer, kept in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        self.progress = Progress(**state["progress"])

    def _log(self, **entries: object) -> None:
        progress = self.progress
        at = {"tokens": progress.tokens, "steps": progress.steps, "train_s": round(progress.seconds)}
        with (self.config.out / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps({**at, **entries}) + "\n")


def multiplies_halves(device: torch.device) -> bool:
    """Whether a device multiplies bfloat16 faster than float32; many CPUs do so eighty times slower."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()  # pyright: ignore[reportPrivateUsage]


def _causal(
    _module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: Tensor | None,
    *,
    scaling: float,
    **_options: object,
) -> tuple[Tensor, None]:
    """Attend to what came before; on a CPU in float32, whose backward pass takes half of bfloat16's time."""
    if query.device.type == "cpu":
        query, key, value = query.float(), key.float(), value.float()
    with torch.autocast("cpu", enabled=False):
        attended = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling
        )
    return attended.transpose(1, 2), None


def _tokenizer(config: PretrainConfig) -> PreTrainedTokenizerFast:
    folder = config.out / "tokenizer"
    if not folder.exists():
        texts, others = (
            [
                text
                for world in generate(_TOKENIZER_SEED, _TOKENIZER_WORLDS, sessions=(4, 12), held_out=held_out)
                for text in texts_of(world)
            ]
            for held_out in (False, True)
        )
        save_tokenizer(train_tokenizer(texts, others, config.vocabulary), folder)
    return load_tokenizer(folder)


def _keep_settings(config: PretrainConfig) -> None:
    """Write the settings beside the training, or compare them with those that it began with."""
    path = config.out / "config.json"
    lasting = config.model_dump(mode="json", exclude=_FREE)
    if not path.exists():
        path.write_text(json.dumps(lasting, indent=1) + "\n", encoding="utf-8")
        return
    before = json.loads(path.read_text(encoding="utf-8"))
    changed = sorted(name for name in lasting if lasting[name] != before.get(name))
    if changed:
        told = ", ".join(f"{name}={before.get(name)!r}" for name in changed)
        raise ConfigError(
            f"out={str(config.out)!r} holds a training with {told}: give the same settings to go on with it, "
            "or another folder"
        )


def _end_with(parent: int) -> None:
    """Let the process that makes chunks end when the training was killed and cannot tell it to."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _batches_of(config: PretrainConfig, number: int, text: int, stage: Stage) -> list[Batch]:
    """Make the batches of a chunk, in a process that does so."""
    kept = config.out / "text" / f"{stage.name}-{text}.npz"
    if kept.exists():
        examples = load_examples(kept)
    else:
        size = min(config.chunk_tokens, config.tokens)
        examples = chunk(config.seed, text, stage, size, load_tokenizer(config.out / "tokenizer"))
        if config.passes > 1:
            kept.parent.mkdir(exist_ok=True)
            save_examples(examples, kept)
    rng = random.Random(f"{config.seed}:{number}:order")
    marks = Marks.of(load_tokenizer(config.out / "tokenizer"))
    return batches(examples, config.batch_tokens, config.prompt_weight, marks, rng)
