"""Valid time: the days on which each memory, and each text of the profile, held.

Nothing of it is stored: it follows from the log of operations and the dates of the sessions.

- A memory begins to hold on the day of the session that told it. If it has the date of an event before that
  day, it begins on that date. A semantic or procedural memory that only kept the date of the one that it
  replaces begins with its session.
- It ends on the day on which the memories that replace it begin; if it was deleted, on the day of the
  session. What replaces a memory never begins before it.
- An edit outside any session (of a user, or of an import) has no day. It corrects: what it replaces never
  held, and what it made takes over that time. What it deletes never held, nor did its earlier versions: a
  user who had a memory forgotten does not meet it again in the past.
- Each text of the profile is treated as a memory that the next edit replaces. The lines that an edit outside
  any session takes out never held: they are left out of the earlier texts, too.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date

from memory_program.bank.budget import BUDGET_ACTOR
from memory_program.bank.memory import Memory, MemoryKind, Operation, OperationKind, Validity


@dataclass(frozen=True, slots=True)
class ValidTimes:
    """The validity of each memory by its id, and the texts of the profile with theirs, oldest first.

    ``dropped`` are the memories that were deleted for the memory budget alone: they may still be true.
    ``forgotten`` are those that were deleted outside any session, and their earlier versions.
    """

    memories: Mapping[str, Validity]
    cores: tuple[tuple[str, Validity], ...]
    dropped: frozenset[str] = frozenset()
    forgotten: frozenset[str] = frozenset()

    def until(self, day: date) -> "ValidTimes":
        """Return what had begun by a day; what ended later counts as not ended."""

        def clip(validity: Validity) -> Validity:
            is_later = validity.valid_to is not None and validity.valid_to > day
            return Validity(validity.valid_from, None if is_later else validity.valid_to)

        def has_begun(validity: Validity) -> bool:
            return validity.valid_from is None or validity.valid_from <= day

        return ValidTimes(
            {name: clip(validity) for name, validity in self.memories.items() if has_begun(validity)},
            tuple((text, clip(validity)) for text, validity in self.cores if has_begun(validity)),
            self.dropped,
            self.forgotten,
        )


def find_valid_times(operations: Iterable[Operation], session_days: Mapping[str, date]) -> ValidTimes:
    """Find out when each memory of a log held, given the days of the sessions by their ids."""
    made: dict[str, Memory] = {}
    begins: dict[str, date] = {}  # date.min: nothing says when
    ends: dict[str, date] = {}
    parents: dict[str, tuple[str, ...]] = {}
    cores: list[tuple[str, date]] = []
    dropped, forgotten = set[str](), set[str]()
    for operation in operations:
        said = session_days.get(operation.provenance.session_id)
        if operation.core is not None:
            last = cores[-1][1] if cores else date.min
            if said is None and cores:
                taken_out = {*cores[-1][0].splitlines()}.difference(operation.core.splitlines())
                cores = [
                    ("\n".join(line for line in text.splitlines() if line not in taken_out), day)
                    for text, day in cores
                ]
            cores.append((operation.core, max(said or date.min, last)))
        replaced = [made[memory_id] for memory_id in operation.superseded]
        kept = {old.happened_at for old in replaced}
        days = list[date]()
        for memory in operation.created:
            happened = memory.happened_at
            if said is None:
                days.append(date.min if replaced or happened is None else happened)
            elif happened is not None and (memory.kind is MemoryKind.EPISODIC or happened not in kept):
                days.append(min(said, happened))
            else:
                days.append(said)
        if replaced:
            # one day for all, so that no time lies between what ends and what replaces it
            earliest = max(begins[memory.memory_id] for memory in replaced)
            end = max([earliest, *(days or [said or date.min])])
            ends |= {memory.memory_id: end for memory in replaced}
            days = [end] * len(days)
        for memory, day in zip(operation.created, days, strict=True):
            made[memory.memory_id], begins[memory.memory_id] = memory, day
            parents[memory.memory_id] = operation.superseded
        if operation.kind is OperationKind.DELETE and operation.provenance.actor == BUDGET_ACTOR:
            dropped.update(operation.superseded)
        if operation.kind is OperationKind.DELETE and said is None:
            waiting = list(operation.superseded)
            while waiting:  # a split and a merge may lead to a memory by several ways
                name = waiting.pop()
                ends[name] = begins[name]
                waiting += [] if name in forgotten else parents[name]
                forgotten.add(name)
    return ValidTimes(
        {name: _make_validity(day, ends.get(name)) for name, day in begins.items()},
        tuple(
            (text, _make_validity(day, cores[place + 1][1] if place + 1 < len(cores) else None))
            for place, (text, day) in enumerate(cores)
        ),
        frozenset(dropped),
        frozenset(forgotten),
    )


def _make_validity(begin: date, end: date | None) -> Validity:
    return Validity(None if begin == date.min else begin, end)
