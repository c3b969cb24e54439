"""A training job on an Arbor server: this module sends batches, and the weights stay on the server.

All groups of a step are one batch, and one optimizer step. A step here returns only when the server waits for
the next batch. A server that ``arbor_launcher.py`` started has sent the new weights to vLLM by then, so that
samples come from the weights that they train. Any other sends them when the next batch arrives: its samples
are one optimizer step old.
"""

import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from locomo.atomic_files import atomic_write_text
from memory_program.configs.arbor_config import ArborJobSettings
from memory_program.core.errors import ConfigError, ModelError
from memory_program.core.json_files import Json
from memory_program.rl.backends.arbor.arbor_checkpoints import export_checkpoint
from memory_program.rl.backends.arbor.arbor_client import ArborClient, UnknownJobError
from memory_program.rl.backends.arbor.arbor_wire import GroupItem, to_arbor_batch, to_arbor_group

_RECORD = "arbor.json"
_CHECKPOINT = "checkpoint.json"
_BEST = "best"
_STEP_TIMEOUT_S = 3600.0
_POLL_S = 0.5  # the server polls its trainer at this interval


@dataclass(frozen=True, slots=True)
class SubmittedGroups:
    """The number of groups and samples of a step. Loss and KL are only in the server's log."""

    groups: int
    samples: int


