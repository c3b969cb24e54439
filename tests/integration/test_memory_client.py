"""The Python client against a real server, sync and async, and an ``openai`` client that remembers."""

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

import openai
import pytest

from memory_program import remembering
from memory_program.client import AsyncMemoryClient, MemoryClient, MemoryServerError
from memory_program.serving.service.api_tokens import ApiTokens
from tests.chat_upstream import ChatUpstream, said
from tests.conftest import CHECKOUT
from tests.memory_services import served
from tests.served_app import ServedApp

PIP = "I adopted a dog called Pip in Oslo."
MAY = datetime(2024, 5, 6, tzinfo=UTC)


@pytest.fixture
def server(tmp_path, model):
    with served(f"sqlite:///{tmp_path / 'b.sqlite'}", model.url, proxy=True) as (address, parts):
        yield address, parts


def test_the_client_does_all_that_the_server_can(server):
    with MemoryClient(server[0], namespace="ana ø/1") as memory:
        added = memory.add([{"role": "user", "content": PIP, "name": "Mara", "time": MAY}], wait=True)
        assert (added.added, added.written) == (1, True)
        assert "Pip" in memory.ask("What is the adopted dog called?").answer
        assert "Pip" in memory.context("adopted dog").memories
        (pip,) = memory.memories()
        assert (pip.valid_from, pip.valid_to) == (MAY.date(), None)
        before = MAY.date() - timedelta(1)
        assert memory.search("dog", as_of=before).items == []
        assert "Pip" not in memory.context("adopted dog", as_of=before).memories
        assert "Pip" in memory.ask("What is the adopted dog called?", as_of=MAY.date()).answer
        assert [hit.item_id for hit in memory.search("dog").items] == [pip.memory_id]
        (cat,) = memory.correct("Mara has a cat.", pip.memory_id).operations[0].created
        assert [o.kind for o in memory.history(cat.memory_id)] == ["create", "update"]
        (source,) = memory.sources(cat.memory_id)
        assert (source.text, source.time, source.has_own_time) == (PIP, MAY, True)
        assert memory.correct("The dog that I adopted in Oslo is called Max.").operations
        memory.forget([cat.memory_id])
        assert memory.undo().version == memory.status().version
        assert memory.namespaces().items == ["ana ø/1"]
        with pytest.raises(MemoryServerError, match="404 UnknownMemory: 'm99' is not in bank") as raised:
            memory.history("m99")
        assert (raised.value.status, raised.value.code) == (404, "UnknownMemory")
        assert memory.erase("ana ø/1").rows
        assert list(memory.memories()) == []


def test_half_an_emoji_is_sent_and_searched_for(server):
    with MemoryClient(server[0], namespace="ana") as memory:
        text = json.loads('"I adopted a dog called Pip! \\ud83d"')
        assert memory.add([{"role": "user", "content": text, "time": MAY}], wait=True).added == 1
        assert "Pip" in memory.search("dog \ud83d").items[0].text
        with pytest.raises(MemoryServerError, match="422"):
            memory.ask("What is the adopted dog called? \ud83d")


def test_a_correction_without_an_id_takes_no_day_and_no_reason(server):
    with MemoryClient(server[0], namespace="ana") as memory:
        for given in ({"happened_at": MAY.date()}, {"reason": "typo"}):
            with pytest.raises(MemoryServerError, match="422"):
                memory.correct("I bought a blue bicycle.", **given)


@contextmanager
def first_reply_lost(address: str) -> Iterator[str]:
    """A way to a server on which the first reply is lost, after the server did its work."""
    host, port = address.removeprefix("http://").split(":")
    with socket.create_server(("127.0.0.1", 0)) as door:

        def carry() -> None:
            for is_lost in (True, False):
                client, server = door.accept()[0], socket.create_connection((host, int(port)))
                with client, server:
                    client.settimeout(1.0)
                    with suppress(TimeoutError):  # the request is whole
                        while piece := client.recv(65_536):
                            server.sendall(piece)
                    reply = server.recv(65_536)
                    if not is_lost:
                        client.sendall(reply)
                        client.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=carry)
        thread.start()
        yield "http://{}:{}".format(*door.getsockname())
        thread.join(20)


