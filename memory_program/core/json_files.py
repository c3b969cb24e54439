"""JSON objects, and files that hold one."""

import json
from pathlib import Path
from typing import Any

from locomo.atomic_files import atomic_write_text

Json = dict[str, Any]  # Any: a JSON object


def write_json(path: Path, content: Json) -> None:
    """Write a JSON file, the whole of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
