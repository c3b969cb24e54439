"""Files and folders that are written whole or not at all."""

import shutil
from collections.abc import Callable
from pathlib import Path


def atomic_write_text(path: Path, text: str, *, errors: str = "strict") -> None:
    """Write a text file (UTF-8), the whole of it or nothing.

    A link stays one, and its file is written; what is no file, as a pipe or a device, is written to.

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
    part = file.with_name(f"{file.name}.part")
    part.write_bytes(content)
    part.replace(file)


def atomic_write_folder(folder: Path, write: Callable[[Path], object]) -> None:
    """Write a folder anew, the whole of it or nothing; what was there is deleted once the new one is whole.

    What a killed process leaves beside it has a name that ends in ``.draft``, and is gone with the next call.

    Args:
        folder: what is written.
        write: makes the folder whose name it is given, beside that one.
    """
    draft, before = (folder.with_name(f"{folder.name}{end}") for end in (".draft", ".before.draft"))
    shutil.rmtree(draft, ignore_errors=True)
    write(draft)
    shutil.rmtree(before, ignore_errors=True)
    if folder.exists():
        folder.replace(before)
    draft.replace(folder)
    shutil.rmtree(before, ignore_errors=True)
