"""The report in headless Chromium: it makes no requests, logs no errors, and can be read."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from playwright.sync_api import Browser, Locator, Page

from memory_program.cli import main
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.evaluation.evaluation_run import evaluate
from tests.browser import Opened
from tests.evaluation_samples import conversation, write_conversations
from tests.report_samples import LATEST, PROFILES, evaluated

HOSTILE = "</script><script>alert(1)</script><img src=https://example.org/x.png onerror=alert(2)>"
HOSTILE_NAME = HOSTILE.replace("/", "")


@pytest.fixture(scope="module")
def folder(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, one on the same data, one on its own, a page of these, a long one, and a foreign system."""
    runs = tmp_path_factory.mktemp("runs")
    evaluated(runs / "one")
    evaluated(runs / "two", runs / "talks.json", systems="extractive")
    hostile = conversation(1, sessions=1)
    hostile["conversation"]["session_1"][0]["text"] = HOSTILE
    hostile["qa"][0] |= {"question": f"What is {HOSTILE}?", "answer": HOSTILE, "category": 4}
    data = runs / f"{HOSTILE_NAME}.json"
    data.write_text(json.dumps([hostile]))
    evaluated(runs / "hostile", data)
    folders = tuple(runs / name for name in ("one", "two", "hostile"))
    evaluate(EvaluateConfig(mode="report", runs=folders, mlflow=False))
    evaluated(runs / "long", write_conversations(runs / "many.json", 15, sessions=3), systems="extractive")
    (runs / "mem0.jsonl").write_text('{"question_id": "talk-1:q0", "answer": "a walk"}')
    files = ["--dataset", str(runs / "talks.json"), "--output-dir", str(runs / "foreign")]
    assert main(["score", str(runs / "mem0.jsonl"), *files]) == 0
    return runs


@pytest.fixture
def opened(browser: Browser, folder: Path, request: pytest.FixtureRequest) -> Iterator[Opened]:
    """The report of the first run; after each test there were no requests and no errors."""
    name, settings = getattr(request, "param", ("one/report.html", {}))
    window = Opened(browser, folder / name, **settings)
    yield window
    asked, complaints = window.requests, window.complaints
    window.close()
    assert asked == [(folder / name).as_uri()]
    assert complaints == []


