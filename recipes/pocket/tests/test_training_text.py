"""Training text: the exchanges of the program with the oracle, the same for the same seed; and probes."""

import random
from dataclasses import replace
from functools import lru_cache

import pytest
import torch

from memory_program.agents.signatures import NOT_MENTIONED
from memory_program.worlds import World, generate_worlds, is_held_out
from memory_program.worlds.catalogue import SCHEMAS
from memory_program.worlds.oracle import Exchange
from recipes.pocket.parsed_example import PretrainExample
from recipes.pocket.pocket_model import ModelShape, make_model
from recipes.pocket.pocket_tokenizer import END, chat_text
from recipes.pocket.probes import PretrainProbe, make_pretrain_probe, measure_exact_match
from recipes.pocket.recipe import STAGES
from recipes.pocket.tests.samples import small_tokenizer
from recipes.pocket.training_text import (
    MINOR_FACTS,
    collect_exchanges,
    encode_exchange,
    load_examples,
    make_chunk,
    make_minor_fact_dropout,
    save_examples,
    strip_chatter,
)

BARE = STAGES[1]


@lru_cache
def world_and_exchanges() -> tuple[World, list[Exchange]]:
    world = generate_worlds(3, sessions=(5, 5), questions_per_session=6)[0]
    return world, collect_exchanges(world, random.Random(0))


@lru_cache
def some_chunk(number: int = 0) -> list[PretrainExample]:
    return make_chunk(1, number, BARE, 6000, small_tokenizer())


def test_a_world_gives_four_writers_for_each_session_and_a_reader_for_each_question():
    world, exchanges = world_and_exchanges()
    writers = [exchange for exchange in exchanges if "tool_calls" in exchange.reply]
    assert len(writers) == 4 * len(world.conversation.sessions)
    assert len(exchanges) - len(writers) == len(world.conversation.questions)


def test_the_exchanges_hold_every_kind_of_reply():
    _, exchanges = world_and_exchanges()
    replies = "".join(exchange.reply for exchange in exchanges)
    for part in ('"create"', '"append"', '"tool_calls": []', NOT_MENTIONED, "[[ ## answer ## ]]"):
        assert part in replies
    assert any("(none)" not in exchange.user.partition("excerpts")[2] for exchange in exchanges)


def test_label_dropout_leaves_out_minor_facts_only():
    world, careful = world_and_exchanges()
    careless = collect_exchanges(world, random.Random(0), label_dropout=1.0)
    small = {fact.text for fact in world.facts.values() if fact.schema.name in MINOR_FACTS}
    large = {operation.text for operation in world.operations if operation.text} - small
    written = ["".join(e.reply for e in told if "tool_calls" in e.reply) for told in (careful, careless)]
    assert small
    assert SCHEMAS.keys() > MINOR_FACTS
    assert all(text in written[1] for text in large if text in written[0])
    assert not any(text in written[1] for text in small)
    assert any(text in written[0] for text in small)


def test_a_fact_that_is_dropped_stays_dropped_when_it_changes():
    is_dropped_by = make_minor_fact_dropout(0.5)
    worlds = generate_worlds(5, 20, sessions=(4, 8))
    seen = [
        (world.conversation.conversation_id, world.facts[o.fact_id].key, is_dropped_by(world, o))
        for world in worlds
        for o in world.operations
        if world.facts[o.fact_id].schema.name in MINOR_FACTS
    ]
    verdicts = {(name, key): is_dropped for name, key, is_dropped in seen}
    assert all(verdicts[name, key] == is_dropped for name, key, is_dropped in seen)
    assert 0.4 < sum(verdicts.values()) / len(verdicts) < 0.6
    assert len(verdicts) < len(seen)  # some of them changed


def test_an_example_is_the_chat_and_the_reply_begins_where_the_model_begins():
    _, exchanges = world_and_exchanges()
    tokenizer = small_tokenizer()
    for exchange in exchanges[:8]:
        example = encode_exchange(exchange, tokenizer)
        prompt, reply = example.tokens[: example.reply_start], example.tokens[example.reply_start :]
        assert tokenizer.decode(prompt) == chat_text(exchange.system, exchange.user)
        assert tokenizer.decode(reply) == exchange.reply + END


def test_a_chunk_is_the_same_each_time_and_another_number_gives_another():
    assert some_chunk() == make_chunk(1, 0, BARE, 6000, small_tokenizer())
    assert some_chunk() != some_chunk(1)
    assert some_chunk() != make_chunk(2, 0, BARE, 6000, small_tokenizer())
    total = sum(len(example.tokens) for example in some_chunk())
    assert 6000 <= total < 7000


def test_names_are_permuted_in_a_share_of_the_texts():
    plain, mixed = (
        make_chunk(1, 0, BARE, 20_000, small_tokenizer(), token_permutation=share) for share in (0.0, 0.5)
    )
    assert [len(example.tokens) for example in mixed] == [len(example.tokens) for example in plain]
    changed = sum(one.tokens != other.tokens for one, other in zip(plain, mixed, strict=True))
    assert 0.3 * len(plain) < changed < 0.6 * len(plain)


