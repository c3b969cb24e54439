"""A whole optimisation: it runs the stages, saves the best program and logs the run to MLflow."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial

import dspy
from rich.console import Console

from locomo.judge.rubrics import Rubric
from memory_program.configs.endpoints import Role, server_address
from memory_program.configs.optimize_config import OptimizeConfig, Target
from memory_program.core.json_files import Json, write_json
from memory_program.core.run_folder import CONFIG_FILE, lock_run_folder
from memory_program.evaluation.role_models import ModelFactory, check_template_arguments, make_role_models
from memory_program.evaluation.stages.cost_estimate import format_estimates
from memory_program.models.factory import check_model
from memory_program.models.model_names import OBSERVATIONS
from memory_program.models.response_formats import RESPONSE_FORMATS
from memory_program.models.usage import check_max_cost, silence_truncation_warnings
from memory_program.optimization.call_journal import UNPRICED, ReplyCache
from memory_program.optimization.candidate_evaluator import CandidateEvaluator, PromptCandidate
from memory_program.optimization.candidate_progress import OptimizationProgress, format_score
from memory_program.optimization.candidate_selection import compared_mean
from memory_program.optimization.dev_examples import MemoryCase
from memory_program.optimization.judge_target import JudgeOptimizationTarget
from memory_program.optimization.memory_target import MemoryOptimizationTarget
from memory_program.optimization.mlflow_optimization import RESULTS, OptimizationPublisher
from memory_program.optimization.optimization_stage import (
    StageContext,
    StageResult,
    optimize_stage,
    stop_at_limits,
)
from memory_program.optimization.prompt_text import apply_prompts
from memory_program.optimization.reply_cache import CachedLM, with_reply_cache
from memory_program.optimization.retrieval_target import RetrievalChoice, RetrievalTuner, retrieval_results
from memory_program.optimization.saved_program import OptimizationTarget, run_results, save_program
from memory_program.rl.rewards import AnswerMetric, build_answer_metric
from memory_program.worlds.observation_expert import observations_lm

PROMPT_TEMPERATURE = 1.0
"""Sampling temperature of the model that writes instructions, so that its proposals differ."""

OPTIMIZER_LOG = "optimizer.log"
"""The file for the output of the optimiser, in the folder of the run."""


def optimize(
    config: OptimizeConfig,
    *,
    console: Console | None = None,
    models: ModelFactory | None = None,
    score: AnswerMetric | None = None,
) -> Json:
    """Improve the prompts of the memory program or of a judge, save the best, and return the results.

    The parts of the program are improved one after the other, each from the best prompts so far.

    Args:
        config: the settings.
        console: for progress lines; standard output by default.
        models: makes the language models, which must be rate limited; by default those of the config.
        score: the score of an answer; by default the metric of the config.

    Returns:
        the content of ``results.json`` in the folder of the run.

    Raises:
        ConfigError: the config does not fit the data, or a limit in dollars a model without a price.
        DatasetError: the data cannot be read.
        ModelError: a model cannot be used, or no longer answers.
        OptimizationError: the optimiser, the program or the metric failed.
        RecordError: the replies on disk are damaged.
        RunInUseError: another process works in the folder.
        StoreError: the database fails.
        TrackingError: MLflow fails; everything else is done.
    """
    is_judge = config.target is Target.JUDGE
    _check_prices(config)
    subject = JudgeOptimizationTarget(config) if is_judge else MemoryOptimizationTarget(config)
    folder = config.output_dir
    with ExitStack() as stack:
        stack.enter_context(silence_truncation_warnings())
        stack.enter_context(lock_run_folder(folder))
        write_json(folder / CONFIG_FILE, config.model_dump(mode="json"))
        replies = ReplyCache(folder / "calls.jsonl", max_calls=config.max_calls, max_cost_usd=config.max_cost)
        calls = stack.enter_context(closing(replies))
        subject.begin(calls, stack)
        expected = subject.estimates()
        progress = OptimizationProgress(
            console or Console(file=sys.stdout, width=120), calls, sum(stage.calls for stage in expected)
        )
        metric = [] if is_judge else config.grading.describe_default()
        estimates = format_estimates(expected)
        limits = [f"--max-calls {config.max_calls:,}"] if config.max_calls is not None else []
        limits += [f"--max-cost {config.max_cost:g}"] if config.max_cost is not None else []
        stops = [f"it stops at {' or '.join(limits)}, and saves the best so far"] if limits else []
        for line in (subject.summary, *metric, *estimates, *stops):
            progress.say(line)
        context = _make_stage_context(config, calls, models, score, subject)
        if isinstance(subject, MemoryOptimizationTarget):
            subject.writer_lm = context.writer_lm
        publisher = stack.enter_context(OptimizationPublisher(config, subject.dataset, progress.say))
        if config.target is Target.RETRIEVAL:
            assert isinstance(subject, MemoryOptimizationTarget)
            return _tune_retrieval(context, subject, progress, publisher, checks_format=models is None)
        stages, stopped = list[StageResult](), list[str]()
        with dspy.context(lm=context.task_lm), stop_at_limits(stopped):
            _check_models(context.models)
            if models is None and isinstance(subject, MemoryOptimizationTarget):
                _choose_reply_formats(context, subject, progress)
            for target in config.rounds * config.target.stages:
                stages.append(_optimize_target(target, len(stages), context, subject, progress, publisher))
                if stages[-1].stopped is not None:
                    break
        results = run_results(config, subject, stages, calls)
        save_program(config.output_file, subject.program, results)
        stopped += [stage.stopped for stage in stages if stage.stopped is not None]
        for line in _summary_lines(config, results, stages, stopped):
            progress.say(line)
        publisher.publish(results, stages, subject.program)
        return results


def _choose_reply_formats(
    context: StageContext, subject: MemoryOptimizationTarget, progress: OptimizationProgress
) -> None:
    replies = context.config.system.replies.settings()
    for line in subject.choose_reply_formats(
        lambda part, model: RESPONSE_FORMATS.default_format(
            model, lambda: context.writer_lm if part == "writer" else context.task_lm, replies
        )
    ):
        progress.say(line)


def _tune_retrieval(
    context: StageContext,
    subject: MemoryOptimizationTarget,
    progress: OptimizationProgress,
    publisher: OptimizationPublisher,
    *,
    checks_format: bool,
) -> Json:
    """Search for retrieval settings, and save the best as settings of ``evaluate``."""
    config, calls, stopped = context.config, context.calls, list[str]()
    choice: RetrievalChoice | None = None
    tuner = RetrievalTuner(config, subject.program.reader, context.score, calls, context.probe)
    with dspy.context(lm=context.task_lm), stop_at_limits(stopped):
        _check_models(context.models)
        if checks_format:
            _choose_reply_formats(context, subject, progress)
        cases = subject.cases(Target.READER)
        train, val = (
            [c for c in of_split if isinstance(c, MemoryCase)] for of_split in (cases.train, cases.val)
        )
        calls_per_question = 1 + config.system.reader.max_searches + (config.judge is not None)
        finals = 2 * len(val) * calls_per_question  # the present settings and the best ones
        with stop_at_limits(stopped), calls.reserve_calls(finals):
            tuner.search(train, progress.say)
        if tuner.trials:
            choice = tuner.choose(val)
    results = retrieval_results(config, subject, tuner, choice, stopped)
    kept = {  # under which the settings were found
        "reader_budget": config.system.retrieval.reader_budget,
        "max_searches": config.system.reader.max_searches,
    }
    write_json(config.output_file, {**config.search.flags(), **kept, **results["retrieval"]["winner"]})
    for line in (
        *_stopped_lines(stopped[-1:]),
        *(
            choice.summary()
            if choice is not None
            else ["nothing was compared: the saved settings are the present ones"]
        ),
        f"saved: {config.output_file}, for evaluate.py --config",
    ):
        progress.say(line)
    publisher.publish_retrieval(results)
    return results


def _check_prices(config: OptimizeConfig) -> None:
    """Refuse a limit in dollars for a model without a price."""
    used = {
        (config.model, config.task_role),
        (config.proposer, Role.PROMPT) if config.proposes_instructions else (config.model, config.task_role),
        (config.writer_model, Role.WRITER),
        (config.judge, Role.JUDGE),
    }
    called = [(model, server_address(config, role)) for model, role in used if model is not None]
    check_max_cost(config.max_cost, called)


def _optimize_target(
    target: Target,
    number: int,
    context: StageContext,
    subject: OptimizationTarget,
    progress: OptimizationProgress,
    publisher: OptimizationPublisher,
) -> StageResult:
    """Optimise the prompts of one target, and give the winner's to the program."""
    cases = subject.cases(target)
    progress.say(
        f"{context.config.optimizer.value} on {target.value}: {len(cases.train)} examples for training, "
        f"{len(cases.val)} for validation; {context.calls.used:,} calls so far"
    )

    def report_attempt(evaluator: CandidateEvaluator, candidate: PromptCandidate, is_validated: bool) -> None:
        progress.report_attempt(evaluator, candidate, is_validated)
        if is_validated:
            publisher.log_candidate(number, target.value, evaluator, candidate)

    make_student = partial(subject.student, target, context.score)
    fixed_settings = subject.fixed_settings(target)
    stage = optimize_stage(context, target, cases, make_student, report_attempt, fixed_settings)
    apply_prompts(stage.choice.winner.prompts, subject.program)
    return stage


