"""The results as pictures (PNG)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter, SymmetricalLogLocator

from memory_program.core.json_files import Json
from memory_program.evaluation.report.score_tables import score_groups, short_heading

LITERAL_TEXT_STYLE: dict[Any, Any] = {"text.parse_math": False}  # Any: the names of matplotlib's settings
"""Names of data and runs are drawn as they are, even with dollar signs, which begin formulas otherwise."""


def write_plots(folder: Path, results: Json) -> list[Path]:
    """Draw the plots of a run into its folder, and list the files."""
    folder.mkdir(parents=True, exist_ok=True)
    with rc_context(LITERAL_TEXT_STYLE):
        figures = {
            "score_by_category.png": plot_score_by_category(results),
            "tokens_against_score.png": plot_score_vs_tokens(results),
        }
        for name, figure in figures.items():
            figure.savefig(folder / name, dpi=120, bbox_inches="tight")
    return [folder / name for name in figures]


def plot_score_by_category(results: Json) -> Figure:
    """Draw official F1 by category as bars, one colour per system, with their intervals."""
    figure = Figure(figsize=(9, 4.5))
    axes = figure.subplots()
    systems: Json = results["systems"]
    groups = [*score_groups(results["dataset"]), "abstention"]
    width = 0.8 / max(len(systems), 1)
    for place, (name, system) in enumerate(systems.items()):
        scores = {**system["locomo_f1"], "abstention": system["abstention"]}
        shown = [group for group, category in enumerate(groups) if scores[category]["value"] is not None]
        bars = [scores[groups[group]] for group in shown]
        axes.bar(
            [group + (place - (len(systems) - 1) / 2) * width for group in shown],
            [bar["value"] for bar in bars],
            0.92 * width,
            yerr=list(zip(*map(_error_bar, bars), strict=True)) or None,
            capsize=2,
            label=name,
        )
    axes.set_xticks(range(len(groups)), list(map(short_heading, groups)))
    axes.set_ylabel("LoCoMo's F1 (abstention: accuracy)")
    axes.set_ylim(0, 1)
    axes.set_title(_title(results))
    axes.legend()
    return figure


def plot_score_vs_tokens(results: Json) -> Figure:
    """Draw each system's official F1, with its interval, over its tokens per question."""
    taken = {name: system["tokens_per_question"] for name, system in results["systems"].items()}
    return _plot_score_vs(results, taken, "tokens per question", linear_below=10)


def plot_score_vs_cost(results: Json) -> Figure:
    """Draw each system's official F1, with its interval, over what its run cost, where that is known."""
    taken = {name: system["cost_usd"] for name, system in results["systems"].items()}
    return _plot_score_vs(results, taken, "US dollars, in all", linear_below=0.01)


def plot_bank_growth(results: Json) -> Figure:
    """Draw the tokens of the banks of each system that writes memories, session by session."""
    figure = Figure(figsize=(6.5, 4.5))
    axes = figure.subplots()
    for name, system in results["systems"].items():
        if system["growth"]:
            sessions = [point["session"] for point in system["growth"]]
            axes.plot(sessions, [point["tokens"] for point in system["growth"]], label=name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("sessions read")
    axes.set_ylabel("tokens of live memories, mean of the banks")
    axes.set_ylim(bottom=0)
    axes.set_title(_title(results))
    if axes.lines:
        axes.legend()
    return figure


def _plot_score_vs(
    results: Json, taken: Mapping[str, float | None], label: str, *, linear_below: float
) -> Figure:
    figure = Figure(figsize=(6.5, 4.5))
    axes = figure.subplots()
    for name, amount in taken.items():
        score = results["systems"][name]["locomo_f1"]["all"]
        if score["value"] is not None and amount is not None:
            down, up = _error_bar(score)
            axes.errorbar(amount, score["value"], [[down], [up]], fmt="o", capsize=2, label=name)
    axes.set_xscale("symlog", linthresh=linear_below)
    axes.xaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=linear_below, subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.set_xlabel(label)
    axes.set_ylabel("official F1")
    axes.margins(0.15)
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    axes.set_title(_title(results))
    if axes.containers:
        axes.legend()
    return figure


def _error_bar(score: Json) -> tuple[float, float]:
    """Give the lengths below and above; a percentile interval need not hold the mean, an error bar must."""
    if score["low"] is None:
        return 0.0, 0.0
    return max(score["value"] - score["low"], 0.0), max(score["high"] - score["value"], 0.0)


def _title(results: Json) -> str:
    dataset = results["dataset"]
    return f"{dataset['name']}, {dataset['questions']:,} questions"
