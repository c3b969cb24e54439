"""Metrics of a training step, by name."""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean, pstdev

from dspy.lm15 import Response

from memory_program.agents.tools import ALL_TOOLS
from memory_program.bank.budget import count_memory_tokens
from memory_program.bank.space import MemorySpace
from memory_program.core.json_files import Json
from memory_program.models.model_names import runs_here
from memory_program.models.usage import Usage, is_cut, track_usage
from memory_program.rl.backends.arbor.arbor_trainer import SubmittedGroups
from memory_program.rl.rollouts import EpisodeGroups, Rollout, ScoredRollout
from memory_program.rl.trainer.policy_step import StepReport

Metrics = dict[str, float]

PHASES = ("roll_in", "write", "read", "update")
"""The phases of a step; the rest of its time is overhead."""


@dataclass(frozen=True, slots=True)
class StepSamples:
    """The groups of a step, the metrics of its rollouts, and these as JSON."""

    groups: Sequence[EpisodeGroups]
    metrics: Metrics
    lines: Sequence[Json]


class Stopwatch:
    """Measures seconds and model calls by phase, and in total."""

    def __init__(self) -> None:
        """Start the clock."""
        self._began = time.monotonic()
        self._seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self._tokens: dict[str, int] = dict.fromkeys(PHASES, 0)
        self._lock = threading.Lock()
        self.api_usage = Usage()
        """The calls of models that do not run on this machine."""

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Add the time and the calls inside the block to a phase."""
        began = time.monotonic()
        with self.count_calls(name):
            try:
                yield
            finally:
                self._seconds[name] += time.monotonic() - began

    @contextmanager
    def count_calls(self, name: str) -> Generator[None]:
        """Add the calls inside the block to a phase, and no time."""
        with track_usage() as meter:
            try:
                yield
            finally:
                with self._lock:
                    self._tokens[name] += meter.usage.input_tokens + meter.usage.output_tokens
                    paid = (call.usage for call in meter.calls if not runs_here(call.model))
                    self.api_usage = sum(paid, self.api_usage)

    @contextmanager
    def overlapping_phases(self, first: str, second: str) -> Generator[Callable[[], None]]:
        """Share the time inside the block between two phases that overlap.

        Yields a function to call whenever a part of the first phase ends: the last call ends that phase.
        """
        began = ended = time.monotonic()

        def end_part() -> None:
            nonlocal ended
            ended = time.monotonic()

        try:
            yield end_part
        finally:
            self._seconds[first] += ended - began
            self._seconds[second] += time.monotonic() - ended

    @property
    def total_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def metrics(self) -> Metrics:
        """Return the seconds of each phase and of the step, the share of the overhead, and tokens per second.

        Tokens are those of prompts and replies, also where a prompt was cached.
        """
        total = self.total_s
        speeds = {
            f"tokens_per_s/{phase}": tokens / self._seconds[phase]
            for phase, tokens in self._tokens.items()
            if tokens and self._seconds[phase]
        }
        seconds = {f"seconds/{phase}": self._seconds[phase] for phase in PHASES}
        overhead = max(0.0, total - sum(self._seconds.values()))
        return {**seconds, "seconds/step": total, "overhead": overhead / total if total else 0.0, **speeds}


def rollout_metrics(graded: Sequence[ScoredRollout], episode_groups: Sequence[EpisodeGroups]) -> Metrics:
    """Summarize the rollouts of a step.

    ``score`` is the mean task score, ``reward`` the mean over agents and rollouts, ``reward/KIND`` that of
    one agent. ``reward_std`` is the mean standard deviation within a group, ``advantage_std`` that of all
    advantages. ``copied_words`` is the mean length of the longest run of words that an agent's memories share
    with their session. ``valid`` is the share of agents' work without an error. ``lost`` counts rollouts
    without a score, ``unusable`` the replies that could not be used, ``groups`` those with advantages,
    ``zero_variance_groups`` those dropped because all rewards are equal, and ``lost_groups`` those with fewer
    than two scores.
    """
    responses = [call.response for g in graded for call in g.rollout.calls]
    copied = [count for g in graded for count in copied_words(g.rollout)]
    stats = [of_agent for g in graded for of_agent in g.rollout.agent_stats.values()]
    metrics: Metrics = {
        "rollouts": len(graded),
        "lost": sum(g.score is None for g in graded),
        "unusable": sum(len(g.rollout.unusable_replies) for g in graded),
        "groups": sum(len(of_episode.groups) for of_episode in episode_groups),
        "zero_variance_groups": sum(of_episode.zero_variance_groups for of_episode in episode_groups),
        "lost_groups": sum(of_episode.lost_groups for of_episode in episode_groups),
        "valid": fmean(of_agent.is_valid for of_agent in stats) if stats else 0.0,
        "written_tokens": fmean(of_agent.tokens for of_agent in stats) if stats else 0.0,
        "length_penalty": fmean(of_agent.length_penalty for of_agent in stats) if stats else 0.0,
        **reply_metrics(responses),
        **spread_metrics(episode_groups),
    }
    if copied:
        metrics["copied_words"] = fmean(copied)
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


def reply_metrics(responses: Sequence[Response]) -> Metrics:
    """Summarize replies: their tokens, the 95th percentile of these, and the shares that were stopped.

    ``truncated`` counts replies that ended at the limit, ``repetitive`` those that were stopped in a loop.
    """
    lengths = sorted(response.usage.output_tokens or 0 for response in responses)
    if not lengths:
        return {"completion_tokens": 0.0, "sampled_tokens": 0}
    repetitive = [bool((response.provider_data or {}).get("is_repetitive")) for response in responses]
    cut = [
        is_cut(response.finish_reason) and not repeats
        for response, repeats in zip(responses, repetitive, strict=True)
    ]
    return {
        "completion_tokens": fmean(lengths),
        "completion_tokens/p95": lengths[math.ceil(0.95 * len(lengths)) - 1],
        "sampled_tokens": sum(lengths),
        "truncated": fmean(cut),
        "repetitive": fmean(repetitive),
    }


def spread_metrics(episode_groups: Sequence[EpisodeGroups]) -> Metrics:
    """Return the mean deviation of the rewards of an agent in an episode, and that of all advantages."""
    spreads = [pstdev(rewards) for e in episode_groups for rewards in e.rewards.values() if rewards]
    advantages = [s.advantage for e in episode_groups for group in e.groups for s in group.samples]
    metrics = {"reward_std": fmean(spreads)} if spreads else {}
    return {**metrics, "advantage_std": pstdev(advantages)} if advantages else metrics


def copied_words(rollout: Rollout) -> list[int]:
    """Return the longest run of words that each agent's accepted texts share with the session."""
    session = rollout.episode.session.transcript.lower().split()
    found: list[int] = []
    for proposal in rollout.proposals:
        given = [call.args.get("text") for call in proposal.calls if not call.is_refused]
        texts = [text for text in given if isinstance(text, str)]
        if texts:
            found.append(max(longest_shared_run(text.lower().split(), session) for text in texts))
    return found


