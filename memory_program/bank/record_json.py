"""How sessions and their records are written as JSON, and read back unchanged."""

import json
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any, cast

from locomo.types import Session, Turn
from memory_program.bank.outcomes import CallFailure, Outcome, SessionRecord

_TURN_FIELDS = [field.name for field in fields(Turn)]


def session_to_json(session: Session) -> str:
    """Write a session, its turns included; ``session_from_json`` reads it back equal."""
    return json.dumps(
        {
            "number": session.number,
            "date_time": session.date_time.isoformat(),
            "turns": [{name: getattr(turn, name) for name in _TURN_FIELDS} for turn in session.turns],
        }
    )


def session_from_json(document: str) -> Session:
    """Read a session that ``session_to_json`` wrote.

    Raises:
        ValueError, KeyError, TypeError: it did not.
    """
    record: dict[str, Any] = json.loads(document)  # Any: a JSON object
    return Session(
        number=_read_int(record, "number"),
        date_time=datetime.fromisoformat(record["date_time"]),
        turns=tuple(map(_turn_from_json, record["turns"])),
    )


def _read_int(record: dict[str, Any], name: str) -> int:  # Any: see session_from_json
    if not isinstance(record[name], int) or isinstance(record[name], bool):
        raise TypeError(f"{name}={record[name]!r:.80} is no whole number")
    return record[name]


def _read_strings(record: dict[str, Any], name: str) -> tuple[str, ...]:  # Any: see session_from_json
    texts = record[name]
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in cast(list[object], texts)):
        raise TypeError(f"{name}={texts!r:.80} is no list of texts")
    return tuple(cast(list[str], texts))


def _turn_from_json(written: dict[str, Any]) -> Turn:  # Any: see session_from_json
    turn = Turn(**written)
    for field in fields(Turn):
        value = getattr(turn, field.name)
        if not isinstance(value, str) and (value is not None or field.default is not None):
            raise TypeError(f"{field.name}={value!r:.80} of a turn is no text")
    return turn


def record_to_json(record: SessionRecord) -> str:
    """Write the record of a session; ``record_from_json`` reads it back equal."""
    return json.dumps(asdict(record))


def record_from_json(document: str) -> SessionRecord:
    """Read a record that ``record_to_json`` wrote.

    Raises:
        ValueError, KeyError, TypeError: it did not.
    """
    record: dict[str, Any] = json.loads(document)  # Any: a JSON object
    failures = [
        CallFailure(failure["where"], Outcome(failure["outcome"]), failure["message"])
        for failure in record["failures"]
    ]
    return SessionRecord(
        session_id=record["session_id"],
        operations=_read_int(record, "operations"),
        tool_calls=_read_int(record, "tool_calls"),
        tool_errors=_read_strings(record, "tool_errors"),
        failures=tuple(failures),
        left_out=_read_strings(record, "left_out"),
    )
