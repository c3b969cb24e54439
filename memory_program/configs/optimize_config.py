"""The settings of ``optimize.py``; like those of the other scripts, they import nothing that is slow."""

from enum import StrEnum
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from memory_program.configs.evaluate_config import DatasetName, EvaluateConfig, SystemSettings
from memory_program.core.errors import ConfigError
from memory_program.core.settings import ApiBase, OutputFile, TrackingUri
from memory_program.models.model_names import POCKET, is_bundled


class Optimizer(StrEnum):
    """What proposes prompts."""

    SIMBA = "simba"
    MIPRO = "mipro"
    GEPA = "gepa"
    BOOTSTRAP = "bootstrap"

    @property
    def needs_instructions(self) -> bool:
        """Whether it is nothing without a model that writes instructions; the others have demos too."""
        return self in (Optimizer.MIPRO, Optimizer.GEPA)

    @property
    def proposes_only_demos(self) -> bool:
        """Whether it proposes nothing but demos."""
        return self is Optimizer.BOOTSTRAP


class Target(StrEnum):
    """Whose prompts are proposed."""

    READER = "reader"
    WRITER = "writer"
    BOTH = "both"
    JUDGE = "judge"

    @property
    def stages(self) -> tuple["Target", ...]:
        """The parts, one after the other: the reader first, since it is the cheaper one."""
        return (Target.READER, Target.WRITER) if self is Target.BOTH else (self,)

    @property
    def group(self) -> str:
        """What the splits are made by, and the intervals resample."""
        return "question" if self is Target.JUDGE else "conversation"


