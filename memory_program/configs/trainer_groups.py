"""The settings of a training: optimizer, loss, rollouts, rewards. Nothing slow is imported."""

import math
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from memory_program.configs.groups import Seed
from memory_program.core.errors import ConfigError
from memory_program.core.settings import Settings, SettingsGroup, split_list

LossType = Literal["grpo", "dr_grpo", "dapo"]

Tuning = Literal["full", "lora"]

Part = Literal["writer", "reader"]
"""A part of the memory program whose weights can be trained."""


def parse_tool_weights(tools: str) -> dict[str, float]:
    """Read the weights of tools.

    Raises:
        ConfigError: one is not written as ``tool=number``, or a tool stands twice.

    Example:
        >>> parse_tool_weights("merge_memory=0.1, split_memory=0.05")
        {'merge_memory': 0.1, 'split_memory': 0.05}
    """
    weights: dict[str, float] = {}
    for part in split_list(tools):
        name, _, number = part.partition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if not math.isfinite(weight) or name in weights:
            raise ConfigError(f"tool_weights={tools!r}: write each tool once, as merge_memory=0.1")
        weights[name] = weight
    return weights


class OptimizerSettings(SettingsGroup, init=False):
    """The weight update, for rewards and for examples."""

    learning_rate: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Learning rate of AdamW after the warm-up; SFT then lowers it to 0 along a cosine. Default: 2e-5 for
    adapters, 1e-6 for all weights (SFT: 1e-4 and 1e-5), 3e-4 for models under 20 million parameters (SFT:
    1e-4)."""

    warmup_steps: int | None = Field(default=None, ge=0)
    """Optimizer steps over which the learning rate rises to its value. Default: 10, or 2 in the RL of small
    models."""

    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight decay of AdamW."""

    max_grad_norm: float = Field(default=1.0, gt=0)
    """Clip the gradient to this norm."""

    batch_tokens: int | None = Field(default=None, ge=1)
    """Maximum tokens of one forward and backward pass. A step accumulates as many passes as it needs.
    Default: 8,192 on CUDA and 4,096 on a CPU, or 1,024 for small models."""

    tuning: Tuning | None = None
    """Train all weights (full), or LoRA adapters of the linear layers (lora). Default: lora, or full for
    models under 20 million parameters."""

    lora_r: int = Field(default=32, ge=1)
    """Rank of the LoRA adapters."""

    lora_alpha: int = Field(default=64, ge=1)
    """Scale of the LoRA adapters, divided by the rank."""

    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the inputs of the LoRA adapters."""

    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, a third more time."""

    bf16: bool | None = None
    """Compute in bfloat16 while training; full tuning keeps float32 weights. With --no-bf16 the trained model
    is loaded in float32 and samples in it. Default: on a GPU with native support, for all but small
    models."""

    seed: Seed


