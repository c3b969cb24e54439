"""The tables of a store, and their schema version.

Every text of a conversation is inside a JSON document with escapes, so that no character of it (a NUL byte,
half a surrogate pair) is refused by a database.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    insert,
    inspect,
    select,
    text,
)

from memory_program.core.errors import SchemaVersionError

SCHEMA_VERSION = 1
_ADVISORY_LOCK = 7_203_115_417  # an arbitrary number

_metadata = MetaData()

META = Table(
    "memory_meta",
    _metadata,
    Column("key", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)
NAMESPACES = Table(
    "memory_namespaces",
    _metadata,
    Column("name", Text, primary_key=True),
    Column("revision", Integer, nullable=False),
)
# ``retracted`` is 0, or the revision of the rewind that undid the row.
OPERATIONS = Table(
    "memory_operations",
    _metadata,
    Column("namespace", Text, primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("retracted", Integer, primary_key=True, autoincrement=False),
    Column("operation", Text, nullable=False),
)
SESSIONS = Table(
    "memory_sessions",
    _metadata,
    Column("namespace", Text, primary_key=True),
    Column("session_id", Text, primary_key=True),
    Column("retracted", Integer, primary_key=True, autoincrement=False),
    Column("position", Integer, nullable=False),
    Column("version", Integer, nullable=False),
    Column("fingerprint", String(64), nullable=False),
    Column("session", Text, nullable=False),
    Column("record", Text, nullable=False),
)
VECTORS = Table(
    "memory_vectors",
    _metadata,
    Column("namespace", Text, primary_key=True),
    Column("digest", String(64), primary_key=True),
    Column("vector", LargeBinary, nullable=False),
)
# The parts of a ``snapshot.Snapshot`` of a large bank; the log holds all of it as well.
SNAPSHOTS = Table(
    "memory_snapshots",
    _metadata,
    Column("namespace", Text, primary_key=True),
    Column("part", String(64), primary_key=True),
    Column("piece", Integer, primary_key=True, autoincrement=False),
    Column("version", Integer, nullable=False),
    Column("data", LargeBinary, nullable=False),
)
# Turns that no agent has written yet (see ``turn_buffer``). ``session`` is NULL while a session is open.
# A process claims a session for seconds while it writes it, so that no other calls the model for it as well.
# A position is never used twice, not even in SQLite: an old id such as ``new:1`` must not name a later turn.
TURNS = Table(
    "memory_turns",
    _metadata,
    Column("position", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("namespace", Text, nullable=False, index=True),
    Column("session", Integer),
    Column("said_at", Float, nullable=False),
    Column("added_at", Float, nullable=False),
    Column("chars", Integer, nullable=False),
    Column("turn", Text, nullable=False),
    Column("claimed_by", String(32)),
    Column("claimed_until", Float),
    sqlite_autoincrement=True,
)
# The answers to requests with a key of their own, so that a repeated one changes nothing.
REQUESTS = Table(
    "memory_requests",
    _metadata,
    Column("namespace", Text, primary_key=True),
    Column("key", String(200), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("response", Text, nullable=False),
    Column("added_at", Float, nullable=False),
)
# The tokens of a server, by their hashes.
TOKENS = Table(
    "memory_tokens",
    _metadata,
    Column("token_id", String(16), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("scope", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("revoked_at", Float),
)


def has_schema(connection: Connection, where: str) -> bool:
    """Say whether the database has all tables of a store, with their columns.

    Raises:
        SchemaVersionError: they are of another schema version.
    """
    if not inspect(connection).has_table(META.name):
        return False
    found = connection.scalar(select(META.c.value).where(META.c.key == "schema_version"))
    if found == str(SCHEMA_VERSION):
        # both were added within this version
        return not _missing_columns(connection) and not _reuses_positions(connection)
    is_newer = found is not None and found.isdecimal() and int(found) > SCHEMA_VERSION
    way_out = (
        "update memory-program" if is_newer else "open it with the version of memory-program that wrote it"
    )
    raise SchemaVersionError(
        f"{where} has schema version {found!r}, this code reads {SCHEMA_VERSION}: {way_out}, "
        "or give the URL of a new database"
    )


def create_schema(connection: Connection) -> None:
    """Create the missing tables and columns, in the current form; on PostgreSQL one process at a time."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK})
    is_new = not inspect(connection).has_table(META.name)
    _metadata.create_all(connection)
    for column in _missing_columns(connection):  # each added one may be NULL
        kind = column.type.compile(connection.dialect)
        connection.execute(text(f"ALTER TABLE {column.table.name} ADD COLUMN {column.name} {kind}"))
    if _reuses_positions(connection):  # SQLite cannot alter this
        waiting = [dict(row) for row in connection.execute(select(TURNS)).mappings()]
        TURNS.drop(connection)
        TURNS.create(connection)
        if waiting:
            connection.execute(insert(TURNS), waiting)
    if is_new:
        connection.execute(insert(META), {"key": "schema_version", "value": str(SCHEMA_VERSION)})


def _missing_columns(connection: Connection) -> list[Column[Any]]:  # Any: of any type
    found = inspect(connection).get_multi_columns(filter_names=list(_metadata.tables))
    names = {(table, column["name"]) for (_, table), columns in found.items() for column in columns}
    every = (column for table in _metadata.sorted_tables for column in table.columns)
    return [column for column in every if (column.table.name, column.name) not in names]


def _reuses_positions(connection: Connection) -> bool:
    """Say if the turns are in a table of SQLite whose positions begin again once no turn waits."""
    if connection.dialect.name != "sqlite":
        return False
    made = text("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = :name")
    return "AUTOINCREMENT" not in (connection.scalar(made, {"name": TURNS.name}) or "AUTOINCREMENT")
