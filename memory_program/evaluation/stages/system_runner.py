"""A system of a run: made from the config, with the stages that build its memories and ask it questions."""

from collections.abc import Callable, Sequence
from pathlib import Path

import dspy

from memory_program.agents.model_prompts import load_model_prompts
from memory_program.agents.program import MemorySystem
from memory_program.agents.systems import set_models
from memory_program.bank.store import BankStore
from memory_program.configs.evaluate_config import EvaluateConfig, Mode, SystemName
from memory_program.configs.groups import SystemSettings
from memory_program.core.errors import ConfigError, RecordError
from memory_program.core.json_files import read_json
from memory_program.evaluation.item_records import Journals
from memory_program.evaluation.question_selection import Selection
from memory_program.evaluation.scoring.score_signature import (
    SystemRun,
    identify_judge,
    identify_system,
    read_optimization_data,
    read_run,
    write_run,
)
from memory_program.evaluation.scoring.system_records import SystemRecords
from memory_program.evaluation.stages.answer_stage import Answerer
from memory_program.evaluation.stages.build_stage import Builder
from memory_program.evaluation.stages.cost_estimate import (
    StageEstimate,
    estimate_answers,
    estimate_build,
    estimate_judgements,
)
from memory_program.evaluation.stages.judge_stage import unjudged_answers
from memory_program.evaluation.stages.ray_executor import RayExecutor
from memory_program.evaluation.stages.ray_system import RemoteSystem

ModelFactory = Callable[[str, float], dspy.LM]
"""Makes the language model of a name and a temperature, ready for calls."""


SystemFactory = Callable[[str, SystemSettings], MemorySystem]
"""Makes the system of a name and settings, without its models."""


class SystemRunner:
    """A system with its records, its ``builder`` and its ``answerer``, which do what the records lack."""

    def __init__(
        self,
        name: SystemName,
        config: EvaluateConfig,
        selection: Selection,
        make_system: SystemFactory,
        store: BankStore | None,
        others: Sequence[SystemRecords] = (),
        executor: RayExecutor | None = None,
    ) -> None:
        """Make the system, without models, and read its records.

        Args:
            name: the system.
            config: the settings of the run.
            selection: the conversations and questions.
            make_system: makes the system.
            store: the database of the banks; None if no system of the run has any.
            others: systems of the run that may share its banks.
            executor: runs sessions and questions on a cluster; None runs them in this process.

        Raises:
            ConfigError: the saved program does not fit this system.
            RecordError: a file of records is damaged.
            StoreError: the database cannot be read.
        """
        self._name, self._config = name, config
        self._system = make_system(name.value, config.system)
        load_model_prompts(self._system, writer=config.writer_model_for(name), reader=config.reader)
        chosen_on = None
        if config.program is not None and name is SystemName.OPTIMIZED:
            load_program(self._system, config.program)
            chosen_on = read_optimization_data(config.program)
        folder = config.output_dir / name.value
        if config.mode is Mode.FULL:
            judge = identify_judge(config)
        else:  # a run of one stage keeps the judge that it had
            try:
                judge = read_run(folder).judge
            except RecordError:
                judge = None
        run = SystemRun(identify_system(self._system, name, config), judge, chosen_on)
        self.recorded = SystemRecords(folder, run, Journals.read(folder), selection)
        runs = self._system
        if executor is not None:  # the tasks of a cluster together keep to the limit of calls in flight
            builds_at_once = min(config.concurrency, len(selection.conversations))
            runs = RemoteSystem(self._system, executor, config.concurrency // builds_at_once)
        banks, retry_errors = (store if self._system.writes_memories else None), config.retry_errors
        self.builder = Builder(
            runs, self.recorded, banks, others, order=config.build, retry_errors=retry_errors
        )
        self.answerer = Answerer(runs, self.recorded, self.builder, retry_errors=retry_errors)

    def write_run_files(self) -> None:
        """Write the identity of the run and the program into the folder of the records."""
        write_run(self.recorded.folder, self.recorded.run)
        self._system.save(str(self.recorded.folder / "program.json"))

    def estimate_calls(self) -> list[StageEstimate]:
        """Estimate the calls that are still to be made."""
        config, conversations = self._config, self.recorded.selection.conversations
        questions, judge = self.answerer.missing(), self.recorded.run.judge
        estimates: list[StageEstimate | None] = []
        if config.mode is not Mode.ANSWER:
            sessions = 0 if self.builder.shares_banks else self.builder.count_missing()
            estimates.append(estimate_build(config, self._name, conversations, sessions))
        if config.mode is not Mode.BUILD:
            estimates.append(estimate_answers(config, self._name, conversations, len(questions)))
        if config.mode is Mode.FULL and judge is not None:
            cases = unjudged_answers(self.recorded, retry_errors=config.retry_errors)
            count = len(cases) + sum(q.is_headline for q in questions) * len(judge.rubrics)
            estimates.append(estimate_judgements(config, self._name, count))
        return [estimate for estimate in estimates if estimate is not None]

    @property
    def is_finished(self) -> bool:
        """True if every session is built, every question answered, and every answer judged."""
        unjudged = unjudged_answers(self.recorded, retry_errors=self._config.retry_errors)
        return not (self.builder.count_missing() or self.answerer.missing() or unjudged)

    def attach_models(self, models: ModelFactory) -> None:
        """Give the system its models, and make that of its judge, so that an unusable one ends the run now.

        Raises:
            ModelError: a model cannot be used as named, or does not answer.
        """
        system, temperature = self.recorded.run.system, self._config.temperature
        set_models(
            self._system,
            writer_lm=models(system.writer, temperature) if system.writer is not None else None,
            reader_lm=models(system.reader, temperature) if system.reader is not None else None,
        )
        if self.recorded.run.judge is not None:
            models(self.recorded.run.judge.model, 0.0)


def load_program(system: MemorySystem, path: Path) -> None:
    """Load the prompts and demos of a saved program; models and code are never loaded.

    Raises:
        ConfigError: the file is missing, not JSON, or of another program.
    """
    try:
        # DSPy matches fields by their place: the first field would get the description of the saved first.
        saved = read_json(path)
        for name, predictor in system.named_predictors():
            theirs = [field["prefix"] for field in saved[name]["signature"]["fields"]]
            ours = [field["prefix"] for field in predictor.dump_state()["signature"]["fields"]]
            if theirs != ours:
                raise ValueError(f"{name!r} was saved with the fields {theirs} and now has {ours}")
        system.load_state(saved)
    except (OSError, ValueError, KeyError, TypeError, NotImplementedError) as error:
        raise ConfigError(
            f"program={str(path)!r} cannot be loaded ({type(error).__name__}: {error}): name a JSON file "
            "that was saved from a program of the same --writer-mode, --writer-max-turns and --max-searches"
        ) from error
