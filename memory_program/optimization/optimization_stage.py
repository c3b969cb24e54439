"""One part of the program improved once: baseline, search, finals, choice."""

import contextlib
import io
import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

from memory_program.configs.optimize_config import OptimizeConfig, Target
from memory_program.core.errors import ModelError, OptimizationError
from memory_program.optimization.call_journal import ReplyCache, RunStopped, StopReason
from memory_program.optimization.candidate_evaluator import CandidateEvaluator, PromptCandidate
from memory_program.optimization.candidate_selection import (
    MAX_FINALISTS,
    CandidateChoice,
    choose_candidate,
    choose_finalists,
)
from memory_program.optimization.crew import run_parallel_or_stop
from memory_program.optimization.dev_examples import CaseSplits, OptimizationCase
from memory_program.optimization.failure_count import RESUME_HINT
from memory_program.optimization.optimizers import OptimizerInputs, propose_programs
from memory_program.optimization.prompt_text import apply_prompts, fingerprint_prompts, read_prompts
from memory_program.optimization.reply_cache import CachedLM
from memory_program.optimization.students import Student
from memory_program.rl.rewards import AnswerMetric

_SCORED = "attempts has a score"


@dataclass(frozen=True, slots=True)
class StageContext:
    """What every stage of a run works with."""

    config: OptimizeConfig
    calls: ReplyCache
    score: AnswerMetric
    """What an answer is worth, where that is what candidates are compared by."""
    models: Sequence[CachedLM]
    task_lm: CachedLM
    """The model whose prompts are improved, one of ``models``."""
    prompt_lm: CachedLM
    """The model that writes instructions, one of ``models``."""
    probe: Callable[[], None]
    """Asks every model anew, and raises ``ModelError`` if one does not answer."""
    log: Path
    """The file for what the optimiser prints."""


@dataclass(frozen=True, slots=True)
class StageResult:
    """All that was tried in a stage, what won, and why it ended early, if it did."""

    target: Target
    bench: CandidateEvaluator
    choice: CandidateChoice
    stopped: str | None


def optimize_stage(
    tools: StageContext,
    target: Target,
    cases: CaseSplits,
    make_student: Callable[[CandidateEvaluator], Student],
    on_attempt: Callable[[CandidateEvaluator, PromptCandidate, bool], None],
) -> StageResult:
    """Look for better prompts of one part of a program, which is not changed.

    Args:
        tools: what to work with.
        target: the part.
        cases: what to propose from and what to choose on.
        make_student: makes the part as it is now into what can be tried on them.
        on_attempt: see ``CandidateEvaluator``.

    Raises:
        ModelError: the model no longer answers.
        OptimizationError: the optimiser, the program or the metric failed.
    """
    bench = CandidateEvaluator(
        train=cases.train,
        val=cases.val,
        calls=tools.calls,
        probe=tools.probe,
        on_attempt=on_attempt,
        test_groups=cases.test_groups,
    )
    student = make_student(bench)
    prompts = read_prompts(student)
    bench.register(fingerprint_prompts(prompts), prompts)
    stopped: list[str] = []
    with stop_at_limits(stopped):
        used = tools.calls.used
        with bench.tally.require_success(_SCORED):
            _validate(tools, bench, student)
        proposed = list[str]()
        finals = MAX_FINALISTS * (tools.calls.used - used)
        with (
            stop_at_limits(stopped),
            tools.calls.reserve_calls(finals),
            bench.tally.require_success(_SCORED),
            tools.prompt_lm.tally.require_success("calls for instructions was answered"),
        ):
            proposed = _search(tools, bench, student)
        for candidate in choose_finalists(bench, proposed):
            _validate(tools, bench, _with_prompts(student, candidate))
    return StageResult(
        target, bench, choose_candidate(bench, tools.config.seed), stopped[-1] if stopped else None
    )


def _search(tools: StageContext, bench: CandidateEvaluator, student: Student) -> list[str]:
    """Run the optimiser, and introduce what it proposes; fingerprints, the best first."""
    try:
        with _redirect_output(tools.log):
            programs = propose_programs(OptimizerInputs(tools.config, student, bench, tools.prompt_lm))
    except KeyboardInterrupt:
        tools.calls.stop(StopReason.INTERRUPTED, "interrupted")
        raise
    except Exception as error:  # whatever an optimiser raises, its cause must be seen
        if tools.calls.stopped is not None:
            raise tools.calls.stopped from error
        raise OptimizationError(
            f"{tools.config.optimizer.value} failed with {type(error).__name__}: {error}; what it printed is "
            f"in {str(tools.log)!r}; {RESUME_HINT}, and gets the same replies: where one could not be used, take "
            "another --seed or --prompt-model"
        ) from error
    proposed: list[str] = []
    for prompts in map(read_prompts, programs):
        proposed.append(fingerprint_prompts(prompts))
        bench.register(proposed[-1], prompts)
    return proposed


def _with_prompts(student: Student, candidate: PromptCandidate) -> Student:
    """Copy a student with the prompts of a candidate, as they would be saved and loaded."""
    copy = student.deepcopy()
    apply_prompts(candidate.prompts, copy)
    return copy


def _validate(tools: StageContext, bench: CandidateEvaluator, student: Student) -> None:
    """Try a student on the validation cases that it was not tried on."""
    candidate = bench.register(fingerprint_prompts(read_prompts(student)), read_prompts(student))
    missing = [case for case in bench.val if case.case_id not in candidate.val]
    tasks = [partial(_try, bench, student, case) for case in missing]
    run_parallel_or_stop(tasks, threads=tools.config.concurrency, calls=tools.calls)


def _try(bench: CandidateEvaluator, student: Student, case: OptimizationCase) -> None:
    example = case.example
    bench.metric(example, student(**example.inputs()))


@contextlib.contextmanager
def stop_at_limits(stopped: list[str]) -> Generator[None]:
    """Leave the block early, and note why, when a limit of the run is reached.

    Raises:
        ModelError: the model no longer answers.
        OptimizationError: the program or the metric failed.
    """
    try:
        yield
    except RunStopped as stop:
        if stop.reason is StopReason.NO_SCORES:
            raise ModelError(f"attempt after attempt has no score: {stop.message}") from stop
        if stop.reason is not StopReason.LIMIT:
            raise OptimizationError(f"the program or the metric failed with {stop.message}") from stop
        stopped.append(stop.message)


class _ProgressBarFilter(io.TextIOBase):
    """Writes what optimisers print, without progress bars, each of which is thousands of lines."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        if not text.startswith("\r"):
            self._file.write(text)
        return len(text)


@contextlib.contextmanager
def _redirect_output(log: Path) -> Generator[None]:
    """Let what optimisers print go to a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8", buffering=1) as lines:
        file = _ProgressBarFilter(lines)
        handler = logging.StreamHandler(file)
        loggers: Sequence[logging.Logger] = [logging.getLogger(name) for name in ("dspy", "optuna", "gepa")]
        before = [(logger.handlers, logger.propagate) for logger in loggers]
        for logger in loggers:
            logger.handlers, logger.propagate = [handler], False
        try:
            with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
                yield
        finally:
            for logger, (handlers, propagate) in zip(loggers, before, strict=True):
                logger.handlers, logger.propagate = handlers, propagate
