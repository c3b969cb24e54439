"""Attempts of candidates on cases: their scores, and feedback in words for optimisers that reflect.

The feedback is part of the prompts that optimisers send; another wording is another request.
"""

from dataclasses import dataclass
from statistics import fmean

from locomo.judge.rubrics import Verdict
from memory_program.bank.outcomes import Answer, Outcome, SessionRecord
from memory_program.bank.space import MemorySpace
from memory_program.evaluation.item_records import AnswerRecord
from memory_program.evaluation.scoring.error_types import collect_retained_turns, diagnose
from memory_program.evaluation.scoring.question_scores import score_question
from memory_program.models.usage import Usage
from memory_program.optimization.dev_examples import JudgeCase, MemoryCase, is_scorable
from memory_program.rl.rewards import AnswerMetric


@dataclass(frozen=True, slots=True)
class MemoryAttempt:
    """An attempt of a reader or writer: one answer per question of the case, from ``memories``.

    ``prompts`` is the fingerprint of the candidate's prompts. ``record`` is that of the session, where a
    writer stored one.
    """

    case: MemoryCase
    prompts: str
    answers: tuple[Answer, ...]
    memories: MemorySpace
    score: AnswerMetric
    record: SessionRecord | None = None

    @property
    def lost_calls(self) -> list[str]:
        """Calls of reader and writer that failed for another reason than the prompt."""
        answers = [a.message for a in self.answers if a.outcome is Outcome.ERROR]
        failures = self.record.failures if self.record is not None else ()
        return [*answers, *(f"{f.where}: {f.message}" for f in failures if f.outcome is Outcome.ERROR)]

    @property
    def is_unparsed(self) -> bool:
        """True if a reply of the reader was cut or could not be read, for which the prompt is to blame."""
        return any(answer.outcome not in (Outcome.OK, Outcome.ERROR) for answer in self.answers)

    def value(self) -> float | None:
        """Return the mean score of the answers to questions that can be scored, from 0 to 1.

        None if a call was lost or one of the answers has no score: candidates are compared on the same
        questions. A reply that could not be used scores 0.
        """
        if self.lost_calls:
            return None
        pairs = zip(self.case.questions, self.answers, strict=True)
        scores = [
            self.score(question, answer) if answer.outcome is Outcome.OK else 0.0
            for question, answer in pairs
            if is_scorable(question)
        ]
        present = [value for value in scores if value is not None]
        return fmean(present) if present and len(present) == len(scores) else None

    def feedback(self) -> str:
        """Say of each question which answer was wanted, which came, and at which step it was lost."""
        turns, parts = self.case.conversation.turns, list[str]()
        verbatim = [item for answer in self.answers for item in answer.shown if item in turns]
        for question, answer in zip(self.case.questions, self.answers, strict=True):
            abstention = "an abstention: the conversation does not say"
            wanted = str(question.answer) if question.is_answerable else abstention
            lines = [
                f"Asked: {question.text}",
                f"Wanted: {wanted}",
                f"Answered: {answer.text or '(nothing)'}",
            ]
            if answer.outcome is not Outcome.OK:
                parts.append("\n".join([*lines, f"The reply could not be used: {answer.message}"]))
                continue
            value = self.score(question, answer)
            lines.append("This could not be scored." if value is None else f"Score: {value:.2f} of 1.")
            record = AnswerRecord("", question.question_id, answer, Usage(), 0.0)
            found = diagnose(
                score_question(question, record, {}),
                self.case.conversation,
                collect_retained_turns(self.memories.bank, verbatim),
            )
            if found is not None:
                lines.append(f"What went wrong: {found.error_type.value}.")
                lines += [f"Lost was this: {turns[turn_id].line}" for turn_id in found.lost_turns]
            parts.append("\n".join(lines))
        if self.record is not None:
            parts += [f"A tool refused a call: {error}" for error in self.record.tool_errors]
            parts += [f"{f.where} gave nothing usable: {f.message}" for f in self.record.failures]
        return "\n\n".join(parts)


@dataclass(frozen=True, slots=True)
class JudgeAttempt:
    """An attempt of a judge: its verdict on an answer, and its reasoning, ``said``.

    If its call failed, the verdict is None and ``said`` is the error. ``prompts`` is the fingerprint of the
    candidate's prompts.
    """

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
        """True if the reply was no verdict."""
        return self.verdict is Verdict.UNPARSED

    def value(self) -> float | None:
        """Return 1 for the known verdict, 0 for another or an unreadable one, None if the call failed."""
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


Attempt = MemoryAttempt | JudgeAttempt
"""A candidate's attempt on a case."""
