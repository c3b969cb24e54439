"""The settings of ``train.py --mode train`` and ``--mode evaluate``. Nothing slow is imported."""

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from memory_program.configs.endpoints import JudgeAddress, ReaderAddress
from memory_program.configs.evaluate_config import READER_FOLDER
from memory_program.configs.groups import (
    DataSettings,
    GradingSettings,
    HubRepository,
    NumTest,
    NumTrain,
    RetryErrors,
    SavedProgram,
    ServerAddress,
    SystemSettings,
    TrackingSettings,
    TrainingPart,
)
from memory_program.configs.trainer_groups import GRPOSettings, Part, ReinforceSettings
from memory_program.core.errors import ConfigError
from memory_program.core.settings import ApiBase, Settings
from memory_program.models.model_names import POCKET, POCKET_BASE, is_bundled, trainable_model
from memory_program.models.reply_settings import thinking_tokens

DEFAULT_GRPO = GRPOSettings(
    num_train_steps=40,
    episode_questions=10,
    curriculum="4,8",
    reward_rule="leave-one-out",
    format_weight=0.1,
)
"""Defaults for the embedded model; those of the group itself are usual for large models."""

_BUNDLED_MODEL_MINUTES = 15.0

_WRITERS_ONLY = ("reward_rule", "length_weight", "tool_weights", "alpha", "replay_questions")
"""Settings without a meaning for the reader: its reward is the score of its answer."""

_LEAST_WITH_THOUGHTS = 2048
"""Least tokens of a reply with thoughts: short ones fit, and a reply after them."""


