"""``benchmarks/pocket.py`` on one made-up world."""

import re
import subprocess
import sys

import pytest

from tests.conftest import CHECKOUT

TABLES = (
    "Reader, from the oracle's memories",
    "Wordings of questions that are most often answered wrong",
    "Writer's operations, against the oracle's on the same prompts",
    "Wordings of operations that are most often wrong or missing",
    "Whole program",
)


@pytest.mark.slow
def test_it_measures_reader_writer_and_program_and_lists_the_most_frequent_errors():
    options = ["--model", "pocket-base", "--conversations", "1", "--seed", "4", "--wordings", "3"]
    command = [sys.executable, "benchmarks/pocket.py", *options]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=240, check=True)
    parts = re.split("^(" + "|".join(map(re.escape, TABLES)) + ")", done.stdout, flags=re.MULTILINE)
    assert tuple(parts[1::2]) == TABLES
    tables = dict(zip(parts[1::2], parts[2::2], strict=True))
    missing = re.findall(
        r"^ *(\w+, \w+: .*?) +(\d+) +(\d+) +([01]\.\d\d) *$", tables[TABLES[3]], re.MULTILINE
    )
    assert len(missing) == 3  # pocket-base leaves out more than three kinds of facts
    counts = [int(wrong) for _, wrong, _, _ in missing]
    assert counts == sorted(counts, reverse=True)
    for _, wrong, of, share in missing:
        assert 0 < int(wrong) <= int(of)
        assert abs(int(wrong) / int(of) - float(share)) < 0.01
    (written,) = re.findall(r"^ *all +.* (\d+) +(\d+) +(\d+) +[\d/-]+ *$", tables[TABLES[2]], re.MULTILINE)
    right, _, gold = map(int, written)
    assert sum(counts) <= gold - right
    assert re.search(r"oracle \(upper bound\) +1\.000", tables[TABLES[4]])
