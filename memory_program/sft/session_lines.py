"""Files with a line for each session of a conversation, written one by one: whole lines survive a kill."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from locomo.types import Session
from memory_program.bank.record_json import session_to_json
from memory_program.core.errors import RecordError

SessionLine = dict[str, Any]  # Any: a JSON object


def session_file(folder: Path, conversation_id: str) -> Path:
    """Name the file of a conversation."""
    return folder / f"{conversation_id.replace('/', '_')}.jsonl"


def read_lines(path: Path) -> list[SessionLine]:
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


def check_resumable(
    path: Path,
    done: Sequence[SessionLine],
    recorded: Sequence[SessionLine],
    sessions: Sequence[Session],
    model: str,
) -> None:
    """Check that what a file holds was made of the first sessions of a conversation, by a model.

    Args:
        path: of the file.
        done: its lines.
        recorded: the session of each line, as JSON.
        sessions: of the conversation.
        model: that goes on.

    Raises:
        RecordError: it is of other sessions, or another model's.
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
    """Add a line, after cutting off what a killed process, or a full disk, left half written."""
    with path.open("a+b") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(f"{json.dumps(line)}\n".encode())
        file.flush()
        os.fsync(file.fileno())
