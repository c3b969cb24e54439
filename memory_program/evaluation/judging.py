"""The judge stage: every answer to a headline question, by each rubric, all side by side."""

import time
from dataclasses import dataclass
from functools import partial

import dspy
from dspy.utils.exceptions import LMError

from locomo.conversation import Question
from locomo.judge import Judge, Rubric, Verdict
from memory_program.bank.outcome import Outcome
from memory_program.evaluation.recorded import RecordedSystem
from memory_program.evaluation.records import Journal, JudgeRecord
from memory_program.evaluation.workers import Workers
from memory_program.ledger import metered


@dataclass(frozen=True, slots=True)
class Case:
    """One answer to be judged by one rubric."""

    key: str
    rubric: Rubric
    question: Question
    prediction: str


def cases_of(recorded: RecordedSystem) -> list[Case]:
    """List what there is to judge: an answer that failed, or to LoCoMo's category 5, has no verdict."""
    judge = recorded.run.judge
    return [
        Case(judge.key(rubric, question, record.answer.text), Rubric(rubric), question, record.answer.text)
        for question, record in recorded.answers()
        if judge is not None and question.is_headline
        if record is not None and record.answer.outcome is Outcome.OK
        for rubric in judge.rubrics
    ]


class JudgeStage:
    """Judges the answers of one system, each once by each rubric."""

    def __init__(self, recorded: RecordedSystem, *, retry_errors: bool) -> None:
        """Prepare; with ``retry_errors``, a verdict that a failure left out counts as missing."""
        self._recorded = recorded
        self._retry_errors = retry_errors

    def missing(self) -> list[Case]:
        """List the cases without a verdict."""
        records = self._recorded.journals.judgements.records
        return [case for case in cases_of(self._recorded) if self._is_missing(records.get(case.key))]

    def judge(self, lm: dspy.LM | None, workers: Workers) -> None:
        """Judge what has no verdict yet; ``lm`` may be None when nothing has.

        Raises:
            BudgetExceededError: a limit of the run is passed; what was judged is kept.
        """
        missing = self.missing()
        judges = {rubric: Judge(rubric, lm) for rubric in Rubric}
        journal = self._recorded.journals.judgements
        workers.run(
            f"{self._recorded.run.system.name}: judge",
            [partial(_judge, case, judges[case.rubric], journal, workers) for case in missing],
            to_do=len(missing),
            total=len(cases_of(self._recorded)),
        )

    def _is_missing(self, record: JudgeRecord | None) -> bool:
        if record is None:
            return True
        return self._retry_errors and record.verdict not in (Verdict.CORRECT, Verdict.WRONG)


def _judge(case: Case, judge: Judge, journal: Journal[JudgeRecord], workers: Workers) -> None:
    began = time.perf_counter()
    verdict, outcome, message = None, Outcome.OK, ""
    question = case.question
    with metered() as meter:
        try:
            judgement = judge.grade(question.text, str(question.answer), case.prediction)
            verdict, message = judgement.verdict, judgement.reasoning
        except LMError as error:
            outcome, message = Outcome.ERROR, " ".join(str(error).split())[:300]
    if verdict is Verdict.UNPARSED:
        outcome = Outcome.UNPARSED
    elapsed_s = time.perf_counter() - began
    journal.add(
        JudgeRecord(
            case.key, question.question_id, case.rubric, verdict, outcome, message, meter.usage, elapsed_s
        )
    )
    is_lost = outcome is not Outcome.OK
    workers.finished(meter.usage, [f"judge: {message}"] if is_lost else [], is_lost=is_lost)
