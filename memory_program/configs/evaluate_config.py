"""The settings of ``evaluate.py``. Docstrings are the help of the flags, and nothing slow is imported."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Self

import tyro
from pydantic import Field, field_validator, model_validator

from memory_program.configs.endpoints import JudgeAddress, ReaderAddress, WriterAddress
from memory_program.configs.groups import (
    EVALUATION_ONLY,
    NUGGET_DATASETS,
    Concurrency,
    Conversations,
    DatasetName,
    DataSettings,
    MaxCost,
    NumTest,
    RetryErrors,
    SearchSettings,
    Seed,
    ServerAddress,
    Sessions,
    SubsetFile,
    SystemSettings,
    Temperature,
    TrackingSettings,
)
from memory_program.core.errors import ConfigError
from memory_program.core.settings import DatabaseUrl, OutputFile, Settings, check_choices, split_list
from memory_program.models.model_names import POCKET, has_batch_api, is_bundled, runs_here

BuildOrder = Literal["sequential", "two-phase"]

SplitName = Literal["all", "train", "val", "test", "sft", "rl"]

READER_FOLDER = "reader"
"""The folder of a reader's weights beside a program; those in the program's own folder write for it."""

NO_JUDGE = "none"
"""The value of ``judge_model`` that switches the judge off."""

_SPLITS: Mapping[str, tuple[SplitName, ...]] = {
    DatasetName.LONGMEMEVAL: ("all", "sft", "rl", "test"),
    DatasetName.PERLTQA: ("all",),
    **dict.fromkeys(EVALUATION_ONLY, ("all",)),
}
_LOCOMO_SPLITS: tuple[SplitName, ...] = ("all", "train", "val", "test")


class SystemName(StrEnum):
    """The systems that can be evaluated. ``agents/systems.py`` says how each is made."""

    MEMORY = "memory"
    OPTIMIZED = "optimized"
    RAG = "rag"
    OBSERVATIONS = "observations"
    FULL_CONTEXT = "full-context"
    NO_MEMORY = "no-memory"
    EXTRACTIVE = "extractive"

    @property
    def has_model_writer(self) -> bool:
        """True if a model writes its memories, which are then kept in a database."""
        return self in (SystemName.MEMORY, SystemName.OPTIMIZED)

    @property
    def has_model_reader(self) -> bool:
        """True if its answers come from a model."""
        return self is not SystemName.EXTRACTIVE


class Mode(StrEnum):
    """The stages of a run. Each one starts from the records of the one before it."""

    BUILD = "build"
    ANSWER = "answer"
    JUDGE = "judge"
    REPORT = "report"
    FULL = "full"
    CALIBRATE = "calibrate"

    @property
    def runs_systems(self) -> bool:
        """True if systems run. Other stages need their records only, and no model of theirs."""
        return self in (Mode.BUILD, Mode.ANSWER, Mode.FULL)


class EvaluateConfig(Settings, init=False):
    """Build memories from conversations, answer questions from them, and score the answers.

    You can stop a run at any time. The same command resumes it, and repeats no finished work. API keys come
    from the environment only.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN ...]")] = ()
    """With --mode report: folders of runs to report. Each run is scored with the settings in its config.json.
    Several runs share one page, and are compared where their data are the same."""

    mode: Mode = Mode.FULL
    """Stage to run: build (memories), answer, judge, report, or full (all of them). judge and report work on
    recorded answers: report calls no model, and judge only the judge. calibrate tests the judge on answers
    with known verdicts, in the folder "calibration" beside the run. Scores by this judge then cite its error
    rates."""

    source: DataSettings = DataSettings()

    split: SplitName = "all"
    """Split to use: all conversations, or one of the dataset's splits (LoCoMo: train, val, test; LongMemEval:
    MemBuilder's sft, rl, test). If you tuned on train, report the score on test."""

    conversations: Conversations

    subset_file: SubsetFile

    sessions: Sessions

    num_test: NumTest

    systems: str = "memory,rag,full-context,no-memory"
    """Comma-separated systems to evaluate: memory (this program), rag, full-context, no-memory, observations
    (LoCoMo's own notes), extractive (no model), and optimized (the program of --program, which adds it)."""

    system: SystemSettings = SystemSettings()

    answerability_check: bool = False
    """Abstain, without calling the reader, if a question probably has no answer. A small linear model
    decides: it looks for questions that name one speaker while the best-matching turns are by another. It was
    fitted on LoCoMo's training split. Small readers rarely abstain by themselves. It does not apply to
    extractive and no-memory."""

    search: SearchSettings = SearchSettings()

    model: str | None = None
    """Model of writer, reader and judge: a LiteLLM name such as openai/gpt-4.1-mini, "local:" and a folder,
    GGUF file or Hugging Face id, or "vllm:" and a folder or id. Default: pocket, the embedded model, for
    generated conversations (sample, world), without a judge. Other datasets need a model."""

    writer_model: str | None = None
    """Model that writes memories. "observations" is no model: LoCoMo's own notes are the memories, which
    needs --writer-mode generalist. --mode answer takes the writer from the banks. Default: --model."""

    reader_model: str | None = None
    """Model that answers. Default: --model."""

    judge_model: str | None = None
    """Model that judges answers; "none" switches the judge off. Default: --model, unless it is pocket."""

    rubrics: str = "lenient,strict"
    """Comma-separated rubrics of the judge. lenient follows the published rubrics; strict accepts no vague
    answer. Both fit the benchmark and the type of question. With both, there are twice as many calls, and
    their agreement is reported. BEAM and LoCoMo-Plus have rubrics of their own, with one call per nugget."""

    judge_program: Path | None = None
    """Saved judge (JSON from optimize.py --target judge). Its prompts replace those of its rubric. Its
    verdicts are recorded apart, and every signature names it."""

    api_base: ServerAddress

    writer_api_base: WriterAddress

    reader_api_base: ReaderAddress

    judge_api_base: JudgeAddress

    temperature: Temperature

    writer_temperature: float | None = Field(default=None, ge=0, le=2)
    """Sampling temperature of the writer. At 0, a small model may repeat the same memory until it is stopped;
    sampling can avoid that. Default: --temperature."""

    program: Path | None = None
    """Saved program (JSON from optimize.py or train.py). It is evaluated as the system "optimized", beside
    "memory", which has the built-in prompts. Trained weights in the folder of the file are its writer, and
    those in the subfolder "reader" its reader, in place of --writer-model and --reader-model."""

    build: BuildOrder = "sequential"
    """Order in which sessions are written. sequential: one after the other. two-phase: all sessions of a
    conversation are proposed at once, and conflicts are then settled in order. two-phase gives memories as
    good, much faster for few and long conversations, with up to twice as many calls."""

    concurrency: Concurrency

    batch: bool = False
    """Use the batch API of openai/ or anthropic/ models: half the price, and up to 24 hours per stage.
    Writing memories then needs --build two-phase. After a kill, the same command waits for the batches that
    were submitted."""

    executor: Literal["threads", "ray"] = "threads"
    """Where sessions are written and questions answered. threads: in this process. ray: as tasks of a Ray
    cluster (pip install 'memory-program[ray]') that read the banks from the database; for API models only."""

    ray_address: str = "local"
    """With --executor ray: "local" starts a cluster of --concurrency processes on this machine. host:port
    names a running cluster, as "ray start --head" prints it. Several machines need PostgreSQL in --db-url."""

    output_dir: Path = Path("runs/evaluate")
    """Folder of the run: records, banks, results, plots, report. The same command in the same folder resumes
    the run."""

    report_file: OutputFile | None = None
    """File of the report, one HTML page that needs no other file and no network. Default: report.html in the
    folder of the run; for several runs, beside the folder of the first one."""

    db_url: DatabaseUrl | None = None
    """Database of the banks: an SQLAlchemy URL without a password, which belongs in PGPASSWORD or ~/.pgpass.
    Default: SQLite in the folder of the run."""

    seed: Seed

    max_cost: MaxCost

    max_errors: int | None = Field(default=None, ge=0)
    """Stop, and keep the results, after more failed calls than this. Without it, a run stops if its first 20
    items all failed, or if most replies of its first 3 sessions or 10 answers were truncated or could not be
    parsed."""

    retry_errors: RetryErrors

    tracking: TrackingSettings = TrackingSettings()

    traces: bool = False
    """Record every call of every module as an MLflow trace. Slow, and large."""

    @field_validator("systems")
    @classmethod
    def _check_systems(cls, value: str) -> str:
        return check_choices(value, "system", [name.value for name in SystemName])

    @field_validator("rubrics")
    @classmethod
    def _check_rubrics(cls, value: str) -> str:
        return check_choices(value, "rubric", ["lenient", "strict"])

    @model_validator(mode="after")
    def _check_reported_runs(self) -> Self:
        if not self.runs:
            return self
        names = [run.as_posix() for run in self.runs]
        if self.mode is not Mode.REPORT:
            raise ConfigError(
                f"runs={names} are folders to report, and mode is {self.mode.value!r}: add --mode report, or "
                "leave them out"
            )
        if len(set(names)) < len(names):
            raise ConfigError(f"runs={names} names one twice: name each once")
        values = self.flat_values()
        for name, field in type(self).flat_fields().items():
            is_of_report = name in ("mode", "runs", "report_file", "mlflow", "tracking_uri")
            if not is_of_report and values[name] != field.default:
                value = str(values[name]) if isinstance(values[name], Path) else values[name]
                raise ConfigError(
                    f"{name}={value!r} cannot be changed in a report of {names[0]!r}, which uses the "
                    "settings of the run: leave it out, or name the run with --output-dir and all of its "
                    "settings"
                )
        return self

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        splits = _SPLITS.get(self.source.dataset, _LOCOMO_SPLITS)
        if self.split not in splits:
            raise ConfigError(
                f"dataset {self.source.dataset!r} has no split {self.split!r}: choose from "
                f"{', '.join(splits)}"
            )
        if self.traces and not self.tracking.mlflow:
            raise ConfigError("--traces needs MLflow: drop --no-mlflow or --traces")
        self.system.writer.check_can_write(self.writer_model)
        if self.program is None and SystemName.OPTIMIZED in self.system_names:
            raise ConfigError(
                f"system {SystemName.OPTIMIZED.value!r} needs a saved program: name its file with --program"
            )
        if self.writer_temperature is not None and not any(n.has_model_writer for n in self.system_names):
            raise ConfigError(
                f"writer_temperature={self.writer_temperature:g} only applies to systems whose memories a "
                f"model writes (got systems={self.systems!r}): leave it out, or use --temperature"
            )
        return self

    @model_validator(mode="after")
    def _check_ray_support(self) -> Self:
        if self.executor != "ray" or not self.mode.runs_systems:
            return self
        writers = [self.writer_model_for(name) for name in self.system_names]
        readers = [self.reader_model_for(name) for name in self.system_names]
        called = (
            *(writers if self.mode is not Mode.ANSWER else ()),
            *(readers if self.mode is not Mode.BUILD else ()),
        )
        for model in called:
            if model is not None and runs_here(model):
                raise ConfigError(
                    f"model {model!r} runs in the process that calls it, and every process of executor='ray' "
                    "would load a copy: leave --executor out, or serve the model and name it openai/NAME, "
                    "with --api-base"
                )
        if self.search.retrieval != "bm25":
            raise ConfigError(
                f"retrieval={self.search.retrieval!r} works in one process, and executor='ray' uses several: "
                "drop --retrieval or --executor"
            )
        for name in ("batch", "build", "traces"):
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                raise ConfigError(
                    f"{name}={value!r} works in one process, and executor='ray' uses several: drop --{name} "
                    "or --executor"
                )
        return self

    @model_validator(mode="after")
    def _check_batch_support(self) -> Self:
        if not self.batch or self.mode is Mode.REPORT:
            return self
        builds, answers = self.mode in (Mode.BUILD, Mode.FULL), self.mode in (Mode.ANSWER, Mode.FULL)
        writers = [self.writer_model_for(name) for name in self.system_names if builds]
        readers = [self.reader_model_for(name) for name in self.system_names if answers]
        judge = self.judge if self.mode in (Mode.JUDGE, Mode.FULL, Mode.CALIBRATE) else None
        for model in (*writers, *readers, judge):
            if model is not None and not has_batch_api(model):
                raise ConfigError(
                    f"model {model!r} has no batch API: choose a model of openai/ or anthropic/, or leave "
                    "--batch out"
                )
        if any(writers) and self.build == "sequential":
            raise ConfigError(
                f"build={self.build!r} would take a batch for each session: add --build two-phase, or build "
                "without --batch (--mode build) and use it for --mode answer and --mode judge"
            )
        return self

    @model_validator(mode="after")
    def _check_models_named(self) -> Self:
        if self.mode.runs_systems:
            for name in self.system_names:
                lacks_writer = (
                    name.has_model_writer
                    and self.writer_model_for(name) is None
                    and self.mode is not Mode.ANSWER  # the banks say which model wrote them
                )
                lacks_reader = (
                    name.has_model_reader
                    and self.reader_model_for(name) is None
                    and self.mode is not Mode.BUILD
                )
                if lacks_writer or lacks_reader:
                    self.source.check_exists()
                    part = "writer" if lacks_writer else "reader"
                    raise ConfigError(
                        f"system {name.value!r} needs a model: name one with --model or --{part}-model "
                        "(any LiteLLM name, for example openai/gpt-4.1-mini), or choose --systems "
                        + SystemName.EXTRACTIVE.value
                    )
        if self.source.dataset == DatasetName.PERSONAMEM and self.judge_model not in (None, NO_JUDGE):
            raise ConfigError(
                f"judge_model={self.judge_model!r} has nothing to judge, since --dataset personamem is "
                "multiple choice: leave --judge-model out"
            )
        if self.judge is None and self.mode in (Mode.JUDGE, Mode.CALIBRATE):
            if self.source.dataset == DatasetName.PERSONAMEM:
                raise ConfigError(
                    f"mode={self.mode.value!r} needs answers to judge, and --dataset personamem is multiple "
                    "choice: leave --mode out"
                )
            raise ConfigError(
                f"mode={self.mode.value!r} needs a judge: name one with --judge-model or --model"
            )
        uncalibrated = (DatasetName.MEMORYAGENTBENCH, DatasetName.LOCOMO_PLUS)
        if self.source.dataset in uncalibrated and self.mode is Mode.CALIBRATE:
            raise ConfigError(
                f"mode={self.mode.value!r} has no answers with known verdicts for --dataset "
                f"{self.source.dataset}: calibrate the judge on --dataset longmemeval"
            )
        if (
            self.source.dataset in NUGGET_DATASETS
            and self.rubrics != type(self).model_fields["rubrics"].default
        ):
            raise ConfigError(
                f"rubrics={self.rubrics!r} does not apply to --dataset {self.source.dataset}, which has a "
                "rubric for each question: leave --rubrics out"
            )
        if self.judge_program is not None and self.source.dataset in EVALUATION_ONLY:
            raise ConfigError(
                f"judge_program={str(self.judge_program)!r} has no prompts for --dataset "
                f"{self.source.dataset}, on which no judge can be optimised: leave --judge-program out"
            )
        if self.judge is None and self.mode is Mode.FULL and self.judge_program is not None:
            raise ConfigError(
                f"judge_program={str(self.judge_program)!r} needs a model that judges: name one with "
                "--judge-model or --model, or leave it out"
            )
        return self

    @property
    def system_names(self) -> tuple[SystemName, ...]:
        """The systems in the order given; a loaded program follows memory."""
        names = [SystemName(name) for name in split_list(self.systems)]
        if self.program is not None and SystemName.OPTIMIZED not in names:
            after = names.index(SystemName.MEMORY) + 1 if SystemName.MEMORY in names else len(names)
            names.insert(after, SystemName.OPTIMIZED)
        return tuple(names)

    def checks_answerability(self, name: SystemName) -> bool:
        """Tell if a system is checked for unanswerable questions: one whose reader is shown something."""
        return self.answerability_check and name not in (SystemName.EXTRACTIVE, SystemName.NO_MEMORY)

    def shows_turns(self, name: SystemName) -> bool:
        """Tell if a system's reader is shown turns of the conversation."""
        has_memories = name in (SystemName.MEMORY, SystemName.OPTIMIZED)
        beside_memories = has_memories and self.system.reader.with_verbatim_turns
        return beside_memories or name in (SystemName.RAG, SystemName.FULL_CONTEXT)

    def writer_model_for(self, name: SystemName) -> str | None:
        """Name the model that writes in a system, if any: weights beside a program write for it."""
        if not name.has_model_writer:
            return None
        return self._model_beside_program(name, ".") or self.writer

    def reader_model_for(self, name: SystemName) -> str | None:
        """Name the model that answers in a system, if any: weights in "reader" beside a program do for it."""
        if not name.has_model_reader:
            return None
        return self._model_beside_program(name, READER_FOLDER) or self.reader

    def _model_beside_program(self, name: SystemName, folder: str) -> str | None:
        if name is not SystemName.OPTIMIZED or self.program is None:
            return None
        weights = self.program.parent / folder
        return f"local:{weights}" if any(weights.glob("*.safetensors")) else None

    @property
    def writer(self) -> str | None:
        """The writer's model, if any; the embedded model writes the datasets that it knows."""
        return self.writer_model or self.model or (POCKET if self.source.is_synthetic else None)

    @property
    def reader(self) -> str | None:
        """The reader's model, if any; the embedded model reads the datasets that it knows."""
        return self.reader_model or self.model or (POCKET if self.source.is_synthetic else None)

    @property
    def judge(self) -> str | None:
        """The judge's model, if any. The embedded model judges only where it is named as the judge."""
        if self.source.dataset == DatasetName.PERSONAMEM:
            return None  # an option is right or wrong by its letter
        if self.judge_model is not None:
            return None if self.judge_model == NO_JUDGE else self.judge_model
        return None if self.model is not None and is_bundled(self.model) else self.model
