"""Rewards and credit: every number is computed by hand from the formulas of the papers, with our repairs."""

import math

import dspy
import pytest
from dspy import lm15

from locomo.judge.judge import VERDICT_TOKENS
from locomo.judge.rubrics import Rubric
from locomo.types import Category, Question
from memory_program.bank.bank import MemoryBank
from memory_program.bank.memory import Draft, MemoryKind, Provenance
from memory_program.bank.outcomes import Answer, Outcome
from memory_program.bank.space import MemorySpace
from memory_program.configs.trainer_groups import GRPOSettings, LengthSettings
from memory_program.core.errors import ConfigError, ModelError, QuotaExhaustedError
from memory_program.models.reply_settings import THINKING_TOKENS, ReplySettings
from memory_program.rl.rewards import (
    AgentStats,
    BankSize,
    RewardRule,
    RolloutScore,
    WeightedReward,
    attribution_weights,
    bank_efficiency,
    build_answer_metric,
    compare,
    core_length_penalty,
    delta_reward,
    dense_reward,
    group_advantages,
    relative_length_penalty,
    task_score,
    weighted_advantages,
    written_kinds,
)
from tests.competent_model import chat_format
from tests.scripted_lm import ScriptedLM, fields
from tests.training_samples import reader_by_rules

CAT = Question("c", 0, "What is the cat called?", Category.SINGLE_HOP, "Pip the cat")
TRAP = Question("c", 1, "What is the dog called?", Category.ADVERSARIAL, None, adversarial_answer="Rex")
ABSTAINS = Answer("Not mentioned in the conversation")
LOST = Answer("", Outcome.ERROR, "reader.answer: no answer")


@pytest.mark.parametrize(
    ("tokens", "penalty"), [(0, 0), (150, 0), (200, 0.2), (275, 0.5), (399, 0.996), (400, 1), (9000, 1)]
)
def test_the_core_penalty_rises_from_150_to_400_tokens(tokens, penalty):
    assert core_length_penalty(tokens) == pytest.approx(penalty, abs=1e-12)


@pytest.mark.parametrize(
    ("tokens", "expert", "penalty"),
    [
        (1000, 1000, 0.0),
        (1300, 1000, 0.0),  # ratio 1.3: the last that is free
        (1650, 1000, 0.5),  # (1.65 - 1.3) / 0.7
        (2000, 1000, 1.0),
        (9000, 1000, 1.0),
        (500, 1000, 0.0),  # ratio 0.5: the last that is free
        (380, 1000, 0.4),  # (0.5 - 0.38) / 0.3
        (0, 1000, 1.0),  # (0.5 - 0) / 0.3 is 1.67
        (199, 0, 0.0),  # they differ by less than 200
        (200, 0, 1.0),  # the expert wrote nothing
        (260, 100, 0.0),  # ratio 2.6, but 160 tokens apart
        (5000, None, 0.0),  # no expert is known
    ],
)
def test_the_length_penalty_depends_on_the_ratio_to_the_expert(tokens, expert, penalty):
    assert relative_length_penalty(tokens, expert) == pytest.approx(penalty, abs=1e-9)


def test_the_dense_reward_is_valid_times_task_times_one_minus_length():
    assert dense_reward(0.75, 0.5, is_valid=True) == pytest.approx(0.75 * 0.6)  # 1 - 0.8 * 0.5
    assert dense_reward(0.75, 1.0, is_valid=True, length_weight=0.5) == pytest.approx(0.375)
    assert dense_reward(1.0, 0.0, is_valid=False) == 0.0


@pytest.mark.parametrize(
    ("old", "new", "e"),
    [
        ((10, 50.0), (10, 50.0), 1.0),
        ((10, 50.0), (11, 60.0), 1.14),  # density 1.2, change 1 - 0.5 * 0.1
        ((10, 50.0), (20, 25.0), 0.4),  # density 0.5, change 0.8 at least
        ((100, 50.0), (150, 50.0), 0.4),  # size 0.5, change 1 - 0.25, but 0.8 at least
        ((0, 0.0), (2, 40.0), 0.8),  # nothing before: density 1, change 0.8 at least
        ((180, 40.0), (500, 40.0), 0.1),  # size 0.1, change 0.8: 0.08, but 0.1 at least
        ((10, 50.0), (0, 0.0), 0.1),  # everything deleted
    ],
)
def test_efficiency_is_size_times_density_times_change(old, new, e):
    assert bank_efficiency(BankSize(*old), BankSize(*new)) == pytest.approx(e)


def test_a_bank_size_counts_live_memories():
    bank = MemoryBank("b")
    by = Provenance("test")
    bank.create([Draft("four", MemoryKind.SEMANTIC), Draft("sixsix", MemoryKind.EPISODIC)], by)
    before = bank.fork()
    bank.delete("m1", by)
    assert (BankSize.from_bank(before), BankSize.from_bank(bank)) == (BankSize(2, 5.0), BankSize(1, 6.0))
    assert BankSize.from_bank(MemoryBank("empty")) == BankSize(0, 0.0)


