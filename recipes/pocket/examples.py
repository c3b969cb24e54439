"""Training text: what passes between the program and the oracle in generated worlds.

Nothing here writes a prompt. The program runs on a world with the oracle as its model, and every exchange is
kept, so that the embedded model learns the very prompts that it will be given.
"""

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from locomo.types import Question
from memory_program.agents.baselines.reader_only import ReaderOnly
from memory_program.agents.context import FullContext, MemoryContext
from memory_program.agents.program import MemoryProgram, MemorySystem
from memory_program.agents.writer import format_session_date
from memory_program.bank.space import MemorySpace
from memory_program.worlds import GoldOperation, World, generate_worlds
from memory_program.worlds.oracle import Exchange, OmissionRule, Oracle, OracleEngine, engine_as_lm
from recipes.pocket.example import PretrainExample
from recipes.pocket.pocket_tokenizer import END, chat_text
from recipes.pocket.recipe import STAGES, CurriculumStage
from recipes.pocket.token_permutation import NamePieces, permute_name_tokens

_EXCERPT_SHARE = 0.1  # the share of questions that are answered from verbatim turns, as RAG does
_FULL_TEXT_SHARE = 0.01  # the share that is answered from all that was said
_MOST_SESSIONS = 20  # of a conversation that is shown whole: more do not fit what the model reads
_COINED = 0.75  # the share of things, foods, jobs and pastimes that are made up, in worlds for training


_EVENTS = {"bought", "gift", "read", "cooked", "concert", "plan_concert"}
MINOR_FACTS = frozenset(_EVENTS | {"allergy", "routine", "soaking", "calling", "keeps"})
"""Sorts of facts that an expert may overlook: what people buy, give, read, eat and hear, what they do every
day, and where they keep things. Where they live and work, whom they know and whom they met it never does."""


def make_minor_fact_dropout(share: float) -> OmissionRule:
    """Make an expert overlook a share of the small things, each from its first mention to its last."""

    def overlooks(world: World, operation: GoldOperation) -> bool:
        fact = world.facts[operation.fact_id]
        drawn = random.Random(f"{world.conversation.conversation_id}:{fact.key}").random()
        return fact.schema.name in MINOR_FACTS and drawn < share

    return overlooks


def collect_exchanges(world: World, rng: random.Random, overlooked: float = 0.0) -> list[Exchange]:
    """Run the program through a world, with the oracle as its model, and list all that was said.

    ``overlooked`` is the share of the small things that the oracle passes over (see ``MINOR_FACTS``).
    """
    talk = _OracleRun(world, overlooked)
    for question in world.conversation.questions:
        talk.ask(question, rng)
    return talk.exchanges


class _OracleRun:
    """The program and a world, all of which it has remembered."""

    def __init__(self, world: World, overlooked: float) -> None:
        self._world = world
        self._oracle = Oracle([world], make_minor_fact_dropout(overlooked))
        self._engine = OracleEngine(self._oracle)
        self._program = MemoryProgram()
        self._quoting = ReaderOnly(MemoryContext(with_memories=False, with_archive=True))
        self._reading_all = ReaderOnly(FullContext())
        for system in (self._program, self._quoting, self._reading_all):
            system.set_lm(engine_as_lm(self._engine))
        self._space = MemorySpace(world.conversation.conversation_id)
        self.exchanges = self._engine.exchanges
        for session in world.conversation.sessions:
            before = len(self.exchanges)
            self._program.remember(self._space, session)
            # The specialists run side by side: put what they said in an order that is always the same.
            self.exchanges[before:] = sorted(self.exchanges[before:], key=lambda exchange: exchange.system)

    def ask(self, question: Question, rng: random.Random) -> None:
        drawn = rng.random()
        reader: MemorySystem = self._quoting if drawn < _EXCERPT_SHARE else self._program
        if drawn > 1 - _FULL_TEXT_SHARE and len(self._world.conversation.sessions) <= _MOST_SESSIONS:
            reader = self._reading_all
        reader.ask(self._space, question.text)


def strip_chatter(world: World) -> World:
    """Leave only those turns of a world's sessions that operations come from or that answer questions."""
    conversation = world.conversation
    telling = {turn_id for operation in world.operations for turn_id in operation.sources}
    telling |= {turn_id for fact in world.facts.values() for turn_id in fact.evidence}
    sessions = tuple(
        replace(session, turns=tuple(turn for turn in session.turns if turn.turn_id in telling))
        for session in conversation.sessions
    )
    return replace(world, conversation=replace(conversation, sessions=sessions))


def world_texts(world: World) -> Iterator[str]:
    """List what a world says, and what is said about it: what a tokenizer learns from."""
    for session in world.conversation.sessions:
        yield f"{format_session_date(session)}\n{session.transcript}"
    for operation in world.operations:
        yield f"{operation.text}\n{operation.reason}"
    for question in world.conversation.questions:
        yield f"{question.text}\n{question.answer}"


def has_no_calls(exchange: Exchange) -> bool:
    """Whether a writer had nothing to do."""
    return '{"tool_calls": []}' in exchange.reply


