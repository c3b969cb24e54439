"""The estimate of an optimisation covers all of its stages."""

from contextlib import ExitStack, closing
from pathlib import Path

import dspy
import pytest

from memory_program.configs.optimize_config import OptimizeConfig, Target
from memory_program.optimization.call_journal import ReplyCache
from memory_program.optimization.memory_target import MemoryOptimizationTarget
from tests.optimization_samples import quick
from tests.scripted_lm import ScriptedLM, fields


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


def test_a_reader_needs_memories_of_the_conversations_of_its_questions_only(tmp_path: Path) -> None:
    config = quick(tmp_path, num_examples=1, num_val=1)
    assert calls(config, "build") == 4  # two sessions of two conversations
    config.output_dir.mkdir()
    subject, nothing = MemoryOptimizationTarget(config), fields(tool_calls='{"tool_calls": []}')
    with ExitStack() as stack, ScriptedLM(4 * [nothing]) as lm, dspy.context(lm=lm):
        replies = stack.enter_context(closing(ReplyCache(tmp_path / "calls.jsonl")))
        subject.begin(replies, stack)
        found = subject.cases(Target.READER)
    assert [len(found.train), len(found.val)] == [1, 1]


def test_a_writer_that_follows_a_reader_needs_the_memories_of_the_others(tmp_path: Path) -> None:
    reader, both = (
        quick(tmp_path, target=target, num_examples=1, num_val=1) for target in ("reader", "both")
    )
    writer = quick(tmp_path, target="writer", num_examples=1, num_val=1)
    assert calls(both, "build") == calls(writer, "build") > calls(reader, "build")
