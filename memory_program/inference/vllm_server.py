"""A vLLM server as a child process: started for a model, waited for, and ended with this process.

vLLM often lives in an environment of its own. Its executable is found on the PATH, or named by the variable
``VLLM``; ``VLLM_ARGS`` has further arguments of ``vllm serve``, for example ``--max-model-len 16384``.

Between this process and vLLM stands a small guard, this module run as a script: it ends vLLM, with all of its
own processes, when its standard input closes. That also happens when this process is killed.
"""

import argparse
import atexit
import contextlib
import json
import logging
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from memory_program.core.adapter_config import adapter_base, adapter_rank
from memory_program.core.errors import ModelError

_EXECUTABLE, _ARGUMENTS = "VLLM", "VLLM_ARGS"
_COMPACT_JSON = [
    "--structured-outputs-config.backend=xgrammar",
    "--structured-outputs-config.disable_any_whitespace=true",
]
"""Replies that are held to a schema have no free whitespace: a weak model fills its limit with it, or gives
every call of a loop another layout."""

_TORCHRUN = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
"""vLLM would take itself for one of the processes of a training."""

_ERROR = re.compile(r"\b[A-Za-z]+Error: .*")
_LINE_EVERY_S = 30.0
_START_TIMEOUT_S = 1800.0
_STOP_AFTER_S = 15.0  # vLLM ends within seconds of SIGTERM; what does not is killed

_logger = logging.getLogger(__name__)
_servers: dict[str, "VllmServer"] = {}
_lock = threading.Lock()


def serve_model(
    name: str, source: str, arguments: Sequence[str] = (), variables: Mapping[str, str] | None = None
) -> str:
    """Return the address of a vLLM server of a model, which it serves under a name; start it if need be.

    The server of a name is started once, and ends with this process.

    Args:
        name: the name that requests give to the model.
        source: its folder, its id on the Hugging Face hub, or the folder of an adapter of it.
        arguments: of ``vllm serve``; those in ``VLLM_ARGS`` come after them.
        variables: added to its environment.

    Raises:
        ModelError: vLLM is not installed, or does not start; the message has the last line of its log.
    """
    with _lock:
        server = _servers.get(name)
        if server is None or not server.is_running:
            server = _servers[name] = VllmServer(name, source, arguments, variables or {})
        return server.url


def lora_arguments(rank: int) -> list[str]:
    """Return the arguments of a server that takes LoRA adapters of a rank."""
    # the smallest of the limits of ranks that vLLM takes
    limit = next((limit for limit in (8, 16, 32, 64, 128, 256, 320) if limit >= rank), 512)
    return ["--enable-lora", "--max-lora-rank", str(limit)]


