"""Compare the time of a run with the bound set by its model's latency, sequential and two-phase.

python benchmarks/concurrency.py --data locomo10.json    # all of LoCoMo, a few minutes on two cores
python benchmarks/concurrency.py --conversations 2       # the first two of the bundled sample

Every row is ``python evaluate.py`` in a process of its own, against ``benchmarks/latency_server.py`` in
another: each call takes 200 ms there, and nothing else limits them. The ideal is the longest chain of calls
of which each needs the one before, or calls x latency / concurrency, whichever is more; it is compared with
the time from the first call to the last reply, as the server saw them. ``whole`` is the command from start to
end, with its imports, its scores and its report; so is its processor time, beside which stands the server's.

A second table has the share of the prompts that a provider's cache of prefixes could serve.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from locomo.types import Conversation
from memory_program.configs.evaluate_config import BuildOrder, EvaluateConfig
from memory_program.core.command_line import run_script
from memory_program.evaluation.datasets import load_dataset

ROOT = Path(__file__).resolve().parents[1]
GOAL = 1.15
MEMBUILDER_LATENCY_S = 0.2
MEMBUILDER_S = 180.0
"""What MemBuilder's runner would take for all of LoCoMo at that latency, from conv-26 measured: sessions in
order at 0.40 s each, one conversation after the other, answers and verdicts at concurrency 16."""
MEMBUILDER_GOAL = 8.0
SPECIALISTS = 4
OPENAI_RULE = ("--block-tokens", "128", "--least-tokens", "1024")
OWN_SERVER_RULE = ("--block-tokens", "16", "--least-tokens", "16")


@dataclass(frozen=True, slots=True)
class Setting:
    """One row: what is run."""

    name: str
    build: BuildOrder
    concurrency: int
    conversations: Sequence[Conversation]
    is_judged: bool = False
    rule: Sequence[str] = OPENAI_RULE

    @property
    def chain(self) -> int:
        """The longest chain of calls of which each needs the one before: sessions, an answer, a verdict."""
        sessions = max(len(conversation.sessions) for conversation in self.conversations)
        written = sessions if self.build == "sequential" else min(sessions, 2)
        return written + 1 + self.is_judged


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of a row; times in seconds."""

    setting: Setting
    calls: int
    most_in_flight: int
    seconds: float
    whole_s: float
    cpu_s: float
    server_cpu_s: float
    usage: dict[str, Any]

    def ideal_s(self, latency_s: float) -> float:
        """The time that the latency alone would take."""
        return latency_s * max(self.setting.chain, self.calls / self.setting.concurrency)


@contextmanager
def served(latency_s: float, rule: Sequence[str]) -> Generator[str]:
    """Run the server in a process of its own, and give its address."""
    command = [sys.executable, str(ROOT / "benchmarks" / "latency_server.py"), "--latency-s", str(latency_s)]
    server = subprocess.Popen([*command, *rule], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert server.stdout is not None
    try:
        yield server.stdout.readline().strip()
    finally:
        server.terminate()
        server.wait(timeout=10)


def measure(setting: Setting, dataset: Sequence[str], latency_s: float) -> Measured:
    """Run one row.

    Raises:
        SystemExit: the command failed; the end of its output is in the error.
    """
    with served(latency_s, setting.rule) as url, tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "evaluate.py", *dataset, "--systems", "memory", "--api-base", url]
        command += ["--writer-model", "openai/slow", "--reader-model", "openai/slow"]
        command += ["--judge-model", "openai/slow", "--rubrics", "lenient"] if setting.is_judged else []
        command += ["--build", setting.build, "--concurrency", str(setting.concurrency)]
        command += ["--conversations", ",".join(c.conversation_id for c in setting.conversations)]
        command += ["--no-mlflow", "--output-dir", folder]
        began, cpu = time.monotonic(), _children_cpu_s()
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        whole_s, cpu_s = time.monotonic() - began, _children_cpu_s() - cpu
        with urllib.request.urlopen(url.removesuffix("/v1") + "/traffic") as reply:
            traffic = json.load(reply)
        results = json.loads((Path(folder) / "results.json").read_text())
    jobs = [job for job in traffic["calls"] if job != "other"]
    return Measured(
        setting,
        calls=sum(traffic["calls"][job] for job in jobs),
        most_in_flight=traffic["most_in_flight"],
        seconds=max(traffic["last_s"][job] for job in jobs) - min(traffic["first_s"][job] for job in jobs),
        whole_s=whole_s,
        cpu_s=cpu_s,
        server_cpu_s=traffic["cpu_s"],
        usage=results["systems"]["memory"]["usage"],
    )


