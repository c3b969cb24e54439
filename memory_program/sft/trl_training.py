"""Supervised fine-tuning by TRL's ``SFTTrainer``, on examples in tokens, in one process or several.

The tokens are those that inference sends: the prompt in the model's chat template, then the reply. The loss
covers the replies only. Loop, schedule, checkpoints and their choice by validation loss are the trainer's.
"""

import copy
import json
import math
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from statistics import fmean
from typing import Any, cast

import dspy
import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from huggingface_hub import constants
from peft import PeftModel
from safetensors import SafetensorError, safe_open
from transformers import (
    PreTrainedModel,
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from memory_program.configs.trainer_groups import OptimizerSettings, lasting_settings
from memory_program.core.checkpoints import LogEntry, RunState, check_log, read_log
from memory_program.core.errors import ConfigError, RecordError, RunFailedError
from memory_program.core.hashing import content_hash
from memory_program.core.settings import filled_in
from memory_program.inference.engine import LocalEngine, default_device
from memory_program.inference.loading import load_model, silence_transformers
from memory_program.models.local_model import LocalModel
from memory_program.models.model_names import model_fingerprint
from memory_program.rl.backends.local_backend import example_sample, require_local_engine
from memory_program.rl.trainer.adapters import disk_errors, lora_config, write_model
from memory_program.rl.trainer.packing import Sample
from memory_program.sft.sft_training import SftSplit

_CHECKPOINTS = "checkpoints"
_IGNORED = -100  # the label of a token without loss


def fine_tune(
    lm: dspy.LM,
    lessons: SftSplit,
    folder: Path,
    training: OptimizerSettings,
    *,
    epochs: int,
    batch: int,
    save_every_s: float = 600.0,
    on_start: Callable[[], None] = lambda: None,
    on_entry: Callable[[LogEntry], None] = lambda entry: None,
) -> Callable[[Path], None]:
    """Train a local model on examples, and resume from the last checkpoint in the folder.

    Training begins with a validation, and each epoch ends with one. The result has the weights with the
    lowest validation loss. The first of several processes (torchrun) writes the log.

    Args:
        lm: the model, which is trained in place.
        lessons: the examples.
        folder: the folder of checkpoints and log.
        training: the optimizer's settings.
        epochs: passes over the training examples.
        batch: examples per step, shared by the processes.
        save_every_s: seconds between checkpoints; each epoch ends with one, too.
        on_start: called when the folder fits the settings.
        on_entry: called with every log entry.

    Returns:
        a function that writes the result, in the format of transformers, into a folder.

    Raises:
        ConfigError: there are no examples, the folder is of another run, or the batch cannot be shared.
        ModelError: the weights cannot be trained.
        RecordError: a file of the run is damaged.
        RunFailedError: the training diverges.
    """
    if not lessons.train or not lessons.val:
        raise ConfigError(
            f"{len(lessons.train)} examples to learn from, {len(lessons.val)} to validate on: both need "
            "valid replies (or, for a reader, questions whose evidence retrieval finds); collect more with "
            "--mode trajectories"
        )
    process, engine = PartialState(cpu=default_device() == "cpu"), require_local_engine(lm)
    if batch % process.num_processes:
        raise ConfigError(f"batch={batch} must be a multiple of the {process.num_processes} processes")
    checkpoints, run = _whole_checkpoints(folder / _CHECKPOINTS), None
    if process.is_main_process:
        settings = _resume_settings(lm, lessons, training, epochs=epochs, batch=batch)
        run = _open_run(folder, settings, checkpoints)
        on_start()
    train, val = ([example_sample(lm, e) for e in examples] for examples in (lessons.train, lessons.val))
    constants.HF_HUB_DISABLE_TELEMETRY = True  # TRL would report what is trained
    old_names = warnings.catch_warnings(action="ignore", category=FutureWarning)  # TRL and PEFT use them
    with engine.updating() as network, silence_transformers(), old_names:
        arguments = _make_arguments(
            (folder / _CHECKPOINTS).resolve(),
            training,
            epochs=epochs,
            share=batch // process.num_processes,
            longest=max(len(sample.prompt) + len(sample.completion) for sample in train),
            is_new=not checkpoints,
            is_cpu=network.device.type == "cpu",
        )
        configs = copy.deepcopy((network.config, network.generation_config))
        trainer = _Trainer(
            network,
            arguments,
            train_dataset=_to_dataset(train),
            eval_dataset=_to_dataset(val),
            processing_class=copy.deepcopy(engine.model.tokenizer),  # it gets a token for padding
            peft_config=lora_config(training, engine.settings.source) if training.tuning == "lora" else None,
            callbacks=[_Recording(run, save_every_s, on_entry)],
        )
        trainer.tokens_per_example = fmean(len(sample.completion) for sample in val)
        trainer.remove_callback(PrinterCallback)
        trainer.train(resume_from_checkpoint=str(checkpoints[-1]) if checkpoints else None)
        network.config, network.generation_config = configs
    return _make_writer(trainer, engine, network)


def _resume_settings(lm: dspy.LM, lessons: SftSplit, training: OptimizerSettings, **sizes: int) -> LogEntry:
    """Collect what must not change between runs."""
    return {
        "model": model_fingerprint(lm.model),
        "data": content_hash(lessons.train)[:16],
        "chat_template_kwargs": lm.engine.chat_template_kwargs if isinstance(lm.engine, LocalModel) else None,
        "schedule": "cosine",
        "learning_rate": training.learning_rate,  # a part of the schedule
        **sizes,
        **lasting_settings(training),
    }


def _make_writer(
    trainer: "_Trainer", engine: LocalEngine, network: PreTrainedModel
) -> Callable[[Path], None]:
    """Return a function that writes the best weights; those of the start if no epoch was better."""
    adapted = trainer.model if isinstance(trainer.model, PeftModel) else None
    if not trainer.state.best_global_step:
        if adapted is None:  # on the CPU: a second model may not fit on a GPU beside the first one
            network = load_model(engine.settings.source, "cpu", network.dtype).network
        else:  # an adapter of zeros is the start; one that the training began with stays an adapter
            for name, weight in adapted.named_parameters():
                if weight.requires_grad and "lora_B" in name:
                    weight.data.zero_()
    tokenizer, source = engine.model.tokenizer, engine.settings.source
    return partial(write_model, network=network, tokenizer=tokenizer, source=source, adapted=adapted)


def _make_arguments(
    folder: Path,
    training: OptimizerSettings,
    *,
    epochs: int,
    share: int,
    longest: int,
    is_new: bool,
    is_cpu: bool,
) -> SFTConfig:
    """Make TRL's settings, for ``share`` examples of a step, each of at most ``longest`` tokens."""
    most = max(1, filled_in(training.batch_tokens) // longest)  # examples in one pass
    rows = max(size for size in range(1, share + 1) if share % size == 0 and size <= most)
    return SFTConfig(
        str(folder),
        num_train_epochs=epochs,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=share // rows,
        eval_on_start=is_new,
        learning_rate=filled_in(training.learning_rate),
        lr_scheduler_type="cosine",
        warmup_steps=filled_in(training.warmup_steps),
        weight_decay=training.weight_decay,
        max_grad_norm=training.max_grad_norm,
        gradient_checkpointing=training.gradient_checkpointing,
        bf16=bool(training.bf16),
        tf32=True if training.bf16 and not is_cpu else None,
        seed=training.seed,
        max_length=None,  # no example is cut
        per_device_eval_batch_size=1,  # see prediction_step
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        logging_steps=1,
        logging_nan_inf_filter=False,
        include_num_input_tokens_seen="non_padding",
        disable_tqdm=True,
        report_to="none",
        use_cpu=is_cpu,
        dataloader_pin_memory=not is_cpu,
        ddp_find_unused_parameters=False,
    )


def _to_dataset(samples: Sequence[Sample]) -> Dataset:
    return Dataset.from_dict(
        {
            "input_ids": [[*sample.prompt, *sample.completion] for sample in samples],
            "labels": [[_IGNORED] * len(sample.prompt) + [*sample.completion] for sample in samples],
        }
    )


def _whole_checkpoints(folder: Path) -> list[Path]:
    """List the whole checkpoints, the last one last; the trainer writes its state last."""
    whole: list[Path] = []
    for path in folder.glob("checkpoint-*/trainer_state.json"):
        try:
            json.loads(path.read_text(encoding="utf-8"))
        except ValueError:  # killed while it was written
            continue
        whole.append(path.parent)
    return sorted(whole, key=_step_of)


def _open_run(folder: Path, settings: LogEntry, checkpoints: Sequence[Path]) -> RunState:
    """Open a new run, or an old one at its last checkpoint, with the log cut back to it.

    Raises:
        ConfigError: the folder is of another run.
        RecordError: a file of the run is damaged.
    """
    run = RunState(folder, settings)
    run.cut_log(_step_of(checkpoints[-1]) if checkpoints else -1)
    if checkpoints:
        check_log(folder, _step_of(checkpoints[-1]))
    for checkpoint in checkpoints:
        _check_files(checkpoint)
    return run


def _check_files(checkpoint: Path) -> None:
    """Open the files of a checkpoint that a killed machine may have cut; none is loaded.

    Raises:
        RecordError: one is damaged.
    """
    try:
        for path in checkpoint.glob("*.safetensors"):
            with safe_open(path, framework="pt"):
                pass
        for path in checkpoint.glob("*.pt"):
            torch.load(path, map_location="cpu", mmap=True)
    except (EOFError, RuntimeError, UnpicklingError, SafetensorError) as error:
        raise RecordError(
            f"the checkpoint {str(checkpoint)!r} is damaged ({type(error).__name__}): delete it, and the "
            "training goes on without it"
        ) from error


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


class _Trainer(SFTTrainer):
    """TRL's trainer, whose validation loss is the mean over tokens, like the loss of training.

    On a CPU it computes logits of the replies only. There TRL computes those of the prompts, too, and they
    take more than half of the time of a model with 0.5 billion parameters.
    """

    tokens_per_example: float
    """Mean tokens of the replies in the validation examples."""

    def compute_loss(  # pyright: ignore[reportIncompatibleMethodOverride]  # TRL leaves the types out
        self,
        model: torch.nn.Module,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, object]:
        """Return the mean cross-entropy of the replies' tokens."""
        if not self.args.use_cpu:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        targets = inputs["labels"][:, 1:]
        kept = (targets != _IGNORED).any(0).nonzero().flatten()
        outputs = model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            use_cache=False,
            logits_to_keep=kept,
        )
        total = torch.nn.functional.cross_entropy(
            outputs.logits.flatten(0, 1).float(),
            targets[:, kept].flatten(),
            ignore_index=_IGNORED,
            reduction="sum",
        )
        if num_items_in_batch is None:
            loss = total / (targets != _IGNORED).sum()
        else:  # the tokens of all processes, over which the gradients are averaged
            loss = total / num_items_in_batch * self.accelerator.num_processes
        return (loss, outputs) if return_outputs else loss

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:  # noqa: ANN401 - of optuna
        with disk_errors(Path(filled_in(self.args.output_dir)), (SafetensorError, RuntimeError)):
            super()._save_checkpoint(model, trial)

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, torch.Tensor],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor, None, None]:
        """Weight the loss of an example by its tokens: the trainer averages over examples."""
        loss = super().prediction_step(model, inputs, True, ignore_keys)[0]
        return loss * (inputs["labels"] != _IGNORED).sum() / self.tokens_per_example, None, None


