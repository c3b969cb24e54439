"""What a training says while it runs: a line for each step, and one for each validation."""

from collections.abc import Sequence

from rich.console import Console

from memory_program.core.checkpoints import LogEntry
from memory_program.core.json_files import Json
from memory_program.rl.groups import AgentSample, EpisodeGroups
from memory_program.rl.model_card import format_difference
from memory_program.rl.step_metrics import PHASES


class TrainingProgress:
    """Prints the log as it is written."""

    def __init__(self, console: Console, steps: int) -> None:
        """Take where to print, and how many steps there are at most."""
        self.console = console
        self._steps = steps

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def entry(self, entry: LogEntry) -> None:
        """Print a line of the log."""
        self.say(
            format_validation(entry) if entry["kind"] == "validation" else format_step(entry, self._steps)
        )


def format_step(entry: LogEntry, steps: int) -> str:
    """Write a step in a line: what it was worth, what changed, and what took how long.

    What is sampled and what goes through the update's passes is told in tokens per second.
    """
    groups = int(entry["groups"])
    spent = ", ".join(f"{phase.replace('_', ' ')} {entry[f'seconds/{phase}']:.1f}" for phase in PHASES)
    rates = [entry.get(f"tokens_per_s/{name}", 0.0) for name in ("sampled", "trained")]
    parts = [
        f"step {entry['step']}/{steps}",
        *(f"{name} {entry[name]:.3f}" for name in ("reward", "score") if name in entry),
        f"valid {entry['valid']:.0%}".replace("%", " %"),
        f"tokens {entry['completion_tokens']:.0f}",
        f"groups {groups} of {groups + int(entry['groups_without_spread'])}",
        f"lost {entry['lost']:.0f}",
        f"unusable {entry['unusable']:.0f}",
        *_format_update(entry),
        f"{entry['seconds/step']:.1f} s ({spent}, overhead {entry['overhead'] * 100:.0f} %)",
        f"{rates[0]:,.0f} and {rates[1]:,.0f} tokens/s",
    ]
    return "  ".join(parts)


def _format_update(entry: LogEntry) -> list[str]:
    if "entropy" in entry:
        divergence = [f"kl {entry['kl']:.4f}"] if "kl" in entry else []  # none where beta is 0
        return [*divergence, f"entropy {entry['entropy']:.3f}"]
    sent = entry.get("samples", 0)  # the server keeps the rest to itself
    return [f"samples sent {sent:.0f}"] if sent else ["no update"]


def format_validation_gain(validation: Json) -> str:
    """Write what the best weights gained on validation, from that part of results.json."""
    first, best = validation["first"], validation["best"]
    return (
        f"validation: {first['score']:.3f}, and {best['score']:.3f} after {best['step']} steps: "
        f"{format_difference(validation['difference'])}; these weights were chosen for it"
    )


def format_validation(entry: LogEntry) -> str:
    """Write a validation in a line."""
    return (
        f"validation after {entry['step']} steps: score {entry['score']:.3f} ({entry['questions']} "
        f"questions, {entry['lost']} lost); the best is after {entry['best_step']} steps"
    )


def format_groups(groupings: Sequence[EpisodeGroups]) -> list[str]:
    """Write the groups of an episode: for each rollout and agent what it said, and what that is worth."""
    lines: list[str] = []
    for grouping in groupings:
        for group in grouping.groups:
            lines.append(f"{group.episode_id}, {group.agent}:")
            lines += [f"  {_format_rollout(part)}" for part in group.samples]
        lines.append(f"groups without spread, which teach nothing: {grouping.zero_variance_groups}")
    return lines


def _format_rollout(part: AgentSample) -> str:
    said = " ".join((part.calls[-1].response.text or "").split()) if part.calls else ""
    return (
        f"rollout {part.scored.rollout.number}: reward {part.reward:.3f}, weight {part.weight:g}, "
        f"advantage {part.advantage:+.3f}: {said:.200}"
    )
