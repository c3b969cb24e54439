"""What a step of the training is watched by: one number each, by name."""

import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from statistics import fmean

from memory_program.agents.tools import ALL_TOOLS
from memory_program.rl.backends.arbor.arbor_trainer import SubmittedGroups
from memory_program.rl.groups import EpisodeGroups, ScoredRollout
from memory_program.rl.trainer.step_accumulator import StepReport

Metrics = dict[str, float]

PHASES = ("roll_in", "write", "read", "update")
"""What a step spends its time on; what is none of these is overhead."""


class Stopwatch:
    """Seconds by phase, and in all."""

    def __init__(self) -> None:
        """Start."""
        self._began = time.monotonic()
        self._seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Count the time inside the block for a phase."""
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
        """Give the seconds of each phase, of all together, and the share of the overhead."""
        total = self.total_s
        seconds = {f"seconds/{phase}": self._seconds[phase] for phase in PHASES}
        overhead = max(0.0, total - sum(self._seconds.values()))
        return {**seconds, "seconds/step": total, "overhead": overhead / total if total else 0.0}


def rollout_metrics(graded: Sequence[ScoredRollout], groupings: Sequence[EpisodeGroups]) -> Metrics:
    """Sum up the rollouts of a step.

    ``reward`` is the mean over agents and rollouts that have one, ``reward/KIND`` that of one agent;
    ``valid`` the share of specialists' parts without a fault, ``unusable_replies`` the replies that could not be
    read, ``lost`` the rollouts without a score; ``groups`` those that teach something.
    """
    calls = [call for g in graded for call in g.rollout.calls]
    work = [of_agent for g in graded for of_agent in g.rollout.agent_stats.values()]
    metrics: Metrics = {
        "rollouts": len(graded),
        "lost": sum(g.score is None for g in graded),
        "unusable": sum(len(g.rollout.unusable_replies) for g in graded),
        "groups": sum(len(grouping.groups) for grouping in groupings),
        "groups_without_spread": sum(grouping.zero_variance_groups for grouping in groupings),
        "valid": fmean(of_agent.is_valid for of_agent in work) if work else 0.0,
        "written_tokens": fmean(of_agent.tokens for of_agent in work) if work else 0.0,
        "length_penalty": fmean(of_agent.length_penalty for of_agent in work) if work else 0.0,
    }
    lengths = [call.response.usage.output_tokens or 0 for call in calls]
    metrics |= {"completion_tokens": fmean(lengths) if lengths else 0.0, "sampled_tokens": sum(lengths)}
    scores = [g.score.task for g in graded if g.score is not None]
    if scores:
        metrics["score"] = fmean(scores)
    return metrics | _rewards(groupings) | _tools(graded)


def update_metrics(report: StepReport | SubmittedGroups | None) -> Metrics:
    """Say what the update did; of one on a server no more than its samples, nothing where there was none."""
    if report is None:
        return {"samples": 0}
    if isinstance(report, SubmittedGroups):
        return {"samples": report.samples}
    metrics: Metrics = {
        "loss": report.loss,
        "entropy": report.entropy,
        "clipped": report.clip_fraction,
        "grad_norm": report.grad_norm,
        "samples": report.samples,
        "trained_tokens": report.tokens,
        "read_tokens": report.forward_tokens,
    }
    unknown = {"kl": report.kl, "sampler_gap": report.sampler_logprob_gap}
    return metrics | {name: value for name, value in unknown.items() if value is not None}


def _rewards(groupings: Sequence[EpisodeGroups]) -> Metrics:
    by_agent: dict[str, list[float]] = {}
    for grouping in groupings:
        for agent, rewards in grouping.rewards.items():
            by_agent.setdefault(agent, []).extend(rewards)
    known = {agent: rewards for agent, rewards in by_agent.items() if rewards}
    everything = [reward for rewards in known.values() for reward in rewards]
    means = {f"reward/{agent}": fmean(rewards) for agent, rewards in known.items()}
    return {"reward": fmean(everything), **means} if everything else {}


def _tools(graded: Sequence[ScoredRollout]) -> Metrics:
    used: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for g in graded:
        for work in g.rollout.agent_stats.values():
            for tool, count in work.calls.items():
                used[_known_tool_name(tool)] += count
            refused.update(Counter(work.calls) - Counter(work.accepted))
    calls = {f"tools/{tool}": float(count) for tool, count in sorted(used.items())}
    return {**calls, "tools/refused": float(refused.total())}


def _known_tool_name(tool: str) -> str:
    """Give the tool's name; what is none of the tools is ``unknown``, since a model may write anything."""
    return tool if tool in ALL_TOOLS else "unknown"
