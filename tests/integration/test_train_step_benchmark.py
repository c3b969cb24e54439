"""The benchmark of a training step in its smallest setting: seconds add up, both ways do the same work."""

import io

import pytest
from rich.console import Console

from memory_program.rl.rollouts import chat_messages
from tests.integration.test_concurrency_benchmark import benchmark
from tests.training_samples import one_thread

SMALLEST = {
    "steps": 1, "examples_per_step": 1, "rollouts": 2, "max_completion_tokens": 24, "turns": 1, "threads": 1,
}  # fmt: skip


@pytest.mark.slow
def test_a_step_is_taken_by_the_program_and_its_prompts_again_by_the_engine_and_by_trl() -> None:
    train_step = benchmark("train_step")
    setting = train_step.Benchmark(**SMALLEST)
    with one_thread():
        step, prompts = train_step.measure_program(setting)
        ours, trl = train_step.measure_beside_trl(setting, prompts)

    assert 0 < step.rollouts_s + step.reward_s + step.update_s <= step.total_s
    assert 0 <= step.idle_s < step.total_s
    (requests,) = prompts
    assert len(requests) == 4  # one for each specialist
    assert len({str(chat_messages(request)) for request in requests}) == 4
    replies = 4 * setting.rollouts
    for speed in (ours, trl):
        assert replies <= speed.tokens <= replies * setting.max_completion_tokens
        assert min(speed.sampling_s, speed.training_s) > 0

    printed = Console(file=io.StringIO(), width=120)
    printed.print(train_step.program_table(step), train_step.speed_table(ours, trl))
    text = printed.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]  # it is a StringIO
    assert f"{step.tokens:,} tokens sampled" in text
    assert f"{ours.tokens_per_s / trl.tokens_per_s:.2f}" in text


def test_speed_counts_what_was_sampled_by_the_seconds_of_sampling_and_training() -> None:
    train_step = benchmark("train_step")
    assert train_step.Speed(sampling_s=2.0, training_s=3.0, tokens=100).tokens_per_s == pytest.approx(20.0)
