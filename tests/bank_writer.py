"""A process that remembers sessions in a store: ``python -m tests.bank_writer URL NAMESPACE FIRST COUNT``.

It prints the number of each session after it was saved. With a fifth argument N it kills itself with
SIGKILL just before the N-th statement that it sends to the database after opening it.
"""

import os
import signal
import sys

from sqlalchemy import Engine, event

from memory_program.bank.memory import Draft, MemoryKind, Provenance
from memory_program.bank.outcomes import SessionRecord
from memory_program.bank.space import MemorySpace
from memory_program.bank.store import BankStore
from memory_program.core.errors import ConflictError
from tests.conversations import session

OPERATIONS = 60
"""How many operations each session has."""


def remember(space: MemorySpace, number: int) -> None:
    """Ingest a session with its operations: creations, some of which are updated."""
    spoken = session(number, f"Mara: line of session {number}", "Tom: I see.")
    by = Provenance("semantic", spoken.session_id, "said so")
    for place in range(OPERATIONS // 2):
        draft = Draft(f"Fact {place} of session {number}: {'words ' * 40}", MemoryKind.SEMANTIC)
        created = space.bank.create([draft], by).created[0]
        space.bank.update(created.memory_id, draft, by)
    space.ingest(spoken, SessionRecord(spoken.session_id, OPERATIONS))


def die_before_statement(count: int) -> None:
    """Arrange for the end of this process."""
    remaining = count

    def count_down(*_: object) -> None:
        nonlocal remaining
        remaining -= 1
        if remaining == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, "before_cursor_execute", count_down)
    event.listen(Engine, "commit", count_down)


def main(url: str, namespace: str, first: int, count: int, die_at: int = 0) -> None:
    """Remember sessions, one save each; a conflict is loaded and tried again."""
    with BankStore(url, busy_timeout_s=60) as store:
        if die_at:
            die_before_statement(die_at)
        for number in range(first, first + count):
            while True:
                space = store.load(namespace)
                if f"session_{number}" in space.sessions:
                    break  # a process that died had sent its commit
                remember(space, number)
                try:
                    store.save(space)
                    break
                except ConflictError:
                    continue
            print(number, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
