"""A run on a Ray cluster ends as it does on threads, also when a node, or the run itself, is killed."""

import contextlib
import io
import ipaddress
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest
from rich.console import Console
from sqlalchemy import make_url

from memory_program.agents.systems import make_system
from memory_program.bank.outcomes import Outcome
from memory_program.bank.space import MemorySpace
from memory_program.bank.store import BankStore
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.configs.groups import SystemSettings
from memory_program.core.errors import ClusterError, ConfigError, ConflictError
from memory_program.evaluation.evaluation_run import evaluate
from memory_program.evaluation.stages import ray_system as remote_system
from memory_program.evaluation.stages.ray_executor import (
    RayExecutor,
    check_database_reachable,
    shareable_database_url,
)
from memory_program.evaluation.stages.ray_system import RemoteSystem
from memory_program.models.factory import language_model
from tests.conftest import CHECKOUT
from tests.databases import DATABASES, POSTGRES_URL, empty_database
from tests.evaluation_samples import write_conversations
from tests.integration.test_evaluate_full_program import impatient
from tests.integration.test_evaluate_killed import numbers
from tests.model_server import Behaviour, ModelServer, at_random

CONVERSATIONS, SESSIONS = 3, 3
TASKS_AT_ONCE = 3
KEY = "sk-canary-0123456789abcdef"
SAID = "photographed"  # in every session
LATENCY_S = 0.15
FAULTS = (Behaviour.CUT, Behaviour.EMPTY, Behaviour.REFUSAL)  # of the kind that is not tried again


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder whose path leaves room for the names of Ray's sockets."""
    path = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Any]:
    """Two nodes on this machine, one of which runs two tasks at a time, the other one."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # on loopback, as an executor's own
        environment.setenv("OPENAI_API_KEY", KEY)
        if POSTGRES_URL is not None and make_url(POSTGRES_URL).password is not None:
            environment.setenv("PGPASSWORD", str(make_url(POSTGRES_URL).password))
        from ray.cluster_utils import Cluster

        Path("/tmp/ray").mkdir(exist_ok=True)  # where Ray notes the address, whatever folder it is given
        node = {"node_ip_address": "127.0.0.1", "object_store_memory": 80_000_000}
        node |= {"include_dashboard": False, "include_log_monitor": False}
        patience = {"health_check_period_ms": 500, "health_check_failure_threshold": 4}
        head = {"num_cpus": 2, "temp_dir": str(folder), "_system_config": patience}
        cluster = Cluster(initialize_head=True, head_node_args={**node, **head})
        try:
            cluster.add_node(num_cpus=1, **node)
            yield cluster
        finally:
            cluster.shutdown()


def run(server: ModelServer, output_dir: Path, **settings: Any) -> str:
    console = Console(file=io.StringIO(), width=120)
    config = EvaluateConfig(**configured(server, output_dir, **settings))
    evaluate(config, console=console, models=impatient(server.url))
    return console.file.getvalue()


def configured(server: ModelServer, output_dir: Path, **settings: Any) -> dict[str, Any]:
    models = {"writer_model": "openai/test", "reader_model": "openai/test", "api_base": server.url}
    return {"mlflow": False, "concurrency": TASKS_AT_ONCE, "output_dir": output_dir, **models, **settings}


def children(pid: int) -> list[int]:
    """Processes that a process started, from the second word after the name in ``/proc/PID/stat``."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended since
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found


def kill_a_node_while_all_ask(cluster: Any, journal: Path, server: ModelServer) -> None:
    """``kill -9`` a node when something is recorded and each of the three tasks waits for the model."""
    (node,) = cluster.worker_nodes
    raylet = node.all_processes["raylet"][0].process.pid
    pids = [raylet]
    while not journal.exists() or not journal.read_text() or server.traffic.in_flight < TASKS_AT_ONCE:
        time.sleep(0.005)
        pids = [*children(raylet), raylet]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def records(system_folder: Path) -> dict[str, list[Any]]:
    """What was recorded, by the key, without times; a key of each kind has one record."""
    found: dict[str, list[Any]] = {}
    for journal in ("build", "answers"):
        lines = (system_folder / f"{journal}.jsonl").read_text().splitlines()
        all_of_them = [json.loads(line) for line in lines]
        for record in all_of_them:
            del record["elapsed_s"], record["usage"]["seconds"]
        found[journal] = sorted(all_of_them, key=lambda record: record["key"])
        keys = [record["key"] for record in all_of_them]
        assert len(keys) == len(set(keys))
    return found


def contents(db_url: str) -> dict[str, Any]:
    with BankStore(db_url) as store:
        spaces = [store.load(namespace) for namespace in store.namespaces()]
    return {
        space.namespace: (
            space.bank.operations(),
            space.bank.live(),
            space.bank.core,
            list(space.sessions.items()),
        )
        for space in spaces
    }


def assert_nothing_is_told(logs: Path) -> None:
    files = [file for file in logs.rglob("*") if file.is_file()]
    assert any(file.name.startswith("worker-") for file in files)
    for file in files:
        content = file.read_bytes()
        assert KEY.encode() not in content, file
        assert SAID.encode() not in content, file


