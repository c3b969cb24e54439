"""Random requests to every route of the memory server: none is an error of the server or half applied."""

import json
import time

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memory_program.bank.bank import MemoryBank
from memory_program.bank.store import BankStore
from tests.chat_upstream import said, streamed
from tests.memory_services import said as said_turn
from tests.memory_services import served
from tests.model_server import ModelServer
from tests.served_app import ServedApp

MCP, CHAT, API = "/mcp", "/v1/chat/completions", "/memory/v1"
NAME = "fuzz"

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
TEXT = st.text(min_size=1, max_size=30)
PIP = "I adopted a dog called Pip in Oslo."  # the scripted model makes a memory of it
IDS = st.sampled_from(["m1", "m1", "m2", "m3", "m99", "x"])
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "user", "assistant", "tool"]),
            "content": st.one_of(st.just(PIP), st.just(PIP), TEXT, JSON),
        },
        optional={"name": TEXT, "time": st.sampled_from(["2024-05-06T09:00:00Z", "2024-05-06T09:00:00"])},
    ),
    max_size=4,
)
UNDO = st.fixed_dictionaries({}, optional={"version": st.integers(-1, 3) | st.integers()})
CORRECTION = st.fixed_dictionaries(
    {"text": TEXT}, optional={"memory_id": IDS, "happened_at": st.sampled_from(["2024-02-29", "2023-02-29"])}
)
FORGET = st.fixed_dictionaries({"memory_ids": st.lists(IDS, min_size=1, max_size=2)})
BODIES = {
    f"{API}/messages": st.fixed_dictionaries({"messages": MESSAGES}, optional={"end": st.booleans()}),
    f"{API}/ask": st.fixed_dictionaries({"question": TEXT}),
    f"{API}/corrections": CORRECTION,
    f"{API}/forget": FORGET,
    f"{API}/undo": UNDO,
    CHAT: st.fixed_dictionaries({"model": TEXT, "messages": MESSAGES}, optional={"stream": st.booleans()}),
    MCP: st.builds(
        lambda tool, arguments: {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": tool, "arguments": arguments},
        },
        st.sampled_from(
            ["remember", "ask", "search_memory", "list_memories", "history", "correct", "forget", "undo", "x"]
        ),
        st.fixed_dictionaries({}, optional={"text": TEXT, "question": TEXT, "query": TEXT})
        | st.fixed_dictionaries({"memory_id": IDS})
        | CORRECTION
        | FORGET
        | UNDO
        | JSON,
    ),
}


async def complete(request: Request) -> Response:
    whole = said("Lovely.")
    try:
        body = await request.json()
    except (ValueError, RecursionError):  # what is forwarded untouched may be anything
        return JSONResponse({"error": {"message": "no JSON"}}, 400)
    if isinstance(body, dict) and body.get("stream") is True:
        return StreamingResponse(iter(streamed(whole)), media_type="text/event-stream")
    return JSONResponse(whole)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A client of a server with every door open, its service, its routes, and its database."""
    upstream = FastAPI()
    upstream.post(CHAT, response_model=None)(complete)
    upstream.get("/v1/models")(lambda: {"object": "list", "data": []})
    url = f"sqlite:///{tmp_path_factory.mktemp('fuzz') / 'memory.sqlite'}"
    with ModelServer() as model, ServedApp(upstream) as chat:
        doors = {
            "namespace": NAME,
            "proxy": True,
            "mcp": "http",
            "upstream": "http://{}:{}/v1".format(*chat.address),
        }
        with (
            served(url, model.url, **doors) as (address, parts),
            httpx.Client(base_url=address, timeout=60) as client,
        ):
            paths = client.get("/openapi.json").json()["paths"]
            routes = {
                (method.upper(), path): [(one["name"], one["in"]) for one in described.get("parameters", [])]
                for path, methods in paths.items()
                for method, described in methods.items()
            }
            yield client, parts.service, {**routes, ("POST", MCP): [], ("GET", "/"): []}, url


def test_requests_with_a_body_are_fuzzed_with_one_of_their_own(world):
    assert {path for method, path in world[2] if method == "POST"} == BODIES.keys()


VALUES = {
    "namespace": st.sampled_from([*[NAME] * 6, "fuzz/2", "", "\x00", "a" * 201]),
    "memory_id": IDS,
    "query": st.text(max_size=20),
    "cursor": IDS | st.integers(-1, 5).map(str) | st.text(max_size=5),
    "idempotency-key": st.uuids().map(str) | st.sampled_from(["k1", "k" * 201]),
    "wait": st.sampled_from(["true", "false", "maybe"]),
}
ANY_VALUE = st.integers(-1, 300).map(str) | st.sampled_from(["semantic", "core", "1e999", "nan", ""])
HEADERS = {"X-Memory-Namespace": ["fuzz", "fuzz", "caf%C3%A9", "%00", "%ff"], "X-Memory": ["off", "on"]}


def draw_request(draw, method, path, parameters):
    """Draw the arguments of httpx for a request: each parameter is left out, likely or strange."""
    values = {"path": {}, "query": {}, "header": {"Accept": "application/json, text/event-stream"}}
    for name, place in parameters:
        if place == "path" or draw(st.booleans()):
            values[place][name] = draw(VALUES.get(name.lower(), ANY_VALUE))
    for name, likely in HEADERS.items():
        if draw(st.booleans()):
            values["header"][name] = draw(st.sampled_from(likely))
    sent = {"method": method, "url": path.format(**values["path"]), "params": values["query"]}
    if method == "POST":
        values["header"]["Content-Type"] = "application/json"
        content = draw(st.one_of(*[BODIES[path]] * 4, JSON, st.binary(max_size=12)))
        sent["content"] = content if isinstance(content, bytes) else json.dumps(content)
    return {**sent, "headers": values["header"]}


def state(service, url):
    """The version of each namespace and its turns, written or waiting, once nothing is being written."""
    until = time.monotonic() + 60
    while service.buffer.next_sessions():
        assert time.monotonic() < until
        time.sleep(0.01)
    found = {}
    with BankStore(url) as store:
        for name in service.namespaces():
            space = store.load(name)
            operations = space.bank.operations()
            assert operations == service.bank(name).operations()
            assert MemoryBank.replay(name, operations).live() == space.bank.live()
            sessions = [*(one.session for one in space.sessions.values()), *service.buffer.sessions(name)]
            found[name] = (space.bank.version, sum(len(session.turns) for session in sessions))
    return found


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_request_makes_the_server_fail_or_is_half_applied(world, data):
    client, service, routes, url = world
    method, path = data.draw(st.sampled_from(sorted(routes)))
    if not service.bank(NAME).live():  # a request has deleted or undone them
        service.add(NAME, [said_turn(PIP), said_turn("My sister lives in Rome with two cats.")], ends=True)
    before = state(service, url)
    answer = client.request(**draw_request(data.draw, method, path, routes[method, path]))
    assert answer.status_code < 500, answer.text
    after = state(service, url)
    if answer.status_code >= 400 or method == "GET":
        assert after == before
    elif path == f"{API}/messages":
        added = answer.json()
        turns = [sum(count for _, count in found.values()) for found in (before, after)]
        assert turns[1] - turns[0] == (0 if added["is_repeated"] else added["added"])
