"""What an attempt is worth, and what went wrong in it, in words."""

from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

from locomo.judge.rubrics import Verdict
from locomo.types import Conversation, Question
from memory_program.bank.outcomes import Answer, Outcome, SessionRecord
from memory_program.bank.space import MemorySpace
from memory_program.evaluation.item_records import AnswerRecord
from memory_program.evaluation.scoring.error_types import collect_retained_turns, diagnose
from memory_program.evaluation.scoring.question_scores import ScoredQuestion, score_question
from memory_program.models.usage import Usage
from memory_program.optimization.dev_examples import JudgeCase, MemoryCase, OptimizationCase
from memory_program.rl.rewards import AnswerMetric


class Attempt(Protocol):
    """What a candidate made of a case."""

    @property
    def case(self) -> OptimizationCase:
        """The case."""
        ...

    @property
    def prompts(self) -> str:
        """The fingerprint of the candidate's prompts."""
        ...

    @property
    def lost_calls(self) -> list[str]:
        """Calls that never reached the model, or came back with an error; not the candidate's doing."""
        ...

    @property
    def is_unparsed(self) -> bool:
        """Whether a reply was cut or could not be read, which is what the prompt led to, and worth 0."""
        ...

    def value(self) -> float | None:
        """Give what it is worth, from 0 to 1; None where a call was lost or nobody can say."""
        ...

    def feedback(self) -> str:
        """Say what was wanted, what came, and what went wrong."""
        ...


@dataclass(frozen=True, slots=True)
class MemoryAttempt:
    """One answer per question of a case, from ``memories``, and what an answer is worth.

    ``record`` is that of the session, where one was remembered.
    """

    case: MemoryCase
    prompts: str
    answers: tuple[Answer, ...]
    memories: MemorySpace
    score: AnswerMetric
    record: SessionRecord | None = None

    @property
    def lost_calls(self) -> list[str]:
        """Calls of reader and writer that failed."""
        answers = [a.message for a in self.answers if a.outcome is Outcome.ERROR]
        failures = self.record.failures if self.record is not None else ()
        return [*answers, *(f"{f.where}: {f.message}" for f in failures if f.outcome is Outcome.ERROR)]

    @property
    def is_unparsed(self) -> bool:
        """Whether an answer is none, for what the reader replied."""
        return any(answer.outcome not in (Outcome.OK, Outcome.ERROR) for answer in self.answers)

    def value(self) -> float | None:
        """Give the mean score of the answers that have one; a reply that could not be used has 0."""
        if self.lost_calls:
            return None
        pairs = zip(self.case.questions, self.answers, strict=True)
        scores = [self.score(q, answer) if answer.outcome is Outcome.OK else 0.0 for q, answer in pairs]
        present = [value for value in scores if value is not None]
        return fmean(present) if present else None

    def feedback(self) -> str:
        """Say of each question what was wanted, what came, and at which step it was lost."""
        pairs = zip(self.case.questions, self.answers, strict=True)
        parts = [self._question_feedback(question, answer) for question, answer in pairs]
        if self.record is not None:
            parts += [f"A tool refused a call: {error}" for error in self.record.tool_errors]
            parts += [f"{f.where} gave nothing usable: {f.message}" for f in self.record.failures]
        return "\n\n".join(parts)

    def _question_feedback(self, question: Question, answer: Answer) -> str:
        wanted = (
            str(question.answer) if question.is_answerable else "an abstention: the conversation does not say"
        )
        lines = [f"Asked: {question.text}", f"Wanted: {wanted}", f"Answered: {answer.text or '(nothing)'}"]
        if answer.outcome is not Outcome.OK:
            return "\n".join([*lines, f"The reply could not be used: {answer.message}"])
        value = self.score(question, answer)
        lines.append("This could not be scored." if value is None else f"Score: {value:.2f} of 1.")
        found = diagnose(
            _score_answer(question, answer),
            self.case.conversation,
            collect_retained_turns(self.memories.bank, self._verbatim_turns()),
        )
        if found is not None:
            lines.append(f"What went wrong: {found.error_type.value}.")
        lost = found.lost_turns if found is not None else ()
        lines += [f"Lost was this: {line}" for line in _turn_lines(self.case.conversation, lost)]
        return "\n".join(lines)

    def _verbatim_turns(self) -> list[str]:
        """List the turns that the reader was shown word for word, if any."""
        turns = self.case.conversation.turns
        return [item for answer in self.answers for item in answer.shown if item in turns]


def _score_answer(question: Question, answer: Answer) -> ScoredQuestion:
    record = AnswerRecord("", question.question_id, answer, Usage(), 0.0)
    return score_question(question, record, {})


def _turn_lines(conversation: Conversation, turn_ids: tuple[str, ...]) -> list[str]:
    return [conversation.turns[turn_id].line for turn_id in turn_ids]


@dataclass(frozen=True, slots=True)
class JudgeAttempt:
    """The verdict that a judge gave on an answer, and what it ``said``; if its call failed, None, and why."""

    case: JudgeCase
    prompts: str
    verdict: Verdict | None
    said: str

    @property
    def lost_calls(self) -> list[str]:
        """The judge's call, if it failed."""
        return [self.said] if self.verdict is None else []

    @property
    def is_unparsed(self) -> bool:
        """Whether the reply was no verdict."""
        return self.verdict is Verdict.UNPARSED

    def value(self) -> float | None:
        """Give 1 for the known verdict, 0 for the other or none, nothing where the call failed."""
        return None if self.verdict is None else float(self.verdict is self.case.known)

    def feedback(self) -> str:
        """Say how the answer was made, and which verdict was known and given."""
        known = self.case.known.value.upper()
        lines = [
            f"The given answer is known to be {known}; it was made as this kind: {self.case.answer.kind}."
        ]
        if self.is_unparsed:
            lines.append("The reply could not be read: the verdict must be one word, CORRECT or WRONG.")
        elif self.verdict is not None:
            right = "right" if self.verdict is self.case.known else f"wrong: it had to be {known}"
            lines.append(f"The verdict given, {self.verdict.value.upper()}, is {right}.")
        return "\n".join(lines)
