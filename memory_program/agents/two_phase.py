"""The build in two phases: what to remember of all sessions is proposed at once, then settled in order.

Session after session, each call waits for the one before it: a conversation of fifty sessions is a chain of
fifty calls. Here every agent first proposes for every session on the bank as it stands. Folded together, the
proposals guess what the bank will hold before each session; whoever's session touches something in that
guess is asked again, all at once, and sees it. Then the sessions are settled in order: the calls of each are
made on the real bank. Where one does not fit any more (it updates what another session deleted, say), that
agent is asked a last time, on the bank as it really is. So the chain is two calls, and one for each such
conflict.

It is optimistic concurrency control (Kung and Robinson 1981, ACM TODS 6(2)): read on a guess, validate in
order, redo what fails. Its price is calls: up to twice those of a build in order.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from locomo.types import Session
from memory_program.agents.program import MemoryProgram
from memory_program.agents.tools import READ_TOOLS, MemoryTools, ToolResult
from memory_program.agents.writer import MemoryWriter, Proposal, specialist_memory_kind
from memory_program.bank.bank import MemoryBank
from memory_program.bank.memory import Memory, Operation
from memory_program.bank.outcomes import SessionRecord
from memory_program.bank.space import MemorySpace
from memory_program.bank.stems import tokenize
from memory_program.core.errors import UnknownMemoryError

CONFLICT_OVERLAP = 0.2
"""A session touches a memory if it says this share of the memory's stems, the speakers' names left out.

With the oracle as writer, 16 made-up conversations end in the very banks of a build in order at 0.25 and
below; at 0.34 two memories of one of them stay that should have been deleted."""


@dataclass(frozen=True, slots=True)
class ProposalRequest:
    """What one agent is to be asked: to remember a session, seeing a view of the bank."""

    agent: str
    view: MemorySpace
    session: Session


ProposeAll = Callable[[Sequence[ProposalRequest]], Sequence[Proposal]]
"""Asks agents, side by side, and gives their proposals in the order of the asks.

Only the calls of proposals are used, never their operations: every call is made anew where it is applied."""


@dataclass(frozen=True, slots=True)
class CommittedSession:
    """A session that was settled, and whether an agent had to be asked on the real bank."""

    session: Session
    record: SessionRecord
    had_conflicts: bool


def remember_two_phase(
    program: MemoryProgram, space: MemorySpace, sessions: Sequence[Session], propose_all: ProposeAll
) -> Iterator[CommittedSession]:
    """Remember sessions, and yield after each one that the space has newly taken in.

    A build that goes on is given all of its sessions once more: the first of them may be in the space. Since
    the two phases begin on the space before them, every agent sees what it saw when the build began, and
    ``propose_all`` can give again what it gave then.

    Args:
        program: whose writer remembers.
        space: it takes in one session between two yields, wholly.
        sessions: at least one, in their order; those that the space has were remembered by this function.
        ask_all: asks the writer's agents; see ``MemoryWriter.propose``.
    """
    writer, start = program.writer, space.before(sessions[0])
    start.index.refresh(start.bank)  # once, not in every agent's fork
    asks = [ProposalRequest(agent, start, session) for session in sessions for agent in writer.agents]
    first = dict(zip(_places(asks), propose_all(asks), strict=True))
    guess = _PredictedBank(writer, start, sessions, first)
    again = guess.stale_requests()
    final = first | dict(zip(_places(again), propose_all(again), strict=True))
    real = _ActualBank(writer, start, guess, {_request_key(ask): ask.view.bank.core for ask in again})
    version = start.bank.version
    for session in sessions:
        settled = None
        if not space.has_session(session):
            draft = space.fork()
            draft.index.refresh(draft.bank)
            proposals = {name: final[session.session_id, name] for name in writer.agents}
            made = {name: real.try_replay(draft, session, proposal) for name, proposal in proposals.items()}
            conflicting = [
                ProposalRequest(name, draft.fork(), session)
                for name, proposal in made.items()
                if proposal is None
            ]
            for proposal in propose_all(conflicting):
                made[proposal.actor] = real.replay_retry(draft, session, proposal)
            done = [proposal for proposal in made.values() if proposal is not None]
            record: SessionRecord = writer.apply_proposals(draft, session, done).record
            draft.ingest(session, record)
            space.adopt(draft)
            settled = CommittedSession(session, record, bool(conflicting))
        since, version = version, space.sessions[session.session_id].version
        real.match_predictions(space.bank.operations(since)[: version - since], session)
        if settled is not None:
            yield settled


_SessionAgent = tuple[str, str]
"""A session's id, and an agent."""


