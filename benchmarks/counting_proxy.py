"""A proxy before an OpenAI-compatible server, which counts calls and tokens by label, whoever makes them."""

import json
import threading
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote

import httpx

_CHARS_PER_TOKEN = 4
_SILENCE_S = 3600.0
_LONGEST_WAIT_S = 60.0
_PASSED_ON = ("authorization", "content-type", "accept", "openai-organization", "openai-project")
_SENT_BACK = ("content-type", "retry-after")


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests for a completion, retries among them, and their tokens; ``+`` and ``-`` work by field.

    ``failed`` requests had no completion. ``estimated`` ones did not say their tokens, most often since the
    client stopped the reply: a token is then four characters of the request, or an event of the reply.
    """

    calls: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    estimated: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    def __sub__(self, other: "Traffic") -> "Traffic":
        return Traffic(*(getattr(self, name) - getattr(other, name) for name in self.__slots__))


class CountingProxy(ThreadingHTTPServer):
    """The proxy, from ``__enter__`` to ``__exit__``; its addresses carry the label that they count under."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, target: str) -> None:
        """Listen on a free port; ``target`` is the address of the server, as ``--api-base`` takes it."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = target.rstrip("/")
        self.client = httpx.Client(timeout=_SILENCE_S, limits=httpx.Limits(max_connections=None))
        self._changed = threading.Condition()
        self._traffic: dict[str, Traffic] = {}
        self._open: Counter[str] = Counter()

    def __enter__(self) -> "CountingProxy":
        """Begin to serve."""
        threading.Thread(target=self.serve_forever, name="counting-proxy", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.shutdown()
        self.server_close()
        self.client.close()

    def url(self, *label: str) -> str:
        """Return the address that counts under a label, which may have several parts."""
        return f"http://127.0.0.1:{self.server_port}/{_join(label)}/v1"

    def traffic(self, *label: str) -> Traffic:
        """Return the sum of all labels that begin with these parts, once their open requests have ended.

        The end of a reply that its client stopped is noticed a moment later than the client goes on.
        """
        prefix = f"{_join(label)}/"

        def has_ended() -> bool:
            return not any(name.startswith(prefix) for name in self._open.elements())

        with self._changed:
            self._changed.wait_for(has_ended, _LONGEST_WAIT_S)
            return sum((one for name, one in self._traffic.items() if name.startswith(prefix)), Traffic())

    @contextmanager
    def counting(self, label: str) -> Generator[list[Traffic]]:
        """Add to a label what is in the list at the end of the block; until then a request is open."""
        counted: list[Traffic] = []
        name = f"{label}/"
        with self._changed:
            self._open[name] += 1
        try:
            yield counted
        finally:
            with self._changed:
                self._open[name] -= 1
                self._traffic[name] = sum(counted, self._traffic.get(name, Traffic()))
                self._changed.notify_all()


def _join(label: tuple[str, ...]) -> str:
    return "/".join(quote(part, safe="") for part in label)


class _Handler(BaseHTTPRequestHandler):
    """Sends one request on. A reply ends with its connection, so it has been counted when it ends."""

    server: CountingProxy  # pyright: ignore[reportIncompatibleVariableOverride]  # always made by it

    def do_GET(self) -> None:
        """Send on what asks for no completion, such as the list of models."""
        self.wfile.write(self._send_on(b"", []))

    def do_POST(self) -> None:
        """Send on a call, and count it before the client has the end of its reply."""
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        with self.server.counting(self.path.lstrip("/").partition("/v1/")[0]) as counted:
            last = self._send_on(body, counted)
        with suppress(OSError):
            self.wfile.write(last)

    def log_message(self, format: str, *args: object) -> None:  # the name in the base class
        """Write no line for each request."""

    def _send_on(self, body: bytes, counted: list[Traffic]) -> bytes:
        """Send a request on and its reply back, but for the last part, which is returned."""
        rest = self.path.partition("/v1/")[2]
        headers = {name: self.headers[name] for name in _PASSED_ON if name in self.headers}
        received, status, is_whole, last = bytearray(), 0, False, b""
        try:
            with self.server.client.stream(
                self.command, f"{self.server.target}/{rest}", content=body or None, headers=headers
            ) as reply:
                status = reply.status_code
                kept = {name: reply.headers[name] for name in _SENT_BACK if name in reply.headers}
                self._begin(status, kept)
                for chunk in reply.iter_bytes():
                    self.wfile.write(last)
                    received += chunk
                    last = chunk
            is_whole = True
        except httpx.HTTPError as error:
            if not status:
                self._begin(502, {"content-type": "application/json"})
                last = json.dumps({"error": {"message": f"behind the proxy: {error}", "code": 502}}).encode()
            status = 502
        except OSError:  # the client went away, and the server stops with the connection
            last = b""
        if rest.partition("?")[0] == "chat/completions":
            counted.append(count_call(body, bytes(received), status, is_whole=is_whole))
        return last

    def _begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


def count_call(request: bytes, reply: bytes, status: int, *, is_whole: bool) -> Traffic:
    """Count one request for a completion.

    Args:
        request: its body.
        reply: the reply as far as it came, whole or in server-sent events.
        status: its HTTP status; 0 if none came.
        is_whole: false if the connection of the server or of the client ended before it.
    """
    events = _read_events(reply)
    usage = next((event["usage"] for event in reversed(events) if event.get("usage")), None)
    has_choices = any(event.get("choices") for event in events)
    if status // 100 != 2 or (is_whole and not has_choices):
        return Traffic(calls=1, failed=1)
    if usage is not None:
        return Traffic(1, 0, usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0)
    return Traffic(1, 0, len(request) // _CHARS_PER_TOKEN, max(0, len(events) - 1), 1)


def _read_events(reply: bytes) -> list[dict[str, Any]]:  # Any: JSON
    """Read the JSON objects of a reply: one, or one for each event."""
    text = reply.decode(errors="replace")
    lines = [line[5:] for line in text.splitlines() if line.startswith("data:")] or [text]
    events: list[dict[str, Any]] = []
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:  # the last event, [DONE], or one that was cut
            continue
        events += [value] if isinstance(value, dict) else []
    return events
