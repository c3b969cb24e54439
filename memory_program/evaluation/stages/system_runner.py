"""A system that is run: made from the config, and taken through building and answering."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import dspy

from memory_program.agents.model_prompts import load_model_prompts
from memory_program.agents.program import MemorySystem
from memory_program.agents.systems import set_models
from memory_program.bank.store import BankStore
from memory_program.configs.evaluate_config import EvaluateConfig, Mode, SystemName
from memory_program.configs.groups import SystemSettings
from memory_program.core.errors import ConfigError, RecordError
from memory_program.evaluation.item_records import Journals
from memory_program.evaluation.question_selection import Selection
from memory_program.evaluation.scoring.score_signature import (
    JudgeIdentity,
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
from memory_program.evaluation.stages.judge_stage import JudgeStage
from memory_program.evaluation.stages.ray_executor import RayExecutor
from memory_program.evaluation.stages.ray_system import RemoteSystem
from memory_program.evaluation.stages.workers import Workers

ModelFactory = Callable[[str, float], dspy.LM]
"""Makes the language model of a name and a temperature, ready to be called."""


class SystemFactory(Protocol):
    """Makes a system by name, without its models."""

    def __call__(self, name: str, settings: SystemSettings, /) -> MemorySystem:
        """Make the system."""
        ...


class SystemRunner:
    """A system and its records. A stage takes up what is recorded, and does what is missing."""

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
            name: of the system.
            config: what to do.
            selection: the conversations and questions.
            make_system: makes the system.
            store: the database of the banks; None if no system of the run has any.
            others: systems of the run that may share its banks.
            executor: what remembers and asks; None is this process.

        Raises:
            ConfigError: the program is not one of this system.
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
        run = SystemRun(identify_system(self._system, name, config), self._resolve_judge(folder), chosen_on)
        self.recorded = SystemRecords(folder, run, Journals.read(folder), selection)
        retry_errors = config.retry_errors
        banks = store if self._system.writes_memories else None
        runs = self._system if executor is None else self._remote(executor)
        self._builder = Builder(
            runs, self.recorded, banks, others, order=config.build, retry_errors=retry_errors
        )
        self._answerer = Answerer(runs, self.recorded, self._builder, retry_errors=retry_errors)

    def write_run_files(self) -> None:
        """Write what the records will belong to, and the program itself, beside them."""
        write_run(self.recorded.folder, self.recorded.run)
        self._system.save(str(self.recorded.folder / "program.json"))

    def estimate_calls(self) -> list[StageEstimate]:
        """Estimate the calls that are still to be made."""
        selection, mode = self.recorded.selection, self._config.mode
        estimates: list[StageEstimate | None] = []
        if mode is not Mode.ANSWER:
            sessions = 0 if self._builder.shares_banks else self._builder.count_missing()
            estimates.append(estimate_build(self._config, self._name, selection.conversations, sessions))
        if mode is not Mode.BUILD:
            questions = len(self._answerer.missing())
            estimates.append(estimate_answers(self._config, self._name, selection.conversations, questions))
        if mode is Mode.FULL and self.recorded.run.judge is not None:
            cases = JudgeStage(self.recorded, retry_errors=self._config.retry_errors).missing()
            unanswered = [q for q in self._answerer.missing() if q.is_headline]
            count = len(cases) + len(unanswered) * len(self.recorded.run.judge.rubrics)
            estimates.append(estimate_judgements(self._config, self._name, count))
        return [estimate for estimate in estimates if estimate is not None]

    @property
    def is_finished(self) -> bool:
        """Whether every session is built, every question answered, and every answer judged."""
        judging = JudgeStage(self.recorded, retry_errors=self._config.retry_errors)
        return not (self._builder.count_missing() or self._answerer.missing() or judging.missing())

    def attach_models(self, models: ModelFactory) -> None:
        """Give the system its models, and make that of its judge: what cannot be used, ends the run now.

        Raises:
            ModelError: one cannot be used as named, or does not answer.
        """
        system, temperature = self.recorded.run.system, self._config.temperature
        set_models(
            self._system,
            writer_lm=models(system.writer, temperature) if system.writer is not None else None,
            reader_lm=models(system.reader, temperature) if system.reader is not None else None,
        )
        if self.recorded.run.judge is not None:
            models(self.recorded.run.judge.model, 0.0)

    def build(self, workers: Workers) -> None:
        """Run the build stage."""
        self._builder.build(workers)

    def answer(self, workers: Workers) -> None:
        """Run the answer stage.

        Raises:
            RecordError: sessions are missing.
        """
        unbuilt = self._builder.count_unbuilt()
        if unbuilt:
            raise RecordError(
                f"{unbuilt} sessions of system {self._name.value!r} are not built in "
                f"{str(self.recorded.folder)!r}: run --mode build first, or --mode full for all stages"
            )
        self._answerer.answer(workers)

    def _remote(self, executor: RayExecutor) -> RemoteSystem:
        """Have a cluster run the system; its tasks together keep to the limit of calls in flight."""
        concurrency = self._config.concurrency
        builds_at_once = min(concurrency, len(self.recorded.selection.conversations))
        return RemoteSystem(self._system, executor, concurrency // builds_at_once)

    def _resolve_judge(self, folder: Path) -> JudgeIdentity | None:
        """Give the judge of the config; a run of one stage keeps the judge that it had."""
        if self._config.mode is Mode.FULL:
            return identify_judge(self._config)
        try:
            return read_run(folder).judge
        except RecordError:
            return None


def load_program(system: MemorySystem, path: Path) -> None:
    """Load prompts and demos that ``save`` wrote; models, and code, are never loaded.

    Raises:
        ConfigError: the file is missing, not JSON, or of another program.
    """
    try:
        _check_fields(system, path)
        system.load(str(path))
    except (OSError, ValueError, KeyError, TypeError, NotImplementedError) as error:
        raise ConfigError(
            f"program={str(path)!r} cannot be loaded ({type(error).__name__}: {error}): name a JSON file "
            "that was saved from a program of the same --writer-mode, --max-turns and --max-searches"
        ) from error


def _check_fields(system: MemorySystem, path: Path) -> None:
    """Refuse prompts of other fields: DSPy would give the first field the description of the saved first.

    Raises:
        ValueError: a prompt was saved with other fields than the program's has.
    """
    saved = json.loads(path.read_text(encoding="utf-8"))
    for name, predictor in system.named_predictors():
        before = [field["prefix"] for field in saved[name]["signature"]["fields"]]
        now = [field["prefix"] for field in predictor.dump_state()["signature"]["fields"]]
        if before != now:
            raise ValueError(f"{name!r} was saved with the fields {before} and now has {now}: make it anew")
