"""A Ray cluster on one or many machines that runs functions as tasks."""

import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import ParamSpec, Self, TypeVar

from sqlalchemy import make_url

from memory_program.core.errors import ClusterError, ConfigError

LOCAL_CLUSTER = "local"
"""The address of a cluster that is started on this machine and ends with the run."""

_RETRIES = 3  # of a task whose node or process dies; an exception of the task itself is not retried
_CONNECT_TIMEOUT_S = 5.0

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class RayExecutor:
    """A Ray cluster, connected from ``__enter__`` to ``__exit__``, and the database that its tasks read."""

    def __init__(self, address: str, concurrency: int, db_url: str | None) -> None:
        """Prepare; nothing is started yet.

        Args:
            address: ``local`` starts a cluster on this machine; ``host:port`` names a running one.
            concurrency: tasks that a local cluster runs at once, each in its own process.
            db_url: the database of the banks; None if no system has one.

        Raises:
            ConfigError: Ray is not installed, or tasks cannot be given this database.
        """
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # Ray reports each cluster to its makers
        if address == LOCAL_CLUSTER:
            # Ray reads this switch for macOS and Windows at import. Off, its servers listen on loopback only;
            # on Linux they would listen on every address of the machine.
            os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        try:
            import ray
        except ModuleNotFoundError as error:
            raise ConfigError(
                "executor='ray' needs Ray, which is not installed: pip install 'memory-program[ray]', or "
                "leave --executor out"
            ) from error
        self._ray: ModuleType = ray
        self._address, self._concurrency = address, concurrency
        self.db_url = shareable_database_url(db_url) if db_url is not None else None

    def __enter__(self) -> Self:
        """Connect.

        Raises:
            ConfigError: there is no such cluster, or not all of it can read the database.
        """
        is_local = self._address == LOCAL_CLUSTER
        if not is_local:  # Ray itself would try an address for minutes, and cannot be interrupted
            host, _, port = self._address.rpartition(":")
            try:
                socket.create_connection((host, int(port)), _CONNECT_TIMEOUT_S).close()
            except (OSError, OverflowError, ValueError) as error:
                raise _cluster_unreachable_error(self._address, error) from error
        size = {"num_cpus": self._concurrency, "include_dashboard": False} if is_local else {}
        try:
            self._ray.init(self._address, log_to_driver=False, logging_level=logging.ERROR, **size)
        except (OSError, ValueError, RuntimeError, self._ray.exceptions.RayError) as error:
            raise _cluster_unreachable_error(self._address, error) from error
        machines = {node["NodeManagerAddress"] for node in self._ray.nodes() if node["Alive"]}
        try:
            check_database_reachable(self.db_url, len(machines))
        except ConfigError:
            self._ray.shutdown()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect; a cluster that was started here ends."""
        self._ray.shutdown()

    def task(self, function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        """Wrap a function so that each call runs as a task and waits for its result; safe from any thread.

        The call raises what the function raises, and ``ClusterError`` if the task is lost repeatedly.
        """
        task = self._ray.remote(function).options(max_retries=_RETRIES, scheduling_strategy="SPREAD")
        failures = self._ray.exceptions

        def result(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
            try:
                return self._ray.get(task.remote(*args, **kwargs))
            except failures.RayTaskError as error:
                raise error.cause from None
            except failures.RayError as error:
                raise ClusterError(
                    f"the Ray cluster lost a task {_RETRIES + 1} times, or is lost itself "
                    f"({type(error).__name__}: {error}); finished work is kept: the same command continues"
                ) from error

        return result


def shareable_database_url(db_url: str) -> str:
    """Return a database URL that tasks can be given: a file by its full path, and never a password.

    Raises:
        ConfigError: the URL holds a password, or names a database in the memory of this process.
    """
    url = make_url(db_url)
    if url.password is not None or "password" in url.query:
        shown = url.set(query={}).render_as_string(hide_password=True)
        raise ConfigError(
            f"the database URL {shown} holds a password, which every task would carry: leave it "
            "out, and set PGPASSWORD or ~/.pgpass on each machine"
        )
    if url.get_backend_name() != "sqlite":
        return db_url
    if url.database in (None, "", ":memory:"):
        raise ConfigError(f"db_url={db_url!r} is in the memory of one process: use a file or PostgreSQL")
    return url.set(database=Path(url.database).resolve().as_posix()).render_as_string()


def check_database_reachable(db_url: str | None, machines: int) -> None:
    """Refuse a database that not every machine of a cluster can read.

    Raises:
        ConfigError: it is an SQLite file, and there are several machines.
    """
    if db_url is not None and db_url.startswith("sqlite") and machines > 1:
        raise ConfigError(
            f"the cluster has {machines} machines, and an SQLite file is on one of them: keep the banks in "
            "PostgreSQL with --db-url postgresql://user@host/name"
        )


def _cluster_unreachable_error(address: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"ray_address={address!r} is not a Ray cluster that this machine can reach ({error}): on a machine "
        "of the cluster, use the host:port that ray start --head printed, with RAY_AUTH_MODE=token in the "
        "environment if it has a token; or use local"
    )
