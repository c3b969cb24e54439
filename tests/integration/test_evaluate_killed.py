"""``kill -9`` at any moment: the same command finishes, with the numbers of an uninterrupted run."""

import json
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memory_program.bank.bank import MemoryBank
from memory_program.bank.store import BankStore
from tests.evaluation_samples import write_conversations
from tests.interpreters import Interpreters
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


@pytest.fixture(scope="module")
def interpreters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interpreters]:
    with Interpreters(["tests.slow_run"], tmp_path_factory.mktemp("printed")) as interpreters:
        yield interpreters


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
def test_a_run_killed_at_random_points_gives_the_same_results(system, kills, tmp_path, capsys, interpreters):
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # pytest shows it when the test fails
    rng = random.Random(seed)
    data = write_conversations(tmp_path / "talks.json", CONVERSATIONS, SESSIONS)
    uninterrupted, killed = tmp_path / "uninterrupted", tmp_path / "killed"
    run(system, data, uninterrupted, capsys)

    for stage, before in kills:
        journal = killed / system / f"{stage}.jsonl"
        records = rng.randrange(_lines(journal) + 1, before - 3)
        death = (journal, records, rng.uniform(0, 0.05))
        told = json.dumps(settings(data, killed))
        ended = interpreters.run_module("tests.slow_run", system, DELAY_S, told, *death)
        assert ended.status == -signal.SIGKILL, ended.errors
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
