"""A whole training: load data and models, train, save the result, compare it with its start."""

import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from locomo.atomic_files import atomic_write_folder
from memory_program.agents.program import MemoryProgram
from memory_program.configs.arbor_config import ArborJobSettings, ArborTrainConfig
from memory_program.configs.endpoints import Role
from memory_program.configs.train_config import ReevaluateConfig, TrainConfig
from memory_program.configs.trainer_groups import Part
from memory_program.core.checkpoints import LogEntry, check_log, last_checkpoint_step, read_log
from memory_program.core.errors import ConfigError, ModelError
from memory_program.core.gpus import count_processes
from memory_program.core.json_files import Json, read_run_file, write_json
from memory_program.core.run_folder import CONFIG_FILE, lock_run_folder
from memory_program.evaluation.datasets import load_worlds
from memory_program.models.model_names import OBSERVATIONS, is_local
from memory_program.models.usage import silence_truncation_warnings
from memory_program.rl.backends.local_backend import require_local_engine
from memory_program.rl.base_comparison import compare_with_base, comparison_table
from memory_program.rl.grpo import MemoryGRPO
from memory_program.rl.hub_upload import check_hub_access, upload_to_hub
from memory_program.rl.mlflow_training import TrainingPublisher, make_training_results, write_model_card
from memory_program.rl.rewards import make_reward_rule
from memory_program.rl.rollouts import get_policy_lm
from memory_program.rl.trained_program import (
    PROGRAM_FILE,
    leave_out_seen,
    make_program,
    save_trained_program,
)
from memory_program.rl.trainer.policy_step import follow_training
from memory_program.rl.trainer.processes import join_processes, leave_processes
from memory_program.rl.training_data import (
    TrainingSplits,
    check_examples,
    check_not_taught,
    count_examples,
    inherit_sft_conversations,
    load_training_splits,
    read_expert_lengths,
)
from memory_program.rl.training_models import (
    check_backend,
    check_prices,
    complete_training,
    load_frozen_model,
    load_trainable_model,
    make_answer_metric,
    scoring_settings,
    training_settings,
)
from memory_program.rl.training_progress import TrainingProgress, format_groups, format_validation_gain
from memory_program.worlds.observation_expert import observations_lm


def train(config: TrainConfig, *, console: Console | None = None) -> Json | None:
    """Train the weights of writer or reader, save the best ones, and compare them with the base model.

    Of several processes (torchrun), all but the first only share the updates.

    Args:
        config: the settings.
        console: for progress; standard output by default.

    Returns:
        the content of ``results.json`` in the run's folder; None for a dry run, and in the other processes.

    Raises:
        ConfigError: the config does not fit the data or the folder, or its limit in dollars the models.
        DatasetError: the data cannot be read.
        ModelError: a model cannot be used.
        RecordError: a file of the run is damaged.
        RunFailedError: the training diverges, or a model fails after it began.
        RunInUseError: another process works in the folder.
        StoreError: the database fails.
        TrackingError: MLflow fails; everything else is done.
    """
    if isinstance(config, ArborTrainConfig) and count_processes() > 1:
        raise ConfigError(
            "torchrun starts this command once for each GPU, and those of --backend arbor belong to its "
            "server: start it with 'python', or train with --backend local"
        )
    if join_processes():
        follow_training()
        leave_processes()
        return None
    make_reward_rule(config.grpo.rewards)  # refuses an unknown tool before anything is loaded
    progress = _set_up_progress(config, console)
    check_prices(config)
    check_backend(config, progress.say)
    splits, program = _load_splits_and_program(config, progress)
    if not isinstance(config, ArborTrainConfig):
        config = complete_training(config, "rl", progress.say)
    with ExitStack() as stack:
        stack.enter_context(silence_truncation_warnings())
        stack.enter_context(lock_run_folder(config.output_dir))
        if config.dry_run:
            grpo = _make_grpo(config, config.parts[0], program, splits, progress)
            for line in format_groups(grpo.dry_run(program, trainset=splits.train)):
                progress.say(line)
            leave_processes()
            return None
        publisher = stack.enter_context(TrainingPublisher(config, splits, progress.say))
        path, settings = config.output_dir / CONFIG_FILE, config.model_dump(mode="json")
        if not path.exists():  # an existing one describes the training until that resumes with this config
            write_json(path, settings)
        for part in config.parts:
            _train_part(config, part, program, splits, progress, publisher)
            write_json(path, settings)
        leave_processes()
        return _evaluate_and_publish(config, program, splits, progress, publisher)


