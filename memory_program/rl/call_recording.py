"""Recorded calls of a policy: the prompt and the sampled tokens of each, which training uses as they are.

A recording seeds its calls, so that a rollout can be repeated. No prompt and no reply is rendered twice.
"""

import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import cast

import dspy
from dspy.lm15 import Request, Response

from memory_program.models.rate_limit import Engine


@dataclass(frozen=True, slots=True)
class AgentCall:
    """One call of an agent in a rollout. ``turn`` counts the agent's calls from 0."""

    agent: str
    turn: int
    request: Request
    response: Response


@dataclass(slots=True)
class _CallRecording:
    """The calls of one rollout, and the number of calls of each agent so far."""

    seed: str
    calls: list[AgentCall] = field(default_factory=list[AgentCall])
    turns: Counter[str] = field(default_factory=Counter[str])
    lock: threading.Lock = field(default_factory=threading.Lock)


_current_recording: ContextVar[_CallRecording | None] = ContextVar("current_recording", default=None)


@contextmanager
def recorded_calls(seed: str) -> Generator[list[AgentCall]]:
    """Record the calls of recording models inside the block, in the order of their replies.

    Args:
        seed: with the agent and its turn, it decides everything that is sampled.
    """
    recording = _CallRecording(seed)
    token = _current_recording.set(recording)  # threads that run in a copy of this context record, too
    try:
        yield recording.calls
    finally:
        _current_recording.reset(token)


def recording_lm(
    lm: dspy.LM, agent: str, temperature: float, max_tokens: int, *, is_expert: bool = False
) -> dspy.LM:
    """Copy a model so that the calls of an agent can be seeded and recorded; the weights are shared.

    A reply has at most ``max_tokens`` tokens, and no more than the model's own limit. A policy samples
    without a stop string and without a grammar: it learns to end its replies and to keep to a form itself.
    An expert is called as in an evaluation, a reasoning model with a limit and a temperature of its own.
    """
    engine = _SeededRecordingEngine(cast(Engine, lm.engine), agent, is_expert)
    if is_expert and "max_completion_tokens" in lm.kwargs:
        return lm.copy(engine=engine)
    limit = min(max_tokens, lm.kwargs.get("max_tokens") or max_tokens)
    return lm.copy(engine=engine, temperature=temperature, max_tokens=limit)


class _SeededRecordingEngine:
    """Wraps an engine: seeds the calls of one agent and adds them to the current recording."""

    def __init__(self, engine: Engine, agent: str, is_expert: bool) -> None:
        self._engine = engine
        self._agent = agent
        self._is_expert = is_expert

    def __deepcopy__(self, memo: object) -> "_SeededRecordingEngine":
        return self

    def complete(self, request: Request) -> Response:
        recording = _current_recording.get()
        if recording is None:
            return self._engine.complete(request)
        with recording.lock:
            turn = recording.turns[self._agent]
            recording.turns[self._agent] += 1
        digest = blake2b(f"{recording.seed}/{self._agent}/{turn}".encode(), digest_size=7).digest()
        config = replace(request.config, seed=int.from_bytes(digest))
        config = config if self._is_expert else replace(config, stop=(), response_format=None)
        seeded = replace(request, config=config)
        response = self._engine.complete(seeded)
        with recording.lock:
            recording.calls.append(AgentCall(self._agent, turn, seeded, response))
        return response
