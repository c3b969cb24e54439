"""Training text: the prompts of the program and the replies of the oracle, in generated worlds.

Nothing here writes a prompt. The program runs on a world with the oracle as its model, under the prompts of
``memory_program/pocket/program.json``, and every exchange is recorded. So the embedded model learns the very
prompts that it will be given.
"""

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from memory_program.agents.baselines.reader_only import ReaderOnly
from memory_program.agents.context import FullContext, MemoryContext
from memory_program.agents.model_prompts import load_model_prompts
from memory_program.agents.program import MemoryProgram, MemorySystem
from memory_program.agents.writer import format_session_date
from memory_program.bank.space import MemorySpace
from memory_program.models.model_names import POCKET
from memory_program.worlds import GoldOperation, World, generate_worlds
from memory_program.worlds.oracle import Exchange, OmissionRule, Oracle, OracleEngine, engine_as_lm
from recipes.pocket.parsed_example import PretrainExample
from recipes.pocket.pocket_tokenizer import END, chat_text
from recipes.pocket.recipe import STAGES, CurriculumStage
from recipes.pocket.token_permutation import NamePieces, permute_name_tokens

_EXCERPT_SHARE = 0.1  # share of questions to answer from verbatim turns, as RAG does
_FULL_TEXT_SHARE = 0.01  # share of questions to answer from the whole conversation
_MAX_FULL_TEXT_SESSIONS = 20  # longer conversations do not fit the context
_COINED_SHARE = 0.75  # share of things, foods, jobs and pastimes with coined names, in worlds for training


_EVENTS = {"bought", "gift", "read", "cooked", "concert", "plan_concert"}
MINOR_FACTS = frozenset(_EVENTS | {"allergy", "routine", "soaking", "calling", "keeps"})
"""Kinds of facts that label dropout leaves out: what people buy, give, read, eat and hear, what they do every
day, and where they keep things. It never leaves out where they live and work, or whom they know and meet."""


def make_minor_fact_dropout(share: float) -> OmissionRule:
    """Make a rule that leaves out a share of the minor facts, each from its first mention to its last."""

    def is_left_out(world: World, operation: GoldOperation) -> bool:
        fact = world.facts[operation.fact_id]
        draw = random.Random(f"{world.conversation.conversation_id}:{fact.key}").random()
        return fact.schema.name in MINOR_FACTS and draw < share

    return is_left_out


def collect_exchanges(world: World, rng: random.Random, label_dropout: float = 0.0) -> list[Exchange]:
    """Run the program through a world, with the oracle as its model, and return every exchange.

    Args:
        world: the conversation, with its facts and questions.
        rng: decides which questions are answered from memories, from excerpts and from the whole text.
        label_dropout: the share of the minor facts (``MINOR_FACTS``) that the oracle leaves out.
    """
    engine = OracleEngine(Oracle([world], make_minor_fact_dropout(label_dropout)))
    program = MemoryProgram()
    quoting = ReaderOnly(MemoryContext(with_memories=False, with_archive=True))
    reading_all = ReaderOnly(FullContext())
    for system in (program, quoting, reading_all):
        system.set_lm(engine_as_lm(engine))
        load_model_prompts(system, writer=POCKET, reader=POCKET)
    conversation, exchanges = world.conversation, engine.exchanges
    space = MemorySpace(conversation.conversation_id)
    for session in conversation.sessions:
        before = len(exchanges)
        program.remember(space, session)
        # The specialists run in parallel: sort their exchanges into an order that is always the same.
        exchanges[before:] = sorted(exchanges[before:], key=lambda exchange: exchange.system)
    for question in conversation.questions:
        draw = rng.random()
        reader: MemorySystem = quoting if draw < _EXCERPT_SHARE else program
        if draw > 1 - _FULL_TEXT_SHARE and len(conversation.sessions) <= _MAX_FULL_TEXT_SESSIONS:
            reader = reading_all
        reader.ask(space, question.text)
    return exchanges


def strip_chatter(world: World) -> World:
    """Keep only the turns of a world that operations come from or that answer questions."""
    conversation = world.conversation
    kept = {turn_id for operation in world.operations for turn_id in operation.sources}
    kept |= {turn_id for fact in world.facts.values() for turn_id in fact.evidence}
    sessions = tuple(
        replace(session, turns=tuple(turn for turn in session.turns if turn.turn_id in kept))
        for session in conversation.sessions
    )
    return replace(world, conversation=replace(conversation, sessions=sessions))


def world_texts(world: World) -> Iterator[str]:
    """Yield the sessions, operations and questions of a world: the text that a tokenizer learns from."""
    for session in world.conversation.sessions:
        yield f"{format_session_date(session)}\n{session.transcript}"
    for operation in world.operations:
        yield f"{operation.text}\n{operation.reason}"
    for question in world.conversation.questions:
        yield f"{question.text}\n{question.answer}"


def has_no_calls(exchange: Exchange) -> bool:
    """Return True if a writer had nothing to do."""
    return '{"tool_calls": []}' in exchange.reply


