"""Where candidates are tried: every attempt of every optimiser is scored, counted and remembered here."""

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean
from types import TracebackType

import dspy

from memory_program.models.usage import UsageMeter, track_usage
from memory_program.optimization.call_journal import ReplyCache, StopReason
from memory_program.optimization.candidate_metric import Attempt
from memory_program.optimization.dev_examples import OptimizationCase
from memory_program.optimization.failure_count import SuccessCounter
from memory_program.optimization.prompt_text import Prompt

MAX_CONSECUTIVE_FAILURES = 20
"""Attempts without a score, one after the other, after which the model is asked whether it is still there."""

MIN_TRAIN_ATTEMPTS = 8
"""A candidate that was tried on fewer training examples than this (or than there are) has no training score
to go by."""


@dataclass(frozen=True, slots=True)
class BestScores:
    """The best scores on train and on validation after so many calls of the run."""

    calls: int
    train: float | None
    val: float | None


@dataclass(slots=True)
class PromptCandidate:
    """Prompts that were tried, and what they were worth.

    ``number`` counts them as they come, the baseline being 0; that depends on which thread was faster, so
    nothing else may depend on it. ``name`` is the fingerprint of the prompts.
    """

    number: int
    name: str
    prompts: Mapping[str, Prompt]
    train: list[float] = field(default_factory=list[float])
    val: dict[str, float | None] = field(default_factory=dict[str, float | None])
    unparsed_cases: set[str] = field(default_factory=set[str])
    """The validation cases to which a reply could not be read."""
    calls: int | None = None
    """How many calls the run had used when the candidate had been tried on all validation cases."""

    @property
    def train_score(self) -> float | None:
        """The mean over the training attempts so far."""
        return fmean(self.train) if self.train else None

    @property
    def val_score(self) -> float | None:
        """The mean over the validation cases that have a score."""
        scores = [value for value in self.val.values() if value is not None]
        return fmean(scores) if scores else None

    @property
    def length(self) -> int:
        """How many characters its instructions and demos have."""
        return sum(
            len(prompt.instructions)
            + sum(len(str(value)) for demo in prompt.demos for value in demo.values())
            for prompt in self.prompts.values()
        )


