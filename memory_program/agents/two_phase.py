"""The two-phase build: propose the memories of all sessions at once, then commit them in order.

In a build in order each call waits for the one before it: fifty sessions are a chain of fifty calls. Here
every agent first proposes for every session on the starting bank. Folded together, the proposals predict the
bank before each session. Agents whose session touches a predicted memory are asked again, all at once, with
the predicted bank. Then the sessions are committed in order: their calls are replayed on the actual bank.
Where a call no longer fits (for example, it updates a memory that another session deleted), its agent is
asked a last time, with the actual bank. So the chain has two calls, and one more for each such conflict.

This is optimistic concurrency control (Kung and Robinson 1981, ACM TODS 6(2)): read a prediction, validate in
order, redo failures. It costs up to twice the calls of a build in order.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from locomo.types import Session
from memory_program.agents.program import MemoryProgram
from memory_program.agents.tools import (
    CORE_TOOLS,
    READ_TOOLS,
    MemoryTools,
    Refusal,
    ToolResult,
    normalize_arguments,
)
from memory_program.agents.writer import MemoryWriter, Proposal, specialist_memory_kind
from memory_program.bank.memory import Memory, Operation
from memory_program.bank.outcomes import SessionRecord
from memory_program.bank.space import MemorySpace
from memory_program.bank.stems import tokenize
from memory_program.core.errors import UnknownMemoryError
from memory_program.models.batch_queue import calling_directly

CONFLICT_OVERLAP = 0.2
"""A session touches a memory if it contains this share of the memory's stems, without the speakers' names.

With the oracle as writer, 16 generated conversations end in the same banks as a build in order at 0.25 and
below; at 0.34 two memories of one of them stay that should have been deleted."""


@dataclass(frozen=True, slots=True)
class ProposalRequest:
    """A request to one agent: remember a session, given a view of the bank."""

    agent: str
    view: MemorySpace
    session: Session


ProposeAll = Callable[[Sequence[ProposalRequest]], Sequence[Proposal]]
"""Sends requests in parallel, and returns the proposals in the order of the requests.

