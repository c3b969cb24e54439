"""One stage of an optimisation, which improves one part of the program: baseline, search, finals, choice."""

import contextlib
import io
import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import dspy

from memory_program.configs.optimize_config import OptimizeConfig, Target
from memory_program.core.errors import OptimizationError, RunFailedError
from memory_program.core.json_files import Json
from memory_program.core.parallel import run_parallel
from memory_program.models.usage import track_usage
from memory_program.optimization.call_journal import ReplyCache, RunStopped, StopReason
from memory_program.optimization.candidate_evaluator import CandidateEvaluator, PromptCandidate
from memory_program.optimization.candidate_selection import (
    CandidateChoice,
    choose_candidate,
    choose_finalists,
)
from memory_program.optimization.dev_examples import CaseSplits, OptimizationCase
from memory_program.optimization.failure_count import RESUME_HINT
from memory_program.optimization.optimizers import OptimizerInputs, num_finalists, propose_programs
from memory_program.optimization.prompt_text import apply_prompts, read_prompts
from memory_program.optimization.reply_cache import CachedLM
from memory_program.optimization.students import Student
from memory_program.rl.rewards import AnswerMetric

_SCORED = "attempts has a score"


@dataclass(frozen=True, slots=True)
class StageContext:
    """The settings, models and calls that all stages of a run share."""

    config: OptimizeConfig
    calls: ReplyCache
    score: AnswerMetric
    """The score of an answer, where candidates are compared by answers."""
    models: Sequence[CachedLM]
    task_lm: CachedLM
    """The model whose prompts are improved, one of ``models``."""
    writer_lm: dspy.LM
    """The model that writes memories, one of ``models`` if it is one."""
    prompt_lm: CachedLM
    """The model that writes instructions, one of ``models``."""
    probe: Callable[[], None]
    """Calls every model, without the reply cache, and raises ``ModelError`` if one does not answer."""
    log: Path
    """The file for the output of the optimiser."""


@dataclass(frozen=True, slots=True)
class StageResult:
    """All candidates of a stage, the winner, and the limit that ended it early, if any."""

    target: Target
    evaluator: CandidateEvaluator
    choice: CandidateChoice
    stopped: str | None
    fixed_settings: Json
    """What the stage did not change and its scores depend on, as in their signatures."""


def optimize_stage(
    context: StageContext,
    target: Target,
    cases: CaseSplits,
    make_student: Callable[[CandidateEvaluator], Student],
    on_attempt: Callable[[CandidateEvaluator, PromptCandidate, bool], None],
    fixed_settings: Json,
) -> StageResult:
    """Search for better prompts of one part of a program, which is not changed.

    Args:
        context: the settings, models and calls of the run.
        target: the part.
        cases: the cases to propose from and to choose on.
        make_student: makes the current part into a student, which can be tried on the cases.
        on_attempt: see ``CandidateEvaluator``.
        fixed_settings: see ``StageResult``.

    Raises:
        RunFailedError: the model no longer answers.
        OptimizationError: the optimiser, the program or the metric failed.
    """
    evaluator = CandidateEvaluator(
        train=cases.train,
        val=cases.val,
        calls=context.calls,
        probe=context.probe,
        on_attempt=on_attempt,
        test_groups=cases.test_groups,
    )
    student = make_student(evaluator)
    evaluator.register(read_prompts(student))
    stopped: list[str] = []
    with stop_at_limits(stopped):
        with evaluator.tally.require_success(_SCORED), track_usage() as meter:
            _validate(context, evaluator, student)
        proposed = list[str]()
        # known replies, which are not counted, too: a candidate's are not known
        finals = num_finalists(context.config) * len(meter.calls)
        with (
            stop_at_limits(stopped),
            context.calls.reserve_calls(finals),
            context.prompt_lm.tally.require_success("calls for instructions was answered"),
            evaluator.tally.require_success(_SCORED),
        ):
            proposed = _search(context, evaluator, student)
        with evaluator.require_live_models():
            for candidate in choose_finalists(evaluator, proposed, num_finalists(context.config)):
                finalist = student.deepcopy()  # with the prompts as they would be saved and loaded
                apply_prompts(candidate.prompts, finalist)
                _validate(context, evaluator, finalist)
    choice = choose_candidate(evaluator, context.config.seed)
    return StageResult(target, evaluator, choice, stopped[-1] if stopped else None, fixed_settings)


def _search(context: StageContext, evaluator: CandidateEvaluator, student: Student) -> list[str]:
    """Run the optimiser and register its proposals; return their fingerprints in its order."""
    optimizer = context.config.optimizer.value
    try:
        with _redirect_output(context.log):
            programs = propose_programs(
                OptimizerInputs(context.config, student, evaluator, context.prompt_lm)
            )
    except KeyboardInterrupt:
        context.calls.stop(StopReason.INTERRUPTED, "interrupted")
        raise
    except Exception as error:  # an optimiser may raise anything, and the message must name the cause
        if context.calls.stopped is not None:
            raise context.calls.stopped from error
        raise OptimizationError(
            f"{optimizer} failed with {type(error).__name__}: {error}; its output is in "
            f"{str(context.log)!r}; {RESUME_HINT}, with the same replies; if it fails again, choose another "
            "--seed or --prompt-model"
        ) from error
    return [evaluator.register(read_prompts(program)).name for program in programs]


def _validate(context: StageContext, evaluator: CandidateEvaluator, student: Student) -> None:
    """Try a student on the validation cases that it was not tried on yet."""

    def attempt(case: OptimizationCase) -> None:
        example = case.example
        evaluator.metric(example, student(**example.inputs()))

    candidate = evaluator.register(read_prompts(student))
    tasks = [partial(attempt, case) for case in evaluator.val if case.case_id not in candidate.val]
    run_parallel(tasks, context.config.concurrency, on_error=context.calls.stop_on)


@contextlib.contextmanager
def stop_at_limits(stopped: list[str]) -> Generator[None]:
    """Leave the block when a limit of the run is reached, and append the reason to ``stopped``.

    Raises:
        RunFailedError: the model no longer answers.
        OptimizationError: the program or the metric failed, or a reply could not be stored.
    """
    try:
        yield
    except RunStopped as stop:
        if stop.reason is StopReason.NO_SCORES:
            raise RunFailedError(f"attempt after attempt has no score: {stop.message}") from stop
        if stop.reason is StopReason.DISK_ERROR:
            raise OptimizationError(
                f"a reply could not be stored: {stop.message}; make room on the disk; {RESUME_HINT}"
            ) from stop
        if stop.reason is not StopReason.LIMIT:
            raise OptimizationError(f"the program or the metric failed with {stop.message}") from stop
        stopped.append(stop.message)


class _ProgressBarFilter(io.TextIOBase):
    """Writes text to a file without the progress bars, each of which is thousands of lines."""

    def __init__(self, file: io.FileIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        if not text.startswith("\r"):
            self._file.write(text.encode())
        return len(text)


@contextlib.contextmanager
def _redirect_output(log: Path) -> Generator[None]:
    """Redirect the output and the log lines of optimisers to a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    # Without a buffer: DSPy logs in its handler of SIGINT, and a buffer refuses a write within a write.
    with log.open("ab", buffering=0) as lines:
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