class ReinforceSettings(SettingsGroup, init=False):
    """Training by rewards: the update, the loss and the sampling."""

    optimizer: OptimizerSettings = OptimizerSettings()

    ema_decay: float | None = Field(default=None, ge=0, lt=1)
    """Decay of the EMA of the weights, per optimizer step. Sampling uses the current weights; validation and
    the result use the EMA, which the noise of single steps hardly moves. 0: no EMA. Default: 0, or 0.9 for
    models under 20 million parameters."""

    loss_type: LossType = "dapo"
    """Average of the loss: grpo per sample, dapo per token, dr_grpo per sample at one fixed length."""

    loss_per_agent: bool | None = None
    """Average the loss of each agent by itself, so that long replies of one do not drown out the short ones
    of another. Default: yes, but not for models under 20 million parameters."""

    clip_low: float = Field(default=0.2, ge=0, lt=1)
    """Lower clip range: ratios below 1 - clip_low get no gradient (PPO's epsilon)."""

    clip_high: float = Field(default=0.2, ge=0)
    """Upper clip range: ratios above 1 + clip_high get no gradient."""

    beta: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Weight of the KL divergence from the initial model. 0 leaves it out and saves a forward pass. With
    several iterations choose a small one: the penalty of a token that became unlikely has no bound. Default:
    0, or 0.04 for models under 20 million parameters."""

    entropy_weight: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight of the entropy bonus."""

    temperature: float = Field(default=1.0, gt=0, le=2)
    """Sampling temperature of the rollouts."""

    max_completion_tokens: int = Field(default=512, ge=1)
    """Maximum tokens of a reply; dr_grpo divides by it."""

    iterations: int = Field(default=1, ge=1)
    """Optimizer steps on the same samples."""

    diagnostics_every: int | None = Field(default=None, ge=1)
    """Steps between measurements of the entropy, and of the KL divergence where beta is 0 and adapters are
    trained. They cost time and no accuracy. Default: 10, or 1 for models under 20 million parameters."""

    max_kl: float = Field(default=10.0, gt=0)
    """Stop when the KL divergence from the initial model, in nats per token, exceeds this: the training
    diverges."""

    max_sampler_gap: float = Field(default=0.5, gt=0)
    """Stop when the log-probabilities of sampler and trainer differ by more than this on average: they
    disagree about the text or the weights."""


class LengthSettings(SettingsGroup):
    """The length penalty of the dense reward."""

    length_weight: float = Field(default=0.8, ge=0, le=1)
    """Largest length penalty of the dense reward, as a share."""

    core_length_start: int = Field(default=150, ge=0)
    """Tokens of the profile up to which it has no length penalty."""

    core_length_max: int = Field(default=400, ge=1)
    """Tokens of the profile from which its length penalty is 1; between the two it is linear."""

    length_ratio_high: float = Field(default=1.3, ge=1)
    """Tokens of an agent's memories, divided by the expert's, above which it has a length penalty."""

    length_ratio_low: float = Field(default=0.5, ge=0, le=1)
    """Tokens of an agent's memories, divided by the expert's, below which it has a length penalty."""

    @model_validator(mode="after")
    def _check_core_lengths(self) -> Self:
        if self.core_length_start >= self.core_length_max:
            raise ConfigError(
                f"core_length_start={self.core_length_start} must be below "
                f"core_length_max={self.core_length_max}"
            )
        return self


DEFAULT_LENGTHS = LengthSettings()
"""MemBuilder's numbers."""