def opening(name: str = "one/report.html", **settings: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("opened", [(name, settings)], indirect=True, ids=[name])


def open_question(page: Page, text: str) -> None:
    field(page, "words").fill(text)
    page.locator("#list button").first.click()


def field(page: Page, name: str) -> Locator:
    return page.locator(f"#filters [name={name}]")


def table_of(page: Page, title: str) -> Locator:
    return page.locator(".table", has=page.locator("h3", has_text=title))


def cells(page: Page, title: str, row: str) -> dict[str, str]:
    """The row of a table by its headings."""
    table = table_of(page, title)
    headings = table.locator("thead th").all_inner_texts()
    found = table.locator("tbody tr", has=page.locator(f"th:text-is('{row}')")).locator("th, td")
    return dict(zip(headings, found.all_inner_texts(), strict=True))


def test_each_score_has_its_interval_and_signature_on_the_page(opened, folder):
    results = json.loads((folder / "one/results.json").read_text())
    for name, system in results["systems"].items():
        score = system["locomo_f1"]["all"]
        shown = cells(opened.page, "official F1 by category", name)["all"].split()
        assert shown == [f"{score['value']:.3f}", f"{score['low']:.2f}..{score['high']:.2f}"]
        assert opened.page.get_by_text(system["signature"]).is_visible()
    (comparison,) = results["comparisons"]
    row = table_of(opened.page, "Paired differences").locator("tbody tr")
    assert f"{comparison['difference']:+.3f}" in row.inner_text()


def test_a_question_shows_its_evidence_and_where_it_was_lost(opened):
    open_question(opened.page, "dolphin")
    question = opened.page.locator("#question")
    assert question.locator("h3").inner_text() == "What did Ana do with the dolphin?"
    turn = question.locator("#evidence [data-turn='D1:1']")
    assert "Ana: Yesterday I photographed a dolphin!" in turn.inner_text()
    assert "session_1, 2023-05-01" in turn.inner_text()
    memory = question.locator("section[data-system='memory']")
    assert "lost: stored but superseded" in memory.inner_text()
    assert "wrong" in memory.locator("h4").inner_text()
    extractive = question.locator("section[data-system='extractive']")
    assert "D1:1: ranked 1, shown" in extractive.inner_text()


def test_memories_shown_to_the_reader_open_their_history(opened):
    open_question(opened.page, "falcon")
    section = opened.page.locator("section[data-system='memory']")
    section.get_by_text("Shown to the reader (1)").click()
    shown = section.locator(".shown > ol > li")
    shown.first.wait_for()  # it is drawn when it is opened
    assert shown.count() == 1
    assert LATEST in shown.inner_text()
    shown.locator("summary").click()
    history = shown.get_by_role("list", name="History of m11").locator("> li")
    history.first.wait_for()  # as is this
    operations = [text.splitlines()[0] for text in history.all_inner_texts()]
    assert operations == [
        "create in v1 by notes in session_1",
        "update in v9 by notes in session_2",
        "create in v11 by notes in session_3",
        "merge in v14 by notes in session_3: one theme",
    ]
    cited = "all => all.map((e) => e.dataset.turn)"
    turns = [item.locator("[data-turn]").evaluate_all(cited) for item in history.all()]
    assert turns == [["D1:1"], ["D2:1"], ["D3:1"], []]
    assert (
        history.nth(3)
        .locator(".gone")
        .all_inner_texts()[0]
        .startswith("replaced m7 Ana photographed two animals.")
    )
    profile = section.locator(".profile")
    assert f"Profile (edited 2 times) {PROFILES[1]}" in profile.inner_text()
    profile.locator("summary").click()
    assert PROFILES[0] in profile.inner_text()


def test_questions_are_filtered_by_system_answer_error_category_and_words(opened, folder):
    page = opened.page
    lines = [json.loads(line) for line in (folder / "one/memory/questions.jsonl").read_text().splitlines()]
    assert page.locator("#count").inner_text() == f"{len(lines)} of {len(lines)} questions"
    field(page, "system").select_option("memory")
    field(page, "fault").select_option("stored but superseded")
    wanted = [line["question"] for line in lines if line["fault"] == "stored but superseded"]
    shown = page.locator("#list button").evaluate_all("all => all.map((e) => e.firstChild.textContent)")
    assert shown == wanted != []
    field(page, "fault").select_option("")
    field(page, "category").select_option("adversarial")
    assert page.locator("#count").inner_text() == f"2 of {len(lines)} questions"
    field(page, "conversation").select_option("talk-2")
    assert page.locator("#list button").count() == 1
    field(page, "words").fill("nothing asks this")
    assert page.locator("#list button").count() == 0


def test_an_example_of_an_error_type_opens_its_question(opened, folder):
    results = json.loads((folder / "one/results.json").read_text())
    diagnosis = results["systems"]["memory"]["diagnosis"]["all"]
    share = diagnosis["faults"]["stored but superseded"] / diagnosis["wrong"]
    row = table_of(opened.page, "Error breakdown").locator("tbody tr", has_text="stored but superseded")
    assert f"{share:.0%}" in row.inner_text()
    example = opened.page.locator(".examples dd a").first
    text = example.inner_text()
    example.click()
    heading = opened.page.locator("#question h3")
    assert heading.inner_text() == text
    assert heading.evaluate("(element) => element === document.activeElement")
    chosen = opened.page.locator("#list [aria-current=true]")
    assert unquote(opened.page.url).endswith(f"#question=0/{chosen.get_attribute('data-question')}")


CHOSEN = """() => {
  const button = document.querySelector("#list [aria-current=true]"), list = document.getElementById("list");
  if (!button) return null;
  const [item, box] = [button, list].map((element) => element.getBoundingClientRect());
  return { id: button.dataset.question, isVisible: item.top >= box.top - 2 && item.bottom <= box.bottom + 2 };
}"""


@opening("long/report.html")
def test_the_list_shows_the_question_that_a_key_or_an_address_opens(opened):
    page = opened.page
    page.locator("#list button").first.click()
    for _ in range(21):
        page.keyboard.press("j")
    assert page.evaluate(CHOSEN) == {"id": "talk-4:q0", "isVisible": True}
    page.locator("#list button").nth(99).click()  # the last one until "Show more"
    page.keyboard.press("j")
    assert page.evaluate(CHOSEN) == {"id": "talk-15:q2", "isVisible": True}
    page.evaluate("location.hash = '#question=0/talk-15%3Aq5'")
    page.locator("#list [aria-current=true][data-question='talk-15:q5']").wait_for()
    assert page.evaluate(CHOSEN)["isVisible"]


def test_an_example_is_in_the_list_whatever_the_filters_were(opened):
    page = opened.page
    field(page, "state").select_option("right")
    example = page.locator(".examples dd a").first
    example.click()
    page.locator("#question h3", has_text=example.inner_text()).wait_for()
    assert field(page, "state").input_value() == ""
    assert page.evaluate(CHOSEN)["isVisible"]


def test_an_example_opens_its_question_as_often_as_it_is_clicked(opened):
    page = opened.page
    example = page.locator(".examples dd a").first
    for _ in range(2):
        example.click()
        page.locator("#question h3:focus").wait_for(timeout=2000)
        page.evaluate("document.activeElement.blur()")


@opening("foreign/report.html")
def test_a_system_that_records_no_ranking_has_nothing_shown(opened):
    open_question(opened.page, "dolphin")
    section = opened.page.locator("section[data-system='mem0']").inner_text()
    assert "Shown to the reader: not recorded" in section
    assert "D1:1" not in section


def test_tool_use_bank_size_and_every_figure_are_drawn(opened, folder):
    assert cells(opened.page, "Tool use of memory", "notes") == {
        "agent": "notes",
        **{"create": "18", "update": "2", "delete": "2", "merge": "2", "split": "0", "edit_core": "0"},
        "refused": "2",
    }
    assert cells(opened.page, "Tool use of memory", "profile")["edit_core"] == "4"
    growth = json.loads((folder / "one/results.json").read_text())["systems"]["memory"]["growth"]
    for sessions, memories in ((1, "3.0"), (2, "5.0"), (3, "7.0")):
        grown = cells(opened.page, "Bank size of memory", str(sessions))
        tokens = f"{growth[sessions - 1]['tokens']:,.0f}"
        named = {"sessions": str(sessions), "banks": "2", "live memories": memories, "tokens": tokens}
        assert grown == named
    titles = opened.page.locator("figcaption").all_inner_texts()
    assert titles == [
        "Official F1 by category, with intervals",
        "Official F1 against tokens per question",
        "Bank size by session",
    ]
    for figure in opened.page.locator("figure svg").all():
        box = figure.bounding_box()
        assert box is not None
        assert box["width"] > 250


def test_a_late_hash_change_leaves_the_filters_alone(opened):
    page = opened.page
    field(page, "words").fill("dolphin")
    page.locator("#list button").first.click()
    page.evaluate("window.dispatchEvent(new HashChangeEvent('hashchange'))")  # as of a jump before the click
    assert field(page, "words").input_value() == "dolphin"


def test_everything_can_be_reached_by_keyboard(opened):
    page, keyboard = opened.page, opened.page.keyboard
    keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the questions"
    keyboard.press("/")  # is the browser's own key outside of the questions
    keyboard.press("j")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the questions"
    assert page.locator("#question h3").count() == 0
    keyboard.press("Enter")
    page.wait_for_url("**#questions")  # the browser goes there in its own time
    keyboard.press("/")
    keyboard.type("who")
    assert field(page, "words").input_value() == "who"
    keyboard.press("Tab")  # to the first question of the list (a browser may make the list itself a stop)
    if page.evaluate("document.activeElement.tagName") != "BUTTON":
        keyboard.press("Tab")
    first = page.evaluate("document.activeElement.firstChild.textContent")
    keyboard.press("Enter")
    heading = page.locator("#question h3")
    assert heading.inner_text() == first == "Who is moving to Seoul?"
    keyboard.press("j")
    assert heading.inner_text() == "Who is moving to Turin?"
    keyboard.press("k")
    assert heading.inner_text() == first
    for _ in range(20):
        keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent").startswith("Shown to the reader"):
            break
    keyboard.press("Enter")
    page.locator(".shown[open] > ol > li").first.wait_for()


PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}


