"""The state of a training on disk: what a kill between two writes leaves."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from memory_program.core.checkpoints import RunState


class Killed(BaseException):
    """The process ends here."""


class Weights:
    """Weights that write a line, and are killed while they do when they are told."""

    is_killed = False

    def save_state(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        if self.is_killed:
            raise Killed
        (folder / "state").write_text(folder.name)

    def load_state(self, folder: Path) -> None:
        assert (folder / "state").exists()

    def averaged(self) -> AbstractContextManager[None]:
        return nullcontext()

    def save_weights(self, folder: Path) -> None:
        folder.mkdir(parents=True)

    def load_weights(self, folder: Path) -> None:
        assert folder.is_dir()

    def save_model(self, folder: Path) -> None:
        folder.mkdir()


def test_a_kill_while_a_step_is_saved_again_leaves_its_checkpoint_and_the_best_weights(tmp_path: Path):
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


def test_the_best_weights_stay_as_long_as_a_checkpoint_names_them(tmp_path: Path):
    weights, state = Weights(), RunState(tmp_path, {})
    progress = state.resume(weights)
    for step in (2, 4, 6):
        progress.step = progress.best_step = step
        weights.save_weights(state.best_weights_folder(step))
        state.save(weights, progress)
    assert [state.best_weights_folder(step).exists() for step in (2, 4, 6)] == [False, True, True]
