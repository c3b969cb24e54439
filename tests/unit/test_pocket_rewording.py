"""Weights of earlier prompts go on with the present ones: what is kept, and what new tokens begin as."""

import json

import pytest
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from memory_program.core.errors import ConfigError
from recipes.pocket.pocket_model import ModelShape, make_model
from recipes.pocket.pocket_tokenizer import END, fixed_texts
from recipes.pocket.vocab_migration import init_paired_tokens, migrate_embeddings, migrate_tokenizer
from tests.pocket_samples import small_tokenizer

QUESTION, AGAIN = "\n\n[[ ## question ## ]]\n", "\n\n[[ ## question_again ## ]]\n"


def earlier(renamed: dict[str, str], without: str = "") -> PreTrainedTokenizerFast:
    """Make the tokenizer of prompts that said some things otherwise, and one thing not at all."""
    layout = json.loads(small_tokenizer().backend_tokenizer.to_str())
    kept = [token for token in layout["added_tokens"] if token["content"] != without]
    first = min(token["id"] for token in kept)
    for number, token in enumerate(kept, first):
        token["id"] = number
        token["content"] = renamed.get(token["content"], token["content"])
    layout["added_tokens"] = kept
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(layout)), eos_token=END, pad_token=END
    )


def number_of(tokenizer: PreTrainedTokenizerFast, text: str) -> int:
    (number,) = tokenizer.backend_tokenizer.encode(text).ids
    return number


def test_the_present_prompts_change_nothing():
    made = migrate_tokenizer(small_tokenizer())
    assert made.get_vocab() == small_tokenizer().get_vocab()
    assert made.chat_template == small_tokenizer().chat_template


def test_a_text_that_is_used_no_longer_gives_its_token_to_the_one_most_like_it():
    old = earlier({AGAIN: "\n\n[[ ## question_once_again ## ]]\n", QUESTION: "\n\n[[ ## questions ## ]]\n"})
    made = migrate_tokenizer(old)
    assert number_of(made, AGAIN) == number_of(old, "\n\n[[ ## question_once_again ## ]]\n")
    assert number_of(made, QUESTION) == number_of(old, "\n\n[[ ## questions ## ]]\n")
    assert len(made) == len(old)
    assert all(len(made.backend_tokenizer.encode(text).ids) == 1 for text in fixed_texts())


def test_a_text_that_is_new_gets_a_token_that_begins_as_the_one_most_like_it():
    old = earlier({}, without=AGAIN)
    made = migrate_tokenizer(old)
    assert number_of(made, AGAIN) == len(old) == len(made) - 1
    model = make_model(ModelShape(layers=2), len(old), 0, seed=0)
    before = model.model.embed_tokens.weight.detach().clone()
    migrate_embeddings(model, made)
    after = model.model.embed_tokens.weight
    assert torch.equal(after[:-1], before)
    assert torch.equal(after[-1], before[number_of(old, QUESTION)])
    assert model.lm_head.weight is after
    assert model.config.vocab_size == len(made)


def test_words_begin_alike_at_the_beginning_of_a_line_and_after_a_space():
    tokenizer = small_tokenizer()
    vocabulary = tokenizer.get_vocab()
    both = [word for word in vocabulary if word.isalpha() and f"Ġ{word}" in vocabulary]
    chosen, others = sorted(both)[:2], sorted(both)[2:]
    model = make_model(ModelShape(layers=2), len(tokenizer), 0, seed=0)
    before = model.model.embed_tokens.weight.detach().clone()
    init_paired_tokens(model, tokenizer, chosen)
    after = model.model.embed_tokens.weight.detach()
    differences = [before[vocabulary[word]] - before[vocabulary[f"Ġ{word}"]] for word in others]
    for word in chosen:
        expected = before[vocabulary[f"Ġ{word}"]] + torch.stack(differences).mean(0)
        assert torch.allclose(after[vocabulary[word]], expected, atol=1e-6)
    untouched = [row for row in range(len(tokenizer)) if row not in {vocabulary[word] for word in chosen}]
    assert torch.equal(after[untouched], before[untouched])


def test_words_without_two_tokens_cannot_begin_alike():
    model = make_model(ModelShape(layers=2), len(small_tokenizer()), 0, seed=0)
    with pytest.raises(ConfigError, match=r"alike names \['Zorgblat'\]"):
        init_paired_tokens(model, small_tokenizer(), ["Zorgblat"])
