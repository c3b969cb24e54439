"""How weights are trained: the settings of the optimiser and of the rollouts. Nothing slow is imported."""

import math
from typing import Literal

from pydantic import Field, field_validator

from memory_program.core.errors import ConfigError
from memory_program.core.settings import Settings, split_list

LossType = Literal["grpo", "dr_grpo", "dapo"]


class OptimizerSettings(Settings):
    """How weights are changed in this process, whatever they learn from."""

    learning_rate: float = Field(default=2e-5, gt=0)
    """Learning rate of AdamW, constant after the warm-up."""

    warmup_steps: int = Field(default=10, ge=0)
    """Steps over which the learning rate rises to its value."""

    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay of AdamW."""

    max_grad_norm: float = Field(default=1.0, gt=0)
    """Longest gradient; longer ones are shortened to it."""

    ema_decay: float = Field(default=0.0, ge=0, lt=1)
    """Decay of the moving average of the weights, by optimiser steps. Samples come from the weights as they
    are; validated and kept is the average, which the noise of single steps hardly moves. 0: no average."""

    batch_tokens: int = Field(default=1024, ge=1)
    """Tokens of one forward and backward pass; a step accumulates as many passes as its samples need. What
    attention costs grows with the square of it: of small models on a CPU, with little else."""

    tuning: Literal["full", "lora"] = "full"
    """Train all weights, or low-rank adapters of the linear layers."""

    lora_r: int = Field(default=64, ge=1)
    """Rank of the adapters."""

    lora_alpha: int = Field(default=16, ge=1)
    """Scale of the adapters, divided by the rank."""

    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of an adapter's inputs that is dropped while training."""

    gradient_checkpointing: bool = False
    """Compute activations again on the way back instead of keeping them: less memory, a third more time."""

    bf16: bool = False
    """Compute in bfloat16 while training, with the weights in float32. For hardware that multiplies it."""

    seed: int = Field(default=0, ge=0)
    """Seed of all that is drawn: samples, episodes, the adapters' first weights, dropout."""


class ReinforceSettings(OptimizerSettings):
    """How weights are trained by rewards. The defaults are those of the systems this one follows."""

    loss_type: LossType = "dapo"
    """How tokens and samples are averaged: grpo by sample, dapo by token, dr_grpo by sample at one fixed
    length."""

    clip_low: float = Field(default=0.2, ge=0, lt=1)
    """How far below 1 the ratio of probabilities still has a gradient."""

    clip_high: float = Field(default=0.2, ge=0)
    """How far above 1 the ratio of probabilities still has a gradient."""

    beta: float = Field(default=0.04, ge=0)
    """Weight of the divergence from the model that training began with. 0 leaves it out, and saves a pass.
    With several iterations choose a small one: a token that the first made unlikely weighs without bound."""

    entropy: float = Field(default=0.0, ge=0)
    """Weight of a bonus for entropy."""

    temperature: float = Field(default=1.0, gt=0, le=2)
    """Temperature at which the samples are drawn."""

    max_completion_tokens: int = Field(default=512, ge=1)
    """The most tokens that a completion may have; dr_grpo divides by it."""

    iterations: int = Field(default=1, ge=1)
    """Optimiser steps on the same samples."""


class GRPOSettings(Settings):
    """What is learned from: how many rollouts of which episodes, and what they are worth."""

    num_train_steps: int = Field(default=500, ge=1)
    """Steps of the training at most."""

    examples_per_step: int = Field(default=6, ge=1)
    """Episodes (a session, the memory before it, the questions after it) in a step."""

    rollouts: int = Field(default=8, ge=2)
    """How often each episode is remembered anew; the rollouts of one episode are compared with each other."""

    episode_questions: int = Field(default=5, ge=1)
    """Questions asked about a session to score what was written of it, at most. 5 is MemBuilder's number."""

    review_questions: int = Field(default=0, ge=0)
    """Questions about earlier sessions that are asked as well, at most. Without any, what a session does to
    older memories costs it nothing."""

    reward_rule: Literal["outcome", "dense", "delta", "difference"] = "dense"
    """What a rollout is worth: outcome is the score of the answers; dense (MemBuilder) takes off for length
    and for invalid calls, by specialist; delta (MemUpdate) is the gain over the memory before the session;
    difference is, for each specialist, the score less what it would be had this one written nothing."""

    length_weight: float = Field(default=0.8, ge=0, le=1)
    """What the dense reward takes off for length at most, as a share."""

    format_weight: float = Field(default=0.0, ge=0)
    """Added to the reward of a specialist whose calls were all valid. Off: validity is a gate already."""

    tool_weights: str = ""
    """Added to the reward of a specialist that uses a tool, times the share of its calls that were accepted:
    for example "merge_memory=0.1,split_memory=0.05". Empty: a tool is worth what its memories are."""

    alpha: float = Field(default=4.0, ge=1)
    """Weight of the advantage of the specialist whose new memories were retrieved most; 1 leaves attribution
    out, as does the difference, which needs none."""

    is_scaled: bool = True
    """Divide advantages by the standard deviation in their group."""

    refresh_every: int = Field(default=4, ge=1)
    """Steps after which the memories before the sessions are written anew, by the weights of then."""

    curriculum: str = "2,4,8"
    """Sessions of a conversation at most, stage after stage; the stages share the steps. Empty: all sessions
    from the first step on."""

    val_every: int = Field(default=10, ge=1)
    """Steps between validations. The best weights by validation are the result."""

    patience: int = Field(default=10, ge=1)
    """Stop after so many validations, one after the other, none of which was better than the best."""

    save_every: int = Field(default=1, ge=1)
    """Steps between checkpoints; a run that was killed goes on from the last one. Of a large model all of
    whose weights are trained, choose more: a checkpoint is four times its size."""

    minutes: float | None = Field(default=None, gt=0)
    """Stop after so many minutes of training, those before a kill included."""

    num_threads: int = Field(default=48, ge=1, le=1024)
    """Rollouts written, or read, at once."""

    @field_validator("tool_weights")
    @classmethod
    def _are_weights(cls, value: str) -> str:
        parse_tool_weights(value)
        return value

    @field_validator("curriculum")
    @classmethod
    def _counts(cls, value: str) -> str:
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
