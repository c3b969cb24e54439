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
from memory_program.rl.credit import Credited, attribution_weights, weighted_advantages
from memory_program.rl.rewards import RewardRule, Score
from memory_program.rl.rollouts import Call, Rollout, kind_of


@dataclass(frozen=True, slots=True)
class Graded:
    """A rollout, the answers from its memory, and what they are worth; None if that cannot be said."""

    rollout: Rollout
    answers: tuple[Answer, ...]
    score: Score | None


@dataclass(frozen=True, slots=True)
class Part:
    """One agent's part in one rollout."""

    graded: Graded
    agent: str
    reward: float
    weight: float
    advantage: float

    @property
    def calls(self) -> list[Call]:
        """The agent's calls: one, or several turns."""
        return [call for call in self.graded.rollout.calls if call.agent == self.agent]


@dataclass(frozen=True, slots=True)
class Group:
    """What one agent did in the rollouts of one episode."""

    episode_id: str
    agent: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Grouping:
    """The groups of an episode that teach something, all rewards by agent, and how many groups do not."""

    groups: tuple[Group, ...]
    rewards: Mapping[str, list[float]]
    without_spread: int


def groups_of(
    graded: Sequence[Graded], agents: Sequence[str], rule: RewardRule, *, alpha: float, is_scaled: bool
) -> Grouping:
    """Group the rollouts of one episode by agent.

    Args:
        graded: the rollouts of the episode; those without a score are left out.
        agents: of the writer.
        rule: makes the rewards.
        alpha: of ``attribution_weights``; 1 weighs all alike, as rewards do that tell agents apart.
        is_scaled: whether advantages are divided by the deviation of their group.
    """
    known = [g for g in graded if g.score is not None]
    weights_G = [_weights(g, 1.0 if rule.tells_agents_apart else alpha) for g in known]
    groups: list[Group] = []
    rewards: dict[str, list[float]] = {}
    for agent in agents:
        kind = kind_of(agent)
        credited = [
            Credited(_reward(g, agent, rule), 1.0 if kind is None else weights[kind])
            for g, weights in zip(known, weights_G, strict=True)
        ]
        rewards[agent] = [part.reward for part in credited]
        advantages = weighted_advantages(credited, is_scaled=is_scaled)
        if advantages is not None:
            triples = zip(known, credited, advantages, strict=True)
            parts = tuple(Part(g, agent, c.reward, c.weight, advantage) for g, c, advantage in triples)
            groups.append(Group(known[0].rollout.episode.episode_id, agent, parts))
    return Grouping(tuple(groups), rewards, len(agents) - len(groups))


def _reward(graded: Graded, agent: str, rule: RewardRule) -> float:
    assert graded.score is not None, "a rollout without a score has no reward"
    return rule.reward(graded.rollout.work[agent], graded.score)


def _weights(graded: Graded, alpha: float) -> dict[MemoryKind, float]:
    shown = [answer.shown for answer in graded.answers]
    return attribution_weights(shown, graded.rollout.written, alpha)


def training_items(group: Group, *, has_own_logprobs: bool) -> list[dict[str, Any]]:  # Any: JSON, for a job
    """Write a group as items of DSPy's training data; of an embedded model's replies, with their tokens.

    Args:
        group: the group.
        has_own_logprobs: whether the log-probabilities of the replies are those of their sampling: they are
            not at another temperature than 1.
    """
    items: list[dict[str, Any]] = []
    for part in group.parts:
        for call in part.calls:
            item: dict[str, Any] = {
                "messages": messages_of(call.request),
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


def messages_of(request: Request) -> list[dict[str, str]]:
    """Write a request as the messages of a chat."""
    system = [{"role": "system", "content": request.system}] if isinstance(request.system, str) else []
    return [*system, *({"role": message.role, "content": message.text or ""} for message in request.messages)]
