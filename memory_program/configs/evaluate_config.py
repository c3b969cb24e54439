"""The settings of the scripts: one frozen config each, whose docstrings are also the help of its flags.

This module imports neither DSPy nor anything else that is slow, so that ``--help`` answers at once.
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Self

import tyro
from pydantic import Field, field_validator, model_validator

from memory_program.core.errors import ConfigError
from memory_program.core.settings import (
    ApiBase,
    DatabaseUrl,
    OutputFile,
    Settings,
    TrackingUri,
    check_choices,
    split_list,
)
from memory_program.models.model_names import POCKET, is_bundled, is_local

WriterMode = Literal["specialists", "generalist"]

BuildOrder = Literal["sequential", "two-phase"]


class DatasetName(StrEnum):
    """The datasets that are known by name; any other is a file. ``evaluation/datasets.py`` loads them."""

    LOCOMO = "locomo"
    LONGMEMEVAL = "longmemeval"
    PERLTQA = "perltqa"
    SAMPLE = "sample"
    WORLD = "world"

    @property
    def is_downloaded(self) -> bool:
        """Whether it is fetched from its authors, unless ``data`` says where it lies."""
        return self in (DatasetName.LOCOMO, DatasetName.LONGMEMEVAL, DatasetName.PERLTQA)

    @property
    def is_synthetic(self) -> bool:
        """Whether its conversations come from the generator, the only ones that the embedded model knows."""
        return self in (DatasetName.SAMPLE, DatasetName.WORLD)


SplitName = Literal["all", "train", "val", "test", "sft", "rl"]

_SPLITS: Mapping[str, tuple[SplitName, ...]] = {
    DatasetName.LONGMEMEVAL: ("all", "sft", "rl", "test"),
    DatasetName.PERLTQA: ("all",),
}
_LOCOMO_SPLITS: tuple[SplitName, ...] = ("all", "train", "val", "test")


_DATASET_ONLY_SETTINGS: Mapping[str, tuple[str, tuple[DatasetName, ...]]] = {
    "data": ("says where an official file lies", tuple(name for name in DatasetName if name.is_downloaded)),
    "allow_modified": ("accepts another hash than the official file's", (DatasetName.LOCOMO,)),
    "worlds": ("counts conversations that are made up from a seed", (DatasetName.WORLD,)),
}
"""What a setting is for, and which datasets have that."""


_REPORT_SETTINGS = ("mode", "runs", "page", "mlflow", "tracking_uri")
"""What may be set where runs are reported: their own settings say the rest."""


class SystemName(StrEnum):
    """The systems that can be evaluated. ``agents/systems.py`` says how each is made."""

    MEMORY = "memory"
    OPTIMIZED = "optimized"
    RAG = "rag"
    FULL_CONTEXT = "full-context"
    NO_MEMORY = "no-memory"
    EXTRACTIVE = "extractive"

    @property
    def has_model_writer(self) -> bool:
        """Whether its memories are written by a model, and so are kept in a database."""
        return self in (SystemName.MEMORY, SystemName.OPTIMIZED)

    @property
    def has_model_reader(self) -> bool:
        """Whether its answers come from a model."""
        return self is not SystemName.EXTRACTIVE


class Mode(StrEnum):
    """The stages of a run, each of which picks up what the one before it recorded."""

    BUILD = "build"
    ANSWER = "answer"
    JUDGE = "judge"
    REPORT = "report"
    FULL = "full"
    CALIBRATE = "calibrate"

    @property
    def runs_systems(self) -> bool:
        """Whether systems are run; if not, what they recorded is enough and no model of theirs is needed."""
        return self in (Mode.BUILD, Mode.ANSWER, Mode.FULL)


class SystemSettings(Settings):
    """How a system writes and reads; what a system has no use for, it ignores."""

    top_k: int = Field(default=10, ge=1, le=50)
    """Memories that the reader is shown at most, from 1 to 50; the archive, and each search of the reader's
    own, may add as many. 10 is MemBuilder's number; rankings are recorded up to 50 all the same."""

    reader_budget: int = Field(default=2000, ge=1)
    """Tokens of context that the reader is shown at most. 2,000 is about what published memory systems use
    for a question."""

    relevance_floor: float = Field(default=0.4, ge=0, le=1)
    """What a memory or turn must score to be shown, as a share of the best score of its search; 0 shows all
    that were found. 0.4 costs 0.001 of recall at 10 on LoCoMo's turns, and spares the reader most others
    where one fits well. Fused rankings score by rank, and are hardly cut."""

    memory_budget: int = Field(default=20_000, ge=1)
    """Tokens that the core block and the live memories of a conversation may have; beyond, they are
    consolidated. 20,000 is about a LoCoMo conversation, so by default little is forced out."""

    archive: bool = False
    """Show the reader of the memory system verbatim excerpts too. Off: memory is measured alone."""

    max_turns: int = Field(default=1, ge=1)
    """Calls that an update agent may make in a session. From 2 on it may search before it writes; 1 is the
    cheapest, and all that a one-shot writer needs."""

    max_searches: int = Field(default=0, ge=0)
    """How often the reader may ask for another search. 0: one retrieval, one call."""

    writer_mode: WriterMode = "specialists"
    """Four specialists in parallel, or one generalist with all seven tools. Small models need the
    narrower prompts."""


