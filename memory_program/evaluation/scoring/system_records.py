"""The records of one system of a run, looked up by key; judging and reporting need nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from locomo.types import Conversation, Question
from memory_program.bank.bank import MemoryBank
from memory_program.bank.outcomes import Outcome
from memory_program.bank.passages import split_passages
from memory_program.bank.store import BankStore
from memory_program.configs.evaluate_config import SystemName
from memory_program.evaluation.item_records import AnswerRecord, BuildRecord, Journals, JudgeRecord, Record
from memory_program.evaluation.question_selection import Selection
from memory_program.evaluation.scoring.bank_growth import (
    BanksByConversation,
    load_recorded_bank,
    system_retained_turns,
)
from memory_program.evaluation.scoring.error_types import Diagnosis, diagnose
from memory_program.evaluation.scoring.question_scores import ScoredQuestion, score_question, scored_records
from memory_program.evaluation.scoring.score_signature import SystemRun
from memory_program.evaluation.stages.propose_stage import open_proposal_journal


@dataclass(frozen=True, slots=True)
class ScoredSystem:
    """The scored questions and the sessions of a system, in the order of the selection, and its banks.

    ``diagnoses`` has one entry for each question, None if its answer is not wrong, or its bank is lost.
    ``replaced`` are the records that a retry replaced. ``lost_banks`` are the ids of the conversations whose
    banks in the database are not those that were recorded: rows are missing, or another run changed them.
    """

    run: SystemRun
    scored: tuple[ScoredQuestion, ...]
    builds: tuple[BuildRecord | None, ...]
    banks: BanksByConversation
    diagnoses: tuple[Diagnosis | None, ...]
    replaced: tuple[Record, ...]
    lost_banks: tuple[str, ...] = ()


@dataclass(frozen=True)
class SystemRecords:
    """The records of a system in a folder, for the run ``run`` about ``selection``."""

    folder: Path
    run: SystemRun
    journals: Journals
    selection: Selection

    def builds(self) -> list[BuildRecord | None]:
        """List the record of each session; None for one that is not built."""
        return [record for c in self.selection.conversations for record in self._conversation_builds(c)]

    def answer_keys(self) -> dict[str, str]:
        """Return the key of each answer by question id; a question whose bank is not finished has none."""
        banks: dict[str, str | None] = {}  # the hash of each bank; None while sessions are missing
        for conversation in self.selection.conversations:
            builds = self._conversation_builds(conversation)
            last = builds[-1]
            banks[conversation.conversation_id] = (
                last.bank if last is not None and None not in builds else None
            )
        return {
            question.question_id: self._answer_key(question, bank)
            for question in self.selection.questions
            if (bank := banks[question.conversation_id]) is not None
        }

    def _answer_key(self, question: Question, bank: str) -> str:
        """Return the key of an answer; one from long turns changed when they became passages (0.2.0)."""
        system = self.run.system
        reads_turns = system.writer is None or system.settings.get("archive")
        if reads_turns and question.conversation_id in self._long_talks:
            bank += "/passages"
        return system.answer_key(question, bank)

    @cached_property
    def _long_talks(self) -> frozenset[str]:
        """The conversations with turns that are searched by passages."""
        return frozenset(
            conversation.conversation_id
            for conversation in self.selection.conversations
            if any(len(split_passages(turn.text)) > 1 for turn in conversation.turns.values())
        )

    def answers(self) -> list[tuple[Question, AnswerRecord | None]]:
        """List each question with its answer; None if it has none."""
        keys, records = self.answer_keys(), self.journals.answers.records
        return [(q, records.get(keys.get(q.question_id, ""))) for q in self.selection.questions]

    def score_answers(self, store: BankStore | None) -> ScoredSystem:
        """Score the records and diagnose wrong answers; ``store`` has the banks, if there are any.

        Raises:
            StoreError: the database fails.
        """
        judge, records = self.run.judge, self.journals.judgements.records
        scored: list[ScoredQuestion] = []
        talks = {c.conversation_id: c for c in self.selection.conversations}
        for question, record in self.answers():
            judgements: dict[str, JudgeRecord | None] = {}
            nuggets: list[JudgeRecord | None] = []
            for rubric, nugget in judge.calls(question) if judge is not None else ():
                found: JudgeRecord | None = None
                if record is not None and record.answer.outcome is Outcome.OK:  # else its text is no answer
                    assert judge is not None, "only a judge has calls"
                    found = records.get(judge.key(rubric, question, record.answer.text, nugget))
                if nugget is None:
                    judgements[rubric] = found
                else:
                    nuggets.append(found)
            turn_group = talks[question.conversation_id].turn_group
            scored.append(score_question(question, record, judgements, nuggets, turn_group))
        identity, lost, banks = self.run.system, list[str](), dict[str, MemoryBank]()
        if store is not None and SystemName(identity.name).has_model_writer:
            for name, talk in talks.items():
                bank = load_recorded_bank(identity, talk, store, self._conversation_builds(talk))
                if bank is None:
                    lost.append(name)
                else:
                    banks[name] = bank
        kept = {name: system_retained_turns(identity, c, banks) for name, c in talks.items()}
        places = [(item, item.question.conversation_id) for item in scored]
        diagnoses = [
            None if name in lost else diagnose(item, talks[name], kept[name]) for item, name in places
        ]
        builds = self.builds()
        counting = {id(record) for record in scored_records(scored, builds)}
        replaced = [record for record in self.all_records() if id(record) not in counting]
        return ScoredSystem(
            self.run, tuple(scored), tuple(builds), banks, tuple(diagnoses), tuple(replaced), tuple(lost)
        )

    def spent_usd(self) -> float:
        """Sum up the cost of the records; calls of unknown price count as zero.

        Proposals since the last record of their session count too: none includes them yet.
        """
        proposals = open_proposal_journal(self.folder)
        times_built = {
            (c.conversation_id, session.session_id): len(self.journals.builds.attempts(key))
            for c in self.selection.conversations
            for session, key in zip(c.sessions, self._session_keys(c), strict=True)
        }
        waiting = [
            attempt
            for key, proposal in proposals.records.items()
            for attempt in proposals.attempts(key)
            if times_built.get((proposal.conversation_id, proposal.session_id)) == attempt.times_built
        ]
        return sum(record.usage.cost_usd or 0.0 for record in (*self.all_records(), *waiting))

    def all_records(self) -> list[Record]:
        """List all records that the run paid for, also those replaced by a retry and what came from them."""
        journals, judge = self.journals, self.run.judge
        found: list[Record] = []
        banks: dict[str, list[str]] = {}
        for conversation in self.selection.conversations:
            builds = [journals.builds.attempts(key) for key in self._session_keys(conversation)]
            found += [record for of_session in builds for record in of_session]
            banks[conversation.conversation_id] = list(dict.fromkeys(record.bank for record in builds[-1]))
        for question in self.selection.questions:
            keys = [self._answer_key(question, bank) for bank in banks[question.conversation_id]]
            answers = [record for key in keys for record in journals.answers.attempts(key)]
            texts = dict.fromkeys(record.answer.text for record in answers)
            judged: list[str] = []
            if judge is not None:
                calls = judge.calls(question)
                judged = [judge.key(r, question, text, nugget) for text in texts for r, nugget in calls]
            found += [*answers, *(record for key in judged for record in journals.judgements.attempts(key))]
        return found

    def _conversation_builds(self, conversation: Conversation) -> list[BuildRecord | None]:
        records: Mapping[str, BuildRecord] = self.journals.builds.records
        return [records.get(key) for key in self._session_keys(conversation)]

    def _session_keys(self, conversation: Conversation) -> list[str]:
        return [self.run.system.session_key(conversation, s.session_id) for s in conversation.sessions]
