"""The build stage: sessions of a conversation in order or in two phases, conversations in parallel."""

import math
import time
from collections.abc import Generator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from locomo.types import Conversation, Session
from memory_program.agents.program import MemoryProgram, MemorySystem
from memory_program.agents.two_phase import remember_two_phase
from memory_program.bank.dense import DenseIndex
from memory_program.bank.outcomes import SessionRecord
from memory_program.bank.space import MemorySpace
from memory_program.bank.store import BankStore
from memory_program.configs.evaluate_config import BuildOrder
from memory_program.core.errors import ConfigError
from memory_program.evaluation.item_records import BuildRecord
from memory_program.evaluation.scoring.bank_growth import BankHashes
from memory_program.evaluation.scoring.system_records import SystemRecords
from memory_program.evaluation.stages.limits import FIRST_ITEMS, FIRST_SESSIONS
from memory_program.evaluation.stages.propose_stage import BuildStoppedError, Proposer, open_proposal_journal
from memory_program.evaluation.stages.workers import Workers
from memory_program.models.usage import Usage, track_usage


@dataclass(frozen=True, slots=True)
class _BuiltSession:
    """A session that was just added to its space; ``is_counted`` if the limits have counted its calls."""

    session: Session
    record: SessionRecord
    usage: Usage
    elapsed_s: float
    is_counted: bool = False