def _request_key(ask: ProposalRequest) -> _SessionAgent:
    return ask.session.session_id, ask.agent


def _places(asks: Iterable[ProposalRequest]) -> list[_SessionAgent]:
    return [_request_key(ask) for ask in asks]


class _PredictedBank:
    """The bank as the first proposals would make it, before each session and in the end."""

    def __init__(
        self,
        writer: MemoryWriter,
        space: MemorySpace,
        sessions: Sequence[Session],
        first: Mapping[_SessionAgent, Proposal],
    ) -> None:
        """Fold the proposals in order; a call that does not fit what another session did is left out."""
        self._writer, self._sessions, self._first = writer, sessions, first
        self._views: dict[str, MemorySpace] = {}
        self.made: dict[str, list[tuple[str, Memory]]] = {}
        """The memories of the guess by session, each with the agent that proposed it."""
        self.ids = set[str]()
        """The ids of all of them."""
        guess = space.fork()
        for session in sessions:
            guess.index.refresh(guess.bank)
            self._views[session.session_id] = guess.fork()
            made = self.made[session.session_id] = list[tuple[str, Memory]]()
            for agent in writer.agents:
                replayed = _replay_calls(writer, guess, session, first[session.session_id, agent])
                created = [m for operation in replayed.proposal.operations for m in operation.created]
                made += [(agent, memory) for memory in created]
                self.ids.update(memory.memory_id for memory in created)

    def stale_requests(self) -> list[ProposalRequest]:
        """List who is to be asked again: those whose call failed, or whose session touches the guess."""
        return [
            ProposalRequest(agent, self._views[session.session_id], session)
            for session in self._sessions
            for agent in self._writer.agents
            if self._is_stale(session, agent)
        ]

    def _is_stale(self, session: Session, agent: str) -> bool:
        view, proposal = self._views[session.session_id], self._first[session.session_id, agent]
        if proposal.failures:
            return True
        if agent == "core":
            return bool(view.bank.core and proposal.calls)
        names = {stem for turn in session.turns for stem in tokenize(turn.speaker)}
        said = set(tokenize(session.transcript)) - names
        touched = self._writer.retrieve_related(agent, view, session)
        return any(_stem_overlap(memory, said, names) >= CONFLICT_OVERLAP for memory in touched)


class _ActualBank:
    """The bank as it comes to be: what memories of the guess have become in it."""

    def __init__(
        self,
        writer: MemoryWriter,
        space: MemorySpace,
        guess: _PredictedBank,
        cores: Mapping[_SessionAgent, str],
    ) -> None:
        """Begin with the space that both started from; ``cores`` are the profiles that agents were shown."""
        self._writer, self._guess, self._cores = writer, guess, cores
        self._first_core = space.bank.core
        self._became: dict[str, str] = {}

    def try_replay(self, draft: MemorySpace, session: Session, proposal: Proposal) -> Proposal | None:
        """Make the calls of a proposal on a fork of the real bank; None if one does not fit."""
        place = (session.session_id, proposal.actor)
        rewrites = any(call.args.get("action") == "rewrite" for call in proposal.calls)
        if rewrites and self._cores.get(place, self._first_core) != draft.bank.core:
            return None  # it would undo what others wrote into the profile
        workspace = draft.fork()
        replayed = _replay_calls(
            self._writer, workspace, session, proposal, lambda name: self._current_id(workspace.bank, name)
        )
        return None if replayed.misfits else replayed.proposal

    def replay_retry(self, draft: MemorySpace, session: Session, proposal: Proposal) -> Proposal:
        """Make the calls of a proposal that saw this very bank, so that it means what it names."""
        replayed = _replay_calls(self._writer, draft.fork(), session, proposal)
        errors = [*proposal.tool_errors, *replayed.misfits]
        return replace(replayed.proposal, tool_errors=errors)

    def match_predictions(self, operations: Sequence[Operation], session: Session) -> None:
        """Find what the guesses about a session have become, by the operations with which it was settled."""
        written = [
            (operation.provenance.actor, memory) for operation in operations for memory in operation.created
        ]
        for agent, guessed in self._guess.made[session.session_id]:
            own = [memory for actor, memory in written if actor == agent]
            best = max(own, key=lambda memory: _similarity(memory, guessed), default=None)
            if best is not None and any(_similarity(best, guessed)):
                self._became[guessed.memory_id] = best.memory_id

    def _current_id(self, bank: MemoryBank, memory_id: str) -> str | None:
        """Name the live memory that one of the guess is now; None if there is none."""
        if memory_id in self._guess.ids:
            memory_id = self._became.get(memory_id, "")
        try:
            memory = bank.get(memory_id)
        except UnknownMemoryError:
            return None
        while memory.superseded is not None:
            created = bank.operations(memory.superseded - 1)[0].created
            if len(created) != 1:
                return None
            memory = bank.get(created[0].memory_id)
        return memory.memory_id


