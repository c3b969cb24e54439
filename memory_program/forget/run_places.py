"""Where runs leave something: the databases of their banks, MLflow, the pages beside their folders."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from memory_program.core.errors import ConfigError, RecordError
from memory_program.core.run_folder import CONFIG_FILE
from memory_program.forget.quote_matcher import is_report
from memory_program.tracking import RECEIPT_FILE, sqlite_path, tracking_location


def run_database_urls(folder: Path) -> list[str]:
    """List the databases of the banks of a run that are known: in its folder, and as its settings name them.

    Runs have others inside: of the ceiling, or of what a training compares.

    Raises:
        ConfigError: it has written memories, and none is known.
        RecordError: its settings cannot be read.
    """
    known = [f"sqlite:///{path.as_posix()}" for path in sorted(folder.rglob("banks.sqlite"))]
    named = read_json_object(folder / CONFIG_FILE).get("db_url")
    known += [named] if isinstance(named, str) else []
    systems = [read_json_object(run).get("system") for run in folder.glob("*/run.json")]
    if not known and any(isinstance(system, dict) and system.get("writer") for system in systems):
        raise ConfigError(f"the banks of {str(folder)!r} are not in it: name their database with --db")
    return known


def tracking_locations(folders: Sequence[Path], named: str | None) -> list[tuple[str, Path | None]]:
    """List MLflow's places: the one that is named, or those beside the folders and all that runs note."""
    places = [tracking_location(folder, named) for folder in folders]
    if named is None:
        settings = [read_json_object(folder / CONFIG_FILE) for folder in folders]
        noted = [config.get("tracking_uri") for config in settings if config.get("mlflow", True)]
        noted += [
            read_json_object(path).get("uri")
            for folder in folders
            for path in sorted(folder.rglob(RECEIPT_FILE))
        ]
        places += [(uri, None) for uri in noted if isinstance(uri, str)]
    apart: dict[str, tuple[str, Path | None]] = {}  # one file may have several addresses
    for uri, artifacts in places:
        file = sqlite_path(uri)
        apart.setdefault(str(file.resolve()) if file is not None else uri, (uri, artifacts))
    return list(apart.values())


def database_files(url: str) -> list[Path]:
    """List the files that a database may have; none if it is on a server."""
    path = sqlite_path(url)
    return [] if path is None else [path.with_name(path.name + end).resolve() for end in ("", "-wal", "-shm")]


def reports_beside(folders: Iterable[Path]) -> list[Path]:
    """List the reports beside the folders of runs, where those of several runs are."""
    pages = {page for folder in folders for page in folder.parent.glob("*.html")}
    return [page for page in sorted(pages) if is_report(page)]


def has_session_files(folder: Path) -> bool:
    """Whether a folder is no run's, but of trajectories or synthesized questions."""
    return not (folder / CONFIG_FILE).exists() and any(folder.glob("*.jsonl"))


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; an empty one where there is no file.

    Raises:
        RecordError: it is damaged.
    """
    try:
        return dict(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError) as error:
        raise RecordError(
            f"{str(path)!r} cannot be read ({error}): delete it, or name another folder"
        ) from error
