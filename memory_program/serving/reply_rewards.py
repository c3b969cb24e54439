"""Rewards a reply that another trainer sampled, with the same code that rewards a rollout here.

The writer runs with a single agent, and the reply replaces the agent's model.
"""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

import dspy
from dspy.lm15 import Message, Request, Response, TextPart, Usage

from memory_program.agents.program import MemoryProgram
from memory_program.agents.reader import QAReader
from memory_program.agents.signatures import SPECIALISTS
from memory_program.agents.writer import MemoryWriter
from memory_program.bank.memory import MemoryKind
from memory_program.configs.trainer_groups import DEFAULT_LENGTHS, LengthSettings
from memory_program.rl.episodes import Episode
from memory_program.rl.rewards import AnswerMetric, RewardRule, attribution_weights
from memory_program.rl.rollouts import Grader, kind_for_agent, run_rollout

GENERALIST = "generalist"
AGENTS = (*SPECIALISTS, GENERALIST)
"""The agents with rewards."""

MAX_EARLIER = 30
"""Most replies of an agent before the one that is rewarded."""

_UNLIMITED_TOKENS = 10**9  # over a budget, a model would have to merge memories


@dataclass(frozen=True, slots=True)
class ReplyReward:
    """The reward of a reply and its parts. Without a ``reward``, ``reason`` says why.

    ``retrieved`` counts how often the reader was shown memories that the reply wrote, over all questions.
    ``weight`` is the attribution of the reply alone, as in ``attribution_weights``: alpha if any was shown,
    else 1. The replies of the episode's other agents are not known here, so it is never shared with them.
    """

    reward: float | None
    score: float | None
    length_penalty: float
    is_valid: bool
    retrieved: int = 0
    weight: float = 1.0
    reason: str = ""


class ReplyRewarder:
    """Rewards replies with a frozen reader, an answer metric and a reward rule."""

    def __init__(
        self,
        reader: QAReader,
        metric: AnswerMetric,
        rule: RewardRule,
        lengths: LengthSettings = DEFAULT_LENGTHS,
        alpha: float = 4.0,
    ) -> None:
        """Take what a ``Grader`` takes, the limits of the length penalty, and the weight of attribution."""
        self._grader = Grader(reader, metric, rule, threads=1)
        self._rule, self._lengths, self._alpha = rule, lengths, alpha
        self._programs = {(agent, 1): _make_program(agent, 1) for agent in AGENTS}

    def reward(
        self,
        episode: Episode,
        agent: str,
        reply: str,
        expert_tokens: Mapping[str, int] | None = None,
        earlier: Sequence[str] = (),
    ) -> ReplyReward:
        """Reward one agent's reply to an episode; safe from any thread.

        Args:
            episode: the session, the memory before it, and the questions.
            agent: one of ``AGENTS``.
            reply: of the model.
            expert_tokens: tokens that an expert wrote for the session, by kind; None if unknown.
            earlier: the agent's replies before this one, in its earlier turns; at most ``MAX_EARLIER``.
        """

        def count_expert_tokens(_: Episode, kind: MemoryKind | None) -> int | None:
            if expert_tokens is None:
                return None
            return sum(expert_tokens.values()) if kind is None else expert_tokens.get(kind.value, 0)

        key, replayed = (agent, len(earlier) + 1), _Replies([*earlier, reply])
        if key not in self._programs:
            self._programs[key] = _make_program(*key)
        token = _current_replies.set(replayed)
        try:
            rollout = run_rollout(
                self._programs[key], episode, "reply", 0, count_expert_tokens, self._lengths
            )
        finally:
            _current_replies.reset(token)
        work = rollout.agent_stats[agent]
        if replayed.asked < len(earlier):  # of calls before the last
            reason = "the earlier replies end the agent's work: it neither searches nor errs in one of them"
            return ReplyReward(None, None, work.length_penalty, work.is_valid, reason=reason)
        (graded,) = self._grader.grade([rollout])
        if graded.score is None:
            reasons = [answer.message for answer in graded.answers if answer.message]
            reason = next(iter(reasons), "the judge gave no verdict")
            return ReplyReward(None, None, work.length_penalty, work.is_valid, reason=reason)
        reward = self._rule.reward(work, graded.score)
        shown = [answer.shown for answer in graded.answers]
        retrieved = sum(name in rollout.written for names in shown for name in names)
        kind = kind_for_agent(agent)
        weights = attribution_weights(shown, rollout.written, self._alpha)
        weight = 1.0 if kind is None else weights[kind]
        score, penalty = graded.score.task, work.length_penalty
        return ReplyReward(reward, score, penalty, work.is_valid, retrieved, weight)


@dataclass(slots=True)
class _Replies:
    """The replies of an agent in its turns, and the number of the last one that was asked for."""

    texts: Sequence[str]
    asked: int = -1

    def next(self) -> str:
        """Return the next reply; the last one again if there is no other."""
        self.asked = min(self.asked + 1, len(self.texts) - 1)
        return self.texts[self.asked]


_current_replies: ContextVar[_Replies] = ContextVar("replayed")


class _Replay:
    """An engine that returns the replies that are being rewarded."""

    def __deepcopy__(self, memo: object) -> "_Replay":
        return self

    def complete(self, request: Request) -> Response:
        return Response(
            id=None,
            model=request.model,
            message=Message.assistant([TextPart(_current_replies.get().next())]),
            finish_reason="stop",
            usage=Usage(input_tokens=0, output_tokens=0),
        )


def _make_program(agent: str, turns: int) -> MemoryProgram:
    """Make a program with one agent, which never consolidates."""
    mode = "generalist" if agent == GENERALIST else "specialists"
    writer = MemoryWriter(mode, memory_budget=_UNLIMITED_TOKENS, max_turns=turns)
    writer.agents = (agent,)
    writer.set_lm(dspy.LM("reply", engine=_Replay(), cache=False, num_retries=0))
    return MemoryProgram(writer)