class ArborTrainer:
    """Sends batches to one job, counts them as the server does, and tracks its checkpoints."""

    def __init__(
        self,
        client: ArborClient,
        settings: ArborJobSettings,
        model: str,
        folder: Path | None = None,
    ) -> None:
        """Prepare; ``start_or_resume_job`` starts the job.

        Args:
            client: the client of the server.
            settings: the job's settings.
            model: the model to train, a hub id or a folder on the server's machine.
            folder: the folder with the job record, which resuming needs; None keeps no record.
        """
        self.client = client
        self.settings = settings
        self.model = model
        self.job_id = ""
        self.steps = 0
        self.is_ended = False
        """True if the job has ended: its result can be exported, but it cannot train."""
        self._folder = folder
        self._best: Json | None = None

    def start_or_resume_job(self, run_name: str) -> None:
        """Resume the recorded job or start a new one, and wait until it accepts a batch.

        A job that has ended needs no server: only its record on disk is read.

        Raises:
            ConfigError: the server has lost a job that was already trained.
            ModelError: no server answers, or it rejects the request.
        """
        noted: list[Path] = []
        if self._folder is not None:  # the last checkpoint's record counts where there is no other
            noted = [*sorted(self._folder.glob(f"checkpoints/*/{_RECORD}")), *self._folder.glob(_RECORD)]
        record: Json | None = json.loads(noted[-1].read_text(encoding="utf-8")) if noted else None
        if record is not None and record.get("is_ended"):
            self.job_id, self.steps, self.is_ended = record["job_id"], record["steps"], True
            return
        self.client.check()
        if record is not None:
            try:
                self.job_id = self.client.status(record["job_id"]).job_id
            except UnknownJobError as error:
                if record["steps"]:
                    raise ConfigError(_lost_job_message(record)) from error
                record = None
        if record is None:
            request = self.settings.initialize_request(self.model, run_name)
            self.job_id = self.client.initialize(request).job_id
            self._write_down()
        self.steps = min(self._wait_for_pending())
        self._write_down()

    def submit_groups(self, groups: Sequence[Sequence[GroupItem]]) -> SubmittedGroups:
        """Send the groups of a step, and wait for its optimizer step; raise ``ModelError`` if it fails."""
        ready = [(to_arbor_group(group), len(group)) for group in groups]
        known = [(group, size) for group, size in ready if group is not None]
        if not known:
            return SubmittedGroups(0, 0)
        if self.steps >= self.settings.max_steps - 1:  # after its last step, the server never answers
            raise ModelError(
                f"{self.steps} steps are done, and the job was begun for {self.settings.num_train_steps}: "
                "begin another one, in another folder"
            )
        batch = to_arbor_batch([group for group, _ in known], self.settings.batch_size)
        self.client.step(self.job_id, self.steps, batch)
        self.steps += 1
        self._write_down()
        self._wait_for_pending(self.steps)
        return SubmittedGroups(len(known), sum(size for _, size in known))

    def checkpoint(self, name: str, metadata: Json | None = None) -> Json:
        """Save the weights on the server's machine; return Arbor's record with ``checkpoint_dir``."""
        status = self.client.checkpoint(self.job_id, name, metadata)
        found = dict(status.checkpoints.get(name, {}))
        if "checkpoint_dir" not in found:
            raise ModelError(
                f"the Arbor server at {self.client.url} has not written {name!r}: its log says why"
            )
        return found

    def close(self) -> None:
        """End the job and free its GPUs; a job that the server does not know has ended."""
        if self.is_ended:
            return
        with suppress(UnknownJobError):
            self.client.terminate(self.job_id)
            self.client.cancel(self.job_id)  # terminate alone leaves vLLM running and all GPUs allocated
        self.is_ended = True
        self._write_down()

    def save_state(self, folder: Path) -> None:
        """Record the job and its number of steps; the weights stay on the server."""
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / _RECORD, self._state())

    def load_state(self, folder: Path) -> None:
        """Raise ``ConfigError`` unless ``save_state`` recorded this job. The job cannot be rewound."""
        noted: Json = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        if noted["job_id"] != self.job_id:
            raise ConfigError(_lost_job_message(noted))

    def ema_weights(self) -> AbstractContextManager[None]:
        """Do nothing, because a server has only the current weights."""
        return nullcontext()

    def save_weights(self, folder: Path) -> None:
        """Overwrite the best checkpoint on the server, and record its location."""
        folder.mkdir(parents=True, exist_ok=True)
        self._best = self.checkpoint(_BEST, {"steps": self.steps})
        _write(folder / _CHECKPOINT, self._best)

    def load_weights(self, folder: Path) -> None:
        """Select the checkpoint that ``save_weights`` recorded; the server's weights do not change."""
        self._best = json.loads((folder / _CHECKPOINT).read_text(encoding="utf-8"))

    def save_model(self, folder: Path) -> None:
        """Export the result, or the current weights, with ``export_checkpoint``."""
        record = self._best or self.checkpoint(_BEST)
        dtype = torch.bfloat16 if self.settings.optimizer.bf16 else torch.float32
        export_checkpoint(Path(record["checkpoint_dir"]), self.model, folder, dtype)

    def _wait_for_pending(self, number: int | None = None) -> tuple[int, ...]:
        """Wait until the trainer accepts a batch, that with this number if one is given."""
        until = time.monotonic() + _STEP_TIMEOUT_S
        while True:
            status = self.client.status(self.job_id)
            if status.pending_batch_ids and (number is None or number in status.pending_batch_ids):
                return status.pending_batch_ids
            if status.status != "running":
                raise ModelError(
                    f"job {self.job_id!r} on {self.client.url} is {status.status}: its log says why"
                )
            if time.monotonic() > until:
                raise ModelError(
                    f"job {self.job_id!r} on {self.client.url} has not come to step {number or 0} within "
                    f"{_STEP_TIMEOUT_S:.0f} s: its grpo_training.log says why"
                )
            time.sleep(_POLL_S)

    def _state(self) -> Json:
        state: Json = {"job_id": self.job_id, "steps": self.steps, "url": self.client.url}
        return {**state, "is_ended": self.is_ended}

    def _write_down(self) -> None:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            _write(self._folder / _RECORD, self._state())


def _lost_job_message(record: Json) -> str:
    return (
        f"job {record['job_id']!r} of this folder is not on the Arbor server at {record['url']} any more, "
        "and its optimiser went with it: begin again in another folder (--output-dir), from the checkpoint "
        "in the server's storage if you like (--model local:PATH)"
    )


def _write(path: Path, content: Json) -> None:
    atomic_write_text(path, json.dumps(content, indent=1) + "\n")
