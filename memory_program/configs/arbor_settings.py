"""What an Arbor server is told: our settings under the names that it accepts, and why some are refused.

Keys and behaviour are those of arbor-ai 0.2.17 (``arbor/server/api/schemas.py``,
``arbor/training/grpo/trainer.py``): its schema forbids unknown keys, and some of the known ones spoil a
training without a word.
"""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from memory_program.configs.trainer_config import ReinforceSettings
from memory_program.core.errors import ConfigError

_LINEAR_LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
"""Those of Llama, Qwen, Mistral and Gemma. Arbor takes a list, for which PEFT has no word for all of them."""

_CLIPPING = "Arbor clips at 0.2 and 0.28; it takes one step a group, from where the samples were scored"
_UNSUPPORTED_SETTINGS = {
    "clip_low": _CLIPPING,
    "clip_high": _CLIPPING,
    "entropy": "Arbor has no bonus for entropy",
    "iterations": "Arbor takes one step on a group",
    "ema_decay": "Arbor keeps the weights of now and no average",
    "batch_tokens": "Arbor counts samples: --per-device-train-batch-size, --gradient-accumulation-steps",
}
"""Settings that Arbor has no key for, and why it needs none or what to use."""


class ArborSettings(ReinforceSettings):
    """How weights are trained by an Arbor server."""

    tuning: Literal["full", "lora"] = "lora"
    """Train all weights, or low-rank adapters of the linear layers."""

    beta: float = Field(default=0.04, ge=0)
    """Weight of the divergence from the model that training began with. Arbor counts the prompt's tokens too,
    and divides by those of the completions: the longer the prompts, the more it weighs."""

    bf16: bool = True
    """Compute in bfloat16 while training; else Arbor trains in float32."""

    gradient_checkpointing: bool = True
    """Compute activations again on the way back instead of keeping them: less memory, a third more time."""

    per_device_train_batch_size: int = Field(default=2, ge=1)
    """Samples of one pass on each training GPU."""

    gradient_accumulation_steps: int = Field(default=4, ge=1)
    """Passes that a step of the optimiser adds up."""

    max_prompt_tokens: int = Field(default=4096, ge=1)
    """Tokens that a prompt may have; together with --max-completion-tokens what a sequence may have."""

    @model_validator(mode="after")
    def _check_unsupported_settings(self) -> Self:
        for name, reason in _UNSUPPORTED_SETTINGS.items():
            value, default = getattr(self, name), ReinforceSettings.model_fields[name].default
            if value != default:
                raise ConfigError(
                    f"{name}={value!r} cannot be told to Arbor, which has no key for it: {reason}"
                )
        if self.loss_type == "grpo":
            raise ConfigError(
                "loss_type='grpo' is wrong on Arbor: its loss counts the prompt's tokens too, divided by "
                "each sample's own length, so they do not cancel: choose from dapo, dr_grpo"
            )
        return self


class ArborJobSettings(ArborSettings):
    """What one training tells an Arbor server."""

    num_generations: int = Field(ge=2)
    """Samples of a group."""

    max_groups: int = Field(ge=1)
    """Groups that will be sent at most."""

    num_inference_gpus: int = Field(default=1, ge=1)
    """GPUs that sample."""

    num_training_gpus: int = Field(default=1, ge=1)
    """GPUs that train."""

    @model_validator(mode="after")
    def _divides_evenly(self) -> Self:
        passes = self.num_training_gpus * self.gradient_accumulation_steps
        if self.num_generations % passes:
            raise ConfigError(
                f"rollouts={self.num_generations} must be a multiple of training GPUs times "
                f"gradient_accumulation_steps ({self.num_training_gpus} x "
                f"{self.gradient_accumulation_steps}): Arbor drops the samples that do not fill a pass"
            )
        samples = passes * self.per_device_train_batch_size
        if samples % self.num_generations:
            raise ConfigError(
                f"training GPUs x gradient_accumulation_steps x per_device_train_batch_size = {samples} must "
                f"be a multiple of rollouts={self.num_generations}: Arbor refuses any other batch"
            )
        return self

    @property
    def max_steps(self) -> int:
        """Steps that the server is told to expect: more than groups will come, in whole epochs.

        At its last step Arbor's trainer goes away, and every request to it hangs. Its made-up epochs have
        ``max_steps / batch size`` passes: unless accumulation divides them, each ends with half a group.
        """
        epoch = self.per_device_train_batch_size * self.gradient_accumulation_steps
        return (self.max_groups // epoch + 1) * epoch

    @property
    def max_seq_len(self) -> int:
        """Tokens that a sequence may have."""
        return self.max_prompt_tokens + self.max_completion_tokens

    def trainer_config(self) -> dict[str, Any]:  # Any: JSON
        """Write the settings as Arbor's ``ArborGRPOConfigRequest``.

        Left out with intent: ``max_completion_length``, which replaces ``max_seq_len`` (all longer sequences
        would be cut); ``soft_completion_penalty_length``, which would change rewards that must sum to zero.
        """
        config: dict[str, Any] = {
            "num_generations": self.num_generations,
            "max_steps": self.max_steps,
            "num_training_gpus": self.num_training_gpus,
            "per_device_train_batch_size": self.per_device_train_batch_size,
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
            "gradient_checkpointing": self.gradient_checkpointing,
            "learning_rate": self.learning_rate,
            "lr_scheduler_type": "constant_with_warmup",
            "warmup_steps": self.warmup_steps,
            "weight_decay": self.weight_decay,
            "max_grad_norm": self.max_grad_norm,
            "beta": self.beta,
            "loss_type": self.loss_type,
            "temperature": self.temperature,
            "bf16": self.bf16,
            "max_prompt_length": self.max_prompt_tokens,
            "max_seq_len": self.max_seq_len,  # without it, and by its own default, there is an error
            "scale_rewards": False,  # what is sent are advantages, made here
            "mask_truncated_completions": False,  # it takes the longest for truncated: 0/0 in dapo
            "report_to": "none",
            "log_completions": False,
            "logging_steps": 1,
        }
        if self.tuning == "lora":
            config["lora_config"] = {
                "r": self.lora_r,
                "lora_alpha": self.lora_alpha,
                "target_modules": _LINEAR_LAYERS,
                "lora_dropout": self.lora_dropout,
            }
        return config

    def initialize_request(self, model: str, run_name: str) -> dict[str, Any]:  # Any: JSON
        """Write the request that starts a job (``GRPOInitializeRequest``).

        Args:
            model: a hub id, or a folder on the server's machine.
            run_name: makes the job's id its own; two of one name would share their checkpoints.
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
