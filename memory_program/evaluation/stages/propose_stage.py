"""The proposals of a two-phase build: made in parallel and recorded, so that a killed build repeats none."""

import contextvars
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, wait
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from memory_program.agents.two_phase import ProposalRequest
from memory_program.agents.writer import MemoryWriter, Proposal, ProposedCall
from memory_program.bank.outcomes import CallFailure, ReplyCounts
from memory_program.core.hashing import content_hash
from memory_program.core.journal import Journal
from memory_program.evaluation.stages.workers import Workers
from memory_program.models.usage import CallRecord, Usage, UsageMeter, track_usage


@dataclass(frozen=True, slots=True)
class ProposalRecord:
    """The proposal of an agent for a session and its usage. The key is a hash of the agent's inputs.

    ``times_built`` is the number of records that the session had when this was asked: the next one has its
    usage, also if the run is stopped before.
    """

    key: str
    conversation_id: str
    session_id: str
    agent: str
    calls: tuple[ProposedCall, ...]
    tool_errors: tuple[str, ...]
    failures: tuple[CallFailure, ...]
    usage: Usage
    elapsed_s: float
    counts: ReplyCounts = field(default_factory=ReplyCounts)
    times_built: int = 0

    @property
    def proposal(self) -> Proposal:
        """The proposal without its operations: its calls are made again where they are applied."""
        return Proposal(
            self.agent,
            list(self.calls),
            tool_errors=list(self.tool_errors),
            failures=list(self.failures),
            counts=self.counts,
        )


class BuildStoppedError(Exception):
    """The run is ending early; no more calls are made."""


def open_proposal_journal(folder: Path) -> Journal[ProposalRecord]:
    """Read the recorded proposals of a system's folder.

    Raises:
        RecordError: the file is damaged elsewhere than in an incomplete last line.
    """
    return Journal(folder / "proposals.jsonl", ProposalRecord)


class Proposer:
    """Asks the agents of one conversation for proposals, each once, and sums up their usage by session."""

    def __init__(
        self,
        writer: MemoryWriter,
        journal: Journal[ProposalRecord],
        conversation_id: str,
        session_key: Callable[[str], str],
        workers: Workers,
        threads: Executor,
        *,
        retry_sessions: Collection[str] = (),
        times_built: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Prepare.

        Args:
            writer: its agents are asked.
            journal: earlier proposals; new ones are added.
            conversation_id: the conversation.
            session_key: gives the key of a session's record, given the session's id.
            workers: the stage that the calls belong to.
            threads: run the calls, those of all conversations together.
            retry_sessions: ids of sessions whose failed proposals are asked for again.
            times_built: the number of records of each session so far, by its id.
        """
        self._writer, self._journal, self._workers, self._threads = writer, journal, workers, threads
        self._conversation_id, self._session_key = conversation_id, session_key
        self._retried, self._times_built = frozenset(retry_sessions), times_built
        self._given: dict[str, ProposalRecord] = {}
        self._asked = set[str]()
        self._made = list[CallRecord]()

    def __call__(self, asks: Sequence[ProposalRequest]) -> list[Proposal]:
        """Return the proposals in the order of the requests.

        Raises:
            BuildStoppedError: the run is ending.
            BudgetExceededError: a limit of the run is passed.
        """
        if not asks:
            return []
        futures = [self._threads.submit(contextvars.copy_context().run, self._ask, ask) for ask in asks]
        try:
            records = [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()
            wait(futures)
        self._given |= {record.key: record for record in records}
        return [record.proposal for record in records]

    def usage(self, session_id: str) -> Usage:
        """Sum up the usage of the proposals for a session that no record of it has yet."""
        given = [record for record in self._given.values() if record.session_id == session_id]
        attempts = [attempt for record in given for attempt in self._journal.attempts(record.key)]
        since = self._times_built.get(session_id, 0)
        return sum((attempt.usage for attempt in attempts if attempt.times_built == since), Usage())

    def consolidation_usage(self, meter: UsageMeter) -> Usage:
        """Sum up the calls of a meter that belong to no proposal: consolidations."""
        made = {id(call) for call in self._made}
        return sum((call.usage for call in meter.calls if id(call) not in made), Usage())

    def _ask(self, ask: ProposalRequest) -> ProposalRecord:
        try:
            shown = self._writer.agent_inputs(ask.agent, ask.view, ask.session)
            key = content_hash("propose", self._session_key(ask.session.session_id), ask.agent, shown)
            known = self._journal.records.get(key)
            is_retried = ask.session.session_id in self._retried and key not in self._asked
            if known is not None and not (known.failures and is_retried):
                return known
            if self._workers.should_stop:
                raise BuildStoppedError
            labels = {"conversation_id": self._conversation_id, "session_id": ask.session.session_id}
            began = time.perf_counter()
            with track_usage() as meter, self._workers.label_traces(**labels):
                proposal = self._writer.propose(ask.agent, ask.view, ask.session)
            record = ProposalRecord(
                key,
                self._conversation_id,
                ask.session.session_id,
                ask.agent,
                tuple(proposal.calls),
                tuple(proposal.tool_errors),
                tuple(proposal.failures),
                meter.usage,
                time.perf_counter() - began,
                proposal.counts,
                self._times_built.get(ask.session.session_id, 0),
            )
            self._made += meter.calls
            self._journal.add(record)
            self._asked.add(key)
            self._workers.limits.count(
                meter.usage,
                proposal.failures,
                is_lost=bool(proposal.failures),
                tool_calls=len(proposal.calls),
                refusals=proposal.tool_errors,
            )
            return record
        except BaseException:
            self._workers.stop()  # at once: other threads would make calls until this one is waited for
            raise
