"""Starts, checks and stops an Arbor server on this machine."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml
from filelock import FileLock

from memory_program.configs.arbor_yaml import LOOPBACK, ArborConfig
from memory_program.core.errors import ConfigError, ModelError
from memory_program.core.gpus import list_gpus
from memory_program.rl.backends.arbor.arbor_client import START_COMMAND, ArborClient
from memory_program.rl.backends.arbor.arbor_environment import ensure_server_environment

_LAUNCHER = Path(__file__).with_name("arbor_launcher.py")
_RECORD = "server.json"
_LOG = "server.log"
_POLL_S = 0.5
_START_TIMEOUT_S, _STOP_TIMEOUT_S = 600.0, 60.0
_KILL_TIMEOUT_S = 10.0  # time for killed processes to free their memory

WEIGHTS_PORT = 51216
"""The port over which Arbor's trainer sends weights to vLLM. Arbor 0.2.17 has no setting for it."""


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A server that this package started."""

    pid: int
    url: str


def ensure_server_running(
    config: ArborConfig, say: Callable[[str], None], *, allow_remote: bool = False
) -> ServerProcess:
    """Start the server unless it runs already, and wait until it answers.

    Args:
        config: the server's settings.
        say: called with progress.
        allow_remote: allow an address that other machines reach.

    Raises:
        ConfigError: a GPU is missing, or the address is open to other machines.
        ModelError: the environment cannot be created, or the server does not start.
    """
    if config.host not in LOOPBACK and not allow_remote:
        raise ConfigError(
            f"host={config.host!r} is open to other machines, and Arbor asks nobody for a password: listen "
            "on 127.0.0.1 and come through an SSH tunnel, or give --allow-remote"
        )
    check_gpus(config, list_gpus())
    with FileLock(_ensure_folder(config.storage) / "server.lock"):
        running = find_running_server(config)
        if running is None:
            python = ensure_server_environment(config.storage / "environment", say)
            running = launch_server(config, python, say)
    say(f"Arbor serves at {running.url} (process {running.pid}, log {config.storage / _LOG})")
    return running


def check_gpus(config: ArborConfig, found: list[int]) -> None:
    """Raise ``ConfigError`` if a GPU of the config is not on this machine."""
    if not found:
        raise ConfigError(
            "this machine has no NVIDIA GPU (nvidia-smi names none), and Arbor trains on nothing else: rent "
            "one (deploy/arbor-sky.yaml), or train in this process with --backend local"
        )
    missing = sorted({*config.inference.gpu_ids, *config.training.gpu_ids} - set(found))
    if missing:
        raise ConfigError(f"arbor.yaml names GPU {missing[0]}, and this machine has {found}: name those")


def _check_weights_port() -> None:
    """Raise ``ModelError`` if the port is in use: the first training would hang."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the listener itself
        try:
            probe.bind(("", WEIGHTS_PORT))
        except OSError as error:
            raise ModelError(
                f"port {WEIGHTS_PORT} is in use ({error.strerror}), and Arbor sends weights over it: end the "
                "process that has it (ss -tanp names it), and start again"
            ) from error


def launch_server(
    config: ArborConfig,
    python: Path,
    say: Callable[[str], None],
    *,
    environment: Mapping[str, str] | None = None,
) -> ServerProcess:
    """Start the server with the Python of its environment, and wait until it answers.

    Args:
        config: the server's settings.
        python: the interpreter of the server's environment.
        say: called with progress.
        environment: environment variables in addition to those of this process.

    Raises:
        ModelError: the address or ``WEIGHTS_PORT`` is in use, or the server exits or does not answer in time.
    """
    if is_healthy(config):
        raise ModelError(
            f"an Arbor server that was not started from {str(config.storage)!r} answers at {config.url} "
            "already: choose another port, or give the folder that it was started from"
        )
    _check_weights_port()
    storage = _ensure_folder(config.storage).resolve()
    own = storage / "config.yaml"
    own.write_text(yaml.safe_dump({"storage_path": str(storage)}), encoding="utf-8")
    gpus = ",".join(map(str, (*config.inference.gpu_ids, *config.training.gpu_ids)))
    command = [str(python), "-P", str(_LAUNCHER), "--host", config.host, "--port", str(config.port)]
    command += ["--arbor-config", str(own), "--gpus", gpus]
    # Arbor finds idle GPUs with NVML, which orders them by slot. CUDA's default order is by speed.
    variables = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", **(environment or {})}
    say(f"starting Arbor on GPUs {gpus}")
    with (storage / _LOG).open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables, start_new_session=True
        )
    running = ServerProcess(process.pid, config.url)
    record = {"pid": process.pid, "url": config.url}
    (storage / _RECORD).write_text(json.dumps(record) + "\n", encoding="utf-8")
    until = time.monotonic() + _START_TIMEOUT_S
    while True:
        is_up = is_healthy(config)
        if process.poll() is not None:  # then another server answers
            lines = (storage / _LOG).read_text(encoding="utf-8", errors="replace").splitlines()
            last = " ".join([line.strip() for line in lines if line.strip()][-3:])
            raise ModelError(f"the server ended while it started: {last}")
        if is_up:
            return running
        if time.monotonic() > until:
            stop_server(config)
            raise ModelError(
                f"the server has not answered within {_START_TIMEOUT_S:.0f} s: see {storage / _LOG}"
            )
        time.sleep(_POLL_S)


def find_running_server(config: ArborConfig) -> ServerProcess | None:
    """Return the recorded server if its process still runs."""
    path = config.storage / _RECORD
    if not path.is_file():
        return None
    record = json.loads(path.read_text(encoding="utf-8"))
    try:
        words = Path(f"/proc/{record['pid']}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    return ServerProcess(record["pid"], record["url"]) if str(_LAUNCHER).encode() in words else None


def is_healthy(config: ArborConfig) -> bool:
    """Return True if an Arbor server answers at the address."""
    client = ArborClient(config.url)
    try:
        client.check()
    except ModelError:
        return False
    finally:
        client.close()
    return True


def describe_server(config: ArborConfig) -> str:
    """Describe the server's state in one line."""
    running, healthy = find_running_server(config), is_healthy(config)
    if running is None and not healthy:
        return f"no Arbor server at {config.url}: start one with: {START_COMMAND}"
    process = "not started from here" if running is None else f"process {running.pid}"
    state = "answers" if healthy else f"does not answer (log: {config.storage / _LOG})"
    split = f"inference {list(config.inference.gpu_ids)}, training {list(config.training.gpu_ids)}"
    return f"Arbor at {config.url} {state}: {process}, GPUs: {split}"


def stop_server(config: ArborConfig) -> bool:
    """Stop the server and its jobs; checkpoints are kept. Return False if no recorded server runs."""
    running = find_running_server(config)
    if running is None:
        return False
    os.kill(running.pid, signal.SIGTERM)  # it usually ends its own children
    until = time.monotonic() + _STOP_TIMEOUT_S
    while find_running_server(config) is not None and time.monotonic() < until:
        with suppress(ChildProcessError):  # reap a child, which would stay a zombie
            os.waitpid(running.pid, os.WNOHANG)
        time.sleep(_POLL_S)
    until = time.monotonic() + _KILL_TIMEOUT_S
    with suppress(ProcessLookupError):  # until the whole group is gone; a zombie is still a member
        while time.monotonic() < until:  # an orphaned trainer would hold its GPU forever
            os.killpg(running.pid, signal.SIGKILL)
            time.sleep(_POLL_S)
    (config.storage / _RECORD).unlink(missing_ok=True)
    return True


def _ensure_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
