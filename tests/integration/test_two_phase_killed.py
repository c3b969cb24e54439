"""A build in two phases that is killed with ``kill -9``: nothing is asked twice, lost or done twice."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from memory_program.bank.store import BankStore
from tests.conftest import CHECKOUT

SESSIONS = 22  # of the one conversation that seed 3 makes up


def start(output_dir: Path, *death: object) -> subprocess.Popen[str]:
    settings = {
        "dataset": "world",
        "worlds": 1,
        "seed": 3,
        "mode": "build",
        "build": "two-phase",
        "output_dir": str(output_dir),
        "mlflow": False,
        "writer_model": "openai/oracle",
        "reader_model": "openai/oracle",
    }
    command = [sys.executable, "-m", "tests.slow_run", "oracle", "0.01", json.dumps(settings)]
    command += [str(argument) for argument in death]
    return subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str], status: int = 0) -> str:
    output, errors = process.communicate(timeout=240)
    assert process.returncode == status, errors
    return output


def records(output_dir: Path, journal: str) -> list[dict[str, object]]:
    lines = (output_dir / "memory" / f"{journal}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def proposals_of(output_dir: Path) -> list[tuple[object, ...]]:
    """What was asked and proposed, each time that it was."""
    told = ("session_id", "agent", "key", "calls")
    asked = [tuple(record[name] for name in told) for record in records(output_dir, "proposals")]
    return sorted(asked, key=str)


def bank(output_dir: Path) -> object:
    """What the bank of a run holds, and the sessions that it has taken in."""
    with BankStore(f"sqlite:///{output_dir / 'banks.sqlite'}") as store:
        (namespace,) = store.namespaces()
        space = store.load(namespace)
        return space.bank.operations(), list(space.sessions), space.bank.core


def test_a_build_in_two_phases_that_is_killed_asks_nothing_twice_and_ends_the_same(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    uninterrupted = start(whole)
    proposals, builds = (killed / "memory" / f"{stage}.jsonl" for stage in ("proposals", "build"))
    finish(start(killed, proposals, 4 * SESSIONS // 2, 0.01), -signal.SIGKILL)  # in the middle of phase one
    assert len(records(killed, "proposals")) >= 4 * SESSIONS // 2
    assert not builds.exists()
    finish(start(killed, builds, 5, 0), -signal.SIGKILL)  # while sessions are settled
    output = finish(start(killed))
    finish(uninterrupted)

    assert f"memory: build: {SESSIONS} of {SESSIONS} to do" not in output
    assert bank(killed) == bank(whole)
    assert proposals_of(killed) == proposals_of(whole)
    sessions = [record["session_id"] for record in records(killed, "build")]
    assert sorted(set(sessions)) == sorted(f"session_{number}" for number in range(1, SESSIONS + 1))