def encode_exchange(exchange: Exchange, tokenizer: PreTrainedTokenizerFast) -> PretrainExample:
    """Write an exchange in tokens. The reply is encoded on its own, as a model generates it."""
    text = chat_text(exchange.system, exchange.user)
    prompt = tokenizer.backend_tokenizer.encode(text)
    reply = tokenizer.backend_tokenizer.encode(exchange.reply + END).ids

    def place_of(line: str) -> int:
        # A line stands after a line break, which in tokens is often the end of a fixed text.
        place = prompt.char_to_token(text.rindex(f"\n{line}\n") + 1)
        assert place is not None, "the prompt is not cut off"
        return place

    evidence = tuple(sorted(place_of(line) for line in exchange.evidence))
    changes = tuple((place_of(turn), place_of(line)) for turn, line in exchange.changes)
    return PretrainExample((*prompt.ids, *reply), len(prompt.ids), evidence, changes)


def make_chunk(
    seed: int,
    number: int,
    stage: CurriculumStage,
    tokens: int,
    tokenizer: PreTrainedTokenizerFast,
    overlooked: float = 0.0,
    renamings: float = 0.0,
) -> list[PretrainExample]:
    """Make a chunk of a stage's text, of about so many tokens: always the same for the same arguments.

    Its writers overlook a share of the small things (see ``make_minor_fact_dropout``), and in a share of the texts the
    pieces of names change places (``renaming`` says why).
    """
    rng = random.Random(f"{seed}:{number}:{stage.name}")
    if stage.copies:
        return list(_take_tokens(_copy_examples(rng, tokenizer), tokens))
    exchanges = _exchanges(seed, number, stage, overlooked, rng)
    examples = (encode_exchange(exchange, tokenizer) for exchange in exchanges)
    pieces = NamePieces.from_tokenizer(tokenizer)
    drawn = ((each, rng.random()) for each in examples)  # so much of the rng, whether or not it is renamed
    mixed = (
        permute_name_tokens(each, pieces, random.Random(by)) if by < renamings else each for each, by in drawn
    )
    return list(_take_tokens(mixed, tokens))


def _exchanges(
    seed: int, number: int, stage: CurriculumStage, overlooked: float, rng: random.Random
) -> Iterator[Exchange]:
    for index in range(1000):
        world = generate_worlds(
            ((seed * 10 + [other.name for other in STAGES].index(stage.name)) * 100_000 + number) * 1000
            + index,
            sessions=stage.sessions,
            facts_per_session=stage.facts,
            questions_per_session=stage.questions,
            coined=_COINED,
        )[0]
        for exchange in collect_exchanges(strip_chatter(world) if stage.is_bare else world, rng, overlooked):
            if rng.random() < (stage.empty_call_share if has_no_calls(exchange) else 1.0):
                yield exchange


def _copy_examples(rng: random.Random, tokenizer: PreTrainedTokenizerFast) -> Iterator[PretrainExample]:
    """Random tokens, said again in another order of their parts: nothing can be learned but to copy."""
    words = [token for token in range(len(tokenizer)) if token not in tokenizer.all_special_ids]
    while True:
        parts = [rng.choices(words, k=rng.randint(2, 8)) for _ in range(rng.randint(2, 16))]
        again = rng.sample(parts, len(parts))
        first, second = ([token for part in order for token in part] for order in (parts, again))
        yield PretrainExample((*first, *second), len(first))


def _take_tokens(examples: Iterator[PretrainExample], tokens: int) -> Iterator[PretrainExample]:
    """Give examples until they have so many tokens."""
    for example in examples:
        yield example
        tokens -= len(example.tokens)
        if tokens <= 0:
            return


def save_examples(examples: Sequence[PretrainExample], path: Path) -> None:
    """Write examples to a file, whole or not at all; another process may be writing the same ones."""
    draft = path.with_suffix(f".{os.getpid()}.draft")
    with draft.open("wb") as file:
        np.savez(
            file,
            tokens=np.concatenate([np.array(example.tokens, np.uint16) for example in examples]),
            lengths=np.array([len(example.tokens) for example in examples]),
            reply_starts=np.array([example.reply_start for example in examples]),
            evidence=np.array([place for example in examples for place in example.evidence], np.int64),
            evidence_lengths=np.array([len(example.evidence) for example in examples]),
            changing=np.array([turn for example in examples for turn, _ in example.changes], np.int64),
            changed=np.array([line for example in examples for _, line in example.changes], np.int64),
            changes_lengths=np.array([len(example.changes) for example in examples]),
        )
    draft.replace(path)


def load_examples(path: Path) -> list[PretrainExample]:
    """Read examples that were saved."""
    with np.load(path) as kept:
        tokens = _split_by_lengths(kept["tokens"], kept["lengths"])
        evidence = _split_by_lengths(kept["evidence"], kept["evidence_lengths"])
        changing, changed = (
            _split_by_lengths(kept[name], kept["changes_lengths"]) for name in ("changing", "changed")
        )
        starts: list[int] = kept["reply_starts"].tolist()
    changes = [tuple(zip(*pairs, strict=True)) for pairs in zip(changing, changed, strict=True)]
    return [PretrainExample(*parts) for parts in zip(tokens, starts, evidence, changes, strict=True)]


def _split_by_lengths(numbers: NDArray[np.integer], lengths: NDArray[np.int64]) -> list[tuple[int, ...]]:
    return [tuple(part.tolist()) for part in np.split(numbers, np.cumsum(lengths)[:-1])]
