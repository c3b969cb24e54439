"""A database that somebody else holds, a server that answers one agent badly: what becomes of the work."""

import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from memory_program.bank.space import MemorySpace
from memory_program.bank.store import BankStore
from memory_program.core.errors import StoreError
from tests import bank_writer
from tests.conftest import CHECKOUT
from tests.killed_runs import Toll
from tests.model_server import Behaviour


def locked(folder: Path) -> Toll:
    """Hold the lock of a database longer than a store waits, and less long than another one does."""
    toll, path = Toll(), folder / "locked.sqlite"
    url = f"sqlite:///{path}"
    with BankStore(url, busy_timeout_s=0.2) as store:
        space = store.load("test")
        bank_writer.remember(space, 1)
        locker = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for number in range(5):
            locker.execute("BEGIN IMMEDIATE")
            try:
                store.save(space)
                toll.doubled += 1  # it wrote where another process was writing
            except StoreError:
                toll.strikes += 1
            locker.execute("ROLLBACK")
            store.save(space)
            bank_writer.remember(space, number + 2)
        store.save(space)
        locker.execute("BEGIN IMMEDIATE")
        with ThreadPoolExecutor(1) as pool, BankStore(url, busy_timeout_s=30) as patient:
            later = patient.load("test")
            bank_writer.remember(later, 7)
            saving = pool.submit(patient.save, later)
            time.sleep(0.5)
            toll.strikes += 1
            locker.execute("ROLLBACK")
            saving.result()
        locker.close()
    _compare_sessions(toll, url, 7)
    return toll


def two_writers(folder: Path, sessions: int = 12) -> Toll:
    """Let two processes remember in one namespace at the same time."""
    url = f"sqlite:///{folder / 'shared.sqlite'}"
    command = [sys.executable, "-m", "tests.bank_writer", url, "test"]
    writers = [
        subprocess.Popen([*command, str(first), str(sessions)], cwd=CHECKOUT, stdout=subprocess.DEVNULL)
        for first in (1, 1 + sessions)
    ]
    toll = Toll(strikes=len(writers))
    toll.lost += sum(writer.wait(timeout=600) != 0 for writer in writers)
    _compare_sessions(toll, url, 2 * sessions)
    return toll


def _compare_sessions(toll: Toll, url: str, sessions: int) -> None:
    """Each session has all of its operations, once."""
    with BankStore(url) as store:
        space = store.load("test")
    found = Counter(operation.provenance.session_id for operation in space.bank.operations())
    wanted = Counter({f"session_{number}": bank_writer.OPERATIONS for number in range(1, sessions + 1)})
    toll.add(wanted, found)
    toll.half += sum(0 < found[name] < wanted[name] for name in wanted) + (set(space.sessions) != set(wanted))


def session_under_fault() -> Callable[[Behaviour], Toll]:
    """Give what remembers a session under a fault, and compares it with one without."""
    from tests.integration import test_faults as faults  # with DSPy, whose import takes seconds

    good = MemorySpace("mara")
    record = faults.third_session(good, faults.always(Behaviour.COMPETENT))
    wanted = Counter(map(repr, faults.written(good, 0)))
    of_agent = Counter(map(repr, (entry for entry in faults.written(good, 0) if entry[0] == "episodic")))

    def strike(behaviour: Behaviour) -> Toll:
        toll, space = Toll(strikes=1), MemorySpace("mara")
        struck = faults.third_session(space, faults.only(faults.EPISODIC, behaviour))
        is_read = behaviour is Behaviour.DRIP
        toll.add(wanted if is_read else wanted - of_agent, Counter(map(repr, faults.written(space, 0))))
        is_counted = bool(struck.failures or len(struck.tool_errors) > len(record.tool_errors))
        toll.lost += is_counted == is_read  # a fault that nobody counted is a loss in silence
        faults.assert_whole(space, (faults.THIRD,))
        return toll

    return strike