class CandidateEvaluator:
    """Holds the cases; gives metrics to optimisers; ends the run when nothing works.

    Copies of students share it. A metric or a program that raises ends the run, since optimisers would take
    it for a bad prompt; so does a model that no longer answers.
    """

    def __init__(
        self,
        *,
        train: Sequence[OptimizationCase],
        val: Sequence[OptimizationCase],
        calls: ReplyCache,
        probe: Callable[[], None],
        on_attempt: Callable[["CandidateEvaluator", PromptCandidate, bool], None],
        test_groups: Sequence[str] = (),
    ) -> None:
        """Set the bench up.

        Args:
            train: what candidates are proposed from.
            val: what they are chosen on; shares no group with ``train``.
            calls: the calls of the run.
            probe: makes a call, and raises ``ModelError`` if it fails.
            on_attempt: told of each attempt's candidate, and whether that was the last validation case of it.
            untouchable: the groups of the test split.
        """
        of_train, of_val = ({case.group for case in cases} for cases in (train, val))
        assert not of_train & of_val, "what proposes does not select"
        assert not (of_train | of_val) & set(test_groups), "the test split is never touched"
        self.cases = {case.case_id: case for case in (*train, *val)}
        self.train, self.val = list(train), list(val)
        self.tally = SuccessCounter()
        """Attempts with and without a score."""
        self.curve: list[BestScores] = []
        """An entry for every time that a best score rose."""
        self._val_ids = {case.case_id for case in val}
        self._candidates: dict[str, PromptCandidate] = {}
        self._calls, self._probe, self._on_attempt = calls, probe, on_attempt
        self._failed_in_a_row = 0
        self._lock = threading.RLock()

    def __deepcopy__(self, memo: object) -> "CandidateEvaluator":
        return self

    def register(self, name: str, prompts: Mapping[str, Prompt]) -> PromptCandidate:
        """Get to know prompts by their fingerprint; the first ones are the baseline's."""
        with self._lock:
            if name not in self._candidates:
                self._candidates[name] = PromptCandidate(len(self._candidates), name, prompts)
            return self._candidates[name]

    @property
    def candidates(self) -> list[PromptCandidate]:
        """All that are known so far, by their numbers; the baseline is the first."""
        with self._lock:
            return list(self._candidates.values())

    @property
    def baseline(self) -> PromptCandidate:
        """The prompts that all others are compared with."""
        return self.candidates[0]

    def named(self, name: str) -> PromptCandidate:
        """Find a candidate by the fingerprint of its prompts."""
        return self._candidates[name]

    def metric(self, example: dspy.Example, prediction: dspy.Prediction, trace: object = None) -> float:
        """Score an attempt; what has no score is counted, and worth 0 to an optimiser."""
        with self.stop_run_on_error(), track_usage() as meter:
            attempt: Attempt = prediction.attempt
            value = attempt.value()
        self._record_attempt(attempt, value, _failure_reason(attempt, meter) if value is None else "")
        return 0.0 if value is None else value

    def metric_with_feedback(
        self,
        gold: dspy.Example,
        pred: dspy.Prediction,
        trace: object = None,
        pred_name: str | None = None,
        pred_trace: object = None,
    ) -> float | dspy.Prediction:
        """Score an attempt as ``metric`` does; for a single predictor, say what went wrong too."""
        if pred_name is None:
            return self.metric(gold, pred)
        with self.stop_run_on_error():
            attempt: Attempt = pred.attempt
            value = attempt.value()
            return dspy.Prediction(score=value or 0.0, feedback=attempt.feedback())

    @contextmanager
    def stop_run_on_error(self) -> Generator[None]:
        """End the run on whatever is raised inside: it is a bug of the program or of the metric."""
        with _StopRunOnError(self._calls):
            yield

    def _record_attempt(self, attempt: Attempt, value: float | None, cause: str) -> None:
        with self._lock:
            candidate = self._candidates[attempt.prompts]
            was_complete = self.is_fully_validated(candidate)
            if attempt.case.case_id in self._val_ids:
                candidate.val[attempt.case.case_id] = value
                note = (
                    candidate.unparsed_cases.add if attempt.is_unparsed else candidate.unparsed_cases.discard
                )
                note(attempt.case.case_id)
            elif value is not None:
                candidate.train.append(value)
            self._count(value, cause)
            is_complete = self.is_fully_validated(candidate) and not was_complete
            if is_complete:
                candidate.calls = self._calls.used
            self._update_curve(candidate, is_complete)
            self._on_attempt(self, candidate, is_complete)

    def _update_curve(self, candidate: PromptCandidate, is_complete: bool) -> None:
        best = self.best
        train, val = best.train, best.val
        if self.has_reliable_train_score(candidate) and candidate.train_score is not None:
            train = max(train or 0.0, candidate.train_score)
        if is_complete and candidate.val_score is not None:
            val = max(val or 0.0, candidate.val_score)
        if (train, val) != (best.train, best.val):
            self.curve.append(BestScores(self._calls.used, train, val))

    @property
    def best(self) -> BestScores:
        """The best scores so far."""
        return self.curve[-1] if self.curve else BestScores(0, None, None)

    def has_reliable_train_score(self, candidate: PromptCandidate) -> bool:
        """Whether a candidate was tried on train often enough for its score to say something."""
        return len(candidate.train) >= min(MIN_TRAIN_ATTEMPTS, len(self.train))

    def is_fully_validated(self, candidate: PromptCandidate) -> bool:
        """Whether a candidate was tried on all validation cases."""
        return len(candidate.val) == len(self._val_ids)

    def _count(self, value: float | None, cause: str) -> None:
        self._failed_in_a_row = self._failed_in_a_row + 1 if value is None else 0
        self.tally.note(cause if value is None else None)
        if self._failed_in_a_row >= MAX_CONSECUTIVE_FAILURES:
            with _StopRunOnError(self._calls, StopReason.NO_SCORES):
                self._probe()  # a prompt that is too long fails too, and is no reason to end
            self._failed_in_a_row = 0


def _failure_reason(attempt: Attempt, scoring: UsageMeter) -> str:
    """Say why an attempt has no score: its own calls failed, or those of its judge, or the judge rambled."""
    errors = [call.error for call in scoring.calls if call.error]
    return "; ".join(attempt.lost_calls or errors) or "the judge gave no verdict that could be read"


class _StopRunOnError:
    """Turns an exception of its block into the end of the run."""

    def __init__(self, calls: ReplyCache, reason: StopReason = StopReason.PROGRAM_ERROR) -> None:
        self._calls, self._reason = calls, reason

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            raise self._calls.stop(self._reason, f"{type(error).__name__}: {error}") from error
