"""Latency of a memory server while its agents write: acknowledged adds, and searches.

python benchmarks/serve.py [--namespaces 200 --clients 50 --seconds 20 --latency-s 0.2]

``memory-program serve`` runs as a process of its own. Its model is ``latency_server``, which answers every
call after ``--latency-s``. Each client sends ``--per-second`` requests on average, at random times, over one
connection: every second one adds an exchange (two messages) to a namespace, the others search one. Every
tenth add ends its session, so that agents write all the time. A latency is the time from the first byte of a
request to the last byte of its response. ``--per-second 0`` sends without pauses: then the latencies are
those of a full server, and the number of requests its throughput.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from measuring import sentences

CHECKOUT = Path(__file__).resolve().parents[1]
_START_S = 180.0
_ADDS_PER_SESSION = 10
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


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


@contextlib.contextmanager
def running_server(
    options: argparse.Namespace, folder: Path
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run the model's endpoint and the memory server; give the server's process and its port."""
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "OPENAI_API_KEY": "benchmark"}
    endpoint = [sys.executable, str(CHECKOUT / "benchmarks/latency_server.py")]
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(
            subprocess.Popen([*endpoint, "--latency-s", str(options.latency_s)], stdout=subprocess.PIPE)
        )
        stack.callback(model.terminate)
        assert model.stdout is not None
        address = model.stdout.readline().decode().strip()
        db_url = options.db_url or f"sqlite:///{folder / 'memory.sqlite'}"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "memory_program.cli", "serve", "--rest", "--port", str(port)]
        command += ["--db-url", db_url, "--model", "openai/benchmark", "--api-base", address]
        log = stack.enter_context((folder / "serve.log").open("wb"))
        server = stack.enter_context(
            subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder)
        )
        stack.callback(server.terminate)
        until = time.monotonic() + _START_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if server.poll() is not None or time.monotonic() > until:
                raise SystemExit((folder / "serve.log").read_text(errors="replace"))
            time.sleep(0.1)
        yield server, port


async def send_requests(options: argparse.Namespace, port: int, number: int, found: Latencies) -> None:
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
        is_add = bool(count % 2)
        if is_add:
            messages = [{"role": role, "content": rng.choice(spoken)} for role in ("user", "assistant")]
            content = {"messages": messages, "end": rng.randrange(_ADDS_PER_SESSION) == 0}
            began = time.perf_counter()
            status, _ = await connection.request(
                "POST", f"/memory/v1/messages?namespace={namespace}", content
            )
        else:
            words = "+".join(rng.choice(spoken).rstrip(".").split()[:6])
            began = time.perf_counter()
            status, _ = await connection.request(
                "GET", f"/memory/v1/search?namespace={namespace}&query={words}"
            )
        took_ms = (time.perf_counter() - began) * 1000
        if status not in (200, 202):
            found.failures.append(status)
        else:
            (found.adds if is_add else found.searches).append(took_ms)


async def read_written(port: int) -> int:
    """Read how many sessions the server has written."""
    _, text = await Connection(port).request("GET", "/metrics")
    match = re.search(rb"^memory_sessions_written_total (\S+)", text, re.MULTILINE)
    return int(float(match[1])) if match else 0


async def measure(options: argparse.Namespace, port: int) -> tuple[Latencies, int]:
    """Run all clients, after a session of every namespace; return latencies, and the sessions written."""
    first = Connection(port)
    for number in range(options.namespaces):
        messages = [{"role": "user", "content": text} for text in sentences(0)[number * 8 : number * 8 + 8]]
        content = {"messages": messages, "end": True}
        await first.request("POST", f"/memory/v1/messages?namespace=user-{number}", content)
    while True:
        status = json.loads((await first.request("GET", "/health"))[1])
        if not status["waiting_turns"]:
            break
        await asyncio.sleep(0.5)
    before, found = await read_written(port), Latencies()
    await asyncio.gather(*(send_requests(options, port, number, found) for number in range(options.clients)))
    return found, await read_written(port) - before


def processor_s(process: int) -> float:
    """Read the processor time of a process and its threads, in seconds (Linux)."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def summarize(name: str, times_ms: list[float]) -> dict[str, Any]:  # Any: numbers and names
    """Count requests, and take the percentiles of their latencies."""
    points = np.percentile(times_ms, [50, 95, 99]) if times_ms else [float("nan")] * 3
    return {"request": name, "count": len(times_ms)} | {
        f"{point}_ms": round(float(value), 1)
        for point, value in zip(("p50", "p95", "p99"), points, strict=True)
    }


def main() -> None:
    """Measure, and print one JSON line for each kind of request and one for the server."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--namespaces", type=int, default=200, help="number of namespaces")
    parser.add_argument("--clients", type=int, default=50, help="number of clients, each with a connection")
    parser.add_argument("--per-second", type=float, default=1.0, help="requests of a client a second")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of the measurement")
    parser.add_argument("--latency-s", type=float, default=0.2, help="time of the model for a reply")
    parser.add_argument("--db-url", help="database of the server; by default a new SQLite file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_server(options, Path(folder)) as (server, port):
        used, began = processor_s(server.pid), time.monotonic()
        found, written = asyncio.run(measure(options, port))
        used, seconds = processor_s(server.pid) - used, time.monotonic() - began
    for name, times_ms in (("add", found.adds), ("search", found.searches)):
        print(json.dumps(summarize(name, times_ms)))
    print(
        json.dumps(
            {
                "sessions_written": written,
                "failures": found.failures,
                "server_cpu_share": round(used / seconds, 2),
            }
        )
    )


if __name__ == "__main__":
    main()
