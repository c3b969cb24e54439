"""The state of a training on disk: progress, checkpoints and log.

Checkpoints are written atomically. A run that resumes cuts the log back to its last checkpoint, and repeats
from there the steps that a killed process took after it, so nothing is trained twice.
"""

import json
import os
import shutil
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from locomo.atomic_files import atomic_write_folder, atomic_write_text, restore_folders
from memory_program.core.errors import ConfigError, RecordError
from memory_program.core.json_files import Json, read_run_file, write_json
from memory_program.core.settings import rename_old_settings

LogEntry = Json


class TrainableWeights(Protocol):
    """Weights in training, in this process or on a server; each call names a folder of its own."""

    def save_state(self, folder: Path) -> None:
        """Write everything that resuming needs; makes the folder."""
        ...

    def load_state(self, folder: Path) -> None:
        """Restore the result of ``save_state``."""
        ...

    def ema_weights(self) -> AbstractContextManager[None]:
        """Swap in the EMA weights, if there are any, for validation and saving."""
        ...

    def save_weights(self, folder: Path) -> None:
        """Write only the weights; makes the folder."""
        ...

    def load_weights(self, folder: Path) -> None:
        """Restore the result of ``save_weights``."""
        ...

    def save_model(self, folder: Path) -> None:
        """Write the model in the format of transformers."""
        ...


_OTHER_LOG = "restore the file from a backup, or train again with another --output-dir"
_ANOTHER_FOLDER = "otherwise restore it from a backup, or name another --output-dir"
_CHECKPOINTS, _LOG, _PROGRESS = "checkpoints", "log.jsonl", "progress.json"
_KEPT_CHECKPOINTS = 2
_PAID = "paid_calls.json"  # calls that were paid for, also those of steps that are taken again

_OLD_LOG_KEYS = {  # of version 0.1
    "clipped": "clip_fraction",
    "divergence": "kl",
    "groups_without_spread": "zero_variance_groups",
    "read_tokens": "forward_tokens",
    "sampler_gap": "sampler_logprob_gap",
}


@dataclass(slots=True)
class CheckpointProgress:
    """The progress of a training. ``best_score`` is the validation score after ``best_step`` steps."""

    step: int = 0
    seconds: float = 0.0
    validated_at: int = -1
    best_score: float | None = None
    best_step: int = 0
    stale: int = 0
    """Validations since the best one."""
    best_is_partial: bool = False
    """True if the best validation lost too many questions: the next whole one replaces it."""
    samples: int = 0
    """Samples trained on."""
    api_calls: int = 0
    """Calls of API models."""
    api_cost_usd: float | None = 0.0
    """Their cost; None if one has no known price."""