def longest_shared_run(words: Sequence[str], others: Sequence[str]) -> int:
    """Return the length of the longest run of words that two texts share.

    Example:
        >>> longest_shared_run("she moved to Oslo in May".split(), "I moved to Oslo".split())
        3
    """

    def runs(of: Sequence[str], length: int) -> set[tuple[str, ...]]:
        return {tuple(of[first : first + length]) for first in range(len(of) - length + 1)}

    low, high = 0, min(len(words), len(others))
    while low < high:  # a shared run holds shorter ones
        length = (low + high + 1) // 2
        if runs(words, length).isdisjoint(runs(others, length)):
            high = length - 1
        else:
            low = length
    return low


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
        "clip_fraction": report.clip_fraction,
        "clip_ratio/low": report.clip_low,
        "clip_ratio/high": report.clip_high,
        "grad_norm": report.grad_norm,
        "learning_rate": report.learning_rate,
        "samples": report.samples,
        "trained_tokens": report.tokens,
        "forward_tokens": report.forward_tokens,
    }
    optional = {
        "entropy": report.entropy,
        "kl": report.kl,
        "sampler_logprob_gap": report.sampler_logprob_gap,
        "importance_weight/mean": report.importance_mean,
        "importance_weight/max": report.importance_max,
        "importance_weight/cut": report.importance_cut,
        "gpu_memory_gib": None if report.peak_memory is None else report.peak_memory / 2**30,
    }
    return metrics | {name: value for name, value in optional.items() if value is not None}
