"""Samples for the tests of training: an easy task, and a tiny real model that half knows it.

Two people say two things in one session. The model was trained on two replies of each specialist, one that
remembers and one that does not, and gives each equally often. Replies that remember are rewarded.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import dspy
import torch
from dspy.lm15 import Message, Request, Response, TextPart, Usage

from locomo.types import Category, Conversation, Question
from memory_program.agents.chat_adapter import ADAPTER
from memory_program.agents.program import MemoryProgram
from memory_program.agents.reader import QAReader
from memory_program.agents.signatures import EMPTY_PLACEHOLDER, SPECIALISTS
from memory_program.agents.writer import format_session_date
from memory_program.bank.space import MemorySpace
from memory_program.configs.trainer_groups import ReinforceSettings
from memory_program.inference.engine import LocalEngine, LocalSettings
from memory_program.models.local_model import LocalModel
from memory_program.rl.trainer.packing import Sample
from memory_program.rl.trainer.policy_step import LocalTrainer
from tests.competent_model import NOT_MENTIONED, Prompt, chat_format, competent_reply
from tests.conversations import session
from tests.tiny_model import save_tiny_model

SESSION = session(1, "Mara: I moved to Oslo.", "Tom: I adopted a puppy called Rex.")
REPLIES = {
    "core": ("edit_core", {"action": "append", "text": "Mara lives in Oslo."}),
    "episodic": ("manage_memory", {"action": "create", "text": "Mara moved to Oslo."}),
    "semantic": ("manage_memory", {"action": "create", "text": "Tom adopted a puppy called Rex."}),
    "procedural": ("manage_memory", {"action": "create", "text": "Nobody said how."}),
}
"""The call of each specialist that remembers; those of core and procedural answer no question."""


SIZES = {"vocab_size": 3072, "max_position_embeddings": 1024}
MOST_LESSONS = 400


def talk(name: str) -> Conversation:
    """A conversation of the session, and the two questions that it answers."""
    questions = tuple(
        Question(name, index, text, Category.SINGLE_HOP, gold, (evidence,))
        for index, (text, gold, evidence) in enumerate(
            [
                ("Where did Mara move, Oslo?", "Mara moved to Oslo", "D1:1"),
                ("Which puppy called Rex was adopted?", "Tom adopted a puppy called Rex", "D1:2"),
            ]
        )
    )
    return Conversation(name, ("Mara", "Tom"), (SESSION,), questions)


def reply(agent: str, *, remembers: bool) -> str:
    """The reply of a specialist."""
    name, arguments = REPLIES[agent]
    calls = dspy.ToolCalls.from_dict_list([{"name": name, "args": arguments}] if remembers else [])
    return ADAPTER.format_assistant_message_content(SPECIALISTS[agent], {"tool_calls": calls})


def said(name: str, **arguments: object) -> str:
    """The reply of a specialist that makes one call."""
    calls = dspy.ToolCalls.from_dict_list([{"name": name, "args": arguments}])
    return ADAPTER.format_assistant_message_content(SPECIALISTS["core"], {"tool_calls": calls})


def request(agent: str, signature: type[dspy.Signature] | None = None) -> Request:
    """The request to a specialist about the session, with an empty memory."""
    signature = signature or SPECIALISTS[agent]
    known = {"session": SESSION.transcript, "session_date": format_session_date(SESSION)}
    inputs = {name: known.get(name, EMPTY_PLACEHOLDER) for name in signature.input_fields}
    system, user = ADAPTER.format(signature, demos=[], inputs=inputs)
    return Request(model="m", messages=(Message.user(user["content"]),), system=system["content"])


def save_half_taught(folder: Path) -> Path:
    """Save a model of half a million parameters that gives both replies of each specialist equally often."""
    lessons = [(request(agent), [reply(agent, remembers=r) for r in (True, False)]) for agent in REPLIES]
    return _teach(folder, lessons)


def save_half_taught_reader(folder: Path) -> Path:
    """Save such a model that answers both questions about ``memorable_talk`` and abstains equally often."""
    program, reader = ruled_program(), RuledReader()
    program.reader.set_lm(program.reader.answer.lm.copy(engine=reader))
    space, conversation = MemorySpace("x"), memorable_talk("x")
    program.remember(space, conversation.sessions[0])
    for question in conversation.questions:
        program.ask(space, question.dated_text)
    lessons = [
        (asked, [answer_text(str(question.answer)), answer_text(NOT_MENTIONED)])
        for asked, question in zip(reader.requests, conversation.questions, strict=True)
    ]
    return _teach(folder, lessons, spread=1.1)


def answer_text(answer: str) -> str:
    """The reply of a reader."""
    return chat_format({"answer": answer})


def memorable_talk(name: str) -> Conversation:
    """A conversation whose two sentences are long enough for the rule-based writer."""
    told = session(1, "Mara: I moved to Oslo with my sister.", "Tom: I adopted a puppy called Rex.")
    return replace(talk(name), sessions=(told,))


def _teach(folder: Path, lessons: Sequence[tuple[Request, Sequence[str]]], spread: float = 1.5) -> Path:
    """Save a model that gives each of the replies to a request equally often, up to a factor of its loss."""
    texts = [str(asked.system) + asked.messages[0].text for asked, _ in lessons]
    texts += [text for _, replies in lessons for text in replies]
    save_tiny_model(
        folder, "llama", loudness=2.0, text="\n".join(texts), tokens=3000, by_words=False, **SIZES
    )
    engine = LocalEngine(LocalSettings(source=str(folder), dtype="float32", device="cpu"))
    training = ReinforceSettings(learning_rate=5e-3, warmup_steps=5, batch_tokens=2048, beta=0.0)
    learner = LocalTrainer(engine, training)
    samples = [
        Sample(tuple(engine.prompt_tokens(asked)), tuple(engine.reply_tokens(text)))
        for asked, replies in lessons
        for text in replies
    ]
    least = math.log(2) / statistics.fmean(len(sample.completion) for sample in samples)  # both equally often
    for _ in range(MOST_LESSONS):
        if learner.sft_step(samples).loss < spread * least:
            break
    else:
        raise AssertionError(f"the tiny model has not learned its replies in {MOST_LESSONS} steps")
    learner.save_model(folder)
    engine.close()
    return folder


class RuledReader:
    """An engine that answers with the line that shares most words with the question."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def __deepcopy__(self, memo: object) -> "RuledReader":
        return self

    def complete(self, request: Request) -> Response:
        self.requests.append(request)
        system = request.system if isinstance(request.system, str) else ""
        text = competent_reply(Prompt(system, "\n\n".join(m.text or "" for m in request.messages)))
        return Response(
            id=None,
            model=request.model,
            message=Message.assistant([TextPart(text)]),
            finish_reason="stop",
            usage=Usage(input_tokens=1, output_tokens=1),
        )