class _Recording(TrainerCallback):
    """Writes the log, asks for checkpoints within an epoch, and ends a training that diverges."""

    def __init__(
        self, run: RunState | None, save_every_s: float, on_entry: Callable[[LogEntry], None]
    ) -> None:
        self._run, self._save_every_s, self._on_entry = run, save_every_s, on_entry
        entries = [] if run is None else read_log(run.folder)
        self._seconds: float = entries[-1]["run_s"] if entries else 0.0
        self._started = 0.0
        self._saved = time.monotonic()
        self._tokens = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self._tokens = state.num_input_tokens_seen
        if state.best_global_step:  # the folder may have been moved since the trainer wrote its state
            state.best_model_checkpoint = f"{args.output_dir}/checkpoint-{state.best_global_step}"

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self._started = time.monotonic()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        # The first process decides: all have to save after the same step.
        (is_due,) = broadcast_object_list([time.monotonic() - self._saved >= self._save_every_s])
        if is_due and state.global_step % (state.max_steps // int(args.num_train_epochs)):
            control.should_save = True

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self._saved = time.monotonic()

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        logs = cast(dict[str, float], kwargs["logs"])
        if "loss" not in logs:
            return
        loss, norm = logs["loss"], logs["grad_norm"]
        if not (math.isfinite(loss) and math.isfinite(norm)):
            other = " or --no-bf16" if args.bf16 else ""
            raise RunFailedError(
                f"the training diverges: in step {state.global_step} the loss is {loss:.3g} and the gradient "
                f"{norm:.3g}; start again with a lower --learning-rate (it was {args.learning_rate:g})"
                f"{other} and another --output-dir"
            )
        seconds = time.monotonic() - self._started
        self._seconds += seconds
        seen = state.num_input_tokens_seen
        tokens, self._tokens = seen - self._tokens, seen
        entry = {
            "kind": "step",
            "step": state.global_step,
            "run_s": round(self._seconds, 1),
            "loss": loss,
            "grad_norm": norm,
            "learning_rate": logs["learning_rate"],
            "tokens_per_s/trained": tokens / max(seconds, 1e-9),
            "time_left_s": round(self._seconds / state.global_step * (state.max_steps - state.global_step)),
        }
        if not args.use_cpu:
            entry["gpu_memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
        self._write(entry)

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        loss, step = cast(dict[str, float], kwargs["metrics"])["eval_loss"], state.global_step
        is_best = state.best_metric is None or loss < state.best_metric
        if step == 0:  # the trainer compares epochs only
            state.best_metric, state.best_global_step = loss, 0
        best = step if is_best else state.best_global_step
        entry = {"kind": "validation", "step": step, "run_s": round(self._seconds, 1), "loss": loss}
        self._write({**entry, "best_step": best})

    def _write(self, entry: LogEntry) -> None:
        if self._run is not None:
            self._run.log(entry)
            self._on_entry(entry)
