"""A build in two phases that is killed with ``kill -9``: nothing is asked twice, lost or done twice."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from memory_program.bank.store import BankStore
from tests.interpreters import Interpreters
from tests.slow_run import run_slowly

DELAY_S = 0.01
SESSIONS = 22  # of the one conversation that seed 3 makes up


def settings(output_dir: Path) -> dict[str, Any]:
    return {
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


def run_killed(interpreters: Interpreters, output_dir: Path, *death: object) -> None:
    """Build in a process of its own, which kills itself."""
    told = json.dumps(settings(output_dir))
    ended = interpreters.run_module("tests.slow_run", "oracle", DELAY_S, told, *death)
    assert ended.status == -signal.SIGKILL, ended.errors


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


def test_a_build_in_two_phases_that_is_killed_asks_nothing_twice_and_ends_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run_slowly("oracle", DELAY_S, settings(whole))
    proposals, builds = (killed / "memory" / f"{stage}.jsonl" for stage in ("proposals", "build"))
    with Interpreters(["tests.slow_run"], tmp_path) as interpreters:
        run_killed(interpreters, killed, proposals, 4 * SESSIONS // 2, 0.01)  # in the middle of phase one
        assert len(records(killed, "proposals")) >= 4 * SESSIONS // 2
        assert not builds.exists()
        run_killed(interpreters, killed, builds, 5, 0)  # while sessions are settled
    capsys.readouterr()
    run_slowly("oracle", DELAY_S, settings(killed))  # in this process, which has the imports
    output = capsys.readouterr().out

    assert f"memory: build: {SESSIONS} of {SESSIONS} to do" not in output
    assert bank(killed) == bank(whole)
    assert proposals_of(killed) == proposals_of(whole)
    sessions = [record["session_id"] for record in records(killed, "build")]
    assert sorted(set(sessions)) == sorted(f"session_{number}" for number in range(1, SESSIONS + 1))
