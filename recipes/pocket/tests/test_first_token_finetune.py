"""The fine-tuning on the first tokens of answers: its words, its examples and its effect."""

import random
from itertools import islice
from pathlib import Path

import pytest
import torch

from memory_program.core.errors import ConfigError
from recipes.pocket import first_token_finetune as finetune
from recipes.pocket.first_token_finetune import (
    answers_beginning_with,
    init_paired_tokens,
    paired_words,
    train_first_tokens,
)
from recipes.pocket.parsed_example import PretrainExample
from recipes.pocket.pocket_model import ModelShape, make_model
from recipes.pocket.pocket_tokenizer import END
from recipes.pocket.recipe import PretrainConfig
from recipes.pocket.tests.samples import small_tokenizer

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@pytest.mark.slow
def test_fine_tuning_teaches_the_first_token_of_answers():
    rng = random.Random(0)
    model = make_model(ModelShape(layers=2), 400, 0, seed=0)
    # Each prompt holds one of seven tokens, and the answer, after a marker, is the token paired with it.
    prompts_of_7 = [(*(rng.randrange(20, 400) for _ in range(12)), 1 + day, 9) for day in range(7)]
    examples = [
        PretrainExample((*prompt, 10, 11 + day, 0), len(prompt)) for day, prompt in enumerate(prompts_of_7)
    ]
    prompts = torch.tensor([example.tokens[: example.reply_start + 1] for example in examples])
    answers = torch.tensor([example.tokens[example.reply_start + 1] for example in examples])

    def share_right() -> float:
        with torch.no_grad():
            return (model(prompts).logits[:, -1].argmax(-1) == answers).float().mean().item()

    assert share_right() < 0.5
    assert train_first_tokens(model, examples, seed=0) > 0.9
    assert share_right() > 0.9


def test_the_examples_are_answers_that_begin_with_the_words():
    tokenizer = small_tokenizer()
    examples = list(islice(answers_beginning_with(tokenizer, DAYS, seed=3), 3))
    assert len(examples) == 3
    for example in examples:
        reply = tokenizer.decode(example.tokens[example.reply_start :])
        assert reply.startswith("[[ ## answer ## ]]\n")
        assert reply.removeprefix("[[ ## answer ## ]]\n").split("\n")[0].split(",")[0] in DAYS
        assert reply.rstrip().endswith(END)


def test_words_that_no_answer_begins_with_are_refused(monkeypatch):
    monkeypatch.setattr(finetune, "_CHUNKS", 1)
    model = make_model(ModelShape(layers=2), len(small_tokenizer()), 0, seed=0)
    with pytest.raises(ConfigError, match=r"no answer begins with \['concatenate'\]"):
        finetune.finetune_first_tokens(model, small_tokenizer(), ["concatenate"], seed=3)


def test_the_last_stage_does_not_come_before_the_first():
    with pytest.raises(ConfigError, match="last_stage='bare' comes before first_stage='short'"):
        PretrainConfig(out=Path("nowhere"), first_stage="short", last_stage="bare")


def test_paired_tokens_need_a_training_before_and_after_them():
    with pytest.raises(ConfigError, match="paired_tokens='Monday' needs a network that was trained before"):
        PretrainConfig(out=Path("nowhere"), paired_tokens="Monday", first_stage="full")
    with pytest.raises(ConfigError, match="and last_stage='short' leaves that out"):
        PretrainConfig(out=Path("nowhere"), paired_tokens="Monday", last_stage="short")


def test_from_scratch_all_words_that_answers_begin_with_are_paired():
    def words(**settings) -> tuple[str, ...]:
        return paired_words(PretrainConfig(out=Path("nowhere"), **settings))

    assert {*DAYS, "March", "attic"} < set(words())
    assert words(paired_tokens="Monday,Friday") == ("Monday", "Friday")
    assert words(paired_tokens="") == words(weights=Path("earlier")) == words(first_stage="full") == ()
    assert words(last_stage="short") == ()


def test_paired_tokens_start_from_the_token_after_a_space():
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


def test_words_without_two_tokens_cannot_be_paired():
    model = make_model(ModelShape(layers=2), len(small_tokenizer()), 0, seed=0)
    with pytest.raises(ConfigError, match=r"paired_tokens names \['Zorgblat'\]"):
        init_paired_tokens(model, small_tokenizer(), ["Zorgblat"])
