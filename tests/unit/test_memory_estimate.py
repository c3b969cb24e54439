"""The estimate of a training's memory: its activations, its total, and a training that does not fit."""

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from memory_program.configs.sft_config import FineTuneConfig
from memory_program.configs.train_config import TrainConfig
from memory_program.configs.trainer_groups import OptimizerSettings, ReinforceSettings
from memory_program.core.errors import ConfigError
from memory_program.inference.engine import LocalEngine, LocalSettings
from memory_program.inference.loading import NetworkShape, read_network_shape
from memory_program.rl import training_models
from memory_program.rl.memory_estimate import GIB, Sampling, check_memory, estimate_memory, free_memory
from memory_program.rl.trainer.packing import Sample, pack_samples
from memory_program.rl.trainer.policy_step import LocalTrainer
from memory_program.rl.trainer.token_scores import TokenScorer
from memory_program.rl.training_run import train
from memory_program.sft.sft_commands import fine_tune_parts
from tests.tiny_model import save_tiny_model

QWEN_3B = NetworkShape(
    parameters=3_085_938_688, layers=36, hidden=2048, vocabulary=151_936, heads=16, kv_heads=2,
    head_width=128, linear_layers=((2048, 2048), (2048, 256), (2048, 256), (2048, 2048),
    (2048, 11_008), (2048, 11_008), (11_008, 2048)) * 36,
)  # fmt: skip
GRPO = {"learning_rate": 1e-6, "warmup_steps": 0, "bf16": True, "batch_tokens": 8192}


def settings(**changes: object) -> ReinforceSettings:
    return ReinforceSettings(**{**GRPO, "tuning": "lora", "beta": 0.0, "ema_decay": 0.0, **changes})


def kept_bytes(folder: Path, dtype: str, training: ReinforceSettings, tokens: int) -> int:
    """Count the bytes that autograd keeps for the backward pass, without weights, mask and logits."""
    engine = LocalEngine(LocalSettings(source=str(folder), dtype=dtype, device="cpu"))
    LocalTrainer(engine, training)  # adds adapters
    network = engine.model.network
    (packed,) = pack_samples([Sample(tuple(n % 300 for n in range(tokens - 8)), tuple(range(8)))], tokens)
    storages = {w.untyped_storage().data_ptr() for w in [*network.parameters(), *network.buffers()]}
    kept: list[torch.Tensor] = []
    scorer = TokenScorer(network)
    network.train()
    if training.optimizer.gradient_checkpointing:
        network.gradient_checkpointing_enable({"use_reentrant": False})
    with (
        torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x),
        torch.autocast("cpu", torch.bfloat16, enabled=bool(training.optimizer.bf16)),
    ):
        scorer.score(network, packed, 1.0)
    sizes = {
        x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()
        for x in kept
        if tokens in x.shape and x.shape[-2:] != (tokens, tokens)
    }
    engine.close()
    return sum(size for place, size in sizes.items() if place not in storages)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize(
    ("dtype", "changes"),
    [
        ("float32", {"tuning": "full", "bf16": False}),
        ("float32", {"tuning": "full", "bf16": True}),
        ("float32", {"tuning": "lora", "bf16": False}),
        ("bfloat16", {"tuning": "lora", "bf16": True}),
        ("bfloat16", {"tuning": "lora", "bf16": False}),
        ("float32", {"tuning": "full", "bf16": False, "gradient_checkpointing": True}),
    ],
)
def test_the_estimated_activations_are_those_that_autograd_keeps(tmp_path, architecture, dtype, changes):
    tokens, layers = 400, 6
    save_tiny_model(tmp_path, architecture, intermediate_size=256, num_hidden_layers=layers)
    training = settings(**changes, batch_tokens=tokens, lora_r=8)
    shape = read_network_shape(str(tmp_path))
    kept = kept_bytes(tmp_path, dtype, training, tokens)
    estimated = estimate_memory(shape, training, weight_bytes=2 if dtype == "bfloat16" else 4).activations
    mask = 2 * tokens * tokens * 4
    bf16_weights = 2 * sum(a * b for a, b in shape.linear_layers)
    autocast = bf16_weights if changes["bf16"] and changes["tuning"] == "full" else 0
    extra = tokens * (3 * 256 + 2 * 64) * (2 if changes["bf16"] or dtype == "bfloat16" else 4)
    if changes.get("gradient_checkpointing"):  # the layer that is computed again
        extra += tokens * (6 * 64 + 4 * 64 + 4 * 256 + 6) * 4
    assert kept == pytest.approx(estimated - mask - autocast - extra, rel=0.06)


def test_full_tuning_of_a_3b_with_the_former_defaults_takes_69_gib_and_its_activations():
    former = settings(tuning="full", bf16=False, beta=0.04, ema_decay=0.9, batch_tokens=1024)
    found = estimate_memory(QWEN_3B, former, weight_bytes=4)
    kept = found.weights + found.reference + found.gradients + found.optimizer + found.ema
    assert kept / GIB == pytest.approx(69.0, abs=0.1)
    assert found.total > kept + found.activations


