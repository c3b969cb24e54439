"""The base model and the rank that a LoRA adapter names, in a folder as PEFT writes it.

A training of bfloat16 weights saves the adapter beside weights that it is merged into. Merging rounds, so the
configuration of those weights names the folder of the adapter.
"""

import json
from pathlib import Path
from typing import Any

from memory_program.core.errors import ConfigError

ADAPTER_FOLDER = "adapter"
"""The folder of a training's adapter, in that of the merged weights."""

ROUNDED = "rounded_adapter"
"""Key of a model's configuration: the folder of the adapter that its weights hold merged and rounded."""


def rounded_adapter(folder: Path) -> Path | None:
    """Return the adapter that the weights in a folder hold merged and rounded to bfloat16; None if none.

    A configuration that cannot be read names none: whoever loads the model says what is wrong with it.
    """
    try:
        name = (_read_config(folder / "config.json") or {}).get(ROUNDED)
    except ConfigError:
        return None
    return folder / name if isinstance(name, str) else None


def adapter_base(source: str) -> str | None:
    """Return the base model of an adapter, a folder or a hub id; None if the source is no adapter.

    Raises:
        ConfigError: the configuration cannot be read, or names no base but itself.
    """
    config = _read_config(_config_file(source))
    if config is None:
        return None
    base = config.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ConfigError(
            f"the adapter {source!r} names no base model: set base_model_name_or_path in its "
            "adapter_config.json"
        )
    if Path(base).expanduser().resolve() == Path(source).expanduser().resolve():
        raise ConfigError(
            f"the adapter {source!r} names itself as its base model: set base_model_name_or_path in its "
            "adapter_config.json to the model that it was trained over, in a folder of its own"
        )
    return base


def adapter_rank(source: str) -> int:
    """Return the rank of an adapter.

    Raises:
        ConfigError: the configuration cannot be read, or has no rank.
    """
    rank = (_read_config(_config_file(source)) or {}).get("r")
    if not isinstance(rank, int):
        raise ConfigError(f"the adapter {source!r} has no rank: set r in its adapter_config.json")
    return rank


def _config_file(source: str) -> Path:
    return Path(source).expanduser() / "adapter_config.json"


def _read_config(path: Path) -> dict[str, Any] | None:  # Any: JSON
    if not path.is_file():
        return None
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error}") from error
