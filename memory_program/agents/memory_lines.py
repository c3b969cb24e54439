"""Text of memories in prompts, for writers and for readers."""

from collections.abc import Sequence
from datetime import date

from memory_program.bank.dates.date_span import format_day
from memory_program.bank.memory import Memory


def render_memories(memories: Sequence[Memory]) -> str:
    """Write one memory a line, each before its id.

    A causal model has read the memory when it reaches the id, and can refer to it by that.
    """
    return "\n".join(f"{memory.line} [{memory.memory_id}]" for memory in memories) or "(none)"


def format_with_date(memory: Memory) -> str:
    """Write a memory before its date, if it has one.

    A causal model has read what happened when it reaches the date, and can keep them together.
    """
    return f"{memory.text} [{format_day(memory.happened_at)}]" if memory.happened_at else memory.text


def format_ended(line: str, day: date) -> str:
    """Write a line that a later one replaced, before the day on which that happened."""
    return f"{line} (until {format_day(day)})"
