"""DSPy's training interface over the model in this process.

``lm.reinforce()`` starts a job that takes steps on the weights of the model itself. ``lm.finetune()`` trains
a copy on examples, and returns a new model: the one that it began with stays as it was.

A step gets DSPy's groups (messages, completion, reward), or examples for supervised fine-tuning. An item of a
group may add two fields of ours: the sampled tokens, and their advantage.
"""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dspy
from dspy import lm15
from dspy.clients.provider import Provider, ReinforceJob, TrainingJob
from dspy.clients.utils_finetune import TrainDataFormat, TrainingStatus

from locomo.atomic_files import atomic_write_folder
from memory_program.configs.trainer_groups import ReinforceSettings
from memory_program.core.errors import ConfigError, ModelError
from memory_program.core.hashing import content_hash
from memory_program.core.json_files import Json
from memory_program.inference.engine import LocalEngine
from memory_program.models.local_model import LocalModel
from memory_program.models.rate_limit import TEMPLATE_KEY
from memory_program.rl.rewards import group_advantages
from memory_program.rl.trainer.packing import Sample
from memory_program.rl.trainer.policy_step import LocalTrainer, StepReport, complete_settings

TrainingItem = Mapping[str, Any]  # Any: JSON, as DSPy sends training data


class LocalReinforceJob(ReinforceJob):
    """A training job on the weights that the language model generates with."""

    trainer: LocalTrainer
    is_ended = False  # it can always go on from a checkpoint
    _calls = 0

    def initialize(self) -> None:
        """Prepare the optimiser.

        Raises:
            ConfigError: a setting is unknown or out of range.
            ModelError: the model does not run in this process, or its weights are not in float32.
        """
        # dspy.GRPO also sends the size of its groups, which they show themselves
        settings = {name: value for name, value in self.train_kwargs.items() if name != "num_generations"}
        self.trainer = LocalTrainer(require_local_engine(self.lm), ReinforceSettings(**settings))

    def step(
        self,
        train_data: Sequence[TrainingItem],
        train_data_format: TrainDataFormat | str | None = TrainDataFormat.GRPO_CHAT,
    ) -> StepReport | None:
        """Take a step on groups of samples, or (``chat``) an SFT step on examples.

        An item of a group may give its ``advantage``; without it, the advantage is computed from the rewards
        of its group: (reward - mean) / (deviation + 1e-4). An item may give its sampled
        ``completion_tokens`` and their ``logprobs``; without them, its completion is tokenized. It may name
        its ``agent``.

        Args:
            train_data: ``[{"group": [{"messages", "completion", "reward"}]}]``, or ``[{"messages"}]``.
            train_data_format: ``grpo_chat``, or ``chat`` for supervised fine-tuning.

        Returns:
            statistics of the step; None if no group has advantages, and no step was taken.

        Raises:
            ModelError: the format is another one, or the gradient is not finite.
        """
        if train_data_format == TrainDataFormat.CHAT:
            return self.trainer.sft_step([example_sample(self.lm, item) for item in train_data])
        if train_data_format != TrainDataFormat.GRPO_CHAT:
            raise ModelError(
                f"train_data_format={train_data_format!r} cannot be trained on here: give "
                f"{TrainDataFormat.GRPO_CHAT.value!r} or {TrainDataFormat.CHAT.value!r}"
            )
        self._calls += 1
        engine = self.trainer.engine
        samples: list[Sample] = []
        for group in (item["group"] for item in train_data):
            given = [item.get("advantage") for item in group]
            advantages = group_advantages([item["reward"] for item in group]) if None in given else given
            if advantages is None:  # equal rewards: nothing to learn
                continue
            for item, advantage in zip(group, advantages, strict=True):
                prompt = prompt_tokens(self.lm, item["messages"])
                tokens, logprobs = item.get("completion_tokens"), item.get("logprobs")
                if tokens is None:
                    tokens, logprobs = engine.reply_tokens(item["completion"]["content"]), None
                samples.append(Sample(prompt, tuple(tokens), advantage, logprobs, item.get("agent", "")))
        return self.trainer.policy_gradient_step(samples) if samples else None

    def save_checkpoint(self, checkpoint_name: str) -> None:
        """Write the model in the format of transformers; the name is the folder."""
        self.trainer.save_model(Path(checkpoint_name))
        self.checkpoints[checkpoint_name] = checkpoint_name
        self.last_checkpoint = checkpoint_name

    def get_status(self) -> Json:
        """Return the status that dspy.GRPO asks for: each step waits for one group, under a new id."""
        return {
            "job_id": self.lm.model,
            "status": self.status(),
            "current_model": self.lm.model,
            "checkpoints": dict(self.checkpoints),
            "last_checkpoint": self.last_checkpoint,
            "pending_batch_ids": [self._calls],
        }

    def terminate(self) -> None:
        """Withdraw the adapter from the server that samples, if there is one; the model stays."""
        engine = self.trainer.engine
        if engine.sampler is not None:
            engine.sampler.close()
            engine.sampler = None

    def cancel(self) -> None:
        """Do what ``terminate`` does: no step outlives its call."""
        self.terminate()

    def status(self) -> str:
        """Return ``running``."""
        return "running"


