"""Baselines without a writer: no memory, the whole conversation, retrieved turns.

All three use the program's reader and prompt; only its context differs. The fourth baseline, which needs no
model, is in ``extractive.py``.
"""

from memory_program.agents.context import ContextBuilder
from memory_program.agents.program import MemorySystem
from memory_program.agents.reader import QAReader
from memory_program.bank.outcomes import Answer
from memory_program.bank.space import MemorySpace
from memory_program.models.reply_settings import ReplySettings


class ReaderOnly(MemorySystem):
    """A system that writes no memories: it archives sessions and reads them."""

    def __init__(
        self, context: ContextBuilder, max_searches: int = 0, replies: ReplySettings | None = None
    ) -> None:
        """Make a system with a reader of the context that ``context`` builds."""
        super().__init__()
        self.reader = QAReader(context, max_searches, replies)

    def ask(self, space: MemorySpace, question: str) -> Answer:
        """Answer a question from the context."""
        return self.reader.ask(space, question)
