"""Connections to SQLite or PostgreSQL; every failure is a ``StoreError`` without a password in it."""

import re
import sqlite3
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, String, create_engine, event, inspect, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from memory_program.bank.db_schema import META, create_schema, has_schema
from memory_program.core.errors import StoreError

_DRIVERS = {
    "sqlite": "sqlite",
    "sqlite+pysqlite": "sqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
_STATISTICS = "pg_catalog.pg_statistic"
_SNAPSHOT_WAIT_S = 0.5  # before a table is rewritten again
_NUMBER = re.compile(r"\d+")
_NOTHING_WRITTEN = "nothing was written"
_BYTES_LEFT = "the rows are deleted, but their bytes are not yet: run the same command again"


class Database:
    """One database with the tables of a store, which are created in a new one. Any thread may use it.

    Every method raises a StoreError if the database fails.
    """

    def __init__(self, url: str, busy_timeout_s: float) -> None:
        """Open a database.

        Raises:
            SchemaVersionError: its tables are of another version.
            StoreError: the URL names no database that can be opened.
        """
        parsed = _parse_url(url)
        self.where = parsed.set(query={}).render_as_string(hide_password=True)  # the query may hold one, too
        self._busy_timeout_s = busy_timeout_s
        self._engine = _engine(parsed, busy_timeout_s)
        is_sqlite = self._engine.dialect.name == "sqlite"
        # SQLite has one writer at a time: threads queue here, since its own waiting is by polling.
        self._writer: AbstractContextManager[bool | None] = threading.Lock() if is_sqlite else nullcontext()
        try:
            with self.reading() as connection:
                is_ready = has_schema(connection, self.where)
            if not is_ready:
                with self.writing() as connection:
                    create_schema(connection)
        except StoreError:
            self.close()
            raise

    @contextmanager
    def reading(self) -> Generator[Connection]:
        """Open a read transaction: it sees one state of the database throughout."""
        with self._as_store_errors(), self._engine.connect() as connection:
            if connection.dialect.name == "postgresql":
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextmanager
    def writing(self) -> Generator[Connection]:
        """Open a write transaction: all of it is written at the end, or nothing.

        Raises:
            StoreError: the database stays locked for longer than the busy timeout.
        """
        with (
            self._as_store_errors(),
            self._writer,
            self._engine.connect() as connection,
            connection.execution_options(is_writing=True).begin(),
        ):
            yield connection

    def vacuum(self, tables: Sequence[str]) -> str:
        """Rewrite the tables, so that no deleted bytes stay in free pages or in SQLite's write-ahead log.

        Returns:
            what only the owner of the database can rewrite, and how; empty if nothing is left.

        Raises:
            StoreError: the database is in use, or fails; nothing is lost, and it can be tried again.
        """
        with self._as_store_errors(_BYTES_LEFT):
            if self._engine.dialect.name == "postgresql":
                with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                    return self._vacuum_postgres(connection, tables)
            connection = self._engine.raw_connection()
            try:
                assert isinstance(connection.driver_connection, sqlite3.Connection)
                is_whole = vacuum_sqlite(connection.driver_connection)
            except sqlite3.Error as error:
                raise StoreError(self._explain_failure(str(error), _BYTES_LEFT)) from error
            finally:
                connection.close()
        if not is_whole:
            raise StoreError(
                f"{self.where} is being read by another process: the rows are deleted, but their bytes are "
                "still in the write-ahead log; end that process and run the same command again"
            )
        return ""

    def _vacuum_postgres(self, connection: Connection, tables: Sequence[str]) -> str:
        """Remove the bytes of deleted rows from the tables and from the planner's statistics.

        ``VACUUM FULL`` keeps a deleted row as long as any older transaction may still see it, and passes over
        a table of somebody else. It only says so, in messages to the client.
        """
        columns, until = inspect(connection).get_columns, time.monotonic() + self._busy_timeout_s
        for table in tables:
            for column in columns(table):
                if isinstance(column["type"], String):  # setting the type, even to the same, drops statistics
                    kind = column["type"].compile(connection.dialect)
                    connection.exec_driver_sql(f"ALTER TABLE {table} ALTER {column['name']} TYPE {kind}")
        kept_rows: int | None = 0
        for table in (*tables, _STATISTICS):
            while kept_rows := _vacuum_full(connection, table):
                if time.monotonic() >= until:
                    raise StoreError(
                        f"an older transaction, a prepared one or a replica may still read deleted rows of "
                        f"{table} in {self.where}: end it; {_BYTES_LEFT}"
                    )
                time.sleep(_SNAPSHOT_WAIT_S)
        if kept_rows is not None:
            return ""
        return (
            "PostgreSQL's statistics may hold samples of it: ask the owner of the database for "
            f"VACUUM (FULL) {_STATISTICS}"
        )

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    @contextmanager
    def _as_store_errors(self, done: str = _NOTHING_WRITTEN) -> Generator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            raise StoreError(self._explain_failure(str(cause), done)) from error

    def _explain_failure(self, cause: str, done: str) -> str:
        cause = " ".join(cause.split())
        if "database is locked" in cause or "lock timeout" in cause:
            is_writing = done == _NOTHING_WRITTEN
            way_out = (
                ": end the other writer, or try again with a longer busy_timeout_s" if is_writing else ""
            )
            return (
                f"{self.where} is locked by another process and was not freed in {self._busy_timeout_s} s; "
                f"{done}{way_out}"
            )
        if "not a database" in cause:
            return (
                f"{self.where} is not a database: give the URL of a store, or of a file that does not exist; "
                "if it was a store, restore it from a backup"
            )
        if "malformed" in cause:
            return f"{self.where} is damaged ({cause}), {done}: restore it from a backup"
        if "unable to open" in cause or "readonly" in cause:
            return (
                f"{self.where} cannot be opened for writing ({cause}): its folder must exist and be writable"
            )
        return f"{self.where} failed ({cause}); {done}"


def _vacuum_full(connection: Connection, table: str) -> int | None:
    """Rewrite a table of PostgreSQL.

    Returns:
        the number of deleted rows that it still holds, which PostgreSQL tells in a message to the client;
        None if it passed over the table, which belongs to somebody else.
    """
    details: list[str] = []
    driver: Any = connection.connection.driver_connection  # Any: psycopg is optional

    def hear(message: Any) -> None:  # Any: as above  # noqa: ANN401
        details.extend(filter(None, [message.message_detail]))

    driver.add_notice_handler(hear)
    try:
        connection.exec_driver_sql(f"VACUUM (FULL, VERBOSE) {table}")
    finally:
        driver.remove_notice_handler(hear)
    # "5 dead row versions cannot be removed yet", in the language of the server
    numbers = [int(found[0]) for found in map(_NUMBER.search, details) if found is not None]
    return sum(numbers) if numbers else None


def vacuum_sqlite(connection: sqlite3.Connection) -> bool:
    """Rewrite a database without free pages, and empty its log; False if a reader still uses the log."""
    connection.execute("VACUUM")
    busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def check_database_exists(url: str) -> None:
    """Check that the file of an SQLite URL exists and has banks; opening it would create them.

    Raises:
        StoreError: there is no such file, or no bank in it, or this is not a database URL.
    """
    parsed = _parse_url(url)
    if parsed.get_backend_name() != "sqlite" or parsed.database in (None, "", ":memory:"):
        return
    file = Path(str(parsed.database))
    has_banks = file.is_file()
    if has_banks and not file.stat().st_size:
        raise StoreError(f"{parsed.database!r} is empty: give the URL of the database that has the banks")
    # a file that cannot be read as a database is left to the error of its opening
    with (
        suppress(sqlite3.Error),
        closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as db,
    ):
        has_banks = (META.name,) in db.execute("SELECT name FROM sqlite_master").fetchall()
    if not has_banks:
        raise StoreError(f"no banks are in {parsed.database!r}: give the URL of the database that has them")


def _parse_url(url: str) -> URL:
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() == "sqlite":
            parsed.get_dialect()().create_connect_args(parsed)
    except (ArgumentError, ValueError):  # ValueError: a port or ?timeout= that is not a number
        parsed = None  # the error is not chained, since it may show a part of the password
    if parsed is None or (parsed.get_backend_name() == "sqlite" and parsed.host):  # sqlite://my.sqlite
        shown = "the text given" if "@" in url else repr(url)
        raise StoreError(
            f"{shown} is not a database URL: for a file write sqlite:///path/to/bank.sqlite, "
            "for a server postgresql://user@host/name"
        )
    if parsed.drivername not in _DRIVERS:
        raise StoreError(f"unknown database {parsed.drivername!r}: choose from {', '.join(_DRIVERS)}")
    return parsed.set(drivername=_DRIVERS[parsed.drivername])


def _engine(url: URL, busy_timeout_s: float) -> Engine:
    if url.get_backend_name() == "postgresql":
        timeout_ms = max(int(busy_timeout_s * 1000), 1)  # 0 would wait for ever
        options = f"{url.query.get('options', '')} -c lock_timeout={timeout_ms}".strip()
        try:
            return create_engine(url, hide_parameters=True, connect_args={"options": options})
        except ModuleNotFoundError as error:
            raise StoreError(
                "PostgreSQL needs the psycopg driver: pip install 'memory-program[postgres]'"
            ) from error
    is_in_memory = url.database in (None, "", ":memory:")
    engine = create_engine(
        url,
        hide_parameters=True,
        connect_args={"timeout": busy_timeout_s, "check_same_thread": False},
        poolclass=QueuePool,
        # A database in memory lives in its one connection.
        pool_size=1 if is_in_memory else 5,
        max_overflow=0 if is_in_memory else 10,
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None  # the driver's own transactions begin too late: see begin
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")  # saved data survives a power failure
        connection.execute("PRAGMA secure_delete=ON")  # deleted bytes are overwritten, not only marked free

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A write lock is taken at the start: a reader that turns writer is refused without any waiting.
        is_writing = connection.get_execution_options().get("is_writing", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writing else "BEGIN")

    return engine
