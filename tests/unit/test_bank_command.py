"""``python -m memory_program.bank`` over a real SQLite database, through its own command line."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from memory_program.bank.__main__ import main
from memory_program.bank.memory import Draft, MemoryKind, Provenance
from memory_program.bank.outcomes import SessionRecord
from memory_program.bank.record_json import space_to_json
from memory_program.bank.space import MemorySpace
from memory_program.bank.store import BankStore
from memory_program.bank.turn_buffer import SessionRule, SpokenTurn, TurnBuffer
from tests.conversations import session

NAME = "f00/talk-1"


@pytest.fixture
def db(tmp_path: Path) -> str:
    """A bank of two sessions: m1 Oslo -> m3 Bergen, m2 the bees, and a profile."""
    url = f"sqlite:///{tmp_path}/banks.sqlite"
    with BankStore(url) as store:
        space = store.load(NAME)
        first, second = Provenance("semantic", "session_1", "said so"), Provenance("semantic", "session_2")
        oslo = Draft("Mara lives in Oslo.", MemoryKind.SEMANTIC, date(2023, 5, 8), ("D1:1",))
        space.bank.create([oslo, Draft("Tom keeps\x1b[31m bees.", MemoryKind.EPISODIC)], first)
        space.ingest(session(1, "Mara: I live in Oslo."), SessionRecord("session_1", operations=1))
        space.bank.update("m1", Draft("Mara lives in Bergen.", MemoryKind.SEMANTIC, None, ("D2:1",)), second)
        space.bank.edit_core("Mara moves a lot.", second)
        space.ingest(session(2, "Mara: We moved to Bergen."), SessionRecord("session_2", operations=2))
        store.save(space)
    return url


@pytest.fixture
def run(db: str, capsys: pytest.CaptureFixture[str]):
    def command(*arguments: str) -> list[str]:
        assert main([arguments[0], "--db", db, *arguments[1:]]) == 0
        return capsys.readouterr().out.splitlines()

    return command


OSLO = "m1  semantic  [2023-05-08] Mara lives in Oslo.  (D1:1)"
BERGEN = "m3  semantic  [2023-05-08] Mara lives in Bergen.  (D1:1, D2:1)"
BEES = "m2  episodic  Tom keeps [31m bees.  ()"


def test_the_namespaces_of_a_database_are_listed(run):
    assert run("list") == [f"{NAME}  version: 3  memories: 2"]


def test_live_memories_are_listed_without_control_characters(run):
    assert run("list", "--namespace", NAME) == ["core  Mara moves a lot.", BEES, BERGEN]


def test_list_shows_an_earlier_version(run):
    assert run("list", "--namespace", NAME, "--version", "1") == [OSLO, BEES]


def test_a_search_finds_live_memories_only(run):
    (found,) = run("search", "--namespace", NAME, "--query", "where does Mara live")
    assert found.endswith(BERGEN)
    assert run("search", "--namespace", NAME, "--query", "Oslo") == []


def test_a_search_finds_text_without_spaces(run, db):
    with BankStore(db) as store:
        space = store.load(NAME)
        space.bank.create([Draft("小林收养了一只橘猫。", MemoryKind.SEMANTIC)], Provenance("semantic"))
        store.save(space)
    (found,) = run("search", "--namespace", NAME, "--query", "橘猫")
    assert "小林收养了一只橘猫。" in found


def test_history_prints_operations_with_reasons_and_turns(run):
    expected = [
        "v1  create by semantic in session_1: said so",
        f"  + {OSLO}",
        f"  + {BEES}",
        "  m1 never valid",
        "  m2 valid from 2023-05-08",
        "v2  update by semantic in session_2",
        f"  - {OSLO}",
        f"  + {BERGEN}",
        "  m3 valid from 2023-05-08",
    ]
    assert run("history", "--namespace", NAME, "--memory", "m3") == expected
    assert run("history", "--namespace", NAME, "--memory", "m1") == expected


def test_diff_prints_superseded_and_created_memories(run):
    core = ["  - core  ", "  + core  Mara moves a lot."]
    assert run("diff", "--namespace", NAME, "--older", "1") == [*core, f"  - {OSLO}", f"  + {BERGEN}"]
    assert run("diff", "--namespace", NAME, "--older", "0", "--newer", "1") == [f"  + {OSLO}", f"  + {BEES}"]


def test_undo_is_durable_and_prints_the_undone_operations(run, db):
    assert run("undo", "--namespace", NAME, "--count", "2") == [
        "v3  edit_core by semantic in session_2",
        "  + core  Mara moves a lot.",
        "v2  update by semantic in session_2",
        f"  - {OSLO}",
        f"  + {BERGEN}",
        f"{NAME} is at version 1 again",
    ]
    with BankStore.open_existing(db) as store:
        space = store.load(NAME)
        assert [memory.memory_id for memory in space.bank.live()] == ["m1", "m2"]
        assert list(space.sessions) == ["session_1"]
        assert len(store.retracted(NAME)) == 2


def test_undo_takes_back_the_last_change_as_the_server_does(run, db):
    assert run("undo", "--namespace", NAME)[-1] == f"{NAME} is at version 1 again"
    with BankStore.open_existing(db) as store:
        assert list(store.load(NAME).sessions) == ["session_1"]


def test_turns_that_wait_are_listed_and_missed_in_an_export(run, db, tmp_path, capsys):
    with BankStore(db) as store:
        said = SpokenTurn("Mara", "I sold the boat.", "user", datetime(2023, 5, 9, tzinfo=UTC))
        for name in (NAME, "new"):
            TurnBuffer(store.database, SessionRule()).add(name, [said])
    listed = [line.partition("memories: ")[2] for line in run("list")]
    assert listed == ["2  waiting turns: 1", "0  waiting turns: 1"]
    for name in (NAME, "new"):
        told = run("export", "--namespace", name, "--out", str(tmp_path / "bank.json"))
        assert told[1].startswith("not in the file: 1 turns that wait to be written")
    for command in (["list"], ["search", "--query", "boat"], ["history", "--memory", "m1"], ["undo"]):
        assert main([command[0], "--db", db, "--namespace", "new", *command[1:]]) == 2
        assert "'new' has no memories yet: 1 turns wait" in capsys.readouterr().err


def test_an_export_is_imported_unchanged(run, db, tmp_path, capsys):
    file = tmp_path / "bank.json"
    assert run("export", "--namespace", NAME, "--out", str(file)) == [f"{file}  operations: 3  sessions: 2"]
    other = f"sqlite:///{tmp_path}/other.sqlite"
    assert main(["import", "--db", other, "--file", str(file)]) == 0
    with BankStore.open_existing(db) as here, BankStore.open_existing(other) as there:
        old, new = here.load(NAME), there.load(NAME)
    assert new.bank.operations() == old.bank.operations()
    assert new.sessions == old.sessions
    assert new.archive.sessions == old.archive.sessions


def test_a_file_with_a_byte_order_mark_is_imported(run, tmp_path):
    file = tmp_path / "bank.json"
    run("export", "--namespace", NAME, "--out", str(file))
    file.write_text(file.read_text(encoding="utf-8"), encoding="utf-8-sig")
    assert run("import", "--file", str(file), "--namespace", "copy") == ["copy  version: 3  memories: 2"]


def test_an_import_overwrites_nothing_and_can_be_renamed(run, tmp_path, db, capsys):
    file = tmp_path / "bank.json"
    run("export", "--namespace", NAME, "--out", str(file))
    assert main(["import", "--db", db, "--file", str(file)]) == 2
    assert f"namespace '{NAME}' is taken" in capsys.readouterr().err
    assert run("import", "--file", str(file), "--namespace", "copy") == ["copy  version: 3  memories: 2"]
    assert len(run("list")) == 2


def test_an_import_to_turns_that_wait_is_refused_and_they_stay(run, tmp_path, db, capsys):
    file, other = tmp_path / "bank.json", f"sqlite:///{tmp_path}/other.sqlite"
    run("export", "--namespace", NAME, "--out", str(file))
    with BankStore(other) as store:
        buffer = TurnBuffer(store.database, SessionRule())
        buffer.add(NAME, [SpokenTurn("Mara", "I sold the boat.", "user", datetime(2023, 5, 9, tzinfo=UTC))])
        assert main(["import", "--db", other, "--file", str(file)]) == 2
        assert "1 turns wait for memory-program serve to write them" in capsys.readouterr().err
        assert (store.namespaces(), buffer.waiting()[0].turns) == ([], 1)


def exported(
    version: object = 0,
    turn: dict[str, object] | None = None,
    session_: dict[str, object] | None = None,
    record: dict[str, object] | None = None,
) -> dict[str, object]:
    """An export of one session without operations, with something changed in it."""
    space = MemorySpace("a")
    space.ingest(session(1, "Ana: Hi."), SessionRecord("session_1"))
    document = space_to_json(space)
    document["sessions"][0]["version"] = version
    document["sessions"][0]["session"]["turns"][0] |= turn or {}
    document["sessions"][0]["session"] |= session_ or {}
    document["sessions"][0]["record"] |= record or {}
    return document


@pytest.mark.parametrize(
    "content",
    [
        "not json",
        "[]",
        json.dumps({"format": "memory-program/9"}),
        json.dumps({"format": "memory-program/1", "namespace": "a", "operations": [{}], "sessions": []}),
        json.dumps({"format": "memory-program/1", "namespace": "a", "operations": [], "sessions": [{}]}),
        json.dumps({"format": "memory-program/1", "namespace": 5, "operations": [], "sessions": []}),
        json.dumps(exported(version=9)),
        json.dumps(exported(version="x")),
        json.dumps(exported(turn={"text": 5})),
        json.dumps(exported(turn={"speaker": None})),
        json.dumps(exported(session_={"number": "one"})),
        json.dumps(exported(record={"operations": "x"})),
        json.dumps(exported(record={"tool_errors": "abc"})),
        "[" * 200_000,
    ],
)
def test_import_rejects_other_files_and_creates_no_database(tmp_path, capsys, content):
    file = tmp_path / "bank.json"
    file.write_text(content)
    assert main(["import", "--db", f"sqlite:///{tmp_path}/new.sqlite", "--file", str(file)]) == 1
    assert "export" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(("name", "what"), [("gone.md", "does not exist"), ("folder", "is a folder")])
def test_a_file_that_cannot_be_imported_is_named_with_the_way_out(tmp_path, capsys, name, what):
    (tmp_path / "folder").mkdir()
    arguments = ["import", "--db", f"sqlite:///{tmp_path}/new.sqlite", "--file", str(tmp_path / name)]
    assert main(arguments) == 2
    assert f"{name}' {what}: name the file to import" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_file_without_banks_is_refused_and_stays(tmp_path, db, capsys):
    (tmp_path / "empty.sqlite").touch()
    assert main(["list", "--db", f"sqlite:///{tmp_path}/empty.sqlite"]) == 1
    assert "is empty" in capsys.readouterr().err
    assert (tmp_path / "empty.sqlite").stat().st_size == 0
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as other:
        other.execute("CREATE TABLE mine (text)")
    content = (tmp_path / "other.sqlite").read_bytes()
    for command in (["list"], ["forget", "--namespace", "bob"]):
        assert main([command[0], "--db", f"sqlite:///{tmp_path}/other.sqlite", *command[1:]]) == 1
        assert "no banks are in" in capsys.readouterr().err
    assert (tmp_path / "other.sqlite").read_bytes() == content
    assert main(["list", "--db", db, "--version", "1"]) == 2
    assert "version=1 is of one bank" in capsys.readouterr().err


def test_a_url_with_a_password_is_rejected(tmp_path, capsys):
    file = tmp_path / "bank.json"
    file.write_text("{}")
    for command in (["list"], ["forget", "--namespace", "a"], ["undo", "--namespace", "a"]):
        assert main([*command, "--db", "postgresql://me:hunter22@host/banks"]) == 2
        told = capsys.readouterr().err
        assert "db holds a password" in told
        assert "hunter22" not in told


def test_errors_name_what_is_missing_and_what_to_do(tmp_path, db, capsys):
    assert main(["list", "--db", f"sqlite:///{tmp_path}/typo.sqlite"]) == 1
    assert "no banks are in" in capsys.readouterr().err
    assert main(["list", "--db", db, "--namespace", "bob"]) == 2
    assert "namespace 'bob' is not in the database: the list command" in capsys.readouterr().err
    assert main(["history", "--db", db, "--namespace", NAME, "--memory", "m9"]) == 1
    assert "ids run from m1 to m3" in capsys.readouterr().err
    assert main(["undo", "--db", db, "--namespace", NAME, "--count", "4"]) == 1
    assert "count=4 must be from 0 to 3" in capsys.readouterr().err


def test_the_ending_of_an_export_chooses_its_format_in_any_case(run, db, tmp_path, capsys):
    file = tmp_path / "bank.MD"
    run("export", "--namespace", NAME, "--out", str(file))
    assert file.read_text(encoding="utf-8").startswith("#")
    assert run("import", "--file", str(file), "--namespace", NAME)
    assert main(["export", "--db", db, "--namespace", NAME, "--out", "bank.txt"]) == 2
    assert "out='bank.txt' must end in .json or .md" in capsys.readouterr().err


def test_an_export_to_a_folder_is_rejected(db, tmp_path, capsys):
    folder = tmp_path / "bank.json"
    folder.mkdir()
    for out in (str(folder), "."):
        assert main(["export", "--db", db, "--namespace", NAME, "--out", out]) == 2
        assert f"out={out!r} is a folder: name a file" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bank.json", "banks.sqlite"]


def test_the_command_runs_as_a_module(db):
    command = [sys.executable, "-m", "memory_program.bank", "list", "--db", db]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()[0]) == (0, NAME)
