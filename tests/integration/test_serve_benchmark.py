"""The benchmark of the memory server runs, and prints latencies."""

import json
import subprocess
import sys

import pytest

from tests.conftest import CHECKOUT


@pytest.mark.slow  # it starts a server
def test_the_benchmark_prints_latencies_while_agents_write():
    command = [sys.executable, "benchmarks/serve.py", "--namespaces", "3", "--clients", "3", "--seconds", "5"]
    command += ["--per-second", "5", "--latency-s", "0.05"]
    run = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    add, search, server = map(json.loads, run.stdout.splitlines())
    assert add["request"] == "add"
    assert 0 < add["p50_ms"] <= add["p99_ms"]
    assert search["count"] > 0
    assert server["failures"] == []
    assert server["sessions_written"] > 0
