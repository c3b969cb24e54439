"""A process killed with SIGKILL at any moment leaves each session wholly in the store or wholly out of it."""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory_program.bank.bank import MemoryBank
from memory_program.bank.store import BankStore
from tests import bank_writer
from tests.databases import DATABASES, NO_POSTGRES, POSTGRES_URL, empty_database

CHECKOUT = Path(__file__).resolve().parents[2]


def start_writer(url: str, first: int, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.bank_writer", url, "test", str(first), str(count)]
    return subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)


def assert_whole(store: BankStore) -> list[str]:
    """Check that every session is complete, and give the sessions that are there."""
    space = store.load("test")
    operations = space.bank.operations()
    assert [operation.version for operation in operations] == list(range(1, len(operations) + 1))
    counts = Counter(operation.provenance.session_id for operation in operations)
    assert counts == dict.fromkeys(space.sessions, bank_writer.OPERATIONS)
    assert [ingested.version for ingested in space.sessions.values()] == [
        bank_writer.OPERATIONS * place for place in range(1, len(space.sessions) + 1)
    ]
    assert [spoken.session_id for spoken in space.archive.sessions] == list(space.sessions)
    assert space.revision == len(space.sessions)
    assert MemoryBank.replay("test", operations).live() == space.bank.live()
    return list(space.sessions)


@pytest.mark.skipif(POSTGRES_URL is None, reason=NO_POSTGRES)
def test_these_tests_run_on_postgresql_too() -> None:
    assert "postgresql" in DATABASES


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database, laid out."""
    with empty_database(request.param, tmp_path) as url:
        BankStore(url).close()
        yield url


def test_sessions_are_whole_after_random_kills(url: str) -> None:
    rng = random.Random(1)
    sessions: list[str] = []
    for _ in range(4):
        writer = start_writer(url, len(sessions) + 1, 10_000)
        assert writer.stdout is not None
        announced = [int(writer.stdout.readline())]
        time.sleep(rng.uniform(0, 0.4))
        writer.kill()
        announced += [int(line) for line in writer.stdout]
        assert writer.wait() == -9
        with BankStore(url) as store:
            sessions = assert_whole(store)
        assert max(announced) <= len(sessions) <= max(announced) + 1
    assert len(sessions) >= 4


def test_a_session_is_whole_if_the_process_dies_during_any_statement(url: str) -> None:
    deaths = 0
    for statement in range(1, 100):
        child = os.fork()
        if child == 0:  # a process of its own that needs no second of imports
            try:
                bank_writer.main(url, "test", 1, 1, die_at=statement)
                os._exit(0)
            except BaseException:  # noqa: BLE001 - the parent's test run must not go on in the child
                os._exit(1)
        _, status = os.waitpid(child, 0)
        with BankStore(url) as store:
            sessions = assert_whole(store)
        if os.WIFEXITED(status):
            assert (os.WEXITSTATUS(status), sessions) == (0, ["session_1"])
            break
        assert (os.WTERMSIG(status), sessions) == (9, [])
        deaths += 1
    assert deaths >= 8  # begin, reads, the writes of each table, commit
