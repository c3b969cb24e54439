"""A bank of memories: an append-only log of operations and its fold.

The live memories are a fold over the log. Two snapshots are two versions of one log, an undo is a shorter
prefix, a rollout is a fork; a deleted memory can always be recovered.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from memory_program.bank.fold import BankState, apply_operation
from memory_program.bank.log import OperationLog
from memory_program.bank.memory import (
    CORE_LIMIT_CHARS,
    Draft,
    Memory,
    MemoryKind,
    Operation,
    OperationKind,
    Provenance,
    memory_number,
)
from memory_program.core.errors import MemoryOperationError, UnknownMemoryError


@dataclass(frozen=True, slots=True)
class BankDiff:
    """The changes between two versions of a bank.

    A memory that was created and superseded in between is in neither list.
    """

    created: tuple[Memory, ...]
    superseded: tuple[Memory, ...]
    core_before: str
    core_after: str


class MemoryBank:
    """The memories of one namespace.

    A bank only grows: ``undo`` and ``at`` return another bank. Any thread may read; one thread at a time may
    write to a bank, while others write to its forks. A version that the bank does not have, a memory that is
    not live, and any operation that does not follow from the state raise a MemoryOperationError, and leave
    the bank unchanged.

    Example:
        >>> bank = MemoryBank("alice")
        >>> by = Provenance(actor="semantic", session_id="session_1")
        >>> made = bank.create([Draft("Alice lives in Oslo.", MemoryKind.SEMANTIC)], by)
        >>> _ = bank.update("m1", Draft("Alice lives in Bergen.", MemoryKind.SEMANTIC), by)
        >>> [memory.text for memory in bank.live()]
        ['Alice lives in Bergen.']
        >>> [memory.text for memory in bank.undo().live()]
        ['Alice lives in Oslo.']
    """

    def __init__(self, namespace: str) -> None:
        """Make an empty bank."""
        self.namespace = namespace
        self._log = OperationLog()
        self._state = BankState()
        self._sorted_live: tuple[BankState, list[Memory]] | None = None  # cached for one state

    # -- reading ---------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The number of operations in the log."""
        return self._state.version

    @property
    def core(self) -> str:
        """The core block: a short profile that every reader sees."""
        return self._state.core

    def __len__(self) -> int:
        """Count the live memories."""
        return self._state.live_count

    def __contains__(self, memory_id: object) -> bool:
        """Say whether a memory of this id is live."""
        memory = self._state.get(memory_id) if isinstance(memory_id, str) else None
        return memory is not None and memory.is_live

    def get(self, memory_id: str) -> Memory:
        """Look a memory up, live or superseded; an unknown id raises an UnknownMemoryError."""
        memory = self._state.get(memory_id)
        if memory is None:
            raise UnknownMemoryError(f"{memory_id!r} is not in bank {self.namespace!r} ({self._known_ids()})")
        return memory

    def live(self, kind: MemoryKind | None = None) -> list[Memory]:
        """List the live memories in the order of their creation."""
        state, cached = self._state, self._sorted_live
        if cached is None or cached[0] is not state:
            self._sorted_live = cached = (state, state.live())
        return [memory for memory in cached[1] if kind is None or memory.kind is kind]

    def operations(self, since: int = 0) -> list[Operation]:
        """List the operations after version ``since``."""
        return self._log.between(since, self.version)

    def extends(self, other: "MemoryBank") -> bool:
        """Say whether this bank's log begins with the whole log of another; fast for its forks."""
        return other.version <= self.version and self._log.has_same_prefix(other._log, other.version)

    def history(self, memory_id: str) -> list[Operation]:
        """List the operations that led to a memory or followed from it, oldest first."""
        made_in = self.get(memory_id).created
        ancestors, descendants = {memory_id}, {memory_id}
        led: list[Operation] = []
        for operation in reversed(self._log.between(0, made_in)):
            if not ancestors.isdisjoint(memory.memory_id for memory in operation.created):
                ancestors.update(operation.superseded)
                led.append(operation)
        followed: list[Operation] = []
        for operation in self.operations(since=made_in):
            if not descendants.isdisjoint(operation.superseded):
                descendants.update(memory.memory_id for memory in operation.created)
                followed.append(operation)
        return [*reversed(led), *followed]

    def diff(self, older: int, newer: int | None = None) -> BankDiff:
        """Compare two versions of this bank; ``newer`` is the current one by default."""
        newer = self.version if newer is None else newer
        if older > newer:
            raise MemoryOperationError(f"older={older} must not be above newer={newer}: swap them")
        before, after = self.at(older)._state, self.at(newer)._state
        between = self._log.between(older, newer)
        made = (memory.memory_id for operation in between for memory in operation.created)
        ended = (name for operation in between for name in operation.superseded)
        created = [memory for memory in map(after.get, made) if memory is not None and memory.is_live]
        was_live = [name for name in ended if (old := before.get(name)) is not None and old.is_live]
        superseded = [after.get(name) for name in dict.fromkeys(was_live)]

        def by_number(memories: Iterable[Memory | None]) -> tuple[Memory, ...]:
            return tuple(sorted(filter(None, memories), key=lambda memory: memory_number(memory.memory_id)))

        return BankDiff(by_number(created), by_number(superseded), before.core, after.core)

    # -- other banks -----------------------------------------------------------------------------

    def fork(self, namespace: str | None = None) -> "MemoryBank":
        """Copy the bank in O(1); neither copy sees later changes of the other."""
        return self._with_state(self._state, namespace)

    def at(self, version: int, namespace: str | None = None) -> "MemoryBank":
        """Return the bank as it was at a version, ready to be read or written."""
        if not 0 <= version <= self.version:
            raise MemoryOperationError(f"version={version} must be from 0 to {self.version}, the current one")
        if version == self.version:
            return self.fork(namespace)
        earlier = self._with_state(self._log.state_at(version), namespace)
        earlier._log = self._log.log_containing(version)
        return earlier

    def with_live(self, memory_ids: Collection[str], core: str) -> "MemoryBank":
        """Return the bank with other memories live and another core block: to be read, not to be written."""
        state = self._state.compacted()
        frozen = state.frozen.with_live([memory_number(memory_id) for memory_id in memory_ids])
        return self._with_state(
            replace(state, frozen=frozen, live_count=len(memory_ids), core=core), self.namespace
        )

    def undo(self, count: int = 1) -> "MemoryBank":
        """Return the bank without its last operations. This one keeps them."""
        if not 0 <= count <= self.version:
            raise MemoryOperationError(
                f"count={count} must be from 0 to {self.version}, the number of operations"
            )
        return self.at(self.version - count)

    def version_before_last_change(self) -> int:
        """Return the version before the last change: all that one session, import or request wrote.

        Raises:
            MemoryOperationError: the bank is empty.
        """
        operations = self.operations()
        if not operations:
            raise MemoryOperationError("the bank is empty: there is nothing to undo")
        last = operations[-1].provenance.session_id
        count = 1
        while last and count < len(operations) and operations[-count - 1].provenance.session_id == last:
            count += 1
        return self.version - count

    @classmethod
    def replay(cls, namespace: str, operations: Iterable[Operation]) -> "MemoryBank":
        """Fold a log into a bank."""
        bank = cls(namespace)
        for operation in operations:
            bank.append(operation)
        return bank

    @classmethod
    def from_snapshot(
        cls, namespace: str, state: BankState, read_past: Callable[[], Iterable[Operation]]
    ) -> "MemoryBank":
        """Begin with the state of a snapshot; ``read_past`` gives the operations before it when needed."""
        bank = cls(namespace)
        past_log = cache(lambda: cls.replay(namespace, read_past())._log)
        bank._log, bank._state = OperationLog(state, past_log), state
        return bank

    def compacted(self) -> BankState:
        """Return the state with every memory, live and superseded, in columns, for a snapshot."""
        return self._state.compacted()

    def adopt_compacted(self, state: BankState) -> None:
        """Switch to a state that ``compacted`` returned, unless the bank was written since: it is smaller."""
        if self._state.version == state.version:
            self._state = state

    # -- writing ---------------------------------------------------------------------------------

    def create(self, drafts: Sequence[Draft], by: Provenance) -> Operation:
        """Add one or more memories in one operation."""
        if not drafts:
            raise MemoryOperationError("nothing to create: give at least one memory")
        return self._supersede(OperationKind.CREATE, (), drafts, by)

    def update(self, memory_id: str, draft: Draft, by: Provenance, *, keeps_date: bool = True) -> Operation:
        """Replace a memory; the new one keeps the old sources, and the old date unless it has its own.

        With ``keeps_date=False`` a draft without a date makes a memory without one: its text names the time.
        """
        old = self._require_live(memory_id)
        if keeps_date:
            draft = replace(draft, happened_at=draft.happened_at or old.happened_at)
        return self._supersede(OperationKind.UPDATE, (old,), (draft,), by)

    def delete(self, memory_id: str, by: Provenance) -> Operation:
        """Supersede a memory by nothing. It stays in the log: ``undo``, ``at`` and ``get`` still find it."""
        return self._supersede(OperationKind.DELETE, (self._require_live(memory_id),), (), by)

    def forget(self, memory_id: str, by: Provenance) -> Operation:
        """Delete a memory, also one that was replaced before.

        An edit outside any session corrects the past: the memory then never held (see ``validity``).
        """
        return self._supersede(OperationKind.DELETE, (self.get(memory_id),), (), by)

    def merge(self, memory_ids: Sequence[str], draft: Draft, by: Provenance) -> Operation:
        """Replace two or more memories by one, which keeps all sources.

        It has the date of its draft, or the only date among the old memories. If they have different dates,
        it has none: its text has to say what happened when.
        """
        if len(set(memory_ids)) < 2 or len(set(memory_ids)) != len(memory_ids):
            raise MemoryOperationError(
                f"memory_ids={list(memory_ids)!r} must name at least two different memories"
            )
        old = tuple(self._require_live(memory_id) for memory_id in memory_ids)
        days = {memory.happened_at for memory in old if memory.happened_at}
        draft = replace(draft, happened_at=draft.happened_at or (days.pop() if len(days) == 1 else None))
        return self._supersede(OperationKind.MERGE, old, (draft,), by)

    def split(self, memory_id: str, drafts: Sequence[Draft], by: Provenance) -> Operation:
        """Replace a memory by two or more; each keeps its sources, and its date unless it has its own."""
        old = self._require_live(memory_id)
        if len(drafts) < 2:
            raise MemoryOperationError(f"{len(drafts)} parts: a split needs at least two")
        dated = [replace(draft, happened_at=draft.happened_at or old.happened_at) for draft in drafts]
        return self._supersede(OperationKind.SPLIT, (old,), dated, by)

    def edit_core(self, text: str, by: Provenance) -> Operation:
        """Replace the whole core block."""
        if len(text) > CORE_LIMIT_CHARS:
            raise MemoryOperationError(
                f"the core block would have {len(text)} characters: at most {CORE_LIMIT_CHARS} fit; "
                "rewrite it more tersely"
            )
        return self.append(Operation(OperationKind.EDIT_CORE, self.version + 1, by, core=text))

    def rebase(self, operations: Sequence[Operation]) -> list[Operation]:
        """Append operations that were recorded on a fork, and renumber the memories that they created.

        They are all operations since the fork, or the first of them: an id that none of them created means
        the memory that both banks had at the fork.

        Raises:
            UnknownMemoryError: one of them supersedes a memory that is not live here; the bank is unchanged.
        """
        rebased = self.fork()
        renamed: dict[str, str] = {}
        for operation in operations:
            version, created = rebased.version + 1, list[Memory]()
            for number, memory in enumerate(operation.created, start=rebased._state.next_number):
                renamed[memory.memory_id] = f"m{number}"
                created.append(replace(memory, memory_id=f"m{number}", created=version))
            superseded = tuple(renamed.get(name, name) for name in operation.superseded)
            if missing := [name for name in superseded if name not in rebased]:
                raise UnknownMemoryError(f"{missing[0]!r} is not live in version {rebased.version}")
            rebased.append(replace(operation, version=version, superseded=superseded, created=tuple(created)))
        added = rebased.operations(since=self.version)
        self._log, self._state = rebased._log, rebased._state
        return added

    def append(self, operation: Operation) -> Operation:
        """Append a complete operation, for example of a recorded log."""
        state = apply_operation(self._state, operation)
        self._log = self._log.append(operation, state)
        self._state = state
        return operation

    # -- inside ----------------------------------------------------------------------------------

    def _supersede(
        self,
        kind: OperationKind,
        old: Sequence[Memory],
        drafts: Sequence[Draft],
        by: Provenance,
    ) -> Operation:
        inherited = tuple(source for memory in old for source in memory.sources)
        version = self.version + 1
        created = tuple(
            Memory(
                memory_id=f"m{self._state.next_number + offset}",
                kind=draft.kind,
                text=draft.text.strip(),
                happened_at=draft.happened_at,
                sources=tuple(dict.fromkeys((*inherited, *draft.sources))),
                created=version,
            )
            for offset, draft in enumerate(drafts)
        )
        superseded = tuple(memory.memory_id for memory in old)
        return self.append(Operation(kind, version, by, superseded, created))

    def _require_live(self, memory_id: str) -> Memory:
        memory = self._state.get(memory_id)
        if memory is not None and memory.is_live:
            return memory
        if memory is not None:
            raise UnknownMemoryError(
                f"{memory_id!r} was superseded in version {memory.superseded}: "
                "search again for what replaced it"
            )
        raise UnknownMemoryError(f"{memory_id!r} is not a memory here ({self._known_ids()})")

    def _known_ids(self) -> str:
        last = self._state.next_number - 1
        return f"ids run from m1 to m{last}" if last else "it has no memories yet"

    def _with_state(self, state: BankState, namespace: str | None) -> "MemoryBank":
        bank = MemoryBank(self.namespace if namespace is None else namespace)
        bank._log, bank._state = self._log, state
        bank._sorted_live = self._sorted_live
        return bank
