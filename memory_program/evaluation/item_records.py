"""What the stages record: one line of JSON per session, question or judgement, found again by its content.

A key is a hash of everything that the result depends on. A rerun looks its items up by key and does only
what is missing, so a run that was killed goes on where it was, and a changed setting starts anew.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from locomo.judge.rubrics import Rubric, Verdict
from memory_program.bank.outcomes import Answer, Outcome, SessionRecord
from memory_program.core.journal import Journal
from memory_program.models.usage import Usage


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """What became of one session. ``bank`` is a hash of all that the bank holds after it."""

    key: str
    conversation_id: str
    session_id: str
    bank: str
    record: SessionRecord
    usage: Usage
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """A system's answer to one question, and what it took."""

    key: str
    question_id: str
    answer: Answer
    usage: Usage
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class JudgeRecord:
    """A verdict by one rubric; None when the call failed, and then ``outcome`` and ``message`` say how."""

    key: str
    question_id: str
    rubric: Rubric
    verdict: Verdict | None
    outcome: Outcome
    message: str
    usage: Usage
    elapsed_s: float


Record = BuildRecord | AnswerRecord | JudgeRecord
"""What any stage records."""


@dataclass(frozen=True, slots=True)
class Journals:
    """The three journals of one system."""

    builds: Journal[BuildRecord]
    answers: Journal[AnswerRecord]
    judgements: Journal[JudgeRecord]

    @classmethod
    def read(cls, folder: Path) -> "Journals":
        """Read what a system's folder holds; it may not exist yet.

        Raises:
            RecordError: a file is damaged elsewhere than in an incomplete last line.
        """
        return cls(
            Journal(folder / "build.jsonl", BuildRecord),
            Journal(folder / "answers.jsonl", AnswerRecord),
            Journal(folder / "judgements.jsonl", JudgeRecord),
        )

    def __iter__(self) -> Iterator[Journal[BuildRecord] | Journal[AnswerRecord] | Journal[JudgeRecord]]:
        """Go through the three, in the order of the stages."""
        return iter((self.builds, self.answers, self.judgements))

    def close(self) -> None:
        """Write everything to the disk."""
        for journal in self:
            journal.close()