class LocalTrainingJob(TrainingJob):
    """A supervised fine-tuning; its result is the new model."""

    tuned: LocalModel | None = None
    """The engine of the new model, once it is trained."""

    def set_result(self, result: dspy.LM | Exception) -> None:
        """Give the new model its engine; DSPy copies the one that it was made from."""
        if self.tuned is not None and isinstance(result, dspy.LM):
            result = result.copy(engine=self.tuned)
            result.provider = LocalProvider(result)
        super().set_result(result)

    def status(self) -> TrainingStatus:
        """Return the status."""
        if not self.done():
            return TrainingStatus.running
        return TrainingStatus.failed if isinstance(self.result(), Exception) else TrainingStatus.succeeded


class LocalProvider(Provider):
    """DSPy's provider for a model in this process: ``lm.provider = LocalProvider(lm)``."""

    def __init__(self, lm: dspy.LM | None = None) -> None:
        """Register the jobs.

        Args:
            lm: the model, which fine-tuning needs; reinforcement learning finds it by itself.

        Raises:
            ModelError: the model does not run in this process.
        """
        super().__init__()
        self.reinforceable = True
        self.ReinforceJob = LocalReinforceJob
        self.TrainingJob = LocalTrainingJob
        self.finetunable = lm is not None
        self._lm = lm
        if lm is not None:
            require_local_engine(lm)

    def finetune(  # pyright: ignore[reportIncompatibleMethodOverride]  # called on the instance
        self,
        job: LocalTrainingJob,
        model: str,
        train_data: Sequence[TrainingItem],
        train_data_format: TrainDataFormat | str | None,
        train_kwargs: Mapping[str, Any] | None = None,  # Any: as DSPy declares it
    ) -> str:
        """Train a copy of the model, as its folder has it, on examples; return the name of the new one.

        Args:
            job: gets the engine of the new model.
            model: the name of the model.
            train_data: ``[{"messages"}]``; the last message is the reply.
            train_data_format: ``chat``.
            train_kwargs: ``epochs`` (1), ``batch_size`` (8), ``output_dir`` (runs/finetune, with a folder for
                each result), and fields of ``ReinforceSettings`` such as ``learning_rate``.

        Raises:
            ConfigError: a setting is unknown or out of range.
            ModelError: there is no example, or the gradient is not finite.
        """
        given = dict(train_kwargs or {})
        epochs, size = int(given.pop("epochs", 1)), int(given.pop("batch_size", 8))
        output = Path(given.pop("output_dir", "runs/finetune"))
        if epochs < 1 or size < 1:
            raise ConfigError(f"epochs={epochs} and batch_size={size} must each be at least 1")
        settings = ReinforceSettings(**given)
        if train_data_format != TrainDataFormat.CHAT or not train_data:
            raise ModelError(
                f"{len(train_data)} examples in format {train_data_format!r} cannot be trained on: give at "
                f"least one in {TrainDataFormat.CHAT.value!r}; a metric may have refused all of them"
            )
        assert self._lm is not None, "finetunable is set with it"
        engine, loaded = self._lm.engine, require_local_engine(self._lm)
        local, settings = loaded.settings, complete_settings(settings, loaded.model.network, "sft")
        dtype = "float32" if settings.optimizer.tuning == "full" else local.dtype
        template = engine.chat_template_kwargs if isinstance(engine, LocalModel) else None
        copied = LocalModel(local.model_copy(update={"dtype": dtype}), None, template)
        student = self._lm.copy(engine=copied)
        try:
            trainer, order = LocalTrainer(copied.local, settings), random.Random(settings.optimizer.seed)
            examples = [example_sample(student, item) for item in train_data]
            for _ in range(epochs):
                order.shuffle(examples)
                for first in range(0, len(examples), size):
                    trainer.sft_step(examples[first : first + size])
            digest = content_hash(model, list(train_data), given, epochs, size)[:12]
            folder = output / digest
            output.mkdir(parents=True, exist_ok=True)
            atomic_write_folder(folder, trainer.save_model)
        finally:
            copied.local.close()
        limiter = engine.limiter if isinstance(engine, LocalModel) else None
        tuned = local.model_copy(update={"source": str(folder)})
        job.tuned = LocalModel(tuned, limiter, template)
        return f"local:{folder}"


def samples_on_server(lm: dspy.LM) -> bool:
    """Return True if a vLLM server samples for a model whose weights are trained in this process."""
    engine = lm.engine.local if isinstance(lm.engine, LocalModel) else lm.engine
    return isinstance(engine, LocalEngine) and engine.sampler is not None


def require_local_engine(lm: dspy.LM) -> LocalEngine:
    """Return the engine of a model in this process.

    Raises:
        ModelError: the model runs elsewhere.
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


def example_sample(lm: dspy.LM, item: TrainingItem) -> Sample:
    """Return the tokens of an example as inference sends them; the last message is the reply.

    Raises:
        ModelError: the model runs elsewhere.
    """
    *prompt, reply = item["messages"]
    return Sample(prompt_tokens(lm, prompt), tuple(require_local_engine(lm).reply_tokens(reply["content"])))


def prompt_tokens(lm: dspy.LM, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
    """Return the tokens of a prompt as inference sends them, with the model's arguments of its template.

    Raises:
        ModelError: the model runs elsewhere.
    """
    system = next((message["content"] for message in messages if message["role"] == "system"), None)
    makers = {"user": lm15.Message.user, "assistant": lm15.Message.assistant}
    turns = tuple(makers[m["role"]](m["content"]) for m in messages if m["role"] != "system")
    template = lm.engine.chat_template_kwargs if isinstance(lm.engine, LocalModel) else {}
    config = lm15.Config(extensions={TEMPLATE_KEY: template})
    request = lm15.Request(model="local", messages=turns, system=system, config=config)
    return tuple(require_local_engine(lm).prompt_tokens(request))
