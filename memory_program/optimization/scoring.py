"""What an attempt is worth, and what went wrong in it, in words."""

from dataclasses import dataclass
from statistics import fmean

from locomo.conversation import Conversation, Question
from memory_program.bank.outcome import Answer, Outcome, SessionRecord
from memory_program.bank.space import MemorySpace
from memory_program.evaluation.diagnosis import diagnose, kept_of
from memory_program.evaluation.records import AnswerRecord
from memory_program.evaluation.scoring import ScoredQuestion, score_question
from memory_program.learning.rewards import AnswerScore
from memory_program.ledger import Usage
from memory_program.optimization.cases import Case


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a candidate made of a case: one answer per question, from ``memories``.

    ``record`` is that of the session, where one was remembered.
    """

    case: Case
    prompts: str
    answers: tuple[Answer, ...]
    memories: MemorySpace
    record: SessionRecord | None = None

    @property
    def lost_calls(self) -> list[str]:
        """Calls that never reached the model, or came back with an error; not the candidate's doing."""
        answers = [a.message for a in self.answers if a.outcome is Outcome.ERROR]
        failures = self.record.failures if self.record is not None else ()
        return [*answers, *(f"{f.where}: {f.message}" for f in failures if f.outcome is Outcome.ERROR)]


def attempt_score(attempt: Attempt, score: AnswerScore) -> float | None:
    """Give the mean score of an attempt's answers.

    A reply that was cut or could not be read is worth 0: it is what the prompt led to. An attempt with a call
    that failed has no score; neither has one whose answers have none.
    """
    if attempt.lost_calls:
        return None
    pairs = zip(attempt.case.questions, attempt.answers, strict=True)
    scores = [score(q, answer) if answer.outcome is Outcome.OK else 0.0 for q, answer in pairs]
    present = [value for value in scores if value is not None]
    return fmean(present) if present else None


def feedback(attempt: Attempt, score: AnswerScore) -> str:
    """Say of each question what was wanted, what came, and at which step it was lost."""
    parts = [
        _question_feedback(attempt, question, answer, score)
        for question, answer in zip(attempt.case.questions, attempt.answers, strict=True)
    ]
    if attempt.record is not None:
        parts += [f"A tool refused a call: {error}" for error in attempt.record.tool_errors]
        parts += [f"{f.where} gave nothing usable: {f.message}" for f in attempt.record.failures]
    return "\n\n".join(parts)


def _question_feedback(attempt: Attempt, question: Question, answer: Answer, score: AnswerScore) -> str:
    wanted = (
        str(question.answer) if question.is_answerable else "an abstention: the conversation does not say"
    )
    lines = [f"Asked: {question.text}", f"Wanted: {wanted}", f"Answered: {answer.text or '(nothing)'}"]
    if answer.outcome is not Outcome.OK:
        return "\n".join([*lines, f"The reply could not be used: {answer.message}"])
    value = score(question, answer)
    lines.append("This could not be scored." if value is None else f"Score: {value:.2f} of 1.")
    found = diagnose(
        _scored(question, answer),
        attempt.case.conversation,
        kept_of(attempt.memories.bank, _verbatim(attempt)),
    )
    if found is not None:
        lines.append(f"What went wrong: {found.fault.value}.")
    lost = found.lost if found is not None else ()
    lines += [f"Lost was this: {line}" for line in _lines(attempt.case.conversation, lost)]
    return "\n".join(lines)


def _scored(question: Question, answer: Answer) -> ScoredQuestion:
    record = AnswerRecord("", question.question_id, answer, Usage(), 0.0)
    return score_question(question, record, {})


def _verbatim(attempt: Attempt) -> list[str]:
    """List the turns that the reader was shown word for word, if any."""
    turns = attempt.case.conversation.turns
    return [item for answer in attempt.answers for item in answer.shown if item in turns]


def _lines(conversation: Conversation, turn_ids: tuple[str, ...]) -> list[str]:
    return [conversation.turns[turn_id].line for turn_id in turn_ids]