def _make_stage_context(
    config: OptimizeConfig,
    calls: ReplyCache,
    models: ModelFactory | None,
    score: AnswerMetric | None,
    subject: OptimizationTarget,
) -> StageContext:
    """Make the models of a run, with a reply cache, and the metric."""
    named = [(config.task_role, config.model), (Role.WRITER, config.writer), (Role.JUDGE, config.judge)]
    check_template_arguments(config, [*named, (Role.PROMPT, config.proposer)])
    make = make_role_models(config, models)

    def make_lm(role: Role, name: str, temperature: float) -> CachedLM:
        return with_reply_cache(make(role, name, temperature), calls)

    task_lm = prompt_lm = make_lm(config.task_role, config.model, config.task_temperature)
    writer_lm: dspy.LM = task_lm
    if config.writer == OBSERVATIONS:
        assert isinstance(subject, MemoryOptimizationTarget), "the config refuses it for a judge"
        writer_lm = observations_lm(subject.conversations)  # no model: nothing to cache, to limit or to check
    elif config.writer_model is not None:
        writer_lm = make_lm(Role.WRITER, config.writer_model, config.temperature)
    judge_lm = make_lm(Role.JUDGE, config.judge, 0.0) if config.judge is not None else None
    if config.proposes_instructions:
        prompt_lm = make_lm(Role.PROMPT, config.proposer, PROMPT_TEMPERATURE)
    made = dict.fromkeys((task_lm, writer_lm, prompt_lm, judge_lm))
    used = [lm for lm in made if isinstance(lm, CachedLM)]
    return StageContext(
        config=config,
        calls=calls,
        score=score
        or build_answer_metric(
            config.grading.metric,
            Rubric(config.grading.rubric),
            judge_lm,
            config.system.replies.settings(),
        ),
        models=used,
        task_lm=task_lm,
        writer_lm=writer_lm,
        prompt_lm=prompt_lm,
        probe=lambda: _check_models([lm.uncached for lm in used]),
        log=config.output_dir / OPTIMIZER_LOG,
    )


