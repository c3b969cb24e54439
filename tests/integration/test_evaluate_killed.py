"""``kill -9`` at any moment: the same command finishes, with the numbers of an uninterrupted run."""

import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memory_program.bank.bank import MemoryBank
from memory_program.bank.store import BankStore
from tests.conftest import CHECKOUT
from tests.evaluation_samples import write_conversations
from tests.slow_run import run_slowly

CONVERSATIONS, SESSIONS = 4, 6  # 52 questions
SESSIONS_IN_ALL = CONVERSATIONS * SESSIONS
DELAY_S = 0.02


def settings(data: Path, output_dir: Path) -> dict[str, Any]:
    return {
        "dataset": str(data),
        "output_dir": str(output_dir),
        "mlflow": False,
        "concurrency": 3,
        "writer_model": "openai/writer",
        "reader_model": "openai/reader",
    }


def run_killed(system: str, data: Path, output_dir: Path, *death: object) -> None:
    """Run in a process of its own, which kills itself."""
    command = [sys.executable, "-m", "tests.slow_run", system, str(DELAY_S)]
    command += [json.dumps(settings(data, output_dir)), *(str(argument) for argument in death)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


def run(system: str, data: Path, output_dir: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Run to the end in this process, which has the imports; return the output."""
    run_slowly(system, DELAY_S, settings(data, output_dir))
    return capsys.readouterr().out


def _lines(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def numbers(output_dir: Path) -> Any:
    """results.json without times, and without what names the folder and the commit."""
    results = json.loads(
        (output_dir / "results.json").read_text(),
        object_hook=lambda found: {name: value for name, value in found.items() if name != "seconds"},
    )
    return {name: value for name, value in results.items() if name not in ("config", "git_commit")}


@pytest.mark.parametrize(
    ("system", "kills"),
    [
        ("memory", [("build", SESSIONS_IN_ALL), ("answers", 45)]),  # benchmarks/faults.py kills more often
        ("rag", [("answers", 25)]),
    ],
)
def test_a_run_killed_at_random_points_gives_the_same_results(system, kills, tmp_path, capsys):
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # pytest shows it when the test fails
    rng = random.Random(seed)
    data = write_conversations(tmp_path / "talks.json", CONVERSATIONS, SESSIONS)
    uninterrupted, killed = tmp_path / "uninterrupted", tmp_path / "killed"
    run(system, data, uninterrupted, capsys)

    for stage, before in kills:
        journal = killed / system / f"{stage}.jsonl"
        records = rng.randrange(_lines(journal) + 1, before - 3)
        run_killed(system, data, killed, journal, records, rng.uniform(0, 0.05))
    output = run(system, data, killed, capsys)

    assert numbers(killed) == numbers(uninterrupted)
    assert f"{system}: build: 0 of {SESSIONS_IN_ALL} to do" in output
    for journal in (killed / system).glob("*.jsonl"):
        assert all(json.loads(line) for line in journal.read_text().splitlines())
    if system == "memory":
        _assert_whole_sessions(killed)


def _assert_whole_sessions(output_dir: Path) -> None:
    with BankStore(f"sqlite:///{output_dir / 'banks.sqlite'}") as store:
        assert len(store.namespaces()) == CONVERSATIONS
        for namespace in store.namespaces():
            space = store.load(namespace)
            assert [entry.version for entry in space.sessions.values()] == [
                3 * n for n in range(1, SESSIONS + 1)
            ]
            assert MemoryBank.replay(namespace, space.bank.operations()).live() == space.bank.live()
