"""``arbor.yaml``: the address and the GPUs of the training server; it has no hyperparameter."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import Field, field_validator, model_validator

from memory_program.core.errors import ConfigError
from memory_program.core.gpus import list_gpus
from memory_program.core.settings import Settings, split_list

ARBOR_YAML = Path("arbor.yaml")
"""The file that is read if no other is named."""

DEFAULT_TEXT = """\
# The Arbor server that train.py --backend arbor trains on: its address and its GPUs. Settings of the training
# are flags (python train.py --backend arbor --help). Start the server: memory-program arbor serve
host: 127.0.0.1          # Arbor has no password: reach a server elsewhere through an SSH tunnel
port: 7453
storage_path: ~/.arbor   # the server's environment, logs and checkpoints, on its own machine
inference:
  gpu_ids: '0'           # vLLM samples here; ids as nvidia-smi counts them
training:
  gpu_ids: '1,2'         # weights are trained here; no GPU can do both
"""
"""The file that is written where there is none. The checkout has it at its top level."""

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def parse_gpu_ids(value: str) -> list[int]:
    """Read comma-separated numbers of GPUs.

    Raises:
        ConfigError: one is no number.

    Example:
        >>> parse_gpu_ids("1,2")
        [1, 2]
    """
    parts = split_list(value)
    if not parts or not all(part.isdecimal() for part in parts):
        raise ConfigError(
            f"{value!r} are no numbers of GPUs: write them like '1,2', as nvidia-smi counts them"
        )
    return [int(part) for part in parts]


class GpuDevices(Settings):
    """GPUs for one purpose."""

    gpu_ids: tuple[Annotated[int, Field(ge=0, strict=True)], ...] = Field(min_length=1)
    """Numbers of the GPUs, as nvidia-smi counts them. Arbor's own form, '1,2', is accepted."""

    @field_validator("gpu_ids", mode="before")
    @classmethod
    def _read_ids(cls, value: object) -> object:
        return parse_gpu_ids(str(value)) if isinstance(value, str | int) else value


class ArborConfig(Settings):
    """The training server."""

    host: str = "127.0.0.1"
    """Address of the server. Arbor has no authentication."""

    port: int = Field(default=7453, ge=1, le=65_535)
    """Port that the server listens on."""

    storage_path: Path = Path("~/.arbor")
    """Folder of the server, on its own machine: its environment, logs, and the checkpoints of its jobs."""

    inference: GpuDevices
    """GPUs that sample."""

    training: GpuDevices
    """GPUs that train."""

    @field_validator("inference", "training", mode="before")
    @classmethod
    def _read_devices(cls, value: object) -> GpuDevices:
        if isinstance(value, GpuDevices):
            return value
        if not isinstance(value, Mapping):
            raise ConfigError(f"{value!r} is not a part of arbor.yaml: expected gpu_ids, for example [0]")
        return GpuDevices(**value)

    @model_validator(mode="after")
    def _check_no_gpu_twice(self) -> Self:
        chosen = (*self.inference.gpu_ids, *self.training.gpu_ids)
        twice = sorted({gpu for gpu in chosen if chosen.count(gpu) > 1})
        if twice:
            raise ConfigError(
                f"GPU {twice[0]} is named twice: vLLM takes nearly all memory of its GPUs, so inference and "
                "training need different ones"
            )
        return self

    @property
    def url(self) -> str:
        """The address of the server, as the ``api_base`` of its models."""
        return f"http://{self.host}:{self.port}/v1"

    @property
    def storage(self) -> Path:
        """The folder of the server, with the home directory resolved."""
        return self.storage_path.expanduser()


def ensure_arbor_yaml(path: Path, say: Callable[[str], None]) -> None:
    """Write ``arbor.yaml`` with its defaults if there is none; a file of another name must exist.

    On a machine with two GPUs, one of them trains.
    """
    if path != ARBOR_YAML or path.exists():
        return
    training = "1" if list_gpus() == [0, 1] else "1,2"
    path.write_text(DEFAULT_TEXT.replace("'1,2'", f"'{training}'".ljust(5)), encoding="utf-8")
    say(f"wrote {path}: it names GPU 0 for sampling and {training} for training; edit it if that is wrong")


def read_arbor_config(path: Path) -> ArborConfig:
    """Read ``arbor.yaml``.

    Raises:
        ConfigError: the file is missing, is not YAML, or has an unknown key or a wrong value.
    """
    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))  # Any: whatever YAML may hold
    except FileNotFoundError as error:
        raise ConfigError(
            f"there is no {str(path)!r}: memory-program arbor serve writes {ARBOR_YAML}, or give another file"
        ) from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{str(path)!r} holds {content!r:.80}: expected keys such as host and port")
    try:
        return ArborConfig(**{str(key): value for key, value in content.items()})
    except ConfigError as error:
        raise ConfigError(f"{str(path)!r}: {error}") from error
