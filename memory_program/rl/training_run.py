"""A whole training: data, models, the loop, the result saved, and what it is worth."""

import json
import logging
import sys
from contextlib import ExitStack, closing

from rich.console import Console

from locomo.atomic_files import atomic_write_folder
from memory_program.agents.model_prompts import load_model_prompts
from memory_program.agents.program import MemoryProgram
from memory_program.agents.systems import make_system
from memory_program.configs.arbor_config import ArborTrainConfig
from memory_program.configs.evaluate_config import SystemName
from memory_program.configs.train_config import ReevaluateConfig, TrainConfig
from memory_program.core.checkpoints import read_log
from memory_program.core.errors import ConfigError, ModelError
from memory_program.core.json_files import Json, write_json
from memory_program.core.run_folder import CONFIG_FILE, lock_run_folder
from memory_program.rl.base_comparison import compare_with_base, comparison_table
from memory_program.rl.grpo import MemoryGRPO
from memory_program.rl.hub_upload import check_hub_access, upload_to_hub
from memory_program.rl.mlflow_training import TrainingPublisher, make_training_results, write_model_card
from memory_program.rl.training_data import DataSplits, count_examples, load_data_splits
from memory_program.rl.training_models import (
    check_backend,
    load_frozen_reader,
    load_trainable_model,
    make_answer_metric,
    scoring_settings,
    training_settings,
)
from memory_program.rl.training_progress import TrainingProgress, format_groups, format_validation_gain


def train(config: TrainConfig, *, console: Console | None = None) -> Json | None:
    """Train the writer's weights, save the best, and compare them with what the training began with.

    Args:
        config: what to do.
        console: where progress goes; standard output by default.

    Returns:
        what ``results.json`` in the folder of the run holds; None for a dry run.

    Raises:
        ConfigError: the config does not fit the data or the folder.
        DatasetError: the data cannot be read.
        ModelError: a model cannot be used, or the training diverges.
        RunInUseError: another process works in the folder.
        StoreError: the database fails.
        TrackingError: MLflow fails; everything else is done.
    """
    progress = _set_up_progress(config, console)
    check_backend(config)
    with ExitStack() as stack:
        stack.enter_context(lock_run_folder(config.output_dir))
        material, program = _load_splits_and_program(config, progress)
        if config.dry_run:
            _dry_run(config, program, material, progress)
            return None
        publisher = stack.enter_context(closing(TrainingPublisher(config)))
        _train(config, program, material, progress)
        return _evaluate_and_publish(config, program, material, progress, publisher)


def reevaluate(config: ReevaluateConfig, *, console: Console | None = None) -> Json:
    """Compare what a training made with what it began with, once more.

    Returns:
        what ``results.json`` in the folder of the run holds.

    Raises:
        ConfigError: the settings of the training are not of this version.
        DatasetError: the data cannot be read.
        ModelError: nothing was trained in the folder, or a model cannot be used.
        RunInUseError: another process works in the folder.
        TrackingError: MLflow fails; everything else is done.
    """
    training = _load_train_config(config)
    progress = _set_up_progress(training, console)
    with ExitStack() as stack:
        stack.enter_context(lock_run_folder(training.output_dir))
        material, program = _load_splits_and_program(training, progress)
        publisher = stack.enter_context(closing(TrainingPublisher(training)))
        return _evaluate_and_publish(training, program, material, progress, publisher)


def _set_up_progress(config: TrainConfig, console: Console | None) -> TrainingProgress:
    # DSPy warns of each reply that was cut; they are counted
    logging.getLogger("dspy.clients.lm").setLevel(logging.ERROR)
    check_hub_access(config.push_to_hub)
    return TrainingProgress(console or Console(file=sys.stdout, width=120), config.num_train_steps)


def _load_splits_and_program(
    config: TrainConfig, progress: TrainingProgress
) -> tuple[DataSplits, MemoryProgram]:
    material = load_data_splits(config)
    progress.say(_describe_splits(material))
    program = make_system(SystemName.MEMORY.value, config.system_settings)
    assert isinstance(program, MemoryProgram)
    load_model_prompts(program, writer=config.model, reader=config.reader)
    return material, program


