"""Examples that share a row are learned from as if each stood alone."""

import random
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AttentionInterface

from memory_program.pocket.asking import Marks
from memory_program.pocket.examples import chunk
from memory_program.pocket.layout import Batch, Example, Layout, Row, alone, batches, grouped, shared_rows
from memory_program.pocket.model import Shape, layers_of, make_model
from memory_program.pocket.recipe import STAGES
from memory_program.pocket.side_tasks import is_seen
from memory_program.pocket.training import causal
from tests.pocket_samples import small_tokenizer


@lru_cache
def some_examples() -> list[Example]:
    return chunk(1, 0, STAGES[1], 6000, small_tokenizer(), together=8)


@lru_cache
def some_batches(batch_tokens: int = 1000, prompt_weight: float = 0.05) -> list[Batch]:
    marks = Marks.of(small_tokenizer())
    return batches(some_examples(), batch_tokens, prompt_weight, marks, random.Random(0))


def shared() -> list[Row]:
    return [row for row in shared_rows(some_examples()) if len(row.examples) > 1]


def test_examples_that_begin_alike_share_a_row_and_every_example_is_in_one():
    rows = shared_rows(some_examples())
    assert [example for row in rows for example in row.examples] == some_examples()
    assert shared()
    for row in shared():
        assert len({example.tokens[: row.shared] for example in row.examples}) == 1
        assert all(row.shared < example.reply_start - 1 for example in row.examples)
    assert sum(row.length for row in rows) < 0.7 * sum(len(example.tokens) for example in some_examples())


def test_examples_with_little_in_common_stay_alone():
    first, second = Example((1, 2, 3, 4, 5, 6, 7, 8), 7), Example((1, 2, 3, 9, 9, 9, 9, 9), 7)
    third = Example((1, 2, 3, 9, 9, 9, 8, 8), 7)
    assert shared_rows([first, second, third]) == [Row((first,)), Row((second, third), 5)]


def test_a_row_is_laid_out_by_hand():
    row = Row((Example((1, 2, 3, 4, 5), 4), Example((1, 2, 6, 7, 8, 9), 5)), 2)
    layout = Layout.of([row, Row((Example((5, 6), 1),))])
    assert layout.tokens.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8, 9], [5, 6, 0, 0, 0, 0, 0, 0, 0]]
    assert layout.positions.tolist() == [[0, 1, 2, 3, 4, 2, 3, 4, 5], [0, 1, 0, 0, 0, 0, 0, 0, 0]]
    assert layout.segments.tolist() == [[0, 0, 1, 1, 1, 2, 2, 2, 2], [1, 1, 0, 0, 0, 0, 0, 0, 0]]
    assert np.argwhere(layout.is_reply).tolist() == [[0, 4], [0, 8], [1, 1]]


def test_what_an_example_of_a_row_predicts_is_what_it_predicts_alone():
    AttentionInterface.register("causal", causal)
    model = make_model(Shape(layers=3), len(small_tokenizer()), 0, seed=0).eval()
    row = max(shared(), key=lambda row: len(row.examples))
    layout = Layout.of([row])
    segments = torch.from_numpy(layout.segments)
    seen = is_seen(segments[:, None, None], segments[:, None, :, None]).tril()
    with torch.no_grad():
        together = _predicted(model, layout, seen)[0]
        for start, example in zip(row.starts, row.examples, strict=True):
            by_itself = model(input_ids=torch.tensor([example.tokens])).logits[0, row.shared :]
            own = together[start : start + len(by_itself)]
            assert torch.allclose(own, by_itself, atol=1e-3)


def _predicted(model: Any, layout: Layout, mask: torch.Tensor) -> torch.Tensor:  # Any: a transformers model
    body, positions = model.model, torch.from_numpy(layout.positions)
    stream = body.embed_tokens(torch.from_numpy(layout.tokens))
    model.set_attn_implementation("causal")
    for layer in layers_of(model):
        rotary = body.rotary_emb(stream, positions)
        stream = layer(stream, attention_mask=mask, position_embeddings=rotary, position_ids=positions)
    model.set_attn_implementation("sdpa")
    return model.lm_head(body.norm(stream))


@pytest.mark.parametrize("limit", [300, 1000])
def test_groups_hold_every_row_once_and_keep_to_their_size_when_padded(limit):
    rows = shared_rows(some_examples())
    groups = grouped(rows, limit, random.Random(0))
    for group in groups:
        longest = max(row.length for row in group)
        assert len(group) == 1 or longest * len(group) <= limit
    everything = [row for group in groups for row in group]
    assert sorted(row.examples[0].tokens for row in everything) == sorted(
        row.examples[0].tokens for row in rows
    )


def test_padding_changes_nothing_before_it():
    model = make_model(Shape(layers=2), len(small_tokenizer()), 0, seed=0).eval()
    examples = sorted(some_examples(), key=lambda example: len(example.tokens))
    short, long = examples[0], examples[-1]
    layout = Layout.of(alone([short, long]))
    with torch.no_grad():
        together = model(input_ids=torch.from_numpy(layout.tokens)).logits[0, : len(short.tokens)]
        by_itself = model(input_ids=torch.tensor([short.tokens])).logits[0]
    assert torch.allclose(together, by_itself, atol=1e-4)
    assert layout.is_reply.sum(1).tolist() == [len(e.tokens) - e.reply_start for e in (short, long)]


def test_a_batch_counts_every_token_of_a_reply_and_a_share_of_the_prompts():
    made = some_batches(prompt_weight=0.25)
    rows = shared_rows(some_examples())
    assert sum(batch.size for batch in made) == sum(row.length for row in rows)
    replies = sum(len(e.tokens) - e.reply_start for e in some_examples())
    assert sum(int(batch.is_reply.sum()) for batch in made) == replies
    counted = sum(len(batch.places) for batch in made) - replies
    prompts = sum(row.length for row in rows) - replies
    assert 0.2 * prompts < counted < 0.3 * prompts
    for batch in made:
        targets = batch.layout.tokens[:, 1:].ravel()[batch.places[batch.is_reply]]
        assert small_tokenizer().eos_token_id in targets


def test_no_token_is_predicted_from_one_of_another_example():
    for batch in some_batches(prompt_weight=1.0):
        rows, before = np.divmod(batch.places, batch.layout.tokens.shape[1] - 1)
        positions = batch.layout.positions
        assert (positions[rows, before + 1] == positions[rows, before] + 1).all()


def test_without_weight_no_token_of_a_prompt_counts():
    assert all(batch.is_reply.all() for batch in some_batches(prompt_weight=0.0))


def test_a_batch_asks_about_its_examples_where_they_lie():
    marks = Marks.of(small_tokenizer())
    for batch in some_batches():
        tokens, segments = batch.layout.tokens, batch.layout.segments
        assert batch.lines.shape == (len(batch.asked), 4)
        assert 0 < len(batch.asked) < 0.1 * batch.size + 10 * int(segments.max(1).sum())
        for row, place, first, end in batch.pointers:
            assert 0 <= first < end <= place < tokens.shape[1]
            assert not marks.is_break[tokens[row, first:end]].any() or (first, end) == (0, 1)
            assert set(segments[row, first:end]) <= {0, segments[row, place]}
