"""Erasure of a conversation from databases, run folders, caches and MLflow, checked in the bytes of files.

The run comes from the real script, with an API key in its environment, server faults, and all calls traced.
"""

import base64
import gzip
import html
import json
import os
import re
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import mlflow
import pytest
from sqlalchemy import create_engine, make_url, text

from locomo.locomo import read_dataset
from locomo.types import Session, Turn
from memory_program.bank.__main__ import main as bank_command
from memory_program.bank.dense import DenseIndex
from memory_program.bank.forgetting import forget_namespace, text_from_banks
from memory_program.bank.memory import Draft, MemoryKind, Provenance
from memory_program.bank.outcomes import SessionRecord
from memory_program.bank.record_json import session_to_json
from memory_program.bank.store import BankStore
from memory_program.bank.turn_buffer import SessionRule, SpokenTurn, TurnBuffer
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.core.errors import ConfigError, RunInUseError, StoreError
from memory_program.core.mlflow_address import tracking_location
from memory_program.core.run_folder import lock_run_folder
from memory_program.forget.__main__ import main as forget_command
from memory_program.forget.mlflow_eraser import MlflowDeletion
from memory_program.forget.quote_matcher import QuoteMatcher
from memory_program.forget.run_eraser import forget_conversation
from memory_program.forget.run_folders import tracking_locations
from memory_program.rl.rollout_files import read_rollouts, write_rollouts
from memory_program.tracking import EXPERIMENT
from tests.conftest import CHECKOUT
from tests.conversations import session
from tests.databases import DATABASES, NO_POSTGRES, POSTGRES_URL, empty_database, execute
from tests.model_server import Behaviour, ModelServer, at_random
from tests.optimization_samples import write_conversations

needs_postgres = pytest.mark.skipif(POSTGRES_URL is None, reason=NO_POSTGRES)
# Other tests of PostgreSQL look for SECRET in statistics, which all schemas of a database share.
HIDDEN = "Erin hid the ring below the stairs"
SECRET, KEPT = "Alice buried the treasure under the linden", "Bob keeps his ladder in the shed"


def remember(url: str, namespace: str, secret: str, count: int = 40) -> None:
    """Fill several pages of a database; some memories are superseded, some operations retracted."""
    with BankStore(url) as store:
        for number in (1, 2):
            space = store.load(namespace)
            by = Provenance("test", f"session_{number}", f"{secret}, as said")
            for place in range(count):
                space.bank.create([Draft(f"{secret} {place}. {'x' * 300}", MemoryKind.SEMANTIC)], by)
            space.bank.update(
                space.bank.live()[0].memory_id, Draft(f"{secret}, corrected.", MemoryKind.SEMANTIC), by
            )
            space.bank.edit_core(f"{secret}!", by)
            space.ingest(session(number, f"{namespace}: {secret}."), SessionRecord(f"session_{number}", 1))
            store.save(space)
        store.rewind(namespace, count)


def forget(folder: Path, namespace: str = "alice", *flags: str) -> int:
    """Run the command on one folder, and return its exit status."""
    return forget_command(["--namespace", namespace, "--folder", str(folder), *flags])


def bytes_of(kind: str, url: str, folder: Path) -> bytes:
    """Every byte that a database has on the disk: its tables, indexes, long values, statistics."""
    if kind == "sqlite":
        return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
    with engine.connect() as connection:
        connection.exec_driver_sql("CHECKPOINT")  # what is in memory goes to the files
        files = connection.execute(
            text(
                "WITH mine AS (SELECT oid, reltoastrelid FROM pg_class WHERE relkind IN ('r', 'i') AND"
                " relnamespace = current_schema()::regnamespace) SELECT relname,"
                " pg_read_binary_file(pg_relation_filepath(oid)) FROM pg_class WHERE relname = 'pg_statistic'"
                " OR oid IN (SELECT oid FROM mine UNION SELECT reltoastrelid FROM mine)"
            )
        )
        found = b"".join(bytes(content) for _, content in files)
    engine.dispose()
    return found


@pytest.mark.parametrize("kind", DATABASES)
def test_an_erased_namespace_leaves_no_byte_and_others_are_whole(kind: str, tmp_path: Path):
    with empty_database(kind, tmp_path) as url:
        remember(url, "alice", SECRET)
        remember(url, "bob", KEPT)
        with BankStore(url) as store:
            before = store.load("bob")
            if kind == "postgresql":
                _analyse(url)
            assert SECRET.encode() in bytes_of(kind, url, tmp_path)
            forgotten = forget_namespace(url, "alice")  # a store that is open, but idle, is not in the way
            assert forgotten.rows["memory_namespaces"] == 1
            assert forgotten.rows["memory_operations"] == 2 * 42
            left = bytes_of(kind, url, tmp_path)
            assert SECRET.encode() not in left
            assert b"alice" not in left
            assert KEPT.encode() in left
            after = store.load("bob")
            assert store.namespaces() == ["bob"]
        assert after.bank.operations() == before.bank.operations()
        assert after.sessions == before.sessions
        assert not forget_namespace(url, "alice").was_known


def _analyse(url: str) -> None:
    """Have PostgreSQL keep statistics, as it does by itself after a while."""
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql("ANALYZE")
    engine.dispose()


def test_snapshots_and_vectors_are_erased(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'bank.sqlite'}"
    vectors = DenseIndex(lambda texts: [[1.0, 2.0]] * len(texts), "themes", 2)
    with BankStore(url, vectors, snapshot_every=1) as store:
        space = store.load("alice")
        space.bank.create([Draft(SECRET, MemoryKind.SEMANTIC)], Provenance("test"))
        space.bank.edit_core(f"{KEPT}\n{SECRET}, too", Provenance("test"))
        store.save(space)
        assert store.load("alice").snapshot_version == 2
    assert text_from_banks(url, "alice").texts == {SECRET, KEPT, f"{SECRET}, too"}
    assert SECRET.encode() in bytes_of("sqlite", url, tmp_path)
    forgotten = forget_namespace(url, "alice").rows
    assert (forgotten["memory_snapshots"] > 0, forgotten["memory_vectors"]) == (True, 1)
    assert SECRET.encode() not in bytes_of("sqlite", url, tmp_path)


