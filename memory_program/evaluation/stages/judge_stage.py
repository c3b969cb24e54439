"""The judge stage: each answer to a headline question is judged by each rubric, all in parallel."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from dspy.utils.exceptions import LMError

from locomo.judge.judge import Judges
from locomo.judge.nuggets import NuggetJudge
from locomo.judge.rubrics import RubricName, Verdict
from locomo.types import Question
from memory_program.bank.outcomes import CallFailure, Outcome
from memory_program.core.errors import one_line
from memory_program.core.journal import Journal
from memory_program.evaluation.item_records import JudgeRecord
from memory_program.evaluation.scoring.system_records import SystemRecords
from memory_program.evaluation.stages.workers import Workers
from memory_program.models.rate_limit import ending_hopeless_runs
from memory_program.models.usage import track_usage


@dataclass(frozen=True, slots=True)
class AnswerToJudge:
    """One answer to be judged by one rubric; of rubrics of nuggets, one nugget of it."""

    key: str
    rubric: RubricName
    question: Question
    prediction: str
    nugget: int | None = None


def list_answers_to_judge(recorded: SystemRecords) -> list[AnswerToJudge]:
    """List the answers to judge: not those that failed, and not those to LoCoMo's category 5."""
    judge = recorded.run.judge
    return [
        AnswerToJudge(
            judge.key(rubric, question, record.answer.text, nugget),
            rubric,
            question,
            record.answer.text,
            nugget,
        )
        for question, record in recorded.answers()
        if judge is not None and question.is_headline
        if record is not None and record.answer.outcome is Outcome.OK
        for rubric, nugget in judge.calls(question)
    ]


def unjudged_answers(recorded: SystemRecords, *, retry_errors: bool) -> list[AnswerToJudge]:
    """List the answers of a system that have no verdict; for ``retry_errors`` see ``select_unjudged``."""
    records = recorded.journals.judgements.records
    return select_unjudged(list_answers_to_judge(recorded), records, retry_errors=retry_errors)


def select_unjudged(
    cases: Sequence[AnswerToJudge], records: Mapping[str, JudgeRecord], *, retry_errors: bool
) -> list[AnswerToJudge]:
    """List the answers that were not judged; with ``retry_errors`` also those that got no verdict."""

    def is_missing(record: JudgeRecord | None) -> bool:
        return record is None or (retry_errors and not record.is_decided)

    return [case for case in cases if is_missing(records.get(case.key))]


def judge_cases(
    label: str,
    cases: Sequence[AnswerToJudge],
    judges: Mapping[RubricName, Judges | NuggetJudge],
    journal: Journal[JudgeRecord],
    workers: Workers,
    *,
    total: int,
    unparsed_is_lost: bool = True,
) -> None:
    """Judge answers in parallel, and record each verdict.

    Args:
        label: name of the stage in the progress lines.
        cases: the answers to judge.
        judges: the judges by rubric; they need a model only if there is something to judge.
        journal: records the verdicts.
        workers: the threads.
        total: all answers of the stage, including those judged before.
        unparsed_is_lost: count a reply without a verdict as a failed item.

    Raises:
        BudgetExceededError: a limit of the run is passed; verdicts so far are kept.
    """

    def judge_case(case: AnswerToJudge) -> None:
        began = time.perf_counter()
        verdict, value, outcome, message = None, None, Outcome.OK, ""
        lines: tuple[int, ...] = ()
        judge, asked = judges[case.rubric], case.question
        labels = {"conversation_id": asked.conversation_id, "question_id": asked.question_id}
        with track_usage() as meter, workers.label_traces(**labels, rubric=case.rubric):
            try:
                with ending_hopeless_runs("judge"):
                    if isinstance(judge, NuggetJudge):
                        assert case.nugget is not None, "a judge of nuggets is given one"
                        found = judge.grade(case.question, case.prediction, case.nugget)
                        value, message, lines = found.value, found.reasoning, found.lines
                    else:
                        judgement = judge.grade(case.question, case.prediction)
                        verdict, message = judgement.verdict, judgement.reasoning
            except LMError as error:
                outcome, message = Outcome.ERROR, one_line(error)
        if outcome is Outcome.OK and meter.calls and meter.calls[-1].is_truncated:
            verdict, value, lines, outcome = None, None, (), Outcome.TRUNCATED  # a draft is no verdict
        if outcome is Outcome.OK and value is None and verdict in (None, Verdict.UNPARSED):
            outcome, message = Outcome.UNPARSED, message.strip() or "the reply is empty"
        question_id, usage, elapsed_s = case.question.question_id, meter.usage, time.perf_counter() - began
        journal.add(
            JudgeRecord(
                case.key, question_id, case.rubric, verdict, outcome, message, usage, elapsed_s, value, lines
            )
        )
        is_lost = outcome is Outcome.ERROR or (unparsed_is_lost and outcome is not Outcome.OK)
        failures = [CallFailure("judge", outcome, message)] if is_lost else []
        workers.report_item(usage, failures, is_lost=is_lost)

    workers.run(label, [partial(judge_case, case) for case in cases], to_do=len(cases), total=total)
