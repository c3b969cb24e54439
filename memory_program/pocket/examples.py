"""Training text: what passes between the program and the oracle in generated worlds.

Nothing here writes a prompt. The program runs on a world with the oracle as its model, and every exchange is
kept, so that the embedded model learns the very prompts that it will be given.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from locomo.world import World, generate
from memory_program.agents.baselines import ReaderOnly
from memory_program.agents.context import MemoryContext, WholeConversation
from memory_program.agents.program import MemoryProgram, MemorySystem
from memory_program.agents.writer import spelled_date
from memory_program.bank.space import MemorySpace
from memory_program.learning.oracle import Exchange, Oracle, OracleEngine, lm_of
from memory_program.pocket.asking import Marks, questions_about
from memory_program.pocket.recipe import STAGES, Stage
from memory_program.pocket.tokenizer import END, chat_text

_SHOWN_EXCERPTS = 0.1  # the share of questions that are answered from verbatim turns, as RAG does
_SHOWN_ALL = 0.02  # the share that is answered from all that was said
_MOST_SESSIONS = 20  # of a conversation that is shown whole: more do not fit what the model reads
_COINED = 0.5  # the share of things, foods, jobs and pastimes that are made up, in worlds for training
_KEPT_EMPTY = 0.4  # the share of empty replies of writers that is kept: most sessions lack most kinds


@dataclass(frozen=True, slots=True)
class Example:
    """An exchange in tokens; the reply begins at ``reply_start``."""

    tokens: tuple[int, ...]
    reply_start: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples side by side, and what of them is to be learned.

    ``tokens`` has the shape (examples, longest) and is padded at the end. ``places`` says which tokens count
    in the loss, by their places in the flattened ``tokens[:, 1:]``; ``is_reply`` which of those are replies'.
    ``asked`` are places in the flattened ``tokens``, ``lines`` and ``pointers`` what is asked on the side
    (see ``asking.Questions``; a pointer has its row first). ``size`` is how many tokens there are, unpadded.
    """

    tokens: NDArray[np.int32]
    places: NDArray[np.int64]
    is_reply: NDArray[np.bool_]
    asked: NDArray[np.int64]
    lines: NDArray[np.int64]
    pointers: NDArray[np.int64]
    size: int


def exchanges_of(world: World, rng: random.Random) -> list[Exchange]:
    """Run the program through a world, with the oracle as its model, and list all that was said."""
    engine = OracleEngine(Oracle([world]))
    program = MemoryProgram()
    quoting = ReaderOnly(MemoryContext(with_memories=False, with_archive=True))
    reading_all = ReaderOnly(WholeConversation())
    for system in (program, quoting, reading_all):
        system.set_lm(lm_of(engine))
    space = MemorySpace(world.conversation.conversation_id)
    for session in world.conversation.sessions:
        before = len(engine.exchanges)
        program.remember(space, session)
        # The specialists run side by side: put what they said in an order that is always the same.
        engine.exchanges[before:] = sorted(engine.exchanges[before:], key=lambda exchange: exchange.system)
    for question in world.conversation.questions:
        drawn = rng.random()
        reader: MemorySystem = quoting if drawn < _SHOWN_EXCERPTS else program
        if drawn > 1 - _SHOWN_ALL and len(world.conversation.sessions) <= _MOST_SESSIONS:
            reader = reading_all
        reader.ask(space, question.text)
    return engine.exchanges


def bare(world: World) -> World:
    """Leave only those turns of a world's sessions that operations come from or that answer questions."""
    conversation = world.conversation
    telling = {turn_id for operation in world.operations for turn_id in operation.sources}
    telling |= {turn_id for fact in world.facts.values() for turn_id in fact.evidence}
    sessions = tuple(
        replace(session, turns=tuple(turn for turn in session.turns if turn.turn_id in telling))
        for session in conversation.sessions
    )
    return replace(world, conversation=replace(conversation, sessions=sessions))


def texts_of(world: World) -> Iterator[str]:
    """List what a world says, and what is said about it: what a tokenizer learns from."""
    for session in world.conversation.sessions:
        yield f"{spelled_date(session)}\n{session.transcript}"
    for operation in world.operations:
        yield f"{operation.text}\n{operation.reason}"
    for question in world.conversation.questions:
        yield f"{question.text}\n{question.answer}"


def is_empty(exchange: Exchange) -> bool:
    """Whether a writer had nothing to do."""
    return '{"tool_calls": []}' in exchange.reply


def encoded(exchange: Exchange, tokenizer: PreTrainedTokenizerFast) -> Example:
    """Write an exchange in tokens. The reply is encoded on its own, as a model generates it."""
    prompt = tokenizer.backend_tokenizer.encode(chat_text(exchange.system, exchange.user)).ids
    reply = tokenizer.backend_tokenizer.encode(exchange.reply + END).ids
    return Example((*prompt, *reply), len(prompt))


def chunk(
    seed: int, number: int, stage: Stage, tokens: int, tokenizer: PreTrainedTokenizerFast
) -> list[Example]:
    """Make a chunk of a stage's text, of about so many tokens: always the same for the same arguments."""
    rng = random.Random(f"{seed}:{number}:{stage.name}")
    examples: list[Example] = []
    if stage.copies:
        return list(_within(_copies(rng, tokenizer), tokens))
    for exchange in _exchanges(seed, number, stage, rng):
        examples.append(encoded(exchange, tokenizer))
        tokens -= len(examples[-1].tokens)
        if tokens <= 0:
            return examples
    raise AssertionError("there is always another world")


