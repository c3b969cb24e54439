"""Sessions, their records, and whole namespaces as JSON, read back unchanged.

A document of another form raises a ValueError, KeyError or TypeError; for a namespace, a StoreError.
"""

import json
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any, cast

from locomo.types import Session, Turn
from memory_program.bank.bank import MemoryBank
from memory_program.bank.memory import operation_from_json, operation_to_json
from memory_program.bank.outcomes import CallFailure, Outcome, ReplyCounts, SessionRecord
from memory_program.bank.space import IngestedSession, MemorySpace
from memory_program.core.errors import StoreError

NAMESPACE_FORMAT = "memory-program/1"


def session_to_json(session: Session) -> str:
    """Write a session, including its turns; ``session_from_json`` reads it back equal."""
    return json.dumps(
        {
            "number": session.number,
            "date_time": session.date_time.isoformat(),
            "turns": [
                {field.name: getattr(turn, field.name) for field in fields(Turn)} for turn in session.turns
            ],
        }
    )


def session_from_json(document: str) -> Session:
    """Read a session that ``session_to_json`` wrote."""
    record: dict[str, Any] = json.loads(document)  # Any: a JSON object
    turns = tuple(Turn(**written) for written in record["turns"])
    for turn in turns:
        for field in fields(Turn):
            value = getattr(turn, field.name)
            if not isinstance(value, str) and (value is not None or field.default is not None):
                raise TypeError(f"{field.name}={value!r:.80} of a turn is not a string")
    return Session(_read_int(record, "number"), datetime.fromisoformat(record["date_time"]), turns)


def record_to_json(record: SessionRecord) -> str:
    """Write the record of a session; ``record_from_json`` reads it back equal."""
    return json.dumps(asdict(record))


def record_from_json(document: str) -> SessionRecord:
    """Read a record that ``record_to_json`` wrote."""
    record: dict[str, Any] = json.loads(document)  # Any: a JSON object
    failures = [
        CallFailure(failure["where"], Outcome(failure["outcome"]), failure["message"])
        for failure in record["failures"]
    ]
    counts = record.get("counts", {})  # older versions had none
    return SessionRecord(
        session_id=record["session_id"],
        operations=_read_int(record, "operations"),
        tool_calls=_read_int(record, "tool_calls"),
        tool_errors=_read_strings(record, "tool_errors"),
        failures=tuple(failures),
        left_out=_read_strings(record, "left_out"),
        counts=ReplyCounts(**{name: _read_int(counts, name) for name in counts}),
        odd_dates=_read_strings(record, "odd_dates") if "odd_dates" in record else (),  # older records
        clock_times=_read_strings(record, "clock_times") if "clock_times" in record else (),
    )


def space_to_json(space: MemorySpace) -> dict[str, Any]:  # Any: a JSON object
    """Write a namespace, its log and its sessions; ``space_from_json`` reads it back equal."""
    validity = space.valid_times().memories
    return {
        "format": NAMESPACE_FORMAT,
        "namespace": space.namespace,
        "operations": [operation_to_json(operation, validity) for operation in space.bank.operations()],
        "sessions": [
            {
                "session": json.loads(session_to_json(ingested.session)),
                "version": ingested.version,
                "record": json.loads(record_to_json(ingested.record)),
            }
            for ingested in space.sessions.values()
        ],
    }


def space_from_json(document: dict[str, Any], namespace: str | None = None) -> MemorySpace:  # Any: as above
    """Read a namespace that ``space_to_json`` wrote, under its own name or another."""
    try:
        if document["format"] != NAMESPACE_FORMAT:
            raise ValueError(f"its format is {document['format']!r}")
        name = document["namespace"] if namespace is None else namespace
        if not isinstance(name, str):
            raise TypeError(f"namespace={name!r:.80} is not a string")
        space = MemorySpace(name)
        space.bank = MemoryBank.replay(name, map(operation_from_json, document["operations"]))
        ingested = list[IngestedSession]()
        for entry in document["sessions"]:
            session, version = session_from_json(json.dumps(entry["session"])), _read_int(entry, "version")
            if not 0 <= version <= space.bank.version:
                raise ValueError(
                    f"version {version} of {session.session_id} must be from 0 to {space.bank.version}"
                )
            ingested.append(IngestedSession(session, version, record_from_json(json.dumps(entry["record"]))))
        space.restore(ingested)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"not an exported namespace ({error}): expected a file of format {NAMESPACE_FORMAT!r}, as "
            "python -m memory_program.bank export writes it"
        ) from error
    return space


def _read_int(record: dict[str, Any], name: str) -> int:  # Any: see session_from_json
    if not isinstance(record[name], int) or isinstance(record[name], bool):
        raise TypeError(f"{name}={record[name]!r:.80} is not a whole number")
    return record[name]


def _read_strings(record: dict[str, Any], name: str) -> tuple[str, ...]:  # Any: see session_from_json
    texts = record[name]
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in cast(list[object], texts)):
        raise TypeError(f"{name}={texts!r:.80} is not a list of strings")
    return tuple(cast(list[str], texts))