def _train_part(
    config: TrainConfig,
    part: Part,
    program: MemoryProgram,
    splits: TrainingSplits,
    progress: TrainingProgress,
    publisher: TrainingPublisher,
) -> None:
    """Train one part of a program, and save its best weights with the program; the other part is frozen."""
    grpo = _make_grpo(config, part, program, splits, progress, publisher)
    grpo.compile(program, trainset=splits.train, valset=splits.val)
    progress.say(f"training ended: {grpo.ended_by}")
    job, folder = grpo.job, config.weights_folder(part)
    assert job is not None, "compile sets the job"

    def save(draft: Path) -> None:
        job.trainer.save_model(draft)
        save_trained_program(program, draft / PROGRAM_FILE, config, splits)
        inherit_sft_conversations(config.model, draft)

    # the result of an ended job may have been saved before the job ended
    if not (job.is_ended and folder.is_dir()):
        config.trained_folder.parent.mkdir(parents=True, exist_ok=True)
        if part == "reader":
            config.trained_folder.mkdir(exist_ok=True)
            save_trained_program(program, config.trained_folder / PROGRAM_FILE, config, splits)
        atomic_write_folder(folder, save)
    job.terminate()
    policy = get_policy_lm(program, part)
    if is_local(policy.model):
        require_local_engine(policy).close()
    program.set_lm(None)  # free the memory: whatever comes next loads the saved model


def reevaluate(config: ReevaluateConfig, *, console: Console | None = None) -> Json:
    """Compare the result of a training with its base model once more.

    Returns:
        the content of ``results.json`` in the run's folder.

    Raises:
        ConfigError: the settings of the training are missing, or not of this version.
        DatasetError: the data cannot be read.
        ModelError: the folder holds no trained model, or a model cannot be used.
        RecordError: a file of the run is damaged.
        RunInUseError: another process works in the folder.
        TrackingError: MLflow fails; everything else is done.
    """
    path, name = config.output_dir / CONFIG_FILE, str(config.output_dir)
    if not (config.output_dir / "model").is_dir():
        raise ModelError(
            f"{name!r} holds no trained model: run --mode train first, or name the folder of another run "
            "with --output-dir"
        )
    if not path.is_file():
        raise ConfigError(f"{name!r} lacks {CONFIG_FILE}, the settings of its training: name another folder")
    saved = read_run_file(path, "the same command of --mode train writes it again")
    given = config.model_dump(mode="json", exclude={"mode"})
    inherited = {
        name for name in ("num_test", "api_base", "reader_api_base", "judge_api_base") if given[name] is None
    }
    values: Json = {**saved, "mode": "train", **{name: given[name] for name in given.keys() - inherited}}
    config_type = ArborTrainConfig if saved.get("backend") == "arbor" else TrainConfig
    training = config_type(**values)
    for part in training.parts:
        if not training.weights_folder(part).is_dir():
            raise ModelError(
                f"{name!r} holds no trained {part} yet: its training was stopped; run the same command of "
                "--mode train again, which continues it"
            )
    for folder in map(training.part_folder, training.parts):
        check_log(folder, last_checkpoint_step(folder))
    progress = _set_up_progress(training, console)
    with ExitStack() as stack:
        stack.enter_context(silence_truncation_warnings())
        stack.enter_context(lock_run_folder(training.output_dir))
        splits, program = _load_splits_and_program(training, progress)
        publisher = stack.enter_context(TrainingPublisher(training, splits, progress.say))
        return _evaluate_and_publish(training, program, splits, progress, publisher)


def _set_up_progress(config: TrainConfig, console: Console | None) -> TrainingProgress:
    check_hub_access(config.push_to_hub)
    return TrainingProgress(console or Console(file=sys.stdout, width=120), config.grpo.num_train_steps)


