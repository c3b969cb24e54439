"""The turns that no agent has written yet: a durable queue before the banks of a store.

Turns are added at once and cut into sessions, which a writer takes in their order. A session leaves the queue
in the transaction that saves its memories: it is written exactly once, whatever process dies when.
"""

import json
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, bindparam, case, delete, func, insert, or_, select, text, update

from locomo.types import Session, Turn
from memory_program.bank.db_engine import Database
from memory_program.bank.db_schema import REQUESTS, SESSIONS, TURNS
from memory_program.bank.store import check_namespace
from memory_program.core.errors import (
    AlreadyWrittenError,
    BufferFullError,
    MemoryProgramError,
    RepeatedKeyError,
    StoreError,
    UnknownMemoryError,
)

_REQUEST_VALID_S = 86_400.0
_COMMIT_BATCH = 64  # additions of other threads that share a commit
_SESSION_ID = re.compile(r"session_(\d+)")

# Made once: to make one of them for each request takes longer than to run it.
_IS_NAMESPACE = TURNS.c.namespace == bindparam("namespace")
_IS_OPEN = TURNS.c.session.is_(None)
_LOCK_NAMESPACE = text("SELECT pg_advisory_xact_lock(hashtext(:namespace))")
_SIZES = select(
    func.count(),
    func.count(case((_IS_OPEN, 1))),
    func.coalesce(func.sum(case((_IS_OPEN, TURNS.c.chars))), 0),
    func.max(case((_IS_OPEN, TURNS.c.said_at))),
).where(_IS_NAMESPACE)
_INSERT_TURNS = insert(TURNS)
_TURNS = (
    select(TURNS.c.position, TURNS.c.session, TURNS.c.turn).where(_IS_NAMESPACE).order_by(TURNS.c.position)
)
_NEXT_SESSIONS = (
    select(TURNS.c.namespace, func.min(TURNS.c.session))
    .where(TURNS.c.session.is_not(None))
    .group_by(TURNS.c.namespace)
    .order_by(func.min(TURNS.c.added_at))
)


@dataclass(frozen=True, slots=True)
class SpokenTurn:
    """One utterance: who spoke, in which role, and when (with a zone).

    ``has_own_time`` is False if the time is that of the server's clock.
    """

    speaker: str
    text: str
    role: str
    time: datetime
    has_own_time: bool = True


@dataclass(frozen=True, slots=True)
class SessionRule:
    """The end of a session: a pause in seconds, or its length in turns or characters."""

    pause_s: float = 900.0
    max_turns: int = 40
    max_chars: int = 16_000


@dataclass(frozen=True, slots=True)
class RequestKey:
    """A request's own key and the hash of its content: a second one with both changes nothing."""

    key: str
    digest: str
    valid_s: float = _REQUEST_VALID_S


@dataclass(frozen=True, slots=True)
class AddedTurns:
    """The outcome of an addition: the turns taken, all that wait in the namespace, and what was cut.

    ``sessions`` are the numbers of the sessions that it cut. ``is_repeated`` says that the same request was
    answered before.
    """

    added: int
    waiting: int
    sessions: tuple[int, ...] = ()
    is_repeated: bool = False


@dataclass(frozen=True, slots=True)
class WaitingTurns:
    """The turns of one namespace that wait: their number, and the oldest arrival."""

    namespace: str
    turns: int
    oldest_added_at: float


@dataclass(frozen=True, slots=True)
class NextSession:
    """The session of a namespace that is to be written next."""

    namespace: str
    number: int


@dataclass(slots=True)
class _Addition:
    namespace: str
    turns: Sequence[SpokenTurn]
    begins: bool
    ends: bool
    request: RequestKey | None
    is_done: bool = False
    result: AddedTurns | None = None
    error: MemoryProgramError | None = None


@dataclass(slots=True)
class _OpenSession:
    turns: int
    chars: int
    last_said_at: float | None
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])  # Any: values of columns