class EvaluateConfig(SystemSettings):
    """Build memories from conversations, answer questions from them, and score the answers.

    A run can be stopped at any moment: the same command goes on where it was, and repeats no finished work.
    Keys of providers come from the environment only.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN ...]")] = ()
    """With --mode report: folders of runs to report. Each is scored as it was run (settings come from its
    config.json), and several share one page, side by side where their data are the same."""

    dataset: str = DatasetName.SAMPLE.value
    """What to evaluate on: "sample" (a few made-up conversations that come with the program), "world" (as
    many as you like, made up from --seed), "locomo", "longmemeval" (the S variant), "perltqa", or the path of
    a JSON file in LoCoMo's schema."""

    data: Path | None = None
    """Path of the official file: locomo10.json, any file of LongMemEval (S, M or oracle), or the folder of
    PerLTQA's two (en_v2). Without it the files are downloaded once, into a cache."""

    worlds: int = Field(default=20, ge=1)
    """How many conversations --dataset world makes up; their names, places and things are held out from the
    training of the embedded model."""

    allow_modified: bool = False
    """Accept a LoCoMo file whose hash is not the official one; every signature then says so."""

    split: SplitName = "all"
    """Conversations to use: all of them, or one of the reference splits; train, val and test of LoCoMo, or
    MemBuilder's sft, rl and test of LongMemEval. What was tuned on train is quoted on test."""

    conversations: Annotated[str, tyro.conf.arg(aliases=("--conv-id", "--sample-id", "--character-id"))] = ""
    """Ids of the conversations to use, separated by commas; without it, all of the split. Those of
    LongMemEval are its questions', those of PerLTQA the protagonists' names. Also called --conv-id,
    --sample-id and --character-id."""

    subset_file: Path | None = None
    """A file of ids to use, of conversations or of questions: one a line, a JSON list, or a JSON object with
    one under sample_ids or character_ids, as MemBuilder has them."""

    num_test: int | None = Field(default=None, ge=1)
    """Ask the first N questions only, and build only what they need. For a quick look, not for a score."""

    systems: str = "memory,rag,full-context,no-memory"
    """Systems to evaluate, separated by commas: memory, rag, full-context, no-memory, extractive. The last
    one needs no model. With --program there is "optimized" too."""

    mode: Mode = Mode.FULL
    """Stage to run; full is all of them. judge and report take up what the last answers recorded, so they
    need no --model, and report needs no model at all. calibrate tries the judge on answers whose verdict is
    known, beside the folder of the run: every judged score there cites what comes of it."""

    model: str | None = None
    """Model of writer, reader and judge, by LiteLLM's name, for example openai/gpt-4.1-mini. Without it
    pocket, the embedded model, writes and reads what is made up (sample, world), and nothing judges; whatever
    else needs a model says so."""

    writer_model: str | None = None
    """Model that writes memories, where it is another than --model."""

    reader_model: str | None = None
    """Model that answers, where it is another than --model."""

    judge_model: str | None = None
    """Model that judges answers, where it is another than --model. Without either, nothing is judged."""

    rubrics: str = "lenient,strict"
    """Rubrics to judge by, separated by commas: lenient is in the spirit of the published ones, strict
    forgives no vagueness; both follow the benchmark and the type of the question. With both, their agreement
    is reported, for twice the calls."""

    judge_program: Path | None = None
    """A saved judge (JSON, as optimize.py --target judge writes it): its prompts replace those of its rubric.
    Verdicts by other prompts are other records, and every signature names them."""

    api_base: ApiBase | None = None
    """Address of an OpenAI-compatible server of your own, for every model of the run."""

    temperature: float = Field(default=0.0, ge=0, le=2)
    """Sampling temperature of writer and reader, from 0 to 2. 0 repeats best; the judge always has 0."""

    program: Path | None = None
    """A saved program (JSON, as optimize.py and train.py write it): it becomes the system "optimized", beside
    "memory", which has the prompts that come with this version. Trained weights that lie beside the file
    write for it, and --writer-model for the others."""

    build: BuildOrder = "sequential"
    """How the sessions of a conversation are remembered: one after the other, or in two phases, all proposed
    at once and then settled in order. Two phases are as good, and many times faster where conversations are
    long and few, for up to twice the calls."""

    concurrency: int = Field(default=8, ge=1, le=1024)
    """Conversations built, or questions answered, at once; and model calls in flight at most. 8 stays under
    the rate limits of most first-tier accounts."""

    executor: Literal["threads", "ray"] = "threads"
    """Where sessions are remembered and questions answered: on threads of this process, or, with models over
    HTTP, as tasks of a Ray cluster (pip install 'memory-program[ray]'), which read the banks from the
    database."""

    ray_address: str = "local"
    """With --executor ray: "local" starts a cluster on this machine, of --concurrency processes; host:port
    names one that runs, as "ray start --head" prints it. Several machines need PostgreSQL in --db-url."""

    output_dir: Path = Path("runs/evaluate")
    """Folder of the run: records, banks, results, plots, report. The same folder continues the same run."""

    page: OutputFile | None = None
    """Where the report goes, one HTML page that needs no other file and no network. Without it, report.html
    in the folder of the run; that of several runs beside the folder of the first."""

    db_url: DatabaseUrl | None = None
    """Database of the banks, as an SQLAlchemy URL without a password: that stands in PGPASSWORD or ~/.pgpass.
    Without it, SQLite in the folder of the run."""

    seed: int = Field(default=0, ge=0)
    """Seed of the intervals and tests, and of the conversations of --dataset world. Models are not seeded."""

    max_cost: float | None = Field(default=None, gt=0)
    """US dollars that the run may cost, what was retried included. It does not start when the estimate is
    higher, and stops, keeping what it has, when the real cost is."""

    max_errors: int | None = Field(default=None, ge=0)
    """Stop, keeping what there is, as soon as more calls than this have failed. Without it a run stops only
    when its first 20 items all failed."""

    retry_errors: bool = False
    """Do what is recorded as failed once more. Otherwise it stays as it is, counted beside the score."""

    tracking_uri: TrackingUri | None = None
    """MLflow's tracking address. Without it, SQLite in mlflow.db beside the folder of the run."""

    mlflow: bool = True
    """Record the results in MLflow: one run per system under one parent."""

    traces: bool = False
    """Record every call of every module as a trace in MLflow; slow, and large."""

    @field_validator("systems")
    @classmethod
    def _known_systems(cls, value: str) -> str:
        return check_choices(value, "system", [name.value for name in SystemName])

    @field_validator("rubrics")
    @classmethod
    def _known_rubrics(cls, value: str) -> str:
        return check_choices(value, "rubric", ["lenient", "strict"])

    @model_validator(mode="after")
    def _check_report_settings(self) -> Self:
        if self.runs and self.mode is not Mode.REPORT:
            raise ConfigError(
                f"runs={[run.as_posix() for run in self.runs]} are folders to report, and mode is "
                f"{self.mode.value!r}: add --mode report, or leave them out"
            )
        if len(set(self.runs)) < len(self.runs):
            raise ConfigError(f"runs={[run.as_posix() for run in self.runs]} names one twice: name each once")
        fields = type(self).model_fields
        changed = [name for name in fields if getattr(self, name) != fields[name].default]
        of_runs = [name for name in changed if name not in _REPORT_SETTINGS]
        if self.runs and of_runs:
            raise ConfigError(
                f"{of_runs[0]}={getattr(self, of_runs[0])!r} cannot be changed in a report of "
                f"{self.runs[0].as_posix()!r}, which is scored as it was run: leave it out, or name the run "
                "with --output-dir and all of its settings"
            )
        return self

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        splits = _SPLITS.get(self.dataset, _LOCOMO_SPLITS)
        if self.split not in splits:
            raise ConfigError(
                f"dataset {self.dataset!r} has no split {self.split!r}: choose from {', '.join(splits)}"
            )
        for name, (purpose, of_datasets) in _DATASET_ONLY_SETTINGS.items():
            value = getattr(self, name)
            if value != type(self).model_fields[name].default and self.dataset not in of_datasets:
                shown = value.as_posix() if isinstance(value, Path) else value
                raise ConfigError(
                    f"{name}={shown!r} {purpose}, and dataset={self.dataset!r} has none: leave "
                    f"--{name.replace('_', '-')} out, or choose --dataset {' or '.join(of_datasets)}"
                )
        if self.traces and not self.mlflow:
            raise ConfigError("traces=True goes to MLflow, and mlflow=False does without: leave one out")
        if self.program is None and SystemName.OPTIMIZED in self.system_names:
            raise ConfigError(
                f"system {SystemName.OPTIMIZED.value!r} needs a saved program: name its file with --program"
            )
        return self

    @model_validator(mode="after")
    def _check_ray_support(self) -> Self:
        if self.executor != "ray" or not self.mode.runs_systems:
            return self
        writers = [self.writer_model_for(name) for name in self.system_names]
        readers = [self.reader] if any(name.has_model_reader for name in self.system_names) else []
        for model in (*writers, *readers):
            if model is not None and is_local(model):
                raise ConfigError(
                    f"model {model!r} runs in this process, and executor='ray' in others, all of which would "
                    "load it: leave --executor out, or serve it and name it openai/NAME, with --api-base"
                )
        for name in ("build", "traces"):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} is done in this process, and executor='ray' in others: "
                    f"leave one of --{name} and --executor out"
                )
        return self

    @model_validator(mode="after")
    def _check_models_named(self) -> Self:
        if self.mode.runs_systems:
            for name in self.system_names:
                lacks_writer = name.has_model_writer and self.writer_model_for(name) is None
                lacks_reader = name.has_model_reader and self.reader is None and self.mode is not Mode.BUILD
                if lacks_writer or lacks_reader:
                    part = "writer" if lacks_writer else "reader"
                    raise ConfigError(
                        f"system {name.value!r} needs a model: name one with --model or --{part}-model "
                        "(any LiteLLM name, for example openai/gpt-4.1-mini), or choose --systems "
                        + SystemName.EXTRACTIVE.value
                    )
        if self.mode in (Mode.JUDGE, Mode.CALIBRATE) and self.judge is None:
            raise ConfigError(
                f"mode={self.mode.value!r} needs a judge: name one with --judge-model or --model"
            )
        if self.judge_program is not None and self.judge is None and self.mode is Mode.FULL:
            raise ConfigError(
                f"judge_program={str(self.judge_program)!r} needs a model that judges: name one with "
                "--judge-model or --model, or leave it out"
            )
        return self

    @property
    def system_names(self) -> tuple[SystemName, ...]:
        """The systems, in the order in which they were named; the program that is loaded follows memory."""
        names = [SystemName(name) for name in split_list(self.systems)]
        if self.program is not None and SystemName.OPTIMIZED not in names:
            after = names.index(SystemName.MEMORY) + 1 if SystemName.MEMORY in names else len(names)
            names.insert(after, SystemName.OPTIMIZED)
        return tuple(names)

    @property
    def writer(self) -> str | None:
        """The writer's model, if there is one."""
        return self.writer_model or self.model or self._default_local_model

    def writer_model_for(self, name: SystemName) -> str | None:
        """The model that writes in a system, if one does: where weights lie beside a program, it is these."""
        if not name.has_model_writer:
            return None
        if name is SystemName.OPTIMIZED and self.program is not None:
            folder = self.program.parent
            if any(folder.glob("*.safetensors")):
                return f"local:{folder}"
        return self.writer

    @property
    def reader(self) -> str | None:
        """The reader's model, if there is one."""
        return self.reader_model or self.model or self._default_local_model

    @property
    def _default_local_model(self) -> str | None:
        """The model that stands in where none is named: only where its small world is what is asked about."""
        names = [name.value for name in DatasetName if name.is_synthetic]
        return POCKET if self.dataset in names else None

    @property
    def judge(self) -> str | None:
        """The judge's model, if one is named; the embedded model reads and writes, and judges nothing."""
        return self.judge_model or (None if self.model is not None and is_bundled(self.model) else self.model)

    @property
    def system_settings(self) -> SystemSettings:
        """The part that systems are made with."""
        return SystemSettings(**{name: getattr(self, name) for name in SystemSettings.model_fields})
