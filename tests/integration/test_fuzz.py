"""A short fuzz of the parsers; ``python -m tests.fuzz --seconds 600`` is the long one."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import CHECKOUT


def test_a_short_fuzz_finds_no_broken_promise(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris is built for Linux on x86-64 alone")
    command = [sys.executable, "-m", "tests.fuzz", "--target", "calls", "--seconds", "2"]
    done = subprocess.run(
        [*command, "--corpus", str(tmp_path)], cwd=CHECKOUT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    executed = int(done.stderr.partition("stat::number_of_executed_units: ")[2].split()[0])
    assert executed > 100
    assert len(list((tmp_path / "calls").iterdir())) > 76  # what it began with, and what it found
