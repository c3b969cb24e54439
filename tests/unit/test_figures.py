"""The plots as parts of a page: text stays text, and every colour is one of the page's."""

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from memory_program.evaluation.report.plots import NUM_SERIES_COLOURS, svg_figures
from tests.unit.test_plots import results

GROWTH = [{"session": n, "memories": 3.0 * n, "tokens": 40.0 * n, "conversations": 2} for n in (1, 2, 3)]


def drawn(count: int = 2, **changes: Any) -> list[tuple[str, str]]:
    found = results(**{f"system {number}": 0.1 + 0.05 * number for number in range(count)})
    for system in found["systems"].values():
        system |= {"cost_usd": 0.0, "growth": [], **changes}
    return svg_figures(found)


def test_plots_without_data_are_left_out():
    assert [title for title, _ in drawn()] == [
        "F1 by category, with intervals",
        "F1 against tokens per question",
    ]
    assert [title for title, _ in drawn(cost_usd=0.2, growth=GROWTH)] == [
        "F1 by category, with intervals",
        "F1 against tokens per question",
        "F1 against cost",
        "Bank size by session",
    ]


def test_dollar_signs_in_names_are_not_formulas():
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
    root = ElementTree.fromstring(svgs["F1 by category, with intervals"])
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"system 0", "system 1", "multi-hop", "abstention"} <= texts
    links = [value for svg in svgs.values() for value in re.findall(r"(?:href|src)=\"([^\"]*)\"", svg)]
    assert [link for link in links if not link.startswith("#")] == []


def test_equal_results_give_equal_bytes():
    assert drawn(growth=GROWTH) == drawn(growth=GROWTH)
