"""The settings of ``train.py --mode train`` and ``--mode evaluate``. Nothing slow is imported."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from memory_program.configs.endpoints import JudgeAddress, ReaderAddress
from memory_program.configs.groups import (
    DataSettings,
    GradingSettings,
    HubRepository,
    NumTest,
    NumTrain,
    ServerAddress,
    SystemSettings,
    TrackingSettings,
    TrainingPart,
)
from memory_program.configs.trainer_groups import GRPOSettings, ReinforceSettings
from memory_program.core.errors import ConfigError
from memory_program.core.settings import Settings
from memory_program.models.model_names import POCKET, POCKET_BASE, is_bundled, trainable_model

DEFAULT_GRPO = GRPOSettings(
    num_train_steps=40,
    episode_questions=10,
    curriculum="4,8",
    reward_rule="leave-one-out",
    format_weight=0.1,
)
"""Defaults for the embedded model; those of the group itself are usual for large models."""

_BUNDLED_MODEL_MINUTES = 15.0


class TrainConfig(Settings, init=False):
    """Train the weights of the memory program's writer by the value of its memories.

    A step writes the memories of a few sessions several times, asks a frozen reader the questions about them,
    and increases the probability of replies that led to better answers. The train split teaches, validation
    chooses the best weights, and test compares them with the start. A run can be stopped at any time: the
    same command continues it from its last checkpoint.
    """

    mode: Literal["train"] = "train"
    """Train, and then evaluate. This is the default mode."""

    backend: Literal["local", "arbor"] = "local"
    """Where to train: local is this process, on the CPU or one GPU; arbor is a server with GPUs, with its own
    flags and defaults (--backend arbor --help). The default is arbor if there is a file arbor.yaml, or
    --arbor-config names one."""

    model: str = POCKET_BASE
    """Model to train: "pocket-base" or "pocket" (embedded), "local:" and a folder, or a Hugging Face id."""

    reader_model: str | None = None
    """Model that answers; it is never trained. Default: a frozen copy of --model, or pocket for pocket-base,
    since its answers reflect the memories better."""

    api_base: ServerAddress

    reader_api_base: ReaderAddress

    judge_api_base: JudgeAddress

    source: DataSettings = DataSettings()
    part: TrainingPart = TrainingPart()

    num_train: NumTrain

    num_val: int = Field(default=100, ge=1)
    """Least number of validation examples; whole conversations are taken until it is reached."""

    num_test: NumTest

    grading: GradingSettings = GradingSettings()
    grpo: GRPOSettings = DEFAULT_GRPO
    trainer: ReinforceSettings = ReinforceSettings(learning_rate=3e-4, warmup_steps=2, ema_decay=0.9)
    system: SystemSettings = SystemSettings()

    dry_run: bool = False
    """Show one group with its rewards and advantages, and train nothing."""

    output_dir: Path = Path("runs/train")
    """Folder of the run: checkpoints, log, plots, and the trained model with its program. The same folder
    continues the same run."""

    push_to_hub: HubRepository

    tracking: TrackingSettings = TrackingSettings()

    @field_validator("model")
    @classmethod
    def _complete_model(cls, value: str) -> str:
        return trainable_model(value)

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.backend != type(self).model_fields["backend"].default:
            raise ConfigError(f"backend={self.backend!r} has settings of its own: build an ArborTrainConfig")
        self.grading.check_has_judge()
        self.source.check_trainable()
        return self

    @property
    def reader(self) -> str:
        """The model that answers."""
        return self.reader_model or (POCKET if self.model == POCKET_BASE else self.model)

    @property
    def trained_folder(self) -> Path:
        """The folder of the result: weights, tokenizer, program, card."""
        return self.output_dir / "model"

    @property
    def timed_grpo(self) -> GRPOSettings:
        """The GRPO settings, with the time limit of embedded models."""
        if self.grpo.minutes is None and is_bundled(self.model):
            return self.grpo.replace(minutes=_BUNDLED_MODEL_MINUTES)
        return self.grpo


class ReevaluateConfig(Settings, init=False):
    """Evaluate a trained model again, against the model that its training began with.

    The other settings come from the folder of the training.
    """

    mode: Literal["evaluate"] = "evaluate"
    """Evaluate a finished training again."""

    output_dir: Path = Path("runs/train")
    """Folder of the training."""

    num_test: NumTest

    api_base: ServerAddress

    reader_api_base: ReaderAddress

    judge_api_base: JudgeAddress

    push_to_hub: HubRepository

    tracking: TrackingSettings = TrackingSettings()
