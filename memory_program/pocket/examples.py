"""Training text: what passes between the program and the oracle in generated worlds.

Nothing here writes a prompt. The program runs on a world with the oracle as its model, and every exchange is
kept, so that the embedded model learns the very prompts that it will be given.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from transformers import PreTrainedTokenizerFast

from locomo.world import World, generate
from memory_program.agents.baselines import ReaderOnly
from memory_program.agents.context import MemoryContext
from memory_program.agents.program import MemoryProgram, MemorySystem
from memory_program.agents.signatures import NOT_MENTIONED
from memory_program.agents.writer import spelled_date
from memory_program.bank.space import MemorySpace
from memory_program.learning.oracle import Exchange, Oracle, OracleEngine, lm_of
from memory_program.pocket.recipe import Stage
from memory_program.pocket.tokenizer import END, chat_text

_SHOWN_EXCERPTS = 0.1  # the share of questions that are answered from verbatim turns, as RAG does
_RELATED, _DATE, _RESULTS, _QUESTION = (
    f"\n\n[[ ## {name} ## ]]\n" for name in ("related_memories", "session_date", "tool_results", "question")
)
_KEPT_EMPTY = 0.4  # the share of empty replies of writers that is kept: most sessions lack most kinds


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt with its reply in tokens, and perhaps more of them; ``replies`` are their firsts and ends."""

    tokens: tuple[int, ...]
    replies: tuple[tuple[int, int], ...]


def exchanges_of(world: World, rng: random.Random) -> list[Exchange]:
    """Run the program through a world, with the oracle as its model, and list all that was said."""
    engine = OracleEngine(Oracle([world]))
    program = MemoryProgram()
    quoting = ReaderOnly(MemoryContext(with_memories=False, with_archive=True))
    for system in (program, quoting):
        system.set_lm(lm_of(engine))
    space = MemorySpace(world.conversation.conversation_id)
    for session in world.conversation.sessions:
        before = len(engine.exchanges)
        program.remember(space, session)
        # The specialists run side by side: put what they said in an order that is always the same.
        engine.exchanges[before:] = sorted(engine.exchanges[before:], key=lambda exchange: exchange.system)
    for question in world.conversation.questions:
        reader: MemorySystem = quoting if rng.random() < _SHOWN_EXCERPTS else program
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


def encoded(talk: Sequence[Exchange], tokenizer: PreTrainedTokenizerFast) -> Example:
    """Write exchanges in tokens. Each reply is encoded on its own, as a model generates it."""
    encode = tokenizer.backend_tokenizer.encode
    tokens, replies = list[int](), list[tuple[int, int]]()
    for exchange in talk:
        tokens += encode(chat_text(exchange.system, exchange.user)).ids
        first = len(tokens)
        tokens += encode(exchange.reply + END).ids
        replies.append((first, len(tokens)))
    return Example(tuple(tokens), tuple(replies))


def chunk(
    seed: int, number: int, stage: Stage, tokens: int, tokenizer: PreTrainedTokenizerFast
) -> list[Example]:
    """Make a chunk of training text of about so many tokens: always the same for the same arguments."""
    rng = random.Random(f"{seed}:{number}:{stage.name}")
    examples: list[Example] = []
    if stage.copies:
        return list(_within(_copies(rng, tokenizer), tokens))
    for talk in _talks(seed, number, stage, rng):
        examples.append(encoded(talk, tokenizer))
        tokens -= len(examples[-1].tokens)
        if tokens <= 0:
            return examples
    raise AssertionError("there is always another world")


def _talks(seed: int, number: int, stage: Stage, rng: random.Random) -> Iterator[list[Exchange]]:
    for index in range(1000):
        world = generate(
            (seed * 1_000_000 + number) * 1000 + index,
            sessions=stage.sessions,
            facts_per_session=stage.facts,
            questions_per_session=stage.questions,
        )[0]
        exchanges = exchanges_of(bare(world) if stage.is_bare else world, rng)
        if stage.follow_ups:
            talks = follow_ups(world, exchanges, stage.follow_ups, rng)
            yield from (talk for talk in talks if rng.random() < stage.kept)
        else:
            for exchange in exchanges:
                if rng.random() < stage.kept * (_KEPT_EMPTY if is_empty(exchange) else 1.0):
                    yield [exchange]


def follow_ups(
    world: World, exchanges: Sequence[Exchange], most: int, rng: random.Random
) -> Iterator[list[Exchange]]:
    """Ask more about what a prompt shows: of a session all specialists, of memories other questions.

    What is shown again is left out. So a text is read once for several replies, which are what is learned
    from: of a prompt on its own, fourteen of fifteen tokens are no reply.

    Args:
        world: that the exchanges are about.
        exchanges: all of ``exchanges_of``.
        most: questions to ask beside the first one, at most.
        rng: decides which, and in what order.
    """
    specialists = 4
    first_reader = specialists * len(world.conversation.sessions)
    for first in range(0, first_reader, specialists):
        of_session = exchanges[first : first + specialists]
        kept = [one for one in of_session if not is_empty(one) or rng.random() < _KEPT_EMPTY]
        rng.shuffle(kept)
        if kept:
            yield [kept[0], *(replace(one, user=_without_session(one.user)) for one in kept[1:])]
    oracle = Oracle([world])
    questions = [question.text for question in world.conversation.questions]
    for exchange in exchanges[first_reader:]:
        head = exchange.user.rindex(_QUESTION)
        tail = exchange.user.index("\n\nRespond", head)
        talk = [exchange]
        abstained = NOT_MENTIONED in exchange.reply
        for question in rng.sample(questions, min(len(questions), 4 * most)):
            asked = f"{_QUESTION}{question}{exchange.user[tail:]}"
            reply = oracle.reply(exchange.system, exchange.user[:head] + asked)
            abstains = NOT_MENTIONED in reply
            if len(talk) <= most and not (abstains and abstained):
                talk.append(Exchange(exchange.system, asked, reply))
                abstained = abstained or abstains
        yield talk


def _without_session(user: str) -> str:
    """Leave of a specialist's prompt what only this specialist is shown, and what it is asked for."""
    _, header, after = user.partition(_RELATED)
    return f"{header}{after.partition(_DATE)[0]}{user[user.rindex(_RESULTS) :]}"


def _copies(rng: random.Random, tokenizer: PreTrainedTokenizerFast) -> Iterator[Example]:
    """Random tokens, said again in another order of their parts: nothing can be learned but to copy."""
    words = [token for token in range(len(tokenizer)) if token not in tokenizer.all_special_ids]
    while True:
        parts = [rng.choices(words, k=rng.randint(2, 8)) for _ in range(rng.randint(2, 16))]
        again = rng.sample(parts, len(parts))
        first, second = ([token for part in order for token in part] for order in (parts, again))
        yield Example((*first, *second), ((len(first), len(first) + len(second)),))


def _within(examples: Iterator[Example], tokens: int) -> Iterator[Example]:
    for example in examples:
        yield example
        tokens -= len(example.tokens)
        if tokens <= 0:
            return


def batches(examples: Sequence[Example], batch_tokens: int, rng: random.Random) -> list[list[Example]]:
    """Group examples of like length, so that little is padded; a batch has at most so many tokens, padded."""
    groups: list[list[Example]] = []
    for example in sorted(examples, key=lambda example: len(example.tokens)):
        if not groups or len(example.tokens) * (len(groups[-1]) + 1) > batch_tokens:
            groups.append([])
        groups[-1].append(example)
    rng.shuffle(groups)
    return groups
