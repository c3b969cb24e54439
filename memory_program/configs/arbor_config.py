"""The settings of ``train.py --backend arbor``; like the others, they import nothing that is slow."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from memory_program.configs.arbor_settings import ArborJobSettings, ArborSettings
from memory_program.configs.arbor_yaml import ARBOR_YAML, ArborConfig, read_arbor_config
from memory_program.configs.train_config import TrainConfig
from memory_program.core.command_line import peek_flag
from memory_program.core.errors import ConfigError
from memory_program.models.model_names import is_local


class ArborTrainConfig(ArborSettings, TrainConfig):
    """Train the weights of the memory program's writer on an Arbor server.

    The loop is that of --backend local; sampling and training happen on the server's GPUs. A step of the
    server's optimiser is one group: what one specialist did in the rollouts of one episode. What Arbor cannot
    be told is refused, with the reason.
    """

    backend: Literal["arbor"] = "arbor"  # pyright: ignore[reportIncompatibleVariableOverride]  # frozen
    """Where weights are trained. The flags of the other one: --backend local --help."""

    arbor_config: Path = ARBOR_YAML
    """The server: host, port, storage and GPUs. deploy/arbor.yaml is an example."""

    inference_gpus: int | None = Field(default=None, ge=1)
    """How many of the server's GPUs sample. Without it, as many as arbor.yaml names for inference."""

    training_gpus: int | None = Field(default=None, ge=1)
    """How many of the server's GPUs train. Without it, as many as arbor.yaml names for training."""

    model: str = "local:Qwen/Qwen2.5-1.5B-Instruct"
    """Model to train: "local:" and a hub id, or a folder that the server sees under the same path."""

    learning_rate: float = Field(default=2e-5, gt=0)
    """Learning rate of AdamW, constant after the warm-up."""

    warmup_steps: int = Field(default=10, ge=0)
    """Steps of the server's optimiser over which the learning rate rises to its value."""

    num_val: int = Field(default=100, ge=1)
    """Validation examples, at least; whole conversations are taken until there are so many."""

    num_train_steps: int = Field(default=500, ge=1)
    """Steps of the training; the stages of --curriculum share them."""

    save_every: int = Field(default=1, ge=1)
    """Steps between notes of how far the run is. The server cannot go back, so it must be every step."""

    @model_validator(mode="after")
    def _check_arbor_support(self) -> Self:
        if not is_local(self.model):
            raise ConfigError(
                f"model={self.model!r} cannot be trained: name a hub id or a folder after 'local:'"
            )
        if self.save_every != 1:
            raise ConfigError(
                f"save_every={self.save_every} must be 1: the server cannot go back to the weights of a step"
            )
        if self.max_turns != 1:
            raise ConfigError(
                f"max_turns={self.max_turns} must be 1: Arbor's loss counts the prompt's tokens too, which "
                "cancel only where all samples of a group have the same prompt, and later turns differ"
            )
        if self.dry_run:
            raise ConfigError("dry_run needs a model in this process: show the group with --backend local")
        return self

    @cached_property
    def arbor(self) -> ArborConfig:
        """The server.

        Raises:
            ConfigError: the file is missing or wrong.
        """
        return read_arbor_config(self.arbor_config)

    def job_settings(self, agents: int) -> ArborJobSettings:
        """Say what the server is told.

        Args:
            agents: of the writer; each sends a group for each episode at most.

        Raises:
            ConfigError: the samples of a step do not fit the GPUs, or there are fewer of those.
        """
        values = {name: getattr(self, name) for name in ArborSettings.model_fields}
        return ArborJobSettings(
            **values,
            num_generations=self.rollouts,
            max_groups=self.num_train_steps * self.examples_per_step * agents,
            num_inference_gpus=_count("inference", self.inference_gpus, self.arbor.inference.gpu_ids),
            num_training_gpus=_count("training", self.training_gpus, self.arbor.training.gpu_ids),
        )


def train_config_type(arguments: Sequence[str] | None = None) -> type[TrainConfig]:
    """Find out where a training is asked for, since each backend has flags and defaults of its own.

    Args:
        arguments: what to look at; None takes ``sys.argv``.

    Raises:
        ConfigError: there is no such backend.
    """
    named = peek_flag("backend", arguments)
    if named is None:
        is_arbor = peek_flag("arbor-config", arguments) is not None or ARBOR_YAML.is_file()
        return ArborTrainConfig if is_arbor else TrainConfig
    types: dict[str, type[TrainConfig]] = {"local": TrainConfig, "arbor": ArborTrainConfig}
    if named not in types:
        raise ConfigError(f"unknown backend {named!r}: choose from {', '.join(types)}")
    return types[named]


def _count(purpose: str, asked: int | None, there: Sequence[int]) -> int:
    if asked is not None and asked > len(there):
        raise ConfigError(
            f"{purpose}_gpus={asked} must be at most {len(there)}: for {purpose}, arbor.yaml names "
            f"{list(there)}"
        )
    return asked or len(there)
