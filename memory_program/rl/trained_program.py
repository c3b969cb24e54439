"""The program of a training: the prompts that the weights are trained under, saved beside them.

``optimize.py`` finds prompts, ``train.py --program`` trains weights under them, and ``evaluate.py --program``
runs both: ``program.json`` lies beside the weights (see ``agents.model_prompts``).
"""

from dataclasses import replace
from pathlib import Path

from memory_program.agents.program import MemoryProgram
from memory_program.agents.systems import make_memory_program
from memory_program.configs.train_config import TrainConfig
from memory_program.core.errors import ConfigError
from memory_program.core.json_files import Json, read_json_file
from memory_program.evaluation.seen_data import read_seen_data, save_with_data
from memory_program.models.model_names import model_program
from memory_program.rl.training_data import TrainingSplits

PROGRAM_FILE = "program.json"
"""The program beside weights."""


def make_base_program(config: TrainConfig) -> MemoryProgram:
    """Make the program that a training is compared with: the prompts of its models, or of this version.

    Raises:
        ConfigError: a program beside the weights of a model is damaged.
    """
    return make_memory_program(config.system, writer=config.writer, reader=config.reader)


def make_program(config: TrainConfig) -> tuple[MemoryProgram, list[str]]:
    """Make the program to train, and say in lines in which formats its models reply, besides chat.

    Raises:
        ConfigError: the saved program does not fit.
    """
    models = {"writer": config.writer, "reader": config.reader}
    program = make_memory_program(config.system, **models, program=config.program)
    return program, program.choose_reply_formats(config.system.replies.reply_format, models)


def leave_out_seen(config: TrainConfig, splits: TrainingSplits) -> tuple[TrainingSplits, list[str]]:
    """Leave out of the test split what the prompts of the start were optimised on, and say so in a line.

    The start is ``--program``, and the programs beside the weights of its models.

    Raises:
        ConfigError: nothing is left.
    """
    start = _start_programs(config)
    data = read_seen_data(splits.dataset.sha256, programs=start)
    seen = data.conversations if data is not None else ()
    test = tuple(c for c in splits.test if c.conversation_id not in seen)
    if splits.test and not test:
        programs = ", ".join(repr(str(path)) for path in start)
        raise ConfigError(
            f"the prompts in {programs} were optimised on all {len(splits.test)} test conversations, so that "
            "nothing is left to compare on: optimise on fewer, or train on another dataset"
        )
    left_out = len(splits.test) - len(test)
    line = f"test: {len(test)} conversations, without {left_out} that the prompts were optimised on"
    return replace(splits, test=test), [line] if left_out else []


def save_trained_program(
    program: MemoryProgram, path: Path, config: TrainConfig, splits: TrainingSplits
) -> None:
    """Save a trained program, with the conversations that its prompts and weights were optimised on.

    Raises:
        OSError: the file cannot be written.
    """
    given: Json = read_json_file(config.program) if config.program is not None else {}
    optimization: Json = given.get("metadata", {}).get("optimization", {})
    known = {conversation.conversation_id for conversation in splits.dataset.conversations}
    used = {
        name: [c.conversation_id for c in split if c.conversation_id in known]
        for name, split in (("train", splits.train), ("val", splits.val))
    }
    # generated conversations are in no dataset
    own: Json = {"name": splits.dataset.name, "sha256": splits.dataset.sha256, **used}
    save_with_data(
        program,
        path,
        _start_programs(config),
        own=own if any(used.values()) else None,
        optimization=optimization,
    )


def _start_programs(config: TrainConfig) -> list[Path]:
    """List the saved programs that a training begins with: the given one, and those beside its models."""
    paths = (config.program, model_program(config.writer), model_program(config.reader))
    return list(dict.fromkeys(path for path in paths if path is not None))
