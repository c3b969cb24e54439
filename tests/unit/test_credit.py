import math

import pytest

from memory_program.bank.bank import MemoryBank
from memory_program.bank.memory import Draft, MemoryKind, Provenance
from memory_program.rl.rewards import (
    WeightedReward,
    attribution_weights,
    group_advantages,
    weighted_advantages,
    written_kinds,
)

CORE, EPISODIC, SEMANTIC, PROCEDURAL = MemoryKind
WRITTEN = {"m5": EPISODIC, "m6": SEMANTIC, "m7": SEMANTIC, "m8": PROCEDURAL}


def test_the_kind_whose_memories_were_retrieved_most_has_alpha():
    shown = [["m1", "m6", "m5"], ["m7", "m6"], []]
    assert attribution_weights(shown, WRITTEN) == {CORE: 1.0, EPISODIC: 1.0, SEMANTIC: 4.0, PROCEDURAL: 1.0}


def test_memories_that_the_rollout_did_not_write_earn_it_nothing():
    assert attribution_weights([["m1", "m2", "m3"], ["m1"]], WRITTEN) == dict.fromkeys(MemoryKind, 1.0)


def test_a_tie_is_shared():
    weights = attribution_weights([["m5", "m6"]], WRITTEN)
    assert weights == {CORE: 1.0, EPISODIC: 2.5, SEMANTIC: 2.5, PROCEDURAL: 1.0}  # 1 + (4 - 1) / 2
    three = attribution_weights([["m5"], ["m7"], ["m8"]], WRITTEN, alpha=7.0)
    assert three == {CORE: 1.0, EPISODIC: 3.0, SEMANTIC: 3.0, PROCEDURAL: 3.0}  # 1 + (7 - 1) / 3


def test_alpha_one_weighs_all_alike():
    assert set(attribution_weights([["m5"]], WRITTEN, alpha=1.0).values()) == {1.0}


def test_what_was_written_is_read_from_the_operations():
    bank = MemoryBank("b")
    by = Provenance("test")
    bank.create([Draft("old", SEMANTIC)], by)
    start = bank.version
    bank.create([Draft("new", EPISODIC)], by)
    bank.update("m1", Draft("newer", SEMANTIC), by)
    bank.edit_core("profile", by)
    assert written_kinds(bank.operations(since=start)) == {"m2": EPISODIC, "m3": SEMANTIC}


def test_advantages_are_deviations_in_units_of_the_groups_spread():
    # mean 0.5, deviations 0.5 and -0.5, twice each: variance 4 * 0.25 / 3
    deviation = math.sqrt(1 / 3)
    expected = [s * 0.5 / (deviation + 1e-4) for s in (1, -1, 1, -1)]
    assert group_advantages([1.0, 0.0, 1.0, 0.0]) == pytest.approx(expected)


def test_unscaled_advantages_are_plain_deviations():
    assert group_advantages([0.9, 0.3, 0.3], scale_rewards=False) == pytest.approx([0.4, -0.2, -0.2])


@pytest.mark.parametrize("rewards", [[], [0.7], [0.5, 0.5, 0.5], [0.1 + 0.2, 0.3]])
def test_a_group_without_spread_has_no_advantages(rewards):
    assert group_advantages(rewards) is None
    assert weighted_advantages([WeightedReward(reward) for reward in rewards]) is None


def test_weights_multiply_advantages_and_not_rewards():
    group = [WeightedReward(1.0, 4.0), WeightedReward(0.0, 1.0), WeightedReward(0.5, 2.5)]
    assert weighted_advantages(group, scale_rewards=False) == pytest.approx([2.0, -0.5, 0.0])
