"""The settings of ``train.py --mode train`` and ``--mode evaluate``; they import nothing that is slow."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from memory_program.configs.evaluate_config import DatasetName, EvaluateConfig, SystemSettings
from memory_program.configs.trainer_config import GRPOSettings, ReinforceSettings
from memory_program.core.errors import ConfigError
from memory_program.core.settings import ApiBase, Settings, TrackingUri
from memory_program.models.model_names import POCKET, POCKET_BASE, is_bundled

_BUNDLED_MODEL_MINUTES = 15.0


class TrainConfig(GRPOSettings, ReinforceSettings, SystemSettings):
    """Train the weights of the memory program's writer by what its memories are worth.

    A step remembers a few sessions several times over, asks a frozen reader the questions that they answer,
    and makes likelier what led to better answers. The train conversations teach, those of validation choose
    the best weights, those of test compare them with what the training began with. A run can be stopped at
    any moment: the same command goes on from its last checkpoint.
    """

    mode: Literal["train"] = "train"
    """What to do; train, and then evaluate, is what is done without the flag."""

    backend: Literal["local", "arbor"] = "local"
    """Where weights are trained: local is this process, on the CPU or one GPU; arbor is a server with GPUs
    for sampling and for training, which has flags and defaults of its own (--backend arbor --help). Without
    the flag it is arbor if there is a file arbor.yaml, or one is named by --arbor-config."""

    model: str = POCKET_BASE
    """Model to train: "pocket-base" or "pocket" (embedded), or "local:" and a folder or hub id."""

    reader_model: str | None = None
    """Model that answers, by any name; it is never trained. Without it, a frozen copy of --model; for
    pocket-base that is pocket, whose answers tell better what a memory was worth."""

    judge_model: str | None = None
    """Model that judges answers, for --reward judge and mix."""

    api_base: ApiBase | None = None
    """Address of an OpenAI-compatible server of your own, for a reader or a judge outside this process."""

    reward: Literal["f1", "judge", "mix"] = "f1"
    """What an answer is worth: LoCoMo's official F1, a judge's verdict, or the mean of both. Who abstains
    rightly has 1 in each."""

    rubric: Literal["lenient", "strict"] = "strict"
    """By what rubric the judge goes. A lenient judge accepts vague answers, as a policy finds out."""

    dataset: str = DatasetName.SAMPLE.value
    """What to learn from: "sample" (made-up conversations; tested on the few that come with the program),
    "locomo" (by its splits), or the path of a JSON file in LoCoMo's schema (the last quarter tests, the one
    before validates)."""

    data: Path | None = None
    """Path of the official locomo10.json. Without it the file is downloaded once, into a cache."""

    allow_modified: bool = False
    """Accept a LoCoMo file whose hash is not the official one; every signature then says so."""

    num_train: int = Field(default=600, ge=1)
    """Training examples (sessions with questions), at least; of a file, whatever it has if it has fewer."""

    num_val: int = Field(default=100, ge=1)
    """Validation examples, at least; whole conversations are taken until there are so many."""

    num_test: int | None = Field(default=None, ge=1)
    """Ask the first N test questions only. For a quick look, not for a score."""

    num_train_steps: int = Field(default=40, ge=1)
    """Steps of the training; the stages of --curriculum share them. 40 are for the embedded model; for
    large models 500 are usual."""

    learning_rate: float = Field(default=3e-4, gt=0)
    """Learning rate of AdamW, constant after the warm-up. For adapters of large models 2e-5 is usual."""

    warmup_steps: int = Field(default=2, ge=0)
    """Steps over which the learning rate rises to its value."""

    ema_decay: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the moving average of the weights, by optimiser steps. Samples come from the weights as they
    are; validated and kept is the average, which the noise of single steps hardly moves. 0: no average."""

    reward_rule: Literal["outcome", "dense", "delta", "difference"] = "difference"
    """What a rollout is worth: outcome is the score of the answers; dense (MemBuilder) takes off for invalid
    calls, by specialist, and for length: of the profile, and of memories where a perfect writer's are known
    (made-up conversations); delta (MemUpdate) is the gain over the memory before the session;
    difference is, for each specialist, the score less what it would be had this one written nothing."""

    format_weight: float = Field(default=0.1, ge=0)
    """Added to the reward of a specialist whose calls were all valid. By the difference alone, a reply that
    cannot be used is worth what an empty one is."""

    episode_questions: int = Field(default=10, ge=1)
    """Questions asked about a session to score what was written of it, at most. MemBuilder asks 5; of what
    nothing is asked about, nothing is learned."""

    curriculum: str = "4,8"
    """Sessions of a conversation at most, stage after stage; the stages share the steps. Empty: all sessions
    from the first step on."""

    minutes: float | None = Field(default=None, gt=0)
    """Stop training after so many minutes, those before a kill included. Without it, models that come with
    this program train for 15, and others as long as their steps take."""

    dry_run: bool = False
    """Show one group with its rewards and advantages, and train nothing."""

    output_dir: Path = Path("runs/train")
    """Folder of the run: checkpoints, log, the trained model with its program, plots. The same folder goes
    on."""

    push_to_hub: str | None = None
    """Push the result to this repository of the Hugging Face hub, "owner/model"; a new one is private.
    Without the flag it stays on this machine."""

    tracking_uri: TrackingUri | None = None
    """MLflow's tracking address. Without it, SQLite in mlflow.db beside the folder of the run."""

    mlflow: bool = True
    """Record the run, with its curves, in MLflow."""

    @model_validator(mode="after")
    def _check_judge_named(self) -> Self:
        if self.backend != "local" and type(self) is TrainConfig:
            raise ConfigError(f"backend={self.backend!r} has settings of its own: build an ArborTrainConfig")
        if self.reward != "f1" and self.judge_model is None:
            raise ConfigError(
                f"reward={self.reward!r} needs a judge: name its model with --judge-model, or choose "
                "--reward f1"
            )
        if self.dataset == DatasetName.WORLD.value:
            raise ConfigError(
                "dataset='world' is what 'sample' learns from already: choose --dataset sample, with --seed "
                "for other conversations"
            )
        return self

    @property
    def reader(self) -> str:
        """The model that answers."""
        return self.reader_model or (POCKET if self.model == POCKET_BASE else self.model)

    @property
    def trained_folder(self) -> Path:
        """The folder of what was trained: weights, tokenizer, program, card."""
        return self.output_dir / "model"

    @property
    def grpo_settings(self) -> GRPOSettings:
        """What is learned from, and for how long."""
        given = {name: getattr(self, name) for name in GRPOSettings.model_fields}
        if self.minutes is None and is_bundled(self.model):
            given["minutes"] = _BUNDLED_MODEL_MINUTES
        return GRPOSettings(**given)

    @property
    def reinforce_settings(self) -> ReinforceSettings:
        """How weights are changed."""
        return ReinforceSettings(**{name: getattr(self, name) for name in ReinforceSettings.model_fields})

    @property
    def system_settings(self) -> SystemSettings:
        """The part that the program is made with."""
        return SystemSettings(**{name: getattr(self, name) for name in SystemSettings.model_fields})

    @property
    def data_config(self) -> EvaluateConfig:
        """The same dataset, as the evaluation names it."""
        return EvaluateConfig(
            dataset=self.dataset,
            data=self.data,
            allow_modified=self.allow_modified,
            seed=self.seed,
            systems="extractive",  # whatever asks for the data alone needs no model
        )


class ReevaluateConfig(Settings):
    """Evaluate again what a training made, against what it began with.

    What was trained, on what, and how it is evaluated stands in the folder of the training.
    """

    mode: Literal["evaluate"] = "evaluate"
    """What to do."""

    output_dir: Path = Path("runs/train")
    """Folder of the training."""

    num_test: int | None = Field(default=None, ge=1)
    """Ask the first N test questions only. Without it, as many as the training did."""

    api_base: ApiBase | None = None
    """Address of an OpenAI-compatible server of your own, for the reader or the judge. Without it, that of
    the training."""

    push_to_hub: str | None = None
    """Push the result to this repository of the Hugging Face hub, "owner/model"; a new one is private.
    Without the flag it stays on this machine."""

    tracking_uri: TrackingUri | None = None
    """MLflow's tracking address. Without it, SQLite in mlflow.db beside the folder of the run."""

    mlflow: bool = True
    """Record the run, with its curves, in MLflow."""
