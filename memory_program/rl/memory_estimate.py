"""An estimate of the memory of a training, from the model's configuration and the settings, before it loads.

``estimate_memory`` adds up what is allocated at the peak of a step; ``benchmarks/memory.py`` compares the sum
with measured peaks. A training that cannot fit is refused, with the smallest change that makes it fit.
"""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from memory_program.configs.trainer_groups import OptimizerSettings, ReinforceSettings
from memory_program.core.errors import ConfigError
from memory_program.core.gpus import count_local_processes
from memory_program.core.settings import filled_in
from memory_program.inference.loading import DeviceName, NetworkShape
from memory_program.rl.trainer.token_scores import CHUNK_LOGITS

GIB = 2**30
LONG_PROMPT_TOKENS = 3000
"""Prompts of a writer on LoCoMo have 1,500 to 3,000 tokens."""

_FLOAT32, _BFLOAT16 = 4, 2
_LOGIT_COPIES = 5  # scaled logits, their softmax and its products, and their gradients
_PREFIX_TOKENS = 16_384  # of the engine's prefix cache
_MIN_BATCH_TOKENS = 1024
_TOLERANCE = 1.2  # the estimate may be too high by this factor

SettingsT = TypeVar("SettingsT", OptimizerSettings, ReinforceSettings)


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling of a training by rewards.

    ``concurrency`` is the most texts at once; ``prompt_tokens`` and ``reply_tokens`` are those of the
    longest.
    """

    concurrency: int
    prompt_tokens: int = LONG_PROMPT_TOKENS
    reply_tokens: int = 512


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes by purpose, in the order of a table. ``total`` is the peak: sampling and updates take turns."""

    weights: int
    gradients: int
    optimizer: int
    reference: int
    ema: int
    frozen_model: int
    activations: int
    logits: int
    optimizer_step: int
    kv_cache: int

    @property
    def total(self) -> int:
        """The bytes at the peak of a step."""
        kept = self.weights + self.optimizer + self.reference + self.ema + self.frozen_model
        update = self.gradients + max(self.activations + self.logits, self.optimizer_step)
        return kept + max(update, self.kv_cache)

    def table(self) -> list[str]:
        """List the purposes that take memory, one a line, and the peak."""
        rows = [(name.replace("_", " "), getattr(self, name)) for name in self.__slots__]
        rows.append(("peak of a step", self.total))
        return [f"  {name:16}{size / GIB:9.2f} GiB" for name, size in rows if size]


def estimate_memory(
    shape: NetworkShape,
    settings: OptimizerSettings | ReinforceSettings,
    *,
    weight_bytes: int,
    sampling: Sampling | None = None,
    frozen: NetworkShape | None = None,
    frozen_bytes: int | None = None,
) -> MemoryEstimate:
    """Estimate the memory at the peak of a training's steps.

    The activations are those that autograd keeps for layers of the Llama family (``tests/unit/
    test_memory_estimate.py`` counts them).

    Args:
        shape: of the model to train.
        settings: of the update, without any left out.
        weight_bytes: size of a number in a model as the engine loads it: 4 for float32, 2 for bfloat16.
        sampling: of a training by rewards; None for one by examples.
        frozen: the model in this process that is not trained, if there is one.
        frozen_bytes: size of a number in that model; None takes ``weight_bytes``.
    """
    frozen_bytes = frozen_bytes or weight_bytes
    optimizer = settings.optimizer if isinstance(settings, ReinforceSettings) else settings
    reading = 0 if frozen is None or sampling is None else _kv_cache(frozen, sampling, frozen_bytes)
    beta, ema = (settings.beta, settings.ema_decay) if isinstance(settings, ReinforceSettings) else (0.0, 0.0)
    is_full = optimizer.tuning == "full"
    stored = _FLOAT32 if is_full else weight_bytes
    adapters = optimizer.lora_r * sum(width_in + width_out for width_in, width_out in shape.linear_layers)
    trained = shape.parameters if is_full else adapters
    embedding = shape.vocabulary * shape.hidden
    activations, logits = _activations(shape, optimizer, stored)
    return MemoryEstimate(
        weights=shape.parameters * stored + (0 if is_full else adapters * _FLOAT32),
        gradients=trained * _FLOAT32,
        optimizer=2 * trained * _FLOAT32,
        reference=shape.parameters * _FLOAT32 if is_full and beta else 0,
        ema=trained * _FLOAT32 if ema else 0,
        frozen_model=0 if frozen is None else frozen.parameters * frozen_bytes + reading,
        activations=activations,
        logits=logits,
        # AdamW makes two temporaries of the size of a tensor
        optimizer_step=2 * _FLOAT32 * (embedding if is_full else 0),
        kv_cache=0 if sampling is None else _kv_cache(shape, sampling, stored),
    )


