"""Memory of many namespaces over one store: what every door of the server (REST, MCP, proxy) calls."""

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection

from locomo.types import Session
from memory_program.agents.context import MemoryContext, ReaderContext
from memory_program.agents.predict_call import dspy_history_disabled
from memory_program.agents.profile_edit import strike_fact
from memory_program.agents.program import MemoryProgram
from memory_program.bank.archive import Archive
from memory_program.bank.bank import MemoryBank
from memory_program.bank.dense import DenseIndex
from memory_program.bank.forgetting import DeletedRows, forget_namespace
from memory_program.bank.memory import (
    CORE_LIMIT_CHARS,
    MEMORY_LIMIT_CHARS,
    Draft,
    MemoryKind,
    Operation,
    Provenance,
    operation_to_json,
)
from memory_program.bank.outcomes import Answer
from memory_program.bank.space import MemorySpace
from memory_program.bank.stems import tokenize
from memory_program.bank.store import BankStore
from memory_program.bank.turn_buffer import AddedTurns, RequestKey, SessionRule, SpokenTurn, TurnBuffer
from memory_program.core.errors import (
    ConflictError,
    MemoryOperationError,
    ModelError,
    RepeatedKeyError,
    UnknownMemoryError,
)
from memory_program.models.factory import check_model
from memory_program.serving.service.session_writer import SessionWriter, WriterPace
from memory_program.serving.service.unwritten_context import UnwrittenContext

_logger = logging.getLogger(__name__)
_CACHED_SPACES = 256
_TRIES = 5  # of a change while others save the same namespace


@dataclass(frozen=True, slots=True)
class FoundMemory:
    """A hit of a search: a memory, or a turn that is not written yet (then ``kind`` is None)."""

    item_id: str
    kind: MemoryKind | None
    text: str
    happened_at: date | None
    sources: tuple[str, ...]
    score: float


@dataclass(frozen=True, slots=True)
class SourceTurn:
    """A turn that a memory is from, and the time of its session.

    ``has_own_time`` is False if the turn came without a time: it has that of the server's clock.
    """

    turn_id: str
    speaker: str
    text: str
    time: datetime
    has_own_time: bool


@dataclass(frozen=True, slots=True)
class BankChange:
    """The outcome of a change: the version of the bank after it, and the operations made or undone.

    ``is_pending`` says that the agents have not written a correction yet.
    """

    version: int
    operations: tuple[dict[str, Any], ...]  # Any: JSON, as operation_to_json writes it
    is_repeated: bool = False
    is_pending: bool = False


@dataclass(frozen=True, slots=True)
class NamespaceStatus:
    """The size of a namespace: its bank, its sessions, and the turns that wait to be written."""

    namespace: str
    version: int
    memories: int
    sessions: int
    waiting: int


