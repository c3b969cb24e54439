"""The rollouts in the folder of a training: each step once, from best to worst, and never as markup."""

from pathlib import Path

import pytest

from memory_program.rl.rollout_files import (
    drop_rollouts_after,
    main,
    read_rollouts,
    sample_columns,
    write_rollouts,
)

HOSTILE = "[red]Ana[/red] \x1b[2J said\n[/b] hello"


def line(step: int, reward: float | None, agent: str = "core", text: str = "") -> dict:
    answers = [{"question": "Who?", "gold": "Ana", "answer": "Ben", "outcome": "ok"}]
    return {
        "step": step, "prompt_id": "0a1b", "conversation_id": "talk", "agent": agent, "rollout": 0,
        "reward": reward, "advantage": None, "replies": [text], "answers": answers, "parts": {"task": reward},
    }  # fmt: skip


def test_a_repeated_step_is_there_once_and_later_steps_are_dropped(tmp_path: Path):
    for step in (1, 2, 3):
        write_rollouts(tmp_path, step, [line(step, 0.5)])
    drop_rollouts_after(tmp_path, 1)
    write_rollouts(tmp_path, 2, [line(2, 0.25)])
    assert [(found["step"], found["reward"]) for found in read_rollouts(tmp_path)] == [(1, 0.5), (2, 0.25)]


@pytest.mark.parametrize(("count", "rows"), [(0, 0), (1, 1), (20, 20), (21, 20), (192, 20)])
def test_a_table_spreads_from_the_best_reward_to_the_worst(tmp_path: Path, count: int, rows: int):
    write_rollouts(tmp_path, 1, [line(1, number / 200 if number else None) for number in range(count)])
    table = sample_columns(tmp_path, 1, 20)
    rewards = table.get("reward", [])
    assert len(rewards) == rows
    if count > 1:
        assert (rewards[0], rewards[-1]) == ((count - 1) / 200, None)
        assert table["parts"][0] == f'{{"task": {rewards[0]}}}'
        assert {len(column) for column in table.values()} == {rows}


def test_rollouts_are_sorted_filtered_and_shown_as_they_are(tmp_path: Path, capsys):
    write_rollouts(tmp_path, 1, [line(1, 0.25, "core", "low"), line(1, 0.75, "semantic", HOSTILE)])
    write_rollouts(tmp_path, 2, [line(2, None, "core", "lost"), line(2, 0.5, "core", "middle")])

    def shown(*flags: str) -> str:
        assert main([str(tmp_path), *flags]) == 0
        return capsys.readouterr().out

    def order(output: str) -> list[str]:
        return sorted(
            (word for word in ("low", "[red]", "lost", "middle") if word in output), key=output.index
        )

    assert order(shown()) == ["[red]", "middle", "low", "lost"]
    assert order(shown("--reverse", "--limit", "2")) == ["low", "middle"]
    assert order(shown("--agent", "core", "--step", "2")) == ["middle", "lost"]
    assert "\x1b" not in shown()
    assert '"gold": "Ana"' in shown("--full", "--limit", "1")
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "Show what a training sampled" in capsys.readouterr().out