class TurnBuffer:
    """The queue of one database. Any thread may use it, and any number of processes the database.

    Additions of several threads share a transaction, so that the disk is waited for once.

    Raises:
        StoreError: the database fails; of an addition nothing was written then.
    """

    def __init__(
        self, database: Database, rule: SessionRule, most_waiting: int = 2000, most_open: int = 10_000
    ) -> None:
        """Use a database.

        Args:
            database: that of a ``BankStore``.
            rule: where sessions end.
            most_waiting: the most turns of a namespace that may wait.
            most_open: the most sessions, each of a namespace, that may be open.
        """
        self._database, self._rule = database, rule
        self._most_waiting, self._most_open = most_waiting, most_open
        self._may_open = 0  # sessions that may be opened before they are counted again
        self._queue: list[_Addition] = []
        self._queue_lock, self._commit_lock = threading.Lock(), threading.Lock()

    def add(
        self,
        namespace: str,
        turns: Sequence[SpokenTurn],
        *,
        begins: bool = False,
        ends: bool = False,
        request: RequestKey | None = None,
    ) -> AddedTurns:
        """Add turns to a namespace, and cut the sessions that they complete.

        ``begins`` cuts before the first of them, ``ends`` after the last.

        Raises:
            BufferFullError: too many turns wait in the namespace, or too many sessions are open; none of
                these turns was added.
            RepeatedKeyError: the key belongs to another request.
            ConfigError: the namespace is no name.
        """
        check_namespace(namespace)
        addition = _Addition(namespace, turns, begins, ends, request)
        with self._queue_lock:
            self._queue.append(addition)
        with self._commit_lock:
            while not addition.is_done:  # another thread may have committed it meanwhile
                with self._queue_lock:
                    batch, self._queue = self._queue[:_COMMIT_BATCH], self._queue[_COMMIT_BATCH:]
                self._commit(batch)
        if addition.error is not None:
            raise addition.error
        assert addition.result is not None
        return addition.result

    def cut_idle(self) -> None:
        """Cut the open sessions in which nothing arrived for the length of a pause."""
        with self._database.reading() as connection:
            idle = (
                select(TURNS.c.namespace)
                .where(_IS_OPEN)
                .group_by(TURNS.c.namespace)
                .having(func.max(TURNS.c.added_at) <= time.time() - self._rule.pause_s)
            )
            namespaces = connection.scalars(idle).all()
        for namespace in namespaces:
            self.add(namespace, (), ends=True)

    def waiting(self) -> list[WaitingTurns]:
        """List the namespaces with turns that wait, those that wait longest first."""
        columns = TURNS.c.namespace, func.count(), func.min(TURNS.c.added_at)
        with self._database.reading() as connection:
            found = connection.execute(
                select(*columns).group_by(TURNS.c.namespace).order_by(columns[-1])
            ).all()
        return [WaitingTurns(*row) for row in found]

    def next_sessions(self) -> list[NextSession]:
        """List the first session that was cut of each namespace, those that wait longest first."""
        with self._database.reading() as connection:
            return [NextSession(*row) for row in connection.execute(_NEXT_SESSIONS).all()]

    def sessions(self, namespace: str) -> list[Session]:
        """Return all that waits in a namespace, oldest first; the open session, the last, has number 0."""
        return self._read_sessions(_TURNS, namespace)

    def session(self, namespace: str, number: int) -> Session | None:
        """Return a session that was cut; None if it does not wait any more."""
        waiting = self._read_sessions(_TURNS.where(TURNS.c.session == number), namespace)
        return waiting[0] if waiting else None

    def _read_sessions(self, waiting: Select[Any, Any, Any], namespace: str) -> list[Session]:
        with self._database.reading() as connection:
            found = connection.execute(waiting, {"namespace": namespace}).all()
        by_number: dict[int, list[tuple[int, Any]]] = {}  # Any: JSON
        for position, number, turn in found:
            by_number.setdefault(number or 0, []).append((position, json.loads(turn)))
        sessions = list[Session]()
        for number, said in by_number.items():
            turns = list[Turn]()
            for place, (position, spoken) in enumerate(said, start=1):
                turn_id = _turn_id(number, place) if number else f"new:{position}"
                turns.append(Turn(turn_id, spoken["speaker"], spoken["text"]))
            sessions.append(Session(number, datetime.fromisoformat(said[0][1]["time"]), tuple(turns)))
        return sessions

    def cut_positions(self, namespace: str) -> tuple[int, int] | None:
        """Return the first and the last position of the turns in cut sessions; None if none waits.

        A session that gets another number keeps the positions of its turns.
        """
        position, is_cut = TURNS.c.position, TURNS.c.session.is_not(None)
        query = select(func.min(position), func.max(position)).where(TURNS.c.namespace == namespace, is_cut)
        with self._database.reading() as connection:
            first, last = connection.execute(query).one()
        return None if first is None else (first, last)

    def clock_times(self, namespace: str, number: int) -> tuple[str, ...]:
        """Return the turns of a session that was cut whose time is that of the server's clock."""
        is_this = (TURNS.c.namespace == namespace, TURNS.c.session == number)
        with self._database.reading() as connection:
            turns = connection.scalars(select(TURNS.c.turn).where(*is_this).order_by(TURNS.c.position)).all()
        places = enumerate(map(json.loads, turns), start=1)
        return tuple(_turn_id(number, place) for place, turn in places if not turn["has_own_time"])

    def claim(self, namespace: str, number: int, owner: str, lease_s: float) -> bool:
        """Claim a session for a process; False if another one has claimed it, or it does not wait any more.

        A claim saves calls of a model. That a session is saved once does not depend on it.
        """
        now = time.time()
        is_this = (TURNS.c.namespace == namespace, TURNS.c.session == number)
        is_free = or_(
            TURNS.c.claimed_until.is_(None), TURNS.c.claimed_until < now, TURNS.c.claimed_by == owner
        )
        claim = {"claimed_by": owner, "claimed_until": now + lease_s}
        with self._database.writing() as connection:
            return connection.execute(update(TURNS).where(*is_this, is_free).values(**claim)).rowcount > 0

    def extend_claims(self, owner: str, lease_s: float) -> None:
        """Extend all claims of a process; with 0 seconds it gives them up."""
        step = update(TURNS).where(TURNS.c.claimed_by == owner)
        with self._database.writing() as connection:
            connection.execute(step.values(claimed_until=time.time() + lease_s))

    def renumber(self, namespace: str, number: int) -> None:
        """Give a session that was cut a new number, if another one was saved under its own."""
        is_this = (TURNS.c.namespace == namespace, TURNS.c.session == number)
        with self._database.writing() as connection:
            _lock_namespace(connection, namespace)
            new = _next_number(connection, namespace)
            connection.execute(update(TURNS).where(*is_this).values(session=new))

    def remove(self, connection: Connection, namespace: str, number: int) -> None:
        """Take a session out of the queue, in the transaction that saves its memories.

        Raises:
            AlreadyWrittenError: it does not wait any more.
        """
        is_this = (TURNS.c.namespace == namespace, TURNS.c.session == number)
        if not connection.execute(delete(TURNS).where(*is_this)).rowcount:
            raise AlreadyWrittenError(
                f"session {number} of namespace {namespace!r} does not wait any more: somebody else wrote or "
                "erased it"
            )

    def drop(self, connection: Connection, namespace: str, positions: Sequence[int]) -> None:
        """Delete turns of the open session (``new:1`` has position 1), in the transaction of a change.

        Raises:
            UnknownMemoryError: one of them is not in it, so the transaction must be given up.
        """
        is_turn = (TURNS.c.namespace == namespace, _IS_OPEN, TURNS.c.position.in_(positions))
        if connection.execute(delete(TURNS).where(*is_turn)).rowcount != len(positions):
            raise UnknownMemoryError(
                f"one of {', '.join(f'new:{one}' for one in positions)} is not a turn of the open session: "
                "its session was written or is being written; search again"
            )

    def response(self, namespace: str, request: RequestKey) -> dict[str, Any] | None:  # Any: JSON
        """Return what a request was answered before; None if it is new.

        Raises:
            RepeatedKeyError: the key belongs to another request.
        """
        with self._database.reading() as connection:
            return _find_response(connection, namespace, request)

    def record_response(
        self, connection: Connection, namespace: str, request: RequestKey, response: dict[str, Any]
    ) -> None:
        """Record the answer to a request, in the transaction of what it changes.

        Raises:
            RepeatedKeyError: the same request was answered meanwhile.
        """
        if _find_response(connection, namespace, request) is not None:
            raise RepeatedKeyError(
                f"the request with the key {request.key!r} was answered meanwhile: repeat it"
            )
        _insert_response(connection, namespace, request, response)

    def delete_old_requests(self) -> None:
        """Forget the keys of requests that are older than a day."""
        with self._database.writing() as connection:
            connection.execute(delete(REQUESTS).where(REQUESTS.c.added_at < time.time() - _REQUEST_VALID_S))

    def _commit(self, batch: Sequence[_Addition]) -> None:
        """Write additions in one transaction; one that is refused does not touch the others."""
        try:
            with self._database.writing() as connection:
                # in one order, so that two processes never wait for each other
                for addition in sorted(batch, key=lambda one: one.namespace):
                    try:
                        addition.result = self._insert(connection, addition)
                    except (BufferFullError, RepeatedKeyError) as error:  # raised before anything is written
                        addition.error = error
        except StoreError as error:
            for addition in batch:
                addition.error = error
        finally:
            for addition in batch:
                addition.is_done = True

    def _insert(self, connection: Connection, addition: _Addition) -> AddedTurns:
        namespace, request = addition.namespace, addition.request
        _lock_namespace(connection, namespace)
        if request is not None:
            known = _find_response(connection, namespace, request)
            if known is not None:
                return AddedTurns(known["added"], known["waiting"], tuple(known["sessions"]), True)
        sizes = connection.execute(_SIZES, {"namespace": namespace}).one()
        waiting, open_turns, open_chars, last_said_at = sizes
        if addition.turns and waiting + len(addition.turns) > self._most_waiting:
            raise BufferFullError(
                f"{waiting} turns of namespace {namespace!r} wait to be written, and at most "
                f"{self._most_waiting} may: send these {len(addition.turns)} again later"
            )
        if addition.turns and not open_turns and not addition.ends:
            # the open sessions are not counted each time: half of what is left may be opened in between
            self._may_open -= 1
            if self._may_open < 0:
                is_open = select(TURNS.c.namespace).where(_IS_OPEN).distinct()
                found = connection.scalar(select(func.count()).select_from(is_open.subquery())) or 0
                self._may_open = max(0, self._most_open - found - 1) // 2
                if found >= self._most_open:
                    raise BufferFullError(
                        f"{found} sessions are open, and at most {self._most_open} may be: send these turns "
                        "again later, or with an end"
                    )
        rule, cut, now = self._rule, list[int](), time.time()
        current = _OpenSession(open_turns, open_chars, last_said_at)
        if addition.begins and current.turns:
            cut.append(self._cut(connection, namespace, current, cut))
            current = _OpenSession(0, 0, None)
        for turn in addition.turns:
            said_at, chars = turn.time.timestamp(), len(turn.text)
            is_pause = current.last_said_at is not None and abs(said_at - current.last_said_at) > rule.pause_s
            if current.turns and (is_pause or current.chars + chars > rule.max_chars):
                cut.append(self._cut(connection, namespace, current, cut))
                current = _OpenSession(0, 0, None)
            current.turns += 1
            current.chars += chars
            current.last_said_at = said_at
            current.rows.append(
                {
                    "namespace": namespace,
                    "said_at": said_at,
                    "added_at": now,
                    "chars": chars,
                    "turn": json.dumps({**asdict(turn), "time": turn.time.isoformat()}),
                }
            )
            if current.turns >= rule.max_turns:
                cut.append(self._cut(connection, namespace, current, cut))
                current = _OpenSession(0, 0, None)
        if addition.ends and current.turns:
            cut.append(self._cut(connection, namespace, current, cut))
        elif current.rows:
            connection.execute(_INSERT_TURNS, current.rows)
        added = AddedTurns(len(addition.turns), waiting + len(addition.turns), tuple(cut))
        if request is not None:
            answer = {"added": added.added, "waiting": added.waiting, "sessions": cut}
            _insert_response(connection, namespace, request, answer)
        return added

    def _cut(
        self, connection: Connection, namespace: str, current: _OpenSession, earlier: Sequence[int]
    ) -> int:
        """Write the last turns of the open session, and give it a number; one is never used twice."""
        if current.rows:
            connection.execute(_INSERT_TURNS, current.rows)
        number = earlier[-1] + 1 if earlier else _next_number(connection, namespace)
        is_open = (TURNS.c.namespace == namespace, _IS_OPEN)
        connection.execute(update(TURNS).where(*is_open).values(session=number))
        return number


