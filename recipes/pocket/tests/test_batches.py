"""A batch is learned from as if each example stood alone."""

import random
from functools import lru_cache

import numpy as np
import pytest
import torch

from recipes.pocket.batches import PaddedExamples, PretrainBatch, group_by_length, make_batches
from recipes.pocket.parsed_example import MarkerTokens, PretrainExample
from recipes.pocket.pocket_model import ModelShape, make_model
from recipes.pocket.recipe import STAGES
from recipes.pocket.tests.samples import small_tokenizer
from recipes.pocket.training_text import make_chunk


@lru_cache
def some_examples() -> list[PretrainExample]:
    return make_chunk(1, 0, STAGES[1], 6000, small_tokenizer())


@lru_cache
def some_batches(batch_tokens: int = 1000, prompt_weight: float = 0.05) -> list[PretrainBatch]:
    marks = MarkerTokens.from_tokenizer(small_tokenizer())
    return make_batches(some_examples(), batch_tokens, prompt_weight, marks, random.Random(0))


def test_examples_are_laid_out_by_hand():
    layout = PaddedExamples.from_examples([PretrainExample((1, 2, 3, 4), 3), PretrainExample((5, 6), 1)])
    assert layout.tokens.shape == (2, 16)  # a multiple of 16
    assert layout.tokens[:, :4].tolist() == [[1, 2, 3, 4], [5, 6, 0, 0]]
    assert not layout.tokens[:, 4:].any()
    assert np.argwhere(layout.is_reply).tolist() == [[0, 3], [1, 1]]


@pytest.mark.parametrize("limit", [300, 1000])
def test_groups_hold_every_example_once_and_keep_to_their_padded_size(limit):
    groups = group_by_length(some_examples(), limit, random.Random(0))
    for group in groups:
        assert len(group) == 1 or PaddedExamples.from_examples(group).tokens.size <= limit
    everything = [example.tokens for group in groups for example in group]
    assert sorted(everything) == sorted(example.tokens for example in some_examples())


def test_padding_changes_nothing_before_it():
    model = make_model(ModelShape(layers=2), len(small_tokenizer()), 0, seed=0).eval()
    examples = sorted(some_examples(), key=lambda example: len(example.tokens))
    short, long = examples[0], examples[-1]
    layout = PaddedExamples.from_examples([short, long])
    with torch.no_grad():
        together = model(input_ids=torch.from_numpy(layout.tokens)).logits[0, : len(short.tokens)]
        by_itself = model(input_ids=torch.tensor([short.tokens])).logits[0]
    assert torch.allclose(together, by_itself, atol=1e-4)
    assert layout.is_reply.sum(1).tolist() == [len(e.tokens) - e.reply_start for e in (short, long)]


def test_a_batch_counts_every_token_of_a_reply_and_a_share_of_the_prompts():
    made = some_batches(prompt_weight=0.25)
    tokens = sum(len(example.tokens) for example in some_examples())
    assert sum(batch.size for batch in made) == tokens
    replies = sum(len(e.tokens) - e.reply_start for e in some_examples())
    assert sum(int(batch.is_reply.sum()) for batch in made) == replies
    counted = sum(len(batch.places) for batch in made) - replies
    assert 0.2 * (tokens - replies) < counted < 0.3 * (tokens - replies)
    for batch in made:
        expected = batch.layout.tokens[:, 1:].ravel()[batch.places[batch.is_reply]]
        assert small_tokenizer().eos_token_id in expected


def test_without_weight_no_token_of_a_prompt_counts():
    assert all(batch.is_reply.all() for batch in some_batches(prompt_weight=0.0))


def test_auxiliary_targets_point_into_the_rows_of_their_examples():
    marks = MarkerTokens.from_tokenizer(small_tokenizer())
    taken = 0
    for batch in some_batches():
        tokens, targets = batch.layout.tokens.ravel(), batch.aux_targets
        width = batch.layout.tokens.shape[1]
        assert 0 < len(targets.lines) < 0.1 * batch.size + 10 * len(batch.layout.tokens)
        for place, first, end in targets.pointers:
            assert place // width * width <= first < end <= place
            assert not marks.is_break[tokens[first:end]].any() or (first, end) == (first, first + 1)
        assert not marks.is_break[tokens[targets.words[:, 0]]].any()
        assert set(targets.matches[:, 0]) <= set(targets.words[:, 0])
        assert set(targets.answers[:, 0]) <= set(targets.matches[targets.matches[:, 1] == 1, 0])
        taken += int(targets.words[:, 2].sum())
    assert taken