class OptimizeConfig(SystemSettings):
    """Improve the prompts of the memory program, or of its judge, on some of the data, and choose on others.

    The train split proposes, the validation split selects, the test split is never touched. The result is
    never worse than what it began with on validation: else that is what is saved. A run can be stopped at any
    moment: the same command goes on where it was, and pays for no call twice. Keys of providers come from the
    environment only.
    """

    optimizer: Optimizer = Optimizer.SIMBA
    """What proposes prompts: simba and mipro (instructions and demos), gepa (instructions, from what went
    wrong), bootstrap (demos). With pocket, which cannot write instructions, simba proposes demos only."""

    target: Target = Target.READER
    """Whose prompts: reader (an example is a question), writer (an example is a session, with the questions
    whose evidence ends in it), or both, one after the other; or judge (an example is one of the built-in
    answers whose verdict is known, as --mode calibrate of evaluate.py has them)."""

    rounds: int = Field(default=1, ge=1)
    """How often the parts that --target names are improved, one after the other, from the best so far."""

    model: str = POCKET
    """Model of writer and reader, by LiteLLM's name, or pocket, the embedded one; with --target judge, the
    model that judges, which pocket cannot."""

    prompt_model: str | None = None
    """Model that writes instructions and reflects, where it is another than --model. A strong one pays: it is
    called seldom."""

    judge_model: str | None = None
    """Model that judges answers for --metric judge and mix, where it is another than --model."""

    api_base: ApiBase | None = None
    """Address of an OpenAI-compatible server of your own, for every model of the run."""

    temperature: float = Field(default=0.0, ge=0, le=2)
    """Sampling temperature of writer and reader where candidates are compared, from 0 to 2; the judge always
    has 0. Optimisers sample at 1 where they look for variety."""

    dataset: str = DatasetName.SAMPLE.value
    """What to learn from: "sample" (a few made-up conversations that come with the program), "locomo",
    "world", or the path of a JSON file in LoCoMo's schema. With --target judge, whose questions the judge is
    for: "locomo" (and what is in its schema: "sample", "world"), "longmemeval" or "perltqa"."""

    data: Path | None = None
    """Path of the official locomo10.json. Without it the file is downloaded once, into a cache."""

    allow_modified: bool = False
    """Accept a LoCoMo file whose hash is not the official one; every signature then says so."""

    max_sessions: int | None = Field(default=None, ge=1)
    """Use the first N sessions of each conversation only, with the questions that they answer. Building
    memories costs most of a small run."""

    num_examples: int = Field(default=32, ge=1)
    """Training examples, drawn in turn from every training conversation and from every depth; for the judge,
    in turn from right and wrong answers, and from every kind of them."""

    num_val: int = Field(default=48, ge=1)
    """Validation examples, drawn likewise. Each candidate that might be chosen is run on all of them."""

    episode_questions: int = Field(default=5, ge=1)
    """Questions asked about a session to score what was written of it, at most. 5 is MemBuilder's number."""

    metric: Literal["f1", "judge", "mix"] = "f1"
    """What an answer is worth: LoCoMo's official F1, a judge's verdict, or the mean of both. Who abstains
    rightly has 1 in each."""

    rubric: Literal["lenient", "strict"] = "strict"
    """By what rubric the judge goes; with --target judge, the one whose prompts are improved. A lenient judge
    accepts vague answers, as an optimiser finds out."""

    max_demos: int = Field(default=4, ge=0)
    """Examples that a prompt may show at most; 0 for instructions only."""

    auto: Literal["light", "medium", "heavy"] = "light"
    """How much to try. --trials is more exact."""

    trials: int | None = Field(default=None, ge=1)
    """Steps of simba, trials of mipro, instructions of gepa, sets of demos of bootstrap. Overrides --auto."""

    num_candidates: int = Field(default=4, ge=2)
    """Samples and candidates in each step of simba; instructions and sets of demos that mipro combines."""

    batch_size: int = Field(default=16, ge=1)
    """Examples that a candidate of simba, or a trial of mipro, is tried on; fewer if there are fewer."""

    num_threads: int = Field(default=8, ge=1, le=1024)
    """Examples run at once, and model calls in flight at most."""

    seed: int = Field(default=0, ge=0)
    """Seed of the choice of examples, of the optimiser and of the intervals. Models are not seeded."""

    max_cost: float | None = Field(default=None, gt=0)
    """US dollars that the run may cost, its earlier tries included, but for the calls in flight when they are
    reached. It then stops, and the best so far is saved."""

    max_calls: int | None = Field(default=None, ge=1)
    """Model calls that the run may use, those of its earlier tries included. It then stops, and the best so
    far is saved."""

    program: Path | None = None
    """A saved program (or judge) to begin with, instead of the prompts that come with this version."""

    output: OutputFile | None = None
    """The file for the best program: prompts, demos, scores, no key. Without it, that is
    optimized_memory_program.json, which evaluate.py --program reads; of a judge, optimized_judge.json, for
    evaluate.py --judge-program."""

    output_dir: Path = Path("runs/optimize")
    """Folder of the run: replies of the models, memories, candidates, plots. The same folder continues."""

    tracking_uri: TrackingUri | None = None
    """MLflow's tracking address. Without it, SQLite in mlflow.db beside the folder of the run."""

    mlflow: bool = True
    """Record the run in MLflow: one run per candidate under one parent."""

    @model_validator(mode="after")
    def _check_judge_target(self) -> Self:
        if self.target is not Target.JUDGE:
            return self
        if is_bundled(self.model):
            raise ConfigError(
                f"target={self.target.value!r} needs a model that judges, which {self.model!r} cannot: name "
                "one with --model (any LiteLLM name, for example openai/gpt-4.1-mini)"
            )
        names = [name.value for name in DatasetName]
        if self.dataset not in names:
            raise ConfigError(
                f"target={self.target.value!r} reads no conversations; of a dataset it wants to know whose "
                f"questions are judged, and {self.dataset!r} is none of {', '.join(names)}"
            )
        return self

    @model_validator(mode="after")
    def _check_proposer(self) -> Self:
        if self.optimizer.needs_instructions and not self.proposes_instructions:
            raise ConfigError(
                f"optimizer={self.optimizer.value!r} needs a model that writes instructions, which "
                f"{self.proposer!r} cannot: name one with --prompt-model, or choose --optimizer "
                f"{Optimizer.SIMBA.value} or {Optimizer.BOOTSTRAP.value}"
            )
        if self.max_demos == 0 and (self.optimizer.proposes_only_demos or not self.proposes_instructions):
            raise ConfigError(
                "max_demos=0 leaves nothing to propose: allow demos with --max-demos 4, or name a model that "
                "writes instructions with --prompt-model"
            )
        if self.metric != "f1" and self.judge is None and self.target is not Target.JUDGE:
            raise ConfigError(
                f"metric={self.metric!r} needs a model that judges, which {self.model!r} cannot: name one "
                "with --judge-model, or choose --metric f1"
            )
        return self

    @property
    def output_file(self) -> Path:
        """The file for the best program."""
        name = "optimized_judge.json" if self.target is Target.JUDGE else "optimized_memory_program.json"
        return self.output or Path(name)

    @property
    def task_temperature(self) -> float:
        """The temperature of what is improved, where it is compared."""
        return 0.0 if self.target is Target.JUDGE else self.temperature

    @property
    def proposer(self) -> str:
        """The model that writes instructions."""
        return self.prompt_model or self.model

    @property
    def proposes_instructions(self) -> bool:
        """Whether instructions are proposed; otherwise only demos."""
        return not is_bundled(self.proposer)

    @property
    def judge(self) -> str | None:
        """The judge's model, if the metric has one; a judge itself is compared with what is known."""
        if self.metric == "f1" or self.target is Target.JUDGE:
            return None
        return self.judge_model or (None if is_bundled(self.model) else self.model)

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
            model=self.model,
        )
