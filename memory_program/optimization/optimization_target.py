"""What a run improves: the memory program on conversations, or a judge on known answers."""

from contextlib import ExitStack
from typing import Protocol

import dspy

from memory_program.configs.optimize_config import Target
from memory_program.core.json_files import Json
from memory_program.evaluation.stages.cost_estimate import StageEstimate
from memory_program.optimization.call_journal import ReplyCache
from memory_program.optimization.candidate_evaluator import CandidateEvaluator, PromptCandidate
from memory_program.optimization.dev_examples import CaseSplits
from memory_program.optimization.students import Student
from memory_program.rl.rewards import AnswerMetric


class OptimizationTarget(Protocol):
    """What a run improves."""

    @property
    def program(self) -> dspy.Module:
        """What the run begins with; becomes what won."""
        ...

    @property
    def summary(self) -> str:
        """What there is to learn from, to choose on, and left untouched, in words."""
        ...

    @property
    def dataset(self) -> Json:
        """The same for the record: ``name``, ``sha256``, ``is_modified``, and the groups by split."""
        ...

    @property
    def lost_sessions(self) -> int:
        """Sessions in whose remembering a call failed."""
        ...

    def begin(self, calls: ReplyCache, stack: ExitStack) -> None:
        """Open what it works with in the folder of the run, until the stack is closed."""
        ...

    def estimates(self) -> list[StageEstimate]:
        """Estimate the calls of the run."""
        ...

    def cases(self, target: Target) -> CaseSplits:
        """Make the cases of a part of the program as it is now.

        Raises:
            ConfigError: there are none in one of the splits.
            ModelError: no session could be remembered.
            RunStopped: a limit of the run is reached.
            StoreError: the database fails.
        """
        ...

    def student(self, target: Target, score: AnswerMetric, bench: CandidateEvaluator) -> Student:
        """Make a part of the program, as it is now, into what can be tried.

        Args:
            target: the part.
            score: what an answer is worth.
            bench: holds the cases.
        """
        ...

    def signature(self, target: Target, candidate: PromptCandidate, n: int) -> str:
        """Write what a score on ``n`` validation cases depends on, as one line to quote with it."""
        ...

    def errors(self, bench: CandidateEvaluator, candidate: PromptCandidate) -> Json:
        """Say more of a candidate that was tried on all validation cases than its score, by name."""
        ...
