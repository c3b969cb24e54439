"""The benchmark of large banks runs, small, and names the stores that are not installed."""

import re
import subprocess
import sys

import pytest

from tests.conftest import CHECKOUT

STORES = {
    "SQLite FTS5": None,
    "tantivy": "tantivy",
    "LangMem, InMemoryStore": "langgraph",
    "LangMem, SqliteStore": "langgraph-checkpoint-sqlite",
    "mem0, local Qdrant": "mem0ai",
}
FIGURES = (
    *("open", "search, median", "add one", "add one, save, find it", "fork", "as it was half-way"),
    "consolidate",
)


@pytest.mark.slow
def test_the_benchmark_measures_banks_beside_other_stores() -> None:
    flags = "--memories 500 --namespaces 100 --seconds-per-store 0.2"
    command = [sys.executable, "benchmarks/banks.py", *flags.split()]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    one, _, rest = done.stdout.partition("Namespaces of 100 memories, by their number")
    many, _, others = rest.partition("Other stores")
    figure = r"[\d.,]+"
    for table in (one, many):
        for name in FIGURES:
            assert re.search(rf"│ {name} +│ +{figure} │ +{figure} │ +{figure} │ +{figure} │", table), table
    for name, package in STORES.items():
        is_left_out = f"{name} is left out: pip install {package}" in rest
        assert is_left_out or re.search(rf"│ {name} +│ +[1-9]", others), done.stdout
    assert "SQLite FTS5 is left out" not in rest


def test_a_size_that_is_too_small_is_refused() -> None:
    command = [sys.executable, "benchmarks/banks.py", "--memories", "99"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "99 is too small to measure growth: give at least 100" in done.stderr