def _load_splits_and_program(
    config: TrainConfig, progress: TrainingProgress
) -> tuple[TrainingSplits, MemoryProgram]:
    seed = config.trainer.optimizer.seed
    splits = load_training_splits(
        config.source,
        seed,
        config.num_train,
        config.num_val,
        config.part,
        answerable_only=config.answerable_only,
    )
    splits, lines = leave_out_seen(config, splits)
    check_examples(splits, config.part, answerable_only=config.answerable_only)
    if config.target != "reader":  # a reader gains on what its fine-tuning taught, see docs/results.md
        check_not_taught(config.model, splits.train)
    trajectories = config.grpo.rewards.expert_trajectories
    if trajectories is not None:
        splits = replace(splits, expert_lengths=read_expert_lengths(trajectories))
        trained = [conversation.conversation_id for conversation in splits.train]
        recorded = {name for name, _ in splits.expert_lengths}
        if not recorded.intersection(trained):
            raise ConfigError(
                f"expert_trajectories={str(trajectories)!r} has {', '.join(sorted(recorded)[:5])}, and none "
                f"of the conversations to train on ({', '.join(trained[:5])}): record those, with --mode "
                "trajectories and the same --split and --conversations"
            )
    counts = [
        f"{len(conversations)} {name} conversations ({count_examples(conversations)} examples)"
        for name, conversations in (
            ("training", splits.train),
            ("validation", splits.val),
            ("test", splits.test),
        )
    ]
    progress.say(f"{splits.dataset.name}: {', '.join(counts)}")
    program, formats = make_program(config)
    for line in (*lines, *config.grading.describe_default(), *formats):
        progress.say(line)
    return splits, program


def _make_grpo(
    config: TrainConfig,
    part: Part,
    program: MemoryProgram,
    splits: TrainingSplits,
    progress: TrainingProgress,
    publisher: TrainingPublisher | None = None,
) -> MemoryGRPO:
    def report(entry: LogEntry) -> None:
        progress.entry(entry)
        if publisher is not None:
            publisher.log_entry(entry, part)

    folder, metric = config.part_folder(part), make_answer_metric(config)
    # the frozen model first: a wrong name or a missing key shows before the weights are loaded
    if part == "writer":
        program.reader.set_lm(load_frozen_model(config, Role.READER, config.reader))
        program.writer.set_lm(load_trainable_model(config, folder))
    else:
        is_trained = "writer" in config.parts
        writer = f"local:{config.weights_folder('writer')}" if is_trained else config.writer
        if writer == OBSERVATIONS:
            conversations = (*splits.train, *splits.val)
            program.writer.set_lm(observations_lm(conversations))
        else:
            program.writer.set_lm(load_frozen_model(config, Role.WRITER, writer))
        program.reader.set_lm(load_trainable_model(config, folder))
        progress.say(f"the reader is trained from {config.model}; {writer} writes")
    training = training_settings(config, program, part)
    if isinstance(training, ArborJobSettings):
        progress.say(training.describe_batch())
    begin = publisher.begin if publisher is not None and part == config.parts[0] else lambda: None
    return MemoryGRPO(
        metric,
        folder / "dry-run" if config.dry_run else folder,
        config.timed_grpo,
        training,
        expert_tokens=splits.expert_tokens,
        extra_resume_settings=scoring_settings(config),
        on_start=begin,
        on_entry=report,
        target=part,
        worlds=tuple(splits.worlds.values()) or load_worlds(config.source, config.trainer.optimizer.seed),
    )


def _evaluate_and_publish(
    config: TrainConfig,
    program: MemoryProgram,
    splits: TrainingSplits,
    progress: TrainingProgress,
    publisher: TrainingPublisher,
) -> Json:
    comparison = compare_with_base(config, splits, progress.console)
    logs: dict[Part, list[LogEntry]] = {part: read_log(config.part_folder(part)) for part in config.parts}
    results = make_training_results(config, splits, logs, comparison)
    write_model_card(config, results)
    progress.console.print(comparison_table(comparison), markup=False)
    for part in config.parts:
        gain = format_validation_gain(results["trainings"][part]["validation"])
        progress.say(gain if len(config.parts) == 1 else f"{part}: {gain}")
    progress.say(f"saved: {config.trained_folder}; log and plots: {config.output_dir}")
    publisher.publish(results, logs, program)
    if config.push_to_hub is not None:
        progress.say(f"uploaded: {upload_to_hub(config.trained_folder, config.push_to_hub)}")
    return results
