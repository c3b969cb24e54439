"""Groups in Arbor's format, which has no field for advantages: the reward field carries them.

All groups of a step are one batch of the server, and one optimizer step. With ``scale_rewards`` off, the
server only subtracts the mean of a batch's rewards. Advantages that sum to zero therefore pass through
unchanged.

Arbor's loss counts the tokens of prompts too. They cancel where the advantages of all samples with one prompt
sum to zero. The first prompt of a group is shared by all its samples. A later one has the results of one
rollout's calls: a sample of that prompt without a reply, with the opposite advantage, cancels it.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any

from memory_program.core.errors import ModelError
from memory_program.core.hashing import content_hash
from memory_program.rl.rewards import group_advantages

GroupItem = Mapping[str, Any]  # Any: JSON, as DSPy sends training data
ArborItem = dict[str, Any]  # Any: JSON

_NEGLIGIBLE = 1e-9  # the sum of advantages that were rounded


def recenter_advantages(
    advantages_G: Sequence[float], weights_G: Sequence[float], counted: Sequence[bool] | None = None
) -> list[float]:
    """Shift the baseline of weighted advantages so that they sum to zero.

    It turns w * (R - mean) / s into w * (R - b) / s, where b is the w-weighted mean reward. The scale s and
    the weights w stay the same. With equal weights, nothing changes.

    Args:
        advantages_G: of the samples.
        weights_G: of the samples.
        counted: those that are to sum to zero; all by default.

    Example:
        >>> recenter_advantages([0.5, -0.5], [1.0, 1.0])
        [0.5, -0.5]
        >>> recenter_advantages([4 * 0.5, -0.5], [4.0, 1.0])  # rewards 1 and 0: b is 0.8
        [0.8, -0.8]
    """
    chosen = [True] * len(weights_G) if counted is None else counted
    surplus = sum(compress(advantages_G, chosen)) / sum(compress(weights_G, chosen))
    return [
        round(advantage - weight * surplus, 12)
        for advantage, weight in zip(advantages_G, weights_G, strict=True)
    ]


def to_arbor_group(group: Sequence[GroupItem]) -> list[ArborItem] | None:
    """Convert one group of DSPy's training data to Arbor's format; None if all rewards are equal.

    An item may have an ``advantage`` and its ``weight``. Otherwise its advantage is (reward - mean) /
    (deviation + 1e-4). Every prompt gets samples whose advantages sum to zero: those with the prompt of the
    first item by ``recenter_advantages``, and every other one by a sample without a reply.

    Args:
        group: items with messages, completion and reward; the calls of one sample have one advantage.
    """
    prompts = [content_hash(item["messages"]) for item in group]
    if any(item.get("advantage") is None for item in group):
        advantages = group_advantages([item["reward"] for item in group])
    else:
        weights = [float(item.get("weight", 1.0)) for item in group]
        is_first = [prompt == prompts[0] for prompt in prompts]
        advantages = recenter_advantages([float(item["advantage"]) for item in group], weights, is_first)
    if advantages is None:
        return None
    sums: defaultdict[str, float] = defaultdict(float)
    messages: dict[str, Any] = {}  # Any: JSON
    sent: list[ArborItem] = []
    for item, prompt, advantage in zip(group, prompts, advantages, strict=True):
        sums[prompt] += advantage
        messages[prompt] = item["messages"]
        sent.append({"messages": item["messages"], "completion": item["completion"], "reward": advantage})
    sent += [
        {"messages": messages[prompt], "completion": [], "reward": -total}
        for prompt, total in sums.items()
        if abs(total) > _NEGLIGIBLE
    ]
    return sent


def to_arbor_batch(groups: Sequence[Sequence[ArborItem]], size: int) -> list[ArborItem]:
    """Join the groups of a step, and fill up the batch, whose size is fixed.

    Copies of the shortest prompt fill it. They have no reply and no advantage, so they change neither the
    gradient nor the number of tokens that the loss is divided by.

    Raises:
        ModelError: the groups have more samples than the batch.
    """
    batch = [item for group in groups for item in group]
    if len(batch) > size:
        raise ModelError(
            f"a step has {len(batch)} samples, and the job was begun with room for {size}: give the job the "
            "groups_per_step and turns of this training"
        )
    shortest = min((item["messages"] for item in batch), key=lambda messages: len(str(messages)))
    filler: ArborItem = {"messages": shortest, "completion": [], "reward": 0.0}
    return [*batch, *(filler for _ in range(size - len(batch)))]
