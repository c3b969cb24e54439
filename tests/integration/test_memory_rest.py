"""The REST door of the memory server, over HTTP: the whole cycle, its errors, its tokens, and its limits."""

import json
import logging
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from datetime import UTC, datetime

import httpx
import pytest
from fastapi.testclient import TestClient

from memory_program.agents.program import MemoryProgram
from memory_program.bank.memory import Draft, MemoryKind, Provenance
from memory_program.cli import main
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.configs.serve_config import ServeConfig
from memory_program.core.errors import BusyError, ConfigError
from memory_program.evaluation.question_selection import load_selection
from memory_program.serving.service.serve_command import (
    make_memory_app,
    make_parts,
    make_served_program,
    serve_memory,
)
from tests.conftest import CHECKOUT
from tests.killed_server import server_killed
from tests.memory_server import KEY, MemoryServer
from tests.memory_services import served
from tests.model_server import Behaviour, ModelServer

PIP = {"role": "user", "name": "Mara", "content": "I adopted a dog called Pip in Oslo."}
ROME = {"role": "user", "name": "Mara", "content": "My sister lives in Rome now."}
QUESTION = {"question": "What is the adopted dog called?"}
API = "/memory/v1"


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    url = f"sqlite:///{tmp_path_factory.mktemp('rest') / 'memory.sqlite'}"
    with (
        served(url, model.url, proxy=True) as (address, parts),
        httpx.Client(base_url=address, timeout=60) as client,
    ):
        yield client, parts


@pytest.fixture
def ask(server, request):
    """Send a request about a namespace of this test alone."""
    client, _ = server
    namespace = f"{request.node.name[:150]} ø/%"

    def send(method, route, *, params=None, headers=None, **content):
        body = {"json": content} if method == "POST" else {}
        sent = {"namespace": namespace, **(params or {})}
        return client.request(method, f"{API}/{route}", params=sent, headers=headers, **body)

    return send


def ok(response):
    assert response.status_code in (200, 202), response.text
    return response.json()


# -- the cycle ---------------------------------------------------------------------------------------


def test_messages_become_memories_that_are_asked_searched_listed_and_edited(ask):
    assert ok(ask("POST", "messages", messages=[PIP])) == {
        "added": 1,
        "skipped": 0,
        "waiting": 1,
        "sessions": [],
        "is_repeated": False,
        "written": None,
    }
    assert "Pip" in ok(ask("POST", "ask", **QUESTION))["answer"]  # word for word
    assert ok(ask("GET", "search", params={"query": "dog"}))["items"][0]["kind"] is None
    done = ok(ask("POST", "messages", messages=[ROME], params={"wait": "true"}))
    assert (done["sessions"], done["written"], done["waiting"]) == ([1], True, 0)

    page = ok(ask("GET", "memories"))
    by_text = {item["text"]: item for item in page["items"]}
    pip = by_text["Mara: I adopted a dog called Pip in Oslo."]
    assert (pip["sources"], pip["kind"]) == (["D1:1"], "semantic")
    assert "Mara" in page["profile"]
    assert ok(ask("POST", "ask", **QUESTION))["shown"] == [pip["memory_id"]]
    assert "Pip" in ok(ask("GET", "context", params={"query": "adopted dog"}))["memories"]

    text = "Mara adopted a cat called Pip."
    new = ok(ask("POST", "corrections", text=text, memory_id=pip["memory_id"], reason="a slip"))
    memory_id = new["operations"][0]["created"][0]["memory_id"]
    history = ok(ask("GET", f"memories/{memory_id}/history"))["items"]
    assert [(o["kind"], o["actor"], o["reason"]) for o in history][1] == ("update", "user", "a slip")
    ok(ask("POST", "forget", memory_ids=[memory_id]))
    assert ok(ask("GET", "search", params={"query": "cat Pip"}))["items"] == []
    ok(ask("POST", "undo"))
    assert [hit["text"] for hit in ok(ask("GET", "search", params={"query": "cat"}))["items"]] == [text]
    status = ok(ask("GET", "namespace"))
    assert (status["sessions"], status["waiting"]) == (1, 0)
    assert ok(ask("DELETE", "namespace"))["rows"] > 5
    assert ok(ask("GET", "memories"))["items"] == []


def test_a_correction_in_words_is_made_by_the_agents(ask):
    ok(ask("POST", "messages", messages=[PIP]))
    done = ok(ask("POST", "corrections", text="The dog that I adopted in Oslo is called Max."))
    assert not done["is_pending"]
    assert {operation["session_id"] for operation in done["operations"]} == {"session_2"}
    assert any("Max" in memory["text"] for o in done["operations"] for memory in o["created"])