class Builder:
    """Builds the memories of one system, each session once.

    A system that writes with a model keeps its banks in a database; a session is one transaction. The
    journal gets the record of a session just before that. If the process dies in between, the journal has a
    session that the database lacks: it is built and recorded again, so no cost is forgotten. A journal that
    lacks a session of the database is completed from there.

    A system that writes without a model has no database: its spaces are made in memory when needed.
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
        dense: DenseIndex | None = None,
    ) -> None:
        """Prepare.

        Args:
            system: writes the memories.
            recorded: its records, and the conversations.
            store: keeps the banks; None exactly for systems that write without a model.
            others: systems of the run that may write with the same prompts, and then share its banks.
            order: how the sessions of a conversation are built; two phases need a ``MemoryProgram``.
            retry_errors: undo sessions with failed calls, and those after them, and build them again.
            dense: spaces that are not kept in the store get empty copies of it.
        """
        self._system = system
        self._identity = recorded.run.system
        self._journal = recorded.journals.builds
        self._conversations = recorded.selection.conversations
        self._store = store
        self._others, self._dense = others, dense
        self._run_retries_errors = retry_errors
        self._retry_errors = retry_errors and not self.shares_banks  # the other system retries them
        self._in_two_phases = order == "two-phase" and system.writes_memories
        if self._in_two_phases and not isinstance(system, MemoryProgram):
            raise ConfigError(
                f"build={order!r} is not possible with {type(system).__name__}: leave --build out, or use "
                "--executor threads"
            )
        self._proposals = open_proposal_journal(recorded.folder)
        self._spaces: dict[str, MemorySpace] = {}

    @property
    def shares_banks(self) -> bool:
        """True if another system of the run writes the same banks, and builds before this one."""
        return any(other.run.system.build == self._identity.build for other in self._others)

    def count_missing(self) -> int:
        """Count the sessions to build: new ones, and those to be built again."""
        return sum(len(sessions) for sessions in self._pending_sessions().values())

    def conversations_to_build(self) -> frozenset[str]:
        """Return the ids of the conversations whose questions are asked again, as their banks change.

        This run changes them, whichever system builds them, or another run has changed them in the database.
        """
        if self._store is None:
            return frozenset()
        changed = partial(self._missing_sessions, retry_errors=self._run_retries_errors)
        return frozenset(c.conversation_id for c in self._conversations if changed(c) or self._differs(c))

    def _differs(self, conversation: Conversation) -> bool:
        """Tell if the database has another bank than the one that the journal records."""
        hashes = BankHashes(conversation.conversation_id, self._space(conversation))
        banks = {self._record_key(conversation, s): hashes.after(s) for s in conversation.sessions}
        known = self._journal.records
        return any(key in known and known[key].bank != bank for key, bank in banks.items())

    def count_unbuilt(self) -> int:
        """Count the sessions that were never built; one whose retry failed is built."""
        return sum(len(self._missing_sessions(c, retry_errors=False)) for c in self._conversations)

    def build(self, workers: Workers) -> None:
        """Build the missing sessions.

        Raises:
            BudgetExceededError: a limit of the run is passed; finished sessions are kept.
            StoreError: the database cannot be written; it holds every session before that.
        """
        if self.shares_banks:
            self._spaces.clear()  # the other system has built since
        missing = self._pending_sessions()
        # Every bank of a database is checked: its journal may lack a session.
        to_build = [c for c in self._conversations if self._store is not None or missing[c.conversation_id]]
        agents = len(self._system.writer.agents) if isinstance(self._system, MemoryProgram) else 1
        # no thread starts before it is needed
        with closing(self._proposals), ThreadPoolExecutor(workers.concurrency, "proposer") as threads:
            workers.run(
                f"{self._identity.name}: build",
                [partial(self._build_conversation, c, workers, threads) for c in to_build],
                to_do=sum(len(sessions) for sessions in missing.values()),
                total=sum(len(conversation.sessions) for conversation in self._conversations),
                calls_per_item=agents * (2 if self._in_two_phases else 1),  # two: at most both phases
                first_items=FIRST_ITEMS if self._in_two_phases else FIRST_SESSIONS,
                is_quiet=not self._system.writes_memories,
            )

    def open_space(self, conversation: Conversation) -> MemorySpace:
        """Return the memory space of a conversation whose sessions are all built."""
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
            records = self._journal.records
            return [s for s in conversation.sessions if self._record_key(conversation, s) not in records]
        known = self._space(conversation).sessions
        for place, session in enumerate(conversation.sessions):
            ingested = known.get(session.session_id)
            if ingested is None or (retry_errors and ingested.record.failures):
                return conversation.sessions[place:]
        return ()

    def _build_conversation(self, conversation: Conversation, workers: Workers, threads: Executor) -> None:
        """Build one conversation, session by session, unless the stage ends between two of them."""
        space, name = self._space(conversation), conversation.conversation_id
        missing = self._missing_sessions(conversation, retry_errors=self._retry_errors)
        if self._store is not None and missing and missing[0].session_id in space.sessions:  # a retry
            space = self._store.rewind_session(space.namespace, missing[0].session_id)
            self._spaces[space.namespace] = space
        new = [session for session in conversation.sessions if not space.has_session(session)]
        in_two_phases = self._in_two_phases and len(conversation.sessions) > 1
        build = self._build_two_phase if in_two_phases else self._build_sequentially
        hashes = BankHashes(name, space)
        with closing(build(conversation, new, workers, threads)) as built:
            for session in conversation.sessions:
                if workers.should_stop:
                    return
                is_saved = space.has_session(session)
                done = None if is_saved else next(built, None)
                if not is_saved and done is None:
                    return
                bank, key = hashes.after(session), self._record_key(conversation, session)
                if done is None:
                    self._record_saved(conversation, session, space, bank)
                elif self._store is not None or key not in self._journal.records:  # else only made again
                    record, usage, elapsed_s = done.record, done.usage, done.elapsed_s
                    self._journal.add(
                        BuildRecord(key, name, session.session_id, bank, record, usage, elapsed_s)
                    )
                    if self._store is not None:
                        self._store.save(space)
                    failures = record.failures
                    if done.is_counted:
                        workers.advance(failed=bool(failures))
                    else:
                        workers.report_item(
                            usage,
                            failures,
                            is_lost=bool(failures) and not record.operations,
                            tool_calls=record.tool_calls,
                            refusals=record.tool_errors,
                        )

    def record_saved_sessions(self) -> None:
        """Complete the journal from the database, where another run may have built the sessions."""
        for conversation in self._conversations if self._store is not None else ():
            space = self._space(conversation)
            hashes = BankHashes(conversation.conversation_id, space)
            for session in conversation.sessions:
                self._record_saved(conversation, session, space, hashes.after(session))

    def _record_saved(
        self, conversation: Conversation, session: Session, space: MemorySpace, bank: str
    ) -> None:
        """Record a session of the database, unless the journal has it.

        It took nothing if another system of the run built it; otherwise its usage is unknown.
        """
        key, known = self._record_key(conversation, session), self._journal.records
        if key not in known or known[key].bank != bank:
            record = space.sessions[session.session_id].record
            usage, seconds = (Usage(), 0.0) if self.shares_banks else (Usage(cost_usd=None), math.nan)
            name = conversation.conversation_id
            self._journal.add(BuildRecord(key, name, session.session_id, bank, record, usage, seconds))

    def _build_sequentially(
        self, conversation: Conversation, sessions: Sequence[Session], workers: Workers, threads: Executor
    ) -> Generator[_BuiltSession]:
        """Build one session after the other, each when it is asked for."""
        space, name = self._space(conversation), conversation.conversation_id
        for session in sessions:
            began, labels = time.perf_counter(), {"conversation_id": name, "session_id": session.session_id}
            with track_usage() as meter, workers.label_traces(**labels):
                record = self._system.remember(space, session)
            yield _BuiltSession(session, record, meter.usage, time.perf_counter() - began)

    def _build_two_phase(
        self, conversation: Conversation, sessions: Sequence[Session], workers: Workers, threads: Executor
    ) -> Generator[_BuiltSession]:
        """Build the last sessions of a conversation in two phases; ends early when the run does."""
        assert isinstance(self._system, MemoryProgram), "checked when it was prepared"
        began = time.perf_counter()
        proposer = Proposer(
            self._system.writer,
            self._proposals,
            conversation.conversation_id,
            partial(self._identity.session_key, conversation),
            workers,
            threads,
            retry_sessions=[session.session_id for session in sessions] if self._retry_errors else (),
            # a session that is built again has a record that has paid for its earlier proposals
            times_built={
                s.session_id: len(self._journal.attempts(self._record_key(conversation, s)))
                for s in conversation.sessions
            },
        )
        space, labels = self._space(conversation), {"conversation_id": conversation.conversation_id}
        settling = remember_two_phase(self._system, space, conversation.sessions, proposer)
        while True:
            try:
                # counts consolidations; proposals have meters of their own
                with track_usage() as meter, workers.label_traces(**labels):
                    settled = next(settling, None)
            except BuildStoppedError:
                return
            if settled is None:
                return
            elapsed_s, began = time.perf_counter() - began, time.perf_counter()
            consolidations = proposer.consolidation_usage(meter)
            if consolidations.calls:
                workers.limits.count(consolidations)
            usage = proposer.usage(settled.session.session_id) + consolidations
            yield _BuiltSession(settled.session, settled.record, usage, elapsed_s, is_counted=True)

    def _space(self, conversation: Conversation) -> MemorySpace:
        namespace = self._identity.namespace(conversation)
        if namespace not in self._spaces:
            self._spaces[namespace] = (
                self._store.load(namespace)
                if self._store is not None
                else MemorySpace(namespace, dense=self._dense)
            )
        return self._spaces[namespace]

    def _record_key(self, conversation: Conversation, session: Session) -> str:
        return self._identity.session_key(conversation, session.session_id)