def test_a_bloated_bank_shrinks_gains_and_enlarges_losses():
    assert delta_reward(0.2, 0.6, 1.5) == pytest.approx(0.6)
    assert delta_reward(0.2, 0.6, 0.5) == pytest.approx(0.2)
    assert delta_reward(0.6, 0.2, 1.5) == pytest.approx(-0.2)  # 0.4 * (2 - 1.5)
    assert delta_reward(0.6, 0.2, 0.5) == pytest.approx(-0.6)  # 0.4 * (2 - 0.5)
    assert delta_reward(0.4, 0.4, 0.5) == 0.0


def test_each_rule_has_its_formula():
    stats = AgentStats(MemoryKind.EPISODIC, is_valid=True, tokens=1650, expert_tokens=1000)
    score = RolloutScore(task=0.5, before=0.25, efficiency=0.8)
    assert RewardRule("outcome").reward(stats, score) == 0.5
    assert RewardRule("dense").reward(stats, score) == pytest.approx(0.5 * 0.6)
    assert RewardRule("delta").reward(stats, score) == pytest.approx(0.25 * 0.8)


def test_an_invalid_reply_can_lose_but_not_gain():
    stats = AgentStats(MemoryKind.SEMANTIC, is_valid=False, tokens=0)
    assert RewardRule("outcome").reward(stats, RolloutScore(1.0)) == 0.0
    assert RewardRule("dense").reward(stats, RolloutScore(1.0)) == 0.0
    assert RewardRule("delta").reward(stats, RolloutScore(1.0, before=0.0)) == 0.0
    assert RewardRule("delta").reward(stats, RolloutScore(0.0, before=0.5)) == pytest.approx(-0.5)


def test_the_core_penalty_ignores_the_expert():
    stats = AgentStats(MemoryKind.CORE, is_valid=True, tokens=275, expert_tokens=10_000)
    assert RewardRule("dense").reward(stats, RolloutScore(1.0)) == pytest.approx(0.6)


def test_format_and_tool_bonuses_are_off_by_default():
    calls = {"manage_memory": 4, "delete_memory": 1}
    accepted = {"manage_memory": 3, "delete_memory": 0}
    stats = AgentStats(MemoryKind.EPISODIC, is_valid=True, tokens=10, accepted=accepted, calls=calls)
    assert RewardRule("outcome").reward(stats, RolloutScore(0.5)) == 0.5
    rule = RewardRule(
        "outcome",
        format_weight=0.1,
        tool_weights={"manage_memory": 0.2, "delete_memory": 0.4, "merge_memory": 9.0},
    )
    assert rule.reward(stats, RolloutScore(0.5)) == pytest.approx(0.5 + 0.1 + 0.2 * 3 / 4)
    broken = AgentStats(MemoryKind.EPISODIC, is_valid=False, tokens=10)
    assert rule.reward(broken, RolloutScore(0.5)) == 0.0
    with pytest.raises(ConfigError, match="unknown tool 'merge': choose from search_memory"):
        RewardRule(tool_weights={"merge": 0.1})


def test_tool_weights_are_checked():
    assert GRPOSettings(tool_weights="merge_memory=0.1, delete_memory=-0.2").rewards.tool_weights
    for wrong in ("merge_memory", "merge_memory=x", "merge_memory=nan", "a=1,a=2"):
        with pytest.raises(ConfigError, match=r"write each tool once, as merge_memory=0\.1"):
            GRPOSettings(tool_weights=wrong)


def test_the_f1_metric_is_the_official_f1():
    metric = build_answer_metric("f1")
    assert metric(CAT, Answer("Pip")) == pytest.approx(2 / 3)  # "the" is an article: 1 of 1, and 1 of 2
    assert metric(CAT, ABSTAINS) == 0.0
    assert metric(TRAP, ABSTAINS) == 1.0
    assert metric(TRAP, Answer("Rex")) == 0.0
    assert metric(CAT, LOST) is None


def test_the_mix_averages_f1_and_verdict():
    with ScriptedLM([fields(reasoning="same", verdict="CORRECT")] * 2) as lm:
        assert build_answer_metric("judge", judge_lm=lm)(CAT, Answer("Pip")) == 1.0
        assert build_answer_metric("mix", judge_lm=lm)(CAT, Answer("Pip")) == pytest.approx((2 / 3 + 1) / 2)


def test_abstentions_are_scored_without_the_judge():
    with ScriptedLM([]) as lm:
        metric = build_answer_metric("judge", Rubric.LENIENT, lm)
        assert (metric(TRAP, ABSTAINS), metric(TRAP, Answer("Rex")), metric(CAT, ABSTAINS)) == (1.0, 0.0, 0.0)


