"""The systems by name."""

from collections.abc import Callable

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


def set_models(
    system: MemorySystem, *, writer_lm: dspy.LM | None = None, reader_lm: dspy.LM | None = None
) -> None:
    """Set the models of a system's writer and reader; None, or a missing part, changes nothing."""
    for part, lm in (("writer", writer_lm), ("reader", reader_lm)):
        if lm is not None and hasattr(system, part):
            getattr(system, part).set_lm(lm)
