"""The answer stage: every question once, all side by side."""

import time
from functools import partial

from locomo.types import Question
from memory_program.agents.program import MemorySystem
from memory_program.bank.outcomes import Outcome
from memory_program.bank.space import MemorySpace
from memory_program.evaluation.item_records import AnswerRecord
from memory_program.evaluation.scoring.system_records import SystemRecords
from memory_program.evaluation.stages.build_stage import Builder
from memory_program.evaluation.stages.workers import Workers
from memory_program.models.usage import track_usage


class Answerer:
    """Asks one system questions from the memories that its builder built, each once."""

    def __init__(
        self, system: MemorySystem, recorded: SystemRecords, builder: Builder, *, retry_errors: bool
    ) -> None:
        """Prepare; with ``retry_errors`` a recorded failure counts as missing."""
        self._system = system
        self._recorded = recorded
        self._builder = builder
        self._retry_errors = retry_errors

    def missing(self) -> list[Question]:
        """List the questions without an answer."""
        return [question for question, record in self._recorded.answers() if self._is_missing(record)]

    def answer(self, workers: Workers) -> None:
        """Answer what has no answer yet. Every session is built.

        Raises:
            BudgetExceededError: a limit of the run is passed; what was answered is kept.
        """
        missing, keys, selection = self.missing(), self._recorded.answer_keys(), self._recorded.selection
        asked = {question.conversation_id for question in missing}
        to_open = [c for c in selection.conversations if c.conversation_id in asked]
        spaces = {c.conversation_id: self._builder.open_space(c) for c in to_open}
        workers.run(
            f"{self._recorded.run.system.name}: answer",
            [
                partial(self._answer, keys[q.question_id], q, spaces[q.conversation_id], workers)
                for q in missing
            ],
            to_do=len(missing),
            total=len(selection.questions),
        )

    def _is_missing(self, record: AnswerRecord | None) -> bool:
        return record is None or (self._retry_errors and record.answer.outcome is not Outcome.OK)

    def _answer(self, key: str, question: Question, space: MemorySpace, workers: Workers) -> None:
        began = time.perf_counter()
        with track_usage() as meter:
            answer = self._system.ask(space, question.dated_text)
        elapsed_s = time.perf_counter() - began
        self._recorded.journals.answers.add(
            AnswerRecord(key, question.question_id, answer, meter.usage, elapsed_s)
        )
        is_lost = answer.outcome is not Outcome.OK
        workers.report_item(meter.usage, [answer.message] if is_lost else [], is_lost=is_lost)
