"""The estimate of an optimisation covers all of its stages."""

from pathlib import Path

import pytest

from memory_program.configs.optimize_config import OptimizeConfig
from memory_program.optimization.memory_target import MemoryOptimizationTarget
from tests.optimization_samples import quick


def calls(config: OptimizeConfig, stage: str) -> int:
    return sum(
        estimate.calls for estimate in MemoryOptimizationTarget(config).estimates() if estimate.stage == stage
    )


@pytest.mark.parametrize(("target", "times"), [("reader", 1), ("writer", 3), ("both", 3)])
def test_an_improved_writer_processes_every_session_again(target: str, times: int, tmp_path: Path) -> None:
    once, thrice = (quick(tmp_path, target=target, rounds=rounds) for rounds in (1, 3))
    assert calls(thrice, "build") == times * calls(once, "build")
    assert calls(thrice, "answer") == 3 * calls(once, "answer")


def test_all_sets_of_demonstrations_of_bootstrap_are_compared_in_the_end(tmp_path: Path) -> None:
    few, many = (quick(tmp_path, optimizer="bootstrap", trials=n, num_examples=1) for n in (4, 9))
    assert (calls(few, "answer"), calls(many, "answer")) == (4 + 5 * 8, 9 + 10 * 8)


def test_for_a_reader_each_session_is_processed_once(tmp_path: Path) -> None:
    config = quick(tmp_path, writer_max_turns=1)
    assert calls(config, "build") == 12  # two sessions of each of six conversations; two are for the test
