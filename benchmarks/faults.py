"""What faults cost: processes killed at random points, full disks, locked databases, bad servers.

Each fault strikes real processes or a real server on loopback, and what is left is compared with what an
undisturbed run left. A table says what was promised and what was found: operations that were lost, doubled or
half applied. When a promise is broken, the exit status is 1.

Run it with ``python benchmarks/faults.py --help``.
"""

import json
import random
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import Field
from rich import box
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the tests have the server and the models

from locomo.world import as_locomo_json
from memory_program.bank.store import BankStore
from memory_program.command_line import exit_status, parse_flags
from memory_program.errors import ConfigError, MemoryProgramError, StoreError
from memory_program.settings import Settings, split_list
from tests import bank_writer, evaluation_samples, optimization_samples
from tests.killed_runs import (
    CHECKOUT,
    Evaluated,
    Script,
    Toll,
    evaluate_killed,
    evaluate_script,
    half_sessions,
    lines,
    operations,
    optimize_killed,
    train_killed,
)
from tests.model_server import Behaviour, ModelServer

SHARES = {"build": 0.3, "answers": 0.36, "optimise": 0.2, "train": 0.14}
"""How the kills are divided among the stages."""


class Benchmark(Settings):
    """Strike runs with faults, and compare what is left with undisturbed runs."""

    kills: int = Field(default=50, ge=0, le=60)
    """How many processes are killed, in all stages together."""

    stages: str = "build,answers,optimise,train"
    """Stages whose processes are killed, separated by commas."""

    seed: int = Field(default=0, ge=0)
    """Chooses the points at which they are killed."""


@dataclass(frozen=True, slots=True)
class Row:
    """A fault, what is promised of it, and what was found."""

    fault: str
    promise: str
    toll: Toll


class PromiseBrokenError(MemoryProgramError):
    """Something was lost, doubled or half applied."""


def main() -> None:
    """Measure, print the table, and fail if a promise is broken."""
    config = parse_flags(Benchmark)
    kills = _kills(config)
    console = Console(width=None if sys.stdout.isatty() else 130)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(2) as pool:
        folder, rng = Path(scratch), random.Random(config.seed)
        data = evaluation_samples.write_conversations(folder / "talks.json", count=4, sessions=6)
        chains = [
            pool.submit(evaluations, data, folder, kills, random.Random(rng.random())),
            pool.submit(improvements, folder, kills, random.Random(rng.random())),
        ]
        rows = [row for chain in chains for row in chain.result()]
        rows += [*stores(folder), *servers()]
    show(console, rows)
    console.print(f"{time.monotonic() - began:.0f} s; seed {config.seed}", highlight=False)
    broken = [row.fault for row in rows if not row.toll.is_nothing]
    if broken:
        raise PromiseBrokenError(f"promises are broken: {', '.join(broken)}")


def _kills(config: Benchmark) -> dict[str, int]:
    names = split_list(config.stages)
    unknown = [name for name in names if name not in SHARES]
    if unknown:
        raise ConfigError(f"unknown stage {unknown[0]!r}: choose from {', '.join(SHARES)}")
    whole = sum(SHARES[name] for name in names)
    counts = {name: int(config.kills * SHARES[name] / whole) for name in names}
    for name in names[: config.kills - sum(counts.values())]:
        counts[name] += 1
    return counts


def show(console: Console, rows: Sequence[Row]) -> None:
    """Print the table."""
    table = Table(title="What faults cost", box=box.SIMPLE_HEAD)
    table.add_column("fault")
    table.add_column("what is promised")
    for name in ("strikes", "lost", "doubled", "half"):
        table.add_column(name, justify="right")
    for row in rows:
        toll = row.toll
        promise = row.promise + "".join(f"; {note}" for note in toll.notes)
        counts = (toll.strikes, toll.lost, toll.doubled, toll.half)
        table.add_row(row.fault, promise, *map(str, counts), style="" if toll.is_nothing else "bold red")
    console.print(table)


# -- kills, a full disk, a clock -------------------------------------------------------------------