def encode_exchange(exchange: Exchange, tokenizer: PreTrainedTokenizerFast) -> PretrainExample:
    """Encode an exchange. The reply is encoded on its own, as a model generates it."""
    text = chat_text(exchange.system, exchange.user)
    prompt = tokenizer.backend_tokenizer.encode(text)
    reply = tokenizer.backend_tokenizer.encode(exchange.reply + END).ids

    def find_line(line: str) -> int:
        # A line stands after a line break, which in tokens is often the end of a fixed text.
        index = prompt.char_to_token(text.rindex(f"\n{line}\n") + 1)
        assert index is not None, "the prompt is not cut off"
        return index

    evidence = tuple(sorted(find_line(line) for line in exchange.evidence))
    changes = tuple((find_line(turn), find_line(line)) for turn, line in exchange.changes)
    return PretrainExample((*prompt.ids, *reply), len(prompt.ids), evidence, changes)


def make_chunk(
    seed: int,
    number: int,
    stage: CurriculumStage,
    tokens: int,
    tokenizer: PreTrainedTokenizerFast,
    label_dropout: float = 0.0,
    token_permutation: float = 0.0,
) -> list[PretrainExample]:
    """Make a chunk of a stage's text of about ``tokens`` tokens; the same arguments give the same text.

    Args:
        seed: of the training.
        number: of the chunk.
        stage: of the curriculum.
        tokens: the chunk ends with the example that reaches this many.
        tokenizer: encodes the text.
        label_dropout: the share of minor facts that the writers leave out.
        token_permutation: the share of texts in which the tokens of names are permuted.
    """
    rng = random.Random(f"{seed}:{number}:{stage.name}")
    if stage.copies:
        return _take_tokens(_copy_examples(rng, tokenizer), tokens)
    pieces = NamePieces.from_tokenizer(tokenizer)

    def examples() -> Iterator[PretrainExample]:
        for exchange in _stage_exchanges(seed, number, stage, label_dropout, rng):
            example, draw = encode_exchange(exchange, tokenizer), rng.random()
            is_permuted = draw < token_permutation
            yield permute_name_tokens(example, pieces, random.Random(draw)) if is_permuted else example

    return _take_tokens(examples(), tokens)


def _stage_exchanges(
    seed: int, number: int, stage: CurriculumStage, label_dropout: float, rng: random.Random
) -> Iterator[Exchange]:
    """Yield the exchanges of world after world, without most of those where a writer has nothing to do."""
    stage_number = [other.name for other in STAGES].index(stage.name)
    for index in range(1000):
        world = generate_worlds(
            ((seed * 10 + stage_number) * 100_000 + number) * 1000 + index,
            sessions=stage.sessions,
            facts_per_session=stage.facts,
            questions_per_session=stage.questions,
            coined=_COINED_SHARE,
        )[0]
        world = strip_chatter(world) if stage.is_bare else world
        for exchange in collect_exchanges(world, rng, label_dropout):
            if rng.random() < (stage.empty_call_share if has_no_calls(exchange) else 1.0):
                yield exchange


def _copy_examples(rng: random.Random, tokenizer: PreTrainedTokenizerFast) -> Iterator[PretrainExample]:
    """Yield random tokens, repeated with their parts in another order: only copying can be learned."""
    words = [token for token in range(len(tokenizer)) if token not in tokenizer.all_special_ids]
    while True:
        parts = [rng.choices(words, k=rng.randint(2, 8)) for _ in range(rng.randint(2, 16))]
        again = rng.sample(parts, len(parts))
        first, second = ([token for part in order for token in part] for order in (parts, again))
        yield PretrainExample((*first, *second), len(first))


def _take_tokens(examples: Iterator[PretrainExample], tokens: int) -> list[PretrainExample]:
    """Take examples until they have ``tokens`` tokens."""
    taken: list[PretrainExample] = []
    for example in examples:
        taken.append(example)
        tokens -= len(example.tokens)
        if tokens <= 0:
            break
    return taken


def save_examples(examples: Sequence[PretrainExample], path: Path) -> None:
    """Write examples to a file atomically; another process may be writing the same ones."""
    draft = path.with_suffix(f".{os.getpid()}.draft")
    with draft.open("wb") as file:
        np.savez(
            file,
            tokens=np.concatenate([np.array(example.tokens, np.uint16) for example in examples]),
            lengths=np.array([len(example.tokens) for example in examples]),
            reply_starts=np.array([example.reply_start for example in examples]),
            evidence=np.array([line for example in examples for line in example.evidence], np.int64),
            evidence_lengths=np.array([len(example.evidence) for example in examples]),
            changing=np.array([turn for example in examples for turn, _ in example.changes], np.int64),
            changed=np.array([line for example in examples for _, line in example.changes], np.int64),
            changes_lengths=np.array([len(example.changes) for example in examples]),
        )
    draft.replace(path)


def load_examples(path: Path) -> list[PretrainExample]:
    """Read examples that ``save_examples`` wrote."""
    with np.load(path) as file:
        tokens = _split_by_lengths(file["tokens"], file["lengths"])
        evidence = _split_by_lengths(file["evidence"], file["evidence_lengths"])
        changing, changed = (
            _split_by_lengths(file[name], file["changes_lengths"]) for name in ("changing", "changed")
        )
        starts: list[int] = file["reply_starts"].tolist()
    changes = [tuple(zip(*pairs, strict=True)) for pairs in zip(changing, changed, strict=True)]
    return [PretrainExample(*parts) for parts in zip(tokens, starts, evidence, changes, strict=True)]


def _split_by_lengths(numbers: NDArray[np.integer], lengths: NDArray[np.int64]) -> list[tuple[int, ...]]:
    return [tuple(part.tolist()) for part in np.split(numbers, np.cumsum(lengths)[:-1])]
