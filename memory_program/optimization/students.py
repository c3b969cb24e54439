"""Students: the parts of the program as modules that take a case and try it, for optimisers to improve.

Optimisers show the source of these classes to the model that writes instructions: it is a part of a prompt.
"""

from typing import Any

import dspy

from locomo.judge.judge import Judges
from memory_program.agents.predict_call import FailedReply
from memory_program.agents.reader import QAReader
from memory_program.agents.writer import MemoryWriter
from memory_program.bank.outcomes import SessionRecord
from memory_program.models.rate_limit import ending_hopeless_runs
from memory_program.optimization.candidate_evaluator import CandidateEvaluator
from memory_program.optimization.candidate_metric import Attempt, JudgeAttempt, MemoryAttempt
from memory_program.optimization.dev_examples import JudgeCase, MemoryCase
from memory_program.optimization.prompt_text import read_prompts
from memory_program.rl.rewards import AnswerMetric


class AttemptPrediction(dspy.Prediction):
    """The outputs of an attempt for the optimiser, with the attempt in an attribute that it does not read."""

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

    def __init__(self, evaluator: CandidateEvaluator) -> None:
        """Make a student that is tried on the cases of an evaluator."""
        super().__init__()
        self.evaluator = evaluator

    def _register_prompts(self) -> str:
        """Register the current prompts, and return their fingerprint."""
        return self.evaluator.register(read_prompts(self)).name

    def _memory_case(self, case_id: str) -> MemoryCase:
        case = self.evaluator.cases[case_id]
        assert isinstance(case, MemoryCase), "readers and writers are tried on memories"
        return case


class ReaderStudent(Student):
    """Answer a question about a conversation from the memories that were written of it."""

    def __init__(self, evaluator: CandidateEvaluator, reader: QAReader, score: AnswerMetric) -> None:
        """Let a reader be improved, by what its answers are worth."""
        super().__init__(evaluator)
        self.reader = reader
        self._score = score

    def forward(self, case_id: str, question: str) -> dspy.Prediction:
        """Answer the question of a case."""
        with self.evaluator.stop_run_on_error():
            case = self._memory_case(case_id)
            answer = self.reader.ask(case.memories, question)
            attempt = MemoryAttempt(case, self._register_prompts(), (answer,), case.memories, self._score)
            return AttemptPrediction(attempt, answer=answer.text)


class WriterStudent(Student):
    """Remember a session of a conversation; then questions about it are answered from what is remembered."""

    def __init__(
        self,
        evaluator: CandidateEvaluator,
        writer: MemoryWriter,
        reader: QAReader,
        score: AnswerMetric,
        *,
        shows_failed_replies: bool = False,
    ) -> None:
        """Let a writer be improved, by the answers of a reader that stays as it is.

        With ``shows_failed_replies`` its trace has them, too: for an optimiser that reflects on them, and not
        for one that takes demonstrations from a trace of a high score, which may have a failed reply.
        """
        super().__init__(evaluator)
        self._shows_failed_replies = shows_failed_replies
        self.writer = writer
        self._answers_from = reader.ask  # the method: a module would be taken for one to be improved
        self._score = score

    def forward(self, case_id: str) -> dspy.Prediction:
        """Remember the session of a case after what was remembered before it, and answer its questions."""
        with self.evaluator.stop_run_on_error():
            case = self._memory_case(case_id)
            assert case.session is not None, "a writer is tried on sessions"
            memories = case.memories.fork()
            record: SessionRecord = self.writer(space=memories, session=case.session).record
            memories.ingest(case.session, record)
            if dspy.settings.trace is not None and not self._shows_failed_replies:
                shown = [step for step in dspy.settings.trace if not isinstance(step[2], FailedReply)]
                dspy.settings.trace[:] = shown
            with dspy.context(trace=None):  # demos and reflection are about what is improved
                answers = tuple(self._answers_from(memories, q.dated_text) for q in case.questions)
            attempt = MemoryAttempt(case, self._register_prompts(), answers, memories, self._score, record)
            return AttemptPrediction(attempt, answers=[answer.text for answer in answers])

    def named_parameters(self) -> list[tuple[str, Any]]:  # Any: DSPy's parameters
        """Leave the rare consolidation out: few cases, if any, would show what a prompt for it is worth."""
        found: list[tuple[str, Any]] = super().named_parameters()
        return [(name, parameter) for name, parameter in found if name != "writer.consolidate"]


class JudgeStudent(Student):
    """Judge an answer whose verdict is known."""

    def __init__(self, evaluator: CandidateEvaluator, judges: Judges) -> None:
        """Let the judges of a rubric be improved."""
        super().__init__(evaluator)
        self.judges = judges

    def forward(self, case_id: str, question: str, gold_answer: str, given_answer: str) -> dspy.Prediction:
        """Judge the answer of a case; the case knows what else is shown, for optimisers to see."""
        with self.evaluator.stop_run_on_error():
            case = self.evaluator.cases[case_id]
            assert isinstance(case, JudgeCase), "judges are tried on answers whose verdict is known"
            prompts = self._register_prompts()
            try:
                with ending_hopeless_runs("judge"):
                    judgement = self.judges.grade(case.answer.question, case.answer.text)
                attempt = JudgeAttempt(case, prompts, judgement.verdict, judgement.reasoning)
            except dspy.LMError as error:
                message = f"judge: {' '.join(str(error).split())[:300]}"
                attempt = JudgeAttempt(case, prompts, None, message)
            verdict = "" if attempt.verdict is None else attempt.verdict.value.upper()
            return AttemptPrediction(attempt, reasoning=attempt.said, verdict=verdict)

    def named_parameters(self) -> list[tuple[str, Any]]:  # Any: DSPy's parameters
        """Name the prompts as the judges do."""
        return self.judges.named_parameters()
