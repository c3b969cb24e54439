"""Judge prompts that ``optimize.py --target judge`` saved, and the judges that use them."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import dspy

from locomo.judge.judge import VERDICT_TOKENS, Judges
from locomo.judge.nuggets import NuggetJudge
from locomo.judge.rubrics import NUGGETS, Rubric, RubricName, list_gradings
from locomo.types import Benchmark
from memory_program.agents.program import prompts_only
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.configs.groups import NUGGET_DATASETS, DatasetName
from memory_program.core.errors import ConfigError
from memory_program.core.json_files import Json, read_json_file
from memory_program.core.settings import split_list
from memory_program.evaluation.datasets import benchmark_for_config
from memory_program.models.reply_settings import ReplySettings, thinking_tokens


@dataclass(frozen=True, slots=True)
class JudgeProgram:
    """The saved prompts of one rubric for the questions of one benchmark.

    ``optimized_on`` lists the built-in calibration questions that they were optimised on.
    """

    path: Path
    rubric: Rubric
    benchmark: Benchmark
    optimized_on: tuple[str, ...]
    state: Json

    def judges(self, lm: dspy.LM | None = None, limit_tokens: int = VERDICT_TOKENS) -> Judges:
        """Make the judges; models and code are never loaded.

        Raises:
            ConfigError: the file lacks a prompt that a judge of its benchmark needs.
        """
        judges = Judges(self.rubric, gradings=list_gradings(self.benchmark), limit_tokens=limit_tokens)
        try:
            judges.load_state({name: prompts_only(self.state[name]) for name, _ in judges.named_parameters()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _invalid_judge_error(self.path, error) from error
        judges.set_lm(lm)
        return judges

    def check(self, benchmark: Benchmark, rubrics: Collection[Rubric]) -> None:
        """Check that the prompts fit the questions and rubrics of a run.

        Raises:
            ConfigError: they are for another benchmark or another rubric.
        """
        if self.benchmark is not benchmark:
            raise ConfigError(
                f"the judge in {str(self.path)!r} is for questions of {self.benchmark.value}, and these are "
                f"of {benchmark.value}: name one that was optimised with --dataset {benchmark.value}"
            )
        if self.rubric not in rubrics:
            asked = ", ".join(rubric.value for rubric in rubrics)
            raise ConfigError(
                f"the judge in {str(self.path)!r} is for the {self.rubric.value} rubric, and this run uses "
                f"{asked}: choose {self.rubric.value}, or name a judge that was optimised for {asked}"
            )


def read_judge_program(path: Path) -> JudgeProgram:
    """Read the file of an optimised judge.

    Raises:
        ConfigError: it is missing, or not the file of a judge.
    """
    try:
        state: Json = read_json_file(path)
        dataset: Json = state["metadata"]["optimization"]["dataset"]
        optimized_on = (*map(str, dataset["train"]), *map(str, dataset["val"]))
        rubric, benchmark = Rubric(dataset["rubric"]), Benchmark(dataset["benchmark"])
        return JudgeProgram(path, rubric, benchmark, optimized_on, state)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _invalid_judge_error(path, error) from error


def load_judge_program(config: EvaluateConfig) -> JudgeProgram | None:
    """Read the optimised judge of a config, if it names one.

    Raises:
        ConfigError: the file is not a judge, or not one for this run.
    """
    if config.judge_program is None:
        return None
    program = read_judge_program(config.judge_program)
    program.check(benchmark_for_config(config.source), [Rubric(name) for name in split_list(config.rubrics)])
    return program


def verdict_tokens(model: str, replies: ReplySettings) -> int:
    """Return the limit of a judge's reply: a verdict, and the thoughts of a model that thinks."""
    return replies.max_tokens or VERDICT_TOKENS + thinking_tokens(model, replies.chat_template_kwargs)


def make_judges(config: EvaluateConfig, lm: dspy.LM | None = None) -> dict[RubricName, Judges | NuggetJudge]:
    """Make the judges of a config by rubric, with its optimised prompts or else the built-in ones.

    BEAM and LoCoMo-Plus have a rubric for each question, of which nuggets are judged, and MemoryAgentBench
    also for summaries.

    Raises:
        ConfigError: the file of the optimised judge cannot be used.
    """
    program = load_judge_program(config)
    limit = verdict_tokens(config.judge or "", config.system.replies.settings())
    judges: dict[RubricName, Judges | NuggetJudge] = {}
    if config.source.dataset not in NUGGET_DATASETS:
        judges |= {
            rubric: program.judges(lm, limit)
            if program is not None and program.rubric is rubric
            else Judges(rubric, lm, limit_tokens=limit)
            for rubric in map(Rubric, split_list(config.rubrics))
        }
    if config.source.dataset in (*NUGGET_DATASETS, DatasetName.MEMORYAGENTBENCH):
        judges[NUGGETS] = NuggetJudge(lm, limit)
    return judges


def _invalid_judge_error(path: Path, error: Exception) -> ConfigError:
    return ConfigError(
        f"{str(path)!r} is not an optimised judge ({type(error).__name__}: {error}): name a file that "
        "optimize.py --target judge saved"
    )
