"""The settings of ``train.py --mode trajectories``, ``synthesize``, ``sft`` and ``export``."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from memory_program.configs.evaluate_config import READER_FOLDER
from memory_program.configs.groups import (
    Concurrency,
    DataSettings,
    NumTrain,
    SavedProgram,
    Seed,
    ServerAddress,
    SystemSettings,
    Temperature,
    TrackingSettings,
    TrainingPart,
)
from memory_program.configs.trainer_groups import OptimizerSettings
from memory_program.core.errors import ConfigError
from memory_program.core.settings import Settings
from memory_program.models.model_names import POCKET_BASE, trainable_model

ORACLE_EXPERT = "oracle"
"""The perfect writer of generated conversations; it needs no model."""


class TrajectoriesConfig(Settings, init=False):
    """Record an expert's tool calls, session by session, for supervised fine-tuning.

    You can stop a run at any time. The same command resumes it after the last complete session.
    """

    mode: Literal["trajectories"] = "trajectories"
    """Record the trajectories of an expert."""

    model: str = ORACLE_EXPERT
    """The expert: "oracle" (perfect, for generated conversations), "observations" (LoCoMo's own notes, for
    --dataset locomo), or any model that evaluate.py takes."""

    api_base: ServerAddress

    temperature: Temperature

    max_completion_tokens: int = Field(default=4096, ge=1)
    """Maximum tokens of a reply."""

    program: SavedProgram

    source: DataSettings = DataSettings()
    part: TrainingPart = TrainingPart(split="sft")

    num_train: NumTrain

    system: SystemSettings = SystemSettings()

    skip_existing: bool = False
    """Skip a conversation that already has a file, even an unfinished one."""

    concurrency: Concurrency

    output_dir: Path = Path("runs/trajectories")
    """Folder of the trajectories, one file per conversation."""

    seed: Seed

    @model_validator(mode="after")
    def _check_trainable(self) -> Self:
        self.source.check_trainable()
        if self.model == ORACLE_EXPERT and self.program is not None:
            raise ConfigError(
                f"program={str(self.program)!r} has prompts that model={ORACLE_EXPERT!r} cannot read: leave "
                "--program out here, and give it to --mode sft"
            )
        return self


class SynthesizeConfig(Settings, init=False):
    """Let a strong model write questions about conversations, as training data.

    The model then answers each question from the session alone. A question is kept only if this answer is the
    same, and if no similar question was kept before. The result is a file in LoCoMo's schema, for --dataset
    of --mode train. You can stop a run at any time. The same command resumes it after the last complete
    session.
    """

    mode: Literal["synthesize"] = "synthesize"
    """Write training questions."""

    model: str
    """Model that writes the questions and checks them: any that evaluate.py takes."""

    api_base: ServerAddress

    questions: int = Field(default=5, ge=1)
    """Number of questions to ask for, per session. MemBuilder asks for 5."""

    max_completion_tokens: int = Field(default=4096, ge=1)
    """Maximum tokens of a reply."""

    source: DataSettings = DataSettings()
    part: TrainingPart = TrainingPart()

    num_train: NumTrain

    concurrency: Concurrency

    output_dir: Path = Path("runs/questions")
    """Folder of the questions: one file per conversation, and conversations.json with all of them."""

    seed: Seed

    @model_validator(mode="after")
    def _check_trainable(self) -> Self:
        self.source.check_trainable()
        return self


class FineTuneConfig(Settings, init=False):
    """Fine-tune a writer on an expert's replies, or a reader on gold answers (SFT).

    This is the usual step before training by reward.
    """

    mode: Literal["sft"] = "sft"
    """Supervised fine-tuning."""

    model: str = POCKET_BASE
    """Model to train: "pocket-base" or "pocket" (embedded), "local:" and a folder, or a Hugging Face id."""

    trajectories: Path = Path("runs/trajectories")
    """Folder of the expert's trajectories, from --mode trajectories."""

    target: Literal["writer", "reader", "both"] = "writer"
    """Part to train: writer (on the expert's replies), reader (on the gold answers of the trajectories'
    questions, with the memories that retrieval finds in the expert's bank), or both, as one model."""

    answerable_only: bool = False
    """With --target reader or both: leave out unanswerable questions. They share one reply, which a small
    model may then give to answerable questions too."""

    program: SavedProgram

    system: SystemSettings = SystemSettings()

    epochs: int = Field(default=3, ge=1)
    """Passes over the examples. The weights with the lowest validation loss are the result."""

    batch: int = Field(default=16, ge=1)
    """Examples per optimizer step, over all processes of torchrun."""

    held_out: float = Field(default=0.1, gt=0, lt=1)
    """Fraction of the conversations used for validation."""

    optimizer: OptimizerSettings = OptimizerSettings()

    output_dir: Path = Path("runs/sft")
    """Folder of the run. The result is in its subfolder "model" (of a reader, "model/reader"). The same
    command in the same folder resumes the run."""

    @model_validator(mode="after")
    def _check_searches(self) -> Self:
        if self.target != "writer" and self.system.reader.max_searches:
            raise ConfigError(
                f"max_searches={self.system.reader.max_searches} cannot be learned by SFT, since gold "
                "answers contain no search: leave it out here, and use it in --mode train"
            )
        return self

    @model_validator(mode="after")
    def _check_questions(self) -> Self:
        if self.answerable_only and self.target == "writer":
            raise ConfigError(
                "answerable_only=True only applies to a reader (got target='writer'): leave it out, or give "
                "--target reader"
            )
        return self

    @property
    def weights_folder(self) -> Path:
        """The folder of the result."""
        model = self.output_dir / "model"
        return model / READER_FOLDER if self.target == "reader" else model

    tracking: TrackingSettings = TrackingSettings()

    @field_validator("model")
    @classmethod
    def _complete_model(cls, value: str) -> str:
        return trainable_model(value)


