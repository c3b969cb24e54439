"""The state of a training on disk: how far it is, its checkpoints, and its log.

A checkpoint is whole or not there, and the log is cut back to it when a run goes on: what a killed process
did beyond its last checkpoint is done again, from the weights of then, so nothing is trained twice.
"""

import json
import os
import shutil
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from locomo.atomic_files import atomic_write_folder, atomic_write_text
from memory_program.core.errors import ConfigError
from memory_program.core.settings import rename_old_settings

LogEntry = dict[str, Any]  # Any: a JSON object


class TrainableWeights(Protocol):
    """Weights that are trained, here or on a server; each call names a folder of its own."""

    def save_state(self, folder: Path) -> None:
        """Write all that going on needs; makes the folder."""
        ...

    def load_state(self, folder: Path) -> None:
        """Take up what ``save_state`` wrote."""
        ...

    def ema_weights(self) -> AbstractContextManager[None]:
        """Have the moving average of the weights inside the block, if there is one: to judge and to save."""
        ...

    def save_weights(self, folder: Path) -> None:
        """Write the weights alone, to come back to them later; makes the folder."""
        ...

    def load_weights(self, folder: Path) -> None:
        """Make what ``save_weights`` wrote the result."""
        ...

    def save_model(self, folder: Path) -> None:
        """Write the result in the format of transformers."""
        ...


_LOG, _PROGRESS = "log.jsonl", "progress.json"
_KEPT = 2  # the last checkpoint, and the one before it


@dataclass(slots=True)
class CheckpointProgress:
    """How far a training is. ``best_score`` is that of the validation after ``best_step`` steps."""

    step: int = 0
    seconds: float = 0.0
    validated_at: int = -1
    best_score: float | None = None
    best_step: int = 0
    stale: int = 0
    """Validations since the best one."""
    samples: int = 0
    """Samples trained on so far."""


class RunState:
    """The folder of a training."""

    def __init__(self, folder: Path, settings: LogEntry) -> None:
        """Open the folder, or make it.

        Raises:
            ConfigError: it holds a training with other settings.
        """
        self.folder = folder
        self._best = folder / "best"
        self._checkpoints = folder / "checkpoints"
        self._log = folder / _LOG
        self._saved: CheckpointProgress | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._check_settings(settings)

    def resume(self, trainer: TrainableWeights) -> CheckpointProgress:
        """Take up the last checkpoint, if there is one, and cut the log back to it."""
        done = self._checkpoint_folders()
        progress = CheckpointProgress()
        if done:
            trainer.load_state(done[-1])
            progress = _progress_in(done[-1])
            self._saved = replace(progress)
        kept = [entry for entry in read_log(self.folder) if done and entry["step"] <= progress.step]
        atomic_write_text(self._log, "".join(f"{json.dumps(entry)}\n" for entry in kept))
        return progress

    def best_weights_folder(self, step: int) -> Path:
        """Name the folder of the weights that were the best after so many steps."""
        return self._best / f"{step:06d}"

    def save(self, trainer: TrainableWeights, progress: CheckpointProgress) -> None:
        """Write a checkpoint unless it is there, and forget the older ones but for the last."""
        if progress == self._saved:
            return

        def write(draft: Path) -> None:
            trainer.save_state(draft)
            (draft / _PROGRESS).write_text(json.dumps(asdict(progress)) + "\n", encoding="utf-8")

        atomic_write_folder(self._checkpoints / f"{progress.step:06d}", write)
        self._saved = replace(progress)
        for old in self._checkpoint_folders()[:-_KEPT]:
            shutil.rmtree(old)
        best = {
            self.best_weights_folder(_progress_in(checkpoint).best_step)
            for checkpoint in self._checkpoint_folders()
        }
        for old in set(self._best.glob("*")) - best:
            shutil.rmtree(old)

    def log(self, entry: LogEntry) -> None:
        """Add a line to the log."""
        with self._log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _checkpoint_folders(self) -> list[Path]:
        return sorted(path for path in self._checkpoints.glob("*") if path.suffix != ".draft")

    def _check_settings(self, settings: LogEntry) -> None:
        path = self.folder / "settings.json"
        if not path.exists():
            atomic_write_text(path, json.dumps(settings, indent=1) + "\n")
            return
        before = rename_old_settings(json.loads(path.read_text(encoding="utf-8")), settings)
        changed = [name for name in settings if settings[name] != before.get(name)]
        if changed:
            told = ", ".join(f"{name}={before.get(name)!r}" for name in changed)
            raise ConfigError(
                f"{str(self.folder)!r} holds a training with {told}: give the same settings to go on "
                "with it, or another folder (--output-dir)"
            )


def read_log(folder: Path) -> list[LogEntry]:
    """Read the log of a training; a line that was being written when a process was killed is left out."""
    path = folder / _LOG
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def _progress_in(checkpoint: Path) -> CheckpointProgress:
    return CheckpointProgress(**json.loads((checkpoint / _PROGRESS).read_text(encoding="utf-8")))
