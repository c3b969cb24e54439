"""Latency of a memory server while its agents write: acknowledged adds, and searches.

python benchmarks/serve.py [--namespaces 200 --clients 50 --seconds 20] [--beside mem0] [--check]

``memory-program serve`` runs as a process of its own. Its model is ``latency_server``, which answers every
call after ``--latency-s``. Each client sends ``--per-second`` requests on average, at random times, over one
connection: every second one adds an exchange (two messages) to a namespace, the others search one. Every
tenth add ends its session, so that agents write all the time. A latency is the time from the first byte of a
request to the last byte of its response. ``--per-second 0`` sends without pauses: then the latencies are
those of a full server, and the number of requests its throughput.

``--beside mem0`` then sends the same requests to mem0's library (``mem0_server.py``) with the same model. An
embedding comes at once, so that mem0 is measured and not an embedder.
"""

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np
from measuring import sentences
from rich import box
from rich.console import Console
from rich.table import Table

CHECKOUT = Path(__file__).resolve().parents[1]
GOALS_MS = {("add", 50): 10.0, ("add", 99): 50.0, ("search", 50): 10.0}
"""The latencies that ``--check`` demands, by request and percentile."""
_PERCENTILES = (50, 95, 99)
_START_S = 180.0
_ADDS_PER_SESSION = 10
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_NOTE = (
    "memory-program acknowledges an add when the messages are on disk, and its agents write memories later; "
    "mem0 acknowledges it after a call of the model, when the memories are written. mem0's package has no "
    "server: this is its library, with Qdrant in its process, behind a door of ours."
)


@dataclass(slots=True)
class Latencies:
    """Milliseconds of the requests that succeeded, and the statuses of the others."""

    adds: list[float] = field(default_factory=list[float])
    searches: list[float] = field(default_factory=list[float])
    failures: list[int] = field(default_factory=list[int])


class Connection:
    """One HTTP connection that is kept open: as little work as possible beside what is measured."""

    def __init__(self, port: int) -> None:
        """Prepare; the first request connects."""
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def request(self, method: str, path: str, content: object = None) -> tuple[int, bytes]:
        """Send a request, and return the status and the body of its response."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        body = b"" if content is None else json.dumps(content).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(answer)
        assert length is not None, answer
        return int(answer.split(b" ", 2)[1]), await reader.readexactly(int(length[1]))


# -- the servers -------------------------------------------------------------------------------------


class MemoryProgram:
    """``memory-program serve``."""

    name = "memory-program"

    def command(self, folder: Path, port: int, api_base: str, db_url: str | None) -> list[str]:
        """Return the command that starts it."""
        command = [sys.executable, "-m", "memory_program", "serve", "--rest", "--port", str(port)]
        command += ["--db-url", db_url or f"sqlite:///{folder / 'memory.sqlite'}"]
        return [*command, "--model", "openai/benchmark", "--api-base", api_base]

    async def add(self, connection: Connection, namespace: str, texts: Sequence[str], ends: bool) -> int:
        """Add messages, and return the status."""
        content = {"messages": _messages(texts), "end": ends}
        path = f"/memory/v1/messages?namespace={namespace}"
        return (await connection.request("POST", path, content))[0]

    async def search(self, connection: Connection, namespace: str, words: Sequence[str]) -> int:
        """Search ten memories, and return the status."""
        path = f"/memory/v1/search?namespace={namespace}&query={'+'.join(words)}"
        return (await connection.request("GET", path))[0]

    async def settle(self, connection: Connection) -> None:
        """Wait until the agents have written everything."""
        while json.loads((await connection.request("GET", "/health"))[1])["waiting_turns"]:
            await asyncio.sleep(0.5)

    async def sessions_written(self, connection: Connection) -> int:
        """Read how many sessions it has written."""
        _, text = await connection.request("GET", "/metrics")
        match = re.search(rb"^memory_sessions_written_total (\S+)", text, re.MULTILINE)
        return int(float(match[1])) if match else 0


class Mem0:
    """mem0's library behind ``mem0_server.py``: it has no sessions, and nothing happens after an add."""

    name = "mem0"

    def command(self, folder: Path, port: int, api_base: str, _: str | None) -> list[str]:
        """Return the command that starts it."""
        command = [sys.executable, str(CHECKOUT / "benchmarks/mem0_server.py"), "--port", str(port)]
        return [*command, "--api-base", api_base, "--folder", str(folder)]

    async def add(self, connection: Connection, namespace: str, texts: Sequence[str], _: bool) -> int:
        """Add messages, and return the status."""
        content = {"messages": _messages(texts), "user_id": namespace}
        return (await connection.request("POST", "/memories", content))[0]

    async def search(self, connection: Connection, namespace: str, words: Sequence[str]) -> int:
        """Search ten memories, and return the status."""
        content = {"query": " ".join(words), "filters": {"user_id": namespace}, "top_k": 10}
        return (await connection.request("POST", "/search", content))[0]

    async def settle(self, _: Connection) -> None:
        """Do nothing."""

    async def sessions_written(self, _: Connection) -> int:
        """Return 0."""
        return 0


