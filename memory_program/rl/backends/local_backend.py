"""DSPy's training interface over the model in this process: ``lm.policy_gradient_step()`` gives a job that takes steps.

What is sent are DSPy's groups (messages, completion, reward), or examples for supervised fine-tuning. An item
may add what DSPy's wire has no place for: the tokens that were sampled, and their advantage.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import dspy
from dspy import lm15
from dspy.clients.provider import Provider, ReinforceJob
from dspy.clients.utils_finetune import TrainDataFormat

from memory_program.configs.trainer_groups import ReinforceSettings
from memory_program.core.errors import ModelError
from memory_program.inference.engine import LocalEngine
from memory_program.models.local_model import LocalModel
from memory_program.rl.credit import group_advantages
from memory_program.rl.trainer.packing import Sample
from memory_program.rl.trainer.policy_step import LocalTrainer
from memory_program.rl.trainer.step_accumulator import StepReport

TrainingItem = Mapping[str, Any]  # Any: JSON, as DSPy sends training data


class LocalReinforceJob(ReinforceJob):
    """Trains the weights that the language model generates with."""

    trainer: LocalTrainer
    is_ended = False  # going on needs its checkpoints and no more

    def initialize(self) -> None:
        """Prepare the optimiser.

        Raises:
            ConfigError: a setting is unknown or out of range.
            ModelError: the model does not run in this process, or its weights are not in float32.
        """
        self.trainer = LocalTrainer(require_local_engine(self.lm), ReinforceSettings(**self.train_kwargs))

    def step(
        self,
        train_data: Sequence[TrainingItem],
        train_data_format: TrainDataFormat | str | None = TrainDataFormat.GRPO_CHAT,
    ) -> StepReport | None:
        """Take a step on groups of samples, or (``chat``) towards examples.

        An item of a group may say its ``advantage``; one that does not has (reward - mean) / (deviation +
        1e-4) within its group. An item may give its ``completion_tokens`` and their ``logprobs`` as they were
        sampled; else they are those of its completion.

        Args:
            train_data: ``[{"group": [{"messages", "completion", "reward"}]}]``, or ``[{"messages"}]``.
            train_data_format: ``grpo_chat``, or ``chat`` for supervised fine-tuning.

        Returns:
            what the step did; None where no sample has an advantage, and nothing was done.

        Raises:
            ModelError: another format, or the gradient is not a number.
        """
        if train_data_format == TrainDataFormat.CHAT:
            return self.trainer.sft_step([self._example(item) for item in train_data])
        if train_data_format != TrainDataFormat.GRPO_CHAT:
            raise ModelError(
                f"train_data_format={train_data_format!r} cannot be trained on here: give "
                f"{TrainDataFormat.GRPO_CHAT.value!r} or {TrainDataFormat.CHAT.value!r}"
            )
        samples = [sample for item in train_data for sample in self._group(item["group"])]
        return self.trainer.policy_gradient_step(samples) if samples else None

    def eval_nll(self, train_data: Sequence[TrainingItem]) -> tuple[float, int]:
        """Give the summed negative log-likelihood of the replies of examples, and their tokens; no step."""
        return self.trainer.eval_nll([self._example(item) for item in train_data])

    def save_checkpoint(self, checkpoint_name: str) -> None:
        """Write the model in the format of transformers into the folder of that name."""
        self.trainer.save_model(Path(checkpoint_name))
        self.checkpoints[checkpoint_name] = checkpoint_name
        self.last_checkpoint = checkpoint_name

    def terminate(self) -> None:
        """Take the model out of this process."""
        require_local_engine(self.lm).close()

    def cancel(self) -> None:
        """Do nothing: every step is done when it returns."""

    def status(self) -> str:
        """Say that the job takes steps."""
        return "running"

    def _group(self, group: Sequence[TrainingItem]) -> list[Sample]:
        given = [item.get("advantage") for item in group]
        if None in given:
            given = group_advantages([item["reward"] for item in group])
        if given is None:
            return []
        return [
            self._sample(item, cast(float, advantage)) for item, advantage in zip(group, given, strict=True)
        ]

    def _sample(self, item: TrainingItem, advantage: float) -> Sample:
        prompt = tuple(require_local_engine(self.lm).prompt_tokens(_request(item["messages"])))
        if "completion_tokens" in item:
            return Sample(prompt, tuple(item["completion_tokens"]), advantage, item.get("logprobs"))
        return Sample(prompt, self._reply(item["completion"]["content"]), advantage)

    def _example(self, item: TrainingItem) -> Sample:
        *prompt, reply = item["messages"]
        tokens = tuple(require_local_engine(self.lm).prompt_tokens(_request(prompt)))
        return Sample(tokens, self._reply(reply["content"]))

    def _reply(self, text: str) -> tuple[int, ...]:
        return tuple(require_local_engine(self.lm).reply_tokens(text))


class LocalProvider(Provider):
    """Says that a model in this process can be trained."""

    def __init__(self) -> None:
        """Offer reinforcement."""
        super().__init__()
        self.reinforceable = True
        self.ReinforceJob = LocalReinforceJob


def require_local_engine(lm: dspy.LM) -> LocalEngine:
    """Give the engine of a model that runs in this process.

    Raises:
        ModelError: it runs elsewhere.
    """
    engine = lm.engine
    if isinstance(engine, LocalModel):
        return engine.local
    if isinstance(engine, LocalEngine):
        return engine
    raise ModelError(
        f"{lm.model!r} does not run in this process, so its weights cannot be trained here: name a folder or "
        "a hub id after 'local:'"
    )


def _request(messages: Sequence[Mapping[str, str]]) -> lm15.Request:
    system = next((message["content"] for message in messages if message["role"] == "system"), None)
    makers = {"user": lm15.Message.user, "assistant": lm15.Message.assistant}
    said = [makers[m["role"]](m["content"]) for m in messages if m["role"] != "system"]
    return lm15.Request(model="local", messages=tuple(said), system=system)
