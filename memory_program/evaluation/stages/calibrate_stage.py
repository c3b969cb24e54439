"""Calibration of a judge: its verdicts on answers whose right verdict is known."""

from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict
from textwrap import shorten

from rich.console import Console

from memory_program.bank.outcomes import Outcome
from memory_program.configs.endpoints import Role
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.core.errors import NoResultError
from memory_program.core.json_files import Json, write_json
from memory_program.core.run_folder import lock_run_folder
from memory_program.evaluation.console import print_plain, print_table
from memory_program.evaluation.datasets import benchmark_for_config
from memory_program.evaluation.item_records import JudgeRecord
from memory_program.evaluation.judge_program import make_judges
from memory_program.evaluation.report.score_tables import calibration_tables
from memory_program.evaluation.role_models import RoleModels, check_template_arguments
from memory_program.evaluation.scoring.judge_errors import (
    calibration_cases,
    calibration_folder,
    calibration_journal,
    compute_judge_error_rates,
)
from memory_program.evaluation.scoring.question_scores import BootstrapSampler
from memory_program.evaluation.scoring.score_signature import identify_judge
from memory_program.evaluation.scoring.stage_failures import judge_failures
from memory_program.evaluation.stages.cost_estimate import (
    check_affordable,
    estimate_judgements,
    format_estimates,
)
from memory_program.evaluation.stages.judge_stage import judge_cases, select_unjudged
from memory_program.evaluation.stages.limits import RunLimits
from memory_program.evaluation.stages.workers import Workers
from memory_program.models.batch_queue import BatchQueue


def calibrate_judge(
    config: EvaluateConfig, console: Console, models: RoleModels, batches: BatchQueue | None = None
) -> Json:
    """Measure the error rates of a judge on the known answers of its benchmark; print and return them.

    Verdicts are kept in a folder beside the run folders, so that every run there cites them. An unparsed
    reply is a result here, not a failure.

    Raises:
        ConfigError: the file of the judge's optimised prompts cannot be used.
        ModelError: the judge's model cannot be used.
        RecordError: the records are damaged.
        BudgetExceededError: a limit is passed; verdicts so far are kept.
        RunInUseError: another process calibrates there.
        NoResultError: every call failed; the results are written.
    """
    judge, benchmark = identify_judge(config), benchmark_for_config(config.source)
    assert judge is not None, "the config of this mode has a judge"
    check_template_arguments(config, [(Role.JUDGE, judge.model)])
    folder = calibration_folder(config)
    with lock_run_folder(folder), batches or nullcontext(), closing(calibration_journal(config)) as journal:
        cases = [case for of_rubric in calibration_cases(judge, benchmark).values() for case in of_rubric]
        missing = select_unjudged(cases, journal.records, retry_errors=config.retry_errors)
        estimate = estimate_judgements(config, "calibration", len(missing))
        estimates = [estimate] if estimate is not None else []
        for line in format_estimates(estimates):
            print_plain(console, line)
        records = [record for case in cases for record in journal.attempts(case.key)]
        spent_usd = sum(record.usage.cost_usd or 0.0 for record in records)
        check_affordable(estimates, spent_usd, config.max_cost)
        limits = RunLimits(max_errors=config.max_errors, max_cost_usd=config.max_cost, spent_usd=spent_usd)
        judge_cases(
            f"{judge.name}: calibration on {benchmark.value}",
            missing,
            make_judges(config, models(Role.JUDGE, judge.model, 0.0) if missing else None),
            journal,
            Workers(console, limits, config.concurrency, batches=batches),
            total=len(cases),
            unparsed_is_lost=False,
        )
    results = {
        "judge": {"name": judge.name, **asdict(judge)},
        "benchmark": benchmark.value,
        "quality": compute_judge_error_rates(
            judge, benchmark, journal.records, BootstrapSampler(config.seed)
        ),
    }
    path = folder / f"{benchmark.value}.json"
    write_json(path, results)
    for table in calibration_tables(results):
        print_table(console, table)
    if judge.optimized is not None:
        note = (
            f"the {judge.optimized.rubric} prompts were optimised on the answers to these questions, so "
            f"quote the error rates on the other questions: {' '.join(judge.optimized.made_on)}"
        )
        print_plain(console, note)
    print_plain(console, f"results: {path}")
    _warn_of_failures(console, [journal.records[case.key] for case in cases])
    return results


def _warn_of_failures(console: Console, records: Sequence[JudgeRecord]) -> None:
    """Say how many calls failed, with the first reason; an unparsed reply is no failure.

    Raises:
        NoResultError: every call failed.
    """
    failed = [record for record in records if record.outcome not in (Outcome.OK, Outcome.UNPARSED)]
    line = f"calibration: {len(failed)} failed, the first: {shorten(judge_failures(failed).first, 300)}"
    if failed and len(failed) == len(records):
        raise NoResultError(f"{line}; correct the cause, and repeat the calls with --retry-errors")
    if failed:
        print_plain(console, f"{line}; the rates leave them out; --retry-errors repeats them", "bold red")
