"""The parts of the program as an optimiser sees them: modules that take a case, and try it."""

from typing import Any

import dspy

from memory_program.agents.reader import QAReader
from memory_program.agents.writer import MemoryWriter
from memory_program.bank.outcome import Answer, SessionRecord
from memory_program.bank.space import MemorySpace
from memory_program.optimization.bench import Bench
from memory_program.optimization.prompts import fingerprint, prompts_of
from memory_program.optimization.scoring import Attempt


class AttemptPrediction(dspy.Prediction):
    """What an optimiser is shown of an attempt, and, where it does not look, the attempt itself."""

    def __init__(self, attempt: Attempt, **shown: object) -> None:
        """Wrap an attempt."""
        super().__init__(**shown)
        self._attempt = attempt

    @property
    def attempt(self) -> Attempt:
        """The attempt."""
        return self._attempt


class Student(dspy.Module):
    """A part of the program that is tried on cases. Its predictors have the names that they have there."""

    def __init__(self, bench: Bench) -> None:
        """Make a student of what the bench holds."""
        super().__init__()
        self.bench = bench

    def _tried(
        self, case_id: str, memories: MemorySpace, answers: list[Answer], record: SessionRecord | None = None
    ) -> Attempt:
        prompts = prompts_of(self)
        name = fingerprint(prompts)
        self.bench.introduce(name, prompts)
        return Attempt(self.bench.cases[case_id], name, tuple(answers), memories, record)


class ReaderStudent(Student):
    """Answer a question about a conversation from the memories that were written of it."""

    def __init__(self, bench: Bench, reader: QAReader) -> None:
        """Let a reader be improved."""
        super().__init__(bench)
        self.reader = reader

    def forward(self, case_id: str, question: str) -> dspy.Prediction:
        """Answer the question of a case."""
        with self.bench.watching():
            memories = self.bench.cases[case_id].memories
            answer = self.reader.ask(memories, question)
            return AttemptPrediction(self._tried(case_id, memories, [answer]), answer=answer.text)


class WriterStudent(Student):
    """Remember a session of a conversation; then questions about it are answered from what is remembered."""

    def __init__(self, bench: Bench, writer: MemoryWriter, reader: QAReader) -> None:
        """Let a writer be improved, by the answers of a reader that stays as it is."""
        super().__init__(bench)
        self.writer = writer
        self._answers_from = reader.ask  # the method: a module would be taken for one to be improved

    def forward(self, case_id: str) -> dspy.Prediction:
        """Remember the session of a case after what was remembered before it, and answer its questions."""
        with self.bench.watching():
            case = self.bench.cases[case_id]
            assert case.session is not None, "a writer is tried on sessions"
            memories = case.memories.fork()
            record: SessionRecord = self.writer(space=memories, session=case.session).record
            memories.ingest(case.session, record)
            answers = [self._answer(memories, question.posed) for question in case.questions]
            attempt = self._tried(case_id, memories, answers, record)
            return AttemptPrediction(attempt, answers=[answer.text for answer in answers])

    def _answer(self, memories: MemorySpace, question: str) -> Answer:
        with dspy.context(trace=None):  # demos and reflection are about what is improved
            return self._answers_from(memories, question)

    def named_parameters(self) -> list[tuple[str, Any]]:  # Any: DSPy's parameters
        """Leave the rare consolidation out: few cases, if any, would show what a prompt for it is worth."""
        found: list[tuple[str, Any]] = super().named_parameters()
        return [(name, parameter) for name, parameter in found if name != "writer.consolidate"]
