"""Processes that write to one store at once lose no operation and double none."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from memory_program.bank.store import BankStore
from tests.bank_writer import OPERATIONS
from tests.databases import DATABASES, NO_POSTGRES, POSTGRES_URL, empty_database

CHECKOUT = Path(__file__).resolve().parents[2]
SESSIONS = 12


@pytest.mark.skipif(POSTGRES_URL is None, reason=NO_POSTGRES)
def test_these_tests_run_on_postgresql_too() -> None:
    assert "postgresql" in DATABASES


def run_writers(url: str, *namespaces: str) -> None:
    """Let a writer work on each of the namespaces, all at the same time."""
    writers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.bank_writer", url, name, str(1 + SESSIONS * place), str(SESSIONS)],
            cwd=CHECKOUT,
            stdout=subprocess.DEVNULL,
        )
        for place, name in enumerate(namespaces)
    ]
    assert [writer.wait(timeout=120) for writer in writers] == [0] * len(writers)


@pytest.mark.parametrize("kind", DATABASES)
def test_two_processes_in_one_namespace_lose_and_repeat_nothing(kind: str, tmp_path: Path) -> None:
    with empty_database(kind, tmp_path) as url:
        run_writers(url, "shared", "shared")  # the database is new: they lay it out at once, too
        with BankStore(url) as store:
            space = store.load("shared")
        counts = Counter(operation.provenance.session_id for operation in space.bank.operations())
        assert counts == {f"session_{number}": OPERATIONS for number in range(1, 2 * SESSIONS + 1)}
        assert sorted(counts) == sorted(space.sessions)
        assert space.revision == 2 * SESSIONS


@pytest.mark.parametrize("kind", DATABASES)
def test_two_processes_in_two_namespaces_do_not_interfere(kind: str, tmp_path: Path) -> None:
    with empty_database(kind, tmp_path) as url:
        run_writers(url, "alice", "bob")
        with BankStore(url) as store:
            alice, bob = store.load("alice"), store.load("bob")
        assert list(alice.sessions) == [f"session_{number}" for number in range(1, SESSIONS + 1)]
        assert list(bob.sessions) == [f"session_{number}" for number in range(SESSIONS + 1, 2 * SESSIONS + 1)]
        assert alice.bank.version == bob.bank.version == SESSIONS * OPERATIONS
        assert alice.revision == bob.revision == SESSIONS
