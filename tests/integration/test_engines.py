"""The engine of OpenAI's chat completions over real HTTP: what it sends, and over how many connections."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from memory_program.models.factory import AdaptiveLimiter, language_model
from tests.model_server import ModelServer

REPLY = (
    b'{"id": "x", "object": "chat.completion", "model": "test", "choices": [{"index": 0, "message": '
    b'{"role": "assistant", "content": "ready"}, "finish_reason": "stop"}], "usage": {}}'
)


@contextmanager
def listening(requests: list[bytes], connections: list[int]) -> Iterator[str]:
    """Answer every request on every connection, and keep what was sent."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        while received := connection.recv(65536):
            while b"\r\n\r\n" not in received or not received.rstrip().endswith(b"}"):
                received += connection.recv(65536)
            requests.append(received)
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(REPLY)}\r\n\r\n"
            connection.sendall(head.encode() + REPLY)

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            connections.append(connection.fileno())
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1"
    finally:
        server.close()


def test_consecutive_calls_share_a_connection() -> None:
    requests, connections = list[bytes](), list[int]()
    with listening(requests, connections) as url:
        lm = language_model("openai/test", api_base=url)
        for _ in range(5):
            assert lm("hello") == ["ready"]
    assert (len(requests), len(connections)) == (5, 1)


def test_connections_are_limited_by_the_concurrency() -> None:
    with ModelServer(latency_s=0.02) as server:
        lm = language_model("openai/test", api_base=server.url, limiter=AdaptiveLimiter(3))
        threads = [threading.Thread(target=lm, args=(f"hello {number}",)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert server.traffic.requests.total() == 12
        assert server.traffic.most_in_flight == 3


def test_only_openai_gets_the_account_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    requests, connections = list[bytes](), list[int]()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-mine-0123")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-mine")
    with listening(requests, connections) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        language_model("openai/gpt-4.1-mini")("hello")
        language_model("openai/test", api_base=url)("hello")
    gateway, own = (request.decode().lower() for request in requests)
    assert "authorization: bearer sk-of-mine-0123" in gateway
    assert "openai-organization" not in gateway + own  # neither is OpenAI itself
    assert '"max_tokens"' in gateway
    assert '"max_tokens"' in own


def test_the_environments_proxy_is_used_except_for_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    requests, connections = list[bytes](), list[int]()
    with listening(requests, connections) as proxy:
        monkeypatch.setenv("http_proxy", proxy.removesuffix("/v1"))
        monkeypatch.setenv("no_proxy", "")
        assert language_model("openai/test", api_base="http://models.invalid/v1")("hello") == ["ready"]
        assert requests[0].startswith(b"POST http://models.invalid/v1/chat/completions")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        with ModelServer() as server:
            assert language_model("openai/test", api_base=server.url)("hello") == ["ready"]
    assert len(requests) == 1


def test_a_self_hosted_server_is_called_without_litellm() -> None:
    with ModelServer() as server:
        script = (
            "import sys; from memory_program.models.factory import language_model; "
            f"language_model('openai/test', api_base={server.url!r})('hello'); "
            "sys.exit('litellm' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
