"""Every number here is computed by hand from the formulas of the papers, with our repairs."""

import pytest
from dspy import lm15

from locomo.judge.rubrics import Rubric
from locomo.types import Category, Question
from memory_program.bank.bank import MemoryBank
from memory_program.bank.memory import Draft, MemoryKind, Provenance
from memory_program.bank.outcomes import Answer, Outcome
from memory_program.configs.trainer_groups import GRPOSettings
from memory_program.core.errors import ConfigError
from memory_program.rl.rewards import (
    AgentStats,
    BankSize,
    RewardRule,
    RolloutScore,
    bank_efficiency,
    build_answer_metric,
    core_length_penalty,
    delta_reward,
    dense_reward,
    relative_length_penalty,
    task_score,
)
from tests.scripted_lm import ScriptedLM, fields

CAT = Question("c", 0, "What is the cat called?", Category.SINGLE_HOP, "Pip the cat")
TRAP = Question("c", 1, "What is the dog called?", Category.ADVERSARIAL, None, adversarial_answer="Rex")
ABSTAINS = Answer("Not mentioned in the conversation")
LOST = Answer("", Outcome.ERROR, "reader.answer: no answer")


@pytest.mark.parametrize(
    ("tokens", "penalty"), [(0, 0), (150, 0), (200, 0.2), (275, 0.5), (399, 0.996), (400, 1), (9000, 1)]
)
def test_a_core_block_is_free_up_to_150_tokens_and_pays_all_from_400(tokens, penalty):
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
def test_memories_are_compared_with_the_experts_in_tokens(tokens, expert, penalty):
    assert relative_length_penalty(tokens, expert) == pytest.approx(penalty, abs=1e-9)


def test_the_dense_reward_is_valid_times_task_times_what_the_length_leaves():
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


def test_the_size_of_a_snapshot_is_that_of_its_live_memories():
    bank = MemoryBank("b")
    by = Provenance("test")
    bank.create([Draft("four", MemoryKind.SEMANTIC), Draft("sixsix", MemoryKind.EPISODIC)], by)
    before = bank.fork()
    bank.delete("m1", by)
    assert (BankSize.from_bank(before), BankSize.from_bank(bank)) == (BankSize(2, 5.0), BankSize(1, 6.0))
    assert BankSize.from_bank(MemoryBank("empty")) == BankSize(0, 0.0)


def test_a_gain_is_worth_less_and_a_loss_more_when_the_bank_is_bloated():
    assert delta_reward(0.2, 0.6, 1.5) == pytest.approx(0.6)
    assert delta_reward(0.2, 0.6, 0.5) == pytest.approx(0.2)
    assert delta_reward(0.6, 0.2, 1.5) == pytest.approx(-0.2)  # 0.4 * (2 - 1.5)
    assert delta_reward(0.6, 0.2, 0.5) == pytest.approx(-0.6)  # 0.4 * (2 - 0.5)
    assert delta_reward(0.4, 0.4, 0.5) == 0.0


def test_the_rules_differ_in_what_they_take_from_a_rollout():
    work = AgentStats(MemoryKind.EPISODIC, is_valid=True, tokens=1650, expert_tokens=1000)
    score = RolloutScore(task=0.5, before=0.25, efficiency=0.8)
    assert RewardRule("outcome").reward(work, score) == 0.5
    assert RewardRule("dense").reward(work, score) == pytest.approx(0.5 * 0.6)
    assert RewardRule("delta").reward(work, score) == pytest.approx(0.25 * 0.8)


def test_an_invalid_reply_gains_nothing_and_loses_all_the_same():
    work = AgentStats(MemoryKind.SEMANTIC, is_valid=False, tokens=0)
    assert RewardRule("outcome").reward(work, RolloutScore(1.0)) == 0.0
    assert RewardRule("dense").reward(work, RolloutScore(1.0)) == 0.0
    assert RewardRule("delta").reward(work, RolloutScore(1.0, before=0.0)) == 0.0
    assert RewardRule("delta").reward(work, RolloutScore(0.0, before=0.5)) == pytest.approx(-0.5)


def test_the_core_block_pays_for_its_own_length_and_not_for_the_experts():
    work = AgentStats(MemoryKind.CORE, is_valid=True, tokens=275, expert_tokens=10_000)
    assert RewardRule("dense").reward(work, RolloutScore(1.0)) == pytest.approx(0.6)


