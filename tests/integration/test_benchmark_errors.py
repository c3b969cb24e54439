"""Benchmarks refuse arguments that they cannot measure with one line."""

import json
import subprocess
import sys

import pytest

from memory_program.worlds import SAMPLE_FILE
from tests.conftest import CHECKOUT


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("concurrency --conversations 0", "argument --conversations: 0 must be at least 1"),
        ("concurrency --latency-s 0", "argument --latency-s: 0.0 must be above 0"),
        ("concurrency --data missing.json", "error: cannot read the data file"),
        ("grounding --data missing.json", "error: cannot read the data file"),
        ("tune_extractive --data missing.json", "error: cannot read the data file"),
        ("sampling --models local:/missing", "error: '/missing' is not a folder"),
        ("pocket --systems rag", "error: systems='rag' must name memory"),
        ("models --models pocket --dataset {unasked}", "has no question with an answer: choose another"),
    ],
)
def test_a_benchmark_refuses_what_it_cannot_measure_in_one_line(tmp_path, command, complaint):
    unasked = tmp_path / "unasked.json"
    talks = json.loads(SAMPLE_FILE.read_text(encoding="utf-8"))
    unasked.write_text(json.dumps([{**talk, "qa": []} for talk in talks]), encoding="utf-8")
    name, *flags = command.format(unasked=unasked).split()
    done = subprocess.run(
        [sys.executable, f"benchmarks/{name}.py", *flags],
        cwd=CHECKOUT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert complaint in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
