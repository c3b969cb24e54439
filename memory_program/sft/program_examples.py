"""Examples under the prompts of a program: an expert's calls for its writer, gold answers for its reader.

The program runs as always, on models that give the known replies, and its prompts are recorded. So what is
taught is what the program will ask.
"""

import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import dspy
from dspy.lm15 import Request, Response

from locomo.types import Conversation, Question
from memory_program.agents.chat_adapter import ADAPTER
from memory_program.agents.json_adapter import JsonReplyAdapter
from memory_program.agents.program import MemoryProgram
from memory_program.agents.signatures import NOT_MENTIONED
from memory_program.bank.bank import MemoryBank
from memory_program.bank.memory import operation_from_json
from memory_program.bank.outcomes import Outcome, SessionRecord
from memory_program.bank.space import MemorySpace
from memory_program.core.errors import ConfigError
from memory_program.models.reply_settings import ReplyFormat
from memory_program.rl.call_recording import recorded_calls, recording_lm
from memory_program.rl.episode_json import question_from_json, read_session
from memory_program.rl.episodes import Episode
from memory_program.rl.rollouts import chat_messages, run_rollout
from memory_program.sft.session_lines import SessionLine
from memory_program.sft.sft_training import SftExample
from memory_program.worlds.rendered_prompts import known_response

_MAX_TOKENS = 100_000  # a known reply is as long as it is


class _KnownReplies:
    """An engine that gives known replies in their order."""

    def __init__(self, replies: Sequence[str]) -> None:
        self._replies = list(replies)

    def __deepcopy__(self, memo: object) -> "_KnownReplies":
        return self

    def complete(self, request: Request) -> Response:
        return known_response(request, self._replies.pop(0))


def writer_examples(program: MemoryProgram, lines: Sequence[SessionLine]) -> list[SftExample]:
    """Make an example of each valid reply of an expert, under the prompts of a program.

    Raises:
        ConfigError: the program has other agents than the expert, or calls them more often.
    """
    examples: list[SftExample] = []
    for line in lines:
        by_agent = defaultdict[str, list[str]](list)
        for call in line["calls"]:
            by_agent[call["agent"]].append(call["reply"])
        if set(by_agent) != set(program.writer.agents) or len(line["calls"]) > len(by_agent):
            raise ConfigError(
                f"these trajectories have {len(line['calls'])} calls of {', '.join(by_agent)}, and the "
                f"program's writer has one call of {', '.join(program.writer.agents)}: record them again "
                "with --mode trajectories --program, or leave --program out"
            )
        taught = program.deepcopy()
        taught.writer.memory_budget = sys.maxsize  # consolidating would call a model, and is not taught
        for agent, replies in by_agent.items():
            getattr(taught.writer, agent).lm = _known_lm(agent, replies)
        name, session = line["episode"]["conversation_id"], read_session(line["episode"]["session"])
        space = MemorySpace(name)
        space.bank = MemoryBank.replay(name, map(operation_from_json, line["episode"]["operations"]))
        speakers = [turn.speaker for turn in session.turns]
        conversation = Conversation(name, (speakers[0], speakers[-1]), (session,), ())
        rollout = run_rollout(taught, Episode(conversation, session, space, ()), "taught")
        valid = {call["agent"] for call in line["calls"] if call["is_valid"]}
        examples += [_example(call.request, call.response) for call in rollout.calls if call.agent in valid]
    return examples


@dataclass(frozen=True, slots=True)
class ReaderLessons:
    """Examples of a reader, and the number of questions left out because retrieval misses their evidence."""

    examples: list[SftExample]
    missed: int


def reader_examples(
    program: MemoryProgram, lines: Sequence[SessionLine], *, answerable_only: bool = False
) -> ReaderLessons:
    """Make an example of each question about the conversations of trajectories, with its gold answer.

    The memories are the expert's, of whole conversations, and the reader is shown what retrieval finds. A
    question whose evidence is not shown is left out: the answer would teach guessing. The same share of the
    questions without an answer is left out, or the reader would learn to abstain too often.

    Args:
        program: the program whose reader is taught.
        lines: the sessions of the trajectories.
        answerable_only: leave out all questions without an answer.
    """
    by_conversation = defaultdict[str, list[SessionLine]](list)
    for line in lines:
        by_conversation[line["episode"]["conversation_id"]].append(line)
    examples: list[SftExample] = []
    missed = 0
    for name, of_conversation in by_conversation.items():
        space = MemorySpace(name)
        for line in of_conversation:
            for operation in map(operation_from_json, line["operations"]):
                space.bank.append(operation)
            session = read_session(line["episode"]["session"])
            space.ingest(session, SessionRecord(session.session_id))
        asked = [
            question_from_json(name, one) for line in of_conversation for one in line["episode"]["questions"]
        ]
        answerable = [question for question in asked if question.is_answerable]
        made = [_answer_example(program, space, question) for question in answerable]
        found = [example for example in made if example is not None]
        missed += len(made) - len(found)
        others = [] if answerable_only else [one for one in asked if not one.is_answerable]
        kept = round(len(others) * len(found) / len(made)) if made else len(others)
        for index in range(kept):
            example = _answer_example(program, space, others[index * len(others) // kept])
            assert example is not None, "it needs no evidence"
            found.append(example)
        examples += found
    return ReaderLessons(examples, missed)


def _answer_example(program: MemoryProgram, space: MemorySpace, question: Question) -> SftExample | None:
    """Make the example of a question; None if retrieval does not find its evidence."""
    adapter = JsonReplyAdapter() if program.reader.replies.format is ReplyFormat.JSON else ADAPTER
    gold = str(question.answer) if question.is_answerable else NOT_MENTIONED
    signature = cast(type[dspy.Signature], program.reader.answer.signature)
    reply = adapter.format_assistant_message_content(signature, {"answer": gold})
    reader = program.reader.deepcopy()
    reader.set_lm(_known_lm("reader", [reply]))
    with recorded_calls("taught") as calls:
        answer = reader.ask(space, question.dated_text)
    if answer.outcome is not Outcome.OK:
        raise ConfigError(f"the answer {gold!r} cannot be taught: the program reads it as {answer.message}")
    ranked = [item for item in answer.ranked or () if item.item_id in answer.shown]
    shown = {source for item in ranked for source in item.sources}
    if question.is_answerable and not set(question.evidence) <= shown:
        return None
    return _example(calls[-1].request, calls[-1].response)


def _known_lm(agent: str, replies: Sequence[str]) -> dspy.LM:
    lm = dspy.LM("test/known", engine=_KnownReplies(replies), cache=False, num_retries=0)
    return recording_lm(lm, agent, 0.0, _MAX_TOKENS)


def _example(request: Request, response: Response) -> SftExample:
    reply = {"role": "assistant", "content": response.text or ""}
    return {"messages": [*chat_messages(request), reply]}
