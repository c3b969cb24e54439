"""``benchmarks/faults.py`` in a small setting: one kill, and every other fault."""

import re
import subprocess
import sys

import pytest

from tests.conftest import CHECKOUT


@pytest.mark.slow
@pytest.mark.timeout(900)  # half a minute on an idle machine
def test_a_small_setting_keeps_every_promise() -> None:
    command = [sys.executable, "benchmarks/faults.py", "--kills", "1", "--stages", "build"]
    command += ["--full-disks", "1"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=880, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^  (\w.*?)   .* (\d+) +(\d+) +(\d+) +(\d+) *$", done.stdout, re.MULTILINE)
    assert len(rows) == 1 + 2 + 2 + 4
    for fault, strikes, *toll in rows:
        assert int(strikes) >= 1, fault
        assert toll == ["0", "0", "0"], fault
