"""Forgetting a namespace for good: its rows, and the bytes that deleted rows leave behind.

A database marks what is deleted as free, and overwrites it some day. Here the tables are written anew
without it, at once: SQLite by ``VACUUM`` and a checkpoint that empties the write-ahead log, PostgreSQL by
``VACUUM FULL``. What was copied before, to backups, replicas or PostgreSQL's archive of its log, is theirs to
forget.
"""

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import cast

from sqlalchemy import ColumnElement, Connection, Table, delete, select

from memory_program.bank.db_engine import Database, check_database_exists
from memory_program.bank.db_schema import META, NAMESPACES, OPERATIONS, SESSIONS

_SETTINGS = re.compile(r"[0-9a-f]{12}/(?=.)")
_CAPTIONS = frozenset({"caption", "image_query"})
_CONTENT = frozenset({"text", "core"}) | _CAPTIONS
_BUSY_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class DeletedRows:
    """How many rows a namespace had, by table; all zero if the database did not know it."""

    rows: dict[str, int]

    @property
    def was_known(self) -> bool:
        """Whether there was anything to forget."""
        return any(self.rows.values())


@dataclass(frozen=True, slots=True)
class ConversationText:
    """What is told and remembered of a conversation: the words to look for wherever copies may be.

    ``banks`` are those of the conversation by name, ``texts`` what they hold, ``captions`` which of that are
    captions, ``texts_elsewhere`` what all others hold.
    """

    banks: list[str] = field(default_factory=list[str])
    texts: set[str] = field(default_factory=set[str])
    texts_elsewhere: set[str] = field(default_factory=set[str])
    captions: set[str] = field(default_factory=set[str])

    def add(self, document: object, *, is_same_conversation: bool) -> None:
        """Take in a JSON document of an operation or a session, of the conversation or of another one."""
        (self.texts if is_same_conversation else self.texts_elsewhere).update(
            _iter_content_lines(document, _CONTENT)
        )
        self.captions.update(_iter_content_lines(document, _CAPTIONS) if is_same_conversation else ())


def namespace_conversation_id(namespace: str) -> str:
    """Give the id of the conversation that a bank is of: before it, runs write a hash of their settings.

    Example:
        >>> namespace_conversation_id("0123456789ab/conv-26"), namespace_conversation_id("acme/alice")
        ('conv-26', 'acme/alice')
    """
    settings = _SETTINGS.match(namespace)
    return namespace[settings.end() :] if settings is not None else namespace


def forget_namespace(url: str, namespace: str) -> DeletedRows:
    """Delete everything of a namespace from a database, retracted rows included, and what deleting leaves.

    Safe to repeat: a second call finds no rows, and clears free pages once more.

    Raises:
        StoreError: there is no such database, or it is in use; the message says what was done by then.
    """
    check_database_exists(url)
    database = Database(url, _BUSY_TIMEOUT_S)
    try:
        with database.writing() as connection:
            found = {
                table.name: connection.execute(delete(table).where(_in_namespace(table, namespace))).rowcount
                for table in _namespace_tables()
            }
        database.vacuum([table.name for table in NAMESPACES.metadata.tables.values()])
        return DeletedRows(found)
    finally:
        database.close()


def text_from_banks(url: str, conversation: str) -> ConversationText:
    """Collect what the banks of a conversation hold, whatever the settings that they were written with.

    Raises:
        StoreError: there is no such database, or it fails.
    """
    check_database_exists(url)
    database = Database(url, _BUSY_TIMEOUT_S)
    told = ConversationText()
    try:
        with database.reading() as connection:
            for name in connection.scalars(select(NAMESPACES.c.name)).all():
                is_of = namespace_conversation_id(name) == conversation
                for document in _iter_documents(connection, name):
                    told.add(document, is_same_conversation=is_of)
                if is_of:
                    told.banks.append(name)
        return told
    finally:
        database.close()


def _iter_content_lines(document: object, names: Collection[str]) -> Iterator[str]:
    """Yield the lines of the members of these names, at any depth of a JSON document."""
    if isinstance(document, dict):
        for name, member in cast(dict[str, object], document).items():
            if name in names and isinstance(member, str):
                yield from member.splitlines()
            else:
                yield from _iter_content_lines(member, names)
    elif isinstance(document, list):
        for element in cast(list[object], document):
            yield from _iter_content_lines(element, names)


def _namespace_tables() -> Iterator[Table]:
    """Every table that has rows of a namespace, whichever they are: the one of the names comes last."""
    for table in NAMESPACES.metadata.sorted_tables:
        if table is not META and table is not NAMESPACES:
            yield table
    yield NAMESPACES


def _in_namespace(table: Table, namespace: str) -> ColumnElement[bool]:
    return (NAMESPACES.c.name if table is NAMESPACES else table.c.namespace) == namespace


def _iter_documents(connection: Connection, namespace: str) -> Iterator[object]:
    for column in (OPERATIONS.c.operation, SESSIONS.c.session):
        for document in connection.scalars(select(column).where(_in_namespace(column.table, namespace))):
            yield json.loads(document)
