"""Training text is what passed between the program and the oracle, always the same for the same seed."""

import random
from functools import lru_cache

import pytest
import torch

from locomo.world import World, generate, is_held_out
from memory_program.agents.signatures import NOT_MENTIONED
from memory_program.learning.oracle import Exchange
from memory_program.pocket.asking import Marks
from memory_program.pocket.examples import (
    Example,
    bare,
    batches,
    chunk,
    encoded,
    exchanges_of,
    grouped,
    load_examples,
    padded,
    save_examples,
)
from memory_program.pocket.model import Shape, make_model
from memory_program.pocket.probes import Probe, make_probe, measure
from memory_program.pocket.recipe import STAGES
from memory_program.pocket.tokenizer import END, chat_text
from tests.pocket_samples import small_tokenizer

BARE = STAGES[1]


@lru_cache
def talk() -> tuple[World, list[Exchange]]:
    world = generate(3, sessions=(5, 5), questions_per_session=6)[0]
    return world, exchanges_of(world, random.Random(0))


@lru_cache
def some_chunk(number: int = 0) -> list[Example]:
    return chunk(1, number, BARE, 6000, small_tokenizer())


def test_a_world_gives_four_writers_for_each_session_and_a_reader_for_each_question():
    world, exchanges = talk()
    writers = [exchange for exchange in exchanges if "tool_calls" in exchange.reply]
    assert len(writers) == 4 * len(world.conversation.sessions)
    assert len(exchanges) - len(writers) == len(world.conversation.questions)


def test_there_is_something_of_everything_to_learn():
    _, exchanges = talk()
    replies = "".join(exchange.reply for exchange in exchanges)
    for part in ('"create"', '"append"', '"tool_calls": []', NOT_MENTIONED, "[[ ## answer ## ]]"):
        assert part in replies
    assert any("(none)" not in exchange.user.partition("excerpts")[2] for exchange in exchanges)


def test_an_example_is_the_chat_and_its_reply_begins_where_the_model_begins():
    _, exchanges = talk()
    tokenizer = small_tokenizer()
    for exchange in exchanges[:8]:
        example = encoded(exchange, tokenizer)
        prompt, reply = example.tokens[: example.reply_start], example.tokens[example.reply_start :]
        assert tokenizer.decode(prompt) == chat_text(exchange.system, exchange.user)
        assert tokenizer.decode(reply) == exchange.reply + END


def test_a_chunk_is_the_same_each_time_and_another_number_gives_another():
    assert some_chunk() == chunk(1, 0, BARE, 6000, small_tokenizer())
    assert some_chunk() != some_chunk(1)
    assert some_chunk() != chunk(2, 0, BARE, 6000, small_tokenizer())
    total = sum(len(example.tokens) for example in some_chunk())
    assert 6000 <= total < 7000


def test_names_of_held_out_worlds_never_occur_in_training_text():
    for seed in range(20):
        names = generate(seed, held_out=True)[0].conversation.speakers
        assert all(is_held_out(name) for name in names)
    text = "".join(small_tokenizer().decode(example.tokens) for example in some_chunk())
    speakers = {line.partition(":")[0] for line in text.splitlines() if ": " in line[:12]}
    assert speakers
    assert not any(is_held_out(name) for name in speakers if name.isalpha() and name.istitle())


def test_copies_say_the_same_tokens_in_another_order():
    for example in chunk(1, 0, STAGES[0], 2000, small_tokenizer()):
        first, second = example.tokens[: example.reply_start], example.tokens[example.reply_start :]
        assert sorted(first) == sorted(second)


def test_most_empty_replies_are_left_out():
    """Of the four writers of a session with one or two facts, about two in three have nothing to write."""
    tokenizer = small_tokenizer()
    examples = [example for number in range(4) for example in some_chunk(number)]
    replies = [tokenizer.decode(example.tokens[example.reply_start :]) for example in examples]
    writers = [reply for reply in replies if "tool_calls" in reply]
    assert 0.2 < sum('"tool_calls": []' in reply for reply in writers) / len(writers) < 0.5


def test_a_bare_world_has_the_same_replies_in_fewer_words():
    world, exchanges = talk()
    cut = exchanges_of(bare(world), random.Random(0))
    assert sorted(exchange.reply for exchange in cut) == sorted(exchange.reply for exchange in exchanges)
    assert sum(len(e.user) for e in cut) < 0.8 * sum(len(e.user) for e in exchanges)


