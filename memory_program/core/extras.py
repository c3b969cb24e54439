"""The optional dependencies: the error that names the extra to install."""

from collections.abc import Generator
from contextlib import contextmanager

from memory_program.core.errors import ConfigError

_EXTRAS = {
    "accelerate": "train",
    "datasets": "train",
    "fastapi": "serve",
    "llguidance": "local",
    "matplotlib": "local",
    "mcp": "serve",
    "peft": "local",
    "prometheus_client": "serve",
    "psycopg": "postgres",
    "pyarrow": "train",
    "ray": "ray",
    "safetensors": "local",
    "sentence_transformers": "local",
    "starlette": "serve",
    "torch": "local",
    "transformers": "local",
    "trl": "train",
    "uvicorn": "serve",
}
"""The extra of ``pyproject.toml`` that installs a library."""


class MissingExtraError(ConfigError, ImportError):
    """A feature needs a library that the base installation does not have."""


@contextmanager
def name_missing_extra(wanted: str | None = None) -> Generator[None]:
    """Turn the missing library of an extra into an error that says how to install it.

    Args:
        wanted: the extra that the feature needs as a whole; None names the one of the missing library.

    Raises:
        MissingExtraError: a library of an extra is missing. Any other missing module is a bug, and stays one.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in _EXTRAS:
            raise
        extra = wanted or _EXTRAS[library]
        raise MissingExtraError(
            f"this needs the extra \"{extra}\" ({library} is missing): pip install 'memory-program[{extra}]'"
        ) from error
