"""A whole training: data, models, the loop, the result saved, and what it is worth."""

import json
import logging
import sys
from contextlib import ExitStack, closing

from rich.console import Console

from locomo.atomic_files import write_folder_whole
from memory_program.agents.program import MemoryProgram
from memory_program.agents.systems import make_system
from memory_program.configs.arbor_config import ArborTrainConfig
from memory_program.configs.evaluate_config import SystemName
from memory_program.configs.train_config import ReevaluateConfig, TrainConfig
from memory_program.core.checkpoints import read_log
from memory_program.core.errors import ConfigError, ModelError
from memory_program.core.run_folder import CONFIG, held
from memory_program.evaluation.report.results_json import write_json
from memory_program.evaluation.scoring.question_scores import Json
from memory_program.rl.base_comparison import compare_with_base, comparison_table
from memory_program.rl.grpo import MemoryGRPO
from memory_program.rl.hub_upload import check_hub, push
from memory_program.rl.mlflow_training import Publisher, make_results, save_result
from memory_program.rl.training_data import Material, example_count, read_material
from memory_program.rl.training_models import (
    check_backend,
    frozen_reader,
    metric_of,
    terms_of,
    trainable_model,
    training_settings,
)
from memory_program.rl.training_progress import Progress, shown_group, validation_summary


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
    progress = _prepared(config, console)
    check_backend(config)
    with ExitStack() as stack:
        stack.enter_context(held(config.output_dir))
        material, program = _read(config, progress)
        if config.dry_run:
            _dry_run(config, program, material, progress)
            return None
        publisher = stack.enter_context(closing(Publisher(config)))
        _train(config, program, material, progress)
        return _evaluated(config, program, material, progress, publisher)


def evaluate_again(config: ReevaluateConfig, *, console: Console | None = None) -> Json:
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
    training = _training_of(config)
    progress = _prepared(training, console)
    with ExitStack() as stack:
        stack.enter_context(held(training.output_dir))
        material, program = _read(training, progress)
        publisher = stack.enter_context(closing(Publisher(training)))
        return _evaluated(training, program, material, progress, publisher)


def _prepared(config: TrainConfig, console: Console | None) -> Progress:
    # DSPy warns of each reply that was cut; they are counted
    logging.getLogger("dspy.clients.lm").setLevel(logging.ERROR)
    check_hub(config.push_to_hub)
    return Progress(console or Console(file=sys.stdout, width=120), config.num_train_steps)


def _read(config: TrainConfig, progress: Progress) -> tuple[Material, MemoryProgram]:
    material = read_material(config)
    progress.say(_announcement(material))
    program = make_system(SystemName.MEMORY.value, config.system_settings)
    assert isinstance(program, MemoryProgram)
    return material, program


def _evaluated(
    config: TrainConfig,
    program: MemoryProgram,
    material: Material,
    progress: Progress,
    publisher: Publisher,
) -> Json:
    comparison = compare_with_base(config, material, progress.console)
    entries = read_log(config.output_dir)
    results = make_results(config, material, entries, comparison)
    save_result(config, program, results)
    progress.console.print(comparison_table(comparison), markup=False)
    progress.say(validation_summary(results["validation"]))
    progress.say(f"saved: {config.result}; how it went: {config.output_dir}")
    publisher.publish(results, entries, program)
    if config.push_to_hub is not None:
        progress.say(f"pushed: {push(config.result, config.push_to_hub)}")
    return results


def _training_of(config: ReevaluateConfig) -> TrainConfig:
    """Take up the settings of a training, with what was decided anew."""
    path, name = config.output_dir / CONFIG, str(config.output_dir)
    if not (config.output_dir / "model").is_dir():
        raise ModelError(
            f"{name!r} holds no trained model: run --mode train first, or name the folder of another run "
            "with --output-dir"
        )
    if not path.is_file():
        raise ConfigError(f"{name!r} lacks {CONFIG}, the settings of a training: name the folder of one")
    saved: Json = json.loads(path.read_text(encoding="utf-8"))
    anew = config.model_dump(mode="json", exclude={"mode"})
    kept = {name for name in ("num_test", "api_base") if anew[name] is None}
    values: Json = {**saved, "mode": "train", **{name: anew[name] for name in anew.keys() - kept}}
    config_type = ArborTrainConfig if saved.get("backend") == "arbor" else TrainConfig
    return config_type(**values)


def _announcement(material: Material) -> str:
    parts = {"learn from": material.train, "choose on": material.val, "test on": material.test}
    counts = [
        f"{len(conversations)} conversations to {what} ({example_count(conversations)} examples)"
        for what, conversations in parts.items()
    ]
    return f"{material.dataset.name}: {', '.join(counts)}"


def _train(config: TrainConfig, program: MemoryProgram, material: Material, progress: Progress) -> None:
    """Train, and write the best weights where they will be looked for, whole or not at all."""
    path, settings = config.output_dir / CONFIG, config.model_dump(mode="json")
    if not path.exists():  # else it holds those of the training until that goes on under these
        write_json(path, settings)
    grpo = _grpo(config, program, material, progress)
    grpo.compile(program, trainset=material.train, valset=material.val)
    write_json(path, settings)
    progress.say(f"training ended: {grpo.ended_by}")
    assert grpo.job is not None, "what was compiled has a job"
    if not (grpo.job.is_ended and config.result.is_dir()):  # else it was brought before the job was ended
        write_folder_whole(config.result, grpo.job.trainer.save_model)
    grpo.job.terminate()
    program.set_lm(None)  # the evaluation loads what was saved: this makes room for it


def _dry_run(config: TrainConfig, program: MemoryProgram, material: Material, progress: Progress) -> None:
    for line in shown_group(
        _grpo(config, program, material, progress).dry_run(program, trainset=material.train)
    ):
        progress.say(line)


def _grpo(config: TrainConfig, program: MemoryProgram, material: Material, progress: Progress) -> MemoryGRPO:
    program.writer.set_lm(trainable_model(config))
    program.reader.set_lm(frozen_reader(config))
    return MemoryGRPO(
        metric_of(config),
        config.output_dir / "dry-run" if config.dry_run else config.output_dir,
        config.grpo_settings,
        training_settings(config, program),
        expert_tokens=material.expert_tokens,
        terms=terms_of(config),
        on_entry=progress.entry,
    )