def evaluations(data: Path, folder: Path, kills: dict[str, int], rng: random.Random) -> list[Row]:
    """Disturb evaluations of the same conversations, which should all end alike."""
    promise = "the same command goes on; banks, answers and results are those of a whole run"
    with ModelServer(latency_s=0.03) as server:
        whole = Evaluated(folder / "whole")
        Script(evaluate_script(data, whole.folder, server.url), lambda: 0).finish()
        stages = {stage: kills[stage] for stage in ("build", "answers") if stage in kills}
        tolls = evaluate_killed(data, whole, folder / "killed", server.url, stages, rng)
        rows = [Row(f"kill -9, {stage}", promise, toll) for stage, toll in tolls.items()]
        full = disk_full(data, whole, folder / "full", server.url)
        rows.append(Row("disk full", "an error says so; with room again, as after a kill", full))
        back = clock_set_back(data, whole, folder / "clock", server.url)
        rows.append(Row("clock set back a year", "nothing is ordered by the clock: as after a kill", back))
    return rows


def disk_full(data: Path, whole: Evaluated, folder: Path, api_base: str) -> Toll:
    """Let no file grow beyond a limit, in turn a larger one; then run without one."""
    toll, run = Toll(), Evaluated(folder)
    wanted = operations(whole.database)
    for limit in (60_000, 150_000):
        script = Script(evaluate_script(data, folder, api_base), lambda: 0)
        process = script.start(preexec_fn=partial(_limit_files, limit))
        _, errors = process.communicate(timeout=600)
        if process.returncode == 0:
            continue  # all of it had room
        toll.strikes += 1
        if "Traceback" in errors or not errors.splitlines()[-1].startswith("error: "):
            toll.half += 1
            toll.notes.append(f"no error says so: {errors[-200:]!r}")
        toll.half += half_sessions(run.database, wanted)
    Script(evaluate_script(data, folder, api_base), lambda: 0).finish()
    run.compare(whole, toll)
    return toll


