"""The systems by name."""

from collections.abc import Callable
from pathlib import Path

import dspy

from memory_program.agents.baselines.extractive import ExtractiveSystem
from memory_program.agents.baselines.observation_system import ObservationSystem
from memory_program.agents.baselines.reader_only import ReaderOnly
from memory_program.agents.context import FullContext, MemoryContext, NoContext
from memory_program.agents.model_prompts import load_model_prompts
from memory_program.agents.program import MemoryProgram, MemorySystem
from memory_program.agents.reader import QAReader
from memory_program.agents.writer import MemoryWriter
from memory_program.configs.groups import SystemSettings
from memory_program.core.errors import ConfigError
from memory_program.core.json_files import read_json_file


def _context(settings: SystemSettings, *, with_memories: bool, with_archive: bool) -> MemoryContext:
    retrieval = settings.retrieval
    return MemoryContext(
        retrieval.top_k,
        retrieval.reader_budget,
        retrieval.min_relative_score,
        with_memories=with_memories,
        with_archive=with_archive,
        adds_dates=settings.reader.add_dates,
    )


def _memory(settings: SystemSettings) -> MemorySystem:
    writer, reader = settings.writer, settings.reader
    return MemoryProgram(
        MemoryWriter(
            writer.writer_mode,
            writer.writer_max_turns,
            writer.memory_budget,
            replies=settings.replies.settings(),
            checks_grounding=writer.grounding_check,
        ),
        QAReader(
            _context(settings, with_memories=True, with_archive=reader.with_verbatim_turns),
            reader.max_searches,
            settings.replies.settings(),
        ),
    )


SYSTEMS: dict[str, Callable[[SystemSettings], MemorySystem]] = {
    "memory": _memory,
    "optimized": _memory,
    "rag": lambda settings: ReaderOnly(
        _context(settings, with_memories=False, with_archive=True),
        settings.reader.max_searches,
        settings.replies.settings(),
    ),
    "observations": lambda settings: ObservationSystem(
        _context(settings, with_memories=True, with_archive=False),
        settings.reader.max_searches,
        settings.replies.settings(),
    ),
    "full-context": lambda settings: ReaderOnly(
        FullContext(settings.reader.full_context_tokens, settings.reader.add_dates),
        replies=settings.replies.settings(),
    ),
    "no-memory": lambda settings: ReaderOnly(NoContext(), replies=settings.replies.settings()),
    "extractive": lambda settings: ExtractiveSystem(reader_budget=settings.retrieval.reader_budget),
}
"""Every system that can be evaluated. To add one: a MemorySystem, its name in the config, a line here."""


def make_system(
    name: str, settings: SystemSettings, *, writer_lm: dspy.LM | None = None, reader_lm: dspy.LM | None = None
) -> MemorySystem:
    """Build a system by name.

    Args:
        name: a key of ``SYSTEMS``.
        settings: the settings of its writer and reader.
        writer_lm: the model that writes memories; None uses ``dspy.settings``.
        reader_lm: the model that answers; None uses ``dspy.settings``.

    A model that was trained here is given the prompts of its training (see ``model_prompts``).

    Raises:
        ConfigError: there is no system of that name, or the prompts beside a model's weights are damaged.
    """
    if name not in SYSTEMS:
        raise ConfigError(f"unknown system {name!r}: choose from {', '.join(SYSTEMS)}")
    system = SYSTEMS[name](settings)
    set_models(system, writer_lm=writer_lm, reader_lm=reader_lm)
    writer, reader = (None if lm is None else lm.model for lm in (writer_lm, reader_lm))
    load_model_prompts(system, writer=writer, reader=reader)
    models = {"writer": writer, "reader": reader}
    system.choose_reply_formats(settings.replies.reply_format, models)
    return system


def make_memory_program(
    settings: SystemSettings,
    *,
    writer: str | None = None,
    reader: str | None = None,
    program: Path | None = None,
) -> MemoryProgram:
    """Build the memory program, without models, with the prompts of its models and of a saved program.

    Args:
        settings: the settings of its writer and reader.
        writer: the model that will write.
        reader: the model that will answer.
        program: a saved program, whose prompts replace those of the models.

    Raises:
        ConfigError: the saved program does not fit, or the prompts beside a model's weights are damaged.
    """
    made = make_system("memory", settings)
    assert isinstance(made, MemoryProgram)
    load_model_prompts(made, writer=writer, reader=reader)
    if program is not None:
        load_program(made, program)
    return made


def load_program(system: MemorySystem, path: Path) -> None:
    """Load the prompts and demos of a saved program; models and code are never loaded.

    Raises:
        ConfigError: the file is missing, not JSON, or of another program.
    """
    try:
        # DSPy matches fields by their place: the first field would get the description of the saved first.
        saved = read_json_file(path)
        predictors = dict(system.named_predictors())
        for agent, mode in (("writer.generalist", "generalist"), ("writer.core", "specialists")):
            if agent in saved and agent not in predictors and "writer.consolidate" in predictors:
                raise ValueError(f"it was saved with --writer-mode {mode}")
        for name, predictor in predictors.items():
            theirs = [field["prefix"] for field in saved[name]["signature"]["fields"]]
            ours = [field["prefix"] for field in predictor.dump_state()["signature"]["fields"]]
            if theirs != ours:
                raise ValueError(f"{name!r} was saved with the fields {theirs} and now has {ours}")
        system.load_state(saved)
    except (OSError, ValueError, KeyError, TypeError, NotImplementedError) as error:
        raise ConfigError(
            f"program={str(path)!r} cannot be loaded ({type(error).__name__}: {error}): name a JSON file "
            "that was saved from a program of the same --writer-mode, --writer-max-turns and --max-searches"
        ) from error


def set_models(
    system: MemorySystem, *, writer_lm: dspy.LM | None = None, reader_lm: dspy.LM | None = None
) -> None:
    """Set the models of a system's writer and reader; None, or a missing part, changes nothing."""
    for part, lm in (("writer", writer_lm), ("reader", reader_lm)):
        if lm is not None and hasattr(system, part):
            getattr(system, part).set_lm(lm)
