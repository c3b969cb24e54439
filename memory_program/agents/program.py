"""The program: a writer and a reader over one space; and what every system compared with it can do."""

from abc import abstractmethod
from collections.abc import Mapping
from copy import copy
from typing import Any

import dspy

from locomo.types import Session
from memory_program.agents.context import MemoryContext
from memory_program.agents.reader import QAReader
from memory_program.agents.writer import MemoryWriter
from memory_program.bank.outcomes import Answer, SessionRecord
from memory_program.bank.space import MemorySpace


class MemorySystem(dspy.Module):
    """Something that is told sessions and asked questions. Saved as JSON, without its language models."""

    writes_memories: bool = False
    """Whether ``remember`` calls a model; if not, a space costs nothing to build again."""

    @abstractmethod
    def remember(self, space: MemorySpace, session: Session) -> SessionRecord:
        """Take a session into a space, wholly, and once: a session that is known already is left alone."""

    @abstractmethod
    def ask(self, space: MemorySpace, question: str) -> Answer:
        """Answer a question from a space, which is not changed."""

    def forward(self, space: MemorySpace, question: str) -> dspy.Prediction:
        """Answer a question; as ``ask``, in DSPy's terms."""
        answer = self.ask(space, question)
        return dspy.Prediction(answer=answer.text, record=answer)

    def dump_state(self, json_mode: bool = True) -> dict[str, Any]:  # Any: DSPy's state is a JSON object
        """Give the prompts and demos. Models are left out: a program runs under any of them."""
        state: dict[str, Any] = {}
        for name, parameter in self.named_parameters():
            if isinstance(parameter, dspy.Predict):
                parameter = copy(parameter)
                parameter.lm = None  # not every engine can be saved
            state[name] = parameter.dump_state(json_mode=json_mode)
        return state


def writer_state(state: Mapping[str, Any]) -> dict[str, Any]:  # Any: as of ``dump_state``
    """Give the part of a system's state that its memories depend on."""
    return {part: value for part, value in state.items() if part.split(".")[0] == "writer"}


class MemoryProgram(MemorySystem):
    """Long-term memory of one conversation: a writer that keeps the bank, a reader that answers from it."""

    writes_memories = True

    def __init__(self, writer: MemoryWriter | None = None, reader: QAReader | None = None) -> None:
        """Make a program; the defaults are the four specialists and a reader of 2,000 tokens."""
        super().__init__()
        self.writer = writer if writer is not None else MemoryWriter()
        self.reader = reader if reader is not None else QAReader(MemoryContext())

    def remember(self, space: MemorySpace, session: Session) -> SessionRecord:
        """Write a session's memories and archive its turns.

        A specialist whose call fails is counted in the record; what the others wrote is kept.

        Raises:
            SessionConflictError: a session of the same number but with other content is known.
        """
        if space.has_session(session):
            return space.sessions[session.session_id].record
        draft = space.fork()  # whatever goes wrong, the space is as it was
        record: SessionRecord = self.writer(space=draft, session=session).record
        draft.ingest(session, record)
        space.adopt(draft)
        return record

    def ask(self, space: MemorySpace, question: str) -> Answer:
        """Answer a question from the core block and the memories."""
        return self.reader.ask(space, question)
