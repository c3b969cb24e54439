"""Settings of ``train.py --backend arbor``, and the part of them that is sent to an Arbor server.

Keys and behaviour are those of arbor-ai 0.2.17 (``arbor/server/api/schemas.py``,
``arbor/training/grpo/trainer.py``): its schema forbids unknown keys, and some of the known ones spoil a
training without a word. Nothing slow is imported.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from memory_program.configs.arbor_yaml import ARBOR_YAML, ArborConfig, parse_gpu_ids, read_arbor_config
from memory_program.configs.train_config import DEFAULT_GRPO, TrainConfig
from memory_program.configs.trainer_groups import GRPOSettings, OptimizerSettings, Part, ReinforceSettings
from memory_program.core.adapter_config import adapter_base
from memory_program.core.errors import ConfigError
from memory_program.core.settings import SettingsGroup
from memory_program.models.model_names import model_source

_LINEAR_LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
"""Those of Llama, Qwen, Mistral and Gemma. Arbor takes a list, and PEFT's "all-linear" is none."""

_CLIPPING = "Arbor clips at 0.2 and 0.28; it takes one step per batch, with the weights that sampled it"
_UNSUPPORTED_SETTINGS = {
    "clip_low": _CLIPPING,
    "clip_high": _CLIPPING,
    "entropy_weight": "Arbor has no entropy bonus",
    "iterations": "Arbor takes one optimizer step per batch",
    "loss_per_agent": "Arbor averages over all tokens of a batch",
    "diagnostics_every": "Arbor reports neither entropy nor KL",
    "max_kl": "Arbor does not report the KL divergence",
    "max_sampler_gap": "Arbor does not report the log-probabilities of its trainer",
    "ema_decay": "Arbor keeps the current weights and no EMA",
    "batch_tokens": "Arbor counts samples: --per-device-train-batch-size",
}
"""Settings that Arbor has no key for, with the reason or the alternative."""

_ARBOR_OPTIMIZER = OptimizerSettings(
    tuning="lora",
    learning_rate=2e-5,
    warmup_steps=10,
    batch_tokens=1024,
    bf16=True,
    gradient_checkpointing=True,
)
_ARBOR_TRAINER = ReinforceSettings(optimizer=_ARBOR_OPTIMIZER, ema_decay=0.0, beta=0.0)
"""Defaults for the large models that a server trains. No KL: Arbor's counts the tokens of prompts too, and
divides by those of replies, so that 0.04 would weigh as much as 0.4 does elsewhere."""


class ArborBatchSettings(SettingsGroup):
    """The batches of an Arbor server."""

    per_device_train_batch_size: int = Field(default=2, ge=1)
    """Samples per forward and backward pass on each training GPU."""

    max_prompt_tokens: int = Field(default=4096, ge=1)
    """Maximum tokens of a prompt. With --max-completion-tokens it gives the maximum length of a sequence."""