def _messages(texts: Sequence[str]) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)]


@contextlib.contextmanager
def running_model(latency_s: float) -> Generator[str]:
    """Run the endpoint of the model, and give its address."""
    command = [sys.executable, str(CHECKOUT / "benchmarks/latency_server.py"), "--latency-s", str(latency_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as model:
        assert model.stdout is not None
        try:
            yield model.stdout.readline().decode().strip()
        finally:
            model.terminate()


@contextlib.contextmanager
def running_server(
    server: MemoryProgram | Mem0, folder: Path, api_base: str, db_url: str | None
) -> Generator[tuple[int, int]]:
    """Run a server in a new folder; give the number of its process and its port."""
    path = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "OPENAI_API_KEY": "benchmark"}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command, log = server.command(folder, port, api_base, db_url), folder / "server.log"
    with (
        log.open("wb") as written,
        subprocess.Popen(command, stdout=written, stderr=written, env=environment, cwd=folder) as process,
    ):
        try:
            until = time.monotonic() + _START_S
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                if process.poll() is not None or time.monotonic() > until:
                    raise SystemExit(log.read_text(errors="replace"))
                time.sleep(0.1)
            yield process.pid, port
        finally:
            process.terminate()


# -- requests ----------------------------------------------------------------------------------------


async def fill(server: MemoryProgram | Mem0, options: argparse.Namespace, port: int, number: int) -> None:
    """Add eight messages to each namespace of one client."""
    connection, spoken = Connection(port), sentences(0)
    for place in range(number, options.namespaces, options.clients):
        said = [spoken[(place * 8 + turn) % len(spoken)] for turn in range(8)]
        status = await server.add(connection, f"user-{place}", said, True)
        assert status < 300, status


async def send_requests(
    server: MemoryProgram | Mem0, options: argparse.Namespace, port: int, number: int, found: Latencies
) -> None:
    """Send the requests of one client until the time is over."""
    connection, rng, spoken = Connection(port), random.Random(number), sentences(0)
    await connection.request("GET", "/health")
    until, count = time.monotonic() + options.seconds, 0
    while True:
        if options.per_second:
            await asyncio.sleep(rng.expovariate(options.per_second))
        if time.monotonic() > until:
            return
        namespace = f"user-{rng.randrange(options.namespaces)}"
        count += 1
        began = time.perf_counter()
        if count % 2:
            texts, ends = rng.choices(spoken, k=2), rng.randrange(_ADDS_PER_SESSION) == 0
            status, times_ms = await server.add(connection, namespace, texts, ends), found.adds
        else:
            words = rng.choice(spoken).rstrip(".").split()[:6]
            status, times_ms = await server.search(connection, namespace, words), found.searches
        if status < 300:
            times_ms.append((time.perf_counter() - began) * 1000)
        else:
            found.failures.append(status)


@dataclass(frozen=True, slots=True)
class Measured:
    """The latencies of a server, the sessions that it wrote meanwhile, and its share of one processor."""

    latencies: Latencies
    sessions_written: int
    cpu_share: float


async def send_all(
    server: MemoryProgram | Mem0, options: argparse.Namespace, process: int, port: int
) -> Measured:
    """Fill every namespace; then run all clients."""
    first, clients = Connection(port), range(options.clients)
    await asyncio.gather(*(fill(server, options, port, number) for number in clients))
    await server.settle(first)
    before, used, began = await server.sessions_written(first), processor_s(process), time.monotonic()
    found = Latencies()
    await asyncio.gather(*(send_requests(server, options, port, number, found) for number in clients))
    share = (processor_s(process) - used) / (time.monotonic() - began)
    return Measured(found, await server.sessions_written(first) - before, share)


def processor_s(process: int) -> float:
    """Read the processor time of a process and its threads, in seconds (Linux)."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- results -----------------------------------------------------------------------------------------


def percentile_ms(times_ms: Sequence[float], percentile: int) -> float:
    """Return a percentile, or infinity if no request succeeded."""
    return float(np.percentile(times_ms, percentile)) if times_ms else float("inf")


def show(console: Console, results: dict[str, Measured]) -> None:
    """Print the table, a row for each server and kind of request."""
    table = Table(
        box=box.SIMPLE_HEAD, title="Latency while agents write", caption=_NOTE, caption_justify="left"
    )
    table.add_column("server")
    table.add_column("request")
    headers = (*(f"p{percentile} ms" for percentile in _PERCENTILES), "failed", "CPU", "sessions written")
    for header in ("count", *headers):
        table.add_column(header, justify="right")
    for name, result in results.items():
        found = result.latencies
        rest = (str(len(found.failures)), f"{result.cpu_share:.2f}", str(result.sessions_written))
        for request, times_ms in (("add", found.adds), ("search", found.searches)):
            points = [f"{percentile_ms(times_ms, percentile):.1f}" for percentile in _PERCENTILES]
            table.add_row(name, request, str(len(times_ms)), *points, *rest)
            name, rest = "", ("", "", "")
    console.print(table)


def main() -> int:
    """Measure, print the table, and with ``--check`` say by the exit status whether the goals are met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--namespaces", type=int, default=200, help="number of namespaces")
    parser.add_argument("--clients", type=int, default=50, help="number of clients, each with a connection")
    parser.add_argument("--per-second", type=float, default=1.0, help="requests of a client a second")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of the measurement")
    parser.add_argument("--latency-s", type=float, default=0.2, help="time of the model for a reply")
    parser.add_argument("--db-url", help="database of memory-program; by default a new SQLite file")
    parser.add_argument("--beside", choices=["mem0"], help="measure another server, too")
    parser.add_argument("--check", action="store_true", help="exit with 1 if memory-program misses a goal")
    options = parser.parse_args()
    if options.beside and importlib.util.find_spec("mem0") is None:
        parser.error("--beside mem0 needs the package mem0ai: pip install 'memory-program[bench,serve]'")
    results: dict[str, Measured] = {}
    with running_model(options.latency_s) as api_base:
        for server in (MemoryProgram(), *([Mem0()] if options.beside else [])):
            with tempfile.TemporaryDirectory() as folder:
                place = (Path(folder), api_base, options.db_url)
                with running_server(server, *place) as (process, port):
                    measured = asyncio.run(send_all(server, options, process, port))
            name = f"mem0 {version('mem0ai')}" if isinstance(server, Mem0) else server.name
            results[name] = measured
    show(Console(width=None if sys.stdout.isatty() else 110), results)
    found = results[MemoryProgram.name].latencies
    missed = [
        f"{request} p{percentile} is {took:.1f} ms, and the goal is under {goal:.0f} ms"
        for (request, percentile), goal in GOALS_MS.items()
        if (took := percentile_ms({"add": found.adds, "search": found.searches}[request], percentile)) >= goal
    ]
    print("\n".join(missed) or "every goal is met")
    return 1 if options.check and (missed or found.failures) else 0


if __name__ == "__main__":
    sys.exit(main())