def test_adapters_of_a_3b_fit_a_gpu_of_80_gib():
    line = check_memory(QWEN_3B, settings(), 79 * GIB, weight_bytes=2, sampling=Sampling(32), frozen=QWEN_3B)
    assert line.startswith("memory: the training needs about ")
    assert line.endswith(", and 79.0 GiB are free")


@pytest.mark.parametrize(
    ("changes", "free", "advice"),
    [
        ({}, 30, "the smallest change that fits: --batch-tokens 4096 makes it 27.7 GiB"),
        ({"batch_tokens": 1024}, 10, "--gradient-checkpointing makes it"),
        ({}, 9, "--batch-tokens 4096, --gradient-checkpointing makes it"),
        ({"tuning": "full", "beta": 0.04, "batch_tokens": 1024}, 24, "--tuning lora makes it"),
        ({}, 3, "no setting makes it fit: choose a smaller model, or a device"),
    ],
)
def test_a_training_that_cannot_fit_is_refused_with_the_smallest_change(changes, free, advice):
    with pytest.raises(ConfigError) as refused:
        check_memory(QWEN_3B, settings(**changes), free * GIB, weight_bytes=2)
    text = str(refused.value)
    for part in (f"{free}.0 GiB are free:", "  weights ", "  peak of a step"):
        assert part in text
    assert advice in text.splitlines()[-1]


@pytest.mark.parametrize(("flags", "vllm_args", "weight_bytes", "free"), [
    ({"bf16": True}, "", 2, 60), ({"bf16": False}, "", 4, 60), ({"bf16": True, "tuning": "full"}, "", 2, 60),
    ({"sampler": "vllm", "bf16": True}, "", 2, 24),
    ({"sampler": "vllm", "bf16": True}, "--max-model-len 9000 --gpu-memory-utilization=0.3", 2, 36),
])  # fmt: skip
def test_the_memory_is_that_of_the_format_that_is_loaded_beside_the_share_of_vllm(
    monkeypatch, tmp_path, flags, vllm_args, weight_bytes, free
):
    monkeypatch.setenv("VLLM_ARGS", vllm_args)
    for name, value in (
        ("default_device", lambda: "cuda"), ("fast_dtype", lambda _: "bfloat16"),
        ("loaded_dtype", lambda *_: "bfloat16"), ("read_network_shape", lambda _: QWEN_3B),
        ("free_memory", lambda _: 60 * GIB),
    ):  # fmt: skip
        monkeypatch.setattr(training_models, name, value)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (60 * GIB, 80 * GIB))
    given: list[tuple[int, int, int]] = []

    def check(shape: object, settings: object, free: int, **sizes: int) -> str:
        given.append((sizes["weight_bytes"], sizes["frozen_bytes"], free // GIB))
        return ""

    monkeypatch.setattr(training_models, "check_memory", check)
    training_models.complete_training(
        TrainConfig(model=f"local:{tmp_path}", **flags), "rl", lambda line: None
    )
    assert given == [(weight_bytes, 2, free)]


def test_the_kv_cache_holds_the_prompts_and_what_grows_beside_its_rectangle():
    """The largest sum that a decoder of random prompts reached: see LOG.md, 2026-11-30."""
    per_token = 2 * QWEN_3B.layers * QWEN_3B.kv_heads * QWEN_3B.head_width * 2
    found = estimate_memory(QWEN_3B, settings(), weight_bytes=2, sampling=Sampling(32, 1500, 500))
    assert found.kv_cache / per_token == 1.25 * 32 * 2048 + 32 * 1500 + 16_384


def test_processes_of_torchrun_share_the_memory_of_a_cpu(monkeypatch):
    whole = free_memory("cpu")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert free_memory("cpu") == pytest.approx(whole / 4, rel=0.1)


def test_fine_tuning_has_no_reference_and_no_kv_cache():
    optimizer = OptimizerSettings(**{**GRPO, "tuning": "full"})
    found = estimate_memory(QWEN_3B, optimizer, weight_bytes=4)
    assert (found.reference, found.kv_cache, found.ema, found.frozen_model) == (0, 0, 0, 0)


@pytest.mark.parametrize("mode", ["train", "sft"])
def test_the_command_refuses_before_it_loads_the_weights(tmp_path, mode):
    config = {
        "model_type": "llama", "vocab_size": 32_000, "hidden_size": 65_536, "intermediate_size": 262_144,
        "num_hidden_layers": 4, "num_attention_heads": 64, "num_key_value_heads": 8,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))  # and no weights
    flags: dict = {"model": f"local:{tmp_path}", "output_dir": tmp_path / "run", "mlflow": False}
    command = {
        "train": lambda console: train(TrainConfig(**flags), console=console),
        "sft": lambda console: fine_tune_parts(FineTuneConfig(**flags), console),
    }[mode]
    console, refused = Console(width=120), pytest.raises(ConfigError, match="the training needs about")
    with console.capture() as shown, refused:
        command(console)
    assert "default --tuning lora: all 2" in shown.get()
    assert not (tmp_path / "run").exists()
