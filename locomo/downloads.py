"""Files from the network, fetched once: checked against a pinned hash, or that of the first download."""

import hashlib
from pathlib import Path

from locomo.atomic_files import atomic_write_text
from locomo.benchmark_errors import DatasetError


def download(url: str, sha256: str | None, cache_dir: Path | None = None, *, alternative: str) -> Path:
    """Fetch a file, unless an intact copy is in the cache already, and return where it lies.

    Where no hash is published, the hash of the first download is written beside the file, and a copy that
    differs from it later is refused.

    Args:
        url: what to fetch; the last part is the file's name.
        sha256: the hash that it must have; None records the one that it has.
        cache_dir: where it is kept; the user's own cache folder unless given.
        alternative: what the user can do who has no network, for the error.

    Raises:
        DatasetError: it cannot be fetched, or has another hash; the message says where from and where to.
    """
    import pooch  # brings requests, which reading a file by path does not need

    folder = cache_dir or Path(pooch.os_cache("memory-program"))
    path = folder / url.rpartition("/")[2]
    recorded = path.with_name(f"{path.name}.sha256")
    try:
        noted = recorded.read_text(encoding="ascii").strip() if recorded.exists() else ""
        expected = sha256 or noted or None  # a note is empty if the disk was full
        pooch.retrieve(url, expected and f"sha256:{expected}", fname=path.name, path=folder)
        if expected is None:
            atomic_write_text(recorded, f"{file_sha256(path)}\n")
    except (OSError, ValueError) as error:  # no network, refused, unwritable cache; or other bytes
        raise DatasetError(
            f"cannot get {url} into {str(folder)!r} ({' '.join(str(error).split())}). {alternative}, or "
            f"download that URL by hand to {str(path)!r}" + (f" (sha256 {sha256})" if sha256 else "")
        ) from error
    return path


def file_sha256(path: Path) -> str:
    """Hash a file without holding it in memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
