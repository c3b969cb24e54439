"""A whole run: the stages that a config asks for, over every system, and the report."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache

import dspy
from rich.console import Console

from memory_program.agents.systems import make_system
from memory_program.bank.store import BankStore
from memory_program.configs.evaluate_config import EvaluateConfig, Mode
from memory_program.core.errors import ModelError, RecordError
from memory_program.core.json_files import Json, write_json
from memory_program.core.run_folder import CONFIG_FILE, lock_run_folder
from memory_program.evaluation.judge_program import make_judges
from memory_program.evaluation.question_selection import Selection, load_selection
from memory_program.evaluation.report.mlflow_evaluation import EvaluationPublisher
from memory_program.evaluation.report.write_reports import load_system_records, report_runs, score_and_publish
from memory_program.evaluation.scoring.bank_growth import database_url
from memory_program.evaluation.scoring.score_signature import identify_judge, write_run
from memory_program.evaluation.scoring.system_records import SystemRecords
from memory_program.evaluation.stages.calibrate_stage import calibrate_judge
from memory_program.evaluation.stages.cost_estimate import (
    StageEstimate,
    check_affordable,
    estimate_judgements,
    format_estimates,
)
from memory_program.evaluation.stages.judge_stage import JudgeStage
from memory_program.evaluation.stages.limits import RunLimits
from memory_program.evaluation.stages.ray_executor import RayExecutor
from memory_program.evaluation.stages.system_runner import ModelFactory, SystemFactory, SystemRunner
from memory_program.evaluation.stages.workers import Workers
from memory_program.models.factory import AdaptiveLimiter, check_model, language_model
from memory_program.models.model_names import is_local


def evaluate(
    config: EvaluateConfig,
    *,
    console: Console | None = None,
    system_factory: SystemFactory = make_system,
    models: ModelFactory | None = None,
    ceiling: Json | None = None,
) -> Json | None:
    """Run the stages of a config, and return the results when it asks for one report or a calibration.

    Args:
        config: what to do.
        console: where progress and tables go; standard output by default.
        make: makes the systems.
        models: makes the language models; by default those of the config, each checked by one small call.
        ceiling: results to show beside those of the run; see ``learning.ceiling``.

    Raises:
        ConfigError: the config does not fit the data or the folder.
        DatasetError: the data cannot be read.
        ModelError: a model cannot be used.
        RecordError: the records are damaged, or a stage lacks what the one before it makes.
        BudgetExceededError: a limit of the run is passed; what was done is kept.
        ClusterError: the Ray cluster of the run is lost; what was done is kept.
        RunInUseError: another process works in the folder.
        StoreError: the database fails.
        TrackingError: MLflow fails; the results are written.
    """
    console = console or _console()
    models = models or _make_model_factory(config)
    if config.mode is Mode.CALIBRATE:
        return calibrate_judge(config, console, models)
    if config.runs:
        reported = report_runs(config, console)
        return reported[0].results if len(reported) == 1 else None
    selection = load_selection(config)
    console.print(selection.summary, highlight=False, markup=False)
    if config.mode is Mode.REPORT:
        return score_and_publish(config, selection, console, ceiling).results
    with lock_run_folder(config.output_dir):
        if config.mode is Mode.JUDGE:
            _run_judge_stage(config, selection, console, models)
            return None
        return _run_stages(config, selection, console, system_factory, models, ceiling)


def _run_stages(
    config: EvaluateConfig,
    selection: Selection,
    console: Console,
    make: SystemFactory,
    models: ModelFactory,
    ceiling: Json | None,
) -> Json | None:
    """Build, answer and judge, as far as the mode goes, one system after the other; then report."""
    with ExitStack() as stack:
        store = stack.enter_context(BankStore(database_url(config))) if _any_writes_memories(config) else None
        executor = _executor(config)
        systems, recorded = list[SystemRunner](), list[SystemRecords]()
        for name in config.system_names:
            systems.append(SystemRunner(name, config, selection, make, store, tuple(recorded), executor))
            recorded.append(systems[-1].recorded)
        for system in recorded:
            stack.callback(system.journals.close)
        estimates = [system.estimate_calls() for system in systems]
        workers = _make_workers(config, console, recorded, [e for of_system in estimates for e in of_system])
        for system, to_call in zip(systems, estimates, strict=True):
            if to_call:
                system.attach_models(models)
        if config.mode is Mode.FULL:
            for system in recorded:
                _judge_model(system, config, models)
        _write_config(config)  # not earlier: a run that cannot begin leaves the folder as it was
        publisher = stack.enter_context(closing(EvaluationPublisher(config, selection, console, ceiling)))
        is_finished = all(system.is_finished for system in systems)
        if executor is not None and not is_finished:
            stack.enter_context(executor)
        if (config.traces or config.mode is Mode.FULL) and not is_finished:
            publisher.open_tracker()
        for system in systems:
            system.write_run_files()
            if config.mode is not Mode.ANSWER:
                system.build(workers)
            if config.mode is not Mode.BUILD:
                system.answer(workers)
            if config.mode is Mode.FULL:
                _judge_one(system.recorded, config, models, workers)
        return publisher.publish(recorded, store).results if config.mode is Mode.FULL else None


def _run_judge_stage(
    config: EvaluateConfig, selection: Selection, console: Console, models: ModelFactory
) -> None:
    """Judge what the last answers of each system were.

    Raises:
        RecordError: a system has no answer to any of the questions; the folder is as it was.
    """
    judge = identify_judge(config)
    recorded = [replace(r, run=replace(r.run, judge=judge)) for r in load_system_records(config, selection)]
    for system in recorded:
        if all(answer is None for _, answer in system.answers()):
            raise RecordError(
                f"no answer of system {system.run.system.name!r} to these questions is recorded in "
                f"{str(system.folder)!r}: give the flags that they were answered with (--dataset, --data, "
                "--split, --conversations), or run --mode full first"
            )
    missing = [len(JudgeStage(system, retry_errors=config.retry_errors).missing()) for system in recorded]
    pairs = zip(config.system_names, missing, strict=True)
    estimates = [estimate_judgements(config, name, count) for name, count in pairs]
    workers = _make_workers(config, console, recorded, [e for e in estimates if e is not None])
    for system in recorded:
        _judge_model(system, config, models)
    _write_config(config)
    for system in recorded:
        write_run(system.folder, system.run)
        with closing(system.journals):
            _judge_one(system, config, models, workers)


def _write_config(config: EvaluateConfig) -> None:
    write_json(config.output_dir / CONFIG_FILE, config.model_dump(mode="json"))


def _judge_one(
    recorded: SystemRecords, config: EvaluateConfig, models: ModelFactory, workers: Workers
) -> None:
    if recorded.run.judge is not None:
        stage = JudgeStage(recorded, retry_errors=config.retry_errors)
        stage.judge(make_judges(config, _judge_model(recorded, config, models)), workers)


def _judge_model(recorded: SystemRecords, config: EvaluateConfig, models: ModelFactory) -> dspy.LM | None:
    """Give the model that judges a system's answers, if any has no verdict.

    Raises:
        ModelError: it cannot be used, or does not answer.
    """
    judge = recorded.run.judge
    answers = recorded.answers()
    are_to_come = any(answer is None for _, answer in answers)
    missing = JudgeStage(recorded, retry_errors=config.retry_errors).missing
    return models(judge.model, 0.0) if judge is not None and (are_to_come or missing()) else None


def _make_workers(
    config: EvaluateConfig,
    console: Console,
    recorded: Sequence[SystemRecords],
    estimates: Sequence[StageEstimate],
) -> Workers:
    """Say what was found and what is to come, and refuse what would cost too much."""
    for system in recorded:
        for journal in system.journals:
            if journal.lost_bytes:
                console.print(
                    f"{journal.path}: an incomplete last line of {journal.lost_bytes} bytes was dropped; its "
                    "item is done again",
                    highlight=False,
                    markup=False,
                    soft_wrap=True,  # a path is copied whole
                )
    for line in format_estimates(estimates):
        console.print(line, highlight=False, markup=False)
    spent_usd = sum(system.spent_usd() for system in recorded)
    check_affordable(estimates, spent_usd, config.max_cost)
    limits = RunLimits(max_errors=config.max_errors, max_cost_usd=config.max_cost, spent_usd=spent_usd)
    writers = [config.writer_model_for(name) for name in config.system_names]
    models = (*writers, config.reader, config.judge)
    computes = any(model is not None and is_local(model) for model in models)
    return Workers(console, limits, config.concurrency, is_io_bound=not computes)


def _executor(config: EvaluateConfig) -> RayExecutor | None:
    if config.executor == "threads":
        return None
    db_url = database_url(config) if _any_writes_memories(config) else None
    return RayExecutor(config.ray_address, config.concurrency, db_url)


def _make_model_factory(config: EvaluateConfig) -> ModelFactory:
    """Make models under one limit of calls in flight; a model that does not answer is an error at once."""
    limiter = AdaptiveLimiter(config.concurrency)

    @cache
    def make_model(name: str, temperature: float) -> dspy.LM:
        lm = language_model(name, api_base=config.api_base, temperature=temperature, limiter=limiter)
        try:
            check_model(lm)
        except ModelError:
            check_model(lm)  # a provider that garbles a reply in a hundred is good enough to begin
        return lm

    return make_model


def _console() -> Console:
    """Give standard output; a file or a pipe is as wide as the tables need."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


def _any_writes_memories(config: EvaluateConfig) -> bool:
    return any(name.has_model_writer for name in config.system_names)
