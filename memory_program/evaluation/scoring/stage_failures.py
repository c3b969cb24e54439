"""The failures of a stage and the first reason: some are a warning, a stage with no result is an error."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from memory_program.bank.outcomes import CallFailure, Outcome
from memory_program.evaluation.item_records import AnswerRecord, BuildRecord, JudgeRecord


@dataclass(frozen=True, slots=True)
class StageFailures:
    """The items of a stage, how many of them gave no result, and the failed calls of all of them."""

    items: int
    lost: int
    failures: tuple[CallFailure, ...]

    @property
    def first(self) -> str:
        """The first failed call and its reason; empty without any."""
        return next(map(str, self.failures), "")

    @property
    def is_all_lost(self) -> bool:
        """True if there were items and none gave a result."""
        return 0 < self.items == self.lost


def build_failures(records: Iterable[BuildRecord | None]) -> StageFailures:
    """Collect the failed calls of sessions; one is lost if calls failed and nothing was written."""
    sessions = [record.record for record in records if record is not None]
    lost = sum(bool(session.failures) and not session.operations for session in sessions)
    return StageFailures(len(sessions), lost, tuple(f for session in sessions for f in session.failures))


def answer_failures(records: Iterable[AnswerRecord | None]) -> StageFailures:
    """Collect the failed answers."""
    answers = [record.answer for record in records if record is not None]
    return _all_or_nothing(len(answers), [answer.failure for answer in answers if answer.failure is not None])


def judge_failures(records: Iterable[JudgeRecord | None]) -> StageFailures:
    """Collect the judgements without a verdict."""
    judged = [record for record in records if record is not None]
    failed = [
        CallFailure(
            "judge", Outcome.UNPARSED if record.outcome is Outcome.OK else record.outcome, record.message
        )
        for record in judged
        if record.outcome is not Outcome.OK or not record.is_decided
    ]
    return _all_or_nothing(len(judged), failed)


def _all_or_nothing(items: int, failures: Sequence[CallFailure]) -> StageFailures:
    return StageFailures(items, len(failures), tuple(failures))
