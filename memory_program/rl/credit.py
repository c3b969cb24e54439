"""Who is to thank: the weight of each kind of memory in a rollout, and advantages within a group."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from memory_program.bank.memory import MEMORY_KINDS, MemoryKind, Operation

STD_EPSILON = 1e-4
"""Added to a group's standard deviation, as in TRL."""

_MIN_REWARD_RANGE = 1e-9  # below it, rewards differ by rounding only


def written_kinds(operations: Sequence[Operation]) -> dict[str, MemoryKind]:
    """Map the ids of the memories that some operations made to their kinds."""
    return {memory.memory_id: memory.kind for operation in operations for memory in operation.created}


def attribution_weights(
    shown: Sequence[Sequence[str]], written: Mapping[str, MemoryKind], alpha: float = 4.0
) -> dict[MemoryKind, float]:
    """Weigh the kinds by how often what this rollout wrote was retrieved for the episode's questions.

    The kind with the most has ``alpha``, the others 1; of several with the most, each has its share of what
    the first would have more: 1 + (alpha - 1) / how many. Without any, and for the core block, 1.
    Source: MemBuilder (arXiv 2601.05488), ADRPO. Deviation: they count memories of earlier sessions too, for
    which this rollout did nothing, and give every tie to the episodic ones.

    Args:
        shown: for each question, the ids of what the reader was shown.
        written: the kinds of the memories that this rollout wrote.
        alpha: the weight of the kind that was retrieved most.

    Example:
        >>> kinds = {"m7": MemoryKind.EPISODIC, "m8": MemoryKind.SEMANTIC}
        >>> weights = attribution_weights([["m1", "m7"], ["m7", "m8"]], kinds)
        >>> weights[MemoryKind.EPISODIC], weights[MemoryKind.SEMANTIC], weights[MemoryKind.CORE]
        (4.0, 1.0, 1.0)
    """
    counts = Counter(written[name] for names in shown for name in set(names) if name in written)
    most = max(counts.values(), default=0)
    leaders = [kind for kind in MEMORY_KINDS if most and counts[kind] == most]
    bonus = (alpha - 1) / len(leaders) if leaders else 0.0
    return {kind: 1.0 + (bonus if kind in leaders else 0.0) for kind in MemoryKind}


def group_advantages(rewards_G: Sequence[float], *, scale_rewards: bool = True) -> list[float] | None:
    """Give (reward - mean) / (standard deviation + 1e-4) within a group; None where there is no spread.

    The deviation is that of a sample (n - 1), as in TRL and DeepSeekMath (arXiv 2402.03300). Unscaled, the
    mean alone is subtracted (Dr. GRPO, arXiv 2503.20783).

    Example:
        >>> group_advantages([1.0, 0.0], scale_rewards=False)
        [0.5, -0.5]
        >>> group_advantages([0.3, 0.3]) is None
        True
    """
    if len(rewards_G) < 2 or max(rewards_G) - min(rewards_G) < _MIN_REWARD_RANGE:
        return None
    mean = fmean(rewards_G)
    scale = stdev(rewards_G) + STD_EPSILON if scale_rewards else 1.0
    return [(reward - mean) / scale for reward in rewards_G]


@dataclass(frozen=True, slots=True)
class WeightedReward:
    """One rollout's part in a group: its reward, and the weight of its advantage."""

    reward: float
    weight: float = 1.0


def weighted_advantages(group: Sequence[WeightedReward], *, scale_rewards: bool = True) -> list[float] | None:
    """Give weight * advantage for each rollout of a group; None where there is no spread.

    Clipped, min(w * rho * A, w * clip(rho) * A) is what the advantage w * A gives.
    """
    advantages = group_advantages([part.reward for part in group], scale_rewards=scale_rewards)
    if advantages is None:
        return None
    return [part.weight * advantage for part, advantage in zip(group, advantages, strict=True)]
