"""A whole optimisation: what is learned from, the stages, the best program saved, the run in MLflow."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import cache, partial

import dspy
from rich.console import Console

from locomo.judge.rubrics import Rubric
from memory_program.configs.optimize_config import OptimizeConfig, Target
from memory_program.core.errors import ConfigError, ModelError
from memory_program.core.json_files import Json, write_json
from memory_program.core.run_folder import CONFIG_FILE, lock_run_folder
from memory_program.evaluation.stages.cost_estimate import format_estimates
from memory_program.evaluation.stages.system_runner import ModelFactory
from memory_program.models.factory import AdaptiveLimiter, check_model, language_model
from memory_program.models.model_names import is_local
from memory_program.models.usage import list_price
from memory_program.optimization.call_journal import ReplyCache
from memory_program.optimization.candidate_progress import OptimizationProgress, format_score
from memory_program.optimization.judge_target import JudgeOptimizationTarget
from memory_program.optimization.memory_target import MemoryOptimizationTarget
from memory_program.optimization.mlflow_optimization import RESULTS, OptimizationPublisher
from memory_program.optimization.optimization_stage import (
    StageContext,
    StageResult,
    optimize_stage,
    stop_at_limits,
)
from memory_program.optimization.optimization_target import OptimizationTarget
from memory_program.optimization.prompt_text import apply_prompts
from memory_program.optimization.reply_cache import with_reply_cache
from memory_program.optimization.saved_program import run_results, save_program
from memory_program.rl.rewards import AnswerMetric, build_answer_metric

PROMPT_TEMPERATURE = 1.0
"""Whoever writes instructions is to write different ones."""

OPTIMIZER_LOG = "optimizer.log"
"""What the optimiser printed, in the folder of the run."""


def optimize(
    config: OptimizeConfig,
    *,
    console: Console | None = None,
    models: ModelFactory | None = None,
    score: AnswerMetric | None = None,
) -> Json:
    """Improve the prompts of the memory program, save the best, and say what it is worth.

    Args:
        config: what to do.
        console: where progress goes; standard output by default.
        models: makes the language models, which have to be paced; by default those of the config.
        score: what an answer is worth; by default the metric of the config.

    Returns:
        what ``results.json`` in the folder of the run holds.

    Raises:
        ConfigError: the config does not fit the data.
        DatasetError: the data cannot be read.
        ModelError: a model cannot be used, or no longer answers.
        OptimizationError: the optimiser, the program or the metric failed.
        RecordError: the replies on disk are damaged.
        RunInUseError: another process works in the folder.
        StoreError: the database fails.
        TrackingError: MLflow fails; everything else is done.
    """
    _check_priced(config)
    subject = (
        JudgeOptimizationTarget(config) if config.target is Target.JUDGE else MemoryOptimizationTarget(config)
    )
    folder = config.output_dir
    with ExitStack() as stack:
        stack.enter_context(lock_run_folder(folder))
        write_json(folder / CONFIG_FILE, config.model_dump(mode="json"))
        paid = ReplyCache(folder / "calls.jsonl", max_calls=config.max_calls, max_cost_usd=config.max_cost)
        calls = stack.enter_context(closing(paid))
        subject.begin(calls, stack)
        progress = OptimizationProgress(console or Console(file=sys.stdout, width=120), calls)
        _announce(progress, config, subject)
        tools = _make_stage_context(config, calls, models or _make_model_maker(config), score)
        publisher = stack.enter_context(closing(OptimizationPublisher(config)))
        stages = list[StageResult]()
        stopped = _improve_all(tools, subject, progress, stages)
        results = run_results(config, subject, stages, calls)
        save_program(config.output_file, subject.program, results)
        _conclude(progress, config, results, stopped)
        publisher.publish(results, stages, subject.program)
        return results


def _improve_all(
    tools: StageContext,
    subject: OptimizationTarget,
    progress: OptimizationProgress,
    stages: list[StageResult],
) -> list[str]:
    """Improve one part after the other, each from the best so far; the program becomes what won.

    Args:
        tools: what to work with.
        subject: what is improved; its program is changed.
        progress: is told.
        stages: gets a result for each part that was come to, also if a limit of the run ends this early.

    Returns:
        the limits that ended it early, if any.
    """
    stopped: list[str] = []
    with dspy.context(lm=tools.task_lm), stop_at_limits(stopped):
        _check_models(tools.models)
        for target in tools.config.rounds * tools.config.target.stages:
            cases = subject.cases(target)
            progress.say(
                f"{tools.config.optimizer.value} on {target.value}: {len(cases.train)} examples to learn "
                f"from, {len(cases.val)} to choose on; {tools.calls.used:,} calls so far"
            )
            make_student = partial(subject.student, target, tools.score)
            stages.append(optimize_stage(tools, target, cases, make_student, progress.report_attempt))
            apply_prompts(stages[-1].choice.winner.prompts, subject.program)
            if stages[-1].stopped is not None:
                break
    return stopped + [stage.stopped for stage in stages if stage.stopped is not None]


def _make_stage_context(
    config: OptimizeConfig, calls: ReplyCache, make: ModelFactory, score: AnswerMetric | None
) -> StageContext:
    task_lm = with_reply_cache(make(config.model, config.task_temperature), calls)
    judge_lm = with_reply_cache(make(config.judge, 0.0), calls) if config.judge is not None else None
    prompt_lm = task_lm
    if config.proposes_instructions:
        prompt_lm = with_reply_cache(make(config.proposer, PROMPT_TEMPERATURE), calls)
    models = [lm for lm in dict.fromkeys((task_lm, prompt_lm, judge_lm)) if lm is not None]
    return StageContext(
        config=config,
        calls=calls,
        score=score
        or build_answer_metric(config.grading.answer_metric, Rubric(config.grading.rubric), judge_lm),
        models=models,
        task_lm=task_lm,
        prompt_lm=prompt_lm,
        probe=lambda: _check_models([lm.uncached for lm in models]),
        log=config.output_dir / OPTIMIZER_LOG,
    )


def _check_models(lms: Sequence[dspy.LM]) -> None:
    """Make one small call to each model, so that one that does not answer ends the run at once."""
    for lm in lms:
        try:
            check_model(lm)
        except ModelError:
            check_model(lm)  # a provider that garbles a reply in a hundred is good enough to begin


def _check_priced(config: OptimizeConfig) -> None:
    """Refuse a limit in dollars where nobody knows the prices."""
    models = {config.model, config.proposer if config.proposes_instructions else config.model, config.judge}
    named = sorted(model for model in models if model is not None)
    unpriced = [model for model in named if list_price(model, api_base=config.api_base) is None]
    if config.max_cost is not None and unpriced:
        raise ConfigError(
            f"max_cost={config.max_cost!r} cannot be kept: as called here, {', '.join(unpriced)} has no "
            "known price; leave --max-cost out and give --max-calls, or choose a model with a list price"
        )


def _announce(progress: OptimizationProgress, config: OptimizeConfig, subject: OptimizationTarget) -> None:
    """Say what the run works on, what it will take, and where it stops."""
    progress.say(subject.summary)
    for line in format_estimates(subject.estimates()):
        progress.say(line)
    limits = [
        f"--max-calls {config.max_calls:,}" if config.max_calls is not None else "",
        f"--max-cost {config.max_cost:g}" if config.max_cost is not None else "",
    ]
    if any(limits):
        progress.say(
            f"it stops at {' or '.join(limit for limit in limits if limit)}, with the best so far saved"
        )


def _conclude(
    progress: OptimizationProgress, config: OptimizeConfig, results: Json, stopped: Sequence[str]
) -> None:
    """Say what won, with its signature, and where it is."""
    for reason in dict.fromkeys(stopped):
        progress.say(
            f"stopped early: {reason}; the best so far counts, and the same command with more goes on"
        )
    for stage in results["stages"]:
        progress.say(_stage_summary(stage))
        if "false_accept" in stage["baseline"]:
            progress.say(_judge_error_summary(stage))
        progress.say(str(stage["winner"]["signature"]))
    if not results["stages"]:
        progress.say("nothing was compared: what is saved is the program that the run began with")
    if results["lost_sessions"]:
        progress.say(f"{results['lost_sessions']} sessions are remembered in part only: calls failed")
    progress.say(f"saved: {config.output_file}; all that was tried: {config.output_dir / RESULTS}")


def _stage_summary(stage: Json) -> str:
    baseline, comparison = stage["baseline"]["score"], stage["comparison"]
    if baseline is None or comparison is None:
        few = len(stage["candidates"]) == 1 and stage["stopped"] is None
        why = f"nothing was proposed ({OPTIMIZER_LOG} says why)" if few else "nothing was compared"
        return f"{stage['target']}: {why}, so the baseline stays"
    low, high = comparison["low"], comparison["high"]
    group = Target(stage["target"]).group
    interval = f"no interval: one {group}" if low is None else f"95 % interval {low:+.3f}..{high:+.3f}"
    by = f"{comparison['difference']:+.3f} ({interval}, p {comparison['p_value']:.2f}, n {comparison['n']})"
    if stage["winner"]["is_baseline"]:
        return (
            f"{stage['target']}: nothing beats the baseline, {format_score(baseline['value'])} on validation; the "
            f"best candidate has {by}; the baseline stays"
        )
    won = stage["winner"]["score"]["value"]
    return f"{stage['target']}: {format_score(baseline['value'])} -> {format_score(won)} on validation, {by}"


def _judge_error_summary(stage: Json) -> str:
    """Say how often the judge erred on validation before and after."""
    rates = [
        f"{words} {format_score(stage['baseline'][name]['value'])} -> {format_score(stage['winner'][name]['value'])}"
        for name, words in (("false_accept", "false accepts"), ("false_reject", "false rejects"))
    ]
    return f"{stage['target']}: {', '.join(rates)}, means over the kinds of answers"


def _make_model_maker(config: OptimizeConfig) -> ModelFactory:
    """Make the models of a config, under one limit of calls in flight for all that are called over HTTP."""
    limiter = AdaptiveLimiter(config.concurrency)

    @cache
    def embedded(name: str) -> dspy.LM:
        return language_model(name)  # once: a second one would be a second network in memory

    def make_model(name: str, temperature: float) -> dspy.LM:
        if is_local(name):
            return embedded(name).copy(temperature=temperature)
        return language_model(name, api_base=config.api_base, temperature=temperature, limiter=limiter)

    return make_model
