"""The build stage: sessions of a conversation in order or in two phases, conversations side by side."""

import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from locomo.types import Conversation, Session
from memory_program.agents.program import MemoryProgram, MemorySystem
from memory_program.agents.two_phase import remember_two_phase
from memory_program.bank.memory import operation_to_json
from memory_program.bank.outcomes import SessionRecord
from memory_program.bank.space import MemorySpace
from memory_program.bank.store import BankStore
from memory_program.configs.evaluate_config import BuildOrder
from memory_program.core.errors import ConfigError
from memory_program.core.hashing import content_hash
from memory_program.evaluation.item_records import BuildRecord
from memory_program.evaluation.scoring.system_records import SystemRecords
from memory_program.evaluation.stages.propose_stage import BuildStoppedError, Proposer, open_proposal_journal
from memory_program.evaluation.stages.workers import Workers
from memory_program.models.usage import Usage, track_usage


@dataclass(frozen=True, slots=True)
class _BuiltSession:
    """A session that its space has just taken in, and what that took; ``is_counted`` if limits know that."""

    session: Session
    record: SessionRecord
    usage: Usage
    elapsed_s: float
    is_counted: bool = False


class Builder:
    """Builds the memories of one system, each session once.

    A system that writes with a model keeps its banks in a database, a session being one transaction. The
    record of a session is journalled just before that: of a process that dies in between, the journal holds
    a session that the database does not, which is built and journalled again, so no cost is forgotten. A
    journal that lacks what the database holds is completed from there.

    A system that writes nothing by a model has no database: its spaces are made in memory when needed.
    """

    def __init__(
        self,
        system: MemorySystem,
        recorded: SystemRecords,
        store: BankStore | None,
        others: Sequence[SystemRecords] = (),
        *,
        order: BuildOrder = "sequential",
        retry_errors: bool = False,
    ) -> None:
        """Prepare.

        Args:
            system: what remembers.
            recorded: its records, and the conversations.
            store: where banks are kept; None exactly for systems that write nothing by a model.
            others: systems of the run that may write by the same prompts, and then share its banks.
            order: how the sessions of a conversation are remembered; two phases only by a writer's program.
            retry_errors: take sessions with failed calls back, and those after them, and build them anew.
        """
        self._system = system
        self._identity = recorded.run.system
        self._journal = recorded.journals.builds
        self._conversations = recorded.selection.conversations
        self._store = store
        self._others = others
        self._retry_errors = retry_errors and not self.shares_banks  # the other system retries them
        self._in_two_phases = order == "two-phase" and system.writes_memories
        if self._in_two_phases and not isinstance(system, MemoryProgram):
            raise ConfigError(
                f"build={order!r} cannot be done by {type(system).__name__}: leave --build out, or run it on "
                "threads of this process"
            )
        self._proposals = open_proposal_journal(recorded.folder)
        self._spaces: dict[str, MemorySpace] = {}

    @property
    def shares_banks(self) -> bool:
        """Whether another system of the run writes the same, and builds before this one does."""
        return any(other.run.system.build == self._identity.build for other in self._others)

    def count_missing(self) -> int:
        """Count the sessions that are not built yet, or are to be built anew."""
        return sum(len(sessions) for sessions in self._pending_sessions().values())

    def count_unbuilt(self) -> int:
        """Count the sessions that are not built yet; one that failed, and failed once more, is built."""
        return sum(len(self._missing_sessions(c, retry_errors=False)) for c in self._conversations)

    def build(self, workers: Workers) -> None:
        """Build what is missing.

        Raises:
            BudgetExceededError: a limit of the run is passed; what was built is kept.
            StoreError: the database cannot be written; it holds every session before that.
        """
        if self.shares_banks:
            self._spaces.clear()  # the other system has built since
        missing = self._pending_sessions()
        # Banks in a database are gone through in any case: their journal may lack a session.
        to_build = [c for c in self._conversations if self._store is not None or missing[c.conversation_id]]
        with closing(self._proposals):
            workers.run(
                f"{self._identity.name}: build",
                [partial(self._build, conversation, workers) for conversation in to_build],
                to_do=sum(len(sessions) for sessions in missing.values()),
                total=sum(len(conversation.sessions) for conversation in self._conversations),
            )

    def open_space(self, conversation: Conversation) -> MemorySpace:
        """Give the memory of a conversation whose sessions are all built."""
        space = self._space(conversation)
        if self._store is None:
            for session in conversation.sessions:
                self._system.remember(space, session)
        return space

    def _pending_sessions(self) -> dict[str, Sequence[Session]]:
        return {
            c.conversation_id: self._missing_sessions(c, retry_errors=self._retry_errors)
            for c in self._conversations
        }

    def _missing_sessions(self, conversation: Conversation, *, retry_errors: bool) -> Sequence[Session]:
        if self._store is None:
            return [
                s
                for s in conversation.sessions
                if self._build_record_key(conversation, s) not in self._journal.records
            ]
        known = self._space(conversation).sessions
        for place, session in enumerate(conversation.sessions):
            ingested = known.get(session.session_id)
            if ingested is None or (retry_errors and ingested.record.failures):
                return conversation.sessions[place:]
        return ()

    def _build(self, conversation: Conversation, workers: Workers) -> None:
        """Build one conversation, unless somebody stops the run between two sessions."""
        space = self._rewind_for_retry(conversation)
        bank, version = content_hash(conversation.conversation_id), 0
        missing = [session for session in conversation.sessions if not space.has_session(session)]
        in_two_phases = self._in_two_phases and len(conversation.sessions) > 1
        remember = self._build_two_phase if in_two_phases else self._build_sequentially
        with closing(remember(conversation, missing, workers)) as remembered:
            for session in conversation.sessions:
                if workers.should_stop:
                    return
                if space.has_session(session):
                    bank = _next_bank_hash(bank, space, session, version)
                    self._complete_journal(conversation, space.sessions[session.session_id].record, bank)
                else:
                    done = next(remembered, None)
                    if done is None:
                        return
                    bank = self._commit(conversation, done, bank, version, workers)
                version = space.sessions[session.session_id].version

    def _build_sequentially(
        self, conversation: Conversation, sessions: Sequence[Session], workers: Workers
    ) -> Generator[_BuiltSession]:
        """Remember one session after the other, each when it is asked for."""
        space = self._space(conversation)
        for session in sessions:
            began = time.perf_counter()
            with track_usage() as meter:
                record = self._system.remember(space, session)
            yield _BuiltSession(session, record, meter.usage, time.perf_counter() - began)

    def _build_two_phase(
        self, conversation: Conversation, sessions: Sequence[Session], workers: Workers
    ) -> Generator[_BuiltSession]:
        """Remember the last sessions of a conversation in two phases; ends early when the run does."""
        assert isinstance(self._system, MemoryProgram), "checked when it was prepared"
        began = time.perf_counter()
        proposer = Proposer(
            self._system.writer,
            self._proposals,
            conversation.conversation_id,
            partial(self._identity.session_key, conversation),
            workers,
            retry_sessions=[session.session_id for session in sessions] if self._retry_errors else (),
        )
        space = self._space(conversation)
        settling = remember_two_phase(self._system, space, conversation.sessions, proposer)
        while True:
            try:
                with (
                    track_usage() as meter
                ):  # proposals have meters of their own, this one has consolidations
                    settled = next(settling, None)
            except BuildStoppedError:
                return
            if settled is None:
                return
            elapsed_s, began = time.perf_counter() - began, time.perf_counter()
            beside = proposer.consolidation_usage(meter)
            if beside.calls:
                workers.limits.count(beside)
            # what was on the disk when a session is built anew is in the record that its new one replaces
            anew = self._build_record_key(conversation, settled.session) in self._journal.records
            usage = proposer.usage(settled.session.session_id, only_new=anew) + beside
            yield _BuiltSession(settled.session, settled.record, usage, elapsed_s, is_counted=True)

    def _commit(
        self, conversation: Conversation, done: _BuiltSession, bank: str, version: int, workers: Workers
    ) -> str:
        """Record a session and save it; return the hash of the bank after it (``bank`` is the one before)."""
        space, name = self._space(conversation), conversation.conversation_id
        bank = _next_bank_hash(bank, space, done.session, version)
        key = self._build_record_key(conversation, done.session)
        if self._store is None and key in self._journal.records:
            return bank  # made in memory once more, on the way to a session that is new
        session_id, record = done.session.session_id, done.record
        self._journal.add(BuildRecord(key, name, session_id, bank, record, done.usage, done.elapsed_s))
        if self._store is not None:
            self._store.save(space)
        failures = [f"{failure.where}: {failure.message}" for failure in record.failures]
        if done.is_counted:
            workers.advance(failed=bool(failures))
        else:
            workers.report_item(done.usage, failures, is_lost=bool(failures) and not record.operations)
        return bank

    def _complete_journal(self, conversation: Conversation, record: SessionRecord, bank: str) -> None:
        """Record a session of the database that the journal lacks.

        If another system of the run built it, it took nothing; otherwise nobody knows what it took.
        """
        key = self._identity.session_key(conversation, record.session_id)
        recorded = self._journal.records.get(key)
        if recorded is None or recorded.bank != bank:
            name = conversation.conversation_id
            usage = Usage() if self.shares_banks else Usage(cost_usd=None)
            self._journal.add(BuildRecord(key, name, record.session_id, bank, record, usage, 0.0))

    def _rewind_for_retry(self, conversation: Conversation) -> MemorySpace:
        """Give the space of a conversation, without the sessions that are to be built anew."""
        space = self._space(conversation)
        missing = self._missing_sessions(conversation, retry_errors=self._retry_errors)
        if self._store is not None and missing and missing[0].session_id in space.sessions:
            space = self._store.rewind_session(space.namespace, missing[0].session_id)
            self._spaces[space.namespace] = space
        return space

    def _space(self, conversation: Conversation) -> MemorySpace:
        namespace = self._identity.namespace(conversation)
        if namespace not in self._spaces:
            fresh = self._store.load(namespace) if self._store is not None else MemorySpace(namespace)
            self._spaces[namespace] = fresh
        return self._spaces[namespace]

    def _build_record_key(self, conversation: Conversation, session: Session) -> str:
        return self._identity.session_key(conversation, session.session_id)


def _next_bank_hash(bank: str, space: MemorySpace, session: Session, since: int) -> str:
    """Hash what a bank holds after a session, given the hash and the version before it."""
    until = space.sessions[session.session_id].version
    operations = [operation_to_json(o) for o in space.bank.operations(since)[: until - since]]
    return content_hash(bank, session.fingerprint, operations)
