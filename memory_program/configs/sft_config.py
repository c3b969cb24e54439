"""The settings of ``train.py --mode trajectories``, ``sft`` and ``export``; nothing slow is imported."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from memory_program.configs.evaluate_config import SystemSettings
from memory_program.configs.train_config import TrainConfig
from memory_program.configs.trainer_config import OptimizerSettings
from memory_program.core.settings import ApiBase, Settings
from memory_program.models.model_names import POCKET_BASE

ORACLE_EXPERT = "oracle"
"""The perfect writer of what is made up; it needs no model."""


class TrajectoriesConfig(SystemSettings):
    """Write down what an expert does, session by session, as material for supervised fine-tuning.

    A run can be stopped at any moment: the same command goes on after the last whole session.
    """

    mode: Literal["trajectories"] = "trajectories"
    """What to do."""

    model: str = ORACLE_EXPERT
    """The expert: "oracle" (perfect, for made-up conversations), or any model that evaluate.py takes."""

    api_base: ApiBase | None = None
    """Address of an OpenAI-compatible server of your own."""

    temperature: float = Field(default=0.0, ge=0, le=2)
    """Sampling temperature of the expert."""

    max_completion_tokens: int = Field(default=4096, ge=1)
    """The most tokens that a reply may have."""

    dataset: str = "sample"
    """What is remembered: "sample" (made-up conversations to learn from), "locomo" (its train split), or the
    path of a JSON file in LoCoMo's schema (all but its last half)."""

    data: Path | None = None
    """Path of the official locomo10.json. Without it the file is downloaded once, into a cache."""

    allow_modified: bool = False
    """Accept a LoCoMo file whose hash is not the official one."""

    num_train: int = Field(default=600, ge=1)
    """Sessions with questions to remember, at least; of a file, whatever it has if it has fewer."""

    skip_existing: bool = False
    """Leave a conversation alone as soon as it has a file, even an unfinished one."""

    num_threads: int = Field(default=8, ge=1, le=1024)
    """Conversations remembered at once, and model calls in flight at most."""

    output_dir: Path = Path("runs/trajectories")
    """Folder of the trajectories, one file for each conversation."""

    seed: int = Field(default=0, ge=0)
    """Seed of what is made up."""

    @property
    def train_data_config(self) -> TrainConfig:
        """The same data, as a training names it."""
        names = ("dataset", "data", "allow_modified", "num_train", "seed")
        return TrainConfig(**{name: getattr(self, name) for name in names})


class SynthesizeConfig(Settings):
    """Let a strong model write questions about conversations, as material to be trained by.

    Each is kept only if the model, shown the session and not the answer, gives the same answer, and if
    nothing alike was asked before. The result is a file in LoCoMo's schema, for --dataset of --mode train. A
    run can be stopped at any moment: the same command goes on after the last whole session.
    """

    mode: Literal["synthesize"] = "synthesize"
    """What to do."""

    model: str
    """The model that writes, and answers to check: any that evaluate.py takes."""

    api_base: ApiBase | None = None
    """Address of an OpenAI-compatible server of your own."""

    questions: int = Field(default=5, ge=1)
    """Questions asked for, for each session. 5 is MemBuilder's number."""

    max_completion_tokens: int = Field(default=4096, ge=1)
    """The most tokens that a reply may have."""

    dataset: str = "sample"
    """What is asked about: "sample" (made-up conversations to learn from), "locomo" (its train split), or the
    path of a JSON file in LoCoMo's schema (all of it). Questions that it has are left out."""

    data: Path | None = None
    """Path of the official locomo10.json. Without it the file is downloaded once, into a cache."""

    allow_modified: bool = False
    """Accept a LoCoMo file whose hash is not the official one."""

    num_train: int = Field(default=600, ge=1)
    """Sessions with questions of the dataset to take, at least; where it has none, all of its sessions."""

    num_threads: int = Field(default=8, ge=1, le=1024)
    """Conversations at once, and model calls in flight at most."""

    output_dir: Path = Path("runs/questions")
    """Folder of the questions, one file for each conversation, and of conversations.json with all of them."""

    seed: int = Field(default=0, ge=0)
    """Seed of what is made up."""

    @property
    def train_data_config(self) -> TrainConfig:
        """The same data, as a training names it."""
        names = ("dataset", "data", "allow_modified", "num_train", "seed")
        return TrainConfig(**{name: getattr(self, name) for name in names})


class FineTuneConfig(OptimizerSettings):
    """Teach a writer the replies of an expert, before it is trained by reward."""

    mode: Literal["sft"] = "sft"
    """What to do."""

    model: str = POCKET_BASE
    """Model to train: "pocket-base" or "pocket" (embedded), or "local:" and a folder or hub id."""

    trajectories: Path = Path("runs/trajectories")
    """Folder of what the expert did, as --mode trajectories writes it."""

    epochs: int = Field(default=3, ge=1)
    """Passes over the examples. The weights with the lowest loss on validation are the result."""

    batch: int = Field(default=16, ge=1)
    """Examples of a step."""

    held_out: float = Field(default=0.1, gt=0, lt=1)
    """Share of the conversations that validate."""

    learning_rate: float = Field(default=1e-4, gt=0)
    """Learning rate of AdamW, constant after the warm-up."""

    output_dir: Path = Path("runs/sft")
    """Folder of the run; "model" in it is the result. The same folder goes on."""

    @property
    def optimizer_settings(self) -> OptimizerSettings:
        """How weights are changed."""
        return OptimizerSettings(**{name: getattr(self, name) for name in OptimizerSettings.model_fields})


class ExportConfig(Settings):
    """Write trajectories, or a trained model, as other tools read them."""

    mode: Literal["export"] = "export"
    """What to do."""

    format: Literal["llamafactory", "verl", "hf"] = "llamafactory"
    """llamafactory: examples for supervised fine-tuning; verl: prompts to roll out, as parquet; hf: a model
    with its adapters merged, in bfloat16, as vLLM serves it."""

    by: Literal["session", "question"] = "session"
    """For verl: a row for each session, rewarded by all its questions, or for each question."""

    trajectories: Path = Path("runs/trajectories")
    """Folder of trajectories, for llamafactory and verl."""

    model: Path = Path("runs/train/model")
    """Folder of a trained model, for hf."""

    output_dir: Path = Path("runs/export")
    """Folder for the files."""
