"""The plots as SVG elements, readable at the width of a phone, in the colours of the page they stand in."""

import io
import re
from typing import Any

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure

from memory_program.core.json_files import Json
from memory_program.evaluation.report.plots import (
    LITERAL_TEXT_STYLE,
    plot_bank_growth,
    plot_score_by_category,
    plot_score_vs_cost,
    plot_score_vs_tokens,
)

NUM_SERIES_COLOURS = 8
"""How many systems have a colour of their own; the next ones begin again."""

_INK, _PAPER = "#010203", "#fdfcfb"
"""Stand for the page's two colours, which differ by day and by night; no series has them."""

_COLOURS = {f"#0000{number:02x}": f"var(--series-{number})" for number in range(1, NUM_SERIES_COLOURS + 1)}


def svg_figures(results: Json) -> list[tuple[str, Markup]]:
    """Draw every plot that the results have something for, each with its title."""
    systems: Json = results["systems"]
    figures = {
        "F1 by category, with intervals": plot_score_by_category,
        "F1 against tokens per question": plot_score_vs_tokens,
    }
    if any(system["cost_usd"] for system in systems.values()):
        figures["F1 against cost"] = plot_score_vs_cost
    if any(system["growth"] for system in systems.values()):
        figures["Growth of the banks by session"] = plot_bank_growth
    with rc_context(_style()):
        return [(title, _svg(draw(results))) for title, draw in figures.items()]


def _style() -> dict[Any, Any]:  # Any: the names of matplotlib's settings, and their values
    inks = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    papers = ("figure.facecolor", "axes.facecolor", "legend.facecolor", "savefig.facecolor")
    return {
        **dict.fromkeys(inks, _INK),
        **dict.fromkeys(papers, _PAPER),
        **LITERAL_TEXT_STYLE,
        "axes.prop_cycle": f"cycler('color', {list(_COLOURS)})",
        "axes.spines.right": False,
        "axes.spines.top": False,
        "font.size": 9,
        "legend.frameon": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "memory-program",  # the same figure is the same text, run after run
    }


def _svg(figure: Figure) -> Markup:
    (axes,) = figure.axes
    figure.set_size_inches(4.8, 3.4)
    axes.tick_params(axis="x", labelrotation=20)
    axes.set_title("")  # the page has one of its own
    if axes.get_legend() is not None:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)  # beside the bars, not over them
    file = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", bbox_inches="tight", metadata=nothing)
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # numbered anew in each figure: an id may stand once in a page
    return Markup(re.sub(r'style="[^"]*"', lambda style: _use_css_variables(style[0]), svg))


def _use_css_variables(style: str) -> str:
    """Name colours by the page's variables, so that it can be dark."""
    named = {**_COLOURS, _INK: "var(--ink)", "#000000": "var(--ink)", _PAPER: "var(--paper)"}
    for colour, variable in named.items():
        style = style.replace(colour, variable)
    return style
