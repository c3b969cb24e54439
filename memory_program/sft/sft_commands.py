"""The steps before RL: record an expert's trajectories, fine-tune on them, and export both."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import dspy
import torch
from rich.console import Console
from safetensors import SafetensorError

from locomo.atomic_files import atomic_write_folder, atomic_write_text
from memory_program.agents.program import MemoryProgram
from memory_program.agents.systems import make_memory_program
from memory_program.configs.endpoints import Role
from memory_program.configs.groups import tracked_params
from memory_program.configs.sft_config import (
    ORACLE_EXPERT,
    ExportConfig,
    FineTuneConfig,
    SynthesizeConfig,
    TrajectoriesConfig,
)
from memory_program.core.adapter_config import ADAPTER_FOLDER
from memory_program.core.checkpoints import LogEntry, read_log
from memory_program.core.errors import ConfigError, ModelError, RunFailedError
from memory_program.core.extras import name_missing_extra
from memory_program.core.hashing import content_hash
from memory_program.core.json_files import write_json
from memory_program.core.provenance import provenance_tags
from memory_program.core.run_folder import SFT_CONVERSATIONS_FILE, lock_run_folder
from memory_program.evaluation.role_models import check_template_arguments
from memory_program.evaluation.seen_data import read_sft_conversations, save_with_data
from memory_program.inference.engine import default_device
from memory_program.inference.frozen_adapters import merge_frozen_adapters
from memory_program.inference.loading import load_model, silence_transformers
from memory_program.models.factory import AdaptiveLimiter, check_model, language_model
from memory_program.models.model_names import OBSERVATIONS, model_program
from memory_program.models.reply_settings import ReplyFormat
from memory_program.rl.backends.local_backend import require_local_engine
from memory_program.rl.rewards import build_answer_metric
from memory_program.rl.trained_program import PROGRAM_FILE
from memory_program.rl.trainer.adapters import disk_errors
from memory_program.rl.training_data import (
    load_synthesis_conversations,
    load_training_splits,
)
from memory_program.rl.training_models import complete_training, needs_float32, reload_in_float32
from memory_program.sft.exports import find_verl_model, write_llamafactory, write_verl
from memory_program.sft.program_examples import reader_examples, writer_examples
from memory_program.sft.question_synthesis import QuestionSynthesizer
from memory_program.sft.session_lines import SessionLine, session_file
from memory_program.sft.sft_training import SftExample, SftSplit, sft_examples, split_by_conversation
from memory_program.sft.trajectories import conversation_keys, read_trajectories, record_trajectories
from memory_program.tracking import CurvePoints, RunTracker, TrackedRun
from memory_program.worlds import as_locomo_json
from memory_program.worlds.observation_expert import expert_of_observations
from memory_program.worlds.oracle import oracle_lm


def collect_trajectories(
    config: TrajectoriesConfig, console: Console | None = None, *, expert: dspy.LM | None = None
) -> None:
    """Record an expert writing the memories of conversations; ``expert`` overrides the config's model.

    Raises:
        ConfigError: the config does not fit the data.
        ModelError: the expert cannot be used.
        RecordError: the folder holds other trajectories.
        RunFailedError: calls failed; finished sessions are kept.
    """
    say = _make_printer(console)
    splits = load_training_splits(config.source, config.seed, config.num_train, part=config.part)
    program = make_memory_program(config.system, writer=config.model, program=config.program)
    if config.model not in (ORACLE_EXPERT, OBSERVATIONS):
        flag, models = config.system.replies.reply_format, {"writer": config.model}
        for line in program.choose_reply_formats(flag, models):
            say(line)
    if program.writer.replies.format is ReplyFormat.TOOLS:
        raise ConfigError(
            "reply_format=tools: trajectories record the text of replies, and native calls have none; record "
            "them with --reply-format json"
        )
    if expert is None and config.model == ORACLE_EXPERT:
        expert = oracle_lm(list(splits.worlds.values()))
    elif expert is None and config.model == OBSERVATIONS:
        expert = expert_of_observations(program, splits.train)
    elif expert is None:
        check_template_arguments(config, [(Role.WRITER, config.model)])
        limiter = AdaptiveLimiter(config.concurrency)
        expert = language_model(
            config.model,
            api_base=config.api_base,
            max_tokens=config.max_completion_tokens,
            limiter=limiter,
            chat_template_kwargs=config.system.replies.settings().chat_template_kwargs,
        )
        check_model(expert)
    program.writer.set_lm(expert)
    with lock_run_folder(config.output_dir):
        prompts = config.output_dir / PROGRAM_FILE
        if not prompts.exists():  # before the first session: fine-tuning checks what a killed run recorded
            save_with_data(program, prompts, [config.program])
        found = record_trajectories(
            program,
            splits.train,
            config.output_dir,
            threads=config.concurrency,
            skip_existing=config.skip_existing,
            temperature=config.temperature,
            max_tokens=config.max_completion_tokens,
        )
        save_with_data(program, prompts, [config.program])
    sessions = sum(collected.sessions for collected in found)
    say(f"{sessions:,} sessions of {len(found)} conversations: {config.output_dir}")
    files = {session_file(config.output_dir, conversation.conversation_id) for conversation in splits.train}
    others = set(config.output_dir.glob("*.jsonl")) - files
    if others:
        say(f"and {len(others)} conversations of earlier commands, which sft and export take, too")
    _check_finished([collected.failure for collected in found])


def synthesize_questions(config: SynthesizeConfig, console: Console | None = None) -> None:
    """Let a strong model write questions about conversations, and save those that pass the checks.

    Raises:
        ConfigError: the config does not fit the data.
        ModelError: the model cannot be used.
        RecordError: the folder holds other questions.
        RunFailedError: calls failed; finished sessions are kept.
    """
    say = _make_printer(console)
    conversations = load_synthesis_conversations(config.source, config.seed, config.num_train, config.part)
    lm = language_model(
        config.model,
        api_base=config.api_base,
        max_tokens=config.max_completion_tokens,
        limiter=AdaptiveLimiter(config.concurrency),
    )
    check_model(lm)
    with lock_run_folder(config.output_dir):
        synthesizer = QuestionSynthesizer(lm, build_answer_metric("f1"), config.questions)
        found = synthesizer.synthesize(conversations, config.output_dir, threads=config.concurrency)
        path = config.output_dir / "conversations.json"
        samples = as_locomo_json([one.conversation for one in found])
        atomic_write_text(path, json.dumps(samples, indent=1) + "\n")
    kept = sum(len(one.conversation.questions) for one in found)
    rejected = sum((one.rejected for one in found), Counter[str]())
    told = ", ".join(f"{count} {reason}" for reason, count in sorted(rejected.items())) or "none"
    say(f"{kept:,} questions of {len(found)} conversations: {path}; rejected: {told}")
    _check_finished([one.failure for one in found])


def fine_tune_parts(config: FineTuneConfig, console: Console | None = None) -> None:
    """Fine-tune a writer on an expert's trajectories, a reader on gold answers, or both, and save the model.

    Raises:
        ConfigError: the config does not fit the trajectories or the folder.
        ModelError: the model cannot be trained.
        RecordError: there are no trajectories, or a file of the run is damaged.
        RunFailedError: the training diverges.
        TrackingError: MLflow refuses something; the model is saved.
    """
    with name_missing_extra("train"):
        from accelerate import PartialState

        from memory_program.sft.trl_training import fine_tune  # slow, and needed by this mode only
    process = PartialState(cpu=default_device() == "cpu")  # each of several processes gets its own GPU
    is_main, gpus = process.is_main_process, torch.cuda.device_count()
    if process.num_processes == 1 and gpus > 1:
        raise ConfigError(
            f"{gpus} GPUs are visible to one process: start this command with CUDA_VISIBLE_DEVICES=0 to use "
            f"one, or with 'torchrun --nproc-per-node {gpus}' in place of 'python' to use all"
        )
    say = _make_printer(console if is_main else Console(quiet=True))
    config = complete_training(config, "sft", say)
    lines, folder = read_trajectories(config.trajectories), config.output_dir
    program, lessons = _make_lessons(config, lines, say)
    taught = sorted({*conversation_keys(lines), *read_sft_conversations(config.model)})
    data = {"name": config.trajectories.name, "sha256": content_hash(lessons.train, lessons.val)}
    tracked = TrackedRun(
        f"sft {config.model} on {data['name']}",
        tracked_params(config),
        provenance_tags(data),
        {**data, "context": "training"},
    )
    say(f"{len(lessons.train):,} examples to learn from, {len(lessons.val):,} to validate on")
    uri, is_on = config.tracking.tracking_uri, config.tracking.mlflow and is_main
    with (
        lock_run_folder(folder) if is_main else nullcontext(),
        RunTracker("train.py --mode sft", folder, uri, say, "the same command", is_on=is_on) as tracker,
    ):

        def begin() -> None:
            tracker.start(tracked)
            for entry in read_log(folder):
                tracker.log_points(CurvePoints.from_entry(entry))

        def report(entry: LogEntry) -> None:
            told = f"loss {entry['loss']:.4f}"
            if entry["kind"] == "validation":
                say(f"validation after {entry['step']} steps: {told}")
            else:
                say(f"step {entry['step']}: {told}, {entry['tokens_per_s/trained']:,.0f} tokens/s")
            tracker.log_points(CurvePoints.from_entry(entry))

        lm = language_model(
            config.model, chat_template_kwargs=config.system.replies.settings().chat_template_kwargs
        )
        lm = reload_in_float32(lm) if needs_float32(config.optimizer) else lm
        sizes = {"epochs": config.epochs, "batch": config.batch}
        save = fine_tune(lm, lessons, folder, config.optimizer, **sizes, on_start=begin, on_entry=report)
        if is_main:
            _save_model(config, program, save, taught)
            say(f"saved: {config.weights_folder}")
            entries = read_log(folder)
            best = min((e for e in entries if e["kind"] == "validation"), key=lambda entry: entry["loss"])
            tracker.finish(
                content_hash(entries[-1]),
                replace(tracked, metrics={"best_loss": best["loss"], "best_step": float(best["step"])}),
                curves=map(CurvePoints.from_entry, entries),
            )
        require_local_engine(lm).close()
    process.destroy_process_group()


def _make_lessons(
    config: FineTuneConfig, lines: Sequence[SessionLine], say: Callable[[str], None]
) -> tuple[MemoryProgram, SftSplit]:
    """Return the program whose parts are taught, the given one or that of the trajectories, and its examples.

    Raises:
        ConfigError: the program cannot be used, the expert's replies have another format than asked for, or
            the prompts of the trajectories are not those that inference sends.
    """
    folder, flag, missed = config.trajectories, config.system.replies.reply_format, 0
    prompts = config.program or folder / PROGRAM_FILE
    # trajectories of earlier versions lack it
    program = make_memory_program(config.system, program=prompts if prompts.is_file() else None)
    if config.program is None and len({line["prompts"] for line in lines if "prompts" in line}) > 1:
        raise ConfigError(
            f"the trajectories in {str(folder)!r} were recorded with several sets of prompts: name a folder "
            "with one, or train under one of them with --program"
        )
    recorded = program.writer.replies.format
    if config.target != "reader" and flag not in (None, recorded):
        raise ConfigError(
            f"reply_format={flag} differs from that of the recorded replies, {recorded}: leave it out, or "
            f"record them again with --mode trajectories --reply-format {flag}"
        )
    if config.target != "writer" and flag is not None:
        program.reader.replies = replace(program.reader.replies, format=flag)
    if config.program is None and config.target != "reader" and prompts.is_file():
        # of a session with one call for each agent: other prompts depend on the replies
        agents = len(program.writer.agents)
        whole = [
            line
            for line in lines
            if len(line["calls"]) == agents and all(c["is_valid"] for c in line["calls"])
        ]
        found, current = sft_examples(whole[:1]), writer_examples(program, whole[:1])
        if [e["messages"][0] for e in found] != [e["messages"][0] for e in current]:
            raise ConfigError(
                f"the prompts in {str(folder)!r} have other instructions, tools or another reply format "
                "than this command: record them again with --mode trajectories, or train under the current "
                f"prompts with --program {prompts}"
            )

    def make_examples(lines: Sequence[SessionLine]) -> list[SftExample]:
        nonlocal missed
        examples: list[SftExample] = []
        if config.target != "reader":
            examples += sft_examples(lines) if config.program is None else writer_examples(program, lines)
        if config.target != "writer":
            answers = reader_examples(program, lines, answerable_only=config.answerable_only)
            missed += answers.missed
            examples += answers.examples
        return examples

    lessons = split_by_conversation(lines, config.held_out, config.optimizer.seed, make_examples)
    if missed:
        say(f"{missed:,} questions are left out: retrieval does not find what answers them")
    return program, lessons


def _save_model(
    config: FineTuneConfig, program: MemoryProgram, save: Callable[[Path], None], taught: Sequence[str]
) -> None:
    """Save the weights with their program and the conversations that taught them."""
    prompts = config.program or config.trajectories / PROGRAM_FILE
    has_prompts, earlier = prompts.is_file(), [prompts, model_program(config.model)]

    def write(draft: Path) -> None:
        save(draft)
        write_json(draft / SFT_CONVERSATIONS_FILE, {"conversations": list(taught)})
        if has_prompts:  # trajectories of earlier versions lack them
            save_with_data(program, draft / PROGRAM_FILE, earlier)

    config.weights_folder.parent.mkdir(parents=True, exist_ok=True)
    if config.target == "reader" and has_prompts:
        save_with_data(program, config.weights_folder.parent / PROGRAM_FILE, earlier)
    atomic_write_folder(config.weights_folder, write)


def export_to_format(config: ExportConfig, console: Console | None = None) -> None:
    """Export trajectories, or a trained model, in the format of another tool.

    Raises:
        ModelError: the model cannot be read, or not be written in the format.
        RecordError: there are no trajectories, or they have nothing to export.
    """
    say = _make_printer(console)
    folder = config.output_dir / ("hf" if config.from_verl is not None else config.format)
    if folder.resolve() == (config.from_verl or config.model).resolve():
        raise ConfigError(
            f"{str(folder)!r} is the model to export, and would be written over: name another --output-dir"
        )
    if config.from_verl is not None or config.format == "hf":
        source = config.model if config.from_verl is None else find_verl_model(config.from_verl)
        model = load_model(str(source), "cpu", torch.bfloat16)
        merge_frozen_adapters(model.network)
        with _written_beside(folder) as draft, silence_transformers(), disk_errors(folder, SafetensorError):
            model.network.save_pretrained(draft)
            model.tokenizer.save_pretrained(draft)
        taught_in = config.model if config.from_verl is None else config.trajectories
        if _copy_program(taught_in, folder):
            say(f"its program is that of {taught_in}")
        say(f"saved: {folder}; vllm serve {folder}")
        return
    if config.format == "gguf":
        if find_spec("gguf") is None:
            raise ModelError("--format gguf needs the package gguf: pip install gguf")
        from memory_program.sft.gguf_export import write_gguf

        model = load_model(str(config.model), "cpu", torch.bfloat16)
        merge_frozen_adapters(model.network)
        path = folder / "model.gguf"
        with _written_beside(folder) as draft:
            write_gguf(model, config.model.resolve().name, draft / path.name)
        _copy_program(config.model, folder)
        say(f"saved: {path}")
        return
    lines = read_trajectories(config.trajectories)
    if config.format == "llamafactory":
        say(f"saved: {', '.join(str(path) for path in write_llamafactory(lines, folder))}")
        return
    path = folder / f"by_{config.by}.parquet"
    say(f"saved: {write_verl(lines, path, config.by):,} rows in {path}")


@contextmanager
def _written_beside(folder: Path) -> Generator[Path]:
    """Give a folder to write into, whose files then replace those of ``folder``; others stay in it."""
    draft = folder.with_name(f"{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        yield draft
        folder.mkdir(exist_ok=True)
        for file in draft.iterdir():
            file.replace(folder / file.name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _copy_program(source: Path, folder: Path) -> bool:
    """Copy a model's program beside its exported weights, in place of an earlier one; False if it has none.

    The list of the conversations that taught it is copied, too: an evaluation warns about them.
    """
    for name in (PROGRAM_FILE, SFT_CONVERSATIONS_FILE):
        (folder / name).unlink(missing_ok=True)
        places = [source, source.parent] if source.name == ADAPTER_FOLDER else [source]
        found = [place / name for place in places if (place / name).is_file()]
        if found:
            shutil.copy(found[0], folder / name)
    return (folder / PROGRAM_FILE).is_file()


def _check_finished(failures: Sequence[str | None]) -> None:
    lost = [failure for failure in failures if failure is not None]
    if lost:
        raise RunFailedError(
            f"{len(lost)} conversations are not finished, for calls failed (the first: {lost[0]}); "
            "what is done is kept: the same command goes on from there"
        )


def _make_printer(console: Console | None) -> Callable[[str], None]:
    shown = console or Console(width=120)
    return partial(shown.print, highlight=False, markup=False, soft_wrap=True)
