"""The state of a training on disk, after a kill between two writes."""

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from memory_program.core.checkpoints import RunState, check_log, last_checkpoint_step, read_log
from memory_program.core.errors import ConfigError, RecordError


class Killed(BaseException):
    """The process ends here."""


class Weights:
    """Weights that write one file, or are killed in the middle of it."""

    is_killed = False

    def save_state(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        if self.is_killed:
            raise Killed
        (folder / "state").write_text(folder.name)

    def load_state(self, folder: Path) -> None:
        assert (folder / "state").exists()

    def ema_weights(self) -> AbstractContextManager[None]:
        return nullcontext()

    def save_weights(self, folder: Path) -> None:
        folder.mkdir(parents=True)

    def load_weights(self, folder: Path) -> None:
        assert folder.is_dir()

    def save_model(self, folder: Path) -> None:
        folder.mkdir()


def test_a_kill_during_a_save_keeps_the_checkpoint_and_the_best_weights(tmp_path: Path):
    weights = Weights()
    state = RunState(tmp_path, {})
    progress = state.resume(weights)
    state.save(weights, progress)
    for step, is_better in ((4, True), (6, False)):
        progress.step = step
        if is_better:
            progress.validated_at = progress.best_step = step
            weights.save_weights(state.best_weights_folder(step))
        state.save(weights, progress)
    again = RunState(tmp_path, {})
    progress = again.resume(weights)
    progress.validated_at = 6
    weights.is_killed = True
    with pytest.raises(Killed):
        again.save(weights, progress)
    weights.is_killed = False
    progress = RunState(tmp_path, {}).resume(weights)
    assert (progress.step, progress.best_step) == (6, 4)
    assert again.best_weights_folder(progress.best_step).is_dir()


def test_best_weights_are_kept_while_a_checkpoint_names_them(tmp_path: Path):
    weights, state = Weights(), RunState(tmp_path, {})
    progress = state.resume(weights)
    for step in (2, 4, 6):
        progress.step = progress.best_step = step
        weights.save_weights(state.best_weights_folder(step))
        state.save(weights, progress)
    assert [state.best_weights_folder(step).exists() for step in (2, 4, 6)] == [False, True, True]


def test_what_somebody_else_put_beside_checkpoints_is_left(tmp_path: Path):
    weights, state = Weights(), RunState(tmp_path, {})
    progress = state.resume(weights)
    state.save(weights, progress)
    weights.save_weights(state.best_weights_folder(0))
    others = [tmp_path / "best/.DS_Store", tmp_path / "checkpoints/.DS_Store", tmp_path / "checkpoints/mine"]
    for other in others:
        other.write_text("a file")
    for progress.step in range(1, 4):
        state.save(weights, progress)
    assert all(other.exists() for other in others)
    assert RunState(tmp_path, {}).resume(weights).step == 3


def test_the_log_of_the_previous_version_is_read_under_the_current_names(tmp_path: Path):
    old = '{"kind": "step", "step": 1, "divergence": 0.5, "clipped": 0.1, "groups_without_spread": 2, '
    old += '"read_tokens": 9, "sampler_gap": 0.01}\n{"kind": "step", "st'
    (tmp_path / "log.jsonl").write_text(old)
    assert read_log(tmp_path) == [
        {
            "kind": "step", "step": 1, "kl": 0.5, "clip_fraction": 0.1, "zero_variance_groups": 2,
            "forward_tokens": 9, "sampler_logprob_gap": 0.01,
        }
    ]  # fmt: skip


def test_a_training_of_the_previous_version_resumes_under_the_current_names(tmp_path: Path):
    old = {"rollouts": 8, "reward_rule": "difference", "reward": "f1"}
    (tmp_path / "settings.json").write_text(json.dumps(old))
    new = {"group_size": 8, "reward_rule": "leave-one-out", "answer_metric": "f1"}
    assert RunState(tmp_path, new).settings == old  # memories are found under a hash of these
    with pytest.raises(ConfigError, match="holds a training with group_size=8: give the same settings"):
        RunState(tmp_path, {**new, "group_size": 4})


def test_calls_that_were_paid_for_after_the_last_checkpoint_are_counted(tmp_path: Path):
    state = RunState(tmp_path, {})
    progress = state.resume(Weights())
    progress.step, progress.api_calls, progress.api_cost_usd = 1, 10, 0.5
    state.save(Weights(), progress)
    state.log({"kind": "step", "step": 1, "api_calls": 10, "api_cost_usd": 0.5})
    state.log({"kind": "step", "step": 2, "api_calls": 25, "api_cost_usd": 1.25})
    resumed = RunState(tmp_path, {}).resume(Weights())
    assert (resumed.step, resumed.api_calls, resumed.api_cost_usd) == (1, 25, 1.25)


def test_a_setting_that_is_newer_than_the_run_must_be_off(tmp_path: Path):
    RunState(tmp_path, {"group_size": 8})
    RunState(tmp_path, {"group_size": 8, "loss_per_agent": False, "refill_rounds": 0})
    with pytest.raises(ConfigError, match="holds a training with refill_rounds=None"):
        RunState(tmp_path, {"group_size": 8, "refill_rounds": 1})


def test_a_checkpoint_that_a_kill_between_two_renames_took_away_is_found(tmp_path: Path):
    weights = Weights()
    state = RunState(tmp_path, {})
    progress = state.resume(weights)
    progress.step = 10
    state.save(weights, progress)
    checkpoint = tmp_path / "checkpoints" / "000010"
    checkpoint.rename(checkpoint.with_name("000010.before.draft"))
    assert RunState(tmp_path, {}).resume(weights).step == 10


def test_paid_calls_after_the_checkpoint_are_known_after_a_second_kill(tmp_path: Path):
    weights, state = Weights(), RunState(tmp_path, {})
    state.save(weights, state.resume(weights))
    state.log({"kind": "step", "step": 1, "api_calls": 500, "api_cost_usd": 5.0})
    for _ in range(2):  # killed each time before anything is logged
        progress = RunState(tmp_path, {}).resume(weights)
        assert (progress.api_calls, progress.api_cost_usd) == (500, 5.0)


@pytest.mark.parametrize("damage", ["", "{", "[]", "{" * 100_000])
@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("settings.json", "delete it if this command has the settings"),
        ("paid_calls.json", "delete it, and calls of steps"),
        ("checkpoints/000001/progress.json", "delete '.*000001', and the training goes on without it"),
    ],
)
def test_a_damaged_file_is_named_with_the_way_out(name: str, remedy: str, damage: str, tmp_path: Path):
    state, weights = RunState(tmp_path, {}), Weights()
    progress = state.resume(weights)
    progress.step = 1
    state.save(weights, progress)
    (tmp_path / name).write_text(damage)
    with pytest.raises(RecordError, match=rf"{name}' is damaged \(.*\): {remedy}"):
        RunState(tmp_path, {}).resume(weights)


