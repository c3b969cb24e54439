"""Rollouts: one session remembered several times over, each time from the same memory, with every call kept.

What is trained on are the very tokens that were sampled for the very prompt that an agent was given, so there
is no second rendering of either, and each agent has the inputs that were its own.
"""

import threading
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import cast

import dspy
from dspy.lm15 import Request, Response

from memory_program.agents.program import MemoryProgram
from memory_program.agents.writer import MemoryWriter, Proposal
from memory_program.bank.budget import count_tokens
from memory_program.bank.memory import MemoryKind, Operation
from memory_program.bank.outcomes import CallFailure, Outcome
from memory_program.bank.space import MemorySpace
from memory_program.core.errors import ConfigError
from memory_program.models.rate_limit import Engine
from memory_program.rl.credit import written_kinds
from memory_program.rl.episodes import Episode
from memory_program.rl.rewards import AgentStats

ExpertTokens = Callable[[Episode, MemoryKind | None], int | None]
"""Says how many tokens an expert would write of an episode; None where nobody knows."""


@dataclass(frozen=True, slots=True)
class AgentCall:
    """One call of an agent in a rollout. ``turn`` counts the agent's calls from 0."""

    agent: str
    turn: int
    request: Request
    response: Response


@dataclass(frozen=True, slots=True)
class Rollout:
    """What became of an episode once: the memory afterwards, the calls, and what each agent did.

    ``written`` maps the memories that were written to their kinds, ``proposals`` are what agents wished to
    write. Calls that never came back stand in ``call_errors``, replies that could not be used in ``unusable_replies``.
    """

    episode: Episode
    number: int
    space: MemorySpace
    calls: tuple[AgentCall, ...]
    agent_stats: Mapping[str, AgentStats]
    written: Mapping[str, MemoryKind]
    failures: tuple[CallFailure, ...]
    proposals: tuple[Proposal, ...] = ()

    @property
    def call_errors(self) -> list[CallFailure]:
        """The failures that are not the model's doing: with one, nothing can be said of the rollout."""
        return [failure for failure in self.failures if failure.outcome is Outcome.ERROR]

    @property
    def unusable_replies(self) -> list[CallFailure]:
        """The replies that were cut or could not be read."""
        return [failure for failure in self.failures if failure.outcome is not Outcome.ERROR]


def get_policy_lm(program: MemoryProgram) -> dspy.LM:
    """Give the one model that all agents of the writer have.

    Raises:
        ConfigError: they have none, or several.
    """
    lms = [getattr(program.writer, agent).lm for agent in program.writer.agents]
    if lms[0] is None or any(lm is not lms[0] for lm in lms):
        raise ConfigError(
            "the agents of the writer must share one model, whose weights are trained: give it to all of "
            "them with program.writer.set_lm(lm)"
        )
    return lms[0]


def sampling_program(program: MemoryProgram, temperature: float, max_tokens: int) -> MemoryProgram:
    """Copy a program such that its writer's agents' calls are sampled, seeded, and kept by ``run_rollout``.

    A reply has ``max_tokens`` tokens at most, and no more than the model's own limit.
    """
    lm = get_policy_lm(program)
    max_tokens = min(max_tokens, lm.kwargs.get("max_tokens") or max_tokens)
    engine = cast(Engine, lm.engine)
    copied = program.deepcopy()
    for agent in copied.writer.agents:
        tap = _SeededRecordingEngine(engine, agent)
        getattr(copied.writer, agent).lm = lm.copy(engine=tap, temperature=temperature, max_tokens=max_tokens)
    return copied


