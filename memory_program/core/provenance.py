"""Provenance of a result: the commit of the code and the versions of all installed packages."""

import hashlib
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from memory_program import __version__


def git_commit() -> str | None:
    """Give the commit of the checkout that this package lies in, ``+changes`` if it was edited since.

    None outside a checkout, and where there is no git.
    """
    folder = Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():
        return None
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}+changes" if changes else commit


@cache
def lock_hash() -> str:
    """Hash the name and version of every installed distribution, as a lock file would list them."""
    installed = sorted({f"{d.name.lower()}=={d.version}" for d in distributions()})
    return hashlib.sha256("\n".join(installed).encode()).hexdigest()


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, check=True, text=True, timeout=10).stdout.strip()


def provenance() -> dict[str, str | None]:
    """Give what every result rests on besides its data: the version, the commit, the lock file."""
    return {"version": __version__, "git_commit": git_commit(), "lock_hash": lock_hash()}


def provenance_tags(dataset: Mapping[str, Any]) -> dict[str, str]:  # Any: the dataset in results.json
    """Give what a run rests on as tags for MLflow."""
    data = {f"dataset.{name}": dataset[name] for name in ("name", "sha256")}
    return data | {name: str(value) for name, value in provenance().items()}
