"""Writes waiting sessions in the background: in order within a namespace, namespaces in parallel."""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from uuid import uuid4

from locomo.types import Session
from memory_program.bank.turn_buffer import TurnBuffer
from memory_program.core.errors import AlreadyWrittenError, ConflictError, StoreError

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WriterPace:
    """The pace of the background.

    ``threads`` is the number of sessions written at once, ``tick_s`` how often it looks for idle sessions. A
    session whose calls fail is tried again after ``first_wait_s``, which doubles up to ``longest_wait_s``.
    After ``most_tries`` it is written without the calls that fail, if the model answers anything else. A
    session is claimed for ``lease_s``, again and again while it is being written. When the process dies,
    another one takes it over after that time.
    """

    threads: int = 4
    tick_s: float = 0.5
    first_wait_s: float = 2.0
    longest_wait_s: float = 300.0
    most_tries: int = 10
    lease_s: float = 15.0


@dataclass(slots=True)
class WriterCounts:
    """Sessions written, tries that failed, and sessions that were written without some of their calls."""

    written: int = 0
    failed: int = 0
    incomplete: int = 0


class WriteSession(Protocol):
    """Writes a session; returns where calls failed, if it is to be tried again."""

    def __call__(self, namespace: str, session: Session, *, may_lose_calls: bool) -> Sequence[str]:
        """Write it."""
        ...


class SessionWriter:
    """One thread that looks for work, and a pool that does it."""

    def __init__(
        self, buffer: TurnBuffer, write: WriteSession, answers: Callable[[], bool], pace: WriterPace
    ) -> None:
        """Prepare; ``start`` begins. ``answers`` says if the model answers at all."""
        self._buffer, self._write, self._answers, self._pace = buffer, write, answers, pace
        self.counts = WriterCounts()
        self._changed = threading.Condition()
        self._owner, self._extended_at = uuid4().hex, 0.0
        self._busy: set[str] = set()
        self._tries: dict[str, int] = {}
        self._answered_tries: dict[str, int] = {}  # those while other calls succeeded
        self._not_before: dict[str, float] = {}
        self._counted: dict[str, str] = {}  # the session whose tries are counted, by its fingerprint
        self._is_woken = self._is_stopping = False
        self._pool = ThreadPoolExecutor(pace.threads, thread_name_prefix="session-writer")
        self._thread = threading.Thread(target=self._run, name="session-scheduler", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """Look for work now."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    @property
    def busy(self) -> int:
        """The number of sessions that are being written."""
        return len(self._busy)

    def stop(self, grace_s: float) -> bool:
        """Begin no further session, and wait for those that are being written; False if some still are."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
            is_idle = self._changed.wait_for(lambda: not self._busy, grace_s)
        with suppress(StoreError):  # then they end by themselves
            self._buffer.extend_claims(self._owner, 0)
        if self._thread.is_alive():
            self._thread.join(self._pace.tick_s + 5)
        self._pool.shutdown(wait=is_idle, cancel_futures=True)
        return is_idle

    def wait(self, namespace: str, timeout_s: float) -> bool:
        """Wait until the sessions of a namespace that are cut by now are written; False if the time is up.

        Those that are cut while this waits do not count: in a busy namespace there is always one.
        """
        until = time.monotonic() + timeout_s
        cut = waiting = self._buffer.cut_positions(namespace)
        while cut is not None and waiting is not None and waiting[0] <= cut[1]:
            left = until - time.monotonic()
            if left <= 0:
                return False
            with self._changed:
                self._changed.wait(min(left, self._pace.tick_s))
            waiting = self._buffer.cut_positions(namespace)
        return True

    def _run(self) -> None:
        swept_at = cut_at = -math.inf
        while not self._is_stopping:
            try:
                if time.monotonic() - cut_at >= self._pace.tick_s:  # not each time that it is woken
                    cut_at = time.monotonic()
                    self._buffer.cut_idle()
                if time.monotonic() - swept_at > 3600:
                    self._buffer.delete_old_requests()
                    swept_at = time.monotonic()
                if self._busy and time.monotonic() - self._extended_at > self._pace.lease_s / 3:
                    self._extended_at = time.monotonic()
                    self._buffer.extend_claims(self._owner, self._pace.lease_s)
                found = self._buffer.next_sessions()
            except StoreError as error:
                _logger.warning("the queue cannot be read: %s", error)
                found = []
            for one in found:
                with self._changed:
                    if len(self._busy) >= self._pace.threads or self._is_stopping:
                        break  # those that wait longest come first again, once a thread is free
                    is_put_off = self._not_before.get(one.namespace, 0.0) > time.monotonic()
                    if one.namespace in self._busy or is_put_off:
                        continue
                    self._busy.add(one.namespace)
                done = self._pool.submit(self._write_next, one.namespace, one.number)
                done.add_done_callback(partial(self._finish, one.namespace))
            with self._changed:
                self._changed.wait_for(lambda: self._is_woken or self._is_stopping, self._pace.tick_s)
                self._is_woken = False

    def _write_next(self, namespace: str, number: int) -> None:
        """Write a session; a conflict with another writer is tried again at once."""
        if not self._buffer.claim(namespace, number, self._owner, self._pace.lease_s):
            self._not_before[namespace] = time.monotonic() + min(1.0, self._pace.lease_s / 3)
            return
        while (session := self._buffer.session(namespace, number)) is not None:
            begun = time.monotonic()
            if self._counted.get(namespace) != session.fingerprint:  # others wrote or erased the one before
                self._counted[namespace] = session.fingerprint
                self._tries.pop(namespace, None)
                self._answered_tries.pop(namespace, None)
            # tries during an outage do not count: nothing says that this session cannot be written
            tries = self._answered_tries.get(namespace, 0) + 1
            is_last = tries >= self._pace.most_tries and self._answers()
            try:
                failed = self._write(namespace, session, may_lose_calls=is_last)
            except AlreadyWrittenError:
                self._not_before.pop(namespace, None)
                return
            except ConflictError:
                continue
            if failed and not is_last:
                if self._answers():
                    self._answered_tries[namespace] = tries
                self._put_off(namespace, f"{session.session_id}: {', '.join(failed)}")
                return
            self.counts.written += 1
            self.counts.incomplete += bool(failed)
            self._tries.pop(namespace, None)
            self._answered_tries.pop(namespace, None)
            self._not_before.pop(namespace, None)
            _logger.info("%s %s written in %.1f s", namespace, session.session_id, time.monotonic() - begun)
            return

    def _put_off(self, namespace: str, why: str) -> None:
        tries = self._tries.get(namespace, 0)
        wait_s = min(self._pace.first_wait_s * 2.0 ** min(tries, 60), self._pace.longest_wait_s)
        self._tries[namespace], self._not_before[namespace] = tries + 1, time.monotonic() + wait_s
        self.counts.failed += 1
        _logger.warning("%s: not written, again in %.0f s: %s", namespace, wait_s, why)

    def _finish(self, namespace: str, done: Future[None]) -> None:
        try:
            error = None if done.cancelled() else done.exception()
            if error is not None:  # its text may hold what was said
                self._put_off(namespace, type(error).__name__)
        finally:
            with self._changed:
                self._busy.discard(namespace)
                self._is_woken = True
                self._changed.notify_all()