def reader_by_rules() -> QAReader:
    """A reader with a rule-based model."""
    reader = MemoryProgram().reader
    reader.set_lm(dspy.LM("test/ruled", engine=RuledReader(), temperature=0.0, cache=False, num_retries=0))
    return reader


def student(folder: Path, reader: object | None = None) -> MemoryProgram:
    """A program whose writer is the model of a folder, and whose reader is rule-based."""
    program = MemoryProgram()
    model = LocalModel(LocalSettings(source=str(folder), dtype="float32", device="cpu"))
    program.writer.set_lm(dspy.LM("local:tiny", engine=model, temperature=0.0, cache=False, num_retries=0))
    engine = reader if reader is not None else RuledReader()
    program.reader.set_lm(dspy.LM("test/ruled", engine=engine, temperature=0.0, cache=False, num_retries=0))
    return program


def ruled_program() -> MemoryProgram:
    """A program whose writer and reader are rule-based."""
    program = MemoryProgram()
    for part in (program.writer, program.reader):
        part.set_lm(dspy.LM("test/ruled", engine=RuledReader(), temperature=0.0, cache=False, num_retries=0))
    return program


def reader_student(folder: Path) -> MemoryProgram:
    """A program whose reader is the model of a folder, and whose writer is rule-based."""
    program = ruled_program()
    model = LocalModel(LocalSettings(source=str(folder), dtype="float32", device="cpu"))
    program.reader.set_lm(dspy.LM("local:tiny", engine=model, temperature=0.0, cache=False, num_retries=0))
    return program


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread, which is fastest for a tiny model."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
