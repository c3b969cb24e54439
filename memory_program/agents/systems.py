"""The systems by name, as ``evaluate.py`` builds them."""

from collections.abc import Callable

import dspy

from memory_program.agents.baselines.extractive import ExtractiveSystem
from memory_program.agents.baselines.reader_only import ReaderOnly
from memory_program.agents.context import FullContext, MemoryContext, NoContext
from memory_program.agents.model_prompts import load_model_prompts
from memory_program.agents.program import MemoryProgram, MemorySystem
from memory_program.agents.reader import QAReader
from memory_program.agents.writer import MemoryWriter
from memory_program.configs.evaluate_config import SystemSettings
from memory_program.core.errors import ConfigError


def _memory(settings: SystemSettings) -> MemorySystem:
    context = MemoryContext(
        settings.top_k, settings.reader_budget, settings.relevance_floor, with_archive=settings.archive
    )
    return MemoryProgram(
        MemoryWriter(settings.writer_mode, settings.max_turns, settings.memory_budget),
        QAReader(context, settings.max_searches),
    )


def _rag(settings: SystemSettings) -> MemorySystem:
    context = MemoryContext(
        settings.top_k,
        settings.reader_budget,
        settings.relevance_floor,
        with_memories=False,
        with_archive=True,
    )
    return ReaderOnly(context, settings.max_searches)


def _extractive(settings: SystemSettings) -> MemorySystem:
    return ExtractiveSystem(reader_budget=settings.reader_budget)


SYSTEMS: dict[str, Callable[[SystemSettings], MemorySystem]] = {
    "memory": _memory,
    "optimized": _memory,
    "rag": _rag,
    "full-context": lambda settings: ReaderOnly(FullContext()),
    "no-memory": lambda settings: ReaderOnly(NoContext()),
    "extractive": _extractive,
}
"""Every system that can be evaluated. To add one: a MemorySystem, its name in the config, and a line here."""


def make_system(
    name: str,
    settings: SystemSettings,
    *,
    writer_lm: dspy.LM | None = None,
    reader_lm: dspy.LM | None = None,
) -> MemorySystem:
    """Build a system by name.

    Args:
        name: a key of ``SYSTEMS``.
        settings: how it writes and reads.
        writer_lm: the model that writes memories; None leaves it to ``dspy.settings``.
        reader_lm: the model that answers; None leaves it to ``dspy.settings``.

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
    return system


def set_models(
    system: MemorySystem, *, writer_lm: dspy.LM | None = None, reader_lm: dspy.LM | None = None
) -> None:
    """Give the parts of a system their models; None, or a part that it does not have, changes nothing."""
    for part, lm in (("writer", writer_lm), ("reader", reader_lm)):
        if lm is not None and hasattr(system, part):
            getattr(system, part).set_lm(lm)