def test_answers_as_of_a_day_are_from_what_held_then(ask, server):
    _, parts = server
    sessions = [
        ("2024-05-06", "I moved to a flat in Bergen."),
        ("2024-07-01", "My sister lives in Rome now."),
    ]
    for day, text in sessions:
        message = {"role": "user", "name": "Mara", "content": text, "time": f"{day}T09:00:00Z"}
        ok(ask("POST", "messages", messages=[message], params={"wait": "true"}))
    (namespace,) = [n for n in parts.service.namespaces() if "as_of_a_day" in n]
    space = parts.service.store.load(namespace)
    (home,) = [memory for memory in space.bank.live() if "Bergen" in memory.text]
    draft = Draft("Mara: I moved to a flat in Oslo.", MemoryKind.SEMANTIC)
    space.bank.update(home.memory_id, draft, Provenance("semantic", "session_2"))
    parts.service.store.save(space)

    def found(**params):
        return [hit["text"] for hit in ok(ask("GET", "search", params={"query": "moved", **params}))["items"]]

    assert found() == ["Mara: I moved to a flat in Oslo."]
    assert found(as_of="2024-06-30") == ["Mara: I moved to a flat in Bergen."]
    assert found(as_of="2024-01-01") == []
    context = ok(ask("GET", "context", params={"query": "Who moved to a flat?", "as_of": "2024-06-30"}))
    assert context["memories"] == "Mara: I moved to a flat in Bergen."
    earlier = ok(ask("GET", "context", params={"query": "To which flat did Mara move in June 2024?"}))
    assert "Mara: I moved to a flat in Bergen. (until 1 July 2024)" in earlier["memories"].splitlines()
    assert "Bergen" in ok(ask("POST", "ask", question="Who moved to a flat?", as_of="2024-06-30"))["answer"]
    assert "Oslo" in ok(ask("POST", "ask", question="Who moved to a flat?"))["answer"]
    items = {item["text"]: item for item in ok(ask("GET", "memories"))["items"]}
    oslo = items["Mara: I moved to a flat in Oslo."]
    assert (oslo["valid_from"], oslo["valid_to"]) == ("2024-07-01", None)
    history = ok(ask("GET", f"memories/{oslo['memory_id']}/history"))["items"]
    assert [(m["valid_from"], m["valid_to"]) for o in history for m in o["created"]] == [
        ("2024-05-06", "2024-07-01"),
        ("2024-07-01", None),
    ]
    ok(ask("POST", "messages", messages=[{**PIP, "time": "2024-08-01T09:00:00Z"}]))
    assert "Pip" in ok(ask("GET", "context", params={"query": "dog"}))["excerpts"]
    assert "Pip" not in ok(ask("GET", "context", params={"query": "dog", "as_of": "2024-07-31"}))["excerpts"]
    new = ok(ask("POST", "corrections", text="Mara moved to Drammen.", memory_id=oslo["memory_id"]))
    assert new["operations"][0]["created"][0]["valid_from"] == "2024-07-01"
    assert ask("GET", "search", params={"query": "moved", "as_of": "soon"}).status_code == 422


