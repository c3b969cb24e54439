"""The oracle: what a perfect writer and a perfect reader reply to the program's prompts about a known world.

It sits where a language model sits and sees what one sees: the prompt, and nothing of the bank. So a memory
that the prompt does not show it cannot update, and a question whose memories were not retrieved it answers
with "Not mentioned in the conversation". Its score, through the same program, is the ceiling of any model's;
its replies are what the embedded model learns.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.lm15 import Request, Response

from locomo.prompt_markers import escape_prompt_markers
from locomo.types import Question, Session
from memory_program.agents.context import format_day
from memory_program.agents.signatures import (
    NOT_MENTIONED,
    SPECIALISTS,
    AnswerOrSearch,
    AnswerQuestion,
    Consolidate,
    WriteAll,
)
from memory_program.core.errors import OracleError
from memory_program.worlds import KINDS, Action, GoldOperation, Kind, World
from memory_program.worlds.rendered_prompts import (
    extract_prompt,
    find_signature,
    known_response,
    parse_input_fields,
    parse_stored_memories,
    render_reply,
    session_fields,
)

_DAY = r"\[(?P<day>\d{1,2} \w+ \d{4})\]"
_MEMORY_LINE = re.compile(rf"(?P<text>.*?)(?: {_DAY})?(?: \(until \d{{1,2}} \w+ \d{{4}}\))?")
_EXCERPT_LINE = re.compile(rf"(?:{_DAY} )?(?P<text>.*)")

_Call = dict[str, Any]  # Any: a call's arguments, as a model writes them


@dataclass(frozen=True, slots=True)
class Exchange:
    """A prompt of the program and the reply to it.

    ``evidence`` are the lines of the prompt that the reply is from: of a reader's memories or turns, of a
    writer's turns. ``changes`` are pairs of lines: a turn, and the memory or line of the profile that a call
    changes because of it.
    """

    system: str
    user: str
    reply: str
    evidence: tuple[str, ...] = ()
    changes: tuple[tuple[str, str], ...] = ()


OmissionRule = Callable[[World, GoldOperation], bool]
"""Says whether an expert passes over what ought to be remembered."""


class Oracle:
    """Replies to any prompt of the program about the worlds it knows."""

    def __init__(
        self, worlds: Sequence[World], overlooks: OmissionRule = lambda world, operation: False
    ) -> None:
        """Learn the worlds by heart; with ``overlooks`` it writes less than it should, and is no ceiling."""
        self._overlooks = overlooks
        self._sessions: dict[tuple[str, str], tuple[World, Session]] = {}
        self._questions: dict[str, list[tuple[World, Question]]] = {}
        for world in worlds:
            for session in world.conversation.sessions:
                self._sessions[session_fields(session)] = (world, session)
            for question in world.conversation.questions:
                self._questions.setdefault(question.text, []).append((world, question))

    def reply(self, system: str, user: str) -> str:
        """Reply to a rendered prompt.

        Raises:
            OracleError: the prompt is not one of the program's, or about no world that the oracle knows.
        """
        return self.exchange(system, user).reply

    def exchange(self, system: str, user: str) -> Exchange:
        """Reply to a rendered prompt, as ``reply`` does, and say which lines of it the reply is from."""
        signature = find_signature(system)
        fields = parse_input_fields(user)
        if signature is Consolidate:
            return Exchange(system, user, render_reply(system, signature, tool_calls=[]))
        if signature in (AnswerQuestion, AnswerOrSearch):
            known = self._questions.get(fields["question"])
            if known is None:
                raise OracleError(f"no known world asks {fields['question']!r}")
            shown = _VisibleLines.parse(fields)
            answers = (shown.answer(*asked) for asked in known)
            answer, evidence = next((found for found in answers if found), (NOT_MENTIONED, ()))
            calls = {"tool_calls": []} if signature is AnswerOrSearch else {}
            return Exchange(system, user, render_reply(system, signature, **calls, answer=answer), evidence)
        kinds: list[Kind] = [kind for kind in KINDS if signature in (WriteAll, SPECIALISTS[kind])]
        told = list(self._gold_calls(kinds, fields, names_kind=signature is WriteAll))
        changes: list[tuple[str, str]] = []
        for call, turns in told:
            memory_id, line = call["args"].get("memory_id"), call["args"].get("old_text")
            if memory_id is not None:
                related = fields["related_memories"].splitlines()
                line = next(line for line in related if line.endswith(f" [{memory_id}]"))
            changes += [(turn, line) for turn in turns if line]
        return Exchange(
            system,
            user,
            render_reply(system, signature, tool_calls=[call for call, _ in told]),
            tuple(dict.fromkeys(turn for _, turns in told for turn in turns)),
            tuple(changes),
        )

    # -- writing ---------------------------------------------------------------------------------

    def find_conversation_id(self, user: str) -> str:
        """Give the id of the conversation that a writer's message is about.

        Raises:
            OracleError: it is about no session that the oracle knows.
        """
        return self._find_session(parse_input_fields(user))[0].conversation.conversation_id

    def _find_session(self, fields: Mapping[str, str]) -> tuple[World, Session]:
        told = (fields["session_date"], fields["session"])
        if told not in self._sessions:
            raise OracleError(f"no known session of {told[0]!r} has the text {told[1]!r:.80}")
        return self._sessions[told]

    def _gold_calls(
        self, kinds: Sequence[Kind], fields: Mapping[str, str], *, names_kind: bool
    ) -> Iterator[tuple[_Call, Sequence[str]]]:
        """Give each call, and the turns that it is from, as the prompt shows them."""
        world, session = self._find_session(fields)
        turns = world.conversation.turns
        ids = {text: memory_id for memory_id, text in parse_stored_memories(fields).items()}
        core = fields["core_memory"].splitlines()
        for kind in kinds:
            for operation in world.session_operations(session.number, kind):
                if self._overlooks(world, operation):
                    continue
                # without the memory that it needs, an operation does what is left
                text, old_text = operation.text, operation.old_text
                old = ids.get(old_text)
                said = operation.time_expression
                dated = {"text": operation.text_without_time} | ({"happened_at": said} if said else {})
                call: _Call | None = None
                if operation.action is Action.DELETE:
                    # a call names its memory last: after the text, the model can tell which memory it was
                    reason = f"{operation.reason}: {old_text}"
                    call = _call("delete_memory", reason=reason, memory_id=old) if old else None
                elif operation.action is Action.UPDATE and old:
                    call = _call("manage_memory", action="update", **dated, memory_id=old)
                elif operation.action is Action.REPLACE_CORE and old_text in core:
                    call = _call("edit_core", action="replace", old_text=old_text, text=text)
                elif kind == "core":
                    call = _call("edit_core", action="append", text=text) if text not in core else None
                elif text not in ids:
                    call = _call("manage_memory", action="create", **dated)
                    call["args"] |= {"kind": kind} if names_kind else {}
                if call is not None:
                    yield call, [escape_prompt_markers(turns[turn_id].line) for turn_id in operation.sources]


@dataclass(frozen=True, slots=True)
class _VisibleLines:
    """Lines shown to the reader: each memory (text and day) and each turn, by position."""

    memories: Mapping[tuple[str, str | None], tuple[int, str]]
    turns: Mapping[str, tuple[int, str]]

    @classmethod
    def parse(cls, fields: Mapping[str, str]) -> "_VisibleLines":
        lines = [*fields["core_memory"].splitlines(), *fields["memories"].splitlines()]
        memories = [(at, line, _MEMORY_LINE.fullmatch(line)) for at, line in enumerate(lines)]
        excerpts = enumerate(fields["excerpts"].splitlines())
        said = [(at, line, _EXCERPT_LINE.fullmatch(line)) for at, line in excerpts]
        return cls(
            {(m["text"], m["day"]): (at, line) for at, line, m in memories if m},
            {m["text"]: (at, line) for at, line, m in said if m},
        )

    def answer(self, world: World, question: Question) -> tuple[str, tuple[str, ...]] | None:
        """Give the gold as far as it is supported, and the lines that support it.

        Of a list it is the parts whose memories are shown.
        """
        gold = next(answer for answer in world.answers if answer.question_id == question.question_id)
        turns, found = world.conversation.turns, list[list[tuple[int, str]]]()
        for fact in (world.facts[fact_id] for fact_id in gold.fact_ids):
            day = format_day(fact.happened_at) if fact.happened_at else None
            memory = self.memories.get((fact.text, day))
            said = [self.turns.get(escape_prompt_markers(turns[turn_id].line)) for turn_id in fact.evidence]
            lines = said if memory is None else [memory]  # a fact is shown by its memory, or by all its turns
            found.append([line for line in lines if line] if all(lines) else [])
        if not found or question.answer is None:
            return None
        parts = str(question.answer).split(", ")
        if len(parts) == len(found) > 1:
            pairs = zip(found, parts, strict=True)
            told = sorted((lines[0][0], part, lines) for lines, part in pairs if lines)
            evidence = tuple(line for _, _, lines in told for _, line in lines)
            return (", ".join(part for _, part, _ in told), evidence) if told else None
        if not all(found):
            return None
        # What stands after a semicolon is LoCoMo's reason for an inferred answer; its scorer leaves it out.
        answer = parts[0].partition(";")[0] if len(parts) == 1 else str(question.answer)
        return answer, tuple(line for lines in found for _, line in lines)


def _call(name: str, **arguments: str) -> _Call:
    return {"name": name, "args": arguments}


class OracleEngine:
    """An engine of DSPy behind which the oracle sits; ``exchanges`` holds what was asked and replied."""

    def __init__(self, oracle: Oracle) -> None:
        """Put an oracle behind the engine."""
        self._oracle = oracle
        self.exchanges: list[Exchange] = []

    def __deepcopy__(self, memo: dict[int, object]) -> "OracleEngine":
        """A copied program asks the same oracle."""
        return self

    def complete(self, request: Request) -> Response:
        """Reply to a request."""
        system, user = extract_prompt(request)
        exchange = self._oracle.exchange(system, user)
        self.exchanges.append(exchange)
        return known_response(request, exchange.reply)


def engine_as_lm(engine: OracleEngine) -> dspy.LM:
    """Make an engine into a language model."""
    return dspy.LM("oracle", engine=engine, cache=False, num_retries=0)


def oracle_lm(worlds: Sequence[World]) -> dspy.LM:
    """Make the oracle of some worlds into a language model that any program can be given."""
    return engine_as_lm(OracleEngine(Oracle(worlds)))
