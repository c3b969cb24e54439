"""Files and folders that are written whole or not at all."""

import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path

_BEFORE = ".before.draft"


def atomic_write_text(path: Path, text: str, *, errors: str = "strict") -> None:
    """Write a text file (UTF-8), the whole of it or nothing; of threads that write it at once, one wins.

    A file that exists keeps its permissions. A link stays one, and its file is written; what is no file, as a
    pipe or a device, is written to.

    Raises:
        OSError: it cannot be written.
    """
    atomic_write_bytes(path, text.encode(errors=errors))


def atomic_write_bytes(path: Path, content: bytes) -> None:
    """Write a file as ``atomic_write_text`` does."""
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    file = path.resolve()
    part = file.with_name(f"{file.name}.{threading.get_native_id()}.part")
    try:
        mode = stat.S_IMODE(file.stat().st_mode) if file.exists() else None
        if mode is not None:
            part.touch(0o600)
        part.write_bytes(content)
        if mode is not None:
            part.chmod(mode)
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def atomic_write_folder(folder: Path, write: Callable[[Path], object]) -> None:
    """Write a folder anew, the whole of it or nothing; what was there is deleted once the new one is whole.

    What a killed process leaves beside it has a name that ends in ``.draft``, and is gone with the next call.
    If it was killed between the two renames, that call first restores the folder (``restore_folder``).

    Args:
        folder: what is written.
        write: makes the folder whose name it is given, beside that one.
    """
    restore_folder(folder)
    draft, before = folder.with_name(f"{folder.name}.draft"), folder.with_name(f"{folder.name}{_BEFORE}")
    shutil.rmtree(draft, ignore_errors=True)
    write(draft)
    shutil.rmtree(before, ignore_errors=True)
    if folder.exists():
        folder.replace(before)
    draft.replace(folder)
    shutil.rmtree(before, ignore_errors=True)


def restore_folder(folder: Path) -> None:
    """Give a folder its name back if ``atomic_write_folder`` was killed before the new one had it."""
    before = folder.with_name(f"{folder.name}{_BEFORE}")
    if before.exists() and not folder.exists():
        before.replace(folder)


def restore_folders(parent: Path) -> None:
    """Restore all such folders in a folder."""
    for before in parent.glob(f"*{_BEFORE}"):
        restore_folder(before.with_name(before.name.removesuffix(_BEFORE)))
