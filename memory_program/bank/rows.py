"""The SQL of a store: each function runs inside a transaction that the caller opened.

A damaged row raises a ValueError, KeyError or TypeError.
"""

import json
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, Table, bindparam, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from memory_program.bank.db_schema import META, NAMESPACES, OPERATIONS, SESSIONS, SNAPSHOTS, VECTORS
from memory_program.bank.memory import Operation, operation_from_json, operation_to_json
from memory_program.bank.record_json import (
    record_from_json,
    record_to_json,
    session_from_json,
    session_to_json,
)
from memory_program.bank.space import IngestedSession
from memory_program.core.errors import ConflictError, SessionConflictError

_LOOKUP_BATCH = 500
_SNAPSHOT_CHUNK_BYTES = 32 * 2**20  # in one row; both databases refuse rows of more than a gigabyte
_MODEL_KEYS = ("embedding_model", "embedding_dimension")
# made once, since every search of a server reads it
_REVISION = select(NAMESPACES.c.revision).where(NAMESPACES.c.name == bindparam("name"))

# -- reading -------------------------------------------------------------------------------------


def read_namespaces(connection: Connection) -> list[str]:
    """Read the names of the namespaces, sorted."""
    return sorted(connection.scalars(select(NAMESPACES.c.name)))


_DELETED_REVISION = "deleted_revision"  # the largest of a namespace that was deleted
_REWRITE_OWED = "rewrite_owed"  # while bytes of deleted rows may be in the files; it names no namespace


def read_revision(connection: Connection, namespace: str) -> int:
    """Read the revision of a namespace, which rises with every write: 0 for a new one."""
    return connection.scalar(_REVISION, {"name": namespace}) or 0


def read_latest_version(connection: Connection, namespace: str) -> int:
    """Read the version of the log without retracted operations: 0 if it is empty."""
    found = connection.scalar(
        select(func.max(OPERATIONS.c.version)).where(*_not_retracted(OPERATIONS, namespace))
    )
    return found or 0


def read_operations(
    connection: Connection, namespace: str, *, since: int = 0, until: int | None = None
) -> list[Operation]:
    """Read the operations that are not retracted, oldest first.

    Args:
        connection: of the transaction.
        namespace: whose log.
        since: leave out operations up to this version.
        until: leave out operations after this version.
    """
    query = select(OPERATIONS.c.operation).where(*_not_retracted(OPERATIONS, namespace))
    query = query.where(OPERATIONS.c.version > since).order_by(OPERATIONS.c.version)
    rows = connection.scalars(query if until is None else query.where(OPERATIONS.c.version <= until))
    return [operation_from_json(json.loads(row)) for row in rows]


def was_rewound(connection: Connection, namespace: str, revision: int, version: int) -> bool:
    """Say whether an operation up to a version was retracted after a revision."""
    is_undone = (OPERATIONS.c.version <= version, OPERATIONS.c.retracted > revision)
    query = select(OPERATIONS.c.version).where(OPERATIONS.c.namespace == namespace, *is_undone)
    return connection.scalar(query.limit(1)) is not None


def read_snapshot_parts(connection: Connection, namespace: str) -> dict[str, bytes]:
    """Read the parts of the snapshot of a namespace; empty if there is none."""
    query = select(SNAPSHOTS.c.part, SNAPSHOTS.c.data).where(SNAPSHOTS.c.namespace == namespace)
    pieces: dict[str, list[bytes]] = {}
    for part, data in connection.execute(query.order_by(SNAPSHOTS.c.part, SNAPSHOTS.c.piece)):
        pieces.setdefault(part, []).append(data)
    return {part: found[0] if len(found) == 1 else b"".join(found) for part, found in pieces.items()}


def read_sessions(connection: Connection, namespace: str) -> list[IngestedSession]:
    """Read the sessions that are not retracted, in the order in which they were ingested."""
    query = select(SESSIONS.c.session, SESSIONS.c.version, SESSIONS.c.record)
    rows = connection.execute(query.where(*_not_retracted(SESSIONS, namespace)).order_by(SESSIONS.c.position))
    return [
        IngestedSession(session_from_json(session), version, record_from_json(record))
        for session, version, record in rows
    ]


def find_session_position(connection: Connection, namespace: str, session_id: str) -> tuple[int, int] | None:
    """Read the position of a session, and the version of the bank after the session before it."""
    query = select(SESSIONS.c.session_id, SESSIONS.c.position, SESSIONS.c.version)
    rows = connection.execute(query.where(*_not_retracted(SESSIONS, namespace)).order_by(SESSIONS.c.position))
    version_before = 0
    for known_id, position, version in rows:
        if known_id == session_id:
            return position, version_before
        version_before = version
    return None


def read_retracted_operations(connection: Connection, namespace: str) -> list[tuple[int, Operation]]:
    """Read the retracted operations, each with the revision of its rewind, in that order."""
    query = select(OPERATIONS.c.retracted, OPERATIONS.c.operation).where(
        OPERATIONS.c.namespace == namespace, OPERATIONS.c.retracted > 0
    )
    rows = connection.execute(query.order_by(OPERATIONS.c.retracted, OPERATIONS.c.version))
    return [(revision, operation_from_json(json.loads(row))) for revision, row in rows]


