"""Settings of ``train.py --backend arbor``, and the part of them that is sent to an Arbor server.

Keys and behaviour are those of arbor-ai 0.2.17 (``arbor/server/api/schemas.py``,
``arbor/training/grpo/trainer.py``): its schema forbids unknown keys, and some of the known ones spoil a
training without a word. Nothing slow is imported.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from memory_program.configs.arbor_yaml import ARBOR_YAML, ArborConfig, parse_gpu_ids, read_arbor_config
from memory_program.configs.train_config import DEFAULT_GRPO, TrainConfig
from memory_program.configs.trainer_groups import GRPOSettings, OptimizerSettings, ReinforceSettings
from memory_program.core.command_line import peek_flag, peek_setting
from memory_program.core.errors import ConfigError
from memory_program.core.settings import SettingsGroup

_LINEAR_LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
"""Those of Llama, Qwen, Mistral and Gemma. Arbor takes a list, and PEFT's "all-linear" is none."""

_CLIPPING = "Arbor clips at 0.2 and 0.28; it takes one step per group, with the weights that sampled it"
_UNSUPPORTED_SETTINGS = {
    "clip_low": _CLIPPING,
    "clip_high": _CLIPPING,
    "entropy_weight": "Arbor has no entropy bonus",
    "iterations": "Arbor takes one step per group",
    "loss_per_agent": "an optimizer step of Arbor is one group, so it has one agent only",
    "diagnostics_every": "Arbor reports neither entropy nor KL",
    "max_kl": "Arbor does not report the KL divergence",
    "max_sampler_gap": "Arbor does not report the log-probabilities of its trainer",
    "ema_decay": "Arbor keeps the current weights and no EMA",
    "batch_tokens": "Arbor counts samples: --per-device-train-batch-size, --gradient-accumulation-steps",
}
"""Settings that Arbor has no key for, with the reason or the alternative."""

_ARBOR_OPTIMIZER = OptimizerSettings(
    tuning="lora",
    learning_rate=2e-5,
    warmup_steps=10,
    ema_decay=0.0,
    batch_tokens=1024,
    lora_r=64,
    lora_alpha=16,
    bf16=True,
    gradient_checkpointing=True,
)
"""Defaults for the large models that a server trains."""


class ArborBatchSettings(SettingsGroup):
    """The batches of an Arbor server."""

    per_device_train_batch_size: int = Field(default=2, ge=1)
    """Samples of one pass on each training GPU."""

    gradient_accumulation_steps: int = Field(default=4, ge=1)
    """Passes per optimizer step."""

    max_prompt_tokens: int = Field(default=4096, ge=1)
    """Most tokens of a prompt; with --max-completion-tokens the limit of a sequence."""


