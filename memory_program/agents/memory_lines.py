"""How memories are written in prompts, for writers and for readers."""

from collections.abc import Sequence

from memory_program.bank.dates.date_span import format_day
from memory_program.bank.memory import Memory


def render_memories(memories: Sequence[Memory]) -> str:
    """Write memories one to a line, each before the id by which a model can name it.

    A causal model has read what a memory says when it comes to the id, and can tell it by that.
    """
    return "\n".join(f"{memory.line} [{memory.memory_id}]" for memory in memories) or "(none)"


def format_with_date(memory: Memory) -> str:
    """Write a memory before its date, where it has one.

    A causal model has read what happened when it comes to the date, and can keep them together.
    """
    return f"{memory.text} [{format_day(memory.happened_at)}]" if memory.happened_at else memory.text
