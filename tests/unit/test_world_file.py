"""``python -m memory_program.worlds``: the file is the same everywhere, and the reader takes it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from locomo.locomo import read_conversations
from memory_program.worlds import as_locomo_json, generate_worlds
from memory_program.worlds.__main__ import main


def test_the_written_file_is_read_back_as_the_same_conversations(tmp_path: Path) -> None:
    path = tmp_path / "sample.json"
    assert main(["--seed", "7", "--conversations", "5", "--out", str(path)]) == 0
    assert read_conversations(path) == [world.conversation for world in generate_worlds(7, 5)]


def test_the_same_seed_gives_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    written: list[bytes] = []
    for hash_seed in ("1", "2"):
        path = tmp_path / f"{hash_seed}.json"
        subprocess.run(
            [
                sys.executable,
                "-m",
                "memory_program.worlds",
                "--seed",
                "7",
                "--conversations",
                "2",
                "--out",
                str(path),
            ],
            check=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
        written.append(path.read_bytes())
    assert written[0] == written[1]


def test_the_range_of_sessions_and_held_out_names_are_flags(tmp_path: Path) -> None:
    path = tmp_path / "sample.json"
    arguments = ["--seed", "7", "--conversations", "3", "--sessions", "4-6", "--held-out", "--out", str(path)]
    assert main(arguments) == 0
    expected = generate_worlds(7, 3, sessions=(4, 6), held_out=True)
    assert read_conversations(path) == [world.conversation for world in expected]


def test_the_number_of_turns_is_a_flag(tmp_path: Path) -> None:
    path = tmp_path / "long.json"
    assert main(["--conversations", "1", "--turns", "500", "--out", str(path)]) == 0
    assert 500 <= len(read_conversations(path)[0].turns) < 550


def test_what_was_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sample.json"
    main(["--conversations", "2", "--sessions", "4-4", "--out", str(path)])
    assert "conversations: 2  sessions: 8" in capsys.readouterr().out


def test_a_bad_range_is_an_error_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sample.json"
    assert main(["--sessions", "four", "--out", str(path)]) == 1
    assert "sessions='four' is not a range" in capsys.readouterr().err
    assert not path.exists()


def test_an_unwritable_place_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--conversations", "1", "--out", str(tmp_path / "missing" / "sample.json")]) == 1
    assert "name another file by --out" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["memory_program.worlds", "locomo.split_data"])
def test_a_reader_of_the_output_that_goes_away_is_no_error(module: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", module, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert (process.stderr.read(), process.wait()) == (b"", 141)


def test_a_folder_in_place_of_the_file_is_an_error_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "sample.json"
    folder.mkdir()
    for out in (str(folder), "."):
        assert main(["--conversations", "1", "--out", out]) == 1
        assert f"out={out!r} is a folder: name a file" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [folder]


def test_traps_have_no_answer_key_and_others_no_adversarial_one() -> None:
    (sample,) = as_locomo_json([generate_worlds(7)[0].conversation])
    for asked in json.loads(json.dumps(sample))["qa"]:
        assert ("answer" in asked) == (asked["category"] != 5)
        assert ("adversarial_answer" in asked) == (asked["category"] == 5)


def test_questions_about_earlier_states_are_read_back_from_a_file(tmp_path: Path) -> None:
    conversations = [world.conversation for world in generate_worlds(7, 2, earlier_states=True)]
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps(as_locomo_json(conversations)), encoding="utf-8")
    assert read_conversations(path) == conversations
    assert any(question.category == "earlier-state" for question in conversations[0].questions)
