"""Metrics of a step: a model may call tools that do not exist, and rollouts may be lost."""

import pytest
from dspy.lm15 import Message, Response, Usage

from memory_program.bank.memory import MemoryKind
from memory_program.models.usage import CallRecord, record_call
from memory_program.models.usage import Usage as CallUsage
from memory_program.rl.rewards import AgentStats, RolloutScore
from memory_program.rl.rollouts import AgentGroup, AgentSample, EpisodeGroups, Rollout, ScoredRollout
from memory_program.rl.step_metrics import (
    Stopwatch,
    longest_shared_run,
    reply_metrics,
    rollout_metrics,
    spread_metrics,
    update_metrics,
)
from tests.unit.test_rollouts import episode


def rolled(*calls: str, accepted: int, is_valid: bool = True) -> Rollout:
    used = {name: calls.count(name) for name in calls}
    taken = dict.fromkeys(calls[:accepted], 1)
    stats = AgentStats(MemoryKind.EPISODIC, is_valid, 10, 10, taken, used)
    before = episode()
    return Rollout(before, 0, before.before, (), {"episodic": stats}, {}, ())


def test_calls_are_counted_by_tool_and_unknown_names_together():
    graded = [
        ScoredRollout(
            rolled("manage_memory", "[[ ## x ## ]]\n", accepted=1, is_valid=False), (), RolloutScore(0.5)
        ),
        ScoredRollout(rolled("manage_memory", "forget_all", accepted=1), (), None),
    ]
    metrics = rollout_metrics(graded, [EpisodeGroups((), {"episodic": [0.0, 0.5], "core": []}, 1, 2)])
    tools = {name: value for name, value in metrics.items() if name.startswith("tools/")}
    assert tools == {"tools/manage_memory": 2, "tools/unknown": 2, "tools/refused": 2}
    assert (metrics["rollouts"], metrics["lost"], metrics["valid"]) == (2, 1, 0.5)
    assert (metrics["score"], metrics["reward"], metrics["reward/episodic"]) == (0.5, 0.25, 0.25)
    assert "reward/core" not in metrics
    assert (metrics["bank/efficiency"], metrics["bank/memories"], metrics["bank/tokens"]) == (1.0, 0, 0)
    assert (metrics["groups"], metrics["zero_variance_groups"], metrics["lost_groups"]) == (0, 1, 2)


def test_a_step_without_an_update_has_no_samples():
    assert update_metrics(None) == {"samples": 0}


def test_time_outside_the_phases_is_overhead():
    watch = Stopwatch()
    with watch.phase("write"):
        sum(range(10_000))
    metrics = watch.metrics()
    assert metrics["seconds/write"] <= metrics["seconds/step"]
    assert 0 <= metrics["overhead"] <= 1
    assert metrics["seconds/update"] == 0


def response(tokens: int, finish_reason: str = "stop", **provider_data: object) -> Response:
    return Response(
        id=None, model="m", message=Message.assistant("x"), finish_reason=finish_reason,
        usage=Usage(input_tokens=1, output_tokens=tokens), provider_data=provider_data or None,
    )  # fmt: skip


def test_replies_that_were_cut_and_that_repeat_themselves_are_told_apart():
    replies = [response(n) for n in range(1, 18)]
    replies += [response(512, "length"), response(40, "length", is_repetitive=True), response(600, "length")]
    metrics = reply_metrics(replies)
    assert metrics["completion_tokens"] == pytest.approx((153 + 512 + 40 + 600) / 20)
    assert metrics["completion_tokens/p95"] == 512
    assert (metrics["truncated"], metrics["repetitive"]) == (0.1, 0.05)
    assert reply_metrics([])["sampled_tokens"] == 0


def test_the_spread_of_rewards_is_within_groups_and_that_of_advantages_over_all():
    samples = tuple(AgentSample(n, (), n, 1.0, a) for n, a in enumerate([-1.0, 1.0]))
    groups = [
        EpisodeGroups((AgentGroup("e", "core", samples),), {"core": [0.0, 1.0], "episodic": [0.7, 0.7]}, 1),
        EpisodeGroups((), {"core": []}, 1),
    ]
    assert spread_metrics(groups) == {"reward_std": 0.25, "advantage_std": 1.0}
    assert spread_metrics([]) == {}


@pytest.mark.parametrize(
    ("memory", "said", "words"),
    [
        ("Mara moved to Oslo", "Mara: I moved to Oslo in May", 3),
        ("moved to Oslo", "moved to Oslo", 3),
        ("a puppy", "moved to Oslo", 0),
        ("", "moved", 0),
    ],
)
def test_the_longest_shared_run_is_counted_in_words(memory, said, words):
    assert longest_shared_run(memory.split(), said.split()) == words


def test_overlapping_phases_share_the_time_of_their_block(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("memory_program.rl.step_metrics.time.monotonic", lambda: now[0])
    watch = Stopwatch()
    with watch.overlapping_phases("write", "read") as written:
        for now[0] in (1.0, 3.0):
            written()
        now[0] = 4.0
    metrics = watch.metrics()
    assert (metrics["seconds/write"], metrics["seconds/read"], metrics["overhead"]) == (3.0, 1.0, 0.0)


def test_calls_are_counted_by_phase_and_those_of_apis_by_cost():
    watch = Stopwatch()
    with watch.phase("write"):
        record_call(CallRecord("local:x", CallUsage(1, 100, 0, 50)))
    with watch.phase("read"):
        record_call(CallRecord("openai/gpt", CallUsage(1, 10, 0, 5, cost_usd=0.25)))
    assert (watch.api_usage.calls, watch.api_usage.cost_usd) == (1, 0.25)
    metrics = watch.metrics()
    assert metrics["tokens_per_s/write"] == pytest.approx(150 / metrics["seconds/write"])
    assert metrics["tokens_per_s/read"] == pytest.approx(15 / metrics["seconds/read"])
    assert "tokens_per_s/roll_in" not in metrics