@opening(**PHONE)
def test_the_page_fits_a_phone_and_targets_are_large_enough(opened):
    open_question(opened.page, "dolphin")
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 360
    assert opened.page.locator("#question h3").bounding_box()["width"] <= 360
    sizes = opened.page.locator("button:visible, select, input, summary:visible").evaluate_all(
        "all => all.map((e) => e.getBoundingClientRect().height)"
    )
    assert min(sizes) >= 24  # WCAG 2.2, success criterion 2.5.8
    boxes = (
        "all => all.map((e) => e.getBoundingClientRect()).filter((box) => box.width).map((box) => box.height)"
    )
    assert min(opened.page.locator("text, td, p, li").evaluate_all(boxes)) >= 8


CONTRAST = """(element) => {
  const channel = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const luminance = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map((c) => channel(c / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const seen = (e) => getComputedStyle(e).backgroundColor;
  let behind = element;
  while (seen(behind) === "rgba(0, 0, 0, 0)" && behind.parentElement) behind = behind.parentElement;
  const style = getComputedStyle(element);
  const front = element instanceof SVGElement ? style.fill : style.color;
  const [low, high] = [luminance(front), luminance(seen(behind))].sort((a, b) => a - b);
  return [(high + 0.05) / (low + 0.05), element.textContent.slice(0, 40)];
}"""