@pytest.mark.parametrize("damage", [b"{", b"[]", b"{}", b"\xff", b""])
def test_a_damaged_line_of_the_log_is_named(damage: bytes, tmp_path: Path):
    (tmp_path / "log.jsonl").write_bytes(b'{"kind": "step", "step": 1}\n' + damage + b"\n")
    with pytest.raises(RecordError, match=r"line 2 of '.*log.jsonl' is damaged .* restore the file"):
        read_log(tmp_path)


@pytest.mark.parametrize("lost", [[0], [1], [2, 3], [3], [0, 1, 2, 3]])
def test_a_log_without_entries_before_the_checkpoint_is_an_error(lost: list[int], tmp_path: Path):
    state, weights = RunState(tmp_path, {}), Weights()
    progress = state.resume(weights)
    entries = [
        {"kind": "validation", "step": 0, "best_step": 0},
        {"kind": "step", "step": 1},
        {"kind": "validation", "step": 1, "best_step": 1},
        {"kind": "step", "step": 2},
    ]
    for entry in entries:
        state.log(entry)
    progress.step = 2
    state.save(weights, progress)
    check_log(tmp_path, last_checkpoint_step(tmp_path))
    kept = [entry for number, entry in enumerate(entries) if number not in lost]
    (tmp_path / "log.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in kept))
    with pytest.raises(RecordError, match=r"log\.jsonl' lacks entries of this training: restore the file"):
        check_log(tmp_path, last_checkpoint_step(tmp_path))
