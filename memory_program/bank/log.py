"""The operations of a bank, and states to start from; forks share one log until they diverge."""

import threading
from collections.abc import Callable

from memory_program.bank.fold import BankState, apply_operation
from memory_program.bank.memory import Operation

_CHECKPOINT_EVERY = 64  # an earlier state is a fold of fewer operations; checkpoints share their maps


class OperationLog:
    """The operations applied to a bank and to all of its forks that have not diverged yet.

    A log begins with an empty bank, or with the state of a snapshot. The operations before the snapshot are
    read when they are first needed.
    """

    def __init__(
        self, first: BankState | None = None, read_past: "Callable[[], OperationLog] | None" = None
    ) -> None:
        """Begin a log.

        Args:
            first: the state of a snapshot; without it, an empty bank.
            read_past: reads the log that led to that state, or gives the one that was read already.
        """
        self._operations: list[Operation] = []
        self._checkpoints = [BankState() if first is None else first]
        self._read_past = read_past
        self._lock = threading.Lock()

    @property
    def start(self) -> int:
        """The version with which the log begins."""
        return self._checkpoints[0].version

    def between(self, since: int, until: int) -> list[Operation]:
        """List the operations after version ``since``, including the one that made version ``until``."""
        start = self.start
        if since >= until:
            return []
        earlier = self.log_containing(since)
        before = [] if earlier is self else earlier.between(since, min(until, start))
        return before + self._operations[max(since - start, 0) : max(until - start, 0)]

    def log_containing(self, version: int) -> "OperationLog":
        """Give the log in which a version can be continued: this one, or the one before the snapshot."""
        return self._read_past() if self._read_past and version < self.start else self

    def state_at(self, version: int) -> BankState:
        """Fold the log up to a version that it holds."""
        log = self.log_containing(version)
        state = log._checkpoints[(version - log.start) // _CHECKPOINT_EVERY]
        for operation in log.between(state.version, version):
            state = apply_operation(state, operation)
        return state

    def has_same_prefix(self, other: "OperationLog", until: int) -> bool:
        """Say whether two logs hold the same operations up to a version.

        A checkpoint that both hold proves that all operations before it are the same: only a copy of a log
        shares checkpoints with it.
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
        """Add an operation and the state after it, and return the log that holds them.

        If this log already continues with other operations, that is a copy of it up to this point.
        """
        held = operation.version - 1 - self.start
        with self._lock:
            log = self
            if len(self._operations) != held:
                log = OperationLog(read_past=self._read_past)
                log._operations = self._operations[:held]
                log._checkpoints = self._checkpoints[: held // _CHECKPOINT_EVERY + 1]
            log._operations.append(operation)
            if (held + 1) % _CHECKPOINT_EVERY == 0:
                log._checkpoints.append(state)
        return log
