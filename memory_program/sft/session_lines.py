"""Files with one line per session of a conversation; complete lines survive a kill."""

import json
import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from locomo.types import Session
from memory_program.bank.record_json import session_to_json
from memory_program.core.errors import RecordError
from memory_program.core.hashing import content_hash

SessionLine = dict[str, Any]  # Any: a JSON object

_LONGEST_NAME = 200  # bytes
_PART_CHARS = 40


def session_file(folder: Path, conversation_id: str) -> Path:
    """Name the file of a conversation: by its id, or by a part and the hash of an id that is no file name."""
    is_name = "/" not in conversation_id and len(conversation_id.encode()) <= _LONGEST_NAME
    if is_name:
        return folder / f"{conversation_id}.jsonl"
    part = re.sub(r"[^\w.-]", "_", conversation_id)[:_PART_CHARS]
    return folder / f"{part}-{content_hash(conversation_id)[:8]}.jsonl"


def read_lines(path: Path, fields: Collection[str] = ()) -> list[SessionLine]:
    """Read the complete lines of a file; raise ``RecordError`` if one is not JSON, or lacks a field."""
    try:
        lines = [json.loads(text) for text in path.read_text(encoding="utf-8").split("\n")[:-1]]
    except ValueError as error:
        raise RecordError(
            f"{str(path)!r} holds a line that is not JSON ({error}): delete the file to have it done again"
        ) from error
    for line in lines:
        missing = [name for name in fields if not isinstance(line, dict) or name not in line]
        if missing:
            raise RecordError(
                f"{str(path)!r} holds a line without {', '.join(missing)}, so another command wrote it: name "
                "another folder"
            )
    return lines


def check_resumable(
    path: Path,
    done: Sequence[SessionLine],
    recorded: Sequence[SessionLine],
    sessions: Sequence[Session],
    model: str,
) -> None:
    """Raise ``RecordError`` unless a file's lines are this model's, for a conversation's first sessions.

    Args:
        path: the file's path.
        done: the file's lines.
        recorded: the session of each line, as JSON.
        sessions: the sessions of the conversation.
        model: the model that resumes.
    """
    if list(recorded) != [session_json(session) for session in sessions[: len(done)]]:
        raise RecordError(f"{str(path)!r} holds sessions of other data: name another folder")
    others = {line["model"] for line in done} - {model}
    if others:
        raise RecordError(
            f"{str(path)!r} holds what {min(others)!r} did, and not {model!r}: name another folder"
        )


def session_json(session: Session) -> SessionLine:
    """Write a session as a line records it."""
    return json.loads(session_to_json(session))


def append_line(path: Path, line: SessionLine) -> None:
    """Append a line, after removing an incomplete last one."""
    with path.open("a+b") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(f"{json.dumps(line)}\n".encode())
        file.flush()
        os.fsync(file.fileno())