def _activations(shape: NetworkShape, optimizer: OptimizerSettings, stored: int) -> tuple[int, int]:
    """Return the bytes of the activations of one pass, and those of its logits."""
    tokens = filled_in(optimizer.batch_tokens)
    is_full, is_bf16 = optimizer.tuning == "full", bool(optimizer.bf16)
    computed = _BFLOAT16 if is_bf16 else stored
    hidden, attended = shape.hidden, shape.heads * shape.head_width
    inner = max((width_in for width_in, _ in shape.linear_layers), default=4 * hidden)
    # attention keeps query, keys and values repeated for each head, and its output; the MLP keeps the gate
    # before and after its activation, the other branch, and their product
    is_copied = computed != stored or (not is_full and stored != _FLOAT32)
    numbers = (4 * attended + (3 if is_copied and not is_full else 4) * inner) * computed
    # each of two norms keeps its input and its output, and in full tuning also the normalized input
    norms = (3 if is_full else 2) * 2 * hidden
    numbers += norms * stored if computed == stored else (norms - 2 * hidden) * _FLOAT32
    if is_copied:
        # each linear layer keeps its input in the precision in which it computes
        copied = computed if is_bf16 else _FLOAT32
        numbers += (5 * hidden + (0 if is_full else attended + inner)) * copied
    if not is_full:
        numbers += 7 * optimizer.lora_r * (computed if is_bf16 else _FLOAT32)
    per_token = numbers + (shape.heads + 2) * _FLOAT32  # and the scales of softmax and norms
    # the backward pass adds the gradients of one layer
    gradients = (3 * inner + 2 * hidden) * computed
    layers = shape.layers
    if optimizer.gradient_checkpointing:
        activations = tokens * (layers * hidden * stored + per_token + gradients)
    else:
        activations = tokens * (layers * per_token + gradients)
    if is_bf16 and is_full:  # autocast keeps a copy of the weights
        activations += _BFLOAT16 * sum(width_in * width_out for width_in, width_out in shape.linear_layers)
    activations += tokens * 2 * hidden * stored  # of the norm before the output layer
    mask = 2 * tokens * tokens * _FLOAT32
    chunk = min(CHUNK_LOGITS, tokens * shape.vocabulary) * _FLOAT32
    # the gradient of the output layer is a tensor of its own before it is added
    head = shape.vocabulary * shape.hidden * _FLOAT32 if is_full else 0
    return activations + mask, _LOGIT_COPIES * chunk + head


def _kv_cache(shape: NetworkShape, sampling: Sampling, stored: int) -> int:
    """Return the bytes of keys and values while sampling.

    They are a rectangle of rows, a quarter more while it is doubled, the prompts of the running calls, which
    may all differ, and the prefix cache.
    """
    used = sampling.concurrency, sampling.prompt_tokens + sampling.reply_tokens
    rows, columns = (1 << (n - 1).bit_length() for n in used)
    prompts = rows * sampling.prompt_tokens
    tokens = rows * columns * 5 // 4 + prompts + min(_PREFIX_TOKENS, prompts)
    return tokens * 2 * shape.layers * shape.kv_heads * shape.head_width * stored


# -- does it fit? ----------------------------------------------------------------------------------


def check_memory(
    shape: NetworkShape,
    settings: SettingsT,
    free: int,
    *,
    weight_bytes: int,
    sampling: Sampling | None = None,
    frozen: NetworkShape | None = None,
    frozen_bytes: int | None = None,
) -> str:
    """Compare the estimate with the free memory, and return a line about both.

    Args:
        shape: of the model to train.
        settings: of the update, without any left out.
        free: bytes of free memory on the device.
        weight_bytes: as in ``estimate_memory``.
        sampling: as in ``estimate_memory``.
        frozen: as in ``estimate_memory``.
        frozen_bytes: as in ``estimate_memory``.

    Raises:
        ConfigError: the training cannot fit; the message has the estimate and the smallest change that fits.
    """

    def estimate(of: SettingsT) -> MemoryEstimate:
        return estimate_memory(
            shape,
            of,
            weight_bytes=weight_bytes,
            sampling=sampling,
            frozen=frozen,
            frozen_bytes=frozen_bytes,
        )

    found, limit = estimate(settings), free * _TOLERANCE
    told = f"the training needs about {found.total / GIB:.1f} GiB, and {free / GIB:.1f} GiB are free"
    if found.total <= free:
        return f"memory: {told}"
    if found.total <= limit:
        return f"memory: {told}: it may not fit"
    for changes in _smaller_settings(settings):
        changed = estimate(settings.replace(**changes))
        if changed.total <= free:
            flags = ", ".join(
                f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
                for name, value in changes.items()
            )
            advice = f"the smallest change that fits: {flags} makes it {changed.total / GIB:.1f} GiB"
            break
    else:
        advice = "no setting makes it fit: choose a smaller model, or a device with more memory"
    raise ConfigError("\n".join([f"{told}:", *found.table(), advice]))


def _smaller_settings(settings: OptimizerSettings | ReinforceSettings) -> list[dict[str, object]]:
    """List the changes that need less memory, fewest first, and those that cost least before others."""
    values = settings.flat_values()
    batch_tokens: int = values["batch_tokens"]
    sizes = [size for size in (batch_tokens // 2**n for n in range(1, 16)) if size >= _MIN_BATCH_TOKENS]
    options: list[list[dict[str, object]]] = [[{"batch_tokens": size} for size in sizes]]
    smaller: dict[str, object] = {
        "ema_decay": 0.0,
        "beta": 0.0,
        "gradient_checkpointing": True,
        "tuning": "lora",
    }
    for name, value in smaller.items():
        if name in values and values[name] != value:
            options.append([{name: value}])
    found: list[dict[str, object]] = []
    for count in range(1, len(options) + 1):
        for chosen in itertools.combinations(options, count):
            for parts in itertools.product(*chosen):
                found.append({name: value for part in parts for name, value in part.items()})
    return found


def free_memory(device: DeviceName) -> int | None:
    """Return the bytes of free memory for this process; None where the system does not say it.

    On a CPU it is what the system can give without swapping, within the limit of a container. torchrun's
    processes share it. With CUDA, each of them has a GPU of its own.
    """
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text(encoding="ascii"))
        used = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
    except (OSError, ValueError):  # no limit
        return free // count_local_processes()
    return min(free, limit - int(used["anon"])) // count_local_processes()
