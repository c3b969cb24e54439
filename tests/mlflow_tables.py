"""MLflow's tables, made once in a test process: its migrations take two seconds for every new database."""

import sqlite3
import sys
from collections.abc import Callable
from typing import Any

_UTILS = "mlflow.store.db.utils"


class _Tables:
    """MLflow's own function the first time, and copies of the tables that it made after that."""

    def __init__(self, migrate: Callable[[Any], None]) -> None:
        self._migrate = migrate
        self.made: sqlite3.Connection | None = None

    def __call__(self, engine: Any) -> None:
        """Fill a database, which may be on a server, or have some of the tables: that is left to MLflow."""
        if engine.dialect.name != "sqlite" or engine.url.database in (None, "", ":memory:"):
            return self._migrate(engine)
        with engine.connect() as connection:
            database: sqlite3.Connection = connection.connection.driver_connection
            is_empty = not database.execute("SELECT 1 FROM sqlite_master").fetchone()
            if is_empty and self.made is not None:
                return self.made.backup(database)
        self._migrate(engine)
        if is_empty:
            made = sqlite3.connect(":memory:", check_same_thread=False)
            with sqlite3.connect(engine.url.database) as database:
                database.backup(made)
            self.made = made
        return None


def copy_mlflow_tables() -> None:
    """Migrate no second database in this process; a test that does not import MLflow does not pay for it."""
    utils = sys.modules.get(_UTILS)
    if utils is not None and not isinstance(utils._initialize_tables, _Tables):
        utils._initialize_tables = _Tables(utils._initialize_tables)
