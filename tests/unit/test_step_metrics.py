"""Metrics of a step: a model may call tools that do not exist, and rollouts may be lost."""

from memory_program.bank.memory import MemoryKind
from memory_program.rl.rewards import AgentStats, RolloutScore
from memory_program.rl.rollouts import EpisodeGroups, Rollout, ScoredRollout
from memory_program.rl.step_metrics import Stopwatch, rollout_metrics, update_metrics
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
    metrics = rollout_metrics(graded, [EpisodeGroups((), {"episodic": [0.0, 0.5], "core": []}, 1)])
    tools = {name: value for name, value in metrics.items() if name.startswith("tools/")}
    assert tools == {"tools/manage_memory": 2, "tools/unknown": 2, "tools/refused": 2}
    assert (metrics["rollouts"], metrics["lost"], metrics["valid"]) == (2, 1, 0.5)
    assert (metrics["score"], metrics["reward"], metrics["reward/episodic"]) == (0.5, 0.25, 0.25)
    assert "reward/core" not in metrics
    assert (metrics["bank/efficiency"], metrics["bank/memories"], metrics["bank/tokens"]) == (1.0, 0, 0)
    assert (metrics["groups"], metrics["zero_variance_groups"]) == (0, 1)


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
