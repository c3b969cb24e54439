"""The plots: their data as PNG figures, and as SVG in the colours of the page."""

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from locomo.types import ANSWERABLE_CATEGORIES
from memory_program.evaluation.report.plots import (
    NUM_SERIES_COLOURS,
    plot_bank_growth,
    plot_score_by_category,
    plot_score_vs_cost,
    plot_score_vs_tokens,
    svg_figures,
    write_plots,
)

CATEGORIES = ("all", *(category.label for category in ANSWERABLE_CATEGORIES))

NOTHING = {"value": None, "low": None, "high": None, "n": 0}


def score(value: float) -> dict[str, Any]:
    return {"value": value, "low": value - 0.1, "high": value + 0.2, "n": 9}


def results(**values: float) -> Any:
    systems = {
        name: {
            "locomo_f1": {
                category: score(value) if category != "open-domain" else NOTHING for category in CATEGORIES
            },
            "abstention": {**score(value), "low": None, "high": None},
            "tokens_per_question": 1000 * value,
        }
        for name, value in values.items()
    }
    dataset = {"name": "locomo", "questions": 1986, "benchmark": "locomo", "types": CATEGORIES[1:]}
    return {"dataset": dataset, "systems": systems}


def test_every_system_has_a_bar_for_every_category_that_has_a_score():
    (axes,) = plot_score_by_category(results(memory=0.5, rag=0.25)).axes
    heights = [[round(bar.get_height(), 6) for bar in bars] for bars in axes.containers if len(bars) > 3]
    assert heights == [[0.5] * 5, [0.25] * 5]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["memory", "rag"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [*CATEGORIES, "abstention"]
    assert axes.get_title() == "locomo, 1,986 questions"


def test_a_point_is_at_tokens_and_score():
    (axes,) = plot_score_vs_tokens(results(memory=0.5, rag=0.25)).axes
    points = [container.lines[0].get_xydata()[0].tolist() for container in axes.containers]
    assert points == [[500.0, 0.5], [250.0, 0.25]]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["memory", "rag"]


def test_a_narrow_range_of_tokens_has_several_ticks():
    (axes,) = plot_score_vs_tokens(results(memory=0.5, rag=0.25)).axes
    low, high = axes.get_xlim()
    assert sum(low < tick < high for tick in axes.get_xticks()) >= 3


def test_a_name_that_begins_with_an_underscore_is_in_the_legend():
    for draw in (plot_score_by_category, plot_score_vs_tokens):
        (axes,) = draw(results(**{"_old: memory": 0.5, "rag": 0.25})).axes
        assert [text.get_text().strip() for text in axes.get_legend().get_texts()] == ["_old: memory", "rag"]


def test_only_known_costs_are_drawn():
    found = results(memory=0.5, rag=0.25)
    found["systems"]["memory"]["cost_usd"], found["systems"]["rag"]["cost_usd"] = 1.5, None
    (axes,) = plot_score_vs_cost(found).axes
    points = [container.lines[0].get_xydata()[0].tolist() for container in axes.containers]
    assert points == [[1.5, 0.5]]
    ticks = [label.get_text() for label in axes.get_xticklabels()]
    assert "1" in ticks
    assert "2" in ticks


def test_banks_grow_session_by_session():
    found = results(memory=0.5, rag=0.25)
    found["systems"]["memory"]["growth"] = [{"session": 1, "tokens": 40.0}, {"session": 2, "tokens": 70.5}]
    found["systems"]["rag"]["growth"] = []
    (axes,) = plot_bank_growth(found).axes
    assert [line.get_xydata().tolist() for line in axes.lines] == [[[1.0, 40.0], [2.0, 70.5]]]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["memory"]


def test_dollar_signs_in_names_are_not_formulas(tmp_path):
    found = results(memory=0.5)
    found["dataset"]["name"] = "cost_$5_{a$b"
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in write_plots(tmp_path, found))


@pytest.mark.parametrize("draw", [plot_score_by_category, plot_score_vs_tokens])
def test_a_system_without_scores_can_be_drawn(draw):
    found = results(memory=0.5)
    found["systems"]["memory"] |= {
        "locomo_f1": dict.fromkeys(CATEGORIES, NOTHING),
        "abstention": NOTHING,
        "tokens_per_question": None,
    }
    draw(found).draw_without_rendering()


GROWTH = [{"session": n, "memories": 3.0 * n, "tokens": 40.0 * n, "conversations": 2} for n in (1, 2, 3)]


def drawn(count: int = 2, **changes: Any) -> list[tuple[str, str]]:
    found = results(**{f"system {number}": 0.1 + 0.05 * number for number in range(count)})
    for system in found["systems"].values():
        system |= {"cost_usd": 0.0, "growth": [], **changes}
    return svg_figures(found)


def test_plots_without_data_are_left_out():
    assert [title for title, _ in drawn()] == [
        "Official F1 by category, with intervals",
        "Official F1 against tokens per question",
    ]
    assert [title for title, _ in drawn(cost_usd=0.2, growth=GROWTH)] == [
        "Official F1 by category, with intervals",
        "Official F1 against tokens per question",
        "Official F1 against cost",
        "Bank size by session",
    ]


@pytest.mark.parametrize(
    ("benchmark", "titles"),
    [
        ("personamem", ["Share of right choices by type, with intervals", "Share of right choices against"]),
        ("beam", ["Nugget score by ability, with intervals", "Nugget score against"]),
        (
            "locomo-plus",
            ["Share of linked replies by relation, with intervals", "Share of linked replies against"],
        ),
        ("longmemeval", ["LoCoMo's token F1 by type, with intervals", "LoCoMo's token F1 against"]),
    ],
)
def test_titles_of_figures_name_the_score_of_the_benchmark(benchmark, titles):
    found = results(memory=0.5)
    found["dataset"]["benchmark"] = benchmark
    found["systems"]["memory"] |= {"cost_usd": 0.2, "growth": []}
    by_group, against = titles
    shown = [title for title, _ in svg_figures(found)]
    assert shown == [by_group, f"{against} tokens per question", f"{against} cost"]


def test_dollar_signs_in_svg_names_are_not_formulas():
    found = results(**{"run $5_{a$b": 0.5})
    found["systems"]["run $5_{a$b"] |= {"cost_usd": 0.0, "growth": []}
    assert all("run $5_{a$b" in svg for _, svg in svg_figures(found))


@pytest.mark.parametrize("count", [1, NUM_SERIES_COLOURS, NUM_SERIES_COLOURS + 2])
def test_each_system_has_a_colour_variable_of_the_page(count):
    for title, svg in drawn(count, cost_usd=0.2, growth=GROWTH):
        assert re.findall(r"#[0-9a-fA-F]{6}\b", re.sub(r"(href=\"#|url\(#)[^\")]*", "", svg)) == [], title
        series = set(re.findall(r"var\(--series-(\d+)\)", svg))
        assert series == {str(number + 1) for number in range(min(count, NUM_SERIES_COLOURS))}, title


def test_labels_are_text_and_there_are_no_external_links():
    svgs = dict(drawn(growth=GROWTH))
    root = ElementTree.fromstring(svgs["Official F1 by category, with intervals"])
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"system 0", "system 1", "multi-hop", "abstention"} <= texts
    links = [value for svg in svgs.values() for value in re.findall(r"(?:href|src)=\"([^\"]*)\"", svg)]
    assert [link for link in links if not link.startswith("#")] == []


def test_equal_results_give_equal_bytes():
    assert drawn(growth=GROWTH) == drawn(growth=GROWTH)
