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
from memory_program.optimization.call_journal import PaidCalls, RunStopped, StopReason
from memory_program.optimization.candidate_evaluator import Bench, Candidate
from memory_program.optimization.candidate_selection import FINALISTS, Choice, choose, finalists
from memory_program.optimization.crew import side_by_side
from memory_program.optimization.dev_examples import Case, Cases
from memory_program.optimization.failure_count import KEPT
from memory_program.optimization.optimizers import Search, propose
from memory_program.optimization.prompt_text import fingerprint, prompts_of, put
from memory_program.optimization.reply_cache import RememberedLM
from memory_program.optimization.students import Student
from memory_program.rl.rewards import AnswerScore

_SCORED = "attempts has a score"


@dataclass(frozen=True, slots=True)
class Tools:
    """What every stage of a run works with."""

    config: OptimizeConfig
    calls: PaidCalls
    score: AnswerScore
    """What an answer is worth, where that is what candidates are compared by."""
    models: Sequence[RememberedLM]
    task_lm: RememberedLM
    """The model whose prompts are improved, one of ``models``."""
    prompt_lm: RememberedLM
    """The model that writes instructions, one of ``models``."""
    probe: Callable[[], None]
    """Asks every model anew, and raises ``ModelError`` if one does not answer."""
    log: Path
    """The file for what the optimiser prints."""


@dataclass(frozen=True, slots=True)
class StageResult:
    """All that was tried in a stage, what won, and why it ended early, if it did."""

    target: Target
    bench: Bench
    choice: Choice
    stopped: str | None


def improve(
    tools: Tools,
    target: Target,
    cases: Cases,
    make_student: Callable[[Bench], Student],
    on_attempt: Callable[[Bench, Candidate, bool], None],
) -> StageResult:
    """Look for better prompts of one part of a program, which is not changed.

    Args:
        tools: what to work with.
        target: the part.
        cases: what to propose from and what to choose on.
        make_student: makes the part as it is now into what can be tried on them.
        on_attempt: see ``Bench``.

    Raises:
        ModelError: the model no longer answers.
        OptimizationError: the optimiser, the program or the metric failed.
    """
    bench = Bench(
        train=cases.train,
        val=cases.val,
        calls=tools.calls,
        probe=tools.probe,
        on_attempt=on_attempt,
        untouchable=cases.untouchable,
    )
    student = make_student(bench)
    prompts = prompts_of(student)
    bench.introduce(fingerprint(prompts), prompts)
    stopped: list[str] = []
    with limits(stopped):
        used = tools.calls.used
        with bench.tally.not_in_vain(_SCORED):
            _validate(tools, bench, student)
        proposed = list[str]()
        finals = FINALISTS * (tools.calls.used - used)
        with (
            limits(stopped),
            tools.calls.reserving(finals),
            bench.tally.not_in_vain(_SCORED),
            tools.prompt_lm.tally.not_in_vain("calls for instructions was answered"),
        ):
            proposed = _search(tools, bench, student)
        for candidate in finalists(bench, proposed):
            _validate(tools, bench, _with_prompts(student, candidate))
    return StageResult(target, bench, choose(bench, tools.config.seed), stopped[-1] if stopped else None)


def _search(tools: Tools, bench: Bench, student: Student) -> list[str]:
    """Run the optimiser, and introduce what it proposes; fingerprints, the best first."""
    try:
        with _quiet(tools.log):
            programs = propose(Search(tools.config, student, bench, tools.prompt_lm))
    except KeyboardInterrupt:
        tools.calls.stop(StopReason.INTERRUPTED, "interrupted")
        raise
    except Exception as error:  # whatever an optimiser raises, its cause must be seen
        if tools.calls.stopped is not None:
            raise tools.calls.stopped from error
        raise OptimizationError(
            f"{tools.config.optimizer.value} failed with {type(error).__name__}: {error}; what it printed is "
            f"in {str(tools.log)!r}; {KEPT}, and gets the same replies: where one could not be used, take "
            "another --seed or --prompt-model"
        ) from error
    proposed: list[str] = []
    for prompts in map(prompts_of, programs):
        proposed.append(fingerprint(prompts))
        bench.introduce(proposed[-1], prompts)
    return proposed


def _with_prompts(student: Student, candidate: Candidate) -> Student:
    """Copy a student with the prompts of a candidate, as they would be saved and loaded."""
    copy = student.deepcopy()
    put(candidate.prompts, copy)
    return copy


def _validate(tools: Tools, bench: Bench, student: Student) -> None:
    """Try a student on the validation cases that it was not tried on."""
    candidate = bench.introduce(fingerprint(prompts_of(student)), prompts_of(student))
    missing = [case for case in bench.val if case.case_id not in candidate.val]
    tasks = [partial(_try, bench, student, case) for case in missing]
    side_by_side(tasks, threads=tools.config.num_threads, calls=tools.calls)


def _try(bench: Bench, student: Student, case: Case) -> None:
    example = case.example
    bench.metric(example, student(**example.inputs()))


@contextlib.contextmanager
def limits(stopped: list[str]) -> Generator[None]:
    """Leave the block early, and note why, when a limit of the run is reached.

    Raises:
        ModelError: the model no longer answers.
        OptimizationError: the program or the metric failed.
    """
    try:
        yield
    except RunStopped as stop:
        if stop.reason is StopReason.HOPELESS:
            raise ModelError(f"attempt after attempt has no score: {stop.message}") from stop
        if stop.reason is not StopReason.LIMIT:
            raise OptimizationError(f"the program or the metric failed with {stop.message}") from stop
        stopped.append(stop.message)


class _WithoutBars(io.TextIOBase):
    """Writes what optimisers print, without progress bars, each of which is thousands of lines."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        if not text.startswith("\r"):
            self._file.write(text)
        return len(text)


@contextlib.contextmanager
def _quiet(log: Path) -> Generator[None]:
    """Let what optimisers print go to a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8", buffering=1) as lines:
        file = _WithoutBars(lines)
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
