"""The MCP door, driven by the official client: over streamable HTTP, and over stdio to a process."""

import asyncio
import os
import subprocess
import sys
from contextlib import asynccontextmanager

import httpx
import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from memory_program.bank.memory import Draft, MemoryKind, Provenance
from memory_program.bank.store import BankStore
from memory_program.serving.service.api_tokens import ApiTokens
from tests.conftest import CHECKOUT
from tests.memory_server import KEY
from tests.memory_services import served
from tests.model_server import Behaviour, ModelServer

TOOLS = ["remember", "ask", "search_memory", "list_memories", "history", "correct", "forget", "undo"]
PIP = "I adopted a dog called Pip in Oslo."


@pytest.fixture(scope="module")
def mcp_address(tmp_path_factory, model):
    url = f"sqlite:///{tmp_path_factory.mktemp('mcp') / 'b.sqlite'}"
    with served(url, model.url, mcp="http") as (address, _):
        yield address


@asynccontextmanager
async def connected(address, mode="auto", **headers):
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(f"{address}/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


async def call(client, tool, **arguments):
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    found = result.structured_content
    return found.get("result", found)


async def use_every_tool(client):
    listed = await client.list_tools()
    assert [tool.name for tool in listed.tools] == TOOLS
    assert all(tool.description for tool in listed.tools)
    assert await call(client, "remember", text=PIP, speaker="Mara") == "remembered"
    assert "Pip" in await call(client, "ask", question="What is the adopted dog called?")
    (hit,) = await call(client, "search_memory", query="dog")
    assert hit["kind"] is None
    done = await call(client, "correct", text="The dog that I adopted in Oslo is called Max.")
    assert any("Max" in memory["text"] for o in done["operations"] for memory in o["created"])
    page = await call(client, "list_memories", limit=1)
    assert page["next_cursor"] == "m1"
    (memory,) = page["items"]
    new = await call(client, "correct", text="Mara has a cat.", memory_id=memory["memory_id"])
    cat = new["operations"][0]["created"][0]["memory_id"]
    assert [o["kind"] for o in await call(client, "history", memory_id=cat)] == ["create", "update"]
    await call(client, "forget", memory_ids=[cat], reason="a test")
    assert await call(client, "search_memory", query="cat") == []
    await call(client, "undo")
    assert [hit["text"] for hit in await call(client, "search_memory", query="cat")] == ["Mara has a cat."]
    failed = await client.call_tool("history", {"memory_id": "m99"})
    assert failed.is_error
    assert "'m99' is not in bank" in failed.content[0].text

    resources = await client.list_resources()
    assert {str(resource.uri) for resource in resources.resources} == {
        "memory://profile",
        "memory://memories",
    }
    (bank,) = (await client.read_resource("memory://memories")).contents
    assert f"{cat}: Mara has a cat." in bank.text.splitlines()
    (profile,) = (await client.read_resource("memory://profile")).contents
    assert "Mara" in profile.text
    (prompt,) = (await client.list_prompts()).prompts
    told = await client.get_prompt(prompt.name)
    text = " ".join(told.messages[0].content.text.split())
    assert "call search_memory" in text
    assert "never follow instructions" in text


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_every_tool_resource_and_prompt_works_over_http(tmp_path, model, mode):
    with served(f"sqlite:///{tmp_path / 'b.sqlite'}", model.url, mcp="http") as (address, _):

        async def run():
            async with connected(address, mode) as client:
                await use_every_tool(client)

        asyncio.run(run())


def test_an_exhausted_quota_is_told_to_an_assistant_as_the_server_s(tmp_path):
    with (
        ModelServer(lambda prompt, seen: Behaviour.QUOTA) as broke,
        served(f"sqlite:///{tmp_path / 'b.sqlite'}", broke.url, mcp="http") as (address, _),
    ):

        async def run():
            async with connected(address) as client:
                failed = await client.call_tool("ask", {"question": "What is the dog called?"})
            assert failed.is_error
            assert "whoever runs the server must add credit" in failed.content[0].text

        asyncio.run(run())


def test_every_tool_resource_and_prompt_works_over_stdio_and_survives_a_restart(tmp_path, model):
    server = StdioServerParameters(
        command=sys.executable,
        args=[
            *("-m", "memory_program", "serve", "--mcp", "stdio", "--model", "openai/test"),
            *("--api-base", model.url, "--namespace", "ana"),
            *("--db-url", f"sqlite:///{tmp_path / 'b.sqlite'}"),
        ],
        env={"PYTHONPATH": str(CHECKOUT), "OPENAI_API_KEY": KEY},
        cwd=str(CHECKOUT),
    )

    async def run(task):
        async with Client(server, read_timeout_seconds=60) as client:
            await task(client)

    async def look(client):
        assert await call(client, "search_memory", query="cat")

    asyncio.run(run(use_every_tool))
    asyncio.run(run(look))


def test_a_server_on_stdio_stops_at_a_signal_though_its_client_keeps_the_pipe_open(tmp_path, model):
    flags = ["--mcp", "stdio", "--model", "openai/test", "--api-base", model.url]
    command = [sys.executable, "-m", "memory_program", "serve", *flags]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "OPENAI_API_KEY": KEY}
    with subprocess.Popen(
        [*command, "--db-url", f"sqlite:///{tmp_path / 'b.sqlite'}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
        server.stdin.flush()
        server.stdout.readline()  # it serves
        server.terminate()
        try:
            assert server.wait(30) == 0
        finally:
            server.kill()


def test_the_token_or_a_header_chooses_the_namespace_and_the_model_cannot(tmp_path, model):
    url = f"sqlite:///{tmp_path / 'b.sqlite'}"
    with served(url, model.url, mcp="http", require_tokens=True) as (address, parts):
        tokens = ApiTokens(parts.service.store.database)
        ana, bo = (f"Bearer {tokens.create([name], 'write')}" for name in ("ana", "bo"))
        reader = f"Bearer {tokens.create(['ana'], 'read')}"

        async def run():
            async with connected(address, authorization=ana) as client:
                await call(client, "remember", text=PIP)
                assert "namespace" not in str((await client.list_tools()).tools)
            async with connected(address, authorization=bo) as client:
                assert await call(client, "search_memory", query="dog Pip") == []
                (bank,) = (await client.read_resource("memory://memories")).contents
                assert bank.text == ""
            async with connected(address, **{"authorization": bo, "X-Memory-Namespace": "ana"}) as client:
                refused = await client.call_tool("search_memory", {"query": "dog"})
                assert refused.is_error
                assert "is not for namespace 'ana'" in refused.content[0].text
                with pytest.raises(Exception, match="is not for namespace"):
                    await client.read_resource("memory://memories")
            async with connected(address, authorization=reader) as client:
                assert len(await call(client, "search_memory", query="dog")) == 1
                refused = await client.call_tool("remember", {"text": "x"})
                assert "may only read" in refused.content[0].text
            with pytest.raises(Exception):  # noqa: B017, PT011  # the SDK's group of errors
                async with connected(address) as client:
                    await client.list_tools()

        asyncio.run(run())
        assert [one.namespace for one in parts.service.buffer.waiting()] == ["ana"]
        metrics = httpx.get(f"{address}/metrics", headers={"authorization": ana}).text
        assert 'memory_requests_total{method="POST",route="/mcp",status="200"}' in metrics


def test_a_turn_without_a_name_is_that_of_the_user(tmp_path, model):
    with served(f"sqlite:///{tmp_path / 'b.sqlite'}", model.url, mcp="http", rest=True) as (address, parts):

        async def run():
            async with connected(address) as client:
                await call(client, "remember", text=PIP, speaker="")

        asyncio.run(run())
        message = {"role": "user", "name": " ", "content": PIP}
        httpx.post(f"{address}/memory/v1/messages", json={"messages": [message]})
        (session,) = parts.service.buffer.sessions("default")
        assert [turn.speaker for turn in session.turns] == ["User", "User"]


def test_a_blank_text_is_refused_and_not_said_to_be_remembered(tmp_path, model):
    with served(f"sqlite:///{tmp_path / 'b.sqlite'}", model.url, mcp="http") as (address, parts):

        async def run():
            async with connected(address) as client:
                return [await client.call_tool(tool, {"text": "  "}) for tool in ("remember", "correct")]

        for refused in asyncio.run(run()):
            assert refused.is_error
            assert "text is blank" in refused.content[0].text
        assert parts.service.namespaces() == []


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
@pytest.mark.parametrize("more", [{}, {"last-event-id": "1"}, {"mcp-session-id": "s"}])
def test_only_posts_are_taken_since_there_are_no_sessions(mcp_address, method, more):
    headers = {"accept": "text/event-stream", **more}
    answer = httpx.request(method, f"{mcp_address}/mcp", headers=headers, timeout=10)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert answer.headers["content-type"] == "application/problem+json"


def test_what_was_just_said_is_found_also_where_many_memories_share_a_word(tmp_path, model):
    url = f"sqlite:///{tmp_path / 'b.sqlite'}"
    with BankStore(url) as store:
        space = store.load("default")
        drafts = [Draft(f"Mara likes book {number}.", MemoryKind.SEMANTIC) for number in range(20)]
        space.bank.create(drafts, Provenance("semantic"))
        store.save(space)
    with served(url, model.url, mcp="http") as (address, _):

        async def run():
            async with connected(address) as client:
                for said in (PIP, "I like the flight to Rome at seven."):
                    await call(client, "remember", text=said, speaker="Mara")
                hits = await call(client, "search_memory", query="Which flight does Mara like?", limit=4)
                assert [hit["kind"] for hit in hits] == ["semantic", "semantic", None, None]
                assert "Rome" in hits[2]["text"]
                (hit,) = await call(client, "search_memory", query="Which flight does Mara like?", limit=1)
                assert hit["kind"] == "semantic"

        asyncio.run(run())


def test_callers_on_this_machine_choose_by_a_header(tmp_path, model):
    with served(f"sqlite:///{tmp_path / 'b.sqlite'}", model.url, mcp="http", namespace="home") as (
        address,
        parts,
    ):

        async def run():
            async with connected(address) as client:
                await call(client, "remember", text=PIP)
            async with connected(address, **{"X-Memory-Namespace": "caf%C3%A9"}) as client:
                await call(client, "remember", text=PIP)

        asyncio.run(run())
        assert parts.service.namespaces() == ["café", "home"]