class RewardSettings(SettingsGroup, init=False):
    """The reward of a rollout, and its advantage."""

    reward_rule: Literal["outcome", "dense", "delta", "leave-one-out"] = "dense"
    """Reward of a rollout. outcome: the answers' score. dense (MemBuilder): minus a penalty for length and
    invalid calls, per agent; memories have a length penalty only where an expert's are known. delta
    (MemUpdate): the gain over the memory before the session. leave-one-out: the score minus the score
    without this agent's memories."""

    lengths: LengthSettings = DEFAULT_LENGTHS

    expert_trajectories: Path | None = None
    """Folder of an expert's trajectories of the training conversations, from --mode trajectories. The dense
    reward then compares lengths with them. Generated conversations need none: the oracle's are known."""

    format_weight: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Bonus for an agent whose calls were all valid. Under leave-one-out an unusable reply is otherwise worth
    the same as an empty one."""

    tool_weights: str = ""
    """Bonus per tool, times the share of its calls that were accepted: for example
    "merge_memory=0.1,split_memory=0.05". Empty: no bonus."""

    alpha: float = Field(default=4.0, ge=1, allow_inf_nan=False)
    """Weight of the advantage of the agent whose new memories were retrieved most. 1 turns attribution off.
    leave-one-out needs none."""

    scale_rewards: bool = True
    """Divide advantages by the standard deviation of their group."""

    @field_validator("tool_weights")
    @classmethod
    def _check_tool_weights(cls, value: str) -> str:
        parse_tool_weights(value)
        return value


class GRPOSettings(SettingsGroup, init=False):
    """The GRPO loop: episodes, rollouts, validation, stopping."""

    num_train_steps: int = Field(default=500, ge=1)
    """Maximum training steps; the stages of --curriculum share them. 500 is usual for large models."""

    examples_per_step: int = Field(default=6, ge=1)
    """Episodes per step: a session, the memory before it, and the questions after it."""

    group_size: int = Field(default=8, ge=2)
    """Rollouts of each episode. Rewards are compared within this group."""

    episode_questions: int = Field(default=5, ge=1)
    """Maximum questions asked about a session to score its memories. MemBuilder asks 5. Nothing is learned
    from facts without a question."""

    replay_questions: int = Field(default=0, ge=0)
    """Maximum questions about earlier sessions asked as well. With 0, harm to older memories costs
    nothing."""

    rewards: RewardSettings = RewardSettings()

    refill_rounds: int | None = Field(default=None, ge=0)
    """Maximum times that a step samples other episodes in place of groups whose rewards are all equal, which
    teach nothing (DAPO's dynamic sampling). Default: 1, or 0 for models under 20 million parameters and
    on an Arbor server."""

    refresh_every: int = Field(default=4, ge=1)
    """Steps after which the memory before each session is rebuilt with the current weights."""

    curriculum: str = "2,4,8"
    """Maximum sessions per conversation, stage after stage. Empty: all sessions from the first step on."""

    val_every: int = Field(default=10, ge=1)
    """Steps between validations. The weights with the best validation score are the result."""

    patience: int = Field(default=10, ge=1)
    """Early stopping: stop after this many validations in a row without a new best."""

    save_every: int | None = Field(default=None, ge=1)
    """Steps between checkpoints. A killed run continues from the last one. Default: 10, or 1 for models under
    20 million parameters. A checkpoint of full tuning is four times the model's size."""

    minutes: float | None = Field(default=None, gt=0)
    """Stop after this many minutes of training, earlier attempts included. train.py limits the embedded
    models to 15."""

    max_calls: int | None = Field(default=None, ge=1)
    """Maximum calls of API models in a training, earlier attempts included. It is checked after each step;
    training then ends with the best weights so far. The evaluation after it is not limited."""

    max_cost: float | None = Field(default=None, gt=0)
    """Maximum US dollars for API models in a training, as --max-calls limits calls."""

    concurrency: int = Field(default=48, ge=1, le=1024)
    """Rollouts written or graded in parallel, and most calls in flight of an API model that reads or
    judges."""

    @field_validator("curriculum")
    @classmethod
    def _check_curriculum(cls, value: str) -> str:
        stages = split_list(value)
        if any(not stage.isdecimal() or int(stage) < 1 for stage in stages):
            raise ConfigError(
                f"curriculum={value!r} must be counts of sessions, for example '2,4,8', or empty"
            )
        return ",".join(stages)

    @property
    def stages(self) -> list[int]:
        """The curriculum as numbers; empty for none."""
        return [int(stage) for stage in split_list(self.curriculum)]


RESUMABLE_SETTINGS = frozenset(
    {
        *("batch_tokens", "bf16", "gradient_checkpointing"),
        *("concurrency", "diagnostics_every", "patience", "save_every", "val_every"),
        *("max_calls", "max_cost", "minutes"),
        *("learning_rate", "max_grad_norm", "max_kl", "max_sampler_gap"),
    }
)
"""Settings that may change when a training is resumed: those of memory and speed, how far it goes, and those
that are changed when it diverges."""


def lasting_settings(settings: Settings) -> dict[str, Any]:  # Any: JSON values
    """Return the settings of a training that must not change when it is resumed."""
    is_full = settings.flat_values().get("tuning") == "full"
    unused = ("lora_r", "lora_alpha", "lora_dropout") if is_full else ()
    return settings.model_dump(mode="json", exclude={*RESUMABLE_SETTINGS, *unused})