@pytest.mark.parametrize(
    "opened",
    [("one/report.html", {"color_scheme": scheme}) for scheme in ("light", "dark")],
    indirect=True,
    ids=["light", "dark"],
)
def test_text_has_enough_contrast_in_both_colour_schemes(opened):
    page = opened.page
    open_question(page, "dolphin")
    page.get_by_text("Shown to the reader (1)").first.click()
    is_dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 23, 26)"
    assert is_dark == page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    texts = "h1, h2, h3, h4, p, td, th, dt, dd, li, small, summary, label, a:not(.skip), text"
    found = page.locator(f"{texts}, select, input, button").evaluate_all(f"(all) => all.map({CONTRAST})")
    assert len(found) > 150
    assert [pair for pair in found if pair[0] < 4.5] == []  # WCAG 2.2, success criterion 1.4.3


@opening("report.html")
def test_runs_on_the_same_data_are_compared_side_by_side(opened, folder):
    page = opened.page
    board = page.locator("#dataset-1")
    names = board.locator("table").first.locator("tbody th").all_inner_texts()
    assert names == ["one: memory", "one: extractive", "two: extractive"]
    pairs = table_of(page, "Paired differences").first.locator("tbody tr").all_inner_texts()
    assert [row.split("\t")[:2] for row in pairs] == [
        ["one: memory", "one: extractive"],
        ["one: memory", "two: extractive"],
        ["one: extractive", "two: extractive"],
    ]
    field(page, "system").select_option("two: extractive")
    open_question(page, "dolphin")
    assert page.locator("#question section").count() == 3
    two = page.locator("section[data-system='two: extractive']")
    assert "D1:1: ranked 1, shown" in two.inner_text()
    field(page, "board").select_option("1")
    assert page.locator("#count").inner_text() == "3 of 3 questions"


@opening("hostile/report.html")
def test_texts_of_conversations_and_files_are_never_markup(opened):
    page = opened.page
    assert HOSTILE_NAME in page.locator("h1").inner_text()
    open_question(page, "alert")
    assert page.locator("#question h3").inner_text() == f"What is {HOSTILE}?"
    assert HOSTILE in page.locator("#evidence").inner_text()
    page.locator(".shown summary").first.click()
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