def _check_models(lms: Sequence[dspy.LM]) -> None:
    """Make one small call to each model, so that one that does not answer ends the run at once."""
    for lm in lms:
        check_model(lm, tries=2)


def _stopped_lines(stopped: Sequence[str]) -> Iterator[str]:
    """List a line for each limit that ended a run early."""
    for reason in dict.fromkeys(stopped):
        how = "without --max-cost" if UNPRICED in reason else "with a higher limit"
        yield f"stopped early: {reason}; the best so far is saved, and the same command {how} continues"


def _summary_lines(
    config: OptimizeConfig, results: Json, stages: Sequence[StageResult], stopped: Sequence[str]
) -> Iterator[str]:
    """List the lines that end a run: the winner of each stage, its signature, and the files."""
    yield from _stopped_lines(stopped)
    for found, stage in zip(stages, results["stages"], strict=True):
        baseline, winner = stage["baseline"], stage["winner"]
        score, comparison = baseline["score"], stage["comparison"]
        if score is None or comparison is None:
            is_alone = len(stage["candidates"]) == 1 and stage["stopped"] is None
            why = f"nothing was proposed ({OPTIMIZER_LOG} says why)" if is_alone else "nothing was compared"
            yield f"{stage['target']}: {why}, so the baseline stays"
        else:
            low, high, difference = comparison["low"], comparison["high"], comparison["difference"]
            group = Target(stage["target"]).group
            interval = (
                f"no interval: one {group}" if low is None else f"95 % interval {low:+.3f}..{high:+.3f}"
            )
            by = f"{difference:+.3f} ({interval}, p {comparison['p_value']:.2f}, n {comparison['n']})"
            if winner["is_baseline"]:
                told = (
                    f"nothing beats the baseline, {format_score(score['value'])} on validation; the best "
                    f"candidate has {by}; the baseline stays"
                )
            else:
                after = compared_mean(found.evaluator, found.choice.winner)
                told = f"{format_score(after - difference)} -> {format_score(after)} on validation, {by}"
            yield f"{stage['target']}: {told}"
        if "false_accept" in baseline:
            rates = [
                f"{words} {format_score(baseline[name]['value'])} -> {format_score(winner[name]['value'])}"
                for name, words in (("false_accept", "false accepts"), ("false_reject", "false rejects"))
            ]
            yield f"{stage['target']}: {', '.join(rates)}, means over the kinds of answers"
        if winner["signature"] is not None:  # a limit may have ended the stage before the first score
            yield winner["signature"]
        attempts = stage["attempts"]
        if attempts["failed"]:
            yield (
                f"{stage['target']}: {attempts['failed']:,} attempts have no score; the first failure: "
                f"{attempts['first_failure'][:300]}"
            )
    if not results["stages"]:
        yield "nothing was compared: the saved program is the one that the run began with"
    if results["lost_sessions"]:
        yield f"{results['lost_sessions']} sessions are stored only in part: calls failed"
    yield f"saved: {config.output_file}; all candidates: {config.output_dir / RESULTS}"