def run_rollout(
    program: MemoryProgram,
    episode: Episode,
    seed: str,
    number: int = 0,
    expert_tokens: ExpertTokens | None = None,
) -> Rollout:
    """Let a program remember the session of an episode, which stays as it is.

    Args:
        program: one of ``sampling_program``, whose calls are kept.
        episode: what is remembered, and from which memory.
        seed: decides all that is sampled, together with the number, the agent and its turn.
        number: of the rollout among those of its episode in a step.
        expert_tokens: what the dense reward compares lengths with.
    """
    space = episode.before.fork()
    with _record_calls(f"{seed}/{episode.episode_id}/{number}") as recording:
        done = program.writer(space=space, session=episode.session)
    space.ingest(episode.session, done.record)
    proposals: list[Proposal] = done.proposals
    agents = program.writer.agents
    work = {
        proposal.actor: _make_agent_stats(proposal, done.operations, episode, space, expert_tokens)
        for proposal in proposals
        if proposal.actor in agents  # the others are not trained: what consolidates, say
    }
    return Rollout(
        episode=episode,
        number=number,
        space=space,
        calls=tuple(sorted(recording.calls, key=lambda call: (agents.index(call.agent), call.turn))),
        agent_stats=work,
        written=written_kinds(done.operations),
        failures=done.record.failures,
        proposals=tuple(proposal for proposal in proposals if proposal.actor in agents),
    )


def counterfactual_space(rollout: Rollout, agent: str, writer: MemoryWriter) -> MemorySpace:
    """Give the memory as it would be had one agent written nothing, and the others just what they did.

    No agent is called; the writer consolidates a memory that is over its budget, as ever.
    """
    space, session = rollout.episode.before.fork(), rollout.episode.session
    done = writer.apply_proposals(space, session, [p for p in rollout.proposals if p.actor != agent])
    space.ingest(session, done.record)
    return space


def kind_for_agent(agent: str) -> MemoryKind | None:
    """Give the kind of memory that an agent writes; None for one that writes all."""
    return MemoryKind(agent) if agent in {kind.value for kind in MemoryKind} else None


def _make_agent_stats(
    proposal: Proposal,
    operations: Sequence[Operation],
    episode: Episode,
    space: MemorySpace,
    expert_tokens: ExpertTokens | None,
) -> AgentStats:
    kind = kind_for_agent(proposal.actor)
    made = [m for o in operations if o.provenance.actor == proposal.actor for m in o.created]
    texts = [space.bank.core] if kind is MemoryKind.CORE else [memory.text for memory in made]
    return AgentStats(
        kind=kind,
        is_valid=not (proposal.failures or proposal.tool_errors),
        tokens=sum(count_tokens(text) for text in texts),
        expert_tokens=expert_tokens(episode, kind) if expert_tokens is not None else None,
        accepted=Counter(result.tool for result in proposal.results if not result.is_error),
        calls=Counter(result.tool for result in proposal.results),
    )


@dataclass(slots=True)
class _CallRecording:
    """The calls of one rollout, and the seeds that they get."""

    seed: str
    calls: list[AgentCall] = field(default_factory=list[AgentCall])
    turns: Counter[str] = field(default_factory=Counter[str])
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next_turn(self, agent: str) -> int:
        with self.lock:
            self.turns[agent] += 1
            return self.turns[agent] - 1

    def call_seed(self, agent: str, turn: int) -> int:
        return int.from_bytes(blake2b(f"{self.seed}/{agent}/{turn}".encode(), digest_size=7).digest())


_current_recording: ContextVar[_CallRecording | None] = ContextVar("open_recording", default=None)


@contextmanager
def _record_calls(seed: str) -> Generator[_CallRecording]:
    """Keep every call made inside, also in threads that run in a copy of this context."""
    recording = _CallRecording(seed)
    token = _current_recording.set(recording)
    try:
        yield recording
    finally:
        _current_recording.reset(token)


class _SeededRecordingEngine:
    """Stands before an engine: seeds the calls of one agent, and keeps them in the recording that is open."""

    def __init__(self, engine: Engine, agent: str) -> None:
        self._engine = engine
        self._agent = agent

    def __deepcopy__(self, memo: object) -> "_SeededRecordingEngine":
        return self

    def complete(self, request: Request) -> Response:
        recording = _current_recording.get()
        if recording is None:
            return self._engine.complete(request)
        turn = recording.next_turn(self._agent)
        seed = recording.call_seed(self._agent, turn)
        seeded = replace(request, config=replace(request.config, seed=seed))
        response = self._engine.complete(seeded)
        with recording.lock:
            recording.calls.append(AgentCall(self._agent, turn, seeded, response))
        return response
