"""The page of the memory server, over HTTP and in Chromium."""

import httpx
import pytest

from memory_program.bank.memory import Draft, MemoryKind, Provenance
from tests.memory_services import said, served
from tests.model_server import ModelServer

SCRIPT = "Ana likes <script>alert(1)</script><img src=x onerror=alert(2)> Pip."


@pytest.fixture
def server(tmp_path):
    with (
        ModelServer() as model,
        served(f"sqlite:///{tmp_path / 'b.sqlite'}", model.url) as (address, parts),
    ):
        service = parts.service
        service.add("ana", [said("I adopted a dog called Pip in Oslo."), said("My sister lives in Rome.")])
        service.end_session("ana")
        assert service.wait("ana", 30)
        space = service.store.load("ana")
        by = Provenance("user", "request_1", "<b>why</b>")
        space.bank.create([Draft(SCRIPT, MemoryKind.SEMANTIC)], by)
        service.store.save(space)
        service.add("bo", [said("I bought a red bicycle.")])
        yield address, parts


def test_the_page_allows_only_its_own_script_and_needs_no_token(tmp_path):
    with (
        ModelServer() as model,
        served(f"sqlite:///{tmp_path / 'b.sqlite'}", model.url, require_tokens=True) as (address, _),
    ):
        page = httpx.get(address)
        assert httpx.get(f"{address}/memory/v1/namespaces").status_code == 401
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy
    assert "unsafe" not in policy
    assert "innerHTML" not in page.text
    assert "//" not in page.text.replace("// ", "")  # no address of another host


def test_the_page_is_there_only_with_the_rest_door(tmp_path):
    with (
        ModelServer() as model,
        served(f"sqlite:///{tmp_path / 'b.sqlite'}", model.url, rest=False, proxy=True) as (address, _),
    ):
        assert httpx.get(address).status_code == 404


def test_the_page_shows_memories_with_their_history_and_undoes_a_change(browser, server):
    address, parts = server
    page = browser.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.accept()))
    page.goto(address)
    page.wait_for_selector("html[data-ready]")
    assert page.locator("#namespace option").all_inner_texts() == ["ana", "bo"]
    page.get_by_text("3 memories at version").wait_for()
    assert page.locator("#list li").count() == 3

    page.locator("#list button", has_text="Pip in Oslo").click()
    page.locator("#memory h4", has_text="History").wait_for()
    shown = page.locator("#memory").inner_text()
    assert "Mara: I adopted a dog called Pip in Oslo. D1:1, 2024-05-06T09:00:00" in shown
    assert "create by semantic in session_1" in shown
    assert "from 2024-05-06" in shown

    page.locator("#list button", has_text="Ana likes").click()
    page.locator("#memory h3", has_text="Ana likes").wait_for()
    assert SCRIPT in page.locator("#memory").inner_text()
    assert "create by user in request_1: <b>why</b>" in page.locator("#memory").inner_text()
    assert page.locator("#memory script, #memory img, #memory b").count() == 0

    page.locator("#search").press_sequentially("Rome")
    page.get_by_text("1 found").wait_for()
    assert page.locator("#list li").count() == 1
    page.fill("#search", "")
    page.get_by_text("3 memories at version").wait_for()

    page.fill("#question", "Who adopted a dog?")
    page.press("#question", "Enter")
    page.get_by_text("tokens").wait_for()
    assert "Pip in Oslo" in page.locator("#context").inner_text()

    page.click("#undo")
    page.get_by_text("2 memories at version").wait_for()
    assert dialogs == ["Undo the last change of ana?"]
    assert len(parts.service.bank("ana")) == 2
    page.select_option("#namespace", "bo")
    page.get_by_text("1 turns not written yet").wait_for()
    assert complaints == []
    page.close()
