"""JSON objects, and files that hold one."""

import json
from pathlib import Path
from typing import Any

from locomo.atomic_files import atomic_write_text
from memory_program.core.errors import RecordError

Json = dict[str, Any]  # Any: a JSON object


def read_json_file(path: Path) -> Json:  # what it should hold: the caller checks
    """Read a JSON file that a person may have written or edited: it may begin with a byte order mark.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not JSON in UTF-8.
    """
    return json.loads(path.read_text(encoding="utf-8-sig"))


def read_run_file(path: Path, remedy: str) -> Json:
    """Read a JSON object that a run has written.

    Args:
        path: the file.
        remedy: what to do about a damaged file, for the end of the error.

    Raises:
        OSError: the file cannot be read.
        RecordError: it is damaged: after a power cut, say, it may be empty.
    """
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8-sig"))  # Any: whatever the file holds
        if not isinstance(found, dict):
            raise ValueError(f"{type(found).__name__} in place of an object")
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{str(path)!r} is damaged ({error}): {remedy}") from error
    return found


def write_json(path: Path, content: Json) -> None:
    """Write a JSON file, the whole of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
