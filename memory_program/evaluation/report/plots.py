"""The plots of the results, as PNG files and as SVG elements for the report page. Needs matplotlib."""

import io
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter, SymmetricalLogLocator

from memory_program.core.json_files import Json
from memory_program.evaluation.report.score_tables import (
    score_by_group_label,
    score_groups,
    score_label,
    short_heading,
)

NUM_SERIES_COLOURS = 8
"""The number of systems with a colour of their own; after that, colours repeat."""

_LITERAL_TEXT_STYLE: dict[Any, Any] = {"text.parse_math": False}  # Any: the names of matplotlib's settings
"""Names of data and runs are drawn as they are; otherwise a dollar sign would begin a formula."""

_MOST_CHARS_IN_TWO_COLUMNS = 26
"""The longest name of a system that leaves room for a second column of the legend."""

_INK, _PAPER = "#010203", "#fdfcfb"
"""Placeholders for the two colours of the page, which differ by day and by night."""

_COLOURS = {f"#0000{number:02x}": f"var(--series-{number})" for number in range(1, NUM_SERIES_COLOURS + 1)}

_SVG_STYLE: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "legend.facecolor", "savefig.facecolor"), _PAPER),
    **_LITERAL_TEXT_STYLE,
    "axes.prop_cycle": f"cycler('color', {list(_COLOURS)})",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "memory-program",  # the same figure gives the same text in every run
}


def write_plots(folder: Path, results: Json) -> list[Path]:
    """Draw the plots of a run into its folder, and list the files."""
    folder.mkdir(parents=True, exist_ok=True)
    with rc_context(_LITERAL_TEXT_STYLE):
        figures = {
            "score_by_category.png": plot_score_by_category(results),
            "tokens_against_score.png": plot_score_vs_tokens(results),
        }
        for name, figure in figures.items():
            _set_margins(figure, left=0.9, right=0.2, bottom=0.6, top=0.4)
            figure.savefig(folder / name, dpi=120)
    return [folder / name for name in figures]


def svg_figures(results: Json) -> list[tuple[str, Markup]]:
    """Draw every plot that the results have data for as (title, SVG), in the colours of the page."""
    systems: Json = results["systems"]
    score, by_group = score_label(results["dataset"]["benchmark"]), score_by_group_label(results["dataset"])
    figures = {
        f"{by_group}, with intervals": plot_score_by_category,
        f"{score} against tokens per question": plot_score_vs_tokens,
    }
    if any(system["cost_usd"] for system in systems.values()):
        figures[f"{score} against cost"] = plot_score_vs_cost
    if any(system["growth"] for system in systems.values()):
        figures["Bank size by session"] = plot_bank_growth
    page_colours = {**_COLOURS, _INK: "var(--ink)", "#000000": "var(--ink)", _PAPER: "var(--paper)"}

    def use_page_colours(style: re.Match[str]) -> str:
        text = style[0]
        for colour, variable in page_colours.items():
            text = text.replace(colour, variable)
        return text

    svgs: list[tuple[str, Markup]] = []
    with rc_context(_SVG_STYLE):
        for title, draw in figures.items():
            figure = draw(results)
            (axes,) = figure.axes
            axes.tick_params(axis="x", labelrotation=20)
            axes.set_title("")  # the page has the title
            longest = max(map(len, systems), default=0)
            columns = 1 if longest > _MOST_CHARS_IN_TWO_COLUMNS else 2
            above = 0.15 + 0.2 * math.ceil(len(systems) / columns)  # inches of the legend
            if axes.get_legend() is not None:
                axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns)  # not over the bars
            # readable at the width of a phone, unless a name is long
            figure.set_size_inches(max(4.8, 1.2 + 0.08 * longest), 3.0 + above)
            _set_margins(figure, left=0.8, right=0.2, bottom=0.7, top=above)
            file = io.StringIO()
            metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
            figure.savefig(file, format="svg", metadata=metadata)
            svg = file.getvalue()
            svg = svg[svg.index("<svg") :]
            svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # each figure counts from 1; a page has each id once
            svgs.append(
                (title[0].upper() + title[1:], Markup(re.sub(r'style="[^"]*"', use_page_colours, svg)))
            )
    return svgs


