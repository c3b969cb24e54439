"""Compare reward rules: trainings of equal length, several seeds each, on the same held-out questions.

Each training is ``train.py`` as anybody runs it, in a process of its own. One that is done is not done again,
and one that was stopped goes on; so the command can be stopped and given again, with more seeds or more
rewards. At the end (and with ``--show``, of what is there) it prints every training, the
mean of each reward, and draws how the score on validation rose.

Run it with ``python benchmarks/rewards.py --help``.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure
from pydantic import Field, field_validator
from rich import box
from rich.console import Console
from rich.table import Table

from memory_program.core.checkpoints import read_log
from memory_program.core.command_line import parse_flags, run_script
from memory_program.core.errors import ConfigError
from memory_program.core.json_files import read_json_file
from memory_program.core.settings import Settings, split_list
from memory_program.rl.model_card import format_difference

TRAIN = Path(__file__).parents[1] / "train.py"
NO_LIMIT_MINUTES = 24 * 60
"""The steps end a training, not the minutes."""
RULES: Mapping[str, Sequence[str]] = {
    "outcome": ("--reward-rule", "outcome", "--alpha", "1"),
    "dense": ("--reward-rule", "dense", "--alpha", "1"),
    "attribution": ("--reward-rule", "dense", "--alpha", "4"),
    "delta": ("--reward-rule", "delta", "--alpha", "1"),
    "leave-one-out": ("--reward-rule", "leave-one-out"),
}
"""The rewards, by name: the score of the answers; MemBuilder's dense reward, and the same with attribution;
MemUpdate's delta; leave-one-out credit."""


class Benchmark(Settings):
    """Train with each reward and each seed, and compare what it gave."""

    out: Path = Path("runs/rewards")
    """Folder of the trainings, one folder each, and of the picture."""

    rules: str = ",".join(RULES)
    """Rewards to train with."""

    seeds: str = "0,1,2"
    """Seeds; each has training and validation conversations of its own. All are tested on the same."""

    steps: int = Field(default=20, ge=1)
    """Steps of a training. The same for each reward, and not the same minutes: what else the machine does
    must not decide which reward is the better one."""

    side_by_side: int = Field(default=1, ge=1)
    """Trainings at a time; they share the cores. Small models are done sooner with one core for each."""

    show: bool = False
    """Train nothing, and show what is there."""

    @field_validator("rules")
    @classmethod
    def _known(cls, value: str) -> str:
        unknown = [name for name in split_list(value) if name not in RULES]
        if unknown or not split_list(value):
            raise ConfigError(f"rules={value!r} must be some of {', '.join(RULES)}")
        return value

    @field_validator("seeds")
    @classmethod
    def _numbers(cls, value: str) -> str:
        if not split_list(value) or not all(seed.isdecimal() for seed in split_list(value)):
            raise ConfigError(f"seeds={value!r} must be numbers, for example '0,1,2'")
        return value


@dataclass(frozen=True)
class Training:
    """A training that is done."""

    rule: str
    seed: str
    results: dict[str, Any]  # Any: JSON
    validations: list[tuple[int, float]]
    """Steps of training, and the score on validation then."""

    @property
    def gain(self) -> float:
        """The validation score of the best weights minus that of the first."""
        validation = self.results["validation"]
        return float(validation["best"]["score"]) - float(validation["first"]["score"])

    @property
    def held_out(self) -> float:
        """The held-out score of the trained model minus that of the base."""
        return float(self.results["comparisons"]["all five"]["difference"])


def run_folder_path(out: Path, rule: str, seed: str) -> Path:
    """Say where a training lies."""
    return out / f"{rule}-{seed}"


