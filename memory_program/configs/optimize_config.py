"""The settings of ``optimize.py``. Docstrings are the help of the flags, and nothing slow is imported."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Self

import tyro
from pydantic import Field, model_validator

from memory_program.configs.endpoints import JudgeAddress, PromptAddress, Role
from memory_program.configs.groups import (
    EVALUATION_ONLY,
    Concurrency,
    DatasetName,
    DataSettings,
    GradingSettings,
    MaxCost,
    SearchSettings,
    Seed,
    ServerAddress,
    SystemSettings,
    Temperature,
    TrackingSettings,
)
from memory_program.core.errors import ConfigError
from memory_program.core.settings import OutputFile, Settings
from memory_program.models.model_names import POCKET, is_bundled


class Optimizer(StrEnum):
    """The optimizer that proposes prompts."""

    SIMBA = "simba"
    MIPRO = "mipro"
    GEPA = "gepa"
    BOOTSTRAP = "bootstrap"

    @property
    def needs_instructions(self) -> bool:
        """True if it proposes instructions only, and so needs a model that writes them."""
        return self in (Optimizer.MIPRO, Optimizer.GEPA)

    @property
    def proposes_only_demos(self) -> bool:
        """True if it proposes demos only."""
        return self is Optimizer.BOOTSTRAP


class Target(StrEnum):
    """The part whose prompts are improved."""

    READER = "reader"
    WRITER = "writer"
    BOTH = "both"
    JUDGE = "judge"
    RETRIEVAL = "retrieval"

    @property
    def stages(self) -> tuple["Target", ...]:
        """The parts in order: the reader first, since it is cheaper."""
        return (Target.READER, Target.WRITER) if self is Target.BOTH else (self,)

    @property
    def group(self) -> str:
        """The unit of the splits, and of the resampling for intervals."""
        return "question" if self is Target.JUDGE else "conversation"


class OptimizeConfig(Settings, init=False):
    """Optimise the prompts of the reader, the writer or the judge, or the settings of retrieval.

    Candidates are proposed from the train split and selected on the validation split, where mipro and gepa
    search too. The test split is never used. The result never scores below the start on the validation
    examples on which both have a score. You can stop a run at any time. The same command resumes it, and pays
    for no call twice. API keys come from the environment only.
    """

    optimizer: Optimizer = Optimizer.SIMBA
    """Optimizer of prompts: simba and mipro (instructions and demos, which are few-shot examples), gepa
    (instructions, from failures), bootstrap (demos). pocket cannot write instructions: with it, simba
    proposes demos only."""

    target: Target = Target.READER
    """What to optimise. reader: an example is a question. writer: an example is a session, with the questions
    whose evidence ends in it. both: the reader, then the writer. judge: an example is a built-in answer with
    a known verdict, as in evaluate.py --mode calibrate. retrieval: no prompt; Optuna tries --top-k,
    --min-relative-score, --with-verbatim-turns and, with --retrieval hybrid, --dense-weight."""

    rounds: int = Field(default=1, ge=1)
    """Passes over the parts of --target. Each starts from the best program so far."""

    model: str = POCKET
    """Model of writer and reader: pocket (embedded), or any that evaluate.py takes. With --target judge, the
    model of the judge, which cannot be pocket."""

    writer_model: str | None = None
    """Model that writes memories, with --target reader or retrieval. "observations" is no model: LoCoMo's own
    notes are the memories, which needs --writer-mode generalist. Default: --model."""

    prompt_model: str | None = None
    """Model that writes instructions and reflects on failures. A strong one is worth it: it makes few calls.
    Default: --model."""

    api_base: ServerAddress

    prompt_api_base: PromptAddress

    judge_api_base: JudgeAddress

    temperature: Temperature

    source: DataSettings = DataSettings()

    max_sessions: Annotated[int | None, tyro.conf.arg(aliases=("--sessions",))] = Field(default=None, ge=1)
    """Use only the first N sessions of each conversation, and the questions that they can answer. Building
    memories is most of the cost of a small run."""

    num_examples: int = Field(default=32, ge=1)
    """Number of training examples. Conversations take turns, and each gives one at random. For the judge:
    from right and wrong answers of every kind."""

    num_val: int = Field(default=48, ge=1)
    """Number of validation examples, drawn in the same way. Each candidate that may be selected runs on all
    of them."""

    episode_questions: int = Field(default=5, ge=1)
    """Maximum number of questions about a session that score its memories. MemBuilder asks 5."""

    grading: GradingSettings = GradingSettings()

    system: SystemSettings = SystemSettings()

    search: SearchSettings = SearchSettings()

    max_demos: int = Field(default=4, ge=0)
    """Maximum number of demos in a prompt. 0: instructions only."""

    auto: Literal["light", "medium", "heavy"] = "light"
    """Search effort, if --trials is not given."""

    trials: int | None = Field(default=None, ge=1)
    """Length of the search: steps of simba, trials of mipro and of --target retrieval, instructions of gepa,
    sets of demos of bootstrap. Default: set by --auto."""

    num_candidates: int = Field(default=4, ge=2)
    """simba: samples and candidates per step. mipro: instructions and sets of demos to combine."""

    batch_size: int = Field(default=16, ge=1)
    """Maximum number of examples that a candidate of simba, or a trial of mipro, runs on."""

    concurrency: Concurrency

    seed: Seed

    max_cost: MaxCost

    max_calls: int | None = Field(default=None, ge=1)
    """Maximum number of model calls, earlier attempts included. Then the run stops, and saves the best
    program so far."""

    program: Path | None = None
    """Saved program (or judge) to start from, in place of the built-in prompts."""

    output: OutputFile | None = None
    """File for the best program: prompts, demos, scores, no key. Default: optimized_memory_program.json, for
    evaluate.py --program. Judge: optimized_judge.json, for evaluate.py --judge-program. Retrieval:
    optimized_retrieval.json, for evaluate.py --config."""

    output_dir: Path = Path("runs/optimize")
    """Folder of the run: replies, memories, candidates, plots. The same command in the same folder resumes
    the run."""

    tracking: TrackingSettings = TrackingSettings()

    @model_validator(mode="after")
    def _check_dataset(self) -> Self:
        if self.source.dataset in EVALUATION_ONLY:
            raise ConfigError(
                f"--dataset {self.source.dataset} cannot be optimised on: it has no training split; choose "
                "another --dataset"
            )
        return self

    @model_validator(mode="after")
    def _check_writer(self) -> Self:
        self.system.writer.check_can_write(self.writer_model)
        if self.writer_model is not None and self.target not in (Target.READER, Target.RETRIEVAL):
            raise ConfigError(
                f"writer_model={self.writer_model!r} only applies to --target reader or retrieval (got "
                f"target={self.target.value!r}): name the model with --model"
            )
        return self

    @model_validator(mode="after")
    def _check_judge_target(self) -> Self:
        if self.target is not Target.JUDGE:
            return self
        if self.grading.judge_model not in (None, self.model):
            raise ConfigError(
                f"judge_model={self.grading.judge_model!r}: --target judge improves the prompts of --model, "
                "so name the judge with --model, and leave --judge-model out"
            )
        if is_bundled(self.model):
            raise ConfigError(
                f"target={self.target.value!r} needs a model that judges, which {self.model!r} cannot: name "
                "one with --model (any LiteLLM name, for example openai/gpt-4.1-mini)"
            )
        names = [name.value for name in DatasetName if name not in EVALUATION_ONLY]
        if self.source.dataset not in names:
            raise ConfigError(
                f"target={self.target.value!r} needs the benchmark whose questions are judged: unknown "
                f"dataset {self.source.dataset!r}, choose from {', '.join(names)}; for a file of your own "
                "it is locomo"
            )
        return self

    @model_validator(mode="after")
    def _check_proposer(self) -> Self:
        if self.target is Target.RETRIEVAL:
            if self.rounds > 1:
                raise ConfigError(
                    f"rounds={self.rounds} does not apply to --target retrieval, which is one search: set "
                    "its length with --trials"
                )
            return self._check_has_judge()
        if self.optimizer.needs_instructions and not self.proposes_instructions:
            raise ConfigError(
                f"optimizer={self.optimizer.value!r} needs a model that writes instructions, which "
                f"{self.proposer!r} cannot: name one with --prompt-model, or choose --optimizer "
                f"{Optimizer.SIMBA.value} or {Optimizer.BOOTSTRAP.value}"
            )
        if self.max_demos == 0 and (self.optimizer.proposes_only_demos or not self.proposes_instructions):
            choices = "simba, mipro or gepa" if self.proposes_instructions else "simba"
            other = (
                f"choose --optimizer {choices}"
                if self.optimizer.proposes_only_demos
                else "name a model that writes instructions with --prompt-model"
            )
            raise ConfigError(
                f"max_demos=0 leaves nothing to propose: allow demos with --max-demos 4, or {other}"
            )
        return self._check_has_judge()

    def _check_has_judge(self) -> Self:
        if self.grading.metric != "f1" and self.judge is None and self.target is not Target.JUDGE:
            raise ConfigError(
                f"answer_metric={self.grading.answer_metric!r} needs a model that judges, which "
                f"{self.model!r} cannot: name one with --judge-model, or choose --answer-metric f1"
            )
        return self

    @property
    def output_file(self) -> Path:
        """The file for the best program."""
        names = {Target.JUDGE: "judge", Target.RETRIEVAL: "retrieval"}
        return self.output or Path(f"optimized_{names.get(self.target, 'memory_program')}.json")

    @property
    def retrieval_trials(self) -> int:
        """The settings that --target retrieval tries, the present ones included."""
        return self.trials or {"light": 12, "medium": 25, "heavy": 50}[self.auto]

    @property
    def writer(self) -> str:
        """The model that writes memories."""
        return self.writer_model or self.model

    @property
    def task_role(self) -> Role:
        """The role of the model whose prompts are improved."""
        return Role.JUDGE if self.target is Target.JUDGE else Role.READER

    @property
    def task_temperature(self) -> float:
        """The temperature at which candidates are compared."""
        return 0.0 if self.target is Target.JUDGE else self.temperature

    @property
    def proposer(self) -> str:
        """The model that writes instructions."""
        return self.prompt_model or self.model

    @property
    def proposes_instructions(self) -> bool:
        """True if instructions are proposed, and not only demos or settings."""
        if self.target is Target.RETRIEVAL or self.optimizer.proposes_only_demos:
            return False
        return not is_bundled(self.proposer)

    @property
    def judge(self) -> str | None:
        """The judge's model, if the metric uses one. A judge itself is compared with known verdicts."""
        if self.grading.metric == "f1" or self.target is Target.JUDGE:
            return None
        return self.grading.judge_model or (None if is_bundled(self.model) else self.model)
