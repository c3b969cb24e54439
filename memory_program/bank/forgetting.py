"""Erasure of a namespace: its rows, and the bytes that deleted rows leave in the files of a database.

A database only marks deleted rows as free space. Here the tables are rewritten without them: SQLite by
``VACUUM`` and a checkpoint that empties the write-ahead log, PostgreSQL by ``VACUUM FULL``. Backups, replicas
and PostgreSQL's archived logs keep their copies.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import cast

from sqlalchemy import ColumnElement, Table, delete, select, union

from memory_program.bank.db_engine import Database, check_database_exists
from memory_program.bank.db_schema import (
    NAMESPACES,
    OPERATIONS,
    REQUESTS,
    SESSIONS,
    SNAPSHOTS,
    TURNS,
    VECTORS,
)
from memory_program.bank.rows import keep_deleted_revision, read_revision, record_rewrite

_SETTINGS = re.compile(r"[0-9a-f]{12}/(?=.)")
_CAPTIONS = frozenset({"caption", "image_query"})
_CONTENT = frozenset({"text", "core"}) | _CAPTIONS
_BUSY_TIMEOUT_S = 10.0
# In the order in which writers change them: an erasure that waits for one of them holds none that it needs.
_ERASED = (NAMESPACES, OPERATIONS, SESSIONS, SNAPSHOTS, VECTORS, TURNS, REQUESTS)


@dataclass(frozen=True, slots=True)
class DeletedRows:
    """The number of deleted rows by table; all zero if the namespace was not in the database.

    ``left`` says what is left to somebody else; it is empty if no byte is. ``had_bytes_left`` is True if an
    earlier erasure, of any namespace, had deleted its rows and left their bytes in the files.
    """

    rows: dict[str, int]
    left: str = ""
    had_bytes_left: bool = False

    @property
    def was_known(self) -> bool:
        """True if any row was deleted."""
        return any(self.rows.values())


@dataclass(frozen=True, slots=True)
class ConversationText:
    """The lines of a conversation and of its memories, by which copies of them are recognized.

    ``banks`` are the names of its banks, ``captions`` the lines among ``texts`` that are captions of images,
    ``texts_elsewhere`` the lines of all other conversations.
    """

    banks: list[str] = field(default_factory=list[str])
    texts: set[str] = field(default_factory=set[str])
    texts_elsewhere: set[str] = field(default_factory=set[str])
    captions: set[str] = field(default_factory=set[str])

    def add(self, document: object, *, is_same_conversation: bool) -> None:
        """Add the lines of an operation or a session, of this conversation or of another one."""
        (self.texts if is_same_conversation else self.texts_elsewhere).update(
            _iter_content_lines(document, _CONTENT)
        )
        self.captions.update(_iter_content_lines(document, _CAPTIONS) if is_same_conversation else ())


def namespace_conversation_id(namespace: str) -> str:
    """Return the conversation id of a namespace: runs put a hash of their settings before it.

    Example:
        >>> namespace_conversation_id("0123456789ab/conv-26"), namespace_conversation_id("acme/alice")
        ('conv-26', 'acme/alice')
    """
    settings = _SETTINGS.match(namespace)
    return namespace[settings.end() :] if settings is not None else namespace


def forget_namespace(
    url: str, namespace: str, on_deleted: Callable[[DeletedRows], object] | None = None
) -> DeletedRows:
    """Erase a namespace from a database, including retracted rows and the bytes of deleted ones.

    It is safe to repeat: a second call finds no rows, and clears free pages once more. ``on_deleted`` is
    called once the rows are gone, whatever becomes of the bytes.

    Raises:
        StoreError: there is no such database, or it is in use; the message says what was done so far.
    """
    check_database_exists(url)
    database = Database(url, _BUSY_TIMEOUT_S)
    try:
        with database.writing() as connection:
            if connection.dialect.name == "postgresql":  # SQLite has one writer at a time
                names = ", ".join(table.name for table in _ERASED)
                connection.exec_driver_sql(f"LOCK TABLE {names} IN EXCLUSIVE MODE")  # others may read
            keep_deleted_revision(connection, read_revision(connection, namespace))
            found = {
                table.name: connection.execute(delete(table).where(_in_namespace(table, namespace))).rowcount
                for table in _ERASED
            }
            was_owed = record_rewrite(connection, is_owed=False)
            if was_owed or any(found.values()):
                record_rewrite(connection, is_owed=True)
        deleted = DeletedRows(found, had_bytes_left=was_owed)
        if on_deleted is not None:
            on_deleted(deleted)
        left = database.vacuum([table.name for table in NAMESPACES.metadata.tables.values()])
        if was_owed or deleted.was_known:
            with database.writing() as connection:
                record_rewrite(connection, is_owed=False)
        return replace(deleted, left=left)
    finally:
        database.close()


def text_from_banks(url: str, conversation: str) -> ConversationText:
    """Collect the lines in all banks of a conversation, under any settings of a run.

    Raises:
        StoreError: there is no such database, or it fails.
    """
    check_database_exists(url)
    database = Database(url, _BUSY_TIMEOUT_S)
    text = ConversationText()
    try:
        with database.reading() as connection:
            # turns may wait in a namespace without a bank
            names = union(select(NAMESPACES.c.name), select(TURNS.c.namespace))
            for name in sorted(connection.scalars(names)):
                is_same = namespace_conversation_id(name) == conversation
                text.banks.extend([name] if is_same else [])
                for column in (OPERATIONS.c.operation, SESSIONS.c.session, TURNS.c.turn):
                    query = select(column).where(_in_namespace(column.table, name))
                    for document in connection.scalars(query):
                        text.add(json.loads(document), is_same_conversation=is_same)
        return text
    finally:
        database.close()


def _iter_content_lines(document: object, names: Collection[str]) -> Iterator[str]:
    """Yield the lines of the members with these names, at any depth of a JSON document."""
    if isinstance(document, dict):
        for name, member in cast(dict[str, object], document).items():
            if name in names and isinstance(member, str):
                yield from member.splitlines()
            else:
                yield from _iter_content_lines(member, names)
    elif isinstance(document, list):
        for element in cast(list[object], document):
            yield from _iter_content_lines(element, names)


def _in_namespace(table: Table, namespace: str) -> ColumnElement[bool]:
    return (NAMESPACES.c.name if table is NAMESPACES else table.c.namespace) == namespace
