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
    """The optimizer and the weights that it updates, for RL and SFT."""

    learning_rate: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Learning rate of AdamW after the warm-up. SFT decays it to 0 along a cosine. Default: 2e-5 for
    adapters, 1e-6 for all weights (SFT: 1e-4 and 1e-5), 3e-4 for models under 20 million parameters (SFT:
    1e-4)."""

    warmup_steps: int | None = Field(default=None, ge=0)
    """Optimizer steps of warm-up, in which the learning rate rises to its value. Default: 10, or 2 in the RL
    of models under 20 million parameters."""

    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight decay of AdamW."""

    max_grad_norm: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Clip the gradient to this norm."""

    batch_tokens: int | None = Field(default=None, ge=1)
    """Maximum tokens of one forward and backward pass (micro-batch). A step accumulates the gradients of as
    many passes as it needs. Default: 8,192 on CUDA, 4,096 on a CPU, 1,024 for models under 20 million
    parameters."""

    tuning: Tuning | None = None
    """full trains all weights; lora trains LoRA adapters of the linear layers. Default: lora, or full for
    models under 20 million parameters."""

    lora_r: int = Field(default=32, ge=1)
    """Rank of the LoRA adapters."""

    lora_alpha: int = Field(default=64, ge=1)
    """Alpha of the LoRA adapters: their output is scaled by alpha / rank."""

    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the inputs of the LoRA adapters."""

    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, a third more time."""

    bf16: bool | None = None
    """Train in bfloat16; full tuning keeps float32 weights. With --no-bf16 the trained model is loaded in
    float32, and samples in it. Default: on for a GPU with native support, but not for models under 20 million
    parameters."""

    seed: Seed


class ReinforceSettings(SettingsGroup, init=False):
    """Reinforcement learning: the loss, the sampling, and when to stop a training that diverges."""

    optimizer: OptimizerSettings = OptimizerSettings()

    ema_decay: float | None = Field(default=None, ge=0, lt=1)
    """Decay of the exponential moving average (EMA) of the weights, per optimizer step. Sampling uses the
    current weights. Validation and the result use the EMA, which is less noisy. 0: no EMA. Default: 0, or 0.9
    for models under 20 million parameters."""

    loss_type: LossType = "dapo"
    """Averaging of the loss: grpo per sample, dapo per token, dr_grpo per sample at one fixed length."""

    loss_per_agent: bool | None = None
    """Average the loss of each agent separately, so that long replies of one agent do not outweigh the short
    ones of another. Default: on, but not for models under 20 million parameters."""

    clip_low: float = Field(default=0.2, ge=0, lt=1)
    """Lower clip range: ratios below 1 - clip_low get no gradient (PPO's epsilon)."""

    clip_high: float = Field(default=0.2, ge=0, allow_inf_nan=False)
    """Upper clip range: ratios above 1 + clip_high get no gradient."""

    beta: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Weight of the KL penalty, the divergence from the initial model. 0 switches it off and saves a forward
    pass. With several --iterations choose a small one: the penalty of a token that became unlikely has no
    bound. Default: 0, or 0.04 for models under 20 million parameters."""

    entropy_weight: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight of the entropy bonus."""

    temperature: float = Field(default=1.0, gt=0, le=2)
    """Sampling temperature of the rollouts."""

    max_completion_tokens: int = Field(default=512, ge=1)
    """Maximum tokens of a reply; dr_grpo divides by it."""

    iterations: int = Field(default=1, ge=1)
    """Optimizer steps on the same samples."""

    diagnostics_every: int | None = Field(default=None, ge=1)
    """Steps between measurements of the entropy, and of the KL divergence if beta is 0 and adapters are
    trained. They take time, and do not change the training. Default: 10, or 1 for models under 20 million
    parameters."""

    max_kl: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    """Stop if the KL divergence from the initial model, in nats per token, exceeds this: the training
    diverges."""

    max_sampler_gap: float = Field(default=0.5, gt=0, allow_inf_nan=False)
    """Stop if the log-probabilities of sampler and trainer differ by more than this on average: the two
    disagree about the text or the weights."""


class LengthSettings(SettingsGroup):
    """The length penalty of the dense reward."""

    length_weight: float = Field(default=0.8, ge=0, le=1)
    """Weight of the length penalty in the dense reward, from 0 to 1."""

    core_length_start: int = Field(default=150, ge=0)
    """Length of the profile, in tokens, up to which it has no length penalty."""

    core_length_max: int = Field(default=400, ge=1)
    """Length of the profile, in tokens, from which its length penalty is 1. Between the two it is linear."""

    length_ratio_high: float = Field(default=1.3, ge=1, allow_inf_nan=False)
    """Length ratio above which an agent has a length penalty: the tokens of its memories, divided by the
    expert's."""

    length_ratio_low: float = Field(default=0.5, ge=0, le=1)
    """The same ratio, below which an agent has a length penalty."""

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
    """Rewards and advantages."""

    reward_rule: Literal["outcome", "dense", "delta", "leave-one-out"] = "dense"
    """Reward of an agent in a rollout; an invalid reply gains nothing. outcome: the score of the answers.
    dense (MemBuilder): this score, reduced by a length penalty, which memories have only where an expert's
    are known. delta (MemUpdate): the gain over the memory before the session. leave-one-out: the score minus
    the score without this agent's memories."""

    lengths: LengthSettings = DEFAULT_LENGTHS

    expert_trajectories: Path | None = None
    """Folder of an expert's trajectories of the training conversations, from --mode trajectories. The dense
    reward compares lengths with them. Generated conversations need none: the oracle is their expert."""

    format_weight: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Bonus for an agent whose calls were all valid. Without it, leave-one-out rewards an unusable reply like
    an empty one."""

    tool_weights: str = ""
    """Bonus for each tool, times the fraction of its calls that were accepted, for example
    "merge_memory=0.1,split_memory=0.05". Empty: no bonus."""

    alpha: float = Field(default=4.0, ge=1, allow_inf_nan=False)
    """Credit assignment: weight of the advantage of the agent whose new memories were retrieved most. 1
    switches it off. leave-one-out does not use it."""

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
    """Maximum number of training steps. The stages of --curriculum share them. 500 is usual for large
    models."""

    examples_per_step: int = Field(default=6, ge=1)
    """Episodes per step. An episode is a session, the memory before it, and the questions after it."""

    group_size: int = Field(default=8, ge=2)
    """Rollouts of each episode. Advantages are relative to this group."""

    episode_questions: int = Field(default=5, ge=1)
    """Maximum number of questions about a session that score its memories. MemBuilder asks 5. Facts without a
    question teach nothing."""

    replay_questions: int = Field(default=0, ge=0)
    """Maximum number of extra questions about earlier sessions. With 0, damage to older memories costs
    nothing."""

    rewards: RewardSettings = RewardSettings()

    refill_rounds: int | None = Field(default=None, ge=0)
    """Dynamic sampling (DAPO): how often a step may replace groups whose rewards are all equal, which teach
    nothing, with other episodes. Default: 1, or 0 for models under 20 million parameters and on an Arbor
    server."""

    refresh_every: int = Field(default=4, ge=1)
    """Steps between rebuilds of the memory before each session with the current weights."""

    curriculum: str = "2,4,8"
    """Comma-separated stages: the maximum number of sessions per conversation in each. Empty: all sessions
    from the first step on."""

    val_every: int = Field(default=10, ge=1)
    """Steps between validations. The weights with the best validation score are the result."""

    patience: int = Field(default=10, ge=1)
    """Early stopping: number of validations in a row without a new best score after which training stops."""

    save_every: int | None = Field(default=None, ge=1)
    """Steps between checkpoints. A killed run resumes from the last one. A checkpoint of full tuning is four
    times the model's size. Default: 10, or 1 for models under 20 million parameters."""

    minutes: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Time limit of the training in minutes, earlier attempts included. Default: none, or 15 for the embedded
    models."""

    max_calls: int | None = Field(default=None, ge=1)
    """Maximum number of calls of API models, earlier attempts included. It is checked after each step.
    Training then ends with the best weights so far. The evaluation after it is not limited."""

    max_cost: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Budget for API models in US dollars, checked as --max-calls is."""

    concurrency: int = Field(default=48, ge=1, le=1024)
    """Maximum number of rollouts that are written or graded in parallel, and of calls in flight to an API
    model that reads or judges."""

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
