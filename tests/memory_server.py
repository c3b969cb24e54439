"""A memory server as a process of its own: ``memory-program serve`` on a free port."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from tests.conftest import CHECKOUT

KEY = "sk-upstream-0123456789"


class MemoryServer:
    """The server, from ``__enter__`` to ``__exit__``; its log is in ``log`` afterwards."""

    def __init__(
        self, folder: Path, model_url: str, *flags: str, model: str = "openai/test", db: str | None = None
    ) -> None:
        self.db = db or f"sqlite:///{folder / 'memory.sqlite'}"
        self._log_file = folder / f"serve-{time.monotonic_ns()}.log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.flags = ["--db-url", self.db, "--model", model, "--api-base", model_url, *flags]
        command = [sys.executable, "-m", "memory_program", "serve", *self.flags, "--port", str(port)]
        self._command = command
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Start the process, also again after ``stop``: the address and the database stay the same."""
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "OPENAI_API_KEY": KEY}
        with self._log_file.open("wb") as log:
            self.process = subprocess.Popen(
                self._command, stderr=log, stdout=log, cwd=CHECKOUT, env=environment
            )
        until = time.monotonic() + 180  # seconds on an idle machine
        while True:
            try:
                httpx.get(f"{self.url}/health")
                return
            except httpx.TransportError:
                if self.process.poll() is not None or time.monotonic() > until:
                    self.process.kill()
                    raise AssertionError(self.log) from None
                time.sleep(0.05)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(signal.SIGTERM)

    def stop(self, how: signal.Signals) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(30)

    @property
    def log(self) -> str:
        return self._log_file.read_text(encoding="utf-8")
