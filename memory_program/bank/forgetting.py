"""Forgetting a namespace for good: its rows, and the bytes that deleted rows leave behind.

A database marks what is deleted as free, and overwrites it some day. Here the tables are written anew
without it, at once: SQLite by ``VACUUM`` and a checkpoint that empties the write-ahead log, PostgreSQL by
``VACUUM FULL``. What was copied before, to backups, replicas or PostgreSQL's archive of its log, is theirs to
forget.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from sqlalchemy import ColumnElement, Connection, Table, delete, select

from memory_program.bank.database import Database, check_exists
from memory_program.bank.schema import META, NAMESPACES, OPERATIONS, SESSIONS

_CONTENT = frozenset({"text", "caption", "core", "image_query"})
_BUSY_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Forgotten:
    """How many rows a namespace had, by table; all zero if the database did not know it."""

    rows: dict[str, int]

    @property
    def was_known(self) -> bool:
        """Whether there was anything to forget."""
        return any(self.rows.values())


def forget(url: str, namespace: str) -> Forgotten:
    """Delete everything of a namespace from a database, retracted rows included, and what deleting leaves.

    Safe to repeat: a second call finds no rows, and clears free pages once more.

    Raises:
        StoreError: there is no such database, or it is in use; the message says what was done by then.
    """
    check_exists(url)
    database = Database(url, _BUSY_TIMEOUT_S)
    try:
        with database.writing() as connection:
            found = {
                table.name: connection.execute(delete(table).where(_of(table, namespace))).rowcount
                for table in _tables()
            }
        database.rewrite([table.name for table in NAMESPACES.metadata.tables.values()])
        return Forgotten(found)
    finally:
        database.close()


def texts_of(url: str, *, suffix: str) -> tuple[dict[str, set[str]], set[str]]:
    """Collect what is told and remembered in some namespaces: the words to look for wherever copies may be.

    Args:
        url: the database.
        suffix: which namespaces: that of this name, or any that ends in it after a slash.

    Returns:
        the texts of each of those namespaces, by name, and the texts of all others.

    Raises:
        StoreError: there is no such database, or it fails.
    """
    check_exists(url)
    database = Database(url, _BUSY_TIMEOUT_S)
    wanted: dict[str, set[str]] = {}
    others: set[str] = set()
    try:
        with database.reading() as connection:
            for name in connection.scalars(select(NAMESPACES.c.name)):
                texts = set(_texts(connection, name))
                if name == suffix or name.endswith(f"/{suffix}"):
                    wanted[name] = texts
                else:
                    others |= texts
        return wanted, others
    finally:
        database.close()


def _tables() -> Iterator[Table]:
    """Every table that has rows of a namespace, whichever they are: the one of the names comes last."""
    for table in NAMESPACES.metadata.sorted_tables:
        if table is not META and table is not NAMESPACES:
            yield table
    yield NAMESPACES


def _of(table: Table, namespace: str) -> ColumnElement[bool]:
    return (NAMESPACES.c.name if table is NAMESPACES else table.c.namespace) == namespace


def _texts(connection: Connection, namespace: str) -> Iterator[str]:
    for column in (OPERATIONS.c.operation, SESSIONS.c.session):
        for document in connection.scalars(select(column).where(_of(column.table, namespace))):
            yield from _contents(json.loads(document))


def _contents(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for name, member in cast(dict[str, object], value).items():
            if name in _CONTENT and isinstance(member, str):
                yield from member.splitlines()
            else:
                yield from _contents(member)
    elif isinstance(value, list):
        for element in cast(list[object], value):
            yield from _contents(element)