class RunState:
    """The folder of a training."""

    def __init__(self, folder: Path, settings: LogEntry) -> None:
        """Open or make the folder.

        Raises:
            ConfigError: it holds a training with other settings.
            RecordError: its settings are damaged.
        """
        self.folder = folder
        self._best = folder / "best"
        self._checkpoints = folder / _CHECKPOINTS
        self._log, self._paid = folder / _LOG, folder / _PAID
        self._saved: CheckpointProgress | None = None
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "settings.json"
        if not path.exists():
            atomic_write_text(path, json.dumps(settings, indent=1) + "\n")
        self.settings: LogEntry = read_run_file(
            path, f"delete it if this command has the settings of that training; {_ANOTHER_FOLDER}"
        )
        """The settings as the first run stored them, under the names of its version."""
        stored = rename_old_settings(self.settings, settings)
        # a setting that is not stored is newer than the run, and was off
        changed = [
            f"{name}={stored.get(name)!r}"
            for name, value in settings.items()
            if value != stored.get(name) and (value or name in stored)
        ]
        if changed:
            raise ConfigError(
                f"{str(folder)!r} holds a training with {', '.join(changed)}: give the same settings to "
                "resume it, or another folder (--output-dir)"
            )

    def resume(self, trainer: TrainableWeights) -> CheckpointProgress:
        """Restore the last checkpoint, if there is one, and cut the log back to it.

        Raises:
            RecordError: a file is damaged.
        """
        done, entries = _list_checkpoints(self._checkpoints), read_log(self.folder)
        progress = CheckpointProgress()
        if done:
            trainer.load_state(done[-1])
            progress = _progress_in(done[-1])
            self._saved = replace(progress)
        # calls after the checkpoint were paid for, too
        lost = "delete it, and calls of steps that are taken again are not counted"
        paid = [*entries, read_run_file(self._paid, lost)] if self._paid.is_file() else entries
        progress.api_calls = max([progress.api_calls, *(entry.get("api_calls", 0) for entry in paid)])
        costs = [progress.api_cost_usd, *(entry.get("api_cost_usd", 0.0) for entry in paid)]
        known = [cost for cost in costs if cost is not None]
        progress.api_cost_usd = max(known) if len(known) == len(costs) else None
        # the log loses them, and the next checkpoint may never be written
        write_json(self._paid, {"api_calls": progress.api_calls, "api_cost_usd": progress.api_cost_usd})
        self.cut_log(progress.step if done else -1)
        return progress

    def cut_log(self, last_step: int) -> None:
        """Drop the entries of the log after a step."""
        kept = [entry for entry in read_log(self.folder) if entry["step"] <= last_step]
        atomic_write_text(self._log, "".join(f"{json.dumps(entry)}\n" for entry in kept))

    def best_weights_folder(self, step: int) -> Path:
        """Return the folder of the best weights, named by their step."""
        return self._best / f"{step:06d}"

    def save(self, trainer: TrainableWeights, progress: CheckpointProgress) -> None:
        """Write a checkpoint unless nothing changed; keep two, and the best weights that they name."""
        if progress == self._saved:
            return

        def write(draft: Path) -> None:
            trainer.save_state(draft)
            (draft / _PROGRESS).write_text(json.dumps(asdict(progress)) + "\n", encoding="utf-8")

        atomic_write_folder(self._checkpoints / f"{progress.step:06d}", write)
        self._saved = replace(progress)
        for old in _list_checkpoints(self._checkpoints)[:-_KEPT_CHECKPOINTS]:
            shutil.rmtree(old)
        best = {
            self.best_weights_folder(_progress_in(checkpoint).best_step)
            for checkpoint in _list_checkpoints(self._checkpoints)
        }
        for old in set(self._best.glob("[0-9]*")) - best:
            shutil.rmtree(old)

    def drop_checkpoint(self, step: int) -> None:
        """Delete the newest checkpoint if it is of this step and there is an older one to resume from."""
        folders = _list_checkpoints(self._checkpoints)
        if len(folders) > 1 and int(folders[-1].name) == step:
            shutil.rmtree(folders[-1])

    def log(self, entry: LogEntry) -> None:
        """Append an entry to the log, durably."""
        with self._log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())


def read_log(folder: Path) -> list[LogEntry]:
    """Read the log of a training without a half-written last line; old key names become the current ones.

    Raises:
        RecordError: a line is no entry.
    """
    path = folder / _LOG
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    entries: list[LogEntry] = []
    for number, line in enumerate(lines, start=1):
        try:
            entry: LogEntry = json.loads(line)
            if not entry.keys() >= {"kind", "step"}:
                raise ValueError("it has no kind and step")
            entries.append({_OLD_LOG_KEYS.get(name, name): value for name, value in entry.items()})
        except (ValueError, RecursionError, AttributeError) as error:
            raise RecordError(f"line {number} of {str(path)!r} is damaged ({error}): {_OTHER_LOG}") from error
    return entries


def check_log(folder: Path, steps: int) -> None:
    """Check that the log of a training has every step, and the first and the best validation.

    Args:
        folder: of the training.
        steps: the steps of its last checkpoint.

    Raises:
        RecordError: entries are missing, and results would be of a part of the training.
    """
    entries = read_log(folder)
    taken = {entry["step"] for entry in entries if entry["kind"] == "step"}
    validated = [entry for entry in entries if entry["kind"] == "validation"]
    wanted = {0, *(entry["best_step"] for entry in validated[-1:])}
    if not taken.issuperset(range(1, steps + 1)) or not wanted.issubset(e["step"] for e in validated):
        raise RecordError(f"{str(folder / _LOG)!r} lacks entries of this training: {_OTHER_LOG}")


def last_checkpoint_step(folder: Path) -> int:
    """Return the steps of the last checkpoint of a training; 0 if there is none any more.

    Raises:
        RecordError: it is damaged.
    """
    done = _list_checkpoints(folder / _CHECKPOINTS)
    return _progress_in(done[-1]).step if done else 0


def _list_checkpoints(folder: Path) -> list[Path]:
    restore_folders(folder)
    return sorted(path for path in folder.glob("*") if path.name.isdecimal())


def _progress_in(checkpoint: Path) -> CheckpointProgress:
    path, lost = checkpoint / _PROGRESS, f"delete {str(checkpoint)!r}, and the training goes on without it"
    try:
        return CheckpointProgress(**read_run_file(path, lost))
    except TypeError as error:
        raise RecordError(f"{str(path)!r} is damaged ({error}): {lost}") from error