class MemoryService:
    """Adds turns, has them written in the background, answers, searches, edits. Any thread may call it.

    A loaded namespace is kept, and used again while nobody else saved it. Every method raises a ConfigError
    for a name that cannot be one, and a StoreError if the database fails.
    """

    def __init__(
        self,
        url: str,
        program: MemoryProgram,
        rule: SessionRule | None = None,
        dense: DenseIndex | None = None,
        *,
        most_waiting: int = 2000,
        most_open: int = 10_000,
        pace: WriterPace | None = None,
    ) -> None:
        """Open the database.

        Args:
            url: of the database, as ``BankStore`` takes it.
            program: writes and answers, with its models; its reader packs a ``MemoryContext``.
            rule: where sessions end.
            dense: adds the meaning of memories to their words, as ``BankStore`` takes it.
            most_waiting: the most turns of a namespace that may wait; more are refused.
            most_open: the most sessions that may be open; turns that begin another one are refused.
            pace: of the writing in the background.
        """
        self._url = url
        self.store = BankStore(url, dense)
        self.asks_embedder = dense is not None
        """True if a search calls an embedding model."""
        self.buffer = TurnBuffer(self.store.database, rule or SessionRule(), most_waiting, most_open)
        self._program = program
        assert isinstance(program.reader.context, MemoryContext)
        self._context = program.reader.context
        self._spaces: OrderedDict[str, MemorySpace] = OrderedDict()
        self._spaces_lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}

        def model_answers() -> bool:
            try:
                check_model(getattr(program.writer, program.writer.agents[0]).lm)
            except ModelError:
                return False
            return True

        self.writer = SessionWriter(self.buffer, self._write_session, model_answers, pace or WriterPace())

    def start(self) -> None:
        """Begin to write sessions in the background, those of an earlier process first."""
        self.writer.start()

    def stop(self, grace_s: float = 10.0) -> bool:
        """End the background: running sessions may finish. Turns that are not written stay in the database.

        Returns:
            False if a session was still being written; it is written again after the next start.
        """
        is_idle = self.writer.stop(grace_s)
        if is_idle:
            self.store.close()
        return is_idle

    # -- turns in ------------------------------------------------------------------------------------

    def add(
        self,
        namespace: str,
        turns: Sequence[SpokenTurn],
        *,
        begins: bool = False,
        ends: bool = False,
        request: RequestKey | None = None,
    ) -> AddedTurns:
        """Add turns; they are durable when this returns, and written later. See ``TurnBuffer.add``."""
        added = self.buffer.add(namespace, turns, begins=begins, ends=ends, request=request)
        if added.sessions:
            self.writer.wake()
        return added

    def end_session(self, namespace: str) -> AddedTurns:
        """Cut the open session, so that it is written now."""
        return self.add(namespace, (), ends=True)

    def wait(self, namespace: str, timeout_s: float) -> bool:
        """Wait until the sessions of a namespace that are cut by now are written; False if the time is up."""
        return self.writer.wait(namespace, timeout_s)

    # -- answers -------------------------------------------------------------------------------------

    # With ``as_of`` they use what held on that day, and the turns said up to it.

    def context(self, namespace: str, query: str, as_of: date | None = None) -> ReaderContext:
        """Build what a reader is shown for a question, without asking a model."""
        space, waiting = self._with_waiting(namespace, as_of)
        return UnwrittenContext(self._context, waiting).build(space, [query])

    def ask(self, namespace: str, question: str, as_of: date | None = None) -> Answer:
        """Answer a question from the memories, and from the turns that are not written yet."""
        space, waiting = self._with_waiting(namespace, as_of)
        reader = copy(self._program.reader)
        reader.context = UnwrittenContext(self._context, waiting)
        with dspy_history_disabled():  # it would hold the prompts of an erased namespace
            return reader.ask(space, question)

    def search(
        self,
        namespace: str,
        query: str,
        limit: int = 10,
        kind: MemoryKind | None = None,
        as_of: date | None = None,
    ) -> list[FoundMemory]:
        """Find memories, best first; then turns that are not written yet, by their words."""
        space, waiting = self._with_waiting(namespace, as_of)
        found = [
            FoundMemory(m.memory_id, m.kind, m.text, m.happened_at, m.sources, hit.score)
            for hit in space.index.search(space.bank, query, limit, kind)
            for m in [hit.memory]
        ]
        if waiting and kind is None:
            archive = Archive()
            archive.add_sessions(waiting)
            found += [
                FoundMemory(
                    hit.turn.turn_id,
                    None,
                    hit.excerpt.line,
                    hit.session.date_time.date(),
                    (hit.turn.turn_id,),
                    hit.score,
                )
                for hit in archive.search(query, limit)
            ]
        return found

    def space(self, namespace: str) -> MemorySpace:
        """Return a namespace as it is stored; it must not be written to, but a fork of it may."""
        revision = self.store.revision(namespace)
        with self._spaces_lock:
            space = self._spaces.get(namespace)
        if space is None or space.revision != revision:
            space = self.store.load(namespace)
            self._keep(space)
        return space

    def bank(self, namespace: str) -> MemoryBank:
        """Return the bank of a namespace, to be read."""
        return self.space(namespace).bank

    def history(self, namespace: str, memory_id: str) -> list[dict[str, Any]]:
        """List the operations that led to a memory and followed from it, oldest first, as JSON.

        Raises:
            UnknownMemoryError: there is no such memory.
        """
        space = self.space(namespace)
        return _operations_json(space, space.bank.history(memory_id))

    def sources(self, namespace: str, memory_id: str) -> list[SourceTurn]:
        """Return the turns that a memory is from, in their order.

        Raises:
            UnknownMemoryError: there is no such memory.
        """
        space = self.space(namespace)
        wanted = set(space.bank.get(memory_id).sources)
        return [
            SourceTurn(
                turn.turn_id,
                turn.speaker,
                turn.utterance,
                one.session.date_time,
                turn.turn_id not in one.record.clock_times,
            )
            for one in space.sessions.values()
            for turn in one.session.turns
            if turn.turn_id in wanted
        ]

    def status(self, namespace: str) -> NamespaceStatus:
        """Return the size of a namespace; one that is not known is empty."""
        space, waiting = self._with_waiting(namespace)
        turns = sum(len(session.turns) for session in waiting)
        return NamespaceStatus(namespace, space.bank.version, len(space.bank), len(space.sessions), turns)

    def namespaces(self) -> list[str]:
        """List the namespaces with memories or waiting turns, sorted."""
        return sorted({*self.store.namespaces(), *(one.namespace for one in self.buffer.waiting())})

    # -- changes -------------------------------------------------------------------------------------

    def correct(
        self,
        namespace: str,
        memory_id: str,
        text: str,
        *,
        happened_at: date | None = None,
        reason: str = "",
        request: RequestKey | None = None,
    ) -> BankChange:
        """Replace the text of a memory, and what the profile says of it; its history keeps the old one.

        Raises:
            UnknownMemoryError: no such memory is live.
            MemoryOperationError: the text is empty, or too long for a memory.
        """
        if len(text) > MEMORY_LIMIT_CHARS:
            raise MemoryOperationError(
                f"text has {len(text):,} characters: a memory holds at most {MEMORY_LIMIT_CHARS:,}"
            )

        if not memory_id.startswith("m"):
            raise MemoryOperationError(
                f"{memory_id!r} is a turn and not a memory yet: say what is right without an id"
            )

        def change(space: MemorySpace, by: Provenance) -> None:
            old = space.bank.get(memory_id)
            space.bank.update(memory_id, Draft(text, old.kind, happened_at), by)
            _strike_from_profile(space, old.text, by, text.strip())

        return self._change(namespace, change, reason or "corrected by the user", request)

    def correct_in_words(
        self, namespace: str, text: str, timeout_s: float, request: RequestKey | None = None
    ) -> BankChange:
        """Tell the agents a correction as a session of its own, and return what they changed.

        If they have not written it in time, the change is pending; the correction is not lost.

        Raises:
            MemoryOperationError: the text is blank.
        """
        if not text.strip():
            raise MemoryOperationError("text is blank: write what is right, in full sentences")
        turn = SpokenTurn("User", f"Correction: {text}", "user", datetime.now(UTC), has_own_time=False)
        added = self.add(namespace, [turn], begins=True, ends=True, request=request)
        is_written = self.wait(namespace, timeout_s)
        space, session = self.space(namespace), f"session_{added.sessions[-1]}"
        if not is_written and session not in space.sessions:  # later sessions may wait
            return BankChange(space.bank.version, (), is_pending=True)
        made = [o for o in space.bank.operations() if o.provenance.session_id == session]
        return BankChange(space.bank.version, tuple(_operations_json(space, made)), added.is_repeated)

    def forget(
        self,
        namespace: str,
        memory_ids: Sequence[str],
        *,
        reason: str = "",
        request: RequestKey | None = None,
    ) -> BankChange:
        """Take memories out of every later answer, and out of the profile what they say.

        ``undo`` brings them back; only ``erase`` deletes data. A memory that was replaced before is not shown
        for the past any more. Turns of the open session, ``new:1`` for example, are deleted for good.

        Raises:
            UnknownMemoryError: one of them is unknown or forgotten; none was taken out.
        """
        names = list(dict.fromkeys(memory_ids))
        turns = [int(name.removeprefix("new:")) for name in names if name.startswith("new:")]
        for name in names:
            if name.startswith("D"):
                raise UnknownMemoryError(
                    f"{name!r} is a turn that the agents are writing: wait until they have, search again, "
                    "and forget the memory"
                )

        def change(space: MemorySpace, by: Provenance) -> None:
            for name in names:
                if name.startswith("new:"):
                    continue
                memory = space.bank.get(name)
                if not memory.is_live and name in space.valid_times().forgotten:
                    raise UnknownMemoryError(f"{name!r} was forgotten before")
                space.bank.forget(name, by)
                _strike_from_profile(space, memory.text, by)

        done = self._change(namespace, change, reason or "forgotten by the user", request, drops=turns)
        _logger.info("%s: forgot %d memories, version %d", namespace, len(names), done.version)
        return done

    def undo(
        self, namespace: str, version: int | None = None, request: RequestKey | None = None
    ) -> BankChange:
        """Undo the last change, or every change after a version. What was undone stays in the database.

        A change is all that one session wrote, or one request.

        Raises:
            MemoryOperationError: there is nothing to undo, or no such version.
        """

        def rewind() -> BankChange:
            space = self.space(namespace)
            bank = space.bank
            target = version if version is not None else bank.version_before_last_change()
            undone = bank.operations(since=bank.at(target).version)
            if not undone:
                raise MemoryOperationError(f"there is nothing to undo: the bank is at version {bank.version}")
            done = BankChange(target, tuple(_operations_json(space, undone[::-1])))
            recorder = self._recorder(namespace, request, done)
            self._keep(self.store.rewind(namespace, target, recorder, loaded=space.revision))
            _logger.info("%s: undid %d operations, version %d", namespace, len(undone), target)
            return done

        return self._commit(namespace, request, rewind)

    def erase(self, namespace: str, on_deleted: Callable[[DeletedRows], object] | None = None) -> DeletedRows:
        """Delete all data of a namespace from the database, with the bytes that deleted rows leave in it.

        ``on_deleted`` is called once the rows are deleted, also if bytes are left.

        Raises:
            StoreError: the rows are deleted, and some bytes are left, since the database is being read.
        """
        with self._locks.setdefault(namespace, threading.Lock()):
            with self._spaces_lock:
                self._spaces.pop(namespace, None)
            deleted = forget_namespace(self._url, namespace, on_deleted)
        _logger.info("%s: erased %d rows", namespace, sum(deleted.rows.values()))
        if deleted.left:
            _logger.warning("%s: %s", namespace, deleted.left)
        return deleted

    # -- inside --------------------------------------------------------------------------------------

    def _keep(self, space: MemorySpace) -> None:
        with self._spaces_lock:
            self._spaces[space.namespace] = space
            self._spaces.move_to_end(space.namespace)
            while len(self._spaces) > _CACHED_SPACES:
                self._spaces.popitem(last=False)

    def _with_waiting(self, namespace: str, as_of: date | None = None) -> tuple[MemorySpace, list[Session]]:
        """Return a namespace and what waits in it; a session that is written in between is in one of them."""
        waiting = self.buffer.sessions(namespace)
        space = self.space(namespace)
        waiting = [session for session in waiting if session.session_id not in space.sessions]
        if as_of is None:
            return space, waiting
        return space.at_date(as_of), [session for session in waiting if session.date_time.date() <= as_of]

    def _change(
        self,
        namespace: str,
        change: Callable[[MemorySpace, Provenance], object],
        reason: str,
        request: RequestKey | None,
        drops: Sequence[int] = (),
    ) -> BankChange:
        """Apply a change to a fork, and save it with the answer to its request in one transaction.

        ``drops`` are positions of turns to delete from the queue.
        """
        by = Provenance("user", f"request_{uuid4().hex[:12]}", reason)

        def save() -> BankChange:
            space = self.space(namespace).fork()
            since = space.bank.version
            change(space, by)
            operations = tuple(_operations_json(space, space.bank.operations(since)))
            done = BankChange(space.bank.version, operations)
            record = self._recorder(namespace, request, done)

            def also(connection: Connection) -> None:
                if drops:
                    self.buffer.drop(connection, namespace, drops)
                if record is not None:
                    record(connection)

            self.store.save(space, also)
            self._keep(space)
            return done

        return self._commit(namespace, request, save)

    def _commit(
        self, namespace: str, request: RequestKey | None, commit: Callable[[], BankChange]
    ) -> BankChange:
        """Make a change, again if another writer was first; a request that was answered changes nothing."""
        for attempt in range(_TRIES):
            with self._locks.setdefault(namespace, threading.Lock()):
                try:
                    return self._find_answer(namespace, request) or commit()
                except ConflictError:
                    if attempt == _TRIES - 1:
                        raise
                except (MemoryOperationError, RepeatedKeyError):  # another server may have answered it
                    if (known := self._find_answer(namespace, request)) is not None:
                        return known
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _find_answer(self, namespace: str, request: RequestKey | None) -> BankChange | None:
        """Return the change of a request that was answered before; None if there is none."""
        known = None if request is None else self.buffer.response(namespace, request)
        if known is None:
            return None
        return BankChange(known["version"], tuple(json.loads(known["operations"])), is_repeated=True)

    def _recorder(
        self, namespace: str, request: RequestKey | None, done: BankChange
    ) -> Callable[[Connection], object] | None:
        if request is None:
            return None
        response = {"version": done.version, "operations": json.dumps(done.operations)}
        return lambda connection: self.buffer.record_response(connection, namespace, request, response)

    def _write_session(self, namespace: str, session: Session, *, may_lose_calls: bool) -> list[str]:
        """Write a session with the agents, and take it out of the queue, in one transaction.

        Returns:
            where calls failed, so that nothing was written and it should be tried again later. With
            ``may_lose_calls`` it is written all the same, and its record counts them.

        Raises:
            AlreadyWrittenError: it does not wait any more.
            ConflictError: somebody else saved the namespace meanwhile.
        """
        space = self.space(namespace).fork()
        lost: list[str] = []
        known = space.sessions.get(session.session_id)
        if known is not None and known.session.fingerprint != session.fingerprint:  # of an imported bank
            self.buffer.renumber(namespace, session.number)
            raise ConflictError(
                f"namespace {namespace!r} has another {session.session_id}: this one waits under a new number"
            )
        if known is None:
            with dspy_history_disabled():
                record = self._program.remember(space, session)
            is_outage = any(failure.outcome.value == "error" for failure in record.failures)
            if is_outage:
                lost = [f"{failure.where}: {failure.outcome.value}" for failure in record.failures]
            if lost and not may_lose_calls:
                return lost
            written = space.sessions[session.session_id]
            record = replace(record, clock_times=self.buffer.clock_times(namespace, session.number))
            space.sessions[session.session_id] = replace(written, record=record)
        with self._locks.setdefault(namespace, threading.Lock()):
            self.store.save(
                space, lambda connection: self.buffer.remove(connection, namespace, session.number)
            )
            self._keep(space)
        return lost


def _strike_from_profile(space: MemorySpace, fact: str, by: Provenance, instead: str = "") -> None:
    """Take a fact out of the core block, or put a correction in its place if there is room."""
    bank = space.bank
    speakers = {turn.speaker for one in space.sessions.values() for turn in one.session.turns}
    names = {stem for speaker in speakers for stem in tokenize(speaker)}
    core = strike_fact(bank.core, fact, names, instead)
    if len(core) > CORE_LIMIT_CHARS:
        core = strike_fact(bank.core, fact, names)
    if core != bank.core:
        bank.edit_core(core, by)


def _operations_json(space: MemorySpace, operations: Sequence[Operation]) -> list[dict[str, Any]]:
    validity = space.valid_times().memories
    return [operation_to_json(operation, validity) for operation in operations]
