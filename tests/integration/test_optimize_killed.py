"""SIGINT and ``kill -9`` during a run: the same command finishes it, and no reply is paid twice."""

import json
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memory_program.configs.optimize_config import OptimizeConfig
from tests.interpreters import Ended, Interpreters
from tests.model_server import ModelServer
from tests.optimization_samples import Steerable, quick, run

THREADS = 4


@pytest.fixture(scope="module")
def interpreters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interpreters]:
    with Interpreters(["tests.slow_optimize"], tmp_path_factory.mktemp("printed")) as interpreters:
        yield interpreters


def killed(
    interpreters: Interpreters, config: OptimizeConfig, server: ModelServer, name: str, lines: int
) -> Ended:
    """Run until this many replies are on disk, and a signal ends it."""
    journal = config.output_dir / "calls.jsonl"
    settings = json.dumps(config.model_dump(mode="json"))
    return interpreters.run_module("tests.slow_optimize", server.url, settings, name, journal, lines)


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
    optimizer: str, tmp_path: Path, interpreters: Interpreters
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
        done = killed(interpreters, config, server, "SIGKILL", rng.randrange(5, needed // 2))
        assert done.status == -signal.SIGKILL, done.errors
        kept, paid = replies_on_disk(config), asked.total()
        assert kept <= paid <= kept + THREADS  # at most those in flight are lost
        lines = rng.randrange(needed // 2 + THREADS, 3 * needed // 4)
        done = killed(interpreters, config, server, "SIGINT", lines)
        assert done.status == 130, done.errors
        assert done.errors.splitlines()[-1].startswith("interrupted: finished work is kept")
        assert asked.total() - paid == replies_on_disk(config) - kept  # those in flight were waited for
        kept, paid = replies_on_disk(config), asked.total()
        assert kept < needed
        assert not config.output.exists()
        assert finish(config, server) == expected
        assert asked.total() - paid == replies_on_disk(config) - kept
        assert replies_on_disk(config) == needed
        assert finish(config, server) == expected
        assert asked.total() - paid == needed - kept  # a finished run asks nothing