def _limit_files(limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def clock_set_back(data: Path, whole: Evaluated, folder: Path, api_base: str) -> Toll:
    """Kill a run in the middle, and go on a year before."""
    run = Evaluated(folder)
    journal = run.journal("build")
    script = Script(evaluate_script(data, folder, api_base), lambda: lines(journal))
    toll = Toll(strikes=int(script.killed_at(lines(whole.journal("build")) // 2, 0.0)))
    before = ("-m", "tests.clock_set_back", "365", str(CHECKOUT / "evaluate.py"))
    Script(evaluate_script(data, folder, api_base, *before), lambda: 0).finish()
    run.compare(whole, toll)
    return toll


def improvements(folder: Path, kills: dict[str, int], rng: random.Random) -> list[Row]:
    """Kill optimisations and trainings."""
    rows: list[Row] = []
    if kills.get("optimise"):
        data = optimization_samples.write_conversations(folder / "codes.json")
        model = optimization_samples.Steerable(["reader"], is_fickle=False)
        with ModelServer(reply=model, latency_s=0.01) as server:
            toll = optimize_killed(data, folder / "optimise", server.url, kills["optimise"], rng)
        promise = "no reply on the disk is asked for again; the same program comes out"
        rows.append(Row("kill -9, optimise", promise, toll))
    if kills.get("train"):
        from tests.training_samples import one_thread, save_half_taught, talk  # torch takes seconds

        data = folder / "training.json"
        data.write_text(json.dumps(as_locomo_json([talk(name) for name in "abcd"])), encoding="utf-8")
        with one_thread():
            model_folder = save_half_taught(folder / "half-taught")
        with ModelServer() as server:
            toll = train_killed(model_folder, data, folder / "train", server.url, kills["train"], rng)
        rows.append(Row("kill -9, train", "each step once; the very weights of a whole training", toll))
    return rows


# -- the store -------------------------------------------------------------------------------------


def stores(folder: Path) -> list[Row]:
    """Lock a database, and write to one namespace from two processes."""
    return [
        Row(
            "database locked",
            "waits, then says that nothing was written; the next save has it",
            locked(folder),
        ),
        Row("two writers, one namespace", "one of them is refused, and loads again", two_writers(folder)),
    ]


def locked(folder: Path) -> Toll:
    """Hold the lock of a database longer than a store waits, and less long than another one does."""
    toll, path = Toll(), folder / "locked.sqlite"
    url = f"sqlite:///{path}"
    with BankStore(url, busy_timeout_s=0.2) as store:
        space = store.load("test")
        bank_writer.remember(space, 1)
        locker = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for number in range(5):
            locker.execute("BEGIN IMMEDIATE")
            try:
                store.save(space)
                toll.doubled += 1  # it wrote where another process was writing
            except StoreError:
                toll.strikes += 1
            locker.execute("ROLLBACK")
            store.save(space)
            bank_writer.remember(space, number + 2)
        store.save(space)
        locker.execute("BEGIN IMMEDIATE")
        with ThreadPoolExecutor(1) as pool, BankStore(url, busy_timeout_s=30) as patient:
            later = patient.load("test")
            bank_writer.remember(later, 7)
            saving = pool.submit(patient.save, later)
            time.sleep(0.5)
            toll.strikes += 1
            locker.execute("ROLLBACK")
            saving.result()
        locker.close()
    _compare_sessions(toll, url, 7)
    return toll


def two_writers(folder: Path, sessions: int = 12) -> Toll:
    """Let two processes remember in one namespace at the same time."""
    url = f"sqlite:///{folder / 'shared.sqlite'}"
    command = [sys.executable, "-m", "tests.bank_writer", url, "test"]
    writers = [
        subprocess.Popen([*command, str(first), str(sessions)], cwd=CHECKOUT, stdout=subprocess.DEVNULL)
        for first in (1, 1 + sessions)
    ]
    toll = Toll(strikes=len(writers))
    toll.lost += sum(writer.wait(timeout=600) != 0 for writer in writers)
    _compare_sessions(toll, url, 2 * sessions)
    return toll


def _compare_sessions(toll: Toll, url: str, sessions: int) -> None:
    """Each session has all of its operations, once."""
    with BankStore(url) as store:
        space = store.load("test")
    found = Counter(operation.provenance.session_id for operation in space.bank.operations())
    wanted = Counter({f"session_{number}": bank_writer.OPERATIONS for number in range(1, sessions + 1)})
    toll.add(wanted, found)
    toll.half += sum(0 < found[name] < wanted[name] for name in wanted) + (set(space.sessions) != set(wanted))


# -- the server ------------------------------------------------------------------------------------


def servers() -> list[Row]:
    """Let a server answer one agent of four badly, and see what becomes of the session."""
    told = "counted as failed, nothing of it applied; the other agents' work is whole"
    rows = [
        ("server hangs", told, Behaviour.HANG),
        ("server drops", told, Behaviour.DISCONNECT),
        ("server answers byte by byte", "read to the end", Behaviour.DRIP),
        (
            "server gives another's answer",
            "calls that are not the agent's are refused",
            Behaviour.MISDELIVERED,
        ),
    ]
    strike = _struck()
    return [Row(fault, promise, strike(behaviour)) for fault, promise, behaviour in rows]


def _struck() -> Callable[[Behaviour], Toll]:
    """Give what remembers a session under a fault, and compares it with one without."""
    from memory_program.bank.space import MemorySpace
    from tests.integration import test_faults as faults

    good = MemorySpace("mara")
    record = faults.third_session(good, faults.always(Behaviour.COMPETENT))
    wanted = Counter(map(repr, faults.written(good, 0)))
    of_agent = Counter(map(repr, (entry for entry in faults.written(good, 0) if entry[0] == "episodic")))

    def strike(behaviour: Behaviour) -> Toll:
        toll, space = Toll(strikes=1), MemorySpace("mara")
        struck = faults.third_session(space, faults.only(faults.EPISODIC, behaviour))
        is_read = behaviour is Behaviour.DRIP
        toll.add(wanted if is_read else wanted - of_agent, Counter(map(repr, faults.written(space, 0))))
        is_counted = bool(struck.failures or len(struck.tool_errors) > len(record.tool_errors))
        toll.lost += is_counted == is_read  # a fault that nobody counted is a loss in silence
        faults.assert_whole(space, (faults.THIRD,))
        return toll

    return strike


if __name__ == "__main__":
    sys.exit(exit_status(main))
