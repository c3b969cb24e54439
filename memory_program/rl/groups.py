"""From rollouts to what is trained on: rewards by agent, advantages within a group, samples with tokens.

A group holds what one agent did in the rollouts of one episode: the same prompt, other replies. It is
rewarded for its own work, and weighed by its own part in what was retrieved.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dspy.lm15 import Request

from memory_program.bank.memory import MemoryKind
from memory_program.bank.outcomes import Answer
from memory_program.rl.credit import WeightedReward, attribution_weights, weighted_advantages
from memory_program.rl.rewards import RewardRule, RolloutScore
from memory_program.rl.rollouts import AgentCall, Rollout, kind_for_agent


@dataclass(frozen=True, slots=True)
class ScoredRollout:
    """A rollout, the answers from its memory, and what they are worth; None if that cannot be said."""

    rollout: Rollout
    answers: tuple[Answer, ...]
    score: RolloutScore | None


@dataclass(frozen=True, slots=True)
class AgentSample:
    """One agent's part in one rollout."""

    scored: ScoredRollout
    agent: str
    reward: float
    weight: float
    advantage: float

    @property
    def calls(self) -> list[AgentCall]:
        """The agent's calls: one, or several turns."""
        return [call for call in self.scored.rollout.calls if call.agent == self.agent]


@dataclass(frozen=True, slots=True)
class AgentGroup:
    """What one agent did in the rollouts of one episode."""

    episode_id: str
    agent: str
    samples: tuple[AgentSample, ...]


@dataclass(frozen=True, slots=True)
class EpisodeGroups:
    """The groups of an episode that teach something, all rewards by agent, and how many groups do not."""

    groups: tuple[AgentGroup, ...]
    rewards: Mapping[str, list[float]]
    zero_variance_groups: int


def group_by_agent(
    graded: Sequence[ScoredRollout],
    agents: Sequence[str],
    rule: RewardRule,
    *,
    alpha: float,
    scale_rewards: bool,
) -> EpisodeGroups:
    """Group the rollouts of one episode by agent.

    Args:
        graded: the rollouts of the episode; those without a score are left out.
        agents: of the writer.
        rule: makes the rewards.
        alpha: of ``attribution_weights``; 1 weighs all alike, as rewards do that tell agents apart.
        is_scaled: whether advantages are divided by the deviation of their group.
    """
    known = [g for g in graded if g.score is not None]
    weights_G = [_weights(g, 1.0 if rule.is_per_agent else alpha) for g in known]
    groups: list[AgentGroup] = []
    rewards: dict[str, list[float]] = {}
    for agent in agents:
        kind = kind_for_agent(agent)
        credited = [
            WeightedReward(_reward(g, agent, rule), 1.0 if kind is None else weights[kind])
            for g, weights in zip(known, weights_G, strict=True)
        ]
        rewards[agent] = [part.reward for part in credited]
        advantages = weighted_advantages(credited, scale_rewards=scale_rewards)
        if advantages is not None:
            triples = zip(known, credited, advantages, strict=True)
            parts = tuple(AgentSample(g, agent, c.reward, c.weight, advantage) for g, c, advantage in triples)
            groups.append(AgentGroup(known[0].rollout.episode.episode_id, agent, parts))
    return EpisodeGroups(tuple(groups), rewards, len(agents) - len(groups))


def _reward(graded: ScoredRollout, agent: str, rule: RewardRule) -> float:
    assert graded.score is not None, "a rollout without a score has no reward"
    return rule.reward(graded.rollout.agent_stats[agent], graded.score)


def _weights(graded: ScoredRollout, alpha: float) -> dict[MemoryKind, float]:
    shown = [answer.shown for answer in graded.answers]
    return attribution_weights(shown, graded.rollout.written, alpha)


def training_items(
    group: AgentGroup, *, has_own_logprobs: bool
) -> list[dict[str, Any]]:  # Any: JSON, for a job
    """Write a group as items of DSPy's training data; of an embedded model's replies, with their tokens.

    Args:
        group: the group.
        has_own_logprobs: whether the log-probabilities of the replies are those of their sampling: they are
            not at another temperature than 1.
    """
    items: list[dict[str, Any]] = []
    for part in group.samples:
        for call in part.calls:
            item: dict[str, Any] = {
                "messages": chat_messages(call.request),
                "completion": {"role": "assistant", "content": call.response.text or ""},
                "reward": part.reward,
                "advantage": part.advantage,
                "weight": part.weight,
            }
            tokens = call.response.logprobs or ()
            if tokens and all(token.token_id is not None for token in tokens):
                item["completion_tokens"] = tuple(token.token_id for token in tokens)
                item["logprobs"] = tuple(token.logprob for token in tokens) if has_own_logprobs else None
            items.append(item)
    return items


def chat_messages(request: Request) -> list[dict[str, str]]:
    """Write a request as the messages of a chat."""
    system = [{"role": "system", "content": request.system}] if isinstance(request.system, str) else []
    return [*system, *({"role": message.role, "content": message.text or ""} for message in request.messages)]