Only the calls of proposals are used, never their operations: every call is replayed where it is applied."""


@dataclass(frozen=True, slots=True)
class CommittedSession:
    """A committed session; ``had_conflicts`` if an agent had to be asked with the actual bank."""

    session: Session
    record: SessionRecord
    had_conflicts: bool


def remember_two_phase(
    program: MemoryProgram, space: MemorySpace, sessions: Sequence[Session], propose_all: ProposeAll
) -> Iterator[CommittedSession]:
    """Remember sessions, and yield after each one that was added to the space.

    A build that is resumed gets all of its sessions again, though the space has the first of them. Both
    phases start from the space before all sessions, so every agent gets the same requests as in the first
    run, and ``propose_all`` can return its earlier proposals.

    Args:
        program: its writer remembers.
        space: one whole session is added to it between two yields.
        sessions: at least one, in order; those that the space has were remembered by this function.
        propose_all: sends requests to the writer's agents; see ``MemoryWriter.propose``.
    """
    writer, start = program.writer, space.before(sessions[0])
    start.index.refresh(start.bank)  # once, not in every agent's fork
    asks = [ProposalRequest(agent, start, session) for session in sessions for agent in writer.agents]
    first = dict(zip(map(_request_key, asks), propose_all(asks), strict=True))
    predicted = _PredictedBank(writer, start, sessions, first)
    again = predicted.stale_requests()
    final = first | dict(zip(map(_request_key, again), propose_all(again), strict=True))
    actual = _ActualBank(writer, start, predicted, {_request_key(ask): ask.view.bank.core for ask in again})
    version = start.bank.version
    for session in sessions:
        committed = None
        if not space.has_session(session):
            draft = space.fork()
            draft.index.refresh(draft.bank)
            proposals = {name: final[session.session_id, name] for name in writer.agents}
            replayed = {name: actual.try_replay(draft, session, p) for name, p in proposals.items()}
            conflicting = [name for name, proposal in replayed.items() if proposal is None]
            retries = [ProposalRequest(name, draft.fork(), session) for name in conflicting]
            with calling_directly():  # the next session waits for these calls
                for proposal in propose_all(retries):
                    replayed[proposal.actor] = actual.replay_retry(draft, session, proposal)
                done = [proposal for proposal in replayed.values() if proposal is not None]
                record: SessionRecord = writer.apply_proposals(draft, session, done).record
            draft.ingest(session, record)
            draft.log_session(record)
            space.adopt(draft)
            committed = CommittedSession(session, record, bool(conflicting))
        since, version = version, space.sessions[session.session_id].version
        actual.match_predictions(space.bank.operations(since)[: version - since], session)
        if committed is not None:
            yield committed


_SessionAgent = tuple[str, str]
"""The id of a session, and the name of an agent."""


def _request_key(ask: ProposalRequest) -> _SessionAgent:
    return ask.session.session_id, ask.agent


class _PredictedBank:
    """The bank that the first proposals predict, before each session and at the end."""

    def __init__(
        self,
        writer: MemoryWriter,
        space: MemorySpace,
        sessions: Sequence[Session],
        first: Mapping[_SessionAgent, Proposal],
    ) -> None:
        """Fold the proposals in order; a call that conflicts with another session is left out."""
        self._writer, self._sessions, self._first = writer, sessions, first
        self._views: dict[str, MemorySpace] = {}
        self.made: dict[str, list[tuple[str, Memory]]] = {}
        """The predicted memories by session, each with the agent that proposed it."""
        self.ids = set[str]()
        """The ids of all predicted memories."""
        bank = space.fork()
        for session in sessions:
            bank.index.refresh(bank.bank)
            self._views[session.session_id] = bank.fork()
            made = self.made[session.session_id] = list[tuple[str, Memory]]()
            for agent in writer.agents:
                replayed = _replay_calls(writer, bank, session, first[session.session_id, agent])
                created = [m for operation in replayed.proposal.operations for m in operation.created]
                made += [(agent, memory) for memory in created]
                self.ids.update(memory.memory_id for memory in created)

    def stale_requests(self) -> list[ProposalRequest]:
        """List the requests to repeat: the call failed, or the session touches a predicted memory."""
        requests: list[ProposalRequest] = []
        for session in self._sessions:
            view = self._views[session.session_id]
            names = {stem for turn in session.turns for stem in tokenize(turn.speaker)}
            said = set(tokenize(session.transcript)) - names
            for agent in self._writer.agents:
                proposal = self._first[session.session_id, agent]
                if agent == "core":
                    is_stale = bool(view.bank.core and proposal.calls)
                else:
                    related = self._writer.retrieve_related(agent, view, session)
                    stems_by_memory = [set(tokenize(memory.text)) - names for memory in related]
                    is_stale = any(
                        not stems or len(stems & said) / len(stems) >= CONFLICT_OVERLAP
                        for stems in stems_by_memory
                    )
                if is_stale or proposal.failures:
                    requests.append(ProposalRequest(agent, view, session))
        return requests


class _ActualBank:
    """The actual bank, and the memories in it that correspond to predicted ones."""

    def __init__(
        self,
        writer: MemoryWriter,
        space: MemorySpace,
        predicted: _PredictedBank,
        cores: Mapping[_SessionAgent, str],
    ) -> None:
        """Start from the common space; ``cores`` are the profiles that agents of the second phase saw."""
        self._writer, self._predicted, self._cores = writer, predicted, cores
        self._first_core = space.bank.core
        self._actual_ids: dict[str, str] = {}

    def try_replay(self, draft: MemorySpace, session: Session, proposal: Proposal) -> Proposal | None:
        """Replay the calls of a proposal on a fork of the actual bank; return None if one does not fit."""
        key = (session.session_id, proposal.actor)
        edits = [normalize_arguments(c.name, c.args) for c in proposal.calls if c.name in CORE_TOOLS]
        rewrites = any(arguments.get("action") == "rewrite" for arguments in edits)
        if rewrites and self._cores.get(key, self._first_core) != draft.bank.core:
            return None  # it would undo other agents' changes to the profile
        workspace = draft.fork()

        def current_id(memory_id: str) -> str | None:
            """Return the id of the live memory that a real or predicted one has become; None without one."""
            if memory_id in self._predicted.ids:
                memory_id = self._actual_ids.get(memory_id, "")
            try:
                memory = workspace.bank.get(memory_id)
            except UnknownMemoryError:
                return None
            while memory.superseded is not None:
                created = workspace.bank.operations(memory.superseded - 1)[0].created
                if len(created) != 1:
                    return None
                memory = workspace.bank.get(created[0].memory_id)
            return memory.memory_id

        replayed = _replay_calls(self._writer, workspace, session, proposal, current_id)
        return None if replayed.misfits else replayed.proposal

    def replay_retry(self, draft: MemorySpace, session: Session, proposal: Proposal) -> Proposal:
        """Replay the calls of a proposal that was made with this bank: its ids need no translation."""
        replayed = _replay_calls(self._writer, draft.fork(), session, proposal)
        errors = [*proposal.tool_errors, *replayed.misfits]
        return replace(replayed.proposal, tool_errors=errors)

    def match_predictions(self, operations: Sequence[Operation], session: Session) -> None:
        """Match a session's predicted memories with the memories that its operations created."""
        written = [
            (operation.provenance.actor, memory) for operation in operations for memory in operation.created
        ]
        for agent, predicted in self._predicted.made[session.session_id]:
            own = [memory for actor, memory in written if actor == agent]
            best = max(own, key=lambda memory: _similarity(memory, predicted), default=None)
            if best is not None and any(_similarity(best, predicted)):
                self._actual_ids[predicted.memory_id] = best.memory_id


