"""Memory services over a scripted model, and a process that adds turns until it is killed."""

import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import uvicorn

from memory_program.agents.program import MemoryProgram
from memory_program.bank.turn_buffer import SessionRule, SpokenTurn
from memory_program.configs.serve_config import ServeConfig
from memory_program.models.factory import language_model
from memory_program.serving.service.memory_service import MemoryService
from memory_program.serving.service.serve_command import ServerParts, make_memory_app, make_parts
from memory_program.serving.service.session_writer import WriterPace

BEGAN = datetime(2024, 5, 6, 9, 0, tzinfo=UTC)
QUICK = WriterPace(threads=2, tick_s=0.05, first_wait_s=0.1, longest_wait_s=0.3, lease_s=1.0)


def said(text: str, speaker: str = "Mara", minute: float = 0.0) -> SpokenTurn:
    return SpokenTurn(speaker, text, "user", BEGAN + timedelta(minutes=minute))


def program(api_base: str) -> MemoryProgram:
    made = MemoryProgram()
    made.set_lm(language_model("openai/test", api_base=api_base, max_retries=0))
    return made


@contextmanager
def running(
    url: str, api_base: str, rule: SessionRule | None = None, **settings: object
) -> Iterator[MemoryService]:
    service = MemoryService(url, program(api_base), rule, **{"pace": QUICK, **settings})
    service.start()
    try:
        yield service
    finally:
        service.stop()


@contextmanager
def served(url: str, api_base: str, **settings: object) -> Iterator[tuple[str, ServerParts]]:
    """Serve over HTTP in a thread, and give the address and the parts of the server."""
    values = {"db_url": url, "model": "openai/test", "rest": True, "port": 0, **settings}
    config = ServeConfig(**{"upstream": api_base, **values})
    parts = make_parts(config, program(api_base))
    parts.service.start()
    try:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            server = uvicorn.Server(
                uvicorn.Config(make_memory_app(config, parts), log_level="error", access_log=False)
            )
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
            thread.start()
            until = time.monotonic() + 60
            while not server.started:
                assert time.monotonic() < until
                time.sleep(0.02)
            try:
                yield f"http://127.0.0.1:{listening.getsockname()[1]}", parts
            finally:
                server.should_exit = True
                thread.join(20)
    finally:
        parts.threads.close()
        parts.service.stop()


def main(url: str, api_base: str, namespace: str, first: int) -> None:
    """Add turns without end, and print the number of each once it is taken."""
    with running(url, api_base, SessionRule(max_turns=3)) as service:
        number = first
        while True:
            service.add(
                namespace, [said(f"I bought a red bicycle number {number} in Lisbon.", minute=number)]
            )
            print(number, flush=True)
            number += 1


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
