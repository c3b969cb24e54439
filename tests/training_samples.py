"""Samples for the tests of training: an easy task, and a tiny real model that half knows it.

Two people say two things in one session. The model was trained on two replies of each specialist, one that
remembers and one that does not, and gives each equally often. Replies that remember are rewarded.
"""

import math
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
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
from memory_program.configs.trainer_groups import ReinforceSettings
from memory_program.inference.engine import LocalEngine, LocalSettings
from memory_program.models.local_model import LocalModel
from memory_program.rl.trainer.packing import Sample
from memory_program.rl.trainer.policy_step import LocalTrainer
from tests.competent_model import Prompt, competent_reply
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


def request(agent: str) -> Request:
    """The request to a specialist about the session, with an empty memory."""
    signature = SPECIALISTS[agent]
    known = {"session": SESSION.transcript, "session_date": format_session_date(SESSION)}
    inputs = {name: known.get(name, EMPTY_PLACEHOLDER) for name in signature.input_fields}
    system, user = ADAPTER.format(signature, demos=[], inputs=inputs)
    return Request(model="m", messages=(Message.user(user["content"]),), system=system["content"])


def save_half_taught(folder: Path) -> Path:
    """Save a model of half a million parameters that gives both replies of each specialist equally often."""
    texts = [str(request(agent).system) + request(agent).messages[0].text for agent in REPLIES]
    texts += [reply(agent, remembers=remembers) for agent in REPLIES for remembers in (True, False)]
    save_tiny_model(
        folder, "llama", loudness=2.0, text="\n".join(texts), tokens=3000, by_words=False, **SIZES
    )
    engine = LocalEngine(LocalSettings(source=str(folder), dtype="float32", device="cpu"))
    training = ReinforceSettings(learning_rate=5e-3, warmup_steps=5, batch_tokens=2048, beta=0.0)
    learner = LocalTrainer(engine, training)
    samples = [
        Sample(
            tuple(engine.prompt_tokens(request(agent))), tuple(engine.reply_tokens(reply(agent, remembers=r)))
        )
        for agent in REPLIES
        for r in (True, False)
    ]
    least = math.log(2) / statistics.fmean(len(sample.completion) for sample in samples)  # both equally often
    for _ in range(MOST_LESSONS):
        if learner.sft_step(samples).loss < 1.5 * least:
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


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread, which is fastest for a tiny model."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
