"""The tables of a store, and the version that says how to read them.

Every text that comes from a conversation is inside a JSON document with escapes, so no character of it (a
NUL byte, half a surrogate pair) can upset a database.
"""

from sqlalchemy import (
    Column,
    Connection,
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
_ADVISORY_LOCK = 7_203_115_417  # any number that nobody else is likely to use

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
# ``retracted`` is 0, or the revision whose rewind took the row back: one log is in force, the rest is kept.
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
# What ``snapshot.Snapshot`` wrote of the newest large version of a bank; all of it is in the log as well.
SNAPSHOTS = Table(
    "memory_snapshots",
    _metadata,
    Column("namespace", Text, primary_key=True),
    Column("part", String(64), primary_key=True),
    Column("piece", Integer, primary_key=True, autoincrement=False),
    Column("version", Integer, nullable=False),
    Column("data", LargeBinary, nullable=False),
)


def has_schema(connection: Connection, where: str) -> bool:
    """Say whether the database holds every table of a store that this code can read.

    Raises:
        SchemaVersionError: it holds those of another version.
    """
    if not inspect(connection).has_table(META.name):
        return False
    found = connection.scalar(select(META.c.value).where(META.c.key == "schema_version"))
    if found == str(SCHEMA_VERSION):
        return inspect(connection).has_table(SNAPSHOTS.name)  # added within this version
    is_newer = found is not None and found.isdecimal() and int(found) > SCHEMA_VERSION
    way_out = (
        "update memory-program" if is_newer else "open it with the version of memory-program that wrote it"
    )
    raise SchemaVersionError(
        f"{where} has schema version {found!r}, this code reads {SCHEMA_VERSION}: {way_out}, "
        "or give the URL of a new database"
    )


def create_schema(connection: Connection) -> None:
    """Create the tables that are missing, in a transaction in which nobody else can."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK})
    is_new = not inspect(connection).has_table(META.name)
    _metadata.create_all(connection)
    if is_new:
        connection.execute(insert(META), {"key": "schema_version", "value": str(SCHEMA_VERSION)})
