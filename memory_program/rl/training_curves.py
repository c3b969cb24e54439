"""The curves of a training as PNG files, drawn from its log."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from memory_program.core.checkpoints import LogEntry

_DIAGNOSTICS = ("kl", "entropy", "completion_tokens", "grad_norm")


def write_curves(folder: Path, entries: Sequence[LogEntry], prefix: str = "") -> list[Path]:
    """Draw the curves of a log into a folder, and return the files, whose names begin with a prefix."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = {"reward.png": plot_reward(entries), "watched.png": plot_diagnostics(entries)}
    for name, figure in figures.items():
        figure.savefig(folder / f"{prefix}{name}", dpi=120)
    return [folder / f"{prefix}{name}" for name in figures]


def plot_reward(entries: Sequence[LogEntry]) -> Figure:
    """Draw the reward of the rollouts and the validation score against the steps."""
    figure = Figure(figsize=(7, 4.5))
    axes = figure.subplots()
    figure.subplots_adjust(left=0.1, right=0.97, bottom=0.12, top=0.95)
    _plot_series(axes, entries, "step", "reward", "-", "mean reward")
    _plot_series(axes, entries, "validation", "score", "o-", "validation score")
    axes.set_xlabel("steps")
    if axes.has_data():
        axes.legend()
    return figure


def plot_diagnostics(entries: Sequence[LogEntry]) -> Figure:
    """Draw the diagnostics of a training: KL, entropy, completion length and gradient norm."""
    figure = Figure(figsize=(9, 6))
    for name, axes in zip(_DIAGNOSTICS, figure.subplots(2, 2).flat, strict=True):
        _plot_series(axes, entries, "step", name, "-", name)
        axes.set_title(name.replace("_", " "))
        axes.set_xlabel("steps")
    figure.tight_layout()
    return figure


def _plot_series(
    axes: Axes, entries: Sequence[LogEntry], kind: str, name: str, style: str, label: str
) -> None:
    points = [(entry["step"], entry[name]) for entry in entries if entry["kind"] == kind and name in entry]
    if points:
        axes.plot(*zip(*points, strict=True), style, label=label, markersize=4)
