"""Rewards a reply that another trainer sampled, with the same code that rewards a rollout here.

The writer runs with a single agent, and the reply replaces the agent's model.
"""

from contextvars import ContextVar
from dataclasses import dataclass

import dspy
from dspy.lm15 import Message, Request, Response, TextPart, Usage

from memory_program.agents.program import MemoryProgram
from memory_program.agents.reader import QAReader
from memory_program.agents.signatures import SPECIALISTS
from memory_program.agents.writer import MemoryWriter
from memory_program.rl.episodes import Episode
from memory_program.rl.rewards import AnswerMetric, RewardRule
from memory_program.rl.rollouts import Grader, run_rollout

GENERALIST = "generalist"
AGENTS = (*SPECIALISTS, GENERALIST)
"""The agents with rewards."""

_UNLIMITED_TOKENS = 10**9  # over a budget, a model would have to merge memories


@dataclass(frozen=True, slots=True)
class ReplyReward:
    """The reward of a reply and its parts. Without a ``reward``, ``reason`` says why."""

    reward: float | None
    score: float | None
    length_penalty: float
    is_valid: bool
    reason: str = ""


class ReplyRewarder:
    """Rewards replies with a frozen reader, an answer metric and a reward rule."""

    def __init__(self, reader: QAReader, metric: AnswerMetric, rule: RewardRule) -> None:
        """Take what a ``Grader`` takes."""
        self._grader = Grader(reader, metric, rule, threads=1)
        self._rule = rule
        self._programs: dict[str, MemoryProgram] = {}
        for agent in AGENTS:  # each alone, and it never consolidates
            mode = "generalist" if agent == GENERALIST else "specialists"
            writer = MemoryWriter(mode, memory_budget=_UNLIMITED_TOKENS)
            writer.agents = (agent,)
            writer.set_lm(dspy.LM("reply", engine=_Replay(), cache=False, num_retries=0))
            self._programs[agent] = MemoryProgram(writer)

    def reward(self, episode: Episode, agent: str, reply: str) -> ReplyReward:
        """Reward one agent's reply to an episode; safe from any thread. ``agent`` is one of ``AGENTS``."""
        token = _current_reply.set(reply)
        try:
            rollout = run_rollout(self._programs[agent], episode, "reply")
        finally:
            _current_reply.reset(token)
        (graded,) = self._grader.grade([rollout])
        work = rollout.agent_stats[agent]
        if graded.score is None:
            reasons = [answer.message for answer in graded.answers if answer.message]
            reason = next(iter(reasons), "the judge gave no verdict")
            return ReplyReward(None, None, work.length_penalty, work.is_valid, reason)
        reward = self._rule.reward(work, graded.score)
        return ReplyReward(reward, graded.score.task, work.length_penalty, work.is_valid)


_current_reply: ContextVar[str] = ContextVar("replayed")


class _Replay:
    """An engine that returns the reply that is being rewarded."""

    def __deepcopy__(self, memo: object) -> "_Replay":
        return self

    def complete(self, request: Request) -> Response:
        return Response(
            id=None,
            model=request.model,
            message=Message.assistant([TextPart(_current_reply.get())]),
            finish_reason="stop",
            usage=Usage(input_tokens=0, output_tokens=0),
        )
