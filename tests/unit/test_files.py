"""Files are written whole or not at all, and what stands in their place stays what it is."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from locomo.atomic_files import atomic_write_folder, atomic_write_text


def test_a_file_is_written_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("before")
    atomic_write_text(path, "Zoë\n")
    assert path.read_text(encoding="utf-8") == "Zoë\n"
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("before")
    with pytest.raises(UnicodeEncodeError):
        atomic_write_text(path, "half an emoji: \ud83d")
    assert path.read_text() == "before"
    atomic_write_text(path, "half an emoji: \ud83d", errors="replace")
    assert path.read_text() == "half an emoji: ?"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_a_file_keeps_its_permissions(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secret.json"
    path.write_text("before")
    path.chmod(mode)
    atomic_write_text(path, "after")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("after", mode)


def test_threads_may_write_one_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    texts = [str(number) * 100 for number in range(200)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(partial(atomic_write_text, path), texts))
    assert path.read_text() in texts
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_one_and_its_file_is_written(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    link.symlink_to(real)
    for text in ("first", "second"):
        atomic_write_text(link, text)
        assert link.is_symlink()
        assert real.read_text() == text


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    atomic_write_text(path, "told")
    assert os.read(reading, 100) == b"told"
    os.close(reading)
    assert path.is_fifo()


def test_a_folder_is_written_whole_and_what_fails_leaves_what_was_there(tmp_path: Path) -> None:
    folder = tmp_path / "model"

    def write(text: str, draft: Path) -> None:
        draft.mkdir()
        (draft / text).write_text(text)
        if text == "fails":
            raise OSError("no room")

    for text in ("first", "second"):
        atomic_write_folder(folder, partial(write, text))
        assert [path.name for path in folder.iterdir()] == [text]
    with pytest.raises(OSError, match="no room"):
        atomic_write_folder(folder, partial(write, "fails"))
    assert [path.name for path in folder.iterdir()] == ["second"]
    atomic_write_folder(folder, partial(write, "third"))
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["model", "model/third"]


def test_a_folder_that_a_kill_between_two_renames_took_away_is_restored(tmp_path: Path) -> None:
    (tmp_path / "model.before.draft").mkdir()
    (tmp_path / "model.before.draft" / "first").write_text("first")

    def fail(draft: Path) -> None:
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        atomic_write_folder(tmp_path / "model", fail)
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["model", "model/first"]
