"""Cost of faults: processes killed at random points, full disks, locked databases, bad servers.

Each fault strikes real processes or a real server on loopback, and what is left is compared with what an
undisturbed run left. A table says what was promised and what was found: operations that were lost, doubled or
half applied. When a promise is broken, the exit status is 1.

Run it with ``python benchmarks/faults.py --help``; it needs what the tests need (the extra ``dev``).
"""

import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import Field
from rich import box
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the tests have the server and the models

from memory_program.core.command_line import parse_flags, run_script
from memory_program.core.errors import ConfigError, MemoryProgramError
from memory_program.core.settings import Settings, split_list
from memory_program.worlds import as_locomo_json
from tests import evaluation_samples, optimization_samples
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
from tests.killed_server import server_killed
from tests.model_server import Behaviour, ModelServer
from tests.struck import locked, session_under_fault, two_writers

SHARES = {"build": 30, "answers": 36, "optimise": 20, "train": 14, "serve": 25}
"""How the kills are divided among the stages."""


class Benchmark(Settings):
    """Strike runs with faults, and compare what is left with undisturbed runs."""

    kills: int = Field(default=50, ge=0, le=60)
    """How many processes are killed, in all stages together."""

    stages: str = "build,answers,optimise,train,serve"
    """Stages whose processes are killed, separated by commas."""

    full_disks: int = Field(default=2, ge=1, le=4)
    """How often the disk is full, each time a little later."""

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
    with (
        tempfile.TemporaryDirectory() as scratch,
        ModelServer(latency_s=0.05) as server,
        ThreadPoolExecutor(2) as pool,
    ):
        folder, rng = Path(scratch), random.Random(config.seed)
        data = evaluation_samples.write_conversations(folder / "talks.json", count=10, sessions=6)
        runs = Runs(data, Evaluated(folder / "whole"), folder, server.url)
        Script(evaluate_script(data, runs.whole.folder, server.url), lambda: 0).finish()
        evaluated = pool.submit(killed_evaluations, runs, kills, random.Random(rng.random()))
        improved = pool.submit(killed_improvements, folder, kills, random.Random(rng.random()))
        served = pool.submit(killed_memory_servers, folder, kills, random.Random(rng.random()))
        disturbed = pool.submit(disturbed_evaluations, runs, config.full_disks)
        killed = [*evaluated.result(), *improved.result(), *served.result()]
        rows = [*killed, *disturbed.result(), *stores(folder), *servers()]
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


@dataclass(frozen=True, slots=True)
class Runs:
    """Evaluations of the same conversations, which should all end like the whole one."""

    data: Path
    whole: Evaluated
    folder: Path
    api_base: str


def killed_evaluations(runs: Runs, kills: dict[str, int], rng: random.Random) -> list[Row]:
    """Kill an evaluation while it builds, and while it answers."""
    stages = {stage: kills[stage] for stage in ("build", "answers") if stage in kills}
    if not stages:
        return []
    tolls = evaluate_killed(runs.data, runs.whole, runs.folder / "killed", runs.api_base, stages, rng)
    promise = "the same command goes on; banks, answers and results are those of a whole run"
    return [Row(f"kill -9, {stage}", promise, toll) for stage, toll in tolls.items()]


def disturbed_evaluations(runs: Runs, full_disks: int) -> list[Row]:
    """Fill the disk in the middle of an evaluation, and set the clock back in the middle of another."""
    full, back = disk_full(runs, full_disks), clock_set_back(runs)
    return [
        Row("disk full", "an error says so; with room again, as after a kill", full),
        Row("clock set back a year", "nothing is ordered by the clock: as after a kill", back),
    ]


def disk_full(runs: Runs, times: int) -> Toll:
    """Let no file grow beyond a limit, in turn a larger one; then run without one."""
    toll, run = Toll(), Evaluated(runs.folder / "full")
    arguments, wanted = evaluate_script(runs.data, run.folder, runs.api_base), operations(runs.whole.database)
    for place in range(times):
        process = Script(arguments, lambda: 0).start(preexec_fn=partial(_limit_files, 60_000 * 2**place))
        _, errors = process.communicate(timeout=900)
        if process.returncode == 0:
            break  # all of it had room
        toll.strikes += 1
        if "Traceback" in errors or not errors.splitlines()[-1].startswith("error: "):
            toll.half += 1
            toll.notes.append(f"no error says so: {errors[-200:]!r}")
        toll.half += half_sessions(run.database, wanted)
    Script(arguments, lambda: 0).finish()
    run.compare(runs.whole, toll)
    return toll


def _limit_files(limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def clock_set_back(runs: Runs) -> Toll:
    """Kill a run in the middle, and go on a year before."""
    run = Evaluated(runs.folder / "clock")
    journal = run.journal("build")
    script = Script(evaluate_script(runs.data, run.folder, runs.api_base), lambda: lines(journal))
    toll = Toll(strikes=int(script.killed_at(lines(runs.whole.journal("build")) // 2, 0.0)))
    before = ("-m", "tests.clock_set_back", "365", str(CHECKOUT / "evaluate.py"))
    Script(evaluate_script(runs.data, run.folder, runs.api_base, *before), lambda: 0).finish()
    run.compare(runs.whole, toll)
    return toll


def killed_improvements(folder: Path, kills: dict[str, int], rng: random.Random) -> list[Row]:
    """Kill optimisations and trainings."""
    rows: list[Row] = []
    if kills.get("optimise"):
        data = optimization_samples.write_conversations(folder / "codes.json")
        model = optimization_samples.Steerable(["reader"], is_fickle=False)
        with ModelServer(reply=model, latency_s=0.05) as server:
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


def killed_memory_servers(folder: Path, kills: dict[str, int], rng: random.Random) -> list[Row]:
    """Kill a memory server while turns arrive and agents write."""
    if not kills.get("serve"):
        return []
    with ModelServer(latency_s=0.1) as server:
        (folder / "serve").mkdir()
        toll = server_killed(folder / "serve", server.url, kills["serve"], rng)
    promise = "each acknowledged turn is there once and in order; each session is written once"
    return [Row("kill -9, serve", promise, toll)]


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
    strike = session_under_fault()
    return [Row(fault, promise, strike(behaviour)) for fault, promise, behaviour in rows]


if __name__ == "__main__":
    sys.exit(run_script(main))