def _evaluate_and_publish(
    config: TrainConfig,
    program: MemoryProgram,
    material: DataSplits,
    progress: TrainingProgress,
    publisher: TrainingPublisher,
) -> Json:
    comparison = compare_with_base(config, material, progress.console)
    entries = read_log(config.output_dir)
    results = make_training_results(config, material, entries, comparison)
    write_model_card(config, results)
    progress.console.print(comparison_table(comparison), markup=False)
    progress.say(format_validation_gain(results["validation"]))
    progress.say(f"saved: {config.trained_folder}; how it went: {config.output_dir}")
    publisher.publish(results, entries, program)
    if config.push_to_hub is not None:
        progress.say(f"pushed: {upload_to_hub(config.trained_folder, config.push_to_hub)}")
    return results


def _load_train_config(config: ReevaluateConfig) -> TrainConfig:
    """Take up the settings of a training, with what was decided anew."""
    path, name = config.output_dir / CONFIG_FILE, str(config.output_dir)
    if not (config.output_dir / "model").is_dir():
        raise ModelError(
            f"{name!r} holds no trained model: run --mode train first, or name the folder of another run "
            "with --output-dir"
        )
    if not path.is_file():
        raise ConfigError(f"{name!r} lacks {CONFIG_FILE}, the settings of a training: name the folder of one")
    saved: Json = json.loads(path.read_text(encoding="utf-8"))
    anew = config.model_dump(mode="json", exclude={"mode"})
    kept = {name for name in ("num_test", "api_base") if anew[name] is None}
    values: Json = {**saved, "mode": "train", **{name: anew[name] for name in anew.keys() - kept}}
    config_type = ArborTrainConfig if saved.get("backend") == "arbor" else TrainConfig
    return config_type(**values)


def _describe_splits(material: DataSplits) -> str:
    parts = {"learn from": material.train, "choose on": material.val, "test on": material.test}
    counts = [
        f"{len(conversations)} conversations to {what} ({count_examples(conversations)} examples)"
        for what, conversations in parts.items()
    ]
    return f"{material.dataset.name}: {', '.join(counts)}"


def _train(
    config: TrainConfig, program: MemoryProgram, material: DataSplits, progress: TrainingProgress
) -> None:
    """Train, and write the best weights where they will be looked for, whole or not at all."""
    path, settings = config.output_dir / CONFIG_FILE, config.model_dump(mode="json")
    if not path.exists():  # else it holds those of the training until that goes on under these
        write_json(path, settings)
    grpo = _make_grpo(config, program, material, progress)
    grpo.compile(program, trainset=material.train, valset=material.val)
    write_json(path, settings)
    progress.say(f"training ended: {grpo.ended_by}")
    assert grpo.job is not None, "what was compiled has a job"
    if not (
        grpo.job.is_ended and config.trained_folder.is_dir()
    ):  # else it was brought before the job was ended
        atomic_write_folder(config.trained_folder, grpo.job.trainer.save_model)
    if not (config.trained_folder / "program.json").exists():  # the evaluation asks under these prompts
        program.save(str(config.trained_folder / "program.json"))
    grpo.job.terminate()
    program.set_lm(None)  # the evaluation loads what was saved: this makes room for it


def _dry_run(
    config: TrainConfig, program: MemoryProgram, material: DataSplits, progress: TrainingProgress
) -> None:
    for line in format_groups(
        _make_grpo(config, program, material, progress).dry_run(program, trainset=material.train)
    ):
        progress.say(line)


def _make_grpo(
    config: TrainConfig, program: MemoryProgram, material: DataSplits, progress: TrainingProgress
) -> MemoryGRPO:
    program.writer.set_lm(load_trainable_model(config))
    program.reader.set_lm(load_frozen_reader(config))
    return MemoryGRPO(
        make_answer_metric(config),
        config.output_dir / "dry-run" if config.dry_run else config.output_dir,
        config.grpo_settings,
        training_settings(config, program),
        expert_tokens=material.expert_tokens,
        extra_resume_settings=scoring_settings(config),
        on_entry=progress.entry,
    )
