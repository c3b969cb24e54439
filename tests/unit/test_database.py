"""Errors of a database that cannot be opened, read or written, with what to do about them."""

import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from memory_program.bank.memory import Draft, MemoryKind, Provenance
from memory_program.bank.space import MemorySpace
from memory_program.bank.store import BankStore
from memory_program.core.errors import ConfigError, SchemaVersionError, StoreError
from tests.databases import DATABASES, NO_POSTGRES, POSTGRES_URL, empty_database, execute


@pytest.mark.skipif(POSTGRES_URL is None, reason=NO_POSTGRES)
def test_these_tests_run_on_postgresql_too() -> None:
    assert "postgresql" in DATABASES


def write(space: MemorySpace, *texts: str) -> None:
    for text in texts:
        space.bank.create([Draft(text, MemoryKind.SEMANTIC)], Provenance("semantic"))


def texts(space: MemorySpace) -> list[str]:
    return [memory.text for memory in space.bank.live()]


def test_sqlite_is_set_up_to_survive_a_power_failure(tmp_path: Path) -> None:
    with (
        BankStore(f"sqlite:///{tmp_path / 'bank.sqlite'}") as store,
        store.database._engine.connect() as connection,
    ):
        wanted = {"synchronous": 2, "secure_delete": 1, "journal_mode": "wal"}
        assert {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in wanted} == wanted


@pytest.mark.parametrize("kind", DATABASES)
def test_another_schema_version_is_refused(kind: str, tmp_path: Path) -> None:
    with empty_database(kind, tmp_path) as url:
        BankStore(url).close()
        for version, way_out in [
            ("2", "update memory-program"),
            ("0", "with the version of memory-program that wrote"),
        ]:
            change = "UPDATE memory_meta SET value = :version WHERE key = 'schema_version'"
            execute(url, change, version=version)
            with pytest.raises(
                SchemaVersionError, match=f"schema version '{version}', this code reads 1: .*{way_out}"
            ):
                BankStore(url)


def test_a_file_that_is_not_a_database_is_left_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes\n" * 100)
    with pytest.raises(StoreError, match=r"notes\.txt is not a database"):
        BankStore(f"sqlite:///{path}")
    assert path.read_text() == "these are my notes\n" * 100


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda content: content[: len(content) // 2], r"is damaged \(.* malformed\), .*: restore it from a"),
        (
            lambda content: bytes(len(content)),
            "is not a database: .* if it was a store, restore it from a backup",
        ),
    ],
)
def test_a_damaged_database_is_named_with_the_way_out(
    damage: Callable[[bytes], bytes], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "bank.sqlite"
    with BankStore(f"sqlite:///{path}") as store:
        write(space := store.load("test"), *(f"Fact {number}." for number in range(200)))
        store.save(space)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(StoreError, match=says), BankStore(f"sqlite:///{path}") as store:
        store.load("test")


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        StoreError, match=r"nowhere/bank\.sqlite cannot be opened .* must exist and be writable"
    ):
        BankStore(f"sqlite:///{tmp_path}/nowhere/bank.sqlite")


def test_a_read_only_database_is_refused_on_save(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    with BankStore(f"sqlite:///{path}") as store:
        store.save(store.load("test"))
    with BankStore(f"sqlite:///file:{path}?mode=ro&uri=true") as store:
        assert store.namespaces() == ["test"]
        write(space := store.load("test"), "A fact.")
        with pytest.raises(StoreError, match=r"cannot be opened for writing .*readonly"):
            store.save(space)
        assert space.revision == 1


def test_a_save_waits_for_a_locked_database_and_then_fails(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    with BankStore(f"sqlite:///{path}", busy_timeout_s=0.3) as store:
        space = store.load("test")
        write(space, "A fact.")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        with pytest.raises(
            StoreError, match=r"bank\.sqlite is locked by another process .* 0\.3 s; nothing was"
        ):
            store.save(space)
        assert 0.25 < time.monotonic() - started < 5
        assert store.load("test").revision == 0  # readers are not locked out
        other.execute("COMMIT")
        other.close()
        store.save(space)
        assert texts(store.load("test")) == ["A fact."]


def test_a_save_waits_for_a_lock_that_is_freed_in_time(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    with BankStore(f"sqlite:///{path}", busy_timeout_s=10) as store:
        space = store.load("test")
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.2, lambda: other.execute("COMMIT"))
        timer.start()
        store.save(space)
        timer.join()
        other.close()
        assert store.namespaces() == ["test"]


def test_sqlite_keeps_a_write_ahead_log(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    BankStore(f"sqlite:///{path}").close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("kind", DATABASES)
def test_a_damaged_row_is_reported(kind: str, tmp_path: Path) -> None:
    with empty_database(kind, tmp_path) as url, BankStore(url) as store:
        write(space := store.load("test"), "A fact.", "Another.")
        store.save(space)
        for broken in ("{", '{"kind": "create"}', "[]"):
            change = "UPDATE memory_operations SET operation = :broken WHERE version = 2"
            execute(url, change, broken=broken)
            with pytest.raises(StoreError, match=r"namespace 'test' of .* is damaged"):
                store.load("test")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("memories.sqlite", r"'memories\.sqlite' is not a database URL: for a file write sqlite:///"),
        ("sqlite://memories.sqlite", r"sqlite://memories\.sqlite' is not a database URL: .* sqlite:///"),
        ("sqlite://my/memories.sqlite", r"'sqlite://my/memories\.sqlite' is not a database URL"),
        ("sqlite:///a.db?timeout=abc", r"'sqlite:///a\.db\?timeout=abc' is not a database URL"),
        ("user:secret@host", "the text given is not a database URL"),
        ("postgresql://user:pa@ss:secret@host/name", "the text given is not a database URL"),
        ("postgresql://host:54x2/name", "'postgresql://host:54x2/name' is not a database URL"),
        ("mysql://user:secret@host/name", r"unknown database 'mysql': choose from sqlite, .*postgresql"),
        ("postgresql://user@127.0.0.1:1/name?password=secret", r"://user@127\.0\.0\.1:1/name failed"),
        (
            "postgresql://user:secret@127.0.0.1:1/name",
            r"postgresql\+psycopg://user:\*\*\*@127.0.0.1:1/name failed",
        ),
    ],
)
def test_an_invalid_url_is_refused_without_showing_its_password(url: str, says: str) -> None:
    if url.startswith("postgresql"):
        pytest.importorskip("psycopg")
    with pytest.raises(StoreError, match=says) as caught:
        BankStore(url)
    error: BaseException | None = caught.value
    while error is not None:
        assert "secret" not in f"{error} {error!r}"
        error = error.__cause__ or error.__context__


def test_a_missing_driver_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"pip install 'memory-program\[postgres\]'"):
        BankStore("postgresql://host/name")


def test_a_negative_timeout_is_refused() -> None:
    with pytest.raises(ConfigError, match="busy_timeout_s=-1"):
        BankStore("sqlite://", busy_timeout_s=-1)