def train(config: Benchmark, console: Console) -> None:
    """Run what is not done yet; seed by seed, so that whatever is done of them can be compared.

    Raises:
        ConfigError: a training failed; those that run beside it are finished, the others not begun.
    """
    cores = max(1, len(os.sched_getaffinity(0)) // config.side_by_side)
    environment = os.environ | {"OMP_NUM_THREADS": str(cores)}
    failed: list[str] = []

    def run(rule: str, seed: str) -> None:
        folder = run_folder_path(config.out, rule, seed)
        if failed:
            return
        if (folder / "results.json").exists():
            steps = read_json_file(folder / "results.json")["settings"]["num_train_steps"]
            if steps != config.steps:
                failed.append(f"{folder} has {steps} steps, and not {config.steps}: choose another --out")
            return
        printed = folder.with_suffix(".txt")
        console.print(f"training: {rule}, seed {seed}; what it prints is in {printed}")
        length = ("--num-train-steps", str(config.steps), "--minutes", str(NO_LIMIT_MINUTES))
        flags = ("--seed", seed, *length, "--output-dir", str(folder))
        command = [sys.executable, str(TRAIN), "--no-mlflow", *RULES[rule], *flags]
        with printed.open("a", encoding="utf-8") as out:
            done = subprocess.run(command, check=False, env=environment, stdout=out, stderr=subprocess.STDOUT)
        if done.returncode:
            failed.append(f"{rule}, seed {seed}: the training failed; the reason stands in {printed}")

    config.out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(config.side_by_side) as pool:
        trainings = [(rule, seed) for seed in split_list(config.seeds) for rule in split_list(config.rules)]
        for running in [pool.submit(run, *training) for training in trainings]:
            running.result()
    if failed:
        raise ConfigError("; ".join(failed))


def done(config: Benchmark) -> list[Training]:
    """Read the trainings that are done.

    Raises:
        ConfigError: there is none.
    """
    found: list[Training] = []
    for rule in split_list(config.rules):
        for seed in split_list(config.seeds):
            folder = run_folder_path(config.out, rule, seed)
            if (folder / "results.json").exists():
                results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
                entries = [entry for entry in read_log(folder) if entry["kind"] == "validation"]
                points = [(int(entry["step"]), float(entry["score"])) for entry in entries]
                found.append(Training(rule, seed, results, points))
    if not found:
        raise ConfigError(f"out={str(config.out)!r} holds no training that is done: run it without --show")
    return found


def trainings_table(trainings: Sequence[Training]) -> Table:
    """Show every training."""
    table = Table(box=box.SIMPLE_HEAD, title="Every training", title_justify="left")
    for name in ("reward", "seed"):
        table.add_column(name)
    for name in (
        "steps",
        "validation",
        "best",
        "held-out F1",
        "trained",
        "difference",
        "all five, difference",
    ):
        table.add_column(name, justify="right")
    for training in trainings:
        results, systems = training.results, training.results["systems"]
        f1 = [systems[name]["locomo_f1"]["all"]["value"] for name in ("base", "trained")]
        table.add_row(
            training.rule,
            training.seed,
            str(results["steps"]),
            *(f"{results['validation'][when]['score']:.3f}" for when in ("first", "best")),
            *(f"{value:.3f}" for value in f1),
            *(format_difference(results["comparisons"][name]) for name in ("locomo_f1", "all five")),
        )
    table.caption = "intervals of 95 % by conversation, paired"
    return table


def rules_table(trainings: Sequence[Training]) -> Table:
    """Show the mean gain of each reward, and that of its worst and best seed."""
    table = Table(box=box.SIMPLE_HEAD, title="Mean gain over the seeds", title_justify="left")
    table.add_column("reward")
    for name in ("seeds", "validation", "worst..best", "held-out, all five", "worst..best"):
        table.add_column(name, justify="right")
    for rule in dict.fromkeys(training.rule for training in trainings):
        of_rule = [training for training in trainings if training.rule == rule]
        cells: list[str] = []
        for gains in ([t.gain for t in of_rule], [t.held_out for t in of_rule]):
            cells += [f"{fmean(gains):+.3f}", f"{min(gains):+.3f}..{max(gains):+.3f}"]
        table.add_row(rule, str(len(of_rule)), *cells)
    return table


def curves(trainings: Sequence[Training]) -> Figure:
    """Draw the score on validation against the steps of training; a colour for each reward, or seed."""
    figure = Figure(figsize=(7, 4.2))
    axes = figure.subplots()
    has_rules = len({training.rule for training in trainings}) > 1
    colours: dict[str, str] = {}
    for training in trainings:
        name = training.rule if has_rules else f"{training.rule}, seed {training.seed}"
        label = None if name in colours else name
        colour = colours.setdefault(name, f"C{len(colours)}")
        steps, scores = zip(*training.validations, strict=True)
        axes.plot(steps, scores, "o-", color=colour, markersize=4, label=label)
    axes.set_xlabel("steps of training")
    axes.set_ylabel("score on validation")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return figure


def main() -> None:
    """Train, print the tables, and draw the curves."""
    config, console = parse_flags(Benchmark), Console(width=180)
    if not config.show:
        train(config, console)
    trainings = done(config)
    console.print(trainings_table(trainings))
    console.print(rules_table(trainings))
    picture = config.out / "curves.png"
    curves(trainings).savefig(picture, dpi=120, bbox_inches="tight")
    console.print(f"drawn: {picture}")


if __name__ == "__main__":
    sys.exit(run_script(main))
