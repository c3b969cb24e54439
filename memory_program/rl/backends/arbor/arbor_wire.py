"""Groups in Arbor's format, which has no field for advantages: the reward field carries them.

With ``scale_rewards`` off, the server only subtracts the mean of a group's rewards. Advantages that sum to
zero therefore pass through unchanged.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from memory_program.core.errors import ModelError
from memory_program.rl.rewards import group_advantages

GroupItem = Mapping[str, Any]  # Any: JSON, as DSPy sends training data
ArborItem = dict[str, Any]  # Any: JSON


def recenter_advantages(advantages_G: Sequence[float], weights_G: Sequence[float]) -> list[float]:
    """Shift the baseline of weighted advantages so that they sum to zero.

    It turns w * (R - mean) / s into w * (R - b) / s, where b is the w-weighted mean reward. The scale s and
    the weights w stay the same. With equal weights, nothing changes.

    Example:
        >>> recenter_advantages([0.5, -0.5], [1.0, 1.0])
        [0.5, -0.5]
        >>> recenter_advantages([4 * 0.5, -0.5], [4.0, 1.0])  # rewards 1 and 0: b is 0.8
        [0.8, -0.8]
    """
    surplus = sum(advantages_G) / sum(weights_G)
    return [
        round(advantage - weight * surplus, 12)
        for advantage, weight in zip(advantages_G, weights_G, strict=True)
    ]


def to_arbor_group(group: Sequence[GroupItem], size: int) -> list[ArborItem] | None:
    """Convert one group of DSPy's training data to Arbor's format; None if all rewards are equal.

    An item may have an ``advantage`` and its ``weight``. Otherwise its advantage is (reward - mean) /
    (deviation + 1e-4). Arbor requires full groups: copies of the shortest sample replace lost ones. Their
    advantage is 0, so they do not change the policy gradient.

    Args:
        group: items with messages, completion and reward.
        size: the number of samples that Arbor requires.

    Raises:
        ModelError: the group has too many samples, or several prompts.
    """
    if len(group) > size:
        raise ModelError(f"a group has {len(group)} samples, and the job takes {size}")
    if any(item["messages"] != group[0]["messages"] for item in group):
        raise ModelError(
            "the samples of a group have several prompts: Arbor's loss counts the tokens of prompts too, "
            "which cancel only where all have the same one; let every agent have one turn (--max-turns 1)"
        )
    if any(item.get("advantage") is None for item in group):
        advantages = group_advantages([item["reward"] for item in group])
    else:
        weights = [item.get("weight", 1.0) for item in group]
        advantages = recenter_advantages([float(item["advantage"]) for item in group], weights)
    if advantages is None:
        return None
    sent: list[ArborItem] = [
        {"messages": item["messages"], "completion": item["completion"], "reward": advantage}
        for item, advantage in zip(group, advantages, strict=True)
    ]
    shortest = min(sent, key=lambda item: len(item["completion"]["content"]))
    return [*sent, *({**shortest, "reward": 0.0} for _ in range(size - len(sent)))]