def test_lists_come_in_pages(ask):
    messages = [{**PIP, "content": f"I adopted a dog called Pip{n} in Oslo."} for n in range(5)]
    ok(ask("POST", "messages", messages=messages, params={"wait": "true"}))
    seen, cursor = [], {}
    while True:
        page = ok(ask("GET", "memories", params={"limit": 2, **cursor}))
        seen += [item["memory_id"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert seen == [item["memory_id"] for item in ok(ask("GET", "memories"))["items"]]
    assert len(seen) == 5
    found = ok(ask("GET", "search", params={"query": "dog", "limit": 3}))
    rest = ok(ask("GET", "search", params={"query": "dog", "limit": 3, "offset": found["next_offset"]}))
    assert len({hit["item_id"] for hit in [*found["items"], *rest["items"]]}) == 5
    assert rest["next_offset"] is None
    for n in range(3):
        ok(ask("POST", "corrections", text=f"Mara has {n} dogs.", memory_id=f"m{5 + n}"))
    first = ok(ask("GET", "memories/m8/history", params={"limit": 3}))
    second = ok(ask("GET", "memories/m8/history", params={"limit": 3, "cursor": first["next_cursor"]}))
    assert [len(first["items"]), len(second["items"]), second["next_cursor"]] == [3, 1, None]


def test_a_search_has_pages_to_its_end(ask, server, request):
    space = server[1].service.store.load(f"{request.node.name[:150]} ø/%")
    drafts = [Draft(f"Bicycle number {number}.", MemoryKind.SEMANTIC) for number in range(1060)]
    space.bank.create(drafts, Provenance("semantic"))
    server[1].service.store.save(space)
    found, offset = [], 0
    while offset is not None:
        page = ok(ask("GET", "search", params={"query": "bicycle", "limit": 50, "offset": offset}))
        found, offset = [*found, *page["items"]], page["next_offset"]
    assert len({hit["item_id"] for hit in found}) == len(found) == 1060


def test_a_repeated_request_with_a_key_changes_nothing(ask):
    key = {"Idempotency-Key": "same"}
    ok(ask("POST", "messages", messages=[PIP], headers=key))
    again = ok(ask("POST", "messages", messages=[PIP], headers=key))
    assert (again["is_repeated"], ok(ask("GET", "namespace"))["waiting"]) == (True, 1)
    other = ask("POST", "messages", messages=[ROME], headers=key)
    assert (other.status_code, other.json()["code"]) == (422, "RepeatedKey")
    ok(ask("POST", "messages", params={"wait": "true"}))
    forget = {"memory_ids": [ok(ask("GET", "memories"))["items"][0]["memory_id"]]}
    first = ok(ask("POST", "forget", headers={"Idempotency-Key": "once"}, **forget))
    repeated = ok(ask("POST", "forget", headers={"Idempotency-Key": "once"}, **forget))
    assert repeated == {**first, "is_repeated": True}
    undone = [ok(ask("POST", "undo", headers={"Idempotency-Key": "back"}))["version"] for _ in range(2)]
    assert undone[0] == undone[1]


def test_only_text_of_users_and_assistants_is_remembered(ask):
    messages = [
        {"role": "system", "content": "You are helpful."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Look at"}, {"type": "image_url", "image_url": {}}],
        },
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "tool_call_id": "x", "content": "42"},
        {"role": "assistant", "content": "A fine dog."},
    ]
    added = ok(ask("POST", "messages", messages=messages))
    assert (added["added"], added["skipped"]) == (2, 3)
    shown = ok(ask("GET", "context", params={"query": "dog"}))["excerpts"]
    assert [line.partition("] ")[2] for line in shown.splitlines()] == [
        "User: Look at",
        "Assistant: A fine dog.",
    ]


def test_times_carry_a_zone_and_the_clock_of_the_server_is_marked_as_such(ask):
    naive = ask("POST", "messages", messages=[{**PIP, "time": "2024-05-06T10:00:00"}])
    assert naive.status_code == 422
    ok(ask("POST", "messages", messages=[{**PIP, "time": "2024-05-06T10:00:00+02:00"}, ROME]))
    late = {**ROME, "content": "My brother lives in Bergen now."}
    ok(ask("POST", "messages", messages=[late], params={"wait": "true"}))
    sources = {
        source["text"]: source
        for memory in ok(ask("GET", "memories"))["items"]
        for source in ok(ask("GET", f"memories/{memory['memory_id']}/sources"))["items"]
    }
    marks = {text: source["has_own_time"] for text, source in sources.items()}
    assert marks == {PIP["content"]: True, ROME["content"]: False, late["content"]: False}
    times = {text: datetime.fromisoformat(source["time"]) for text, source in sources.items()}
    assert times[PIP["content"]] == datetime(2024, 5, 6, 8, tzinfo=UTC)
    assert abs((datetime.now(UTC) - times[ROME["content"]]).total_seconds()) < 60


# -- errors, limits, tokens --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "route", "content", "params", "status", "code"),
    [
        ("GET", "memories/m9/history", {}, {}, 404, "UnknownMemory"),
        ("GET", "memories/nine/history", {}, {}, 422, "Invalid"),
        ("POST", "forget", {"memory_ids": ["m9"]}, {}, 404, "UnknownMemory"),
        ("POST", "undo", {}, {}, 422, "MemoryOperation"),
        ("POST", "undo", {"version": 7}, {}, 422, "MemoryOperation"),
        ("POST", "ask", {}, {}, 422, "Invalid"),
        ("POST", "ask", {"question": "x", "extra": 1}, {}, 422, "Invalid"),
        ("GET", "search", {}, {"query": "x", "limit": 51}, 422, "Invalid"),
        ("POST", "messages", {"messages": [{"role": "user", "content": "x" * 33_000}]}, {}, 422, "Config"),
        ("POST", "messages", {"messages": [PIP] * 257}, {}, 422, "Invalid"),
        ("GET", "memories", {}, {"namespace": "a\nb"}, 422, "Config"),
        ("GET", "memories", {}, {"namespace": ""}, 422, "Config"),
        ("PUT", "memories", {}, {}, 405, "Http"),
        ("GET", "nothing", {}, {}, 404, "Http"),
    ],
)
def test_an_error_is_a_problem_document(ask, method, route, content, params, status, code):
    answer = ask(method, route, params=params, **content)
    problem = answer.json()
    assert (answer.status_code, problem["status"], problem["code"]) == (status, status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert "x" * 100 not in answer.text


@pytest.mark.parametrize(
    "body",
    [
        r'{"question": "\ud800"}',
        r'{"question": "x", "\ud800": 1}',
        '{"question": NaN}',
        '{"question": ' + "[" * 9000,
        "[" * 9000 + "]" * 9000,
        "\xff",
        "",
    ],
    ids=["half a pair", "half a pair as a name", "no number", "open", "deep", "no text", "nothing"],
)
@pytest.mark.parametrize("path", [f"{API}/ask", "/v1/chat/completions"])
def test_a_body_that_nobody_can_read_is_the_client_s_error(server, path, body):
    sent = {"content": body.encode("latin-1"), "headers": {"content-type": "application/json"}}
    assert server[0].post(path, **sent).status_code in (400, 422)


def test_a_body_that_is_not_json_is_told_what_to_send(server):
    def told(body, kind):
        answer = server[0].post(f"{API}/ask", content=body, headers={"content-type": kind})
        assert answer.status_code == 422
        return answer.json()["detail"]

    for kind in ("", "text/plain", "application/x-www-form-urlencoded"):  # the last is curl's
        assert told(b'{"question": "x"}', kind).endswith(
            f"body: Content-Type '{kind}' must be application/json"
        )
    for body in (b'{"question": "\xff"}', b'{"question": ' + b"1" * 5000 + b"}"):
        assert "body: Input should be JSON in UTF-8" in told(body, "application/json")


@pytest.mark.parametrize("path", [f"{API}/messages", "/v1/chat/completions"])
def test_parts_that_are_nested_too_deeply_are_the_client_s_error(server, path):
    part = '{"type": "text", "text": "x", "more": ' + '{"a": ' * 300 + "1" + "}" * 300 + "}"
    content = '{"messages": [{"role": "user", "content": [' + part + "]}]}"
    headers = {"Content-Type": "application/json", "Idempotency-Key": "deep"}
    answer = server[0].post(path, content=content, headers=headers)
    assert answer.status_code == (422 if path.startswith(API) else 400), answer.text


def test_half_a_surrogate_pair_of_a_model_is_shown_as_the_replacement_character(ask, server, request):
    space = server[1].service.store.load(f"{request.node.name[:150]} ø/%")
    space.bank.create([Draft("A smile \ud83d.", MemoryKind.SEMANTIC)], Provenance("semantic"))
    space.bank.edit_core("Smiles \ud83d.", Provenance("core"))
    server[1].service.store.save(space)
    page = ok(ask("GET", "memories"))
    assert (page["items"][0]["text"], page["profile"]) == ("A smile \ufffd.", "Smiles \ufffd.")
    assert ok(ask("GET", "search", params={"query": "smile"}))["items"]
    assert "\ufffd" in ok(ask("GET", "context", params={"query": "smile"}))["memories"]
    assert ok(ask("GET", "memories/m1/history"))["items"]
    assert ok(ask("POST", "undo"))["operations"]


def test_a_model_that_fails_is_an_error_and_no_answer(tmp_path):
    with (
        ModelServer(lambda p, n: Behaviour.SERVER_ERROR) as broken,
        served(f"sqlite:///{tmp_path / 'b.sqlite'}", broken.url) as (address, _),
    ):
        answer = httpx.post(f"{address}{API}/ask", json=QUESTION, timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (502, "Model")


def test_an_exhausted_quota_is_no_fault_of_the_client(tmp_path):
    with (
        ModelServer(lambda p, n: Behaviour.QUOTA) as broke,
        served(f"sqlite:///{tmp_path / 'b.sqlite'}", broke.url) as (address, _),
    ):
        answer = httpx.post(f"{address}{API}/ask", json=QUESTION, timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (503, "QuotaExhausted")
    assert "whoever runs the server must add credit" in answer.json()["detail"]
    assert "same command" not in answer.text


def test_sizes_hosts_and_waiting_turns_are_limited(tmp_path, model):
    with (
        served(f"sqlite:///{tmp_path / 'b.sqlite'}", model.url, max_megabytes=0.01, max_waiting=2) as (
            address,
            _,
        ),
        httpx.Client(base_url=address) as client,
    ):
        large = {"messages": [{**PIP, "content": "x" * 11_000}]}
        assert client.post(f"{API}/messages", json=large).status_code == 413
        chunks = client.post(
            f"{API}/messages", content=iter([b"x" * 6000] * 3), headers={"content-type": "application/json"}
        )
        assert (chunks.status_code, chunks.json()["code"]) == (413, "TooLarge")
        stranger = client.get(f"{API}/memories", headers={"host": "evil.example:80"})
        assert (stranger.status_code, stranger.json()["code"]) == (403, "Host")
        assert client.post(f"{API}/messages", json={"messages": [PIP, ROME]}).status_code == 202
        full = client.post(f"{API}/messages", json={"messages": [PIP]})
        assert (full.status_code, full.json()["code"], full.headers["retry-after"]) == (
            429,
            "BufferFull",
            "5",
        )
        assert client.get(f"{API}/namespace").json()["waiting"] == 2


def test_tokens_are_scoped_hashed_and_revoked(tmp_path, model, capsys, caplog):
    caplog.set_level(logging.INFO)
    path = tmp_path / "b.sqlite"
    url = f"sqlite:///{path}"

    def make(*flags):
        assert main(["token", "create", "--db-url", url, *flags]) == 0
        return capsys.readouterr().out.strip()

    writer = make("--namespaces", "ana,team/*")
    reader = make("--namespaces", "ana", "--access", "read")
    with (
        served(url, model.url, require_tokens=True) as (address, _),
        httpx.Client(base_url=address) as client,
    ):

        def send(method, route, token, namespace=None, **content):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            params = {} if namespace is None else {"namespace": namespace}
            body = {"json": content} if method == "POST" else {}
            return client.request(
                method, f"{API}/{route}", params=params, headers=headers, **body
            ).status_code

        assert send("GET", "memories", None, "ana") == 401
        assert send("GET", "memories", "mp_00000000_guess", "ana") == 401
        assert client.get("/health").status_code == 200
        assert client.get("/metrics").status_code == 401
        assert send("POST", "messages", writer, "ana", messages=[PIP]) == 202
        assert send("POST", "messages", writer, "team/a", messages=[PIP]) == 202
        assert send("POST", "messages", writer, "bo", messages=[PIP]) == 403
        assert send("GET", "memories", writer) == 403  # "default" is not among its names
        assert send("GET", "memories", reader) == 200  # its only name
        assert send("GET", "search", reader) == 422
        for route, content in {
            "messages": {"messages": [PIP]},
            "forget": {"memory_ids": ["m1"]},
            "undo": {},
            "corrections": {"text": "x"},
        }.items():
            assert send("POST", route, reader, "ana", **content) == 403
        assert send("DELETE", "namespace", reader, "ana") == 403
        names = client.get(f"{API}/namespaces", headers={"X-Memory-Token": reader}).json()["items"]
        assert names == ["ana"]
        assert main(["token", "revoke", "--db-url", url, "--token-id", reader.split("_")[1]]) == 0
        assert send("GET", "memories", reader) == 401
    assert main(["token", "list", "--db-url", url]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert ["revoked" in line for line in listed[-2:]] == [False, True]
    for secret in (writer, reader, writer.split("_", 2)[2]):
        assert secret not in caplog.text
        assert not any(secret.encode() in file.read_bytes() for file in tmp_path.iterdir())


def test_a_request_without_a_token_is_told_how_to_send_one(tmp_path, model):
    with served(f"sqlite:///{tmp_path / 'b.sqlite'}", model.url, require_tokens=True) as (address, _):
        detail = httpx.get(f"{address}{API}/memories").json()["detail"]
    assert detail == (
        "send a token of this server in the header Authorization (as Bearer) or X-Memory-Token: "
        "memory-program token create makes one"
    )


def test_requests_of_a_token_are_limited_and_open_sessions_are(tmp_path, model):
    settings = {"require_tokens": True, "requests_per_second": 0.5, "max_open_sessions": 2}
    with (
        served(f"sqlite:///{tmp_path / 'b.sqlite'}", model.url, **settings) as (address, parts),
        httpx.Client(base_url=address) as client,
    ):
        one, other = ({"X-Memory-Token": parts.tokens.create(["*"], "write")} for _ in range(2))

        def tell(namespace, **more):
            body = {"messages": [PIP], **more}
            return client.post(f"{API}/messages", params={"namespace": namespace}, json=body, headers=one)

        for namespace in ("ana", "bo", "ana"):
            assert tell(namespace).status_code == 202
        full = tell("cy")
        assert (full.status_code, full.json()["code"]) == (429, "BufferFull")
        assert tell("cy", end=True).status_code == 202  # it stays open for no time
        fast = tell("ana")
        assert (fast.status_code, fast.json()["code"]) == (429, "Rate")
        assert fast.headers["retry-after"] in ("1", "2")  # a token comes back every two seconds
        assert fast.headers["content-type"] == "application/problem+json"
        assert client.get(f"{API}/namespaces", headers=other).status_code == 200
        assert client.get("/health").status_code == 200


def test_the_log_names_the_label_of_the_token_that_deleted_and_never_the_token(
    tmp_path, model, caplog, capsys
):
    caplog.set_level(logging.INFO)
    url = f"sqlite:///{tmp_path / 'b.sqlite'}"
    make = ["token", "create", "--db-url", url, "--namespaces", "ana", "--label", "Ana's laptop"]
    assert main(make) == 0
    token = capsys.readouterr().out.strip()
    assert main(["token", "list", "--db-url", url]) == 0
    assert capsys.readouterr().out.rstrip().endswith("write  ana  Ana's laptop")
    with (
        served(url, model.url, require_tokens=True) as (address, _),
        httpx.Client(base_url=address, headers={"X-Memory-Token": token}, timeout=60) as client,
    ):
        ok(client.post(f"{API}/messages", params={"wait": "true"}, json={"messages": [PIP]}))
        ok(client.post(f"{API}/forget", json={"memory_ids": ["m1"]}))
        ok(client.post(f"{API}/undo", json={}))
        ok(client.delete(f"{API}/namespace", params={"namespace": "ana"}))
    lines = [json.loads(one) for one in caplog.messages if one.startswith("{")]
    found = [{k: v for k, v in line.items() if k != "rows"} for line in lines if "label" in line]
    who = {"namespace": "ana", "token": token.split("_")[1], "label": "Ana's laptop"}
    assert found == [
        {"event": "forget", **who, "memories": 1},
        {"event": "undo", **who, "operations": 2},
        {"event": "erase", **who},
    ]
    assert token not in caplog.text


def test_the_log_has_each_deletion_once_also_if_an_erasure_ends_in_an_error(
    tmp_path, model, caplog, monkeypatch
):
    monkeypatch.setattr("memory_program.bank.forgetting._BUSY_TIMEOUT_S", 0.1)
    caplog.set_level(logging.INFO)
    file = tmp_path / "b.sqlite"
    with (
        served(f"sqlite:///{file}", model.url) as (address, _),
        httpx.Client(base_url=address, params={"namespace": "ana"}, timeout=60) as client,
        closing(sqlite3.connect(file, isolation_level=None)) as reader,
    ):
        ok(client.post(f"{API}/messages", params={"wait": "true"}, json={"messages": [PIP]}))
        for route, body in (("forget", {"memory_ids": ["m1"]}), ("undo", {})):
            for _ in range(2):
                ok(client.post(f"{API}/{route}", json=body, headers={"Idempotency-Key": route}))
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM memory_operations").fetchone()
        assert client.delete(f"{API}/namespace").status_code == 503
        reader.execute("ROLLBACK")
    lines = [json.loads(one) for one in caplog.messages if one.startswith("{")]
    found = [line["event"] for line in lines if "label" in line]
    assert found == ["forget", "undo", "erase"]


def test_a_server_that_others_reach_does_not_start_without_a_token(tmp_path, model, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    config = ServeConfig(
        db_url=f"sqlite:///{tmp_path / 'b.sqlite'}",
        model="openai/test",
        api_base=model.url,
        host="0.0.0.0",
        port=0,
    )
    with pytest.raises(ConfigError, match=r"host='0.0.0.0' asks for tokens, and there is none") as refused:
        serve_memory(config)
    assert f"token create --db-url {config.db_url}" in str(refused.value)
    with pytest.raises(ConfigError, match="no model is named"):
        ServeConfig(writer_model="openai/test")


def test_a_server_whose_port_is_in_use_ends_with_an_error_that_says_so(tmp_path, model):
    with socket.create_server(("127.0.0.1", 0)) as other:
        flags = ["--mcp", "stdio", "--rest", "--port", str(other.getsockname()[1])]
        command = [sys.executable, "-m", "memory_program", "serve", *flags]
        named = ["--db-url", f"sqlite:///{tmp_path / 'b.sqlite'}", "--model", "openai/test"]
        done = subprocess.run(
            [*command, *named, "--api-base", model.url],
            env={**os.environ, "PYTHONPATH": str(CHECKOUT), "OPENAI_API_KEY": KEY},
            stdin=subprocess.PIPE,
            capture_output=True,
            text=True,
            timeout=60,
        )
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, last.partition("(")[0]) == (
        2,
        "error: the server cannot listen: Address already in use ",
    )


def test_metrics_count_what_happened_and_name_nobody(server, ask):
    ok(ask("POST", "messages", messages=[PIP], params={"wait": "true"}))
    text = server[0].get("/metrics").text
    assert 'memory_requests_total{method="POST",route="/memory/v1/messages",status="202"}' in text
    assert "memory_sessions_written_total" in text
    assert "ø" not in text
    assert server[0].get("/health").json()["status"] == "ok"
    assert server[0].head("/health").status_code == 200  # as uptime monitors ask


def test_the_schema_describes_every_route(server):
    schema = server[0].get("/openapi.json").json()
    assert {path.removeprefix(f"{API}/") for path in schema["paths"] if path.startswith(API)} == {
        *("messages", "ask", "context", "search", "memories", "memories/{memory_id}/history"),
        "memories/{memory_id}/sources",
        *("corrections", "forget", "undo", "namespaces", "namespace"),
    }
    for path, methods in schema["paths"].items():
        for route in methods.values() if path.startswith(API) else ():
            errors = [told for status, told in route["responses"].items() if status >= "400"]
            assert {tuple(told["content"]) for told in errors} == {("application/problem+json",)}


def test_a_parameter_that_a_route_does_not_have_is_refused(server, ask):
    schema = server[0].get("/openapi.json").json()["paths"]
    for path, methods in schema.items():
        for method, route in methods.items() if path.startswith(API) else ():
            parameters = [one["name"] for one in route.get("parameters", []) if one["in"] == "query"]
            known = sorted({"namespace", *parameters})
            asked = path.removeprefix(f"{API}/").replace("{memory_id}", "m1")
            for name in ("user_id", *({"as_of", "offset"} - {*known})):
                answer = ask(method.upper(), asked, params={name: "1"})
                assert answer.status_code == 422, (path, name)
                told = f"unknown parameter '{name}': choose from {', '.join(known)}"
                assert answer.json()["detail"] == told


def test_a_server_whose_default_namespace_is_no_name_does_not_start(tmp_path):
    config = ServeConfig(db_url=f"sqlite:///{tmp_path / 'b.sqlite'}", model="openai/test", namespace="")
    with pytest.raises(ConfigError, match=r"namespace='' must have 1 to 200 characters"):
        make_parts(config, MemoryProgram())


def test_a_server_refuses_arguments_of_the_chat_template_that_its_models_never_see(monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("OPENAI_API_BASE", raising=False)
    settings = ServeConfig(model="openai/gpt-4.1", chat_template_kwargs='{"enable_thinking": false}')
    with pytest.raises(ConfigError, match=r"would not reach openai/gpt-4\.1, since hosted APIs"):
        make_served_program(settings)


@pytest.mark.slow  # it loads torch
def test_the_embedded_model_writes_and_answers_through_the_server(tmp_path):
    config = EvaluateConfig(mlflow=False, num_test=20, sessions=3)
    conversation = load_selection(config).conversations[0]
    settings = ServeConfig(db_url=f"sqlite:///{tmp_path / 'b.sqlite'}", model="pocket", rest=True)
    parts = make_parts(settings, make_served_program(settings))
    parts.service.start()
    with TestClient(make_memory_app(settings, parts), base_url="http://127.0.0.1") as client:
        for session in conversation.sessions:
            time = session.date_time.isoformat()
            messages = [
                {"role": "user", "name": turn.speaker, "content": turn.utterance, "time": time}
                for turn in session.turns
            ]
            ok(client.post(f"{API}/messages?wait=true&timeout_s=60", json={"messages": messages}))
        answers = {
            question: ok(client.post(f"{API}/ask", json={"question": question.text}))["answer"]
            for question in conversation.questions
            if question.evidence and question.answer is not None
        }
    parts.service.stop()
    right = [str(question.answer).lower() == answer.lower() for question, answer in answers.items()]
    assert len(right) >= 3
    assert sum(right) / len(right) > 0.6


# -- a process that is killed ------------------------------------------------------------------------


def test_a_killed_server_answers_after_its_restart_from_every_turn_that_it_took(tmp_path, model):
    with ModelServer(latency_s=0.3) as slow:
        with MemoryServer(tmp_path, slow.url, "--rest") as server:
            taken = httpx.post(f"{server.url}{API}/messages", json={"messages": [PIP], "end": True})
            assert taken.status_code == 202
            httpx.post(f"{server.url}{API}/messages", json={"messages": [ROME]})
            assert server.stop(signal.SIGKILL) == -signal.SIGKILL
        with MemoryServer(tmp_path, slow.url, "--rest", db=server.db) as server:
            with httpx.Client(base_url=server.url, timeout=60) as client:
                assert "Pip" in client.post(f"{API}/ask", json=QUESTION).json()["answer"]
                written = client.post(f"{API}/messages", params={"wait": "true"}, json={}).json()
                assert written["written"]
                texts = [item["text"] for item in client.get(f"{API}/memories").json()["items"]]
                assert sorted(text.split()[-2] for text in texts) == ["Rome", "in"]
                assert client.get(f"{API}/namespace").json()["sessions"] == 2
            assert server.stop(signal.SIGTERM) == 0
        assert "Pip" not in server.log
        assert KEY not in server.log


@pytest.mark.parametrize(
    ("route", "content"), [("messages", {"messages": [PIP], "end": True}), ("ask", QUESTION)]
)
def test_a_server_stops_after_its_grace_though_a_model_never_answers(tmp_path, route, content):
    behaves = [Behaviour.COMPETENT]
    with (
        ModelServer(lambda *_: behaves[0]) as model,
        MemoryServer(tmp_path, model.url, "--grace", "1") as server,
    ):
        behaves[0] = Behaviour.HANG
        with suppress(httpx.TimeoutException):
            httpx.post(f"{server.url}{API}/{route}", json=content, timeout=1)
        while not model.traffic.in_flight:
            time.sleep(0.05)
        assert server.stop(signal.SIGTERM) == 0  # it is given 30 seconds, the model hangs for 60


def test_each_line_of_the_log_is_json_and_only_replies_to_requests_are_reported_as_cut(tmp_path):
    with ModelServer(lambda *_: Behaviour.CUT) as model, MemoryServer(tmp_path, model.url) as server:
        assert httpx.post(f"{server.url}{API}/ask", json=QUESTION, timeout=60).status_code == 502
        assert server.stop(signal.SIGTERM) == 0
    entries = [json.loads(line) for line in server.log.splitlines()]
    assert [entry["level"] for entry in entries if entry["logger"].startswith("dspy")] == ["warning"]


@pytest.mark.timeout(900)  # half a minute on an idle machine
def test_killed_servers_keep_each_acknowledged_turn_once_and_in_order(tmp_path):
    with ModelServer(latency_s=0.1) as slow:
        toll = server_killed(tmp_path, slow.url, 2, random.Random(0))  # benchmarks/faults.py kills more often
    assert toll.strikes == 2
    assert toll.is_nothing, toll


@pytest.mark.parametrize(
    "models",
    [
        {"model": "local:folder"},
        {"model": "anthropic/claude-haiku-4-5"},
        {"model": "openai/a", "writer_model": "pocket"},
        {"model": "openai/a", "reader_api_base": "http://127.0.0.1:8000/v1"},
    ],
)
def test_a_proxy_sends_nothing_to_openai_unless_its_models_are_there(models):
    with pytest.raises(ConfigError, match="to OpenAI: name the API of the chat model with --upstream"):
        ServeConfig(proxy=True, **models)
    assert ServeConfig(proxy=True, upstream="http://127.0.0.1:8000/v1", **models).doors.upstream
    assert ServeConfig(proxy=True, model="openai/a").doors.upstream is None


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite+pysqlite:///?timeout=5"])
def test_a_database_in_memory_is_refused(url):
    with pytest.raises(ConfigError, match="is in memory, and the turns would be lost"):
        ServeConfig(db_url=url, model="openai/a")


def test_a_namespace_header_that_is_not_utf_8_is_refused(server):
    for name, status in (("caf%C3%A9", 200), ("caf%E9", 422), ("caf%E8", 422)):
        answer = server[0].get(f"{API}/namespace", headers={"X-Memory-Namespace": name})
        assert answer.status_code == status
    assert "is not UTF-8" in answer.json()["detail"]


def test_two_namespaces_of_a_query_that_is_not_utf_8_are_not_one(server):
    added = [
        server[0].post(f"{API}/messages?namespace={name}", json={"messages": [PIP]})
        for name in ("jos%E9", "jos%E8")
    ]
    assert [one.status_code for one in added] == [422, 422]
    assert "is not UTF-8" in added[0].json()["detail"]
    assert "jos\ufffd" not in server[0].get(f"{API}/namespaces", params={"limit": 200}).json()["items"]
    assert server[0].get(f"{API}/namespace?namespace=jos%C3%A9").json()["namespace"] == "josé"


def test_messages_are_stored_once_though_nobody_could_wait_for_them(tmp_path, model, monkeypatch):
    with served(f"sqlite:///{tmp_path / 'b.sqlite'}", model.url) as (address, parts):

        def wait(namespace: str, timeout_s: float) -> bool:
            raise BusyError("8 requests wait for the model: send this one again later")

        monkeypatch.setattr(parts.service, "wait", wait)
        added = httpx.post(f"{address}{API}/messages?wait=true", json={"messages": [PIP]})
        assert (added.status_code, added.json()["added"], added.json()["written"]) == (202, 1, False)
        assert [one.turns for one in parts.service.buffer.waiting()] == [1]