def test_a_concurrent_reader_is_reported_and_the_erasure_can_be_repeated(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("memory_program.bank.forgetting._BUSY_TIMEOUT_S", 0.1)
    url = f"sqlite:///{tmp_path / 'bank.sqlite'}"
    remember(url, "alice", SECRET)
    with BankStore(url) as store, closing(store.database._engine.raw_connection()) as reader:
        reader.cursor().execute("BEGIN")
        reader.cursor().execute("SELECT count(*) FROM memory_operations").fetchone()
        with pytest.raises(StoreError, match="run the same command again"):
            forget_namespace(url, "alice")
        reader.cursor().execute("ROLLBACK")
    assert not forget_namespace(url, "alice").was_known
    assert SECRET.encode() not in bytes_of("sqlite", url, tmp_path)


def test_an_erasure_that_fails_half_way_says_what_is_deleted(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("memory_program.bank.forgetting._BUSY_TIMEOUT_S", 0.1)
    url = f"sqlite:///{tmp_path / 'bank.sqlite'}"
    remember(url, "alice", SECRET, count=1)
    with closing(sqlite3.connect(tmp_path / "bank.sqlite", isolation_level=None)) as writer:
        with pytest.raises(
            StoreError, match="the rows are deleted, but their bytes are not yet: run"
        ) as told:
            forget_namespace(url, "alice", lambda _: writer.execute("BEGIN IMMEDIATE"))
        assert "nothing was written" not in str(told.value)


@needs_postgres
def test_an_erasure_waits_for_a_session_that_is_being_saved(tmp_path: Path):
    with empty_database("postgresql", tmp_path) as url, BankStore(url) as store:
        remember(url, "erin", HIDDEN, count=1)
        space = store.load("erin")
        space.bank.create([Draft(f"{HIDDEN}, again.", MemoryKind.SEMANTIC)], Provenance("test"))
        erasure = threading.Thread(target=forget_namespace, args=(url, "erin"))

        def begin_erasure(_: object) -> None:
            erasure.start()
            time.sleep(0.5)

        store.save(space, begin_erasure)
        erasure.join()
        assert not text_from_banks(url, "erin").banks
        with store.database.reading() as connection:
            assert connection.scalar(text("SELECT count(*) FROM memory_operations")) == 0


@needs_postgres
def test_parallel_erasures_of_several_namespaces_succeed(tmp_path: Path):
    names = ["erin", "frank", "grace", "heidi"]
    with empty_database("postgresql", tmp_path) as url:
        for name in names:
            remember(url, name, HIDDEN, count=1)
        with ThreadPoolExecutor(len(names)) as pool:
            assert all(deleted.was_known for deleted in pool.map(partial(forget_namespace, url), names))


@needs_postgres
def test_an_erasure_that_an_older_transaction_hinders_is_reported(tmp_path: Path, monkeypatch):
    with empty_database("postgresql", tmp_path) as url:
        remember(url, "erin", HIDDEN, count=1)
        engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
        with engine.connect() as older:
            older.execution_options(isolation_level="REPEATABLE READ").execute(text("SELECT 1"))
            with monkeypatch.context() as patched:
                patched.setattr("memory_program.bank.forgetting._BUSY_TIMEOUT_S", 0.1)
                with pytest.raises(StoreError, match=r"older transaction.*the rows are deleted, but"):
                    forget_namespace(url, "erin")
            assert HIDDEN.encode() in bytes_of("postgresql", url, tmp_path)
        engine.dispose()
        assert not forget_namespace(url, "erin").was_known
        assert HIDDEN.encode() not in bytes_of("postgresql", url, tmp_path)


@needs_postgres
def test_statistics_that_only_the_owner_can_erase_are_reported(tmp_path: Path, capsys):
    role = f"test_{uuid.uuid4().hex}"
    with empty_database("postgresql", tmp_path) as url:
        options = str(make_url(url).query["options"])
        own_url = make_url(url).update_query_dict({"options": f"{options} -c role={role}"})
        own = own_url.render_as_string(hide_password=False)
        execute(url, f"CREATE ROLE {role}")
        try:
            execute(url, f"GRANT ALL ON SCHEMA {options.partition('=')[2]} TO {role}")
            remember(own, "erin", HIDDEN, count=1)
            assert bank_command(["forget", "--db", own, "--namespace", "erin"]) == 0
            assert "ask the owner of the database for VACUUM (FULL)" in capsys.readouterr().out
        finally:
            execute(url, f"DROP OWNED BY {role}")
            execute(url, f"DROP ROLE {role}")


def test_the_bank_command_reports_what_it_erased(tmp_path: Path, capsys):
    url = f"sqlite:///{tmp_path / 'bank.sqlite'}"
    remember(url, "alice", SECRET)
    assert bank_command(["forget", "--db", url, "--namespace", "alice"]) == 0
    assert capsys.readouterr().out.startswith("alice is forgotten: ")
    assert bank_command(["forget", "--db", url, "--namespace", "alice"]) == 2
    assert "is not in the database" in capsys.readouterr().err


def test_a_repeated_bank_command_says_that_it_cleared_the_bytes(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr("memory_program.bank.forgetting._BUSY_TIMEOUT_S", 0.1)
    url = f"sqlite:///{tmp_path / 'bank.sqlite'}"
    remember(url, "alice", SECRET, count=3)
    command = ["forget", "--db", url, "--namespace", "alice"]
    with BankStore(url) as store, closing(store.database._engine.raw_connection()) as reader:
        reader.cursor().execute("BEGIN")
        reader.cursor().execute("SELECT count(*) FROM memory_operations").fetchone()
        assert bank_command(command) == 1
        reader.cursor().execute("ROLLBACK")
    assert "run the same command again" in capsys.readouterr().err
    assert bank_command(command) == 0
    assert "nothing of alice is in the database, and the bytes" in capsys.readouterr().out
    assert SECRET.encode() not in bytes_of("sqlite", url, tmp_path)
    assert bank_command(command) == 2
    assert "is not in the database" in capsys.readouterr().err


@pytest.mark.parametrize("wrap", [str, json.dumps, html.escape, lambda t: json.dumps(json.dumps({"a": t}))])
def test_a_copy_is_recognized_under_any_escaping(wrap):
    told = 'He said "never\ttell" to Zoë & <Ann> \\ the others'
    telling = QuoteMatcher(
        "conv-2", [told, "Thanks!", "We all say this very line."], ["We all say this very line!"]
    )
    assert telling.matches_text(f"before {wrap(told)} after")
    assert not telling.matches_text("Thanks! We all say this very line. conv-26")
    assert telling.matches_text('{"question_id": "conv-2:q4"}')


@pytest.mark.parametrize("blank", ["\u00a0", "\u200d", "\x1b", "\u00ad"])
def test_a_line_with_a_character_that_cannot_be_printed_is_erased_from_exports_and_errors(tmp_path, blank):
    told = f"Where is{blank}the gold? Below{blank}the linden, says Zoë."
    folder = tmp_path / "run"
    folder.mkdir()
    url = f"sqlite:///{folder / 'banks.sqlite'}"
    with BankStore(url) as store:
        space = store.load("alice")
        space.bank.create([Draft(told, MemoryKind.SEMANTIC)], Provenance("test"))
        store.save(space)
    export, errors = folder / "alice.md", folder / "errors.jsonl"
    assert bank_command(["export", "--db", url, "--namespace", "alice", "--out", str(export)]) == 0
    errors.write_text(json.dumps({"error": f"text={told!r} is refused"}) + "\n" + json.dumps({"error": ""}))
    assert forget(folder) == 0
    assert not export.exists()
    assert errors.read_text() == json.dumps({"error": ""})


def test_a_conversation_called_1_is_not_matched_by_every_number():
    telling = QuoteMatcher("1", ["A line that tells enough to be known."], [])
    for line in (
        {"conversation_id": "1"},
        {"question_id": "1:q0"},
        {"namespace": "0f3c9a/1"},
        {"text": json.dumps({"id": "1"})},
        {"conversations": "3,1, 2"},
        ["2", "1"],
        ["1@0123456789abcdef"],
    ):
        assert telling.matches_text(json.dumps(line)), line
    for line in (
        {"index": 1, "evidence": ["D1:1", "D2:1"], "ranks": [1, 1]},
        {"recall": {"1": 0.5}, "question_id": "2:q1", "namespace": "0f3c9a/11"},
        {"text": "On May 1, 2023, she had 1 dog, 1, 2 or 3 cats.", "mail": "1@example.org"},
    ):
        assert not telling.matches_text(json.dumps(line)), line
    assert not telling.matches_text("a page with 1 number and a 1")


@pytest.mark.parametrize("name", ["对话-1", "café", 'the "first"', "a\\b", "💬 1", "user 12"])
def test_the_id_of_a_conversation_is_recognized_under_any_escaping(name: str):
    telling = QuoteMatcher(name, [], [])
    line = json.dumps({"question_id": f"{name}:q0"})
    listed = {"conversations": f"bob,{name},carol"}
    for written in (
        line,
        *map(json.dumps, ({"attributes": line}, listed)),
        json.dumps({"id": name}, ensure_ascii=False),
    ):
        assert telling.matches_text(written), written
    assert not telling.matches_text(json.dumps({"question_id": f"{name}0:q0"}))


def test_a_long_escaped_quote_is_found_across_pieces(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("memory_program.forget.quote_matcher._PIECE_BYTES", 30_000)
    told = "Она спрятала золото под липой. " * 160
    path = tmp_path / "log.jsonl"
    path.write_text("x" * 6_000 + json.dumps({"text": told}))
    assert QuoteMatcher("conv-2", [told], []).matches_file(path)


def test_a_quote_is_found_across_pieces_of_one_byte(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("memory_program.forget.quote_matcher._PIECE_BYTES", 1)
    told = "Zoë hid the gold under the lindén"
    path = tmp_path / "log.txt"
    path.write_text(f"before {told} after", encoding="utf-8")
    assert QuoteMatcher("conv-2", [told], []).matches_file(path)


def test_cached_replies_and_demos_are_erased(tmp_path: Path, capsys):
    folder = tmp_path / "optimize"
    folder.mkdir()
    for namespace, told in (("0123456789ab/alice", SECRET), ("0123456789ab/bob", KEPT)):
        remember(f"sqlite:///{folder / 'banks.sqlite'}", namespace, told, count=3)
    calls = [
        {"tool_calls": [{"name": "manage_memory", "args": {"text": f"{told} 1. {'x' * 300}"}}]}
        for told in (SECRET, KEPT)
    ]
    # in no bank, as what a candidate wrote that was rejected, and named nowhere
    calls.append({"tool_calls": [{"name": "manage_memory", "args": {"text": "She hid gold near a tree."}}]})
    replies = [
        json.dumps({"key": str(place), "reply": {"text": json.dumps(call)}})
        for place, call in enumerate(calls)
    ]
    (folder / "calls.jsonl").write_text("".join(f"{reply}\n" for reply in replies))
    (folder / "best.json").write_text(json.dumps({"demos": [{"session": f"alice: {SECRET}.\nBob: Oh."}]}))
    (folder / "config.json").write_text(json.dumps({"seed": 0}))
    assert forget(folder) == 0
    assert "deleted: " in capsys.readouterr().out
    assert files_with(folder, [SECRET, "alice"]) == []
    assert {path.name for path in folder.iterdir()} - {".lock"} == {"config.json", "banks.sqlite"}


def a_run(place: Path, **banks: str) -> Path:
    """The folder of a run with some banks, and with a journal that quotes what each tells."""
    folder = place / "runs" / "evaluate"
    folder.mkdir(parents=True)
    for namespace, told in banks.items():
        remember(f"sqlite:///{folder / 'banks.sqlite'}", namespace, told, count=3)
    lines = [json.dumps({"told": f"{told}."}) for told in banks.values()]
    (folder / "answers.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def banks_in(folder: Path) -> list[str]:
    with BankStore.open_existing(f"sqlite:///{folder / 'banks.sqlite'}") as store:
        return store.namespaces()


HASH, OTHER_HASH = "0123456789ab", "ba9876543210"


def test_a_bank_with_a_similar_name_is_left(tmp_path: Path):
    banks = {"alice": SECRET, "acme/alice": KEPT, f"{HASH}/acme/alice": KEPT}
    folder = a_run(tmp_path, **banks)
    assert forget(folder) == 0
    assert banks_in(folder) == [f"{HASH}/acme/alice", "acme/alice"]
    assert forget(folder, "acme/alice") == 0
    assert banks_in(folder) == []


def test_the_name_of_one_of_several_banks_is_refused(tmp_path: Path, capsys):
    folder = a_run(tmp_path, **{f"{HASH}/alice": SECRET, f"{OTHER_HASH}/alice": SECRET, "bob": KEPT})
    assert forget(folder, f"{HASH}/alice") == 2
    assert f"{HASH}/alice, {OTHER_HASH}/alice: name 'alice'" in capsys.readouterr().err
    assert SECRET in (folder / "answers.jsonl").read_text()
    assert forget(folder) == 0
    assert (banks_in(folder), files_with(folder, [SECRET])) == (["bob"], [])


def test_the_command_can_be_repeated_after_a_concurrent_reader(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr("memory_program.bank.forgetting._BUSY_TIMEOUT_S", 0.1)
    folder = a_run(tmp_path, alice=SECRET)
    with (
        BankStore(f"sqlite:///{folder / 'banks.sqlite'}") as store,
        closing(store.database._engine.raw_connection()) as reader,
    ):
        reader.cursor().execute("BEGIN")
        reader.cursor().execute("SELECT count(*) FROM memory_operations").fetchone()
        assert forget(folder) == 1
        assert "run the same command again" in capsys.readouterr().err
        reader.cursor().execute("ROLLBACK")
        assert forget(folder) == 2
        assert "is not in the database" in capsys.readouterr().err
        assert files_with(folder, [SECRET]) == []


def test_banks_are_kept_until_all_copies_are_erased(tmp_path: Path, capsys):
    folder = a_run(tmp_path, alice=SECRET)
    (folder / "copy").mkdir()
    copy = folder / "copy" / "old.sqlite"
    remember(f"sqlite:///{copy}", "alice", SECRET, count=1)
    for _ in range(2):
        assert forget(folder) == 1
        assert f"is left in {copy}" in capsys.readouterr().err
    copy.unlink()
    assert forget(folder) == 0
    assert files_with(folder, [SECRET]) == []


def test_a_missing_run_folder_is_refused(tmp_path: Path, capsys):
    folder, url = a_run(tmp_path), f"sqlite:///{tmp_path / 'shared.sqlite'}"
    remember(url, "alice", SECRET, count=3)
    mistyped = folder.with_name("evalaute")
    assert forget(mistyped, "alice", "--db", url) == 2
    assert f"there is no folder {str(mistyped)!r}" in capsys.readouterr().err
    assert not mistyped.exists()
    assert forget_command(["--namespace", "alice", "--db", url, "--folder"]) == 2
    with BankStore(url) as store:
        assert store.namespaces() == ["alice"]


def test_runs_that_share_a_database_are_erased_together(tmp_path: Path):
    folders, url = (
        [a_run(tmp_path / name) for name in ("one", "two")],
        f"sqlite:///{tmp_path / 'shared.sqlite'}",
    )
    remember(url, "alice", SECRET, count=3)
    for folder in folders:
        (folder / "answers.jsonl").write_text(json.dumps({"told": f"{SECRET}."}))
    assert forget_command(["--namespace", "alice", "--db", url, "--folder", *map(str, folders)]) == 0
    assert files_with(tmp_path, [SECRET]) == []


def test_a_run_without_memories_is_searched_by_its_dataset(tmp_path: Path, capsys):
    folder = a_run(tmp_path)
    data = write_conversations(tmp_path / "codes.json", count=2, sessions=2)
    said = [session.turns[0].text for c in read_dataset(data).conversations for session in c.sessions[:1]]
    config = EvaluateConfig(
        dataset=str(data), systems="extractive", conversations="codes-1,codes-2", output_dir=folder
    )
    (folder / "config.json").write_text(config.model_dump_json())
    (folder / "answers.jsonl").write_text("".join(f"{json.dumps({'shown': turn})}\n" for turn in said))
    assert forget(folder, "codes-3") == 2
    assert "neither in banks nor in the dataset" in capsys.readouterr().err
    assert forget(folder, "codes-1") == 0
    assert (folder / "answers.jsonl").read_text() == f"{json.dumps({'shown': said[1]})}\n"


def test_rollouts_of_a_training_are_erased_by_line(tmp_path: Path, capsys):
    folder = a_run(tmp_path, alice=SECRET)
    lines = [
        {"conversation_id": name, "replies": [told]} for name, told in (("alice", SECRET), ("bob", KEPT))
    ]
    write_rollouts(folder, 1, lines)
    write_rollouts(folder, 2, lines[1:])
    write_rollouts(folder, 3, [{"conversation_id": "1", "replies": [f"As we know, {SECRET}."]}])
    assert forget(folder) == 0
    assert "journal lines: 3 " in capsys.readouterr().out  # the run itself has one
    assert [read_rollouts(folder, step) for step in (1, 2, 3)] == [lines[1:], lines[1:], []]


def test_damaged_rollouts_are_an_error_and_the_memories_stay(tmp_path: Path, capsys):
    folder = a_run(tmp_path, alice=SECRET)
    write_rollouts(folder, 1, [{"conversation_id": "bob", "replies": [KEPT]}])
    (path,) = (folder / "rollouts").iterdir()
    path.write_bytes(path.read_bytes()[:-12])
    assert forget(folder) == 1
    assert f"{path.name}' cannot be searched" in capsys.readouterr().err
    assert banks_in(folder) == ["alice"]


def test_a_run_with_a_missing_database_does_not_count_as_one_without_memories(tmp_path: Path, capsys):
    folder = a_run(tmp_path)
    config = EvaluateConfig(systems="memory", db_url=f"sqlite:///{tmp_path / 'shared.sqlite'}")
    (folder / "config.json").write_text(config.model_dump_json())
    assert forget(folder) == 1
    assert "no banks are in" in capsys.readouterr().err


def test_banks_in_the_database_of_the_settings_are_erased(tmp_path: Path, capsys):
    folder, elsewhere = a_run(tmp_path, alice=SECRET), f"sqlite:///{tmp_path / 'elsewhere.sqlite'}"
    remember(elsewhere, "alice", SECRET, count=3)
    config = EvaluateConfig(systems="memory", db_url=elsewhere)
    (folder / "config.json").write_text(config.model_dump_json())
    assert forget(folder) == 0
    assert f"banks.sqlite, {elsewhere}, or in reports beside" in capsys.readouterr().out
    assert files_with(tmp_path, [SECRET]) == []


def test_banks_of_runs_inside_a_run_are_erased(tmp_path: Path):
    folder = a_run(tmp_path, alice=SECRET)
    (folder / "ceiling").mkdir()
    remember(f"sqlite:///{folder / 'ceiling' / 'banks.sqlite'}", f"{HASH}/alice", SECRET, count=3)
    assert forget(folder) == 0
    assert files_with(folder, [SECRET]) == []
    assert banks_in(folder / "ceiling") == []


def test_memories_of_an_earlier_run_in_the_folder_are_not_overlooked(tmp_path: Path, capsys):
    folder = a_run(tmp_path)
    (folder / "config.json").write_text(EvaluateConfig(systems="extractive").model_dump_json())
    (folder / "memory").mkdir()
    (folder / "memory" / "run.json").write_text(
        json.dumps({"system": {"name": "memory", "writer": "pocket"}})
    )
    assert forget(folder) == 2
    assert "name their database with --db" in capsys.readouterr().err


def test_journals_of_an_earlier_run_on_other_data_are_searched_by_id(tmp_path: Path):
    folder = a_run(tmp_path)
    data = write_conversations(tmp_path / "codes.json", count=1, sessions=1)
    config = EvaluateConfig(dataset=str(data), systems="extractive", output_dir=folder)
    (folder / "config.json").write_text(config.model_dump_json())
    lines = [json.dumps({"conversation_id": name}) for name in ("alice", "codes-1")]
    (folder / "answers.jsonl").write_text("".join(f"{line}\n" for line in lines))
    assert forget(folder) == 0
    assert (folder / "answers.jsonl").read_text() == f"{lines[1]}\n"


@pytest.mark.parametrize("named", ["", " ", "ok"])
def test_an_unknown_conversation_erases_nothing(tmp_path: Path, capsys, named: str):
    folder = a_run(tmp_path)
    data = write_conversations(tmp_path / "codes.json", count=1, sessions=1)
    config = EvaluateConfig(dataset=str(data), systems="extractive", output_dir=folder)
    (folder / "config.json").write_text(config.model_dump_json())
    line = {"conversation_id": "codes-1", "outcome": "ok", "message": "", "question_id": "codes-1:q0"}
    (folder / "answers.jsonl").write_text(f"{json.dumps(line)}\n")
    client, experiment = tracked(folder)
    client.log_text(client.create_run(experiment).info.run_id, json.dumps(line), "answers.jsonl")
    before = files_with(tmp_path, ["codes-1"])
    assert forget(folder, named) == 2
    assert "namespace is empty" in (told := capsys.readouterr().err) or "neither in banks nor" in told
    assert files_with(tmp_path, ["codes-1"]) == before
    assert len(client.search_runs([experiment])) == 1


def test_small_talk_deletes_no_shared_run_or_report(tmp_path: Path, capsys):
    talk, caption = (
        "Let me know how it goes!",
        "a photo of a beach with footprints in the sand and a blue sky",
    )
    folder = a_run(tmp_path, alice=SECRET)
    with BankStore(f"sqlite:///{folder / 'banks.sqlite'}") as store:
        space = store.load("alice")
        turns = (Turn("D3:1", "Alice", talk, caption), Turn("D3:2", "Alice", SECRET))
        space.ingest(Session(3, datetime(2023, 5, 8, tzinfo=UTC), turns), SessionRecord("session_3"))
        store.save(space)
    client, experiment = tracked(folder)
    named, quoting, other = (client.create_run(experiment).info.run_id for _ in range(3))
    client.log_text(named, json.dumps({"conversations": ["alice"]}), "results.json")
    client.log_text(quoting, f"{SECRET}.", "told.txt")
    client.log_text(other, f"Bob: {talk} {caption}", "told.txt")
    packed = base64.b64encode(gzip.compress(json.dumps([talk, caption]).encode())).decode()
    (folder.parent / "bob.html").write_text(f"<script>{packed}</script>")
    assert forget(folder) == 0
    assert "MLflow runs: 2 " in capsys.readouterr().out
    assert [run.info.run_id for run in client.search_runs([experiment])] == [other]
    assert (folder.parent / "bob.html").exists()


def test_a_report_beside_the_folder_is_deleted_but_no_other_page(tmp_path: Path):
    folder = a_run(tmp_path, alice=SECRET)
    packed = base64.b64encode(gzip.compress(json.dumps([f"{SECRET}."]).encode())).decode()
    (folder.parent / "both.html").write_text(f"<script>{packed}</script>")
    (folder.parent / "alice.html").write_text("<p>About alice.</p>")
    image = base64.b64encode(b"\x1f\x8b\x08" + bytes(range(200))).decode()  # as a packed record begins
    (folder.parent / "image.html").write_text(f"<img src='data:image/png;base64,{image}'>")
    assert forget(folder) == 0
    assert sorted(page.name for page in folder.parent.glob("*.html")) == ["alice.html", "image.html"]


def test_a_damaged_report_in_the_folder_is_an_error(tmp_path: Path, capsys):
    folder = a_run(tmp_path, alice=SECRET)
    packed = base64.b64encode(gzip.compress(bytes(range(200)))[:-9]).decode()
    (folder / "report.html").write_text(f"<script>{packed}</script>")
    assert forget(folder) == 1
    assert "report.html' cannot be searched" in capsys.readouterr().err


def test_mlflow_runs_in_the_trash_are_erased(tmp_path: Path, capsys):
    folder = a_run(tmp_path, alice=SECRET)
    client, experiment = tracked(folder)
    run_ids = [client.create_run(experiment).info.run_id for _ in range(2)]
    model = client.create_logged_model(experiment, source_run_id=run_ids[0], params={"demo": SECRET})
    client.log_outputs(run_ids[0], [mlflow.entities.LoggedModelOutput(model.model_id, 0)])
    for run_id, told in zip(run_ids, (SECRET, KEPT), strict=True):
        client.log_text(run_id, f"{told}.", "told.txt")
        client.delete_run(run_id)
    client.delete_logged_model(model.model_id)
    assert forget(folder) == 0
    assert "MLflow runs: 1 " in capsys.readouterr().out
    assert files_with(folder.parent, [SECRET]) == []
    assert files_with(folder.parent, [KEPT])


def test_every_mlflow_address_that_runs_recorded_is_searched(tmp_path: Path, capsys):
    folder = a_run(tmp_path, alice=SECRET)
    (tmp_path / "elsewhere").mkdir()
    noted = {
        name: f"sqlite:///{tmp_path / 'elsewhere' / name}.db" for name in ("settings", "receipt", "gone")
    }
    for name in ("settings", "receipt"):
        client = mlflow.MlflowClient(tracking_uri=noted[name])
        experiment = client.create_experiment(EXPERIMENT, (tmp_path / "elsewhere" / name).as_uri())
        client.log_text(client.create_run(experiment).info.run_id, f"{SECRET}.", "told.txt")
    (folder / "config.json").write_text(json.dumps({"tracking_uri": noted["settings"], "mlflow": True}))
    (folder / "ceiling").mkdir()
    for place, name in ((folder, "receipt"), (folder / "ceiling", "gone")):
        (place / "tracking.json").write_text(json.dumps({"uri": noted[name], "digest": "0", "run_id": "1"}))
    assert forget(folder) == 0
    told = capsys.readouterr().out
    assert "MLflow runs: 2 " in told
    for name in ("settings", "receipt"):
        assert f"MLflow at {noted[name]}" in told
    assert f"there is no MLflow database at {noted['gone']}\n" in told
    assert files_with(tmp_path, [SECRET]) == []


def test_a_folder_called_dot_has_its_mlflow_and_its_reports_beside_it(tmp_path: Path, monkeypatch, capsys):
    folder = a_run(tmp_path, alice=SECRET)
    packed = base64.b64encode(gzip.compress(f"{SECRET}. {'x' * 99}".encode())).decode()
    (folder.parent / "report.html").write_text(f"<p>{packed}")
    monkeypatch.chdir(folder)
    for name in (".", str(folder), "../evaluate"):
        _, artifacts = tracking_location(Path(name), None)
        assert artifacts is not None
        assert artifacts.resolve() == folder.parent / "mlartifacts"
    assert forget(Path(".")) == 0
    assert f"no MLflow database at sqlite:///{folder.parent / 'mlflow.db'}\n" in capsys.readouterr().out
    assert files_with(tmp_path, [SECRET]) == []


def test_a_relative_mlflow_address_of_a_run_is_found_or_refused(tmp_path: Path, monkeypatch, capsys):
    folder = a_run(tmp_path, alice=SECRET)
    (tmp_path / "m.db").touch()

    def found(recorded: str) -> list[str]:
        (folder / "tracking.json").write_text(json.dumps({"uri": recorded, "digest": "0", "run_id": "1"}))
        return [uri for uri, _ in tracking_locations([folder], None)]

    beside = f"sqlite:///{folder.parent / 'mlflow.db'}"
    monkeypatch.chdir(tmp_path)
    assert found("sqlite:///m.db") == [beside, "sqlite:///m.db"]
    monkeypatch.chdir(folder)
    assert found("sqlite:///runs/mlflow.db") == [beside]  # the default, from another folder
    with pytest.raises(ConfigError, match="give the full path with --tracking-uri"):
        found("sqlite:///m.db")
    assert forget(folder) == 2
    assert "'sqlite:///m.db', from the folder in which it was started" in capsys.readouterr().err
    assert (banks_in(folder), (folder / "answers.jsonl").exists()) == (["alice"], True)


def test_bytes_that_an_mlflow_database_on_a_server_keeps_are_reported(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(
        "memory_program.forget.run_eraser.forget_in_mlflow", lambda *_: MlflowDeletion()
    )  # a server takes long to start
    folder, uri = a_run(tmp_path, alice=SECRET), "postgresql://host/mlflow"
    assert forget(folder, "alice", "--tracking-uri", uri) == 0
    told = capsys.readouterr().out
    assert f"{uri} keeps the bytes of deleted rows until" in told
    assert "MLflow at" not in told


def test_a_namespace_of_waiting_turns_alone_is_erased_with_its_copies(tmp_path: Path):
    folder = a_run(tmp_path, bob=KEPT)
    (folder / "answers.jsonl").write_text(f"{json.dumps({'told': SECRET})}\n")
    with BankStore(f"sqlite:///{folder / 'banks.sqlite'}") as store:
        turn = SpokenTurn("Alice", f"{SECRET}.", "user", datetime.now(UTC))
        TurnBuffer(store.database, SessionRule()).add("alice", [turn])
    assert forget(folder) == 0
    assert (banks_in(folder), files_with(tmp_path, [SECRET])) == (["bob"], [])


@pytest.mark.parametrize("driver", ["sqlite", "sqlite+pysqlite"])
def test_the_database_in_the_folder_is_erased_beside_the_named_one(tmp_path: Path, driver: str):
    folder = a_run(tmp_path, alice=SECRET, bob=KEPT)
    other = tmp_path / "other.sqlite"
    remember(f"sqlite:///{other}", "alice", SECRET, count=1)
    assert forget(folder, "alice", "--db", f"{driver}:///{other}") == 0
    assert (banks_in(folder), files_with(tmp_path, [SECRET])) == (["bob"], [])


def test_a_database_that_is_not_named_is_not_to_be_deleted(tmp_path: Path, capsys):
    folder = a_run(tmp_path, alice=SECRET)
    remember(f"sqlite:///{folder / 'old.sqlite'}", "alice", SECRET, count=1)
    assert forget(folder) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert "name a database of memories with --db" in told
    assert "delete these files" not in told


def test_bytes_of_a_journal_that_are_not_utf_8_stay_as_they_are(tmp_path: Path):
    folder, odd = a_run(tmp_path, alice=SECRET), b'{"told": "caf\xe9"}\n'
    (folder / "answers.jsonl").write_bytes(f"{json.dumps({'told': SECRET})}\n".encode() + odd)
    assert forget(folder) == 0
    assert (folder / "answers.jsonl").read_bytes() == odd


def test_an_mlflow_file_store_is_erased(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    folder, uri = a_run(tmp_path, alice=SECRET), (tmp_path / "mlruns").as_uri()
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment(EXPERIMENT)
    for told in (SECRET, KEPT):
        client.log_text(client.create_run(experiment).info.run_id, f"{told}.", "told.txt")
    assert forget(folder, "alice", "--tracking-uri", uri) == 0
    assert (files_with(tmp_path, [SECRET]), len(files_with(tmp_path / "mlruns", [KEPT]))) == ([], 1)


def test_the_trash_of_an_mlflow_server_is_reported(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(
        "memory_program.forget.mlflow_eraser._SERVER_PREFIXES", ("sqlite:",)
    )  # a server takes long to start
    folder = a_run(tmp_path, alice=SECRET)
    client, experiment = tracked(folder)
    client.log_text(client.create_run(experiment).info.run_id, json.dumps({"id": "alice"}), "results.json")
    assert forget(folder) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "mlflow.db keeps deleted runs in its trash until its operator calls mlflow gc" in told


def test_trajectories_of_a_conversation_are_erased(tmp_path: Path, capsys):
    folder = tmp_path / "trajectories"
    folder.mkdir()
    for name, told in (("alice", SECRET), ("bob", KEPT)):
        said = json.loads(session_to_json(session(1, f"Alice: {told}.")))
        lines = [{"session": said, "questions": []}, {"session": {**said, "turns": []}, "questions": []}]
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (folder / "conversations.json").write_text(json.dumps([{"sample_id": "alice"}, {"sample_id": "bob"}]))
    assert forget(folder, "carol") == 2
    assert "no file of conversation 'carol': it has alice, bob" in capsys.readouterr().err
    assert forget(folder) == 0
    assert f"deleted: {folder / 'alice.jsonl'}" in capsys.readouterr().out
    assert {path.name for path in folder.iterdir()} - {".lock"} == {"bob.jsonl"}
    assert KEPT in (folder / "bob.jsonl").read_text()


def a_fine_tuning(folder: Path, *taught: str) -> Path:
    """The folder of a fine-tuning, and the file that says who has taught its model."""
    (folder / "model").mkdir(parents=True)
    (folder / "settings.json").write_text("{}")
    (folder / "log.jsonl").write_text('{"kind": "step", "step": 1, "loss": 1.0}\n')
    (folder / "model/sft_conversations.json").write_text(json.dumps({"conversations": taught}))
    return folder / "model/sft_conversations.json"


def test_a_conversation_is_erased_from_the_list_of_those_that_taught_a_model(tmp_path: Path, capsys):
    keys = [f"{name}@0123456789abcdef" for name in ("alice", "bob", "alice-2")]
    alone, inside = a_fine_tuning(tmp_path / "sft", *keys), a_run(tmp_path, alice=SECRET)
    copied = a_fine_tuning(inside / "sft", *keys)
    assert forget(alone.parents[1], "carol") == 2
    told = capsys.readouterr().err
    assert "'carol' is not in the database of the banks, and has taught no model in the folders" in told
    assert forget(alone.parents[1]) == 0
    assert forget(inside, "alice") == 0
    for path in (alone, copied):
        assert json.loads(path.read_text()) == {"conversations": keys[1:]}
    assert len((alone.parents[1] / "log.jsonl").read_text().splitlines()) == 1


def test_a_fine_tuning_is_searched_beside_its_trajectories(tmp_path: Path):
    keys = [f"{name}@0123456789abcdef" for name in ("alice", "bob")]
    taught = a_fine_tuning(tmp_path / "sft", *keys)
    folder = tmp_path / "trajectories"
    folder.mkdir()
    said = json.loads(session_to_json(session(1, f"Alice: {SECRET}.")))
    (folder / "alice.jsonl").write_text(json.dumps({"session": said, "questions": []}) + "\n")
    assert forget(folder, "alice", str(tmp_path / "sft")) == 0
    assert not (folder / "alice.jsonl").exists()
    assert json.loads(taught.read_text()) == {"conversations": keys[1:]}


def test_a_validation_stays_without_the_scores_of_the_conversation(tmp_path: Path):
    folder = a_run(tmp_path, alice=SECRET)
    scores = {name: {f"{name}:q1": 1.0} for name in ("alice", "bob")}
    lines = [{"kind": "validation", "step": 0, "scores": scores}, {"kind": "step", "step": 1}]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert forget(folder) == 0
    left = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert left == [{**lines[0], "scores": {"bob": scores["bob"]}}, lines[1]]


def test_unreadable_mlflow_files_are_an_error(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    folder = a_run(tmp_path, alice=SECRET)
    client, experiment = tracked(folder, "http://127.0.0.1:9/api/2.0/mlflow-artifacts/artifacts/x")
    client.create_run(experiment)
    assert forget(folder) == 1
    assert "something may be left there" in capsys.readouterr().err
    assert banks_in(folder) == ["alice"]


def test_a_trace_that_holds_only_a_question_is_erased(tmp_path: Path, capsys):
    folder = a_run(tmp_path, alice=SECRET, bob=KEPT)
    asked = {"alice": "Where did Zora hide her gold?", "bob": "What did Bob buy in Bergen?"}
    records = [{"question_id": f"{name}:q0", "question": question} for name, question in asked.items()]
    (folder / "questions.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    tracked(folder)
    mlflow.set_tracking_uri(f"sqlite:///{folder.parent / 'mlflow.db'}")
    mlflow.set_experiment(EXPERIMENT)
    for question in asked.values():
        with mlflow.start_span("ask") as span:
            span.set_inputs({"question": question})
    mlflow.flush_trace_async_logging()
    assert forget(folder) == 0
    assert "MLflow traces: 1" in capsys.readouterr().out
    assert files_with(tmp_path, [asked["alice"]]) == []
    assert {"questions.jsonl"} < {path.name for path in files_with(tmp_path, [asked["bob"]])}


def tracked(folder: Path, artifacts: str | None = None) -> tuple[mlflow.MlflowClient, str]:
    """MLflow as a run has it: a client, and the experiment."""
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder.parent / 'mlflow.db'}")
    return client, client.create_experiment(EXPERIMENT, artifacts or (folder.parent / "mlartifacts").as_uri())


# -- a whole run -----------------------------------------------------------------------------------

PRIVACY = (CHECKOUT / "docs/privacy.md").read_text(encoding="utf-8")
KEY = "sk-secret-0123456789abcdef"
FAULTS = (
    Behaviour.RATE_LIMIT,
    Behaviour.EMPTY,
    Behaviour.CUT,
    Behaviour.UNKNOWN_TOOL,
    Behaviour.SERVER_ERROR,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A run of evaluate.py: the folder of all that it wrote, its dataset, and what it printed."""
    place, beside = tmp_path_factory.mktemp("place"), tmp_path_factory.mktemp("beside")
    data = write_conversations(beside / "codes.json", count=2, sessions=2)
    with ModelServer(at_random(0.15, seed=1, faults=FAULTS)) as server:
        command = [
            sys.executable, str(CHECKOUT / "evaluate.py"), "--dataset", str(data), "--systems", "memory",
            "--model", "openai/test", "--api-base", server.url, "--traces",
            "--output-dir", str(place / "runs" / "evaluate"),
        ]  # fmt: skip
        homes = {name: str(place / name) for name in ("DSPY_CACHEDIR", "HOME", "XDG_CACHE_HOME", "TMPDIR")}
        for home in homes.values():
            Path(home).mkdir()
        environment = {**os.environ, **homes, "OPENAI_API_KEY": KEY, "MLFLOW_DISABLE_TELEMETRY": "true"}
        done = subprocess.run(
            command, cwd=beside, env=environment, capture_output=True, text=True, timeout=280, check=False
        )
        assert KEY in server.traffic.keys
    assert done.returncode == 0, done.stderr[-2000:]
    return place, data, done.stdout + done.stderr


def told_in(data: Path, name: str) -> list[str]:
    (found,) = [c for c in read_dataset(data).conversations if c.conversation_id == name]
    return [str(question.answer) for question in found.questions]  # codes that occur nowhere else


def files_with(place: Path, words: list[str]) -> list[Path]:
    files = [path for path in sorted(place.rglob("*")) if path.is_file()]
    return [path for path in files if any(word.encode() in unpacked(path) for word in words)]


def unpacked(path: Path) -> bytes:
    """The bytes of a file, and of what a report holds in packed form."""
    content = path.read_bytes()
    packed = re.findall(rb"H4sI[A-Za-z0-9+/=]+", content) if path.suffix == ".html" else []
    return b"".join([content, *(gzip.decompress(base64.b64decode(part)) for part in packed)])


def test_neither_keys_nor_contents_are_logged(run):
    place, data, printed = run
    assert "codes: 2 conversations" in printed
    for conversation in read_dataset(data).conversations:
        said = [turn.text for turn in conversation.turns.values()]
        for words in said + told_in(data, conversation.conversation_id):
            assert words not in printed
        assert not [question.text for question in conversation.questions if question.text in printed]
    assert KEY not in printed
    assert not files_with(place, [KEY])


def put_spans_in_files(database: Path, words: list[str]) -> str:
    """Write the spans of traces with some words to files, as MLflow does if its database is locked."""
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{database}")
    (experiment,) = (e for e in client.search_experiments() if e.name == EXPERIMENT)
    quoting = 0
    for trace in client.search_traces(locations=[experiment.experiment_id], max_results=500):
        told = json.dumps(trace.to_dict(), default=str)
        if any(word in told for word in words):
            folder = Path(trace.info.tags["mlflow.artifactLocation"].removeprefix("file://"))
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "traces.json").write_text(told)
            quoting += 1
    assert quoting
    return "traces.json"


def test_a_conversation_is_erased_from_everything_that_a_run_leaves(run, capsys):
    place, data, _ = run
    folder = place / "runs" / "evaluate"
    gone, kept = told_in(data, "codes-1"), told_in(data, "codes-2")
    spans = put_spans_in_files(place / "runs" / "mlflow.db", gone + kept)
    before = {path.name for path in files_with(place, gone)}
    assert {"banks.sqlite", "answers.jsonl", "report.html", "mlflow.db", spans} <= before
    command, *_ = re.findall(r"^memory-program forget (.*)$", PRIVACY, re.MULTILINE)
    arguments = command.replace("conv-26", "codes-1").replace("runs/evaluate", str(folder)).split()
    assert forget_command(arguments) == 0
    said = capsys.readouterr().out
    assert "nothing of it is left" in said
    assert "traces: 0" not in said
    assert files_with(place, gone) == []
    still = {path.name for path in files_with(place, kept)}
    assert {"banks.sqlite", "answers.jsonl", "mlflow.db", spans} <= still
    assert forget(folder, "codes-1") == 2


def test_a_run_below_the_folder_that_is_at_work_is_not_touched(tmp_path: Path):
    run = tmp_path / "runs/evaluate"
    with lock_run_folder(run):
        journal = run / "memory" / "answers.jsonl"
        journal.parent.mkdir()
        journal.write_text(f'{{"said": "{SECRET}"}}\n')
        with BankStore(f"sqlite:///{run / 'banks.sqlite'}") as store:
            space = store.load("0123456789ab/alice")
            space.bank.create([Draft(SECRET, MemoryKind.SEMANTIC)], Provenance("test"))
            store.save(space)
        with pytest.raises(RunInUseError, match="another process is working in"):
            forget_conversation("alice", [tmp_path / "runs"])
        assert SECRET in journal.read_text()
