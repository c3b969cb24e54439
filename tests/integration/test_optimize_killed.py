"""SIGINT and ``kill -9`` during a run: the same command finishes it, and no reply is paid twice."""

import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memory_program.configs.optimize_config import OptimizeConfig
from tests.conftest import CHECKOUT
from tests.model_server import ModelServer
from tests.optimization_samples import Steerable, quick, run

THREADS = 4


def killed(
    config: OptimizeConfig, server: ModelServer, name: str, lines: int
) -> subprocess.CompletedProcess[str]:
    """Run until this many replies are on disk, and a signal ends it."""
    journal = config.output_dir / "calls.jsonl"
    settings = json.dumps(config.model_dump(mode="json"))
    arguments = [server.url, settings, name, str(journal), str(lines)]
    command = [sys.executable, "-m", "tests.slow_optimize", *arguments]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=240)


def replies_on_disk(config: OptimizeConfig) -> int:
    return (config.output_dir / "calls.jsonl").read_bytes().count(b"\n")


def finish(config: OptimizeConfig, server: ModelServer) -> dict[str, Any]:
    results, _ = run(config, server)
    stage = results["stages"][0]
    candidates = sorted(candidate["fingerprint"] for candidate in stage["candidates"])
    return {
        "program": results["program"],
        "score": stage["winner"]["score"],
        "candidates": candidates,
        "calls": results["calls"]["used"],
    }


@pytest.mark.parametrize("optimizer", ["simba", "mipro"])
def test_a_killed_and_interrupted_run_ends_like_an_undisturbed_one_and_pays_once(
    optimizer: str, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # pytest shows it when the test fails
    rng = random.Random(seed)
    more = {"optimizer": optimizer, "concurrency": THREADS}
    whole = quick(tmp_path / "whole", **more)
    config = quick(tmp_path / "killed", **more)
    with ModelServer(reply=Steerable(["reader"], is_fickle=False)) as server:
        expected = finish(whole, server)
        needed = replies_on_disk(whole)

    with ModelServer(reply=Steerable(["reader"], is_fickle=False), latency_s=0.01) as server:
        asked = server.traffic.requests
        assert killed(config, server, "SIGKILL", rng.randrange(5, needed // 2)).returncode == -signal.SIGKILL
        kept, paid = replies_on_disk(config), asked.total()
        assert kept <= paid <= kept + THREADS  # at most those in flight are lost
        done = killed(config, server, "SIGINT", rng.randrange(needed // 2 + THREADS, 3 * needed // 4))
        assert done.returncode == 130, done.stderr
        assert done.stderr.splitlines()[-1].startswith("interrupted: finished work is kept")
        assert asked.total() - paid == replies_on_disk(config) - kept  # those in flight were waited for
        kept, paid = replies_on_disk(config), asked.total()
        assert kept < needed
        assert not config.output.exists()
        assert finish(config, server) == expected
        assert asked.total() - paid == replies_on_disk(config) - kept
        assert replies_on_disk(config) == needed
        assert finish(config, server) == expected
        assert asked.total() - paid == needed - kept  # a finished run asks nothing
