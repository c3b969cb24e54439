"""Empty databases to test a store on: a SQLite file, or a schema of a PostgreSQL server."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import create_engine, make_url, text

POSTGRES_URL = os.environ.get("TEST_POSTGRES_URL")
NO_POSTGRES = "needs a PostgreSQL database: set TEST_POSTGRES_URL=postgresql://user:password@host/name"
DATABASES = ("sqlite",) if POSTGRES_URL is None else ("sqlite", "postgresql")
"""What the tests of a store run on; one test of each file skips with the reason where it is SQLite alone."""


def execute(url: str, statement: str, **values: object) -> None:
    """Do something to a database behind the back of a store."""
    address = make_url(url)
    if address.get_backend_name() == "postgresql":
        address = address.set(drivername="postgresql+psycopg")
    engine = create_engine(address)
    with engine.begin() as connection:
        connection.execute(text(statement), values)
    engine.dispose()


@contextmanager
def empty_database(kind: str, folder: Path) -> Iterator[str]:
    """Give the URL of an empty database of one of ``DATABASES``."""
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'bank.sqlite'}"
        return
    assert POSTGRES_URL is not None
    server = make_url(POSTGRES_URL)
    schema = f"test_{uuid.uuid4().hex}"
    engine = create_engine(server.set(drivername="postgresql+psycopg"))
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {schema}"))
    url = server.update_query_dict({"options": f"-c search_path={schema}"})
    yield url.render_as_string(hide_password=False)
    with engine.begin() as connection:
        connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))
    engine.dispose()
