"""Files that are written whole or not at all."""

from pathlib import Path


def write_whole(path: Path, text: str, *, errors: str = "strict") -> None:
    """Write a text file (UTF-8), the whole of it or nothing.

    A link stays one, and its file is written; what is no file, as a pipe or a device, is written to.

    Raises:
        OSError: it cannot be written.
    """
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8", errors=errors)
        return
    file = path.resolve()
    part = file.with_name(f"{file.name}.part")
    part.write_text(text, encoding="utf-8", errors=errors)
    part.replace(file)
