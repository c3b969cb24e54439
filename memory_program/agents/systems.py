"""The systems by name, as ``evaluate.py`` builds them."""

from collections.abc import Callable

import dspy
from pydantic import BaseModel, ConfigDict, Field

from memory_program.agents.baselines import ReaderOnly
from memory_program.agents.context import MemoryContext, NoContext, WholeConversation
from memory_program.agents.extractive import ExtractiveSystem
from memory_program.agents.program import MemoryProgram, MemorySystem
from memory_program.agents.reader import QAReader
from memory_program.agents.writer import MemoryWriter, WriterMode
from memory_program.errors import ConfigError


class SystemSettings(BaseModel):
    """How a system writes and reads; what a system has no use for, it ignores."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    top_k: int = Field(default=10, ge=1, le=50)
    """Memories (and, with the archive, turns) that the reader is shown at most. MemBuilder's 10."""
    reader_budget: int = Field(default=2000, ge=1)
    """Tokens of context that the reader is shown at most."""
    memory_budget: int = Field(default=20_000, ge=1)
    """Tokens that the core block and the live memories may have; beyond, the writer consolidates."""
    archive: bool = False
    """Whether the reader of the memory system is shown verbatim excerpts too."""
    max_turns: int = Field(default=1, ge=1)
    """Calls that an update agent may make in a session; from 2 on it may search before it writes."""
    max_searches: int = Field(default=0, ge=0)
    """How often the reader may ask for another search."""
    writer_mode: WriterMode = "specialists"
    """Four specialists in parallel, or one generalist with all seven tools."""


def _memory(settings: SystemSettings) -> MemorySystem:
    context = MemoryContext(settings.top_k, settings.reader_budget, with_archive=settings.archive)
    return MemoryProgram(
        MemoryWriter(settings.writer_mode, settings.max_turns, settings.memory_budget),
        QAReader(context, settings.max_searches),
    )


def _rag(settings: SystemSettings) -> MemorySystem:
    context = MemoryContext(settings.top_k, settings.reader_budget, with_memories=False, with_archive=True)
    return ReaderOnly(context, settings.max_searches)


def _extractive(settings: SystemSettings) -> MemorySystem:
    return ExtractiveSystem(reader_budget=settings.reader_budget)


SYSTEMS: dict[str, Callable[[SystemSettings], MemorySystem]] = {
    "memory": _memory,
    "rag": _rag,
    "full-context": lambda settings: ReaderOnly(WholeConversation()),
    "no-memory": lambda settings: ReaderOnly(NoContext()),
    "extractive": _extractive,
}
"""Every system that can be evaluated. To add one: a MemorySystem, and a line here."""

MODEL_FREE = frozenset({"extractive"})
"""Systems that call no language model."""


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

    Raises:
        ConfigError: there is no system of that name.
    """
    if name not in SYSTEMS:
        raise ConfigError(f"unknown system {name!r}: choose from {', '.join(SYSTEMS)}")
    system = SYSTEMS[name](settings)
    for part, lm in (("writer", writer_lm), ("reader", reader_lm)):
        if lm is not None and hasattr(system, part):
            getattr(system, part).set_lm(lm)
    return system