class ExportConfig(Settings):
    """Write trajectories, or a trained model, in the format of another tool."""

    mode: Literal["export"] = "export"
    """Export to the format of another tool."""

    format: Literal["llamafactory", "verl", "hf", "gguf"] = "llamafactory"
    """llamafactory: SFT examples. verl: prompts for rollouts, as parquet. hf: a model in bfloat16 with its
    adapters merged, which vLLM serves. gguf: the same as one file for llama.cpp (needs the package gguf)."""

    by: Literal["session", "question"] = "session"
    """With --format verl: one row per session, rewarded by all its questions, or one row per question."""

    trajectories: Path = Path("runs/trajectories")
    """Folder of trajectories, for --format llamafactory and verl."""

    model: Path = Path("runs/train/model")
    """Folder of a trained model, for --format hf and gguf."""

    from_verl: Path | None = None
    """Folder of a training in verl, of one of its checkpoints, or of the model that verl's own tool merged
    from one. The model is written as with --format hf, with the program of --trajectories."""

    output_dir: Path = Path("runs/export")
    """Folder for the files."""

    only_with: ClassVar[Mapping[str, tuple[str, tuple[str, ...]]]] = {
        "by": ("format", ("verl",)),
        "model": ("format", ("hf", "gguf")),
    }

    @model_validator(mode="after")
    def _check_format(self) -> Self:
        for name, (_, formats) in self.only_with.items():
            if getattr(self, name) != type(self).model_fields[name].default and self.format not in formats:
                raise ConfigError(
                    f"--{name} only applies to --format {' or '.join(formats)} (got --format {self.format})"
                )
        return self

    @model_validator(mode="after")
    def _check_verl_format(self) -> Self:
        if self.from_verl is not None and self.format in ("verl", "gguf"):
            raise ConfigError(
                f"format={self.format!r} cannot be used with --from-verl, which writes 'hf': leave --format "
                "out, and then export the result with --model"
            )
        return self
