"""Durable banks: namespaces in SQLite or PostgreSQL, each an append-only log with its sessions.

A save is one transaction of whole sessions: after a crash each session is there with all its operations, or
not at all. Operations that a rewind undoes stay in the database, marked as retracted.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection

from memory_program.bank import rows
from memory_program.bank.bank import MemoryBank
from memory_program.bank.db_engine import Database, check_database_exists
from memory_program.bank.dense import DenseIndex
from memory_program.bank.memory import Operation
from memory_program.bank.memory_search import MemoryIndex
from memory_program.bank.snapshot import Snapshot
from memory_program.bank.space import MemorySpace
from memory_program.core.errors import (
    ConfigError,
    ConflictError,
    EmbeddingMismatchError,
    MemoryOperationError,
    StoreError,
)

Also = Callable[[Connection], object]
"""Writes something else within the transaction of a save or a rewind; an error of it undoes both."""

_NAME_LIMIT_CHARS = 200
_SNAPSHOT_SHARE = 10  # a log that grew by a tenth gets a new one: writing all of them takes linear time


@dataclass(frozen=True, slots=True)
class RetractedOperation:
    """An operation that a rewind undid, and the revision of the namespace after that rewind."""

    revision: int
    operation: Operation


class BankStore:
    """The banks of one database. Any thread may use a store, and any number of processes a database.

    Every method raises a StoreError if the database fails or is damaged, and a ConfigError if the name of a
    namespace is empty, too long, or has a character that cannot be printed.

    Example:
        >>> from memory_program.bank.memory import Draft, MemoryKind, Provenance
        >>> with BankStore("sqlite://") as store:
        ...     space = store.load("alice")
        ...     draft = Draft("Alice lives in Oslo.", MemoryKind.SEMANTIC)
        ...     _ = space.bank.create([draft], Provenance(actor="semantic"))
        ...     store.save(space)
        ...     print([memory.text for memory in store.load("alice").bank.live()])
        ['Alice lives in Oslo.']
    """

    def __init__(
        self,
        url: str,
        dense: DenseIndex | None = None,
        busy_timeout_s: float = 10.0,
        snapshot_every: int = 10_000,
    ) -> None:
        """Open a database, and create the tables if it is new.

        Args:
            url: ``sqlite:///path`` is a file, in WAL mode; ``sqlite://`` is a database in memory;
                ``postgresql://user@host/name`` needs the extra ``postgres``. A password may stand in the
                URL; PGPASSWORD or ~/.pgpass are safer.
            dense: Every loaded space gets an empty copy of it, with the stored vectors.
            busy_timeout_s: How long to wait for another process that is writing.
            snapshot_every: Save a snapshot of a bank, from which it is opened at once, when its log has
                grown by this many operations, and by a tenth, since the last one. 10,000 operations are
                replayed in less than a second; no ordinary conversation has as many.

        Raises:
            ConfigError: the timeout is negative, or ``snapshot_every`` below 1.
            EmbeddingMismatchError: the store holds vectors of another model or dimension.
            SchemaVersionError: the database was written by another version of the schema.
            StoreError: the URL names no database that can be opened.
        """
        if busy_timeout_s < 0:
            raise ConfigError(f"busy_timeout_s={busy_timeout_s} must be at least 0")
        if snapshot_every < 1:
            raise ConfigError(f"snapshot_every={snapshot_every} must be at least 1")
        self._dense = dense
        self._snapshot_every = snapshot_every
        self.database = Database(url, busy_timeout_s)
        """The database, which has more tables than those of the banks."""
        if dense is not None:
            try:
                with self.database.reading() as connection:
                    self._check_embedding(connection, dense)
            except StoreError:
                self.close()
                raise

    @classmethod
    def open_existing(cls, url: str) -> "BankStore":
        """Open a database that exists; no file is created.

        Raises:
            StoreError: there is no such file, or the URL names no database that can be opened.
        """
        check_database_exists(url)
        return cls(url)

    def __enter__(self) -> "BankStore":
        """Return the store itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the store."""
        self.close()

    def close(self) -> None:
        """Close every connection; a later call opens new ones."""
        self.database.close()

    def revision(self, namespace: str) -> int:
        """Read the revision of a namespace: a loaded space of this revision is up to date."""
        check_namespace(namespace)
        with self.database.reading() as connection:
            return rows.read_revision(connection, namespace)

    def namespaces(self) -> list[str]:
        """List the saved namespaces, sorted."""
        with self.database.reading() as connection:
            return rows.read_namespaces(connection)

    def notes(self, prefix: str) -> dict[str, str]:
        """Return the notes about the database whose keys begin with a prefix, by key."""
        with self.database.reading() as connection:
            return rows.read_notes(connection, prefix)

    def add_note(self, key: str, value: str) -> None:
        """Add a note about the database, unless it has one with this key of at most 64 characters.

        Notes outlive the namespaces, so they hold nothing of a conversation.
        """
        if key not in self.notes(key):
            with self.database.writing() as connection:
                rows.insert_note(connection, key, value)

    def load(self, namespace: str) -> MemorySpace:
        """Read a namespace; one that was never saved is empty."""
        check_namespace(namespace)
        dense = self._dense.empty_copy() if self._dense is not None else None
        space = MemorySpace(namespace, dense=self._dense)
        with self._reading(namespace) as connection:
            space.revision = rows.read_revision(connection, namespace)
            space.bank, snapshot = self._replay_bank(connection, namespace)
            space.restore(rows.read_sessions(connection, namespace))
            if dense is not None:
                dense.remember(rows.read_vectors(connection, namespace))
        space.index = MemoryIndex(dense)
        if snapshot is not None:
            space.snapshot_version = snapshot.state.version
            if dense is None:  # a snapshot has no vectors
                at_snapshot = space.bank.at(snapshot.state.version)
                space.index = MemoryIndex.from_snapshot(at_snapshot, snapshot.state.frozen, snapshot.postings)
        space.saved, space.saved_sessions = space.bank.fork(), frozenset(space.sessions)
        return space

    def bank(self, namespace: str) -> MemoryBank:
        """Read only the bank of a namespace, without its sessions and without an index."""
        check_namespace(namespace)
        with self._reading(namespace) as connection:
            return self._replay_bank(connection, namespace)[0]

    def save(self, space: MemorySpace, also: Also | None = None) -> None:
        """Write the new operations, sessions and vectors of a space, in one transaction.

        ``also`` is called at the end of that transaction.

        With a dense index, memories without a vector are embedded first. The revision goes up by one if
        operations or sessions are written.

        Raises:
            ConflictError: another writer saved the namespace since the space was loaded.
            SessionConflictError: a session of the same id was saved with other content.
            EmbeddingMismatchError: the store holds vectors of another model or dimension.
            StoreError: the bank of the space is another branch than the saved one. After any of these
                errors, nothing was written.
        """
        check_namespace(space.namespace)
        bank, sessions, dense = space.bank.fork(), dict(space.sessions), space.index.dense
        if not bank.extends(space.saved):
            raise StoreError(
                f"the bank of {space.namespace!r} does not begin with the {space.saved.version} operations "
                "that were saved: undo operations with BankStore.rewind, or save it under another name"
            )
        beyond = [one for session_id, one in sessions.items() if session_id not in space.saved_sessions]
        if dense is not None:
            space.index.refresh(bank)
        vectors = dict(dense.unsaved()) if dense is not None else {}
        operations = bank.operations(since=space.saved.version)
        grown_by = max(self._snapshot_every, bank.version // _SNAPSHOT_SHARE)
        is_due = bool(operations) and bank.version - space.snapshot_version >= grown_by
        snapshot = Snapshot(bank.compacted(), space.index.postings(bank)) if is_due else None
        with self.database.writing() as connection:
            new_sessions = rows.unsaved_sessions(connection, space.namespace, beyond)
            is_new = bool(operations or new_sessions or space.revision == 0)
            revision = space.revision
            if is_new:
                revision = rows.advance_revision(connection, space.namespace, revision)
                rows.insert_operations(connection, space.namespace, operations)
                rows.append_sessions(connection, space.namespace, new_sessions)
            if snapshot is not None:
                rows.replace_snapshot(connection, space.namespace, bank.version, snapshot.to_parts())
            if not is_new and rows.read_revision(connection, space.namespace) != revision:
                vectors = {}  # they may be of a bank that was erased meanwhile
            if dense is not None and vectors:
                if not self._check_embedding(connection, dense, is_kept=True):
                    rows.lock_embedding_model(connection)
                    if not self._check_embedding(connection, dense, is_kept=True):
                        rows.insert_embedding_model(connection, dense.model, dense.dimension)
                rows.insert_vectors(connection, space.namespace, vectors)
            if also is not None:
                also(connection)
        space.saved, space.saved_sessions = bank, frozenset(sessions)
        space.revision = revision
        if snapshot is not None:
            space.snapshot_version = bank.version
            space.bank.adopt_compacted(snapshot.state)
        if dense is not None:
            dense.mark_saved(list(vectors))

    def rewind(
        self, namespace: str, version: int, also: Also | None = None, *, loaded: int | None = None
    ) -> MemorySpace:
        """Undo every operation after a version, and the sessions that made any of them.

        A session of which only the last operations are undone counts as not ingested. Undone operations stay
        in the database: see ``retracted``. ``also`` is called at the end of the transaction.

        Args:
            namespace: the name of the bank.
            version: the number of operations to keep.
            also: called with the connection.
            loaded: the revision that was loaded; None rewinds any.

        Raises:
            ConflictError: another writer saved the namespace since it was loaded; nothing was changed.
            MemoryOperationError: the bank has no such version; nothing was changed.
            StoreError: the namespace was never saved.
        """
        check_namespace(namespace)
        with self.database.writing() as connection:
            if loaded is None:
                revision = rows.increment_revision(connection, namespace)
            else:
                revision = rows.advance_revision(connection, namespace, loaded)
            if revision is None:
                raise StoreError(
                    f"namespace {namespace!r} was never saved in {self.database.where}: "
                    "BankStore.namespaces() lists those that were"
                )
            current = rows.read_latest_version(connection, namespace)
            if not 0 <= version <= current:
                raise MemoryOperationError(f"version={version} must be from 0 to {current}, the current one")
            rows.mark_retracted(connection, namespace, version, revision)
            if also is not None:
                also(connection)
        return self.load(namespace)

    def rewind_session(self, namespace: str, session_id: str) -> MemorySpace:
        """Undo a session and every later session, with all operations since the session before.

        Unlike ``rewind``, this also undoes a session without operations, which has the version of the
        session before it.

        Raises:
            StoreError: no such session was saved; nothing was changed.
        """
        check_namespace(namespace)
        with self.database.writing() as connection:
            place = rows.find_session_position(connection, namespace, session_id)
            revision = rows.increment_revision(connection, namespace)
            if place is None or revision is None:
                raise StoreError(
                    f"session {session_id!r} was never saved in namespace {namespace!r} of "
                    f"{self.database.where}: BankStore.load(namespace).sessions lists those that were"
                )
            position, version = place
            rows.mark_retracted(connection, namespace, version, revision, position=position)
        return self.load(namespace)

    def retracted(self, namespace: str) -> list[RetractedOperation]:
        """List the undone operations, in the order of the rewinds; ``MemoryBank.rebase`` can restore them."""
        check_namespace(namespace)
        with self.database.reading() as connection:
            return [RetractedOperation(*row) for row in rows.read_retracted_operations(connection, namespace)]

    def drop_vectors(self) -> None:
        """Delete every vector and the name of their model, so that another model can be used."""
        with self.database.writing() as connection:
            rows.delete_vectors(connection)

    @contextmanager
    def _reading(self, namespace: str) -> Generator[Connection]:
        """Give a connection; a row that cannot be parsed raises a StoreError that names the namespace."""
        try:
            with self.database.reading() as connection:
                yield connection
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"namespace {namespace!r} of {self.database.where} is damaged ({error}): restore the "
                "database from a backup"
            ) from error

    def _replay_bank(self, connection: Connection, namespace: str) -> tuple[MemoryBank, Snapshot | None]:
        """Start from the snapshot, if there is one, and append the operations after it."""
        bank = MemoryBank(namespace)
        parts = rows.read_snapshot_parts(connection, namespace)
        snapshot = Snapshot.from_parts(parts) if parts else None
        if snapshot is not None:
            revision = rows.read_revision(connection, namespace)
            version = snapshot.state.version

            def read_past() -> Sequence[Operation]:
                """Read the operations before the snapshot, as they were at its revision."""
                with self._reading(namespace) as later:
                    if rows.was_rewound(later, namespace, revision, version):
                        raise ConflictError(
                            f"namespace {namespace!r} was rewound since it was loaded (revision {revision}), "
                            "and its older operations are read only now: load it again"
                        )
                    operations = rows.read_operations(later, namespace, until=version)
                if len(operations) != version:
                    raise StoreError(
                        f"namespace {namespace!r} of {self.database.where} has {len(operations)} of "
                        f"{version} operations left: it was deleted, or its database in memory was closed, "
                        "since it was loaded"
                    )
                return operations

            bank = MemoryBank.from_snapshot(namespace, snapshot.state, read_past)
        for operation in rows.read_operations(connection, namespace, since=bank.version):
            bank.append(operation)
        return bank, snapshot

    def _check_embedding(self, connection: Connection, dense: DenseIndex, *, is_kept: bool = False) -> bool:
        """Check that stored vectors are of this model, and say whether there are any."""
        recorded = rows.read_embedding_model(connection, is_kept=is_kept)
        if recorded not in (None, (dense.model, dense.dimension)):
            model, dimension = recorded
            raise EmbeddingMismatchError(
                f"{self.database.where} holds vectors of {model!r} with dimension {dimension}, not of "
                f"{dense.model!r} with {dense.dimension}: use that model, or call BankStore(url)"
                ".drop_vectors() once, and the next save embeds every memory again"
            )
        return recorded is not None


def check_namespace(namespace: str) -> None:
    """Check that a text can be the name of a namespace.

    Raises:
        ConfigError: it is empty, too long, or has a character that cannot be printed.
    """
    if not 1 <= len(namespace) <= _NAME_LIMIT_CHARS or not namespace.isprintable():
        raise ConfigError(
            f"namespace={namespace!r:.60} must have 1 to {_NAME_LIMIT_CHARS} characters, all of which can "
            "be printed"
        )