@dataclass(frozen=True, slots=True)
class _ReplayResult:
    """A proposal with what its calls did to a bank, and what is wrong with those that did not fit it."""

    proposal: Proposal
    misfits: list[str]


def _replay_calls(
    writer: MemoryWriter,
    space: MemorySpace,
    session: Session,
    proposal: Proposal,
    now: Callable[[str], str | None] = lambda memory_id: memory_id,
) -> _ReplayResult:
    """Make a proposal's calls on a space; ``now`` gives the ids there of the memories that they name.

    Calls that were refused when they were proposed are left out, as are those that only read.
    """
    actor, misfits = proposal.actor, list[str]()
    tools = MemoryTools(space, session, actor, specialist_memory_kind(actor))
    own: dict[str, str | None] = {}  # what the proposal itself made: its id there, its id here
    for call in proposal.calls:
        if call.is_refused or call.name in READ_TOOLS:
            continue
        named = {name: own[name] if name in own else now(name) for name in call.referenced_ids}
        gone = [name for name, memory_id in named.items() if memory_id is None]
        if gone:
            misfits.append(f"{actor}: {call.name}: {', '.join(gone)} is not in the bank any more")
            continue
        before = len(tools.operations)
        result = tools.call(call.name, _translate_ids(call.args, named), writer.allowed_tools(actor))
        misfits += [f"{actor}: {call.name}: {result.text}"] if result.is_error else []
        created = [m.memory_id for operation in tools.operations[before:] for m in operation.created]
        is_alike = len(created) == len(call.created)  # not where only one of the banks knew the memory before
        own |= dict(zip(call.created, created if is_alike else [None] * len(call.created), strict=True))
    results = [ToolResult(call.name, "", call.is_refused) for call in proposal.calls]
    return _ReplayResult(replace(proposal, operations=tools.operations, results=results), misfits)


def _translate_ids(arguments: dict[str, Any], names: Mapping[str, str | None]) -> dict[str, Any]:  # Any: JSON
    renamed = dict(arguments)
    if isinstance(renamed.get("memory_id"), str):
        renamed["memory_id"] = names.get(renamed["memory_id"], renamed["memory_id"])
    if isinstance(renamed.get("memory_ids"), list):
        renamed["memory_ids"] = [names.get(name, name) for name in renamed["memory_ids"]]
    return renamed


def _stem_overlap(memory: Memory, said: set[str], names: set[str]) -> float:
    stems = set(tokenize(memory.text)) - names
    return len(stems & said) / len(stems) if stems else 1.0


def _similarity(memory: Memory, guessed: Memory) -> tuple[bool, int]:
    """Compare by the text, then by the turns that both come from; ``(False, 0)`` is nothing in common."""
    if memory.kind is not guessed.kind:
        return (False, 0)
    is_same = memory.text.casefold() == guessed.text.casefold()
    return (is_same, len(set(memory.sources) & set(guessed.sources)))