def test_a_change_whose_reply_is_lost_is_sent_again_and_counts_once(server):
    with first_reply_lost(server[0]) as way, MemoryClient(way, namespace="ana") as memory:
        added = memory.add([{"role": "user", "content": PIP}])
    assert (added.added, added.is_repeated) == (1, True)
    with MemoryClient(server[0], namespace="ana") as memory:
        assert memory.status().waiting == 1


def test_the_async_client_has_the_same_methods(server):
    names = [
        {name for name in vars(kind) if not name.startswith("_")}
        for kind in (MemoryClient, AsyncMemoryClient)
    ]
    assert names[0] == names[1]

    async def use():
        async with AsyncMemoryClient(server[0], namespace="ana") as memory:
            await memory.add([{"role": "user", "content": PIP}], wait=True)
            assert "Pip" in (await memory.ask("What is the adopted dog called?")).answer
            (pip,) = [item async for item in memory.memories()]
            await memory.correct("Mara has a cat.", pip.memory_id)
            assert len(await memory.history(pip.memory_id)) == 2
            assert (await memory.search("cat")).items
            await memory.undo()
            await memory.forget([pip.memory_id])
            assert (await memory.status()).memories == 0
            assert "Pip" not in (await memory.context("dog")).memories
            assert (await memory.namespaces()).items == ["ana"]
            assert (await memory.erase("ana")).rows

    asyncio.run(use())


def test_a_server_that_is_full_says_when_to_come_back(tmp_path, model):
    with served(f"sqlite:///{tmp_path / 'b.sqlite'}", model.url, max_waiting=1) as (address, _):
        with MemoryClient(address) as memory, pytest.raises(MemoryServerError) as raised:
            memory.add([{"role": "user", "content": PIP}] * 2)
        assert (raised.value.status, raised.value.retry_after_s) == (429, 5.0)


def test_an_error_says_what_is_wrong_with_a_field(server):
    told = r"body.messages.0.time: Input should have timezone info$"
    with MemoryClient(server[0]) as memory, pytest.raises(MemoryServerError, match=told):
        memory.add([{"role": "user", "content": PIP, "time": MAY.replace(tzinfo=None)}])


def test_a_web_server_of_something_else_is_named_as_such():
    async def page(scope, receive, send):
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]}
        )
        await send({"type": "http.response.body", "body": b"<html></html>"})

    told = r"^200 Http: 127.0.0.1 is not a memory server"
    with (
        ServedApp(page, lifespan="off") as other,
        MemoryClient("http://{}:{}".format(*other.address)) as memory,
        pytest.raises(MemoryServerError, match=told),
    ):
        memory.status()


def test_an_openai_client_remembers_by_one_line(tmp_path, model):
    with (
        ChatUpstream([said("Nice."), said("Pip."), said("Pip.")]) as upstream,
        served(
            f"sqlite:///{tmp_path / 'b.sqlite'}",
            model.url,
            proxy=True,
            upstream=upstream.url,
            require_tokens=True,
        ) as (address, parts),
    ):
        token = ApiTokens(parts.service.store.database).create(["caf*"], "write")
        settings = {"namespace": "café", "token": token}
        client = remembering(openai.OpenAI(api_key="sk-own", max_retries=0), address, **settings)
        tell = [{"role": "user", "content": PIP}]
        client.chat.completions.create(model="m", messages=tell)
        ask = [{"role": "user", "content": "What is the adopted dog called?"}]
        client.chat.completions.create(model="m", messages=ask)

        async def ask_async():
            other = remembering(openai.AsyncOpenAI(api_key="sk-own", max_retries=0), address, **settings)
            await other.chat.completions.create(model="m", messages=ask)

        asyncio.run(ask_async())
        assert all(PIP in body["messages"][0]["content"] for body in upstream.bodies[1:])
        assert upstream.keys == ["Bearer sk-own"] * 3
        with MemoryClient(address, **settings) as memory:
            assert memory.status().waiting == 4  # the second question is the same exchange


def test_the_client_needs_neither_dspy_nor_the_extra():
    code = (
        "import sys\n"
        "from memory_program.client import MemoryClient, remembering\n"
        "assert not {'dspy', 'torch', 'fastapi', 'mcp', 'sqlalchemy'} & set(sys.modules), sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=CHECKOUT)
