"""Metrics of a training step, by name."""

import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from statistics import fmean

from memory_program.agents.tools import ALL_TOOLS
from memory_program.bank.budget import count_memory_tokens
from memory_program.bank.space import MemorySpace
from memory_program.rl.backends.arbor.arbor_trainer import SubmittedGroups
from memory_program.rl.rollouts import EpisodeGroups, ScoredRollout
from memory_program.rl.trainer.policy_step import StepReport

Metrics = dict[str, float]

PHASES = ("roll_in", "write", "read", "update")
"""The phases of a step; the rest of its time is overhead."""


class Stopwatch:
    """Measures seconds by phase, and in total."""

    def __init__(self) -> None:
        """Start the clock."""
        self._began = time.monotonic()
        self._seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Add the time inside the block to a phase."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] += time.monotonic() - began

    @property
    def total_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def metrics(self) -> Metrics:
        """Return the seconds of each phase and of the step, and the share of the overhead."""
        total = self.total_s
        seconds = {f"seconds/{phase}": self._seconds[phase] for phase in PHASES}
        overhead = max(0.0, total - sum(self._seconds.values()))
        return {**seconds, "seconds/step": total, "overhead": overhead / total if total else 0.0}


def rollout_metrics(graded: Sequence[ScoredRollout], episode_groups: Sequence[EpisodeGroups]) -> Metrics:
    """Summarize the rollouts of a step.

    ``score`` is the mean task score, ``reward`` the mean over agents and rollouts, ``reward/KIND`` that of
    one agent. ``valid`` is the share of agents' work without an error. ``lost`` counts rollouts without a
    score, ``unusable`` the replies that could not be used, ``groups`` those with advantages, and
    ``zero_variance_groups`` those dropped because all rewards are equal.
    """
    lengths = [call.response.usage.output_tokens or 0 for g in graded for call in g.rollout.calls]
    stats = [of_agent for g in graded for of_agent in g.rollout.agent_stats.values()]
    metrics: Metrics = {
        "rollouts": len(graded),
        "lost": sum(g.score is None for g in graded),
        "unusable": sum(len(g.rollout.unusable_replies) for g in graded),
        "groups": sum(len(of_episode.groups) for of_episode in episode_groups),
        "zero_variance_groups": sum(of_episode.zero_variance_groups for of_episode in episode_groups),
        "valid": fmean(of_agent.is_valid for of_agent in stats) if stats else 0.0,
        "written_tokens": fmean(of_agent.tokens for of_agent in stats) if stats else 0.0,
        "length_penalty": fmean(of_agent.length_penalty for of_agent in stats) if stats else 0.0,
        "completion_tokens": fmean(lengths) if lengths else 0.0,
        "sampled_tokens": sum(lengths),
    }
    scored = [g.score for g in graded if g.score is not None]
    if scored:
        metrics["score"] = fmean(score.task for score in scored)
        metrics["bank/efficiency"] = fmean(score.efficiency for score in scored)
    if graded:
        metrics |= bank_metrics([g.rollout.space for g in graded])
    rewards_by_agent: dict[str, list[float]] = {}
    for of_episode in episode_groups:
        for agent, rewards in of_episode.rewards.items():
            if rewards:
                rewards_by_agent.setdefault(agent, []).extend(rewards)
    if rewards_by_agent:
        metrics["reward"] = fmean(reward for rewards in rewards_by_agent.values() for reward in rewards)
        metrics |= {f"reward/{agent}": fmean(rewards) for agent, rewards in rewards_by_agent.items()}
    calls: Counter[str] = Counter()
    refused = 0
    for of_agent in stats:
        for tool, count in of_agent.calls.items():  # a model may write any name, so unknown ones are one
            calls[tool if tool in ALL_TOOLS else "unknown"] += count
        refused += (Counter(of_agent.calls) - Counter(of_agent.accepted)).total()
    metrics |= {f"tools/{tool}": float(count) for tool, count in sorted(calls.items())}
    return metrics | {"tools/refused": float(refused)}


def bank_metrics(spaces: Sequence[MemorySpace]) -> Metrics:
    """Return the means of live memories, and of their tokens with the profile's, over some banks."""
    live = [space.bank.live() for space in spaces]
    tokens = [
        count_memory_tokens(memories, space.bank.core) for memories, space in zip(live, spaces, strict=True)
    ]
    return {"bank/memories": fmean(map(len, live)), "bank/tokens": fmean(tokens)}


def update_metrics(report: StepReport | SubmittedGroups | None) -> Metrics:
    """Summarize an update; of one on a server only its samples are known. None stands for no update."""
    if report is None:
        return {"samples": 0}
    if isinstance(report, SubmittedGroups):
        return {"samples": report.samples}
    metrics: Metrics = {
        "loss": report.loss,
        "entropy": report.entropy,
        "clip_fraction": report.clip_fraction,
        "grad_norm": report.grad_norm,
        "samples": report.samples,
        "trained_tokens": report.tokens,
        "forward_tokens": report.forward_tokens,
    }
    optional = {"kl": report.kl, "sampler_logprob_gap": report.sampler_logprob_gap}
    return metrics | {name: value for name, value in optional.items() if value is not None}
