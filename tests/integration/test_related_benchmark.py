"""``benchmarks/related.py`` in a small setting."""

import re
import subprocess
import sys

from tests.conftest import CHECKOUT


def test_the_benchmark_reports_related_memories_by_query_and_floor():
    command = [sys.executable, "benchmarks/related.py", "--conversations", "3", "--seed", "4"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=120, check=True)
    rows = re.findall(
        r"^  (the whole session|each turn) +(0\.\d) .* ([\d.]+) +([\d.]+) +(\d+) *$",
        done.stdout,
        re.MULTILINE,
    )
    shown = {(query, floor): tuple(map(float, numbers)) for query, floor, *numbers in rows}
    queries = {query for query, _ in shown}
    assert queries == {"the whole session", "each turn"}
    for query in queries:
        counts = [shown[query, f"{floor:.1f}"][1] for floor in (0.0, 0.2, 0.3, 0.4, 0.5)]
        assert counts == sorted(counts, reverse=True)
    whole, turns = (shown[query, "0.3"] for query in ("the whole session", "each turn"))
    assert turns[1:] < whole[1:]  # fewer memories
    assert turns[0] >= whole[0]  # and the one that is changed is the best more often