def test_a_failed_or_unparsed_verdict_gives_no_score():
    replies = [lm15.ServerError("down"), fields(reasoning="?", verdict="maybe")]
    with ScriptedLM(replies) as lm:
        metric = build_answer_metric("judge", judge_lm=lm)
        assert metric(CAT, Answer("Pip")) is None
        assert metric(CAT, Answer("Pip")) is None


@pytest.mark.parametrize(
    ("model", "replies", "limit"),
    [
        ("openai/gpt-4.1", None, VERDICT_TOKENS),
        ("openai/Qwen/Qwen3-8B", None, VERDICT_TOKENS + THINKING_TOKENS),
        (
            "openai/Qwen/Qwen3-8B",
            ReplySettings(chat_template_kwargs={"enable_thinking": False}),
            VERDICT_TOKENS,
        ),
        ("openai/gpt-4.1", ReplySettings(max_tokens=9000), 9000),
    ],
)
def test_a_judge_that_thinks_has_room_for_its_thoughts(model, replies, limit):
    with ScriptedLM([fields(reasoning="same", verdict="CORRECT")], model=model, max_tokens=20_000) as lm:
        assert build_answer_metric("judge", judge_lm=lm, replies=replies)(CAT, Answer("Pip")) == 1.0
        assert lm.script.configs[0].max_tokens == limit


def test_a_judge_without_credit_ends_the_run():
    with ScriptedLM([lm15.BillingError("no credit")]) as lm:
        metric = build_answer_metric("judge", judge_lm=lm)
        with pytest.raises(QuotaExhaustedError, match=r"judge: .*no credit"):
            metric(CAT, Answer("Pip"))


def test_a_metric_that_needs_a_judge_asks_for_one():
    with pytest.raises(ConfigError, match="answer metric 'judge' needs a judge"):
        build_answer_metric("judge")


def test_one_unscored_answer_leaves_the_episode_unscored():
    metric = build_answer_metric("f1")
    assert task_score([CAT, TRAP], [Answer("Pip"), ABSTAINS], metric) == pytest.approx((2 / 3 + 1) / 2)
    assert task_score([CAT, TRAP], [Answer("Pip"), LOST], metric) is None


def test_leave_one_out_subtracts_the_score_without_the_agent():
    rule = RewardRule("leave-one-out")
    assert RewardRule("difference") == rule  # the name of version 0.1
    score = RolloutScore(0.75, counterfactual_scores={MemoryKind.EPISODIC: 0.25, MemoryKind.SEMANTIC: 1.0})
    rewards = {kind: rule.reward(AgentStats(kind, True, 10), score) for kind in MemoryKind}
    assert rewards == {
        MemoryKind.CORE: 0.0,  # it wrote nothing
        MemoryKind.EPISODIC: 0.5,
        MemoryKind.SEMANTIC: -0.25,
        MemoryKind.PROCEDURAL: 0.0,
    }
    assert rule.reward(AgentStats(MemoryKind.EPISODIC, False, 10), score) == 0.0
    assert rule.reward(AgentStats(MemoryKind.SEMANTIC, False, 10), score) == -0.25


# credit assignment

CORE, EPISODIC, SEMANTIC, PROCEDURAL = MemoryKind
WRITTEN = {"m5": EPISODIC, "m6": SEMANTIC, "m7": SEMANTIC, "m8": PROCEDURAL}


def test_the_kind_retrieved_most_has_weight_alpha():
    shown = [["m1", "m6", "m5"], ["m7", "m6"], []]
    assert attribution_weights(shown, WRITTEN) == {CORE: 1.0, EPISODIC: 1.0, SEMANTIC: 4.0, PROCEDURAL: 1.0}


def test_memories_of_earlier_sessions_give_no_weight():
    assert attribution_weights([["m1", "m2", "m3"], ["m1"]], WRITTEN) == dict.fromkeys(MemoryKind, 1.0)


def test_a_tie_shares_the_bonus():
    weights = attribution_weights([["m5", "m6"]], WRITTEN)
    assert weights == {CORE: 1.0, EPISODIC: 2.5, SEMANTIC: 2.5, PROCEDURAL: 1.0}  # 1 + (4 - 1) / 2
    three = attribution_weights([["m5"], ["m7"], ["m8"]], WRITTEN, alpha=7.0)
    assert three == {CORE: 1.0, EPISODIC: 3.0, SEMANTIC: 3.0, PROCEDURAL: 3.0}  # 1 + (7 - 1) / 3


def test_alpha_one_gives_equal_weights():
    assert set(attribution_weights([["m5"]], WRITTEN, alpha=1.0).values()) == {1.0}


