"""One namespace in memory: its bank of memories, the index over them, and its archive of turns."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from locomo.types import Session
from memory_program.bank.archive import Archive, ScoredTurn
from memory_program.bank.bank import MemoryBank
from memory_program.bank.budget import count_memory_tokens
from memory_program.bank.dense import DenseIndex
from memory_program.bank.memory_search import MemoryIndex
from memory_program.bank.outcomes import SessionRecord
from memory_program.bank.validity import ValidTimes, find_valid_times
from memory_program.core.errors import ConflictError, SessionConflictError

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IngestedSession:
    """A session that was ingested, the version of the bank after it, and the record of its outcome."""

    session: Session
    version: int
    record: SessionRecord


class MemorySpace:
    """One namespace in memory. ``BankStore.load`` makes one from a database, ``BankStore.save`` writes it.

    Tools, writers and readers get a space and can reach nothing outside it.
    """

    def __init__(
        self,
        namespace: str,
        bank: MemoryBank | None = None,
        index: MemoryIndex | None = None,
        dense: DenseIndex | None = None,
    ) -> None:
        """Make a space, empty unless a bank is given; index and archive get empty copies of ``dense``."""
        self.namespace = namespace
        self.bank = bank if bank is not None else MemoryBank(namespace)
        for_index, for_archive = (None if dense is None else dense.empty_copy() for _ in range(2))
        self.index = index if index is not None else MemoryIndex(for_index)
        self.archive = Archive(for_archive)
        self.sessions: dict[str, IngestedSession] = {}
        self.revision = 0
        """The number of times that the namespace had been saved when this was loaded; a save checks it."""
        self.saved = MemoryBank(namespace)
        """The bank as it is stored; a save writes the operations after it."""
        self.saved_sessions: frozenset[str] = frozenset()
        """The ids of the stored sessions."""
        self.snapshot_version = 0
        """The version of the stored snapshot; 0 without one."""
        self._valid_times: tuple[MemoryBank, int, ValidTimes] | None = None  # of a bank with n sessions

    def __repr__(self) -> str:
        return f"<MemorySpace {self.namespace!r}: {len(self.bank.live())} memories>"

    def has_session(self, session: Session) -> bool:
        """Say whether this session was ingested.

        Raises:
            SessionConflictError: a session of the same id but with other content was ingested.
        """
        known = self.sessions.get(session.session_id)
        if known is None:
            return False
        if known.session.fingerprint != session.fingerprint:
            raise SessionConflictError(
                f"{session.session_id!r} of namespace {self.namespace!r} was ingested with other content: "
                "give the new session a number of its own, or use another namespace"
            )
        return True

    def ingest(self, session: Session, record: SessionRecord) -> None:
        """Archive a session's turns and record that it was ingested; its operations are in the bank."""
        self.restore([IngestedSession(session, self.bank.version, record)])

    def log_session(self, record: SessionRecord) -> None:
        """Log the outcome of a session at level INFO: counts only, never what was said."""
        if _logger.isEnabledFor(logging.INFO):
            live = self.bank.live()
            _logger.info(
                "%s %s: calls %d, refused %d, failed %d, operations %d; the bank has %d memories, %d tokens",
                self.namespace,
                record.session_id,
                record.tool_calls,
                len(record.tool_errors),
                len(record.failures),
                record.operations,
                len(live),
                count_memory_tokens(live, self.bank.core),
            )

    def restore(self, ingested: Sequence[IngestedSession]) -> None:
        """Add sessions that were ingested earlier, in their order: from a database or a file."""
        self.archive.add_sessions([one.session for one in ingested])
        self.sessions.update({one.session.session_id: one for one in ingested})

    def adopt(self, draft: "MemorySpace") -> None:
        """Replace the content of this space by that of its fork.

        Raises:
            ConflictError: this space was written after the fork; it is unchanged.
        """
        if not draft.bank.extends(self.bank) or not draft.sessions.keys() >= self.sessions.keys():
            raise ConflictError(
                f"namespace {self.namespace!r} was written since the fork was made: fork it again, and "
                "ingest one session at a time"
            )
        self.bank, self.index, self.archive = draft.bank, draft.index, draft.archive
        self.sessions = draft.sessions

    def before(self, session: Session) -> "MemorySpace":
        """Return the space as it was before a session; a fork if the session was not ingested.

        It ends with the session before: later operations outside any session are not in it. Its index is
        rebuilt.
        """
        if session.session_id not in self.sessions:
            return self.fork()
        ids = list(self.sessions)
        earlier = [self.sessions[name] for name in ids[: ids.index(session.session_id)]]
        bank = self.bank.at(earlier[-1].version if earlier else 0)
        space = MemorySpace(self.namespace, bank, dense=self.index.dense)
        space.restore(earlier)
        return space

    def valid_times(self) -> ValidTimes:
        """Return when each memory, and each text of the core block, held; see ``validity``."""
        bank, cached = self.bank.fork(), self._valid_times
        if (
            cached is None
            or (cached[0].version, cached[1]) != (bank.version, len(self.sessions))
            or not bank.extends(cached[0])
        ):
            days = {name: one.session.date_time.date() for name, one in self.sessions.items()}
            cached = (bank, len(self.sessions), find_valid_times(bank.operations(), days))
            self._valid_times = cached
        return cached[2]

    def search_turns(self, query: str, top_k: int) -> list[ScoredTurn]:
        """Search the archive, without the turns that a memory is from which a user had forgotten."""
        forgotten = self.valid_times().forgotten
        hidden = {turn_id for name in forgotten for turn_id in self.bank.get(name).sources}
        found = self.archive.search(query, top_k)
        return [scored for scored in found if scored.turn.turn_id not in hidden] if hidden else found

    def at_date(self, day: date) -> "MemorySpace":
        """Return the space with the memories that held on a day: to be read, not to be written.

        It has the core block of that day, and the sessions up to it. This is valid time: what was told later
        of an earlier day counts. ``bank.at`` gives what was known at a version.
        """
        times = self.valid_times()
        live = [name for name, validity in times.memories.items() if validity.held_during(day, day)]
        core = next((text for text, validity in times.cores[::-1] if validity.held_during(day, day)), "")
        bank = self.bank.with_live(live, core)
        view = MemorySpace(self.namespace, bank, self.index.empty_copy())
        view.archive = self.archive.empty_copy()
        view.restore([one for one in self.sessions.values() if one.session.date_time.date() <= day])
        view._valid_times = (view.bank, len(view.sessions), times.until(day))
        return view

    def fork(self) -> "MemorySpace":
        """Copy the space; neither copy sees later changes of the other."""
        space = MemorySpace(self.namespace, self.bank.fork(), self.index.fork())
        space.archive = self.archive.fork()
        space.sessions = dict(self.sessions)
        space.revision, space.saved, space.saved_sessions = self.revision, self.saved, self.saved_sessions
        space.snapshot_version = self.snapshot_version
        return space