class ArborJobSettings(ReinforceSettings, init=False):
    """The settings of one training on an Arbor server.

    All samples of a step are one batch of the server, and one optimizer step: Arbor computes its ratios with
    the weights of the moment, so later steps on the same samples would be off-policy without a correction.
    """

    optimizer: OptimizerSettings = _ARBOR_OPTIMIZER

    batches: ArborBatchSettings = ArborBatchSettings()

    beta: float | None = Field(default=0.0, ge=0)
    """Weight of the KL divergence from the initial model; Arbor's counts the tokens of prompts too."""

    ema_decay: float | None = Field(default=0.0, ge=0, lt=1)
    """Decay of the EMA of the weights; Arbor has none."""

    num_generations: int = Field(ge=2)
    """Samples of a group."""

    groups_per_step: int = Field(default=1, ge=1)
    """Maximum groups of a step."""

    turns: int = Field(default=1, ge=1)
    """Maximum calls of a sample. Each after the first costs two samples: its own, and one that cancels its
    prompt."""

    num_train_steps: int = Field(ge=1)
    """Steps of the training."""

    num_inference_gpus: int = Field(default=1, ge=1)
    """GPUs that sample."""

    num_training_gpus: int = Field(default=1, ge=1)
    """GPUs that train."""

    @model_validator(mode="after")
    def _check_support(self) -> Self:
        check_arbor_supports(self)
        return self

    @property
    def gradient_accumulation_steps(self) -> int:
        """Passes of an optimizer step: as many as its samples need on the training GPUs."""
        samples = self.num_generations * self.groups_per_step * (2 * self.turns - 1)
        return math.ceil(samples / (self.num_training_gpus * self.batches.per_device_train_batch_size))

    @property
    def batch_size(self) -> int:
        """Samples of a batch of the server, with those that fill the last pass."""
        passes = self.num_training_gpus * self.gradient_accumulation_steps
        return passes * self.batches.per_device_train_batch_size

    def describe_batch(self) -> str:
        """Describe the batch of a step in one line."""
        return (
            f"an optimizer step has room for {self.batch_size} samples: "
            f"{self.num_training_gpus} training GPUs x {self.batches.per_device_train_batch_size} samples x "
            f"{self.gradient_accumulation_steps} passes (gradient accumulation)"
        )

    @property
    def max_steps(self) -> int:
        """Steps that the server is told to expect: more than will come, in whole epochs.

        A killed run may repeat a step, so there is room for twice as many. At its last step Arbor's trainer
        exits, and every request to it hangs. Its made-up epochs have
        ``max_steps / per_device_train_batch_size`` passes: unless accumulation divides them, each ends with
        an optimizer step on a part of a batch.
        """
        epoch = self.batches.per_device_train_batch_size * self.gradient_accumulation_steps
        return (2 * self.num_train_steps // epoch + 1) * epoch

    @property
    def max_seq_len(self) -> int:
        """Maximum tokens of a sequence."""
        return self.batches.max_prompt_tokens + self.max_completion_tokens

    def trainer_config(self) -> dict[str, Any]:  # Any: JSON
        """Write the settings as Arbor's ``ArborGRPOConfigRequest``.

        Left out on purpose: ``max_completion_length``, which replaces ``max_seq_len`` (all longer sequences
        would be cut); ``soft_completion_penalty_length``, which would change rewards that must sum to zero.
        """
        config: dict[str, Any] = {
            "num_generations": self.batch_size,
            "max_steps": self.max_steps,
            "num_training_gpus": self.num_training_gpus,
            "per_device_train_batch_size": self.batches.per_device_train_batch_size,
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
            "gradient_checkpointing": self.optimizer.gradient_checkpointing,
            "learning_rate": self.optimizer.learning_rate,
            "lr_scheduler_type": "constant_with_warmup",
            "warmup_steps": self.optimizer.warmup_steps,
            "weight_decay": self.optimizer.weight_decay,
            "max_grad_norm": self.optimizer.max_grad_norm,
            "beta": self.beta,
            "loss_type": self.loss_type,
            "temperature": self.temperature,
            "bf16": self.optimizer.bf16,
            "max_prompt_length": self.batches.max_prompt_tokens,
            "max_seq_len": self.max_seq_len,  # Arbor fails without it, and with its own default
            "scale_rewards": False,  # we send advantages
            "mask_truncated_completions": False,  # it would mask the longest, and dapo then divides 0 by 0
            "report_to": "none",
            "log_completions": False,
            "logging_steps": 1,
        }
        if self.optimizer.tuning == "lora":
            config["lora_config"] = {
                "r": self.optimizer.lora_r,
                "lora_alpha": self.optimizer.lora_alpha,
                "target_modules": _LINEAR_LAYERS,
                "lora_dropout": self.optimizer.lora_dropout,
            }
        return config

    def initialize_request(self, model: str, run_name: str) -> dict[str, Any]:  # Any: JSON
        """Write the request that starts a job (``GRPOInitializeRequest``).

        Args:
            model: a hub id, or a folder on the server's machine.
            run_name: makes the job id unique; two jobs of one name would share their checkpoints.
        """
        return {
            "run_name": run_name,
            "model": model,
            "trainer_config": self.trainer_config(),
            "inference_config": {"model": model, "max_seq_len": self.max_seq_len},
            "gpu_config": {
                "type": "multi",
                "multi": {
                    "num_inference_gpus": self.num_inference_gpus,
                    "num_training_gpus": self.num_training_gpus,
                },
            },
        }


class ArborTrainConfig(TrainConfig, init=False):
    """Train the weights of the writer, the reader or both on an Arbor server.

    The loop is that of --backend local. Sampling and training run on the server's GPUs. Settings that Arbor
    does not support are refused, with the reason.
    """

    arbor_config: Path = ARBOR_YAML
    """File of the server: host, port, storage and GPUs. If it is missing, it is written with its defaults."""

    inference_gpus: str | None = None
    """Comma-separated ids of the GPUs that sample, from those in arbor.yaml. Default: all of them."""

    training_gpus: str | None = None
    """Comma-separated ids of the GPUs that train, from those in arbor.yaml. Default: all of them."""

    model: str = "local:Qwen/Qwen2.5-1.5B-Instruct"
    """Model to train: a Hugging Face id, or "local:" and a folder that the server has at the same path."""

    grpo: GRPOSettings = DEFAULT_GRPO.replace(num_train_steps=500, save_every=1)
    trainer: ReinforceSettings = _ARBOR_TRAINER
    batches: ArborBatchSettings = ArborBatchSettings()

    _thoughts_advice: ClassVar[str] = "choose one that does not reason, such as an Instruct model"

    @classmethod
    def backend_name(cls) -> Literal["local", "arbor"]:
        """Return the backend of these settings."""
        return "arbor"

    @model_validator(mode="after")
    def _check_arbor_support(self) -> Self:
        if self.grpo.save_every != 1:
            raise ConfigError(
                f"save_every={self.grpo.save_every} must be 1: the server cannot go back to earlier weights"
            )
        if self.samples_on_vllm:
            raise ConfigError(
                "an Arbor server samples on its own GPUs: leave --sampler and --sampler-url out"
            )
        if adapter_base(model_source(self.model)) is not None:
            raise ConfigError(
                f"model={self.model!r} is an adapter, and an Arbor server trains whole models: merge it with "
                "--mode export --format hf, and name the result"
            )
        if given := self.system.replies.chat_template_kwargs:
            raise ConfigError(
                f"chat_template_kwargs={given!r} would not reach the Arbor server, which has no such "
                "setting: leave it out"
            )
        check_arbor_supports(self.trainer)
        return self

    @cached_property
    def arbor(self) -> ArborConfig:
        """The server.

        Raises:
            ConfigError: the file is missing or wrong.
        """
        return read_arbor_config(self.arbor_config)

    def job_settings(self, part: Part, agents: int) -> ArborJobSettings:
        """Make the settings that the server is told.

        Args:
            part: that is trained.
            agents: of the writer; each sends at most one group per episode. A reader sends one per question.

        Raises:
            ConfigError: the GPUs are not the first of those that ``arbor.yaml`` names.
        """
        is_writer = part == "writer"
        groups = agents if is_writer else self.grpo.episode_questions
        turns = self.system.writer.writer_max_turns if is_writer else 1 + self.system.reader.max_searches
        return ArborJobSettings(
            **self.trainer.flat_values(),
            batches=self.batches,
            num_generations=self.grpo.group_size,
            groups_per_step=self.grpo.examples_per_step * (1 + (self.grpo.refill_rounds or 0)) * groups,
            turns=turns,
            num_train_steps=self.grpo.num_train_steps,
            num_inference_gpus=_count_gpus("inference", self.inference_gpus, self.arbor.inference.gpu_ids),
            num_training_gpus=_count_gpus("training", self.training_gpus, self.arbor.training.gpu_ids),
        )


def check_arbor_supports(settings: ReinforceSettings) -> None:
    """Check that a server can be told all settings.

    Raises:
        ConfigError: it has no key for one, or gives it a wrong meaning.
    """
    values, fields = settings.flat_values(), ArborJobSettings.flat_fields()
    for name, reason in _UNSUPPORTED_SETTINGS.items():
        if values[name] != fields[name].default:
            raise ConfigError(f"{name}={values[name]!r} has no equivalent on an Arbor server: {reason}")
    if settings.loss_type == "grpo":
        raise ConfigError(
            "loss_type='grpo' is wrong on Arbor: its loss counts the prompt's tokens too, divided by each "
            "sample's own length, so they do not cancel: choose from dapo, dr_grpo"
        )


def _count_gpus(purpose: str, wanted: str | None, available: Sequence[int]) -> int:
    """Count the GPUs that are wanted; a server takes those of its file in their order."""
    if wanted is None:
        return len(available)
    ids = parse_gpu_ids(wanted)
    if ids != list(available[: len(ids)]):
        raise ConfigError(
            f"{purpose}_gpus={wanted!r} must be the first of {','.join(map(str, available))}, which "
            f"arbor.yaml names for {purpose}: the server takes them in that order; change gpu_ids there, and "
            "start the server again"
        )
    return len(ids)
