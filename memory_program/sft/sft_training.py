"""Supervised fine-tuning of a writer on an expert's replies, with the training job that RL also uses.

The examples are the recorded exchanges; the loss covers the tokens of the replies only.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import dspy
from dspy.clients.utils_finetune import TrainDataFormat

from memory_program.configs.trainer_groups import OptimizerSettings, ReinforceSettings, lasting_settings
from memory_program.core.checkpoints import CheckpointProgress, LogEntry, RunState
from memory_program.core.errors import ConfigError
from memory_program.core.hashing import content_hash
from memory_program.models.model_names import model_fingerprint
from memory_program.rl.backends.local_backend import LocalProvider, LocalReinforceJob
from memory_program.sft.session_lines import SessionLine

SftExample = dict[str, Any]  # Any: a JSON object, ``{"messages": [...]}``


@dataclass(frozen=True, slots=True)
class SftSplit:
    """The training and the validation examples."""

    train: list[SftExample]
    val: list[SftExample]


def sft_examples(lines: Sequence[SessionLine]) -> list[SftExample]:
    """Make an example of each valid reply; invalid ones are not taught."""
    return [
        {"messages": [*call["messages"], {"role": "assistant", "content": call["reply"]}]}
        for line in lines
        for call in line["calls"]
        if call["is_valid"]
    ]


def split_by_conversation(
    lines: Sequence[SessionLine],
    held_out_share: float,
    seed: int,
    make_examples: Callable[[Sequence[SessionLine]], list[SftExample]] = sft_examples,
) -> SftSplit:
    """Split trajectories by conversation; raise ``ConfigError`` if there are fewer than two."""
    names = sorted({line["episode"]["conversation_id"] for line in lines})
    if len(names) < 2:
        raise ConfigError(
            f"{len(names)} conversations of trajectories: there must be one to learn from and one to "
            "validate on; collect more with --mode trajectories"
        )
    random.Random(f"{seed}:held out").shuffle(names)
    held_out = set(names[: max(1, round(held_out_share * len(names)))])
    learned = [line for line in lines if line["episode"]["conversation_id"] not in held_out]
    validating = [line for line in lines if line["episode"]["conversation_id"] in held_out]
    return SftSplit(make_examples(learned), make_examples(validating))


def fine_tune(
    lm: dspy.LM,
    lessons: SftSplit,
    folder: Path,
    training: OptimizerSettings,
    *,
    epochs: int,
    batch: int,
    save_every: int = 50,
    on_start: Callable[[], None] = lambda: None,
    on_entry: Callable[[LogEntry], None] = lambda entry: None,
) -> LocalReinforceJob:
    """Train a local model on examples, and resume from the last checkpoint in the folder.

    Each epoch begins with a validation, and the last one ends with it. At the end, ``lm`` has the weights
    with the lowest validation loss.

    Args:
        lm: the model, which is trained in place.
        lessons: the examples.
        folder: the folder of checkpoints and log.
        training: the optimizer's settings.
        epochs: passes over the training examples.
        batch: examples per step.
        save_every: steps between checkpoints.
        on_start: called when the folder turns out to fit the settings.
        on_entry: called with every log entry.

    Raises:
        ConfigError: there are no examples, or the folder holds another run.
        ModelError: the weights cannot be trained, or the training diverges.
    """
    if not lessons.train or not lessons.val:
        raise ConfigError(f"{len(lessons.train)} examples to learn from, {len(lessons.val)} to validate on")
    lm.provider = LocalProvider()
    alone = ReinforceSettings(optimizer=training, beta=0.0)  # replies need no reference model
    job = cast(LocalReinforceJob, lm.reinforce(alone.model_dump()))
    lasting = {"model": model_fingerprint(lm.model), "epochs": epochs, "batch": batch}
    digest = content_hash(lessons.train)[:16]
    state = RunState(folder, {**lasting, "data": digest, **lasting_settings(training)})
    on_start()
    progress = state.resume(job.trainer)
    steps = -(-len(lessons.train) // batch)
    while True:
        if progress.step % steps == 0 and progress.validated_at != progress.step:
            _validate(job, lessons.val, batch, state, progress, on_entry)
        is_last = progress.step >= epochs * steps
        if is_last or (progress.step and progress.step % save_every == 0):
            state.save(job.trainer, progress)
        if is_last:
            break
        epoch, place = divmod(progress.step, steps)  # every epoch has a shuffle of its own
        order = random.Random(f"{training.seed}:{epoch}").sample(
            range(len(lessons.train)), len(lessons.train)
        )
        chosen = [lessons.train[index] for index in order[place * batch : (place + 1) * batch]]
        report = job.step(chosen, TrainDataFormat.CHAT)
        assert report is not None, "examples always teach"
        progress.step += 1
        progress.samples += report.samples
        progress.seconds += report.seconds
        entry = {
            "kind": "step",
            "step": progress.step,
            "run_s": round(progress.seconds, 1),
            "loss": report.loss,
            "grad_norm": report.grad_norm,
            "learning_rate": report.learning_rate,
            "tokens_per_s/trained": report.forward_tokens / max(report.seconds, 1e-9),
            "time_left_s": round(progress.seconds / progress.step * (epochs * steps - progress.step)),
        }
        if report.peak_memory is not None:
            entry["gpu_memory_gib"] = report.peak_memory / 2**30
        state.log(entry)
        on_entry(entry)
    job.trainer.load_weights(state.best_weights_folder(progress.best_step))
    return job


def _validate(
    job: LocalReinforceJob,
    examples: Sequence[SftExample],
    batch: int,
    state: RunState,
    progress: CheckpointProgress,
    on_entry: Callable[[LogEntry], None],
) -> None:
    """Measure the mean loss per reply token, and save the weights if it is the lowest so far."""
    batches = [examples[first : first + batch] for first in range(0, len(examples), batch)]
    with job.trainer.ema_weights():
        losses = [job.eval_nll(part) for part in batches]
        loss = sum(total for total, _ in losses) / max(1, sum(tokens for _, tokens in losses))
        if progress.best_score is None or -loss > progress.best_score:
            progress.best_score, progress.best_step = -loss, progress.step
            job.trainer.save_weights(state.best_weights_folder(progress.step))
    progress.validated_at = progress.step
    entry = {
        "kind": "validation",
        "step": progress.step,
        "run_s": round(progress.seconds, 1),
        "loss": loss,
        "best_step": progress.best_step,
    }
    state.log(entry)
    on_entry(entry)
