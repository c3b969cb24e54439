"""MLflow's tracking address: where it is, and why it cannot be used. MLflow is imported on first use."""

import importlib
import logging
import os
import socket
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

import httpx

from memory_program.core.sqlite_address import sqlite_path, sqlite_url

_CHECK_TIMEOUT_S = 4.0
_DATABASE_PORTS = {"postgresql": 5432, "postgres": 5432, "mysql": 3306, "mssql": 1433}
_SQLITE_HEADER = b"SQLite format 3\0"


def tracking_location(output_dir: Path, named: str | None) -> tuple[str, Path | None]:
    """Return MLflow's tracking address, and the folder of its files.

    Args:
        output_dir: the folder of a run; without an address, SQLite and the files are beside it.
        named: an address from the config, which has its own place for files.
    """
    if named:
        return named, None
    beside = Path(os.path.normpath(output_dir / os.pardir))  # the parent of "." is ".."
    return sqlite_url(beside / "mlflow.db"), beside / "mlartifacts"


def absolute_address(uri: str) -> str:
    """Return an address that names the same database in every folder.

    Example:
        >>> absolute_address("sqlite:////data/mlflow.db"), absolute_address("http://host:5000")
        ('sqlite:////data/mlflow.db', 'http://host:5000')
    """
    file = sqlite_path(uri)
    return uri if file is None else sqlite_url(file.absolute())


def is_database_server(uri: str) -> bool:
    """Say whether MLflow's tables are on a server such as PostgreSQL, which keeps bytes of deleted rows."""
    return urlsplit(uri).scheme.partition("+")[0] in _DATABASE_PORTS


def find_tracking_problem(uri: str) -> str | None:
    """Find out within seconds why a tracking address cannot be used; MLflow itself retries for minutes.

    Returns:
        the reason; None if something answers there, or if only MLflow can tell.
    """
    database = sqlite_path(uri)
    try:
        address = urlsplit(uri)
        scheme = address.scheme.partition("+")[0]
        port = _DATABASE_PORTS.get(scheme)
        if database is not None and database.is_file():
            with database.open("rb") as file:
                header = file.read(len(_SQLITE_HEADER))
            return None if header in (b"", _SQLITE_HEADER) else "the file is not an SQLite database"
        if scheme in ("http", "https"):
            # nothing secret is sent, and MLflow has settings of its own for certificates
            reply = httpx.get(f"{uri.rstrip('/')}/health", timeout=_CHECK_TIMEOUT_S, verify=False)
            return f"HTTP status {reply.status_code}" if reply.status_code in (502, 503, 504) else None
        if port is not None and address.hostname:
            socket.create_connection((address.hostname, address.port or port), _CHECK_TIMEOUT_S).close()
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        return str(error) or type(error).__name__
    return None


def import_mlflow() -> ModuleType:
    """Import MLflow without its telemetry, progress bars and log of database migrations."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")  # seven take minutes
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")  # of silence; not the default of two minutes
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read while it is imported
    # one bar for every run that is searched
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    mlflow = importlib.import_module("mlflow")
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return mlflow