class TrainConfig(Settings, init=False):
    """Train the weights of the writer, the reader or both by reinforcement learning (GRPO).

    A step writes the memories of a few sessions several times, and asks a frozen reader the questions about
    them. It increases the probability of replies that led to better answers. With --target reader, a reader
    answers each question several times from fixed memories.

    The train split is for training, the validation split selects the best weights, and the test split
    compares them with the start. You can stop a run at any time. The same command resumes it from its last
    checkpoint.
    """

    mode: Literal["train"] = "train"
    """Train, and then evaluate. This is the default mode."""

    backend: Literal["auto", "local", "arbor"] = "auto"
    """Where to train. local: in this process, on the CPU or one GPU, or in several processes that torchrun
    starts. arbor: on a server with several GPUs, with its own flags and defaults (--backend arbor --help).
    auto: arbor if a flag names its file or GPUs; local under torchrun, or if --sampler or --sampler-url names
    a vLLM server; otherwise arbor if its server answers or at least two GPUs are visible, and local if not.
    It prints the reason."""

    model: str = POCKET_BASE
    """Model to train: "pocket-base" or "pocket" (embedded), "local:" and a folder, or a Hugging Face id."""

    target: Literal["writer", "reader", "both"] = "writer"
    """Part to train. The other part is frozen. The reward of a reader is the score of its answer. both: first
    the writer, then the reader on its memories; each starts from --model and has its own steps and
    minutes."""

    program: SavedProgram

    reader_model: str | None = None
    """Model that answers while the writer is trained. Default: a frozen copy of --model; for pocket-base it
    is pocket, whose answers reflect the memories better."""

    writer_model: str | None = None
    """Model that writes while the reader is trained. "observations": LoCoMo's own notes are the memories,
    which needs --writer-mode generalist. Default: a frozen copy of --model, or pocket for pocket-base."""

    sampler: Literal["local", "vllm"] = "local"
    """Where the policy samples. local: in this process. vllm: on a vLLM server that is started on this
    machine, and takes a part of the GPU's memory. It gets the new adapters after each step, so it needs
    --tuning lora."""

    sampler_url: ApiBase | None = None
    """Base URL of a running vLLM server to sample on, in place of the one that --sampler vllm starts. It has
    to serve --model with --enable-lora, and to read the adapters from --output-dir. API key:
    SAMPLER_API_KEY."""

    api_base: ServerAddress

    reader_api_base: ReaderAddress

    judge_api_base: JudgeAddress

    source: DataSettings = DataSettings()
    part: TrainingPart = TrainingPart()

    answerable_only: bool = False
    """Leave unanswerable questions out of training and validation; the test split keeps them. A correct
    abstention earns the full reward, so with them a reader may learn to abstain instead of answering
    better."""

    num_train: NumTrain

    num_val: int = Field(default=100, ge=1)
    """Minimum number of validation examples. Whole conversations are taken until it is reached."""

    num_test: NumTest

    grading: GradingSettings = GradingSettings()
    grpo: GRPOSettings = DEFAULT_GRPO
    trainer: ReinforceSettings = ReinforceSettings()
    system: SystemSettings = SystemSettings()

    retry_errors: RetryErrors

    dry_run: bool = False
    """Sample one group, show its rewards and advantages, and train nothing."""

    output_dir: Path = Path("runs/train")
    """Folder of the run: checkpoints, log, plots, and the trained model with its program. The same command in
    the same folder resumes the run."""

    push_to_hub: HubRepository

    tracking: TrackingSettings = TrackingSettings()

    _thoughts_advice: ClassVar[str] = (
        "switch its reasoning off with --chat-template-kwargs '{\"enable_thinking\": false}', here and where "
        "the trained model is used"
    )

    @field_validator("model")
    @classmethod
    def _complete_model(cls, value: str) -> str:
        return trainable_model(value)

    @classmethod
    def backend_name(cls) -> Literal["local", "arbor"]:
        """Return the backend of these settings."""
        return "local"

    @field_validator("backend")
    @classmethod
    def _resolve_backend(cls, value: str) -> str:
        if value not in ("auto", cls.backend_name()):
            raise ConfigError(f"backend={value!r} has settings of its own, and these are of {cls.__name__}")
        return cls.backend_name()

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        self.grading.check_has_judge()
        self.source.check_trainable()
        if self.samples_on_vllm and self.trainer.optimizer.tuning == "full":
            raise ConfigError(
                "tuning='full' trains weights that a vLLM server cannot take while it runs: use --tuning "
                "lora, or --sampler local without --sampler-url"
            )
        thoughts = thinking_tokens(self.model, self.system.replies.settings().chat_template_kwargs)
        limit = self.trainer.max_completion_tokens
        if limit < min(thoughts, _LEAST_WITH_THOUGHTS):  # they fill the reply, and no sample can be used
            raise ConfigError(
                f"model={self.model!r} reasons before it replies, and max_completion_tokens={limit} would "
                f"truncate most samples before the reply: {self._thoughts_advice}, or raise "
                f"--max-completion-tokens to at least {_LEAST_WITH_THOUGHTS:,}"
            )
        for part in self.parts:
            named = getattr(self, f"{part}_model")
            if named is not None:
                raise ConfigError(
                    f"{part}_model={named!r} names a frozen {part}, and target={self.target!r} trains the "
                    f"{part}: name the model to train with --model"
                )
        self.system.writer.check_can_write(self.writer_model)
        values, defaults = self.grpo.flat_values(), DEFAULT_GRPO.flat_values()
        changed = [name for name in _WRITERS_ONLY if values[name] != defaults[name]]
        if self.target == "reader" and changed:
            raise ConfigError(
                f"{changed[0]}={values[changed[0]]!r} only applies to a writer (got target='reader'): leave "
                "it out; the reward of a reader is the score of its answer"
            )
        return self

    @property
    def samples_on_vllm(self) -> bool:
        """True if the policy samples on a vLLM server."""
        return self.sampler == "vllm" or self.sampler_url is not None

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that are trained, in this order."""
        return ("writer", "reader") if self.target == "both" else (self.target,)

    @property
    def writer(self) -> str:
        """The model that writes: the frozen one, or that which the training begins with."""
        return self._start("writer", self.writer_model)

    @property
    def reader(self) -> str:
        """The model that answers: the frozen one, or that which the training begins with."""
        return self._start("reader", self.reader_model)

    def _start(self, part: Part, named: str | None) -> str:
        if named is None and part not in self.parts and self.model == POCKET_BASE:
            return POCKET
        return named or self.model

    @property
    def trained_folder(self) -> Path:
        """The folder of the result: program, card, and the weights of the writer, if it was trained."""
        return self.output_dir / "model"

    def weights_folder(self, part: Part) -> Path:
        """Return the folder of the trained weights of a part, with tokenizer and program."""
        return self.trained_folder if part == "writer" else self.trained_folder / READER_FOLDER

    def part_folder(self, part: Part) -> Path:
        """Return the folder of the checkpoints and the log of a part's training."""
        return self.output_dir if self.parts[0] == part else self.output_dir / f"{part}-training"

    @property
    def timed_grpo(self) -> GRPOSettings:
        """The GRPO settings, with the time limit of embedded models."""
        if self.grpo.minutes is None and is_bundled(self.model):
            return self.grpo.replace(minutes=_BUNDLED_MODEL_MINUTES)
        return self.grpo


class ReevaluateConfig(Settings, init=False):
    """Evaluate a trained model again, and compare it with the model before the training.

    All other settings come from the folder of the training.
    """

    mode: Literal["evaluate"] = "evaluate"
    """Evaluate a finished training again."""

    output_dir: Path = Path("runs/train")
    """Folder of the training."""

    num_test: NumTest

    api_base: ServerAddress

    reader_api_base: ReaderAddress

    judge_api_base: JudgeAddress

    retry_errors: RetryErrors

    push_to_hub: HubRepository

    tracking: TrackingSettings = TrackingSettings()
