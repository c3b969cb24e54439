"""The base model and the rank that a LoRA adapter names, in a folder as PEFT writes it."""

import json
from pathlib import Path
from typing import Any

from memory_program.core.errors import ConfigError


def adapter_base(source: str) -> str | None:
    """Return the base model of an adapter, a folder or a hub id; None if the source is no adapter.

    Raises:
        ConfigError: the configuration cannot be read, or names no base.
    """
    config = _read_config(source)
    if config is None:
        return None
    base = config.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ConfigError(
            f"the adapter {source!r} names no base model: set base_model_name_or_path in its "
            "adapter_config.json"
        )
    return base


def adapter_rank(source: str) -> int:
    """Return the rank of an adapter.

    Raises:
        ConfigError: the configuration cannot be read, or has no rank.
    """
    rank = (_read_config(source) or {}).get("r")
    if not isinstance(rank, int):
        raise ConfigError(f"the adapter {source!r} has no rank: set r in its adapter_config.json")
    return rank


def _read_config(source: str) -> dict[str, Any] | None:  # Any: JSON
    path = Path(source).expanduser() / "adapter_config.json"
    if not path.is_file():
        return None
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error}") from error
