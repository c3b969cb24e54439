"""The records of the stages: one line of JSON for each session, question or judgement, looked up by key.

A key is a hash of everything that the result depends on. A rerun looks its items up by key and does only
the missing ones. So a killed run continues where it stopped, and a changed setting starts afresh.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from locomo.judge.rubrics import RubricName, Verdict
from memory_program.bank.outcomes import Answer, Outcome, SessionRecord
from memory_program.core.journal import Journal
from memory_program.models.usage import Usage


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """The outcome of one session; ``bank`` is a hash of the whole bank after it."""

    key: str
    conversation_id: str
    session_id: str
    bank: str
    record: SessionRecord
    usage: Usage
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """The answer of a system to one question, and its usage."""

    key: str
    question_id: str
    answer: Answer
    usage: Usage
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class JudgeRecord:
    """A verdict by one rubric; None if the call failed, as ``outcome`` and ``message`` describe.

    Of one nugget of an answer there is a ``value`` instead (see ``NuggetGrading``), None without one, and of
    an event the ``lines`` of the answer that describe it.
    """

    key: str
    question_id: str
    rubric: RubricName
    verdict: Verdict | None
    outcome: Outcome
    message: str
    usage: Usage
    elapsed_s: float
    value: float | None = None
    lines: tuple[int, ...] = ()

    @property
    def is_decided(self) -> bool:
        """True if there is a verdict, or a value."""
        return self.value is not None or self.verdict in (Verdict.CORRECT, Verdict.WRONG)


Record = BuildRecord | AnswerRecord | JudgeRecord
"""The record of any stage."""


@dataclass(frozen=True, slots=True)
class Journals:
    """The three journals of one system."""

    builds: Journal[BuildRecord]
    answers: Journal[AnswerRecord]
    judgements: Journal[JudgeRecord]

    @classmethod
    def read(cls, folder: Path) -> "Journals":
        """Read the journals in the folder of a system; it may not exist yet.

        Raises:
            RecordError: a file is damaged elsewhere than in an incomplete last line.
        """
        return cls(
            Journal(folder / "build.jsonl", BuildRecord),
            Journal(folder / "answers.jsonl", AnswerRecord),
            Journal(folder / "judgements.jsonl", JudgeRecord),
        )

    def __iter__(self) -> Iterator[Journal[BuildRecord] | Journal[AnswerRecord] | Journal[JudgeRecord]]:
        """Iterate over the three, in the order of the stages."""
        return iter((self.builds, self.answers, self.judgements))

    def close(self) -> None:
        """Write everything to the disk."""
        for journal in self:
            journal.close()
