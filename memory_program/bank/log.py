"""The operations of a bank, with states to begin from, shared by its forks until they part ways."""

import threading
from collections.abc import Callable, Iterable

from memory_program.bank.fold import BankState, apply_operation
from memory_program.bank.memory import Operation

_CHECKPOINT_EVERY = 64  # an earlier state is a fold of fewer operations; each checkpoint shares its maps


class OperationLog:
    """What was done to a bank and to every fork of it that has not diverged yet.

    A log begins with nothing, or with the state of a snapshot; what led to that is read when somebody first
    asks for it.
    """

    def __init__(
        self, first: BankState | None = None, read_past: Callable[[], Iterable[Operation]] | None = None
    ) -> None:
        """Begin a log.

        Args:
            first: the state of a snapshot; without it, an empty bank.
            read_past: gives the operations that led to that state.
        """
        self._operations: list[Operation] = []
        self._checkpoints = [BankState() if first is None else first]
        self._past = _EarlierLog(read_past) if read_past is not None else None
        self._lock = threading.Lock()

    @property
    def start(self) -> int:
        """The version with which the log begins."""
        return self._checkpoints[0].version

    def between(self, since: int, until: int) -> list[Operation]:
        """List the operations after version ``since``, up to and with that which made ``until``."""
        start = self.start
        if since >= until:
            return []
        before = self._past.log().between(since, min(until, start)) if self._past and since < start else []
        return before + self._operations[max(since - start, 0) : max(until - start, 0)]

    def log_containing(self, version: int) -> "OperationLog":
        """Give the log in which a version can be continued: this one, or the one before the snapshot."""
        return self._past.log() if self._past and version < self.start else self

    def state_at(self, version: int) -> BankState:
        """Fold the log up to a version that it holds."""
        log = self.log_containing(version)
        state = log._checkpoints[(version - log.start) // _CHECKPOINT_EVERY]
        for operation in log.between(state.version, version):
            state = apply_operation(state, operation)
        return state

    def has_same_prefix(self, other: "OperationLog", until: int) -> bool:
        """Say whether two logs hold the same operations up to a version.

        A checkpoint that both hold is proof for what led to it: only a copy of a log shares one with it.
        """
        if self is other:
            return True
        pairs = zip(
            reversed(self._checkpoints[: len(other._checkpoints)]),
            reversed(other._checkpoints[: len(self._checkpoints)]),
            strict=True,
        )
        shared = (mine.version for mine, theirs in pairs if mine is theirs and mine.version <= until)
        since = next(shared, 0)
        return self.between(since, until) == other.between(since, until)

    def append(self, operation: Operation, state: BankState) -> "OperationLog":
        """Add an operation and the state after it, and give the log that holds them.

        That is this log, unless it goes on otherwise already: then it is a copy up to there.
        """
        held = operation.version - 1 - self.start
        with self._lock:
            log = self if len(self._operations) == held else self._copy(held)
            log._operations.append(operation)
            if (held + 1) % _CHECKPOINT_EVERY == 0:
                log._checkpoints.append(state)
        return log

    def _copy(self, held: int) -> "OperationLog":
        log = OperationLog()
        log._operations = self._operations[:held]
        log._checkpoints = self._checkpoints[: held // _CHECKPOINT_EVERY + 1]
        log._past = self._past
        return log


class _EarlierLog:
    """The log before a snapshot."""

    def __init__(self, read: Callable[[], Iterable[Operation]]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._log: OperationLog | None = None

    def log(self) -> OperationLog:
        with self._lock:
            if self._log is None:
                log, state = OperationLog(), BankState()
                for operation in self._read():
                    state = apply_operation(state, operation)
                    log = log.append(operation, state)
                self._log = log
            return self._log
