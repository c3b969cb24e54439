"""The answer stage: each question is asked once, all of them in parallel."""

import time
from collections.abc import Sequence
from functools import partial

from locomo.types import Question
from memory_program.agents.program import MemorySystem
from memory_program.bank.outcomes import Outcome
from memory_program.core.errors import RecordError
from memory_program.evaluation.item_records import AnswerRecord
from memory_program.evaluation.scoring.system_records import SystemRecords
from memory_program.evaluation.stages.build_stage import Builder
from memory_program.evaluation.stages.workers import Workers
from memory_program.models.usage import track_usage


class Answerer:
    """Asks one system the questions of a run, from the memories that its builder built."""

    def __init__(
        self,
        system: MemorySystem,
        recorded: SystemRecords,
        builder: Builder,
        *,
        retry_errors: bool,
        writers: Sequence[str] = (),
    ) -> None:
        """Prepare.

        Args:
            system: answers.
            recorded: its records, and the questions.
            builder: has the memories.
            retry_errors: count a recorded failure as missing.
            writers: models that wrote banks of this database, to name in an error.
        """
        self._system = system
        self._recorded = recorded
        self._builder = builder
        self._retry_errors = retry_errors
        self._writers = writers

    def missing(self) -> list[Question]:
        """List the questions without an answer."""
        return [
            question
            for question, record in self._recorded.answers()
            if record is None or (self._retry_errors and record.answer.outcome is not Outcome.OK)
        ]

    def answer(self, workers: Workers) -> None:
        """Ask the questions that have no answer yet.

        Raises:
            RecordError: sessions are not built.
            BudgetExceededError: a limit of the run is passed; answers so far are kept.
        """
        name = self._recorded.run.system.name
        unbuilt = self._builder.count_unbuilt()
        if unbuilt:
            others = [writer for writer in self._writers if writer != self._recorded.run.system.writer]
            hint = f"; banks of {' and '.join(map(repr, others))} are there: --writer-model names it"
            raise RecordError(
                f"{unbuilt} sessions of system {name!r} are not built in {str(self._recorded.folder)!r}: run "
                f"--mode build first, or --mode full for all stages{hint if others else ''}"
            )
        self._builder.record_saved_sessions()
        missing, keys, selection = self.missing(), self._recorded.answer_keys(), self._recorded.selection
        asked = {question.conversation_id for question in missing}
        to_open = [c for c in selection.conversations if c.conversation_id in asked]
        spaces = {c.conversation_id: self._builder.open_space(c) for c in to_open}

        def ask(question: Question) -> None:
            began, question_id = time.perf_counter(), question.question_id
            labels = {"conversation_id": question.conversation_id, "question_id": question_id}
            with track_usage() as meter, workers.label_traces(**labels):
                answer = self._system.ask(spaces[question.conversation_id], question.dated_text)
            elapsed_s = time.perf_counter() - began
            record = AnswerRecord(keys[question_id], question_id, answer, meter.usage, elapsed_s)
            self._recorded.journals.answers.add(record)
            failures = [answer.failure] if answer.failure is not None else []
            workers.report_item(meter.usage, failures, is_lost=bool(failures))

        tasks = [partial(ask, question) for question in missing]
        workers.run(f"{name}: answer", tasks, to_do=len(missing), total=len(selection.questions))
