"""Evaluation of candidate prompts: every attempt of every optimiser is scored, counted and stored here."""

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean

import dspy

from memory_program.models.usage import track_usage
from memory_program.optimization.call_journal import ReplyCache, StopReason
from memory_program.optimization.candidate_metric import Attempt
from memory_program.optimization.dev_examples import OptimizationCase
from memory_program.optimization.failure_count import SuccessCounter
from memory_program.optimization.prompt_text import Prompts, fingerprint_prompts

MAX_CONSECUTIVE_FAILURES = 20
"""After this many attempts in a row without a score, the models are asked whether they still answer."""

MIN_TRAIN_ATTEMPTS = 8
"""A reliable training score needs this many attempts, or one on every training example."""


@dataclass(frozen=True, slots=True)
class BestScores:
    """The best scores on train and on validation after this number of calls of the run."""

    calls: int
    train: float | None
    val: float | None


@dataclass(slots=True)
class PromptCandidate:
    """Prompts and their scores.

    ``number`` counts candidates in the order in which they came, the baseline is 0. The order depends on the
    timing of threads, so nothing else may depend on it. ``name`` is the fingerprint of the prompts.
    """

    number: int
    name: str
    prompts: Prompts
    train: list[float] = field(default_factory=list[float])
    val: dict[str, float | None] = field(default_factory=dict[str, float | None])
    unparsed_cases: set[str] = field(default_factory=set[str])
    """The validation cases on which a reply could not be read."""
    calls: int | None = None
    """Number of calls of the run when the candidate had been tried on all validation cases."""

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
        """Number of characters of the instructions and demos."""
        return sum(
            len(prompt.instructions)
            + sum(len(str(value)) for demo in prompt.demos for value in demo.values())
            for prompt in self.prompts.values()
        )


class CandidateEvaluator:
    """Holds the cases, is the metric of the optimisers, and ends a run in which nothing works.

    Copies of students share it. A metric or a program that raises ends the run, since an optimiser would take
    the error for a bad prompt; so does a model that no longer answers.
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
        """Take the cases; there are no candidates yet.

        Args:
            train: the cases that candidates are proposed from.
            val: the cases that candidates are chosen on; shares no group with ``train``.
            calls: the calls of the run.
            probe: makes a call, and raises ``ModelError`` if it fails.
            on_attempt: called after each attempt with its candidate, and with True after the candidate's last
                validation case.
            test_groups: the groups of the test split.
        """
        train_groups, val_groups = ({case.group for case in cases} for cases in (train, val))
        assert not train_groups & val_groups, "train and val share no group"
        assert not (train_groups | val_groups) & set(test_groups), "the test split is never used"
        self.cases = {case.case_id: case for case in (*train, *val)}
        self.train, self.val = list(train), list(val)
        self.tally = SuccessCounter()
        """Attempts with and without a score."""
        self.curve: list[BestScores] = []
        """An entry each time that a best score changed; that on train may fall with more attempts."""
        self._val_ids = {case.case_id for case in val}
        self._candidates: dict[str, PromptCandidate] = {}
        self._calls, self._probe, self._on_attempt = calls, probe, on_attempt
        self._failed_in_a_row = 0
        self._lock = threading.RLock()

    def __deepcopy__(self, memo: object) -> "CandidateEvaluator":
        return self

    def register(self, prompts: Prompts) -> PromptCandidate:
        """Return the candidate with these prompts, a new one if they are new; the first is the baseline."""
        name = fingerprint_prompts(prompts)
        with self._lock:
            if name not in self._candidates:
                self._candidates[name] = PromptCandidate(len(self._candidates), name, prompts)
            return self._candidates[name]

    @property
    def candidates(self) -> list[PromptCandidate]:
        """All candidates so far, by number; the baseline is the first."""
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
        """Score an attempt and record it; without a score it counts as failed, and as 0 to an optimiser."""
        with self.stop_run_on_error(), track_usage() as meter:
            attempt: Attempt = prediction.attempt
            value = attempt.value()
        reason = None
        if value is None:  # its own calls failed, or those of the judge, or the judge's reply is no verdict
            errors = [call.error for call in meter.calls if call.error]
            reason = "; ".join(attempt.lost_calls or errors) or "the judge gave no readable verdict"
        case_id = attempt.case.case_id
        with self._lock:
            candidate = self._candidates[attempt.prompts]
            was_complete = self.is_fully_validated(candidate)
            if case_id in self._val_ids:
                candidate.val[case_id] = value
                unparsed = candidate.unparsed_cases
                (unparsed.add if attempt.is_unparsed else unparsed.discard)(case_id)
            elif value is not None:
                candidate.train.append(value)
            self.tally.note(reason)
            self._failed_in_a_row = self._failed_in_a_row + 1 if value is None else 0
            if self._failed_in_a_row >= MAX_CONSECUTIVE_FAILURES:
                self._probe_models()  # a prompt that is too long fails too, and is no reason to end
                self._failed_in_a_row = 0
            is_complete = self.is_fully_validated(candidate) and not was_complete
            if is_complete:
                candidate.calls = self._calls.used
            # each candidate's mean so far, which may fall: the highest that was ever reached would be luck
            reliable = [c.train_score for c in self.candidates if self.has_reliable_train_score(c)]
            train = max((score for score in reliable if score is not None), default=None)
            val = self.best.val
            if is_complete and candidate.val_score is not None:
                val = max(val or 0.0, candidate.val_score)
            if (train, val) != (self.best.train, self.best.val):
                self.curve.append(BestScores(self._calls.used, train, val))
            self._on_attempt(self, candidate, is_complete)
        return 0.0 if value is None else value

    def metric_with_feedback(
        self,
        gold: dspy.Example,
        pred: dspy.Prediction,
        trace: object = None,
        pred_name: str | None = None,
        pred_trace: object = None,
    ) -> float | dspy.Prediction:
        """Score an attempt as ``metric`` does; for a single predictor, return the feedback on it too."""
        if pred_name is None:
            return self.metric(gold, pred)
        with self.stop_run_on_error():
            attempt: Attempt = pred.attempt
            value = attempt.value()
            return dspy.Prediction(score=value or 0.0, feedback=attempt.feedback())

    @contextmanager
    def stop_run_on_error(self, reason: StopReason = StopReason.PROGRAM_ERROR) -> Generator[None]:
        """End the run on an exception in the block: it is a bug of the program or of the metric."""
        try:
            yield
        except Exception as error:
            raise self._calls.stop(reason, f"{type(error).__name__}: {error}") from error

    @contextmanager
    def require_live_models(self) -> Generator[None]:
        """After a block in which attempts failed and none succeeded, end the run if a model does not answer.

        A prompt that is too long for a model fails too, and is no reason to end.
        """
        succeeded, failed = self.tally.succeeded, self.tally.failed
        yield
        if self.tally.succeeded == succeeded and self.tally.failed > failed:
            self._probe_models()

    def _probe_models(self) -> None:
        with self.stop_run_on_error(StopReason.NO_SCORES):
            self._probe()

    @property
    def best(self) -> BestScores:
        """The best scores so far."""
        return self.curve[-1] if self.curve else BestScores(0, None, None)

    def has_reliable_train_score(self, candidate: PromptCandidate) -> bool:
        """Tell if a candidate was tried on enough training examples."""
        return len(candidate.train) >= min(MIN_TRAIN_ATTEMPTS, len(self.train))

    def is_fully_validated(self, candidate: PromptCandidate) -> bool:
        """Tell if a candidate was tried on all validation cases."""
        return len(candidate.val) == len(self._val_ids)