def test_a_killed_node_does_not_change_the_results(cluster: Any, folder: Path, tmp_path: Path) -> None:
    data = write_conversations(tmp_path / "talks.json", CONVERSATIONS, SESSIONS)
    program = make_system("memory", SystemSettings())
    program.reader.answer.signature = program.reader.answer.signature.with_instructions("Answer in one word.")
    program.save(str(tmp_path / "program.json"))
    settings = {"dataset": str(data), "systems": "memory,rag", "program": tmp_path / "program.json"}
    threads, tasks = tmp_path / "threads", tmp_path / "tasks"
    behave = at_random(0.15, seed=2, faults=FAULTS)
    with ModelServer(behave) as server:
        run(server, threads, **settings)
    with (
        ModelServer(behave, latency_s=LATENCY_S) as server,
        empty_database(DATABASES[-1], tmp_path) as db_url,
    ):
        settings["db_url"] = make_url(db_url)._replace(password=None).render_as_string()
        journal = tasks / "memory" / "build.jsonl"
        victim = (cluster, journal, server)
        death = threading.Thread(target=kill_a_node_while_all_ask, args=victim, daemon=True)
        death.start()
        run(server, tasks, executor="ray", ray_address=cluster.address, **settings)
        death.join(timeout=10)
        assert not death.is_alive()
        assert contents(db_url) == contents(f"sqlite:///{threads / 'banks.sqlite'}")
        assert server.traffic.keys == {KEY}
        asked = server.traffic.requests.copy()
        assert max(asked.values()) > 1  # what the dead node was doing, another one has done
        run(server, tasks, mode="answer", **settings)
        assert server.traffic.requests == asked  # what is recorded there, is recorded for threads
    assert [node["Alive"] for node in cluster.global_state.node_table()].count(True) == 1
    assert numbers(tasks) == numbers(threads)
    assert numbers(tasks)["systems"]["memory"]["failures"]["all"] > 0
    for system in ("memory", "optimized", "rag"):
        assert records(tasks / system) == records(threads / system)
    assert_nothing_is_told(folder)


def family(pid: int) -> set[int]:
    """Processes that a process has started, and those that they have."""
    started = children(pid)
    return {*started, *(grandchild for child in started for grandchild in family(child))}


def is_there(pid: int) -> bool:
    """Whether a process runs; Ray's agents, which run no task, take a minute to see that they are alone."""
    try:
        return "Agent" not in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


def listening(pids: set[int]) -> set[str]:
    """The addresses on which processes listen, as Linux tells them."""
    sockets = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                sockets.add(os.readlink(entry).removeprefix("socket:[").removesuffix("]"))
    addresses = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and rest[5] in sockets:  # LISTEN
                words = bytes.fromhex(local.partition(":")[0])
                turned = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
                address = ipaddress.ip_address(turned)
                addresses.add(str(getattr(address, "ipv4_mapped", None) or address))
    return addresses


