"""Files with a line for each session of a conversation, written one by one: whole lines survive a kill."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memory_program.errors import RecordError

Line = dict[str, Any]  # Any: a JSON object


def file_of(folder: Path, conversation_id: str) -> Path:
    """Name the file of a conversation."""
    return folder / f"{conversation_id.replace('/', '_')}.jsonl"


def read_lines(path: Path) -> list[Line]:
    """Read the whole lines of a file; a last one that was being written is left out.

    Raises:
        RecordError: a whole line cannot be read.
    """
    try:
        return [json.loads(text) for text in path.read_text(encoding="utf-8").split("\n")[:-1]]
    except ValueError as error:
        raise RecordError(
            f"{str(path)!r} holds a line that is not JSON ({error}): delete the file to have it done again"
        ) from error


def append_line(path: Path, line: Line, done: Sequence[Line]) -> None:
    """Add a line, after cutting off what a killed process left half written.

    Args:
        path: of the file.
        line: what is added.
        done: the lines that the file holds.
    """
    whole = sum(len(json.dumps(earlier)) + 1 for earlier in done)
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        os.ftruncate(file, whole)
        os.pwrite(file, f"{json.dumps(line)}\n".encode(), whole)
        os.fsync(file)
    finally:
        os.close(file)