def test_written_kinds_are_read_from_the_operations():
    bank = MemoryBank("b")
    by = Provenance("test")
    bank.create([Draft("old", SEMANTIC)], by)
    start = bank.version
    bank.create([Draft("new", EPISODIC)], by)
    bank.update("m1", Draft("newer", SEMANTIC), by)
    bank.edit_core("profile", by)
    assert written_kinds(bank.operations(since=start)) == {"m2": EPISODIC, "m3": SEMANTIC}


def test_advantages_are_divided_by_the_standard_deviation():
    # mean 0.5, deviations 0.5 and -0.5, twice each: variance 4 * 0.25 / 3
    deviation = math.sqrt(1 / 3)
    expected = [s * 0.5 / (deviation + 1e-4) for s in (1, -1, 1, -1)]
    assert group_advantages([1.0, 0.0, 1.0, 0.0]) == pytest.approx(expected)


def test_unscaled_advantages_only_subtract_the_mean():
    assert group_advantages([0.9, 0.3, 0.3], scale_rewards=False) == pytest.approx([0.4, -0.2, -0.2])


@pytest.mark.parametrize("rewards", [[], [0.7], [0.5, 0.5, 0.5], [0.1 + 0.2, 0.3]])
def test_equal_rewards_have_no_advantages(rewards):
    assert group_advantages(rewards) is None
    assert weighted_advantages([WeightedReward(reward) for reward in rewards]) is None


def test_weights_multiply_advantages_and_not_rewards():
    group = [WeightedReward(1.0, 4.0), WeightedReward(0.0, 1.0), WeightedReward(0.5, 2.5)]
    assert weighted_advantages(group, scale_rewards=False) == pytest.approx([2.0, -0.5, 0.0])


# -- two memories and a question ---------------------------------------------------------------------


def remembering(*texts: str) -> MemorySpace:
    space = MemorySpace("talk")
    for text in texts:
        space.bank.create([Draft(text, MemoryKind.SEMANTIC)], Provenance("test", "session_1", ""))
    return space


def test_two_memories_are_compared_by_a_question():
    old, new = remembering("Tom has a boat."), remembering("Tom has a boat.", "Mara moved to Oslo.")
    found = compare(old, new, "Where did Mara move, Oslo?", "Mara moved to Oslo.", reader=reader_by_rules())
    assert (found.old_score, found.new_score, found.new_answer) == (0.0, 1.0, "Mara moved to Oslo.")
    efficiency = bank_efficiency(BankSize.from_bank(old.bank), BankSize.from_bank(new.bank))
    assert found.efficiency == efficiency
    assert found.reward == delta_reward(0.0, 1.0, efficiency) > 0
    back = compare(new, old, "Where did Mara move, Oslo?", "Mara moved to Oslo.", reader=reader_by_rules())
    assert back.reward < 0
    assert len(old.bank.live()) == 1


def test_an_unanswerable_question_rewards_abstaining():
    with ScriptedLM([chat_format({"answer": text}) for text in ("Oslo", "Not mentioned")]) as lm:
        with dspy.context(lm=lm):
            found = compare(remembering("x"), remembering("x"), "Where is Ben?", None)
        assert (found.old_score, found.new_score, found.reward) == (0.0, 1.0, 1.0)


def test_a_failed_reader_gives_no_reward():
    with (
        ScriptedLM([lm15.ServerError("down"), lm15.ServerError("down")]) as lm,
        dspy.context(lm=lm),
        pytest.raises(ModelError, match=r"no reward: reader\.answer: .*down"),
    ):
        compare(remembering("x"), remembering("x"), "Where is Ben?", "Oslo")


# -- the limits of the length penalty ----------------------------------------------------------------


def test_the_limits_of_the_length_penalty_are_settings():
    lengths = LengthSettings(
        core_length_start=10, core_length_max=20, length_ratio_high=2, length_ratio_low=0
    )
    core = AgentStats(MemoryKind.CORE, True, 15, lengths=lengths)
    assert core.length_penalty == 0.5
    assert AgentStats(MemoryKind.CORE, True, 15).length_penalty == 0.0
    long = AgentStats(MemoryKind.EPISODIC, True, 2700, 1000, lengths=lengths)
    assert (long.length_penalty, AgentStats(MemoryKind.EPISODIC, True, 2700, 1000).length_penalty) == (
        1.0,
        1.0,
    )
    assert AgentStats(MemoryKind.EPISODIC, True, 1900, 1000, lengths=lengths).length_penalty == 0.0
    assert AgentStats(MemoryKind.EPISODIC, True, 10, 1000, lengths=lengths).length_penalty == 0.0
    with pytest.raises(ConfigError, match="core_length_start=400 must be below core_length_max=400"):
        LengthSettings(core_length_start=400)