def read_vectors(connection: Connection, namespace: str) -> dict[str, NDArray[np.float32]]:
    """Read the vectors of a namespace by the digest of their texts."""
    query = select(VECTORS.c.digest, VECTORS.c.vector).where(VECTORS.c.namespace == namespace)
    return {digest: np.frombuffer(vector, dtype="<f4") for digest, vector in connection.execute(query)}


def read_embedding_model(connection: Connection, *, is_kept: bool = False) -> tuple[str, int] | None:
    """Read the model and the dimension of the stored vectors; None if there are none yet.

    With ``is_kept`` nobody else can delete them before the end of the transaction.
    """
    query = select(META.c.key, META.c.value).where(META.c.key.in_(_MODEL_KEYS))
    query = query.with_for_update(read=True) if is_kept else query  # SQLite has one writer at a time
    recorded: dict[str, str] = dict(connection.execute(query).tuples().all())
    return (recorded[_MODEL_KEYS[0]], int(recorded[_MODEL_KEYS[1]])) if recorded else None


def unsaved_sessions(
    connection: Connection, namespace: str, sessions: Sequence[IngestedSession]
) -> list[IngestedSession]:
    """List the sessions, of those given, that the database does not have.

    Raises:
        SessionConflictError: it has a session of the same id with other content.
    """
    known: dict[str, str] = {}
    query = select(SESSIONS.c.session_id, SESSIONS.c.fingerprint).where(*_not_retracted(SESSIONS, namespace))
    for start in range(0, len(sessions), _LOOKUP_BATCH):
        ids = [ingested.session.session_id for ingested in sessions[start : start + _LOOKUP_BATCH]]
        known.update(connection.execute(query.where(SESSIONS.c.session_id.in_(ids))).tuples().all())
    for ingested in sessions:
        session = ingested.session
        if known.get(session.session_id, session.fingerprint) != session.fingerprint:
            raise SessionConflictError(
                f"{session.session_id!r} of namespace {namespace!r} was saved with other content; nothing "
                "was written: give the new session a number of its own, or use another namespace"
            )
    return [ingested for ingested in sessions if ingested.session.session_id not in known]


def read_notes(connection: Connection, prefix: str) -> dict[str, str]:
    """Read the notes whose keys begin with a prefix, by key."""
    query = select(META.c.key, META.c.value).where(META.c.key.startswith(prefix, autoescape=True))
    return dict(connection.execute(query.order_by(META.c.key)).tuples().all())


# -- writing -------------------------------------------------------------------------------------


def advance_revision(connection: Connection, namespace: str, revision: int) -> int:
    """Move a namespace from the revision that was loaded (0 if it was new) to the next, and return that.

    A new namespace begins above the revisions of all that were deleted: whoever still holds a deleted one
    under the same name can neither take it for the new one nor save it.

    Raises:
        ConflictError: it is at another revision.
    """
    if revision == 0:
        first = _read_last_deleted_revision(connection) + 1
        try:
            connection.execute(insert(NAMESPACES), {"name": namespace, "revision": first})
        except IntegrityError as error:
            raise ConflictError(_conflict_message(namespace, "before it was first saved")) from error
        return first
    loaded = (NAMESPACES.c.name == namespace, NAMESPACES.c.revision == revision)
    if connection.execute(update(NAMESPACES).where(*loaded).values(revision=revision + 1)).rowcount != 1:
        raise ConflictError(_conflict_message(namespace, f"revision {revision}"))
    return revision + 1


def keep_deleted_revision(connection: Connection, revision: int) -> None:
    """Record the revision of a namespace that is deleted; see ``advance_revision``."""
    if revision > _read_last_deleted_revision(connection):
        connection.execute(delete(META).where(META.c.key == _DELETED_REVISION))
        connection.execute(insert(META), {"key": _DELETED_REVISION, "value": str(revision)})


def _read_last_deleted_revision(connection: Connection) -> int:
    return int(connection.scalar(select(META.c.value).where(META.c.key == _DELETED_REVISION)) or 0)


def record_rewrite(connection: Connection, *, is_owed: bool) -> bool:
    """Record if bytes of deleted rows may be in the files, and return what was recorded before."""
    was_owed = connection.execute(delete(META).where(META.c.key == _REWRITE_OWED)).rowcount > 0
    if is_owed:
        connection.execute(insert(META), {"key": _REWRITE_OWED, "value": "1"})
    return was_owed


def increment_revision(connection: Connection, namespace: str) -> int | None:
    """Move a namespace from any revision to the next, and return that; None if it was never saved."""
    step = update(NAMESPACES).where(NAMESPACES.c.name == namespace)
    return connection.scalar(step.values(revision=NAMESPACES.c.revision + 1).returning(NAMESPACES.c.revision))


