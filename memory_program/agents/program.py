"""The memory program (a writer and a reader over one space), and the interface of all systems."""

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
    """A system that remembers sessions and answers questions; saved as JSON, without its language models."""

    writes_memories: bool = False
    """True if ``remember`` calls a model; if not, building a space again costs nothing."""

    def remember(self, space: MemorySpace, session: Session) -> SessionRecord:
        """Add a session to a space, completely or not at all; a known session is left as it is.

        Without a writer, its turns are archived and no memory is made.

        Raises:
            SessionConflictError: a session of the same number but with other content is known.
        """
        record = SessionRecord(session.session_id)
        if not space.has_session(session):
            space.ingest(session, record)
        return record

    @abstractmethod
    def ask(self, space: MemorySpace, question: str) -> Answer:
        """Answer a question from a space, which is not changed."""

    def forward(self, space: MemorySpace, question: str) -> dspy.Prediction:
        """Answer a question as ``ask`` does, and return a DSPy prediction."""
        answer = self.ask(space, question)
        return dspy.Prediction(answer=answer.text, record=answer)

    def dump_state(self, json_mode: bool = True) -> dict[str, Any]:  # Any: DSPy's state is a JSON object
        """Return the prompts and demos, without models: a program runs with any model."""
        state: dict[str, Any] = {}
        for name, parameter in self.named_parameters():
            if isinstance(parameter, dspy.Predict):
                parameter = copy(parameter)
                parameter.lm = None  # not every engine can be saved
            state[name] = parameter.dump_state(json_mode=json_mode)
        return state


def writer_state(state: Mapping[str, Any]) -> dict[str, Any]:  # Any: as of ``dump_state``
    """Return the part of a system's state that its memories depend on."""
    return {part: value for part, value in state.items() if part.split(".")[0] == "writer"}


class MemoryProgram(MemorySystem):
    """Long-term memory of one conversation: a writer that fills the bank, a reader that answers from it."""

    writes_memories = True

    def __init__(self, writer: MemoryWriter | None = None, reader: QAReader | None = None) -> None:
        """Make a program; by default with four specialists and a reader of 2,000 tokens."""
        super().__init__()
        self.writer = writer if writer is not None else MemoryWriter()
        self.reader = reader if reader is not None else QAReader(MemoryContext())

    def remember(self, space: MemorySpace, session: Session) -> SessionRecord:
        """Write a session's memories and archive its turns.

        A specialist whose call fails is counted in the record; the others' memories are kept.

        Raises:
            SessionConflictError: a session of the same number but with other content is known.
        """
        if space.has_session(session):
            return space.sessions[session.session_id].record
        draft = space.fork()  # if anything fails, the space is unchanged
        record: SessionRecord = self.writer(space=draft, session=session).record
        draft.ingest(session, record)
        space.adopt(draft)
        return record

    def ask(self, space: MemorySpace, question: str) -> Answer:
        """Answer a question from the core block and the memories."""
        return self.reader.ask(space, question)
