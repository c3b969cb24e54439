"""Real scripts that are killed with SIGKILL at random points and started again, beside some that are not.

A chain is one run: each process goes on where the one before it was killed, and the last one ends. What it
leaves is compared with what an uninterrupted run left: operations that are missing are lost, those that are
there more than once are doubled, and a unit of work of which a part is there is half applied.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memory_program.bank.memory import operation_to_json
from memory_program.bank.store import BankStore
from tests.conftest import CHECKOUT

_PATIENCE_S = 900.0


@dataclass(slots=True)
class Toll:
    """What faults did: how often they struck, and what it took."""

    strikes: int = 0
    lost: int = 0
    doubled: int = 0
    half: int = 0
    notes: list[str] = field(default_factory=list[str])

    @property
    def is_nothing(self) -> bool:
        """Whether every promise was kept."""
        return not (self.lost or self.doubled or self.half)

    def add(self, wanted: Counter[str], found: Counter[str]) -> None:
        """Count what is missing and what is there too often."""
        self.lost += (wanted - found).total()
        self.doubled += (found - wanted).total()


@dataclass(frozen=True)
class Script:
    """A resumable command, and its progress as the number of records on disk."""

    arguments: Sequence[str]
    progress: Callable[[], int]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])

    def start(self, **popen: Any) -> "subprocess.Popen[str]":
        """Start it, with what it prints in pipes."""
        return subprocess.Popen(
            [sys.executable, *self.arguments],
            cwd=CHECKOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", **self.environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            **popen,
        )

    def finish(self) -> None:
        """Run it to its end.

        Raises:
            AssertionError: it fails.
        """
        process = self.start()
        _, errors = process.communicate(timeout=_PATIENCE_S)
        assert process.returncode == 0, f"{self.arguments[0]}: {errors[-2000:]}"

    def killed_at(self, records: int, delay_s: float) -> bool:
        """Kill it a moment after a number of records are there; False if it ended before."""
        records = max(records, self.progress() + 1)  # else it would die while it imports
        process = self.start()
        until = time.monotonic() + _PATIENCE_S
        while self.progress() < records and process.poll() is None:
            assert time.monotonic() < until, f"{self.arguments[0]} makes no progress"
            time.sleep(0.002)
        time.sleep(delay_s)
        process.kill()
        process.communicate()
        return process.returncode == -signal.SIGKILL


def points(total: int, kills: int, rng: random.Random) -> list[int]:
    """Choose random points of a run, spread over it, each in a part of its own."""
    return [int((place + rng.random()) * (total - 1) / kills) for place in range(kills)]


def lines(path: Path) -> int:
    """Count the whole lines of a journal."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def keys(path: Path) -> list[str]:
    """List the keys of a journal's whole lines, in order."""
    whole = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [json.loads(line)["key"] for line in whole]


def operations(database: Path) -> dict[str, list[str]]:
    """List what each namespace of a store has applied, in order."""
    if not database.exists():
        return {}
    with BankStore(f"sqlite:///{database}") as store:
        return {
            name: [json.dumps(operation_to_json(o)) for o in store.bank(name).operations()]
            for name in store.namespaces()
        }


def half_sessions(database: Path, wanted: Mapping[str, Sequence[str]]) -> int:
    """Count the namespaces that hold a part of a session, or else than the run that was not killed."""
    if not database.exists():
        return 0
    half = 0
    with BankStore(f"sqlite:///{database}") as store:
        for name in store.namespaces():
            space = store.load(name)
            found = [json.dumps(operation_to_json(o)) for o in space.bank.operations()]
            ends = {0, *(ingested.version for ingested in space.sessions.values())}
            half += len(found) not in ends or found != list(wanted[name][: len(found)])
    return half


# -- build and answer ------------------------------------------------------------------------------


def evaluate_script(data: Path, folder: Path, api_base: str, *before: str) -> list[str]:
    """The command of an evaluation by ``evaluate.py``, over HTTP."""
    return [
        *(before or (str(CHECKOUT / "evaluate.py"),)), "--dataset", str(data), "--systems", "memory",
        "--writer-model", "openai/test", "--reader-model", "openai/test", "--api-base", api_base,
        "--output-dir", str(folder), "--no-mlflow", "--concurrency", "2",
    ]  # fmt: skip


@dataclass(frozen=True)
class Evaluated:
    """The folder of an evaluation, and what a finished one leaves."""

    folder: Path

    @property
    def database(self) -> Path:
        return self.folder / "banks.sqlite"

    def journal(self, stage: str) -> Path:
        return self.folder / "memory" / f"{stage}.jsonl"

    def numbers(self) -> Any:
        """Give the results without what depends on the hour, the folder or the commit, or is paid twice."""
        found = json.loads((self.folder / "results.json").read_text(), object_hook=_without_times)
        return {name: value for name, value in found.items() if name not in ("config", "git_commit")}

    def calls(self) -> int:
        """Give the calls that the results tell of."""
        return json.loads((self.folder / "results.json").read_text())["systems"]["memory"]["calls"]

    def recorded_calls(self) -> int:
        """Sum up the calls of every line of the journals."""
        journals = [self.journal(stage) for stage in ("build", "answers", "judgements")]
        whole = [line for path in journals if path.exists() for line in path.read_text().split("\n")[:-1]]
        return sum(json.loads(line)["usage"]["calls"] for line in whole)

    def compare(self, whole: "Evaluated", toll: Toll, answers: Toll | None = None) -> None:
        """Compare banks, answers (they may have a toll of their own) and results with an undisturbed run."""
        wanted, found = operations(whole.database), operations(self.database)
        for name in {*wanted, *found}:
            toll.add(Counter(wanted.get(name, [])), Counter(found.get(name, [])))
        of_answers = toll if answers is None else answers
        of_answers.add(Counter(keys(whole.journal("answers"))), Counter(keys(self.journal("answers"))))
        if self.numbers() != whole.numbers():
            toll.half += 1
            toll.notes.append("the results differ")
        if self.calls() != self.recorded_calls():
            toll.half += 1
            toll.notes.append("calls are not counted once each")


