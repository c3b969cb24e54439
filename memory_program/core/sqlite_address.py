"""Addresses of SQLite files, as SQLAlchemy reads them."""

from pathlib import Path
from urllib.parse import unquote


def sqlite_url(path: Path) -> str:
    """Return the address of an SQLite file; SQLAlchemy reads ``?`` as a query, and ``%`` as an escape.

    Example:
        >>> sqlite_url(Path("runs?/mlflow.db"))
        'sqlite:///runs%3F/mlflow.db'
    """
    return f"sqlite:///{path.as_posix().replace('%', '%25').replace('?', '%3F')}"


def sqlite_path(uri: str) -> Path | None:
    """Return the file of an SQLite address; None for any other address.

    Example:
        >>> sqlite_path("sqlite:///runs%3F/mlflow.db").as_posix()
        'runs?/mlflow.db'
    """
    scheme, separator, place = uri.partition(":///")
    is_file = bool(separator) and scheme in ("sqlite", "sqlite+pysqlite")
    return Path(unquote(place.partition("?")[0])) if is_file else None