def test_format_and_tool_terms_are_off_unless_given():
    calls = {"manage_memory": 4, "delete_memory": 1}
    accepted = {"manage_memory": 3, "delete_memory": 0}
    work = AgentStats(MemoryKind.EPISODIC, is_valid=True, tokens=10, accepted=accepted, calls=calls)
    assert RewardRule("outcome").reward(work, RolloutScore(0.5)) == 0.5
    rule = RewardRule(
        "outcome",
        format_weight=0.1,
        tool_weights={"manage_memory": 0.2, "delete_memory": 0.4, "merge_memory": 9.0},
    )
    assert rule.reward(work, RolloutScore(0.5)) == pytest.approx(0.5 + 0.1 + 0.2 * 3 / 4)
    broken = AgentStats(MemoryKind.EPISODIC, is_valid=False, tokens=10)
    assert rule.reward(broken, RolloutScore(0.5)) == 0.0
    with pytest.raises(ConfigError, match="unknown tool 'merge': choose from search_memory"):
        RewardRule(tool_weights={"merge": 0.1})


def test_weights_of_tools_are_written_tool_by_tool():
    assert GRPOSettings(tool_weights="merge_memory=0.1, delete_memory=-0.2").rewards.tool_weights
    for wrong in ("merge_memory", "merge_memory=x", "merge_memory=nan", "a=1,a=2"):
        with pytest.raises(ConfigError, match=r"write each tool once, as merge_memory=0\.1"):
            GRPOSettings(tool_weights=wrong)


def test_the_f1_of_an_answer_is_the_official_one():
    score = build_answer_metric("f1")
    assert score(CAT, Answer("Pip")) == pytest.approx(2 / 3)  # "the" is an article: 1 of 1, and 1 of 2
    assert score(CAT, ABSTAINS) == 0.0
    assert score(TRAP, ABSTAINS) == 1.0
    assert score(TRAP, Answer("Rex")) == 0.0
    assert score(CAT, LOST) is None


def test_a_mix_is_the_mean_of_f1_and_verdict():
    with ScriptedLM([fields(reasoning="same", verdict="CORRECT")] * 2) as lm:
        assert build_answer_metric("judge", judge_lm=lm)(CAT, Answer("Pip")) == 1.0
        assert build_answer_metric("mix", judge_lm=lm)(CAT, Answer("Pip")) == pytest.approx((2 / 3 + 1) / 2)


def test_abstentions_cost_no_call_to_the_judge():
    with ScriptedLM([]) as lm:
        score = build_answer_metric("judge", Rubric.LENIENT, lm)
        assert (score(TRAP, ABSTAINS), score(TRAP, Answer("Rex")), score(CAT, ABSTAINS)) == (1.0, 0.0, 0.0)


def test_a_judge_that_fails_or_cannot_be_read_gives_no_score():
    replies = [lm15.ServerError("down"), fields(reasoning="?", verdict="maybe")]
    with ScriptedLM(replies) as lm:
        score = build_answer_metric("judge", judge_lm=lm)
        assert score(CAT, Answer("Pip")) is None
        assert score(CAT, Answer("Pip")) is None


def test_a_score_that_needs_a_judge_asks_for_one():
    with pytest.raises(ConfigError, match="'judge' needs a judge"):
        build_answer_metric("judge")


def test_one_answer_without_a_score_leaves_the_whole_episode_without():
    score = build_answer_metric("f1")
    assert task_score([CAT, TRAP], [Answer("Pip"), ABSTAINS], score) == pytest.approx((2 / 3 + 1) / 2)
    assert task_score([CAT, TRAP], [Answer("Pip"), LOST], score) is None


def test_the_difference_is_what_the_score_owes_to_an_agent():
    rule = RewardRule("leave-one-out")
    score = RolloutScore(0.75, counterfactual_scores={MemoryKind.EPISODIC: 0.25, MemoryKind.SEMANTIC: 1.0})
    owed = {kind: rule.reward(AgentStats(kind, True, 10), score) for kind in MemoryKind}
    assert owed == {
        MemoryKind.CORE: 0.0,  # it wrote nothing
        MemoryKind.EPISODIC: 0.5,
        MemoryKind.SEMANTIC: -0.25,
        MemoryKind.PROCEDURAL: 0.0,
    }
    assert rule.reward(AgentStats(MemoryKind.EPISODIC, False, 10), score) == 0.0
    assert rule.reward(AgentStats(MemoryKind.SEMANTIC, False, 10), score) == -0.25
