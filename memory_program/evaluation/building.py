"""The build stage: sessions of a conversation in order, conversations side by side."""

import time
from collections.abc import Sequence
from functools import partial

from locomo.conversation import Conversation, Session
from memory_program.agents.program import MemorySystem
from memory_program.bank.memory import operation_to_json
from memory_program.bank.outcome import SessionRecord
from memory_program.bank.space import MemorySpace
from memory_program.bank.store import BankStore
from memory_program.evaluation.recorded import RecordedSystem
from memory_program.evaluation.records import BuildRecord, content_hash
from memory_program.evaluation.workers import Workers
from memory_program.ledger import Usage, metered


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
        recorded: RecordedSystem,
        store: BankStore | None,
        others: Sequence[RecordedSystem] = (),
        *,
        retry_errors: bool = False,
    ) -> None:
        """Prepare.

        Args:
            system: what remembers.
            recorded: its records, and the conversations.
            store: where banks are kept; None exactly for systems that write nothing by a model.
            others: systems of the run that may write by the same prompts, and then share its banks.
            retry_errors: take sessions with failed calls back, and those after them, and build them anew.
        """
        self._system = system
        self._identity = recorded.run.system
        self._journal = recorded.journals.builds
        self._conversations = recorded.selection.conversations
        self._store = store
        self._others = others
        self._retry_errors = retry_errors
        self._spaces: dict[str, MemorySpace] = {}

    @property
    def shares_banks(self) -> bool:
        """Whether another system of the run writes the same, and builds before this one does."""
        return any(other.run.system.build == self._identity.build for other in self._others)

    def missing(self) -> int:
        """Count the sessions that are not built yet, or are to be built anew."""
        return sum(len(self._missing_sessions(conversation)) for conversation in self._conversations)

    def build(self, workers: Workers) -> None:
        """Build what is missing.

        Raises:
            BudgetExceededError: a limit of the run is passed; what was built is kept.
            StoreError: the database cannot be written; it holds every session before that.
        """
        if self.shares_banks:
            self._spaces.clear()  # the other system has built since
        missing = {c.conversation_id: self._missing_sessions(c) for c in self._conversations}
        # Banks in a database are gone through in any case: their journal may lack a session.
        to_build = [c for c in self._conversations if self._store is not None or missing[c.conversation_id]]
        workers.run(
            f"{self._identity.name}: build",
            [partial(self._build, conversation, workers) for conversation in to_build],
            to_do=sum(len(sessions) for sessions in missing.values()),
            total=sum(len(conversation.sessions) for conversation in self._conversations),
        )

    def open(self, conversation: Conversation) -> MemorySpace:
        """Give the memory of a conversation whose sessions are all built."""
        space = self._space(conversation)
        if self._store is None:
            for session in conversation.sessions:
                self._system.remember(space, session)
        return space

    def _missing_sessions(self, conversation: Conversation) -> Sequence[Session]:
        if self._store is None:
            return [
                s for s in conversation.sessions if self._key(conversation, s) not in self._journal.records
            ]
        known = self._space(conversation).sessions
        for place, session in enumerate(conversation.sessions):
            ingested = known.get(session.session_id)
            if ingested is None or (self._retry_errors and ingested.record.failures):
                return conversation.sessions[place:]
        return ()

    def _build(self, conversation: Conversation, workers: Workers) -> None:
        """Build one conversation, unless somebody stops the run between two sessions."""
        space = self._rewound(conversation)
        bank, version = content_hash(conversation.conversation_id), 0
        for session in conversation.sessions:
            if workers.should_stop:
                return
            if space.has(session):
                bank = _chained(bank, space, session, version)
                self._complete_journal(conversation, space.sessions[session.session_id].record, bank)
            else:
                bank = self._build_session(conversation, session, bank, workers)
            version = space.sessions[session.session_id].version

    def _build_session(
        self, conversation: Conversation, session: Session, bank: str, workers: Workers
    ) -> str:
        """Build one session and return the hash of the bank after it; ``bank`` is the one before."""
        space, version, began = (
            self._space(conversation),
            self._space(conversation).bank.version,
            time.perf_counter(),
        )
        with metered() as meter:
            record = self._system.remember(space, session)
        elapsed_s = time.perf_counter() - began
        bank = _chained(bank, space, session, version)
        key = self._key(conversation, session)
        if self._store is None and key in self._journal.records:
            return bank  # made in memory once more, on the way to a session that is new
        name = conversation.conversation_id
        self._journal.add(BuildRecord(key, name, session.session_id, bank, record, meter.usage, elapsed_s))
        if self._store is not None:
            self._store.save(space)
        failures = [f"{failure.where}: {failure.message}" for failure in record.failures]
        workers.finished(meter.usage, failures, is_lost=bool(failures) and not record.operations)
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

    def _rewound(self, conversation: Conversation) -> MemorySpace:
        """Give the space of a conversation, without the sessions that are to be built anew."""
        space = self._space(conversation)
        missing = self._missing_sessions(conversation)
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

    def _key(self, conversation: Conversation, session: Session) -> str:
        return self._identity.session_key(conversation, session.session_id)


def _chained(bank: str, space: MemorySpace, session: Session, since: int) -> str:
    """Hash what a bank holds after a session, given the hash and the version before it."""
    until = space.sessions[session.session_id].version
    operations = [operation_to_json(o) for o in space.bank.operations(since)[: until - since]]
    return content_hash(bank, session.fingerprint, operations)