def mark_retracted(
    connection: Connection, namespace: str, version: int, revision: int, *, position: int | None = None
) -> None:
    """Mark the operations after a version, and the sessions that made any of them, as retracted.

    Sessions without such an operation stay. With a ``position``, all sessions from that position on are
    retracted.
    """
    is_later = SESSIONS.c.position >= (0 if position is None else position)
    if position is None:
        undone = read_operations(connection, namespace, since=version)
        is_later = SESSIONS.c.session_id.in_({operation.provenance.session_id for operation in undone})
    for table, later in ((OPERATIONS, OPERATIONS.c.version > version), (SESSIONS, is_later)):
        connection.execute(
            update(table).where(*_not_retracted(table, namespace), later).values(retracted=revision)
        )
    kept = update(SESSIONS).where(*_not_retracted(SESSIONS, namespace), SESSIONS.c.version > version)
    connection.execute(kept.values(version=version))
    connection.execute(
        delete(SNAPSHOTS).where(SNAPSHOTS.c.namespace == namespace, SNAPSHOTS.c.version > version)
    )


def replace_snapshot(
    connection: Connection, namespace: str, version: int, parts: Mapping[str, bytes]
) -> None:
    """Replace the snapshot of a namespace."""
    connection.execute(delete(SNAPSHOTS).where(SNAPSHOTS.c.namespace == namespace))
    for part, whole in parts.items():
        for piece, start in enumerate(range(0, max(len(whole), 1), _SNAPSHOT_CHUNK_BYTES)):
            data = whole[start : start + _SNAPSHOT_CHUNK_BYTES]
            row = {"namespace": namespace, "part": part, "piece": piece, "version": version, "data": data}
            connection.execute(insert(SNAPSHOTS), row)


def insert_operations(connection: Connection, namespace: str, operations: Sequence[Operation]) -> None:
    """Append operations to the log."""
    rows = [
        {
            "namespace": namespace,
            "version": operation.version,
            "retracted": 0,
            "operation": json.dumps(operation_to_json(operation)),
        }
        for operation in operations
    ]
    if rows:
        connection.execute(insert(OPERATIONS), rows)


def append_sessions(connection: Connection, namespace: str, sessions: Sequence[IngestedSession]) -> None:
    """Append sessions after those that are not retracted."""
    if not sessions:
        return
    query = select(func.max(SESSIONS.c.position)).where(*_not_retracted(SESSIONS, namespace))
    last = connection.scalar(query)
    first_position = 0 if last is None else last + 1
    rows = [
        {
            "namespace": namespace,
            "session_id": ingested.session.session_id,
            "retracted": 0,
            "position": position,
            "version": ingested.version,
            "fingerprint": ingested.session.fingerprint,
            "session": session_to_json(ingested.session),
            "record": record_to_json(ingested.record),
        }
        for position, ingested in enumerate(sessions, start=first_position)
    ]
    connection.execute(insert(SESSIONS), rows)


def insert_note(connection: Connection, key: str, value: str) -> None:
    """Insert a note, unless there is one with this key."""
    if connection.scalar(select(META.c.key).where(META.c.key == key)) is None:
        connection.execute(insert(META), {"key": key, "value": value})


def insert_vectors(
    connection: Connection, namespace: str, vectors: Mapping[str, NDArray[np.float32]]
) -> None:
    """Insert the vectors that are not stored yet; equal texts have equal vectors, so old ones stay."""
    digests = list(vectors)
    for start in range(0, len(digests), _LOOKUP_BATCH):
        batch = digests[start : start + _LOOKUP_BATCH]
        here = (VECTORS.c.namespace == namespace, VECTORS.c.digest.in_(batch))
        known = set(connection.scalars(select(VECTORS.c.digest).where(*here)))
        rows = [
            {"namespace": namespace, "digest": digest, "vector": vectors[digest].astype("<f4").tobytes()}
            for digest in batch
            if digest not in known
        ]
        if rows:
            connection.execute(insert(VECTORS), rows)


def lock_embedding_model(connection: Connection) -> None:
    """Wait until no other transaction may record the model of the vectors; then none does before the end."""
    connection.execute(select(META.c.value).where(META.c.key == "schema_version").with_for_update())


def insert_embedding_model(connection: Connection, model: str, dimension: int) -> None:
    """Record the model of the stored vectors, after ``lock_embedding_model``."""
    values = zip(_MODEL_KEYS, (model, str(dimension)), strict=True)
    connection.execute(insert(META), [{"key": key, "value": value} for key, value in values])


def delete_vectors(connection: Connection) -> None:
    """Delete every vector, and the record of their model."""
    # the record first: this waits for those who add vectors of the model
    connection.execute(delete(META).where(META.c.key.in_(_MODEL_KEYS)))
    connection.execute(delete(VECTORS))


def _not_retracted(table: Table, namespace: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return table.c.namespace == namespace, table.c.retracted == 0


def _conflict_message(namespace: str, loaded: str) -> str:
    return (
        f"namespace {namespace!r} was saved by another writer since it was loaded ({loaded}); nothing was "
        "written: load it again and ingest the session again"
    )