def speed_table(rows: Sequence[Measured], latency_s: float) -> Table:
    """Lay the times out."""
    table = Table(title=f"Against {latency_s * 1000:.0f} ms a call", title_justify="left")
    for heading in (
        "run",
        "at once",
        "calls",
        "chain",
        "ideal s",
        "measured s",
        "ratio",
        "whole s",
        "CPU ms/call",
        "server's",
    ):
        table.add_column(heading, justify="left" if heading == "run" else "right")
    for row in rows:
        ideal_s = row.ideal_s(latency_s)
        table.add_row(
            row.setting.name,
            f"{row.most_in_flight} of {row.setting.concurrency}",
            f"{row.calls:,}",
            str(row.setting.chain),
            f"{ideal_s:.1f}",
            f"{row.seconds:.1f}",
            f"{row.seconds / ideal_s:.2f}",
            f"{row.whole_s:.1f}",
            f"{1000 * row.cpu_s / row.calls:.1f}",
            f"{1000 * row.server_cpu_s / row.calls:.1f}",
        )
    return table


def cache_table(rows: Sequence[Measured]) -> Table:
    """Lay out what a cache of prefixes could serve."""
    table = Table(title="Prompt tokens that a cache of prefixes could serve", title_justify="left")
    for heading in ("cache", "stage", "prompt tokens", "served", "share"):
        table.add_column(heading, justify="left" if heading in ("cache", "stage") else "right")
    for row in rows:
        rule = "OpenAI: 128 from 1,024 on" if row.setting.rule == OPENAI_RULE else "own server: blocks of 16"
        for stage, usage in row.usage.items():
            tokens, cached = usage["input_tokens"], usage["cached_tokens"]
            if tokens:
                table.add_row(rule, stage, f"{tokens:,}", f"{cached:,}", f"{cached / tokens:.1%}")
    return table


def conclusions(rows: Sequence[Measured], latency_s: float, *, is_all: bool) -> list[str]:
    """Say which goals are met; those that speak of all of LoCoMo only where all of it ran."""
    ratio = rows[0].seconds / rows[0].ideal_s(latency_s)
    said = [f"building and answering: {ratio:.2f} times the ideal (goal: at most {GOAL})"]
    one = [row for row in rows if len(row.setting.conversations) == 1]
    shorter = (one[0].setting.chain - 1) / (one[1].setting.chain - 1)
    faster = one[0].seconds / one[1].seconds
    said.append(
        f"one conversation: the chain of its build is {shorter:.0f} times shorter in two phases, "
        f"and it is built and asked {faster:.1f} times faster"
    )
    if is_all and latency_s == MEMBUILDER_LATENCY_S:
        judged = next(row for row in rows if row.setting.is_judged)
        speedup = MEMBUILDER_S / judged.seconds
        said.append(
            f"MemBuilder's runner would take about {MEMBUILDER_S:.0f} s to build, answer and judge all of "
            f"it: {speedup:.1f} times as long (goal: at least {MEMBUILDER_GOAL:.0f})"
        )
    return said


def settings(conversations: Sequence[Conversation]) -> list[Setting]:
    """List what is run: the first row is the one that the goal is about."""
    longest = max(conversations, key=lambda conversation: len(conversation.sessions))
    return [
        Setting("build in order, answer", "sequential", 32, conversations),
        Setting("build in two phases, answer", "two-phase", 32, conversations),
        Setting("build in order, answer, judge", "sequential", 64, conversations, is_judged=True),
        Setting("one conversation, in order", "sequential", 64, [longest]),
        Setting("one conversation, in two phases", "two-phase", 64, [longest]),
    ]


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help="locomo10.json; without it, the bundled sample")
    parser.add_argument("--conversations", type=int, help="take the first N conversations only")
    parser.add_argument("--latency-s", type=float, default=0.2, help="how long every call takes")
    options = parser.parse_args()
    name = "sample" if options.data is None else "locomo"
    dataset = ["--dataset", name] + ([] if options.data is None else ["--data", str(options.data.resolve())])
    config = EvaluateConfig(dataset=name, data=options.data, systems="extractive")  # only to read the data
    known = load_dataset(config.source, config.seed).conversations
    if options.conversations is not None and options.conversations < 1:
        parser.error(f"argument --conversations: {options.conversations} must be at least 1")
    if options.latency_s <= 0:
        parser.error(f"argument --latency-s: {options.latency_s} must be above 0")
    conversations = known[: options.conversations]
    rows = [measure(setting, dataset, options.latency_s) for setting in settings(conversations)]
    console = Console(width=130) if not sys.stdout.isatty() else Console()
    console.print(speed_table(rows, options.latency_s))
    cached = [measure(Setting("", "sequential", 64, conversations, rule=OWN_SERVER_RULE), dataset, 0.0)]
    console.print(cache_table([rows[0], *cached]))
    is_all = name == "locomo" and len(conversations) == len(known)
    for line in conclusions(rows, options.latency_s, is_all=is_all):
        console.print(line, highlight=False)


if __name__ == "__main__":
    sys.exit(run_script(main))