@pytest.mark.parametrize("limit", [300, 1000])
def test_groups_hold_every_example_once_and_keep_to_their_size_when_padded(limit):
    groups = grouped(some_chunk(), limit, random.Random(0))
    for group in groups:
        longest = max(len(example.tokens) for example in group)
        assert len(group) == 1 or longest * len(group) <= limit
    everything = [example for group in groups for example in group]
    assert sorted(e.tokens for e in everything) == sorted(e.tokens for e in some_chunk())


def test_padding_changes_nothing_before_it():
    model = make_model(Shape(layers=2), len(small_tokenizer()), 0, seed=0).eval()
    short, long = sorted(some_chunk(), key=lambda example: len(example.tokens))[:: len(some_chunk()) - 1]
    tokens, is_reply = padded([short, long])
    with torch.no_grad():
        together = model(input_ids=torch.from_numpy(tokens)).logits[0, : len(short.tokens)]
        alone = model(input_ids=torch.tensor([short.tokens])).logits[0]
    assert torch.allclose(together, alone, atol=1e-4)
    assert is_reply.sum(1).tolist() == [len(e.tokens) - e.reply_start for e in (short, long)]


def test_a_batch_counts_every_token_of_a_reply_and_a_share_of_the_prompts():
    examples = some_chunk()
    made = batches(examples, 1000, 0.25, Marks.of(small_tokenizer()), random.Random(0))
    assert sum(batch.size for batch in made) == sum(len(e.tokens) for e in examples)
    replies = sum(len(e.tokens) - e.reply_start for e in examples)
    assert sum(int(batch.is_reply.sum()) for batch in made) == replies
    counted = sum(len(batch.places) for batch in made) - replies
    prompts = sum(e.reply_start - 1 for e in examples)
    assert 0.2 * prompts < counted < 0.3 * prompts
    for batch in made:
        targets = batch.tokens[:, 1:].ravel()[batch.places[batch.is_reply]]
        assert small_tokenizer().eos_token_id in targets


def test_without_weight_no_token_of_a_prompt_counts():
    marks = Marks.of(small_tokenizer())
    assert all(batch.is_reply.all() for batch in batches(some_chunk(), 1000, 0.0, marks, random.Random(0)))


def test_a_batch_asks_about_its_examples_where_they_lie():
    marks = Marks.of(small_tokenizer())
    for batch in batches(some_chunk(), 1000, 0.05, marks, random.Random(0)):
        assert batch.lines.shape == (len(batch.asked), 4)
        assert 0 < len(batch.asked) < 0.1 * batch.size + 10 * len(batch.tokens)
        for row, place, first, end in batch.pointers:
            assert 0 <= first < end <= place < batch.tokens.shape[1]
            assert not marks.is_break[batch.tokens[row, first:end]].any() or (first, end) == (0, 1)


def test_examples_come_back_from_a_file_as_they_were(tmp_path):
    save_examples(some_chunk(), tmp_path / "0.npz")
    assert load_examples(tmp_path / "0.npz") == some_chunk()
    assert [path.name for path in tmp_path.iterdir()] == ["0.npz"]


def test_a_probe_holds_as_many_of_each_kind_and_only_held_out_names():
    probe = make_probe(small_tokenizer(), 1, 4, (2, 4))
    assert {kind: len(examples) for kind, examples in probe.examples_by_kind.items()} == {
        "writer": 4,
        "nothing": 4,
        "reader": 4,
        "abstain": 4,
    }
    reply = probe.examples_by_kind["abstain"][0]
    assert NOT_MENTIONED in small_tokenizer().decode(reply.tokens[reply.reply_start :])


def test_exact_match_by_one_pass_is_what_greedy_decoding_gives():
    """A network that copies gives some replies exactly; both ways of measuring must agree on which."""
    model = make_model(Shape(), 200, 0, seed=0).eval()
    draws = random.Random(5)
    examples: list[Example] = []
    for _ in range(12):
        said = [draws.randrange(1, 200 if draws.random() < 0.5 else 12) for _ in range(10)]
        examples.append(Example((*said, *said), 12))
    exact = 0
    for example in examples:
        tokens = list(example.tokens[: example.reply_start])
        with torch.no_grad():
            while len(tokens) < len(example.tokens):
                tokens.append(int(model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
        exact += tuple(tokens) == example.tokens
    assert 0 < exact < len(examples)
    scores = measure(model, Probe({"writer": examples}, frozenset({1})), 1000)
    assert scores["writer"] == exact / len(examples)
