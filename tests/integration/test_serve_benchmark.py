"""The benchmark of the memory server runs, prints latencies, and measures mem0 beside it."""

import importlib.util
import re
import subprocess
import sys

import pytest

from tests.conftest import CHECKOUT

HAS_MEM0 = importlib.util.find_spec("mem0") is not None


def benchmark(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "benchmarks/serve.py", "--namespaces", "3", "--clients", "3", "--seconds", "5"]
    command += ["--per-second", "5", "--latency-s", "0.05", *flags]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)


def rows(printed: str) -> list[dict[str, float]]:
    """The figures of each row of the table; the first row of a server has three more."""
    columns = ("count", "p50", "p95", "p99", "failed", "cpu", "written")
    lines = re.findall(r"(?:add|search) +([\d. ]+?) *$", printed, re.MULTILINE)
    return [dict(zip(columns, map(float, line.split()), strict=False)) for line in lines]


@pytest.mark.slow  # it starts a server
def test_the_benchmark_prints_latencies_while_agents_write():
    run = benchmark()
    assert run.returncode == 0, run.stderr
    add, search = rows(run.stdout)
    assert 0 < add["p50"] <= add["p95"] <= add["p99"]
    assert search["count"] > 0
    assert (add["failed"], add["written"] > 0) == (0, True)


@pytest.mark.slow
def test_a_missed_goal_is_named_and_fails_the_check():
    run = benchmark("--per-second", "0", "--clients", "30", "--check")
    assert run.returncode == 1, run.stdout
    assert re.search(r"add p50 is [\d.]+ ms, and the goal is under 10 ms", run.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_MEM0, reason="needs mem0ai: pip install '.[bench]'")
def test_mem0_gets_the_same_requests_and_waits_for_its_model():
    run = benchmark("--beside", "mem0")
    assert run.returncode == 0, run.stderr
    _, _, add, search = rows(run.stdout)
    assert add["p50"] > 50
    assert search["count"] > 0
    assert add["failed"] == 0


@pytest.mark.skipif(HAS_MEM0, reason="mem0ai is installed")
def test_a_missing_package_is_one_line():
    run = benchmark("--beside", "mem0")
    assert run.returncode == 2
    assert run.stderr.splitlines()[-1].endswith("pip install 'memory-program[bench,serve]'")
