"""The memory program (a writer and a reader over one space), and the interface of all systems."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from datetime import date
from typing import Any

import dspy

from locomo.types import Session
from memory_program.agents.context import MemoryContext
from memory_program.agents.reader import QAReader
from memory_program.agents.writer import MemoryWriter
from memory_program.bank.outcomes import Answer, SessionRecord
from memory_program.bank.space import MemorySpace
from memory_program.models.reply_settings import ReplyFormat

_PROMPT_PARTS = ("signature", "demos", "traces", "train", "extended_signature")
"""The parts of a saved predictor that DSPy writes, without its model."""


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
        for part, agent in self._agents().items():
            if agent.replies.format is not ReplyFormat.CHAT:  # programs of older versions all spoke chat
                state[f"{part}.replies"] = {"format": agent.replies.format.value}
        return state

    def load_state(self, state: dict[str, Any], *, allow_unsafe_lm_state: bool = False) -> None:
        """Load prompts, demos and the formats of replies. Nothing else that a state may hold is loaded.

        Raises:
            ValueError: a format is unknown.
        """
        prompts = {name: prompts_only(state[name]) for name, _ in self.named_predictors()}
        super().load_state({**state, **prompts}, allow_unsafe_lm_state=allow_unsafe_lm_state)
        for part, agent in self._agents().items():
            agent.saved_format = saved_reply_format(state, part)
            agent.replies = replace(agent.replies, format=agent.saved_format)

    def _agents(self) -> dict[str, MemoryWriter | QAReader]:
        parts = {part: getattr(self, part, None) for part in ("writer", "reader")}
        return {part: agent for part, agent in parts.items() if isinstance(agent, MemoryWriter | QAReader)}

    @property
    def reply_formats(self) -> str:
        """The formats of the agents' replies: ``chat``, or ``chat+json`` where writer and reader differ."""
        return "+".join(dict.fromkeys(agent.replies.format.value for agent in self._agents().values()))

    def choose_reply_formats(
        self,
        flag: ReplyFormat | None,
        models: Mapping[str, str | None],
        default: Callable[[str, str], ReplyFormat] | None = None,
    ) -> list[str]:
        """Choose the reply format of each agent: that of the flag, of its saved program, or of its endpoint.

        Args:
            flag: the format that was asked for.
            models: the names of the models of ``writer`` and ``reader``.
            default: returns the format of a part and its model, which has no saved program; None is chat.

        Returns:
            lines that say what was chosen, besides chat.
        """
        lines: list[str] = []
        for part, agent in self._agents().items():
            model = models.get(part)
            if model is None:
                continue
            saved = agent.saved_format
            chosen = flag or saved or (default(part, model) if default else ReplyFormat.CHAT)
            agent.replies = replace(agent.replies, format=chosen)
            if saved not in (None, chosen):
                lines.append(
                    f"warning: the prompts of {part} {model} were made for replies as {saved}, "
                    f"and --reply-format asks for {chosen}"
                )
            elif chosen is not ReplyFormat.CHAT:
                lines.append(f"{part} {model}: replies as {chosen}")
        return lines


def prompts_only(state: Mapping[str, Any]) -> dict[str, Any]:  # Any: as of ``dump_state``
    """Return the prompt and the demos of a saved predictor, without a model.

    DSPy sets every other entry as an attribute: ``config`` would name another model for each call.
    """
    return {**{name: state[name] for name in _PROMPT_PARTS if name in state}, "lm": None}


def saved_reply_format(state: Mapping[str, Any], part: str) -> ReplyFormat:  # Any: as of ``dump_state``
    """Return the reply format of a saved writer or reader.

    Raises:
        ValueError: it is unknown.
    """
    return ReplyFormat(state.get(f"{part}.replies", {}).get("format", ReplyFormat.CHAT.value))


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
        space.log_session(record)
        return record

    def ask(self, space: MemorySpace, question: str, as_of: date | None = None) -> Answer:
        """Answer a question from the core block and the memories; with ``as_of`` from those of that day."""
        return self.reader.ask(space if as_of is None else space.at_date(as_of), question)
