"""LoCoMo's own notes as an expert: a model that replies to the writer's prompts with them.

It gives supervised fine-tuning real conversations without a strong model. The notes are facts of one sentence
and no profile, so only the episodic and the semantic specialist are recorded, or the generalist.
"""

import re
from collections.abc import Sequence
from datetime import date
from typing import Any

import dspy
from dspy.lm15 import Request, Response

from locomo.types import Conversation
from memory_program.agents.program import MemoryProgram
from memory_program.agents.signatures import SPECIALISTS, Consolidate, WriteAll
from memory_program.bank.dates.resolve import find_dates
from memory_program.bank.memory import MemoryKind
from memory_program.core.errors import ConfigError, OracleError
from memory_program.models.model_names import OBSERVATIONS
from memory_program.worlds.rendered_prompts import (
    extract_prompt,
    find_signature,
    known_response,
    parse_input_fields,
    parse_stored_memories,
    render_reply,
    session_fields,
)

NOTED_KINDS = (MemoryKind.EPISODIC, MemoryKind.SEMANTIC)
"""The kinds of memories that notes become."""

_PAST = (
    r"\w+ed|was|were|had|did|went|came|saw|met|got|took|gave|made|found|lost|won|ran|told|said|felt|left|became|"
    r"wrote|read|sold|sang|held|built|spent|taught|bought|brought|began|started|grew|kept"
)
_EVENT = re.compile(rf"\S+ (?:(?!is\b|are\b|has\b|have\b|\w+s\b)\S+ ){{0,2}}(?:{_PAST})\b")
"""A sentence whose first verb, among its first words, is in the past tense: "Melanie painted a lake"."""


def expert_of_observations(program: MemoryProgram, conversations: Sequence[Conversation]) -> dspy.LM:
    """Make the expert of some conversations, and limit the program's writer to the agents that it can teach.

    Raises:
        ConfigError: a conversation has no notes.
    """
    agents = program.writer.agents
    program.writer.agents = tuple(a for a in agents if a not in SPECIALISTS or a in NOTED_KINDS)
    return observations_lm(conversations)


def observations_lm(conversations: Sequence[Conversation]) -> dspy.LM:
    """Make the expert of some conversations; it knows no prompt of the other two specialists.

    Raises:
        ConfigError: a conversation has no notes.
    """
    for conversation in conversations:
        if not any(session.observations for session in conversation.sessions):
            raise ConfigError(
                f"the writer {OBSERVATIONS!r} needs LoCoMo's own notes (observation), and "
                f"conversation {conversation.conversation_id!r} has none: choose --dataset locomo"
            )
    engine = _ObservationEngine(conversations)
    return dspy.LM(OBSERVATIONS, engine=engine, cache=False, num_retries=0)


def note_kind(text: str, said_on: date) -> MemoryKind:
    """Tell the kind of a note: episodic if it has a date phrase or its verb is in the past tense.

    Example:
        >>> note_kind("Melanie painted a lake sunrise.", date(2023, 5, 8)).value
        'episodic'
        >>> note_kind("Melanie enjoys painting.", date(2023, 5, 8)).value
        'semantic'
    """
    is_event = bool(find_dates(text, said_on)) or _EVENT.match(text) is not None
    return MemoryKind.EPISODIC if is_event else MemoryKind.SEMANTIC


class _ObservationEngine:
    """An engine that knows the sessions of some conversations by their prompts."""

    def __init__(self, conversations: Sequence[Conversation]) -> None:
        self._sessions = {
            session_fields(session): session
            for conversation in conversations
            for session in conversation.sessions
        }

    def __deepcopy__(self, memo: object) -> "_ObservationEngine":
        return self

    def complete(self, request: Request) -> Response:
        """Reply to a writer's prompt by the notes that are not stored yet; others raise ``OracleError``."""
        system, user = extract_prompt(request)
        signature, fields = find_signature(system), parse_input_fields(user)
        if signature is Consolidate:  # notes are not merged: what is over the budget is left out by the rule
            return known_response(request, render_reply(system, signature, tool_calls=[]))
        kinds = [kind for kind in NOTED_KINDS if signature in (WriteAll, SPECIALISTS[kind.value])]
        told = (fields["session_date"], fields["session"])
        if told not in self._sessions:
            raise OracleError(f"no known session of {told[0]!r} has the text {told[1]!r:.80}")
        session, stored = self._sessions[told], set(parse_stored_memories(fields).values())
        day, calls = session.date_time.date(), list[dict[str, Any]]()  # Any: calls, as a model writes them
        for text in dict.fromkeys(observation.text for observation in session.observations):
            kind = note_kind(text, day)
            if kind not in kinds or text in stored:
                continue
            arguments = {"action": "create", "text": text}
            if kind is MemoryKind.EPISODIC:  # an event has its own time, or the session's
                said = next((text[found.start : found.end] for found in find_dates(text, day)), None)
                arguments["happened_at"] = said or day.isoformat()
            if signature is WriteAll:
                arguments["kind"] = kind.value
            calls.append({"name": "manage_memory", "args": arguments})
        return known_response(request, render_reply(system, signature, tool_calls=calls))