def gpu_share(default: float) -> float:
    """Return the share of the GPU that a server takes: that of ``VLLM_ARGS``, if it has one.

    Raises:
        ModelError: ``VLLM_ARGS`` cannot be read.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--gpu-memory-utilization", "--gpu_memory_utilization", type=float, default=default)
    try:
        known, _ = parser.parse_known_args(_user_arguments())
    except argparse.ArgumentError as error:
        raise ModelError(f"{_ARGUMENTS}: {error}") from error
    return known.gpu_memory_utilization


def _user_arguments() -> list[str]:
    try:
        return shlex.split(os.environ.get(_ARGUMENTS, ""))
    except ValueError as error:
        raise ModelError(f"{_ARGUMENTS} cannot be read ({error}): write it as in a shell") from error


def stop_servers() -> None:
    """End all servers of this process."""
    with _lock:
        for server in _servers.values():
            server.stop()
        _servers.clear()


class VllmServer:
    """A running vLLM server on a free port of the loopback address."""

    def __init__(
        self, name: str, source: str, arguments: Sequence[str], variables: Mapping[str, str]
    ) -> None:
        """Start it, and wait until it answers; see ``serve_model``.

        Raises:
            ModelError: see ``serve_model``.
        """
        named, beside = os.environ.get(_EXECUTABLE, "").strip(), Path(sys.executable).with_name("vllm")
        executable = shutil.which(named or "vllm")
        if executable is None and not named and beside.is_file():
            executable = str(beside)
        if executable is None:
            what = (
                f"{_EXECUTABLE}={named!r} is no program"
                if named
                else "there is no program 'vllm' on the PATH"
            )
            raise ModelError(
                f"{name!r} needs vLLM, and {what}: pip install 'memory-program[gpu]', or set {_EXECUTABLE} "
                "to the vllm of another environment"
            )
        further = _user_arguments()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/v1"
        handle, path = tempfile.mkstemp(prefix="vllm-", suffix=".log")
        self._log = Path(path)
        served = [*_model_arguments(name, source), "--host", "127.0.0.1", "--port", str(port)]
        # vLLM warns of variables that it does not know, and would ask for the key of another server
        own = {_EXECUTABLE, _ARGUMENTS, "VLLM_API_KEY", *_TORCHRUN}
        command = [sys.executable, "-m", __name__, executable, "serve", *served, *_COMPACT_JSON, *arguments]
        inherited = {variable: value for variable, value in os.environ.items() if variable not in own}
        self._process = subprocess.Popen(
            [*command, *further],
            stdin=subprocess.PIPE,
            stdout=handle,
            stderr=subprocess.STDOUT,
            env={"VLLM_NO_USAGE_STATS": "1", **inherited, **variables},
            start_new_session=True,  # Ctrl-C is for this process, which then ends vLLM
        )
        os.close(handle)
        atexit.register(self.stop)
        try:
            self._wait_until_healthy(name)
        except BaseException:  # an interrupt, too, leaves nothing behind
            self.stop()
            raise
        _logger.warning("vLLM serves %s at %s", source, self.url)

    @property
    def is_running(self) -> bool:
        """True until the server ends."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End the server, and wait until it has ended."""
        atexit.unregister(self.stop)
        assert self._process.stdin is not None, "it is a pipe"
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._log.unlink(missing_ok=True)

    def _wait_until_healthy(self, name: str) -> None:
        began = shown = time.monotonic()
        health = f"{self.url.removesuffix('/v1')}/health"
        _logger.warning("vLLM starts for %s; its log is %s", name, self._log)
        with httpx.Client(trust_env=False, timeout=5.0) as client:
            while True:
                if not self.is_running:
                    kept = self._log.with_suffix(".failed.log")
                    self._log.rename(kept)
                    why, log = _last_line(kept), kept.read_text(encoding="utf-8", errors="replace")
                    found = _ERROR.search(log)  # the first one, which vLLM calls the root cause
                    if found is not None and found[0].strip()[:300] not in why:
                        why = f"{found[0].strip()[:300]} ... {why}"
                    raise ModelError(
                        f"{name!r}: vLLM ended with status {self._process.returncode}: {why} (its log: "
                        f"{kept}); arguments of vllm serve go into the variable {_ARGUMENTS}"
                    )
                with contextlib.suppress(httpx.TransportError):
                    if client.get(health).is_success:
                        return
                now = time.monotonic()
                if now - began > _START_TIMEOUT_S:
                    raise ModelError(
                        f"{name!r}: vLLM is not ready after {_START_TIMEOUT_S:.0f} s: "
                        f"{_last_line(self._log)}; start it yourself, and give its address with --api-base"
                    )
                if now - shown >= _LINE_EVERY_S:
                    shown = now
                    _logger.warning("vLLM is not ready after %d s: %s", now - began, _last_line(self._log))
                time.sleep(0.2)


def _model_arguments(name: str, source: str) -> list[str]:
    base, folder = adapter_base(source), Path(source).expanduser()
    if base is not None:
        module = json.dumps({"name": name, "path": str(folder.resolve())})
        return [
            *_model_arguments(base, base),
            *lora_arguments(adapter_rank(source)),
            "--lora-modules",
            module,
        ]
    return [str(folder) if folder.is_dir() else source, "--served-model-name", name]


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "its log is empty")


def guard(command: list[str]) -> int:
    """Run a command until it ends or standard input closes; in the second case end its whole session."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)

    def wait_for_end_of_input() -> None:
        while os.read(0, 1):  # unbuffered: a lock of Python's own would be held when this process ends
            pass
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_AFTER_S)
            os.killpg(process.pid, signal.SIGKILL)  # also what is left of its own processes

    watching = threading.Thread(target=wait_for_end_of_input, daemon=True)
    watching.start()
    status = process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return status


if __name__ == "__main__":
    sys.exit(guard(sys.argv[1:]))
