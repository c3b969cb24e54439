"""The choice of the backend of a training: this process, or an Arbor server. Nothing slow is imported."""

import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from memory_program.configs.arbor_config import ArborTrainConfig
from memory_program.configs.arbor_yaml import ARBOR_YAML, ArborConfig, GpuDevices, read_arbor_config
from memory_program.configs.train_config import TrainConfig
from memory_program.core.command_line import peek_flag, peek_setting
from memory_program.core.errors import ConfigError
from memory_program.core.gpus import count_processes, count_visible_gpus

_ARBOR_FLAGS = ("arbor-config", "inference-gpus", "training-gpus")
_PROBE_TIMEOUT_S = 2.0
_NO_FILE = ArborConfig(inference=GpuDevices(gpu_ids=(0,)), training=GpuDevices(gpu_ids=(1,)))
_MIN_GPUS = 2  # vLLM takes nearly all memory of one, and training needs another


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """The settings of a backend, and the reason for it; None where ``--backend`` names it."""

    config_type: type[TrainConfig]
    reason: str | None = None


def choose_backend(arguments: Sequence[str] | None = None) -> BackendChoice:
    """Choose the backend of a training, since each has its own flags and defaults.

    Args:
        arguments: the command line; None takes ``sys.argv``.

    Raises:
        ConfigError: there is no such backend, or ``arbor.yaml`` cannot be read.
    """
    named = peek_setting("backend", arguments) or "auto"
    types: dict[str, type[TrainConfig]] = {"local": TrainConfig, "arbor": ArborTrainConfig}
    if named in types:
        return BackendChoice(types[named])
    if named != "auto":
        raise ConfigError(f"unknown backend {named!r}: choose from auto, {', '.join(types)}")
    for flag in _ARBOR_FLAGS:
        if peek_flag(flag, arguments) is not None:
            return BackendChoice(ArborTrainConfig, f"--{flag} belongs to it")
    if count_processes() > 1:
        return BackendChoice(TrainConfig, "torchrun started several processes for it")
    if peek_setting("sampler", arguments) == "vllm":
        return BackendChoice(TrainConfig, "--sampler vllm belongs to it")
    if peek_flag("sampler-url", arguments) or peek_setting("sampler_url", arguments):
        return BackendChoice(TrainConfig, "--sampler-url belongs to it")
    server = read_arbor_config(ARBOR_YAML) if ARBOR_YAML.is_file() else _NO_FILE
    answers = False
    with suppress(OSError):
        # nothing is imported while nothing listens
        socket.create_connection((server.host, server.port), _PROBE_TIMEOUT_S).close()
        from memory_program.rl.backends.arbor.arbor_server import is_healthy  # httpx is slow, for --help

        answers = is_healthy(server)
    if answers:
        return BackendChoice(ArborTrainConfig, f"its server answers at {server.url}")
    gpus = count_visible_gpus()
    if gpus >= _MIN_GPUS:
        return BackendChoice(ArborTrainConfig, f"{gpus} GPUs are visible")
    seen = ("no GPU is", "one GPU is")[gpus]
    return BackendChoice(TrainConfig, f"no Arbor server answers at {server.url}, and {seen} visible")