def _without_times(found: dict[str, Any]) -> dict[str, Any]:
    paid = ("calls", "cost_usd", "usage")  # a kill between a record and the bank is paid once more
    return {name: value for name, value in found.items() if name not in paid and not name.endswith("seconds")}


def evaluate_killed(
    data: Path, whole: Evaluated, folder: Path, api_base: str, kills: Mapping[str, int], rng: random.Random
) -> dict[str, Toll]:
    """Kill an evaluation so often in each of its stages; compare when it has ended."""
    run, wanted = Evaluated(folder), operations(whole.database)
    tolls = {stage: Toll() for stage in kills}
    for stage, count in kills.items():
        journal = run.journal(stage)
        script = Script(evaluate_script(data, folder, api_base), lambda journal=journal: lines(journal))
        for point in points(lines(whole.journal(stage)), count, rng) if count else ():
            tolls[stage].strikes += script.killed_at(point, rng.uniform(0, 0.05))
            tolls[stage].half += half_sessions(run.database, wanted)
    Script(evaluate_script(data, folder, api_base), lambda: 0).finish()
    last = tolls[list(kills)[-1]]
    run.compare(whole, tolls.get("build", last), tolls.get("answers", last))
    return tolls


# -- optimise and train ----------------------------------------------------------------------------


def optimize_script(data: Path, folder: Path, api_base: str) -> list[str]:
    """The command of a small optimisation by ``optimize.py``, over HTTP."""
    return [
        str(CHECKOUT / "optimize.py"), "--optimizer", "simba", "--model", "openai/task",
        "--prompt-model", "openai/prompts", "--api-base", api_base, "--dataset", str(data),
        "--output", str(folder / "best.json"), "--output-dir", str(folder / "run"), "--no-mlflow",
        "--max-sessions", "2", "--num-examples", "8", "--num-val", "8", "--num-candidates", "3",
        "--batch-size", "4", "--trials", "3", "--concurrency", "2", "--writer-mode", "generalist",
    ]  # fmt: skip


def optimize_killed(data: Path, folder: Path, api_base: str, kills: int, rng: random.Random) -> Toll:
    """Kill an optimisation so often, and compare it with one that ran through."""
    toll, journal = Toll(), folder / "killed" / "run" / "calls.jsonl"
    whole = folder / "whole" / "run" / "calls.jsonl"
    Script(optimize_script(data, folder / "whole", api_base), lambda: 0).finish()
    script = Script(optimize_script(data, folder / "killed", api_base), lambda: lines(journal))
    for point in points(lines(whole), kills, rng):
        toll.strikes += script.killed_at(point, rng.uniform(0, 0.05))
    script.finish()
    toll.add(Counter(keys(whole)), Counter(keys(journal)))
    programs = [json.loads((folder / name / "best.json").read_text()) for name in ("whole", "killed")]
    best, killed = (
        {part: value for part, value in program.items() if part != "metadata"} for program in programs
    )
    toll.half += best != killed
    return toll


def train_script(model: Path, data: Path, folder: Path, api_base: str, steps: int) -> list[str]:
    """The command of a small training by ``train.py``, its reader over HTTP."""
    return [
        str(CHECKOUT / "train.py"), "--model", f"local:{model}", "--dataset", str(data),
        "--reader-model", "openai/reader", "--api-base", api_base, "--output-dir", str(folder),
        "--num-train-steps", str(steps), "--examples-per-step", "1", "--group-size", "4", "--curriculum", "",
        "--val-every", str(steps), "--save-every", "1", "--learning-rate", "1e-3", "--warmup-steps", "0",
        "--max-completion-tokens", "40", "--concurrency", "4", "--no-mlflow",
    ]  # fmt: skip


def train_killed(
    model: Path, data: Path, folder: Path, api_base: str, kills: int, rng: random.Random, steps: int = 8
) -> Toll:
    """Kill a training so often; a step is done once, and the weights are those of one that ran through."""
    toll, log = Toll(), folder / "killed" / "log.jsonl"
    Script(train_script(model, data, folder / "whole", api_base, steps), lambda: 0).finish()
    script = Script(train_script(model, data, folder / "killed", api_base, steps), lambda: len(_steps(log)))
    for point in points(steps, kills, rng):
        toll.strikes += script.killed_at(point, rng.uniform(0, 1.0))
    script.finish()
    toll.add(Counter(_steps(folder / "whole" / "log.jsonl")), Counter(_steps(log)))
    toll.half += _weights(folder / "whole") != _weights(folder / "killed")
    return toll


def _steps(log: Path) -> list[str]:
    whole = log.read_text(encoding="utf-8").split("\n")[:-1] if log.exists() else []
    entries = [json.loads(line) for line in whole]
    return [str(entry["step"]) for entry in entries if entry["kind"] == "step"]


def _weights(folder: Path) -> list[str]:
    files = sorted((folder / "model").glob("*.safetensors"))
    assert files, f"{folder} holds no weights"
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
