"""DSPy's training interface to an Arbor server: ``lm.reinforce()`` returns a job that trains there."""

import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import dspy
from dspy.clients.provider import Provider, ReinforceJob
from dspy.clients.utils_finetune import TrainDataFormat, TrainingStatus

from memory_program.configs.arbor_config import ArborJobSettings
from memory_program.core.errors import ModelError
from memory_program.core.json_files import Json
from memory_program.models.model_names import model_source
from memory_program.models.rate_limit import AdaptiveLimiter, RateLimitedEngine, RetryPolicy
from memory_program.rl.backends.arbor.arbor_client import ArborClient
from memory_program.rl.backends.arbor.arbor_engine import OPENAI_PREFIX, ArborEngine
from memory_program.rl.backends.arbor.arbor_trainer import ArborTrainer, SubmittedGroups
from memory_program.rl.backends.arbor.arbor_wire import GroupItem

_ALIAS = f"{OPENAI_PREFIX}arbor:"
_STATUS = {
    "running": TrainingStatus.running,
    "succeeded": TrainingStatus.succeeded,
    "failed": TrainingStatus.failed,
    "cancelled": TrainingStatus.cancelled,
}


class ArborReinforceJob(ReinforceJob):
    """Trains a model on an Arbor server.

    After ``initialize``, the language model ``openai/arbor:JOB`` samples from the job's current weights.
    """

    trainer: ArborTrainer

    def __init__(
        self,
        lm: dspy.LM,
        train_kwargs: dict[str, Any] | None = None,  # Any: as DSPy declares it
        *,
        client: ArborClient,
        folder: Path | None = None,
    ) -> None:
        """Check the settings.

        Args:
            lm: the model to train; ``arbor_model`` makes one.
            train_kwargs: the fields of ``ArborJobSettings``.
            client: the client of the server.
            folder: the folder with the job record, which resuming needs.

        Raises:
            ConfigError: a setting is unknown, out of range or unsupported by Arbor.
        """
        super().__init__(lm, train_kwargs)
        settings = ArborJobSettings(**self.train_kwargs)
        model = lm.model.removeprefix(_ALIAS)
        self.trainer = ArborTrainer(client, settings, model, folder)

    @property
    def is_ended(self) -> bool:
        """True if an earlier process ended the job: its result can be exported, but it cannot train."""
        return self.trainer.is_ended

    def initialize(self) -> None:
        """Start the job, or resume the recorded one.

        Raises:
            ConfigError: the server has lost the job.
            ModelError: no server answers, or it rejects the request.
        """
        self.trainer.start_or_resume_job(run_name=uuid.uuid4().hex[:8])
        self.lm.model = f"{_ALIAS}{self.trainer.job_id}"

    def step(
        self,
        train_data: Sequence[GroupItem],
        train_data_format: TrainDataFormat | str | None = TrainDataFormat.GRPO_CHAT,
    ) -> SubmittedGroups | None:
        """Train on groups of samples; block until the optimizer step is done.

        Args:
            train_data: ``[{"group": [{"messages", "completion", "reward"}]}]``; an item may have an
                ``advantage`` and its ``weight``.
            train_data_format: ``grpo_chat``.

        Returns:
            the number of groups and samples sent; None if no group has an advantage.

        Raises:
            ModelError: the format is another one, or the server rejects the batch.
        """
        if train_data_format != TrainDataFormat.GRPO_CHAT:
            raise ModelError(
                f"train_data_format={train_data_format!r} cannot be trained on by Arbor: give "
                f"{TrainDataFormat.GRPO_CHAT.value!r}, or fine-tune in this process (--mode sft)"
            )
        sent = self.trainer.submit_groups([item["group"] for item in train_data])
        return sent if sent.groups else None

    def get_status(self) -> Json:
        """Return the status in the format of DSPy's own GRPO."""
        status = self.trainer.client.status(self.trainer.job_id)
        return {
            "job_id": status.job_id,
            "status": status.status,
            "current_model": status.job_id,
            "checkpoints": dict(status.checkpoints),
            "last_checkpoint": status.last_checkpoint,
            "pending_batch_ids": list(status.pending_batch_ids),
        }

    def save_checkpoint(
        self, checkpoint_name: str, score: float | None = None, metadata: Json | None = None
    ) -> None:
        """Save the weights on the server's machine."""
        record = self.trainer.checkpoint(checkpoint_name, metadata)
        self.checkpoints[checkpoint_name] = record if score is None else {**record, "score": score}
        self.last_checkpoint = checkpoint_name

    def terminate(self) -> None:
        """Save the last weights as ``checkpoint_final``, end the job and free its GPUs."""
        self.trainer.close()

    def cancel(self) -> None:
        """End the job without saving, and free its GPUs."""
        self.trainer.client.cancel(self.trainer.job_id)

    def status(self) -> TrainingStatus:
        """Ask the server for the job's status."""
        found = self.trainer.client.status(self.trainer.job_id).status
        return _STATUS.get(found, TrainingStatus.pending)


class ArborProvider(Provider):
    """Offers reinforcement learning on an Arbor server to DSPy."""

    def __init__(self, client: ArborClient, folder: Path | None = None) -> None:
        """Keep the arguments for ``ArborReinforceJob``."""
        super().__init__()
        self.reinforceable = True
        self.ReinforceJob = partial(  # pyright: ignore[reportAttributeAccessIssue]  # called like the class
            ArborReinforceJob, client=client, folder=folder
        )

    def __deepcopy__(self, memo: object) -> "ArborProvider":
        return self


def arbor_model(
    name: str, url: str, folder: Path | None = None, *, max_tokens: int = 512, threads: int = 48
) -> dspy.LM:
    """Make a language model that an Arbor server trains and samples.

    Args:
        name: "local:" and a hub id or a folder that the server can read, or "pocket-base".
        url: the server's address, with ``/v1``.
        folder: the folder with the job record.
        max_tokens: the longest reply.
        threads: the most concurrent calls.
    """
    client = ArborClient(url, connections=threads + 1)
    engine = RateLimitedEngine(ArborEngine(client), AdaptiveLimiter(threads), RetryPolicy(), api_base=url)
    return dspy.LM(
        f"{_ALIAS}{model_source(name)}",
        engine=engine,
        provider=ArborProvider(client, folder),
        temperature=0.0,
        max_tokens=max_tokens,
        num_retries=0,
        cache=False,
    )