def test_a_killed_run_ends_its_cluster_and_continues(folder: Path, tmp_path: Path) -> None:
    data = write_conversations(tmp_path / "talks.json", 2, 4)
    whole, killed, temporary = tmp_path / "whole", tmp_path / "killed", folder / "local"
    temporary.mkdir()
    secrets = {"OPENAI_API_KEY": KEY, "RAY_AUTH_TOKEN": KEY * 2}
    settings = {"dataset": str(data), "systems": "memory", "mode": "build"}
    with ModelServer(latency_s=LATENCY_S) as server:
        flags = configured(server, killed, executor="ray", **settings) | {"concurrency": 2}
        del flags["mlflow"]
        process = subprocess.Popen(
            [sys.executable, "evaluate.py", *(f"--{name.replace('_', '-')}={flags[name]}" for name in flags)],
            cwd=CHECKOUT,
            env={**os.environ, **secrets, "RAY_TMPDIR": str(temporary)},
        )
        journal = killed / "memory" / "build.jsonl"
        while process.poll() is None and (not journal.exists() or journal.read_text().count("\n") < 2):
            time.sleep(0.01)
        pids = family(process.pid)
        addresses = listening({process.pid, *pids})
        process.kill()
        assert process.wait() == -signal.SIGKILL
    with ModelServer() as server:
        run(server, whole, **settings)
        asked = server.traffic.requests.total()
        run(server, killed, **settings)
        assert server.traffic.requests.total() - asked < asked
    banks = [contents(f"sqlite:///{folder / 'banks.sqlite'}") for folder in (whole, killed)]
    assert banks[0] == banks[1]
    assert addresses
    assert all(ipaddress.ip_address(address).is_loopback for address in addresses)
    deadline = time.monotonic() + 60
    while any(is_there(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert_nothing_is_told(temporary)


def test_exceptions_of_tasks_are_raised_and_lost_tasks_end_the_run(cluster: Any) -> None:
    def refuse() -> None:
        raise ConflictError("somebody was faster")

    with RayExecutor(cluster.address, 1, None) as executor:
        with pytest.raises(ConflictError, match=r"^somebody was faster$"):
            executor.task(refuse)()
        with pytest.raises(ClusterError, match=r"lost a task 4 times, .* the same command continues$"):
            executor.task(lambda: os._exit(1))()


class Here:
    """Runs tasks in this process, and keeps what they were sent."""

    def __init__(self, db_url: str | None) -> None:
        self.db_url = db_url
        self.sent = b""

    def task(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def result(*arguments: Any) -> Any:
            self.sent += pickle.dumps(arguments)
            return function(*arguments)

        return result


def test_tasks_get_no_key_and_no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    here = Here(None)
    with ModelServer() as server:
        lm = language_model("openai/test", api_base=server.url)
        lm("whether it is ready")
        system = make_system("full-context", SystemSettings(), reader_lm=lm)
        remote = RemoteSystem(system, here, calls_at_once=1)
        assert remote.ask(MemorySpace("alice"), "Who is Bob?").outcome is Outcome.OK
        assert server.traffic.keys == {KEY}
        assert server.traffic.requests.total() == 2
    assert b"Who is Bob?" in here.sent
    assert b"whether it is ready" not in here.sent
    assert KEY.encode() not in here.sent


def test_dspy_keeps_no_history_of_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with ModelServer() as server:
        lm = language_model("openai/test", api_base=server.url)
        system = make_system("full-context", SystemSettings(), reader_lm=lm)
        RemoteSystem(system, Here(None), calls_at_once=1).ask(MemorySpace("alice"), "Who is Bob?")
        assert server.traffic.requests.total() == 1
    assert dspy.settings.trace == []


def test_a_database_at_another_revision_is_an_error(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bank.sqlite'}"
    with BankStore(url) as store:
        store.save(MemorySpace("alice"))
        remote = RemoteSystem(make_system("memory", SystemSettings()), Here(url), calls_at_once=1)
        with pytest.raises(ConflictError, match="'alice' is at revision 0, but a task reads revision 1"):
            remote.ask(MemorySpace("alice"), "Who is Bob?")


def test_a_machine_with_another_version_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere(Here):
        def task(self, function: Callable[..., Any]) -> Callable[..., Any]:
            there = super().task(function)

            def result(*arguments: Any) -> Any:
                monkeypatch.setattr(remote_system, "__version__", "0.0.1")
                return there(*arguments)

            return result

    remote = RemoteSystem(make_system("extractive", SystemSettings()), Elsewhere(None), calls_at_once=1)
    with pytest.raises(
        ConfigError, match=r"has memory-program 0\.0\.1, and the run has .*: install the same"
    ):
        remote.ask(MemorySpace("alice"), "Who is Bob?")


def test_without_ray_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    data = write_conversations(tmp_path / "talks.json", 1, 1)
    output_dir, console = tmp_path / "run", Console(file=io.StringIO())
    settings = {"dataset": str(data), "systems": "extractive", "mode": "build", "output_dir": output_dir}
    with pytest.raises(ConfigError, match=r"executor='ray' needs Ray.*pip install 'memory-program\[ray\]'"):
        evaluate(EvaluateConfig(**settings, executor="ray"), console=console)
    evaluate(EvaluateConfig(**settings), console=console)
    assert (output_dir / "extractive" / "build.jsonl").is_file()


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "ray://127.0.0.1:1", "auto", "127.0.0.1:port", "host:99999999"]
)
def test_an_unreachable_cluster_is_an_error_at_once(address: str) -> None:
    executor = RayExecutor(address, 1, None)
    with pytest.raises(ConfigError, match=f"ray_address='{address}' is not a Ray cluster .*ray start --head"):
        executor.__enter__()


def test_an_sqlite_file_is_refused_on_several_machines() -> None:
    check_database_reachable("sqlite:////tmp/banks.sqlite", 1)
    check_database_reachable("postgresql://host/name", 2)
    check_database_reachable(None, 2)
    with pytest.raises(
        ConfigError, match=r"has 2 machines, and an SQLite file is on one of them: .*--db-url"
    ):
        check_database_reachable("sqlite:////tmp/banks.sqlite", 2)


@pytest.mark.parametrize(
    "url", ["postgresql://me:hunter2@host/name", "postgresql://me@host/name?password=hunter2"]
)
def test_a_database_with_a_password_in_its_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="set PGPASSWORD or ~/") as caught:
        shareable_database_url(url)
    assert "hunter2" not in str(caught.value)


def test_database_urls_are_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        shareable_database_url("sqlite:///runs/banks.sqlite") == f"sqlite:///{tmp_path / 'runs/banks.sqlite'}"
    )
    assert (
        shareable_database_url("postgresql://me@host/name?options=-c%20a%3Db")
        == "postgresql://me@host/name?options=-c%20a%3Db"
    )
    with pytest.raises(ConfigError, match="'sqlite://' is in the memory of one process"):
        shareable_database_url("sqlite://")
