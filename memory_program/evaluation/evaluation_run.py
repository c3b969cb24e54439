"""A run of ``evaluate``: the stages of a config over every system, and the report."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from operator import attrgetter
from textwrap import shorten

import dspy
from rich.console import Console

from memory_program.agents.systems import make_system
from memory_program.bank.store import BankStore
from memory_program.configs.endpoints import Role, server_address
from memory_program.configs.evaluate_config import EvaluateConfig, Mode, SystemName
from memory_program.core.errors import NoResultError, RecordError
from memory_program.core.json_files import Json, read_run_file, write_json
from memory_program.core.run_folder import BATCHES_FILE, CONFIG_FILE, lock_run_folder
from memory_program.evaluation.console import make_console, print_plain
from memory_program.evaluation.judge_program import make_judges
from memory_program.evaluation.oracle_eval import oracle_run
from memory_program.evaluation.question_selection import Selection, load_selection
from memory_program.evaluation.report.mlflow_evaluation import EvaluationPublisher
from memory_program.evaluation.report.write_reports import load_system_records, report_runs, score_and_publish
from memory_program.evaluation.role_models import (
    ModelFactory,
    RoleModels,
    check_template_arguments,
    load_dense_index,
    make_role_models,
    with_locomo_notes,
)
from memory_program.evaluation.scoring.bank_growth import database_url
from memory_program.evaluation.scoring.judge_errors import calibration_folder
from memory_program.evaluation.scoring.score_signature import identify_judge, write_run
from memory_program.evaluation.scoring.stage_failures import answer_failures, build_failures, judge_failures
from memory_program.evaluation.scoring.system_records import SystemRecords
from memory_program.evaluation.stages.calibrate_stage import calibrate_judge
from memory_program.evaluation.stages.cost_estimate import (
    StageEstimate,
    check_affordable,
    estimate_judgements,
    format_estimates,
)
from memory_program.evaluation.stages.judge_stage import judge_cases, list_answers_to_judge, unjudged_answers
from memory_program.evaluation.stages.limits import RunLimits
from memory_program.evaluation.stages.ray_executor import RayExecutor
from memory_program.evaluation.stages.system_runner import SystemFactory, SystemRunner
from memory_program.evaluation.stages.workers import Workers
from memory_program.models.batch_queue import BatchQueue, calling_directly
from memory_program.models.reply_settings import ReplyFormat
from memory_program.models.response_formats import RESPONSE_FORMATS
from memory_program.models.usage import silence_truncation_warnings


def evaluate(
    config: EvaluateConfig,
    *,
    console: Console | None = None,
    system_factory: SystemFactory = make_system,
    models: ModelFactory | None = None,
    with_oracle: bool = False,
) -> Json | None:
    """Run the stages of a config; return the results of a single report or of a calibration, else None.

    Args:
        config: the settings of the run.
        console: shows progress and tables; standard output by default.
        system_factory: makes the systems.
        models: makes the language models; by default those of the config, each checked by one small call.
        with_oracle: also evaluate the oracle where the truth of the dataset is known, as an upper bound.

    Raises:
        ConfigError: the config does not fit the data or the folder.
        DatasetError: the data cannot be read.
        EmbeddingError: the embedding model cannot be used, or a call of it failed; finished work is kept.
        ModelError: a model cannot be used.
        RecordError: the records are damaged, or a stage lacks the results of an earlier one.
        BudgetExceededError: a limit of the run is passed; finished work is kept.
        ClusterError: the Ray cluster of the run is lost; finished work is kept.
        RunInUseError: another process works in the folder.
        StoreError: the database fails.
        NoResultError: every item of a stage failed; the results are written.
        TrackingError: MLflow fails; the results are written.
    """
    console = console or make_console()
    batches = None
    if config.batch and models is None:
        folder = calibration_folder(config) if config.mode is Mode.CALIBRATE else config.output_dir
        batches = BatchQueue(folder / BATCHES_FILE, partial(print_plain, console))
    role_models = make_role_models(config, models, check=True, batches=batches)
    with ExitStack() as stack:
        stack.enter_context(silence_truncation_warnings())
        if config.mode is Mode.CALIBRATE:
            return calibrate_judge(config, console, role_models, batches)
        if config.runs:
            reported = report_runs(config, console)
            return reported[0].results if len(reported) == 1 else None
        selection = load_selection(config)
        print_plain(console, selection.summary)
        role_models = with_locomo_notes(role_models, selection.conversations)
        oracle = evaluate_oracle(config) if with_oracle else None
        if config.mode is Mode.REPORT:
            return score_and_publish(config, selection, console, oracle).results
        stack.enter_context(lock_run_folder(config.output_dir))
        if batches is not None:
            stack.enter_context(batches)
        if config.mode is Mode.JUDGE:
            return _run_judge_stage(config, selection, console, role_models, batches)
        return _run_systems(
            config,
            selection,
            console,
            system_factory,
            role_models,
            batches,
            oracle,
            asks_formats=models is None,  # a caller's own models speak chat
        )


def _run_systems(
    config: EvaluateConfig,
    selection: Selection,
    console: Console,
    system_factory: SystemFactory,
    role_models: RoleModels,
    batches: BatchQueue | None,
    oracle: Json | None,
    *,
    asks_formats: bool,
) -> Json | None:
    """Build, answer and judge with one system after the other, as far as the mode says, and publish."""

    def choose_format(part: str, model: str) -> ReplyFormat:
        def make_model() -> dspy.LM:
            return role_models(Role(part), model, config.temperature)

        with calling_directly():
            return RESPONSE_FORMATS.default_format(model, make_model, config.system.replies.settings())

    has_banks = any(name.has_model_writer for name in config.system_names)
    db_url = database_url(config) if has_banks else None
    dense = load_dense_index(config)
    with ExitStack() as stack:
        store = stack.enter_context(BankStore(db_url, dense)) if db_url is not None else None
        ray = config.executor == "ray"
        executor = RayExecutor(config.ray_address, config.concurrency, db_url) if ray else None
        formats = choose_format if asks_formats else None
        make_runner = partial(SystemRunner, executor=executor, default_format=formats, dense=dense)
        systems = _make_systems(config, selection, console, system_factory, store, make_runner)
        recorded = [system.recorded for system in systems]
        for system in recorded:
            stack.callback(system.journals.close)
        used = [(Role.JUDGE, config.judge)]
        for one in (system.run.system for system in recorded):
            used += [(Role.WRITER, one.writer), (Role.READER, one.reader)]
        check_template_arguments(config, used)
        estimates = [system.estimate_calls() for system in systems]
        listed = [estimate for of_system in estimates for estimate in of_system]
        workers = _make_workers(config, console, recorded, listed, batches)
        for system, to_call in zip(systems, estimates, strict=True):
            if to_call:
                system.attach_models(role_models, to_call)
            if config.mode is Mode.FULL:
                _judge_model(system.recorded, config, role_models)
        # not earlier: a run that cannot begin leaves the folder as it was
        write_json(config.output_dir / CONFIG_FILE, config.model_dump(mode="json"))
        publisher = stack.enter_context(EvaluationPublisher(config, selection, console, oracle))
        is_finished = all(system.is_finished for system in systems)
        if executor is not None and not is_finished:
            stack.enter_context(executor)
        is_traced = config.traces and not is_finished
        if is_traced:
            publisher.trace_calls()
        is_tracked = config.mode is Mode.FULL and not is_finished
        if is_tracked:
            publisher.begin()
        for system in systems:
            system.write_run_files()
            if is_tracked:
                publisher.begin_system(system.recorded)
            if is_traced:
                workers.label_traces = publisher.trace_labels(system.recorded)
            if config.mode is not Mode.ANSWER or system.recorded.run.system.writer is None:
                system.builder.build(workers)  # without a writer it calls no model
            if config.mode is not Mode.BUILD:
                system.answerer.answer(workers)
            if config.mode is Mode.FULL:
                _judge_system(system.recorded, config, role_models, workers)
            if is_tracked:
                publisher.publish_system(system.recorded, store)
        results = publisher.publish(recorded, store).results if config.mode is Mode.FULL else None
        _check_for_results(config, console, recorded)
        return results


def _make_systems(
    config: EvaluateConfig,
    selection: Selection,
    console: Console,
    system_factory: SystemFactory,
    store: BankStore | None,
    make_runner: Callable[..., SystemRunner],
) -> list[SystemRunner]:
    """Make the systems of a config, without models, and say what was chosen for them."""
    systems: list[SystemRunner] = []
    for name in config.system_names:
        others = [system.recorded for system in systems]
        systems.append(make_runner(name, config, selection, system_factory, store, others))
        writer = systems[-1].recorded.run.system.writer
        if writer != config.writer_model_for(name):
            print_plain(console, f"{name.value}: answers from the banks that {writer} wrote")
    for line in dict.fromkeys(line for system in systems for line in system.format_lines):
        print_plain(console, line)
    return systems


def evaluate_oracle(config: EvaluateConfig) -> Json | None:
    """Evaluate the memory system with the oracle as its model, under the settings of a run.

    Returns:
        The results of the system, as in results.json; None where there is no oracle (see ``oracle_run``), and
        where a report finds no results of it recorded.

    Raises:
        MemoryProgramError: as ``evaluate`` does.
    """
    run = oracle_run(config)
    if run is None:
        return None
    oracle_config, models = run
    try:
        results = evaluate(oracle_config, console=Console(quiet=True), models=models)
    except RecordError:
        if config.mode is Mode.REPORT:
            return None
        raise
    assert results is not None, "both modes report"
    return results["systems"][SystemName.MEMORY.value]


def _run_judge_stage(
    config: EvaluateConfig,
    selection: Selection,
    console: Console,
    models: RoleModels,
    batches: BatchQueue | None,
) -> None:
    """Judge the last answers of each system.

    Raises:
        RecordError: a system has no answer to any of the questions; the folder is as it was.
    """
    judge = identify_judge(config)
    recorded = [replace(r, run=replace(r.run, judge=judge)) for r in load_system_records(config, selection)]
    for system in recorded:
        if all(answer is None for _, answer in system.answers()):
            raise RecordError(
                f"no answer of system {system.run.system.name!r} to these questions is recorded in "
                f"{str(system.folder)!r}: use the flags that they were answered with (--dataset, --data, "
                "--split, --conversations), or run --mode full first"
            )
    missing = [len(unjudged_answers(system, retry_errors=config.retry_errors)) for system in recorded]
    pairs = zip(config.system_names, missing, strict=True)
    estimates = [estimate_judgements(config, name, count) for name, count in pairs]
    workers = _make_workers(config, console, recorded, [e for e in estimates if e is not None], batches)
    check_template_arguments(config, [(Role.JUDGE, config.judge)])
    for system in recorded:
        _judge_model(system, config, models)
    path, values = config.output_dir / CONFIG_FILE, config.model_dump(mode="json")
    if path.is_file():  # its other settings are those of the answers
        values = {
            **read_run_file(
                path, "run the command that made the answers again, which writes it; records are kept"
            ),
            **{name: values[name] for name in ("judge_program", "rubrics")},
            "judge_model": config.judge,
            "judge_api_base": server_address(config, Role.JUDGE),
        }
    write_json(path, values)
    for system in recorded:
        write_run(system.folder, system.run)
        with closing(system.journals):
            _judge_system(system, config, models, workers)
    _check_for_results(config, console, recorded)


def _check_for_results(config: EvaluateConfig, console: Console, recorded: Sequence[SystemRecords]) -> None:
    """Warn of failed items with the first reason, and raise if a stage of a system gave nothing.

    Raises:
        NoResultError: every item of a stage failed.
    """
    hopeless: list[str] = []
    for system in recorded:
        keys, judgements = map(attrgetter("key"), list_answers_to_judge(system)), system.journals.judgements
        found = {
            Mode.BUILD: build_failures(system.builds()),
            Mode.ANSWER: answer_failures(record for _, record in system.answers()),
            Mode.JUDGE: judge_failures(map(judgements.records.get, keys)),
        }
        for mode, stage in found.items():
            if not stage.failures or config.mode not in (mode, Mode.FULL):
                continue
            name = f"{system.run.system.name} {mode.value}"
            line = f"{name}: {len(stage.failures)} failed, the first: {shorten(stage.first, 300)}"
            if stage.is_all_lost:
                hopeless.append(line)
            elif config.mode is not Mode.FULL:  # else the results have told
                print_plain(console, f"{line}; --retry-errors repeats them", style="bold red")
    if hopeless:
        raise NoResultError(
            f"every item of a stage failed: {'; '.join(hopeless)}; correct the cause, and repeat the items "
            "with --retry-errors"
        )


def _judge_system(
    recorded: SystemRecords, config: EvaluateConfig, models: RoleModels, workers: Workers
) -> None:
    if recorded.run.judge is not None:
        judges = make_judges(config, _judge_model(recorded, config, models))
        missing = unjudged_answers(recorded, retry_errors=config.retry_errors)
        total, journal = len(list_answers_to_judge(recorded)), recorded.journals.judgements
        judge_cases(f"{recorded.run.system.name}: judge", missing, judges, journal, workers, total=total)


def _judge_model(recorded: SystemRecords, config: EvaluateConfig, models: RoleModels) -> dspy.LM | None:
    """Make the model that judges the answers of a system; None if every answer has its verdicts.

    Raises:
        ModelError: it cannot be used, or does not answer.
    """
    if recorded.run.judge is None:
        return None
    has_unanswered = any(answer is None for _, answer in recorded.answers())
    is_needed = has_unanswered or unjudged_answers(recorded, retry_errors=config.retry_errors)
    return models(Role.JUDGE, recorded.run.judge.model, 0.0) if is_needed else None


def _make_workers(
    config: EvaluateConfig,
    console: Console,
    recorded: Sequence[SystemRecords],
    estimates: Sequence[StageEstimate],
    batches: BatchQueue | None,
) -> Workers:
    """Print the estimate and refuse a run that would cost too much; else make its worker threads."""
    for system in recorded:
        for journal in system.journals:
            if journal.lost_bytes:
                print_plain(
                    console,
                    f"{journal.path}: an incomplete last line of {journal.lost_bytes} bytes was dropped; its "
                    "item is done again",
                )
    for line in format_estimates(estimates):
        print_plain(console, line)
    spent_usd = sum(system.spent_usd() for system in recorded)
    check_affordable(estimates, spent_usd, config.max_cost)
    limits = RunLimits(
        max_errors=config.max_errors,
        max_cost_usd=config.max_cost,
        spent_usd=spent_usd,
        is_json=all(one.run.system.settings.get("reply_format") == ReplyFormat.JSON for one in recorded),
    )
    return Workers(console, limits, config.concurrency, batches=batches)