def plot_score_by_category(results: Json) -> Figure:
    """Draw the score by category as bars, one colour per system, with their intervals."""
    figure = Figure(figsize=(9, 4.5))
    axes = figure.subplots()
    systems: Json = results["systems"]
    groups = list(dict.fromkeys([*score_groups(results["dataset"]), "abstention"]))
    width = 0.8 / max(len(systems), 1)
    for place, (name, system) in enumerate(systems.items()):
        scores = {"abstention": system["abstention"], **system["locomo_f1"]}
        shown = [group for group, category in enumerate(groups) if scores[category]["value"] is not None]
        bars = [scores[groups[group]] for group in shown]
        axes.bar(
            [group + (place - (len(systems) - 1) / 2) * width for group in shown],
            [bar["value"] for bar in bars],
            0.92 * width,
            yerr=list(zip(*map(_error_bar, bars), strict=True)) or None,
            capsize=2,
            label=_legend_label(name),
        )
    axes.set_xticks(range(len(groups)), list(map(short_heading, groups)))
    axes.set_ylabel(f"{score_label(results['dataset']['benchmark'])} (abstention: accuracy)")
    axes.set_ylim(0, 1)
    axes.set_title(_title(results))
    axes.legend()
    return figure


def plot_score_vs_tokens(results: Json) -> Figure:
    """Draw the score of each system, with its interval, over its tokens per question."""
    taken = {name: system["tokens_per_question"] for name, system in results["systems"].items()}
    return _plot_score_vs(results, taken, "tokens per question", linear_below=10)


def plot_score_vs_cost(results: Json) -> Figure:
    """Draw the score of each system, with its interval, over the cost of its run, if it is known."""
    taken = {name: system["cost_usd"] for name, system in results["systems"].items()}
    return _plot_score_vs(results, taken, "cost of the run, US dollars", linear_below=0.01)


def plot_bank_growth(results: Json) -> Figure:
    """Draw the mean size of the banks of each system that writes memories, session by session."""
    figure = Figure(figsize=(6.5, 4.5))
    axes = figure.subplots()
    for name, system in results["systems"].items():
        if system["growth"]:
            sessions = [point["session"] for point in system["growth"]]
            axes.plot(sessions, [point["tokens"] for point in system["growth"]], label=_legend_label(name))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("sessions")
    axes.set_ylabel("tokens of live memories, mean over banks")
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
            axes.errorbar(
                amount, score["value"], [[down], [up]], fmt="o", capsize=2, label=_legend_label(name)
            )
    amounts = [amount for amount in taken.values() if amount is not None]
    # A logarithmic axis would have one tick or none in a narrow range.
    is_narrow = len(amounts) > 1 and max(amounts) <= 10 * min(amounts)
    if not is_narrow:
        axes.set_xscale("symlog", linthresh=linear_below)
        axes.xaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=linear_below, subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.set_xlabel(label)
    axes.set_ylabel(score_label(results["dataset"]["benchmark"]))
    axes.margins(0.15)
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    axes.set_title(_title(results))
    if axes.containers:
        axes.legend()
    return figure


def _legend_label(name: str) -> str:
    """Return a name as a legend shows it: matplotlib leaves out what begins with an underscore."""
    return f" {name}" if name.startswith("_") else name


def _set_margins(figure: Figure, *, left: float, right: float, bottom: float, top: float) -> None:
    """Set the margins around the axes, in inches. A tight box would draw each figure twice."""
    width, height = figure.get_size_inches()
    figure.subplots_adjust(left / width, bottom / height, 1 - right / width, 1 - top / height)


def _error_bar(score: Json) -> tuple[float, float]:
    """Return the lengths below and above a score, at least 0: a percentile interval may exclude it."""
    if score["low"] is None:
        return 0.0, 0.0
    return max(score["value"] - score["low"], 0.0), max(score["high"] - score["value"], 0.0)


def _title(results: Json) -> str:
    dataset = results["dataset"]
    return f"{dataset['name']}, {dataset['questions']:,} questions"