@dataclass(frozen=True, slots=True)
class _ReplayResult:
    """A proposal with the operations of its calls on a bank, and the errors of calls that did not fit."""

    proposal: Proposal
    misfits: list[str]


def _replay_calls(
    writer: MemoryWriter,
    space: MemorySpace,
    session: Session,
    proposal: Proposal,
    current_id: Callable[[str], str | None] = lambda memory_id: memory_id,
) -> _ReplayResult:
    """Replay a proposal's calls on a space; ``current_id`` translates the ids of memories that they name.

    Calls that were refused when they were proposed are left out, as are calls that only read.
    """
    actor, misfits = proposal.actor, list[str]()
    tools = MemoryTools(space, session, actor, specialist_memory_kind(actor))
    own: dict[str, str | None] = {}  # memories of the proposal itself: their proposed id, their id here
    for call in proposal.calls:
        if call.is_refused or call.name in READ_TOOLS:
            continue
        arguments = normalize_arguments(call.name, call.args)
        named = [arguments.get("memory_id", ""), *arguments.get("memory_ids", [])]
        ids = {name: own[name] if name in own else current_id(name) for name in named if name}
        gone = [name for name, memory_id in ids.items() if memory_id is None]
        if gone:
            misfits.append(f"{actor}: {call.name}: {', '.join(gone)} is no longer in the bank")
            continue
        if arguments.get("memory_id"):
            arguments["memory_id"] = ids[arguments["memory_id"]]
        if "memory_ids" in arguments:
            arguments["memory_ids"] = [ids[name] for name in arguments["memory_ids"]]
        before = len(tools.operations)
        result = tools.call(call.name, arguments, writer.allowed_tools(actor))
        misfits += [f"{actor}: {call.name}: {result.text}"] if result.is_error else []
        created = [m.memory_id for operation in tools.operations[before:] for m in operation.created]
        is_alike = len(created) == len(call.created)  # false if only one of the banks knew the memory
        own |= dict(zip(call.created, created if is_alike else [None] * len(call.created), strict=True))
    results = [
        ToolResult(call.name, "", Refusal.MALFORMED if call.is_refused else None) for call in proposal.calls
    ]
    done = replace(proposal, operations=tools.operations, results=results, odd_dates=tools.odd_dates)
    return _ReplayResult(done, misfits)


def _similarity(memory: Memory, predicted: Memory) -> tuple[bool, int]:
    """Compare by text, then by common source turns; ``(False, 0)`` means nothing in common."""
    if memory.kind is not predicted.kind:
        return (False, 0)
    is_same = memory.text.casefold() == predicted.text.casefold()
    return (is_same, len(set(memory.sources) & set(predicted.sources)))
