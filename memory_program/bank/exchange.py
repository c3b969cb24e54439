"""A namespace as one JSON document: everything in force, and nothing that a rewind took back."""

import json
from typing import Any

from memory_program.bank.bank import MemoryBank
from memory_program.bank.memory import operation_from_json, operation_to_json
from memory_program.bank.record_json import (
    record_from_json,
    record_to_json,
    session_from_json,
    session_to_json,
)
from memory_program.bank.space import IngestedSession, MemorySpace
from memory_program.core.errors import StoreError

FORMAT = "memory-program/1"

NamespaceJson = dict[str, Any]  # Any: a JSON object


def space_to_json(space: MemorySpace) -> NamespaceJson:
    """Write a namespace, its log and its sessions; ``space_from_json`` reads it back equal."""
    return {
        "format": FORMAT,
        "namespace": space.namespace,
        "operations": [operation_to_json(operation) for operation in space.bank.operations()],
        "sessions": [
            {
                "session": json.loads(session_to_json(ingested.session)),
                "version": ingested.version,
                "record": json.loads(record_to_json(ingested.record)),
            }
            for ingested in space.sessions.values()
        ],
    }


def space_from_json(document: NamespaceJson, namespace: str | None = None) -> MemorySpace:
    """Read a namespace that ``space_to_json`` wrote, under its own name or another.

    Raises:
        StoreError: it did not write this.
    """
    try:
        if document["format"] != FORMAT:
            raise ValueError(f"its format is {document['format']!r}")
        space = MemorySpace(_require_str(document["namespace"]) if namespace is None else namespace)
        operations = map(operation_from_json, document["operations"])
        space.bank = MemoryBank.replay(space.namespace, operations)
        space.restore([_ingested_from_json(entry, space.bank.version) for entry in document["sessions"]])
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"not an exported namespace ({error}): expected a file of format {FORMAT!r}, as "
            "python -m memory_program.bank export writes it"
        ) from error
    return space


def _ingested_from_json(entry: NamespaceJson, newest: int) -> IngestedSession:
    session = session_from_json(json.dumps(entry["session"]))
    version = entry["version"]
    if type(version) is not int or not 0 <= version <= newest:
        raise ValueError(f"version {version!r} of {session.session_id} is none of 0 to {newest}")
    return IngestedSession(session, version, record_from_json(json.dumps(entry["record"])))


def _require_str(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
