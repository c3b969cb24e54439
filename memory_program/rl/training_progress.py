"""Progress lines of a training: one for each step and each validation."""

from collections.abc import Sequence

from rich.console import Console

from memory_program.core.checkpoints import LogEntry
from memory_program.core.json_files import Json
from memory_program.rl.model_card import format_difference
from memory_program.rl.rollouts import EpisodeGroups
from memory_program.rl.step_metrics import PHASES

_ADVICE = (
    "no reply of this step could be used, so there was nothing to learn from: fine-tune the model first "
    "(--mode sft), or lower --temperature; the folder rollouts has the replies"
)


class TrainingProgress:
    """Prints the log of a training as it is written."""

    def __init__(self, console: Console, steps: int) -> None:
        """Store the console, and the number of steps of the whole training."""
        self.console = console
        self._steps = steps
        self._has_advised = False

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def entry(self, entry: LogEntry) -> None:
        """Print a log entry."""
        is_validation = entry["kind"] == "validation"
        self.say(format_validation(entry) if is_validation else format_step(entry, self._steps))
        if not is_validation and not entry["valid"] and not self._has_advised:
            self._has_advised = True
            self.say(_ADVICE)


def format_step(entry: LogEntry, steps: int) -> str:
    """Format a step in one line: scores, update, seconds by phase, tokens per second sampled and trained."""
    groups = int(entry["groups"])
    dropped = int(entry["zero_variance_groups"]) + int(entry.get("lost_groups", 0))
    if "grad_norm" in entry or "entropy" in entry:
        # kl and entropy are not measured in every step
        formats = {"kl": ".4f", "entropy": ".3f", "grad_norm": ".2f"}
        update = [
            f"{name.replace('_', ' ')} {entry[name]:{form}}"
            for name, form in formats.items()
            if name in entry
        ]
    elif entry.get("samples", 0):  # a server reports no more than that
        update = [f"samples sent {entry['samples']:.0f}"]
    else:
        update = ["no update"]
    phases = ", ".join(f"{phase.replace('_', ' ')} {entry[f'seconds/{phase}']:.1f}" for phase in PHASES)
    sampled, trained = (entry.get(f"tokens_per_s/{name}", 0.0) for name in ("sampled", "trained"))
    parts = [
        f"step {entry['step']}/{steps}",
        *(f"{name} {entry[name]:.3f}" for name in ("reward", "score") if name in entry),
        f"valid {entry['valid']:.0%}".replace("%", " %"),
        f"tokens {entry['completion_tokens']:.0f}",
        f"groups {groups} of {groups + dropped}",
        f"lost {entry['lost']:.0f}",
        f"unusable {entry['unusable']:.0f}",
        *update,
        f"{entry['seconds/step']:.1f} s ({phases}, overhead {entry['overhead'] * 100:.0f} %)",
        f"{sampled:,.0f} sampled and {trained:,.0f} trained tokens/s",
    ]
    if "time_left_s" in entry:
        parts.append(f"{entry['time_left_s'] / 60:,.0f} min left")
    return "  ".join(parts)


def format_validation(entry: LogEntry) -> str:
    """Format a validation in one line, with both kinds of questions where there are both."""
    answerable, abstention = entry.get("answerable_score"), entry.get("abstention")  # older logs lack them
    kinds = ""
    if answerable is not None and abstention is not None:
        kinds = f"; with an answer {answerable:.3f}, abstention {abstention:.3f}"
    stored = ""
    if entry.get("stored_recall") is not None:  # precision and F1 need a memory
        values = ((name, entry[f"stored_{name}"]) for name in ("precision", "recall", "f1"))
        shown = (f"{name} {value:.3f}" for name, value in values if value is not None)
        stored = f"; stored facts {', '.join(shown)}"
    return (
        f"validation after {entry['step']} steps: score {entry['score']:.3f} ({entry['questions']} "
        f"questions, {entry['lost']} lost{kinds}){stored}; best after {entry['best_step']} steps"
    )


def format_validation_gain(validation: Json) -> str:
    """Format the gain of the best weights on validation, from that part of results.json."""
    first, best = validation["first"], validation["best"]
    return (
        f"validation: {first['score']:.3f} before training, {best['score']:.3f} after {best['step']} steps: "
        f"{format_difference(validation['difference'])}; biased upwards, as these weights were selected on it"
    )


def format_groups(episode_groups: Sequence[EpisodeGroups]) -> list[str]:
    """List the groups of episodes: the reply, reward, weight and advantage of each rollout and agent."""
    lines: list[str] = []
    for of_episode in episode_groups:
        for group in of_episode.groups:
            lines.append(f"{group.episode_id}, {group.agent}:")
            for sample in group.samples:
                reply = sample.calls[-1].response.text or "" if sample.calls else ""
                lines.append(
                    f"  rollout {sample.number}: reward {sample.reward:.3f}, "
                    f"weight {sample.weight:g}, advantage {sample.advantage:+.3f}: "
                    f"{' '.join(reply.split()):.200}"
                )
        lines.append(f"groups dropped because all rewards are equal: {of_episode.zero_variance_groups}")
        if of_episode.lost_groups:
            lines.append(f"groups lost because calls failed: {of_episode.lost_groups}")
    return lines