def _lock_namespace(connection: Connection, namespace: str) -> None:
    """Wait until no other process numbers sessions of a namespace; none does before the transaction ends."""
    if connection.dialect.name == "postgresql":  # SQLite has one writer at a time
        connection.execute(_LOCK_NAMESPACE, {"namespace": namespace})


def _next_number(connection: Connection, namespace: str) -> int:
    """Return the number after those of all sessions, written, waiting or undone."""
    names = connection.scalars(select(SESSIONS.c.session_id).where(SESSIONS.c.namespace == namespace))
    matches = filter(None, map(_SESSION_ID.fullmatch, names))
    last = connection.scalar(select(func.max(TURNS.c.session)).where(TURNS.c.namespace == namespace))
    return 1 + max([last or 0, *(int(match[1]) for match in matches)])


def _turn_id(number: int, place: int) -> str:
    return f"D{number}:{place}"


def _find_response(
    connection: Connection, namespace: str, request: RequestKey
) -> dict[str, Any] | None:  # Any: JSON
    is_this = (REQUESTS.c.namespace == namespace, REQUESTS.c.key == request.key)
    row = connection.execute(select(REQUESTS).where(*is_this)).one_or_none()
    if row is None or row.added_at < time.time() - request.valid_s:
        return None
    if row.digest != request.digest:
        raise RepeatedKeyError(
            f"the key {request.key!r} was used for another request: give each request a key of its own"
        )
    return json.loads(row.response)


def _insert_response(
    connection: Connection, namespace: str, request: RequestKey, response: dict[str, Any]
) -> None:
    row = {"namespace": namespace, "key": request.key, "digest": request.digest, "added_at": time.time()}
    is_this = (REQUESTS.c.namespace == namespace, REQUESTS.c.key == request.key)
    connection.execute(delete(REQUESTS).where(*is_this))  # one that is no longer valid
    connection.execute(insert(REQUESTS), {**row, "response": json.dumps(response)})
