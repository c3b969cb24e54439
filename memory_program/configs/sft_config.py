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

    A run can be stopped at any time: the same command continues it after the last whole session.
    """

    mode: Literal["trajectories"] = "trajectories"
    """Record an expert."""

    model: str = ORACLE_EXPERT
    """The expert: "oracle" (perfect, for generated conversations), "observations" (LoCoMo's own notes,
    for --dataset locomo), or any model that evaluate.py takes."""

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
                f"program={str(self.program)!r} has prompts that model={ORACLE_EXPERT!r} does not know: "
                "record it without a program, and give the program to --mode sft"
            )
        return self


class SynthesizeConfig(Settings, init=False):
    """Let a strong model write questions about conversations, as training data.

    A question is kept only if the model, shown the session without the answer, gives the same answer, and if
    no similar one was asked before. The result is a file in LoCoMo's schema, for --dataset of --mode train. A
    run can be stopped at any time: the same command continues it after the last whole session.
    """

    mode: Literal["synthesize"] = "synthesize"
    """Write training questions."""

    model: str
    """The model that writes the questions, and checks them: any that evaluate.py takes."""

    api_base: ServerAddress

    questions: int = Field(default=5, ge=1)
    """Questions to ask for, per session. 5 is MemBuilder's number."""

    max_completion_tokens: int = Field(default=4096, ge=1)
    """Maximum tokens of a reply."""

    source: DataSettings = DataSettings()
    part: TrainingPart = TrainingPart()

    num_train: NumTrain

    concurrency: Concurrency

    output_dir: Path = Path("runs/questions")
    """Folder of the questions, one file per conversation, and of conversations.json with all of them."""

    seed: Seed

    @model_validator(mode="after")
    def _check_trainable(self) -> Self:
        self.source.check_trainable()
        return self


class FineTuneConfig(Settings, init=False):
    """Teach a writer an expert's replies, or a reader the gold answers (SFT), before training by reward."""

    mode: Literal["sft"] = "sft"
    """Supervised fine-tuning."""

    model: str = POCKET_BASE
    """Model to train: "pocket-base" or "pocket" (embedded), "local:" and a folder, or a Hugging Face id."""

    trajectories: Path = Path("runs/trajectories")
    """Folder of the expert's trajectories, from --mode trajectories."""

    target: Literal["writer", "reader", "both"] = "writer"
    """Part to teach: the writer (the expert's replies), the reader (the gold answers of the trajectories'
    questions, from what retrieval finds in the expert's memories), or one model that does both."""

    answerable_only: bool = False
    """Of a reader: leave out the questions without an answer. They share one reply, and a small model that
    learns it may give it to answerable questions, too."""

    program: SavedProgram

    system: SystemSettings = SystemSettings()

    epochs: int = Field(default=3, ge=1)
    """Passes over the examples. The weights with the lowest validation loss are the result."""

    batch: int = Field(default=16, ge=1)
    """Examples per step, shared by the processes of torchrun."""

    held_out: float = Field(default=0.1, gt=0, lt=1)
    """Share of the conversations used for validation."""

    optimizer: OptimizerSettings = OptimizerSettings()

    output_dir: Path = Path("runs/sft")
    """Folder of the run; its folder "model" is the result (of a reader, "model/reader"). The same folder
    continues the same run."""

    @model_validator(mode="after")
    def _check_searches(self) -> Self:
        if self.target != "writer" and self.system.reader.max_searches:
            raise ConfigError(
                f"max_searches={self.system.reader.max_searches} cannot be taught: gold answers tell of no "
                "search; leave it out, and train the reader by reward with it"
            )
        return self

    @model_validator(mode="after")
    def _check_questions(self) -> Self:
        if self.answerable_only and self.target == "writer":
            raise ConfigError(
                "answerable_only=True chooses among the questions of a reader, and target='writer' teaches "
                "none: leave it out, or give --target reader"
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
    """Export for other tools."""

    format: Literal["llamafactory", "verl", "hf", "gguf"] = "llamafactory"
    """llamafactory: examples for supervised fine-tuning; verl: prompts for rollouts, as parquet; hf: a model
    with its adapters merged, in bfloat16, as vLLM serves it; gguf: the same as one file, as llama.cpp reads
    it (needs the package gguf)."""

    by: Literal["session", "question"] = "session"
    """For verl: one row per session, rewarded by all its questions, or one per question."""

    trajectories: Path = Path("runs/trajectories")
    """Folder of trajectories, for llamafactory and verl."""

    model: Path = Path("runs/train/model")
    """Folder of a trained model, for hf and gguf."""

    from_verl: Path | None = None
    """Folder of a training in verl, of its checkpoint, or of the model that verl's own tool merged from one.
    It is written as by --format hf, with the program of --trajectories."""

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
                f"format={self.format!r} is not written from a training in verl, which is exported as 'hf': "
                "leave --format out, and export the result by --model"
            )
        return self