def _exchanges(seed: int, number: int, stage: Stage, rng: random.Random) -> Iterator[Exchange]:
    for index in range(1000):
        world = generate(
            ((seed * 10 + STAGES.index(stage)) * 100_000 + number) * 1000 + index,
            sessions=stage.sessions,
            facts_per_session=stage.facts,
            questions_per_session=stage.questions,
            coined=_COINED,
        )[0]
        for exchange in exchanges_of(bare(world) if stage.is_bare else world, rng):
            if rng.random() < stage.kept * (_KEPT_EMPTY if is_empty(exchange) else 1.0):
                yield exchange


def _copies(rng: random.Random, tokenizer: PreTrainedTokenizerFast) -> Iterator[Example]:
    """Random tokens, said again in another order of their parts: nothing can be learned but to copy."""
    words = [token for token in range(len(tokenizer)) if token not in tokenizer.all_special_ids]
    while True:
        parts = [rng.choices(words, k=rng.randint(2, 8)) for _ in range(rng.randint(2, 16))]
        again = rng.sample(parts, len(parts))
        first, second = ([token for part in order for token in part] for order in (parts, again))
        yield Example((*first, *second), len(first))


def _within(examples: Iterator[Example], tokens: int) -> Iterator[Example]:
    for example in examples:
        yield example
        tokens -= len(example.tokens)
        if tokens <= 0:
            return


def grouped(examples: Sequence[Example], batch_tokens: int, rng: random.Random) -> list[list[Example]]:
    """Group examples of like length, so that little is padded; a group has at most so many tokens, padded."""
    groups: list[list[Example]] = []
    mixed = rng.sample(examples, len(examples))
    for example in sorted(mixed, key=lambda example: len(example.tokens)):
        if not groups or len(example.tokens) * (len(groups[-1]) + 1) > batch_tokens:
            groups.append([])
        groups[-1].append(example)
    rng.shuffle(groups)
    return groups


def padded(examples: Sequence[Example]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Lay examples out side by side: the tokens, and which of the tokens to predict are replies.

    Padding, at the end, needs no mask: attention looks back only, so nothing before it sees it.

    Returns:
        tokens of shape (examples, longest), and booleans of shape (examples, longest - 1).
    """
    longest = max(len(example.tokens) for example in examples)
    tokens = np.zeros((len(examples), longest), np.int32)
    is_reply = np.zeros((len(examples), longest - 1), np.bool_)
    for row, example in enumerate(examples):
        tokens[row, : len(example.tokens)] = example.tokens
        is_reply[row, example.reply_start - 1 : len(example.tokens) - 1] = True
    return tokens, is_reply


def batches(
    examples: Sequence[Example],
    batch_tokens: int,
    prompt_weight: float,
    marks: Marks,
    rng: random.Random,
) -> list[Batch]:
    """Make batches of at most so many tokens, padded.

    A share ``prompt_weight`` of the prompts' tokens counts in full: as much as all of them at that weight, on
    average, and the output matrix, a third of the work, is applied to few.
    """
    draws = np.random.default_rng(rng.getrandbits(64))
    made: list[Batch] = []
    for group in grouped(examples, batch_tokens, rng):
        tokens, is_reply = padded(group)
        lengths = np.array([len(example.tokens) for example in group])
        is_said = np.arange(1, tokens.shape[1]) < lengths[:, None]
        counts = is_reply | (is_said & (draws.random(is_reply.shape) < prompt_weight))
        questions = [
            questions_about(np.array(example.tokens, np.int64), example.reply_start, marks, draws)
            for example in group
        ]
        made.append(
            Batch(
                tokens=tokens,
                places=np.flatnonzero(counts),
                is_reply=is_reply[counts],
                asked=np.concatenate([row * tokens.shape[1] + q.places for row, q in enumerate(questions)]),
                lines=np.concatenate([q.lines for q in questions]),
                pointers=np.concatenate(
                    [np.insert(q.pointers, 0, row, axis=1) for row, q in enumerate(questions)]
                ),
                size=int(lengths.sum()),
            )
        )
    return made


def save_examples(examples: Sequence[Example], path: Path) -> None:
    """Write examples to a file, whole or not at all."""
    draft = path.with_suffix(".draft")
    with draft.open("wb") as file:
        np.savez(
            file,
            tokens=np.concatenate([np.array(example.tokens, np.uint16) for example in examples]),
            lengths=np.array([len(example.tokens) for example in examples]),
            reply_starts=np.array([example.reply_start for example in examples]),
        )
    draft.replace(path)


def load_examples(path: Path) -> list[Example]:
    """Read examples that were saved."""
    with np.load(path) as kept:
        tokens, ends = kept["tokens"].tolist(), np.cumsum(kept["lengths"]).tolist()
        starts: list[int] = kept["reply_starts"].tolist()
    beginnings = [0, *ends[:-1]]
    return [
        Example(tuple(tokens[first:end]), start)
        for first, end, start in zip(beginnings, ends, starts, strict=True)
    ]