class ArborJobSettings(ReinforceSettings, init=False):
    """The settings of one training on an Arbor server."""

    optimizer: OptimizerSettings = _ARBOR_OPTIMIZER

    beta: float | None = Field(default=0.04, ge=0)
    """Weight of the KL divergence from the initial model; the default is Arbor's."""

    batches: ArborBatchSettings = ArborBatchSettings()

    num_generations: int = Field(ge=2)
    """Samples of a group."""

    max_groups: int = Field(ge=1)
    """Most groups that will be sent."""

    num_inference_gpus: int = Field(default=1, ge=1)
    """GPUs that sample."""

    num_training_gpus: int = Field(default=1, ge=1)
    """GPUs that train."""

    @model_validator(mode="after")
    def _check_samples_fit(self) -> Self:
        check_arbor_supports(self)
        batches = self.batches
        passes = self.num_training_gpus * batches.gradient_accumulation_steps
        if self.num_generations % passes:
            raise ConfigError(
                f"group_size={self.num_generations} must be a multiple of training GPUs times "
                f"gradient_accumulation_steps ({self.num_training_gpus} x "
                f"{batches.gradient_accumulation_steps}): Arbor drops the samples that do not fill a pass"
            )
        samples = passes * batches.per_device_train_batch_size
        if samples % self.num_generations:
            raise ConfigError(
                f"training GPUs x gradient_accumulation_steps x per_device_train_batch_size = {samples} must "
                f"be a multiple of group_size={self.num_generations}: Arbor refuses any other batch"
            )
        return self

    @property
    def max_steps(self) -> int:
        """Steps that the server is told to expect: more than groups will come, in whole epochs.

        At its last step Arbor's trainer exits, and every request to it hangs. Its made-up epochs have
        ``max_steps / batch size`` passes: unless accumulation divides them, each ends with half a group.
        """
        epoch = self.batches.per_device_train_batch_size * self.batches.gradient_accumulation_steps
        return (self.max_groups // epoch + 1) * epoch

    @property
    def max_seq_len(self) -> int:
        """Most tokens of a sequence."""
        return self.batches.max_prompt_tokens + self.max_completion_tokens

    def trainer_config(self) -> dict[str, Any]:  # Any: JSON
        """Write the settings as Arbor's ``ArborGRPOConfigRequest``.

        Left out on purpose: ``max_completion_length``, which replaces ``max_seq_len`` (all longer sequences
        would be cut); ``soft_completion_penalty_length``, which would change rewards that must sum to zero.
        """
        config: dict[str, Any] = {
            "num_generations": self.num_generations,
            "max_steps": self.max_steps,
            "num_training_gpus": self.num_training_gpus,
            "per_device_train_batch_size": self.batches.per_device_train_batch_size,
            "gradient_accumulation_steps": self.batches.gradient_accumulation_steps,
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
    """Train the weights of the memory program's writer on an Arbor server.

    The loop is that of --backend local; sampling and training run on the server's GPUs. An optimizer step of
    the server is one group: one agent's replies in the rollouts of one episode. Settings that Arbor does not
    support are refused, with the reason.
    """

    backend: Literal["local", "arbor"] = "arbor"
    """Where to train. The flags of the other backend: --backend local --help."""

    arbor_config: Path = ARBOR_YAML
    """The server's file: host, port, storage and GPUs. deploy/arbor.yaml is an example."""

    inference_gpus: str | None = None
    """Comma-separated ids of the GPUs that sample, of those that arbor.yaml names. Default: all of them."""

    training_gpus: str | None = None
    """Comma-separated ids of the GPUs that train, of those that arbor.yaml names. Default: all of them."""

    model: str = "local:Qwen/Qwen2.5-1.5B-Instruct"
    """Model to train: a Hugging Face id, or "local:" and a folder that the server has at the same path."""

    grpo: GRPOSettings = DEFAULT_GRPO.replace(num_train_steps=500, save_every=1)
    trainer: ReinforceSettings = ReinforceSettings(optimizer=_ARBOR_OPTIMIZER, beta=0.04)
    batches: ArborBatchSettings = ArborBatchSettings()

    @model_validator(mode="after")
    def _check_arbor_support(self) -> Self:
        if self.grpo.save_every != 1:
            raise ConfigError(
                f"save_every={self.grpo.save_every} must be 1: the server cannot go back to earlier weights"
            )
        if self.system.writer.writer_max_turns != 1:
            raise ConfigError(
                f"writer_max_turns={self.system.writer.writer_max_turns} must be 1: Arbor's loss counts the "
                "prompt's tokens too, which cancel only if all samples of a group have the same prompt, and "
                "later turns differ"
            )
        if self.dry_run:
            raise ConfigError("dry_run needs a model in this process: show the group with --backend local")
        check_arbor_supports(self.trainer)
        return self

    @cached_property
    def arbor(self) -> ArborConfig:
        """The server.

        Raises:
            ConfigError: the file is missing or wrong.
        """
        return read_arbor_config(self.arbor_config)

    def job_settings(self, agents: int) -> ArborJobSettings:
        """Make the settings that the server is told.

        Args:
            agents: of the writer; each sends at most one group per episode.

        Raises:
            ConfigError: the samples of a step do not fit the GPUs, or there are too few GPUs.
        """
        return ArborJobSettings(
            **self.trainer.flat_values(),
            batches=self.batches,
            num_generations=self.grpo.group_size,
            max_groups=self.grpo.num_train_steps
            * self.grpo.examples_per_step
            * (1 + (self.grpo.refill_rounds or 0))
            * agents,
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


def train_config_type(arguments: Sequence[str] | None = None) -> type[TrainConfig]:
    """Find the config of the backend that the flags ask for, since each has its own flags and defaults.

    Args:
        arguments: the command line; None takes ``sys.argv``.

    Raises:
        ConfigError: there is no such backend.
    """
    named = peek_setting("backend", arguments)
    if named is None:
        flags = ("arbor-config", "inference-gpus", "training-gpus")  # only an Arbor server has them
        is_arbor = ARBOR_YAML.is_file() or any(peek_flag(flag, arguments) is not None for flag in flags)
        return ArborTrainConfig if is_arbor else TrainConfig
    types: dict[str, type[TrainConfig]] = {"local": TrainConfig, "arbor": ArborTrainConfig}
    if named not in types:
        raise ConfigError(f"unknown backend {named!r}: choose from {', '.join(types)}")
    return types[named]


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