def test_names_of_held_out_worlds_never_occur_in_training_text():
    for seed in range(20):
        names = generate_worlds(seed, held_out=True)[0].conversation.speakers
        assert all(is_held_out(name) for name in names)
    text = "".join(small_tokenizer().decode(example.tokens) for example in some_chunk())
    speakers = {line.partition(":")[0] for line in text.splitlines() if ": " in line[:12]}
    assert speakers
    assert not any(is_held_out(name) for name in speakers if name.isalpha() and name.istitle())


def test_copy_examples_repeat_the_same_tokens_in_another_order():
    for example in make_chunk(1, 0, STAGES[0], 2000, small_tokenizer()):
        first, second = example.tokens[: example.reply_start], example.tokens[example.reply_start :]
        assert sorted(first) == sorted(second)


def test_most_empty_replies_are_left_out():
    """Of the four writers of a session with one or two facts, about two in three have nothing to write."""
    tokenizer = small_tokenizer()
    examples = [example for number in range(4) for example in some_chunk(number)]
    without = make_chunk(1, 0, replace(BARE, empty_call_share=0.0), 6000, tokenizer)

    def share(texts: list[PretrainExample]) -> float:
        replies = [tokenizer.decode(text.tokens[text.reply_start :]) for text in texts]
        writers = [reply for reply in replies if "tool_calls" in reply]
        return sum('"tool_calls": []' in reply for reply in writers) / len(writers)

    assert 0.2 < share(examples) < 0.5
    assert share(without) == 0


def test_evidence_and_changes_are_where_their_lines_begin_in_the_prompt():
    _, exchanges = world_and_exchanges()
    tokenizer = small_tokenizer()
    told = [exchange for exchange in exchanges if exchange.evidence]
    assert {"tool_calls" in exchange.reply for exchange in told} == {True, False}
    assert any(exchange.changes for exchange in told)
    for exchange in told:
        example = encode_exchange(exchange, tokenizer)
        lines = [exchange.evidence, *exchange.changes]
        for places, expected in zip((example.evidence, *example.changes), lines, strict=True):
            assert len(places) == len(expected)
            for place in places:
                rest = tokenizer.decode(example.tokens[place : example.reply_start])
                assert any(rest.startswith(f"{line}\n") for line in expected)


def test_a_world_without_chatter_has_the_same_replies_in_fewer_words():
    world, exchanges = world_and_exchanges()
    cut = collect_exchanges(strip_chatter(world), random.Random(0))
    assert sorted(exchange.reply for exchange in cut) == sorted(exchange.reply for exchange in exchanges)
    assert sum(len(e.user) for e in cut) < 0.8 * sum(len(e.user) for e in exchanges)


def test_examples_come_back_from_a_file_as_they_were(tmp_path):
    assert any(example.changes for example in some_chunk())
    save_examples(some_chunk(), tmp_path / "0.npz")
    assert load_examples(tmp_path / "0.npz") == some_chunk()
    assert [path.name for path in tmp_path.iterdir()] == ["0.npz"]


def test_a_probe_holds_as_many_of_each_kind_and_only_held_out_names():
    probe = make_pretrain_probe(small_tokenizer(), 1, 4, (2, 4))
    assert {kind: len(examples) for kind, examples in probe.examples_by_kind.items()} == {
        "writer": 4,
        "nothing": 4,
        "reader": 4,
        "abstain": 4,
    }
    reply = probe.examples_by_kind["abstain"][0]
    assert NOT_MENTIONED in small_tokenizer().decode(reply.tokens[reply.reply_start :])


def test_induction_is_the_share_of_repeated_tokens_that_are_predicted():
    """The first weights copy by construction; without its first layer the network does not."""
    texts = [tuple(random.Random(seed).choices(range(1, 200), k=24)) for seed in range(8)]
    repeated = [PretrainExample((*text, *text), 26) for text in texts]
    probe = PretrainProbe({}, frozenset({1}), repeated)
    model = make_model(ModelShape(layers=2), 200, 0, seed=0).eval()
    assert measure_exact_match(model, probe, 1000)["induction"] > 0.9
    with torch.no_grad():
        model.model.layers[0].self_attn.o_proj.weight.zero_()
    assert measure_exact_match(model, probe, 1000)["induction"] < 0.3


@pytest.mark.slow
def test_exact_match_by_one_pass_is_what_greedy_decoding_gives():
    """A network that copies gives some replies exactly; both ways of measuring must agree on which."""
    model = make_model(ModelShape(), 200, 0, seed=0).eval()
    draws = random.Random(5)
    examples: list[PretrainExample] = []
    for _ in range(12):
        said = [draws.randrange(1, 200 if draws.random() < 0.5 else 12) for _ in range(10)]
        examples.append(PretrainExample((*said, *said), 12))
    exact = 0
    for example in examples:
        tokens = list(example.tokens[: example.reply_start])
        with torch.no_grad():
            while len(tokens) < len(example.tokens):
                tokens.append(int(model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
        exact += tuple(tokens) == example.tokens
    assert 0 < exact < len(examples)
    scores = measure_exact_match(model, PretrainProbe({"writer": examples}, frozenset({1}), examples), 1000)
    assert scores["writer"] == exact / len(examples)
