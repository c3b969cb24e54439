"""Words that are two tokens: what a drill teaches, and which answers it is made of."""

import random
from itertools import islice
from pathlib import Path

import pytest
import torch

from memory_program.core.errors import ConfigError
from recipes.pocket import first_token_finetune as drill
from recipes.pocket.example import PretrainExample
from recipes.pocket.first_token_finetune import paired_words, train_first_tokens
from recipes.pocket.pocket_model import ModelShape, make_model
from recipes.pocket.pocket_tokenizer import END
from recipes.pocket.recipe import PretrainConfig
from tests.pocket_samples import small_tokenizer

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def test_a_drill_teaches_how_answers_begin():
    rng = random.Random(0)
    model = make_model(ModelShape(layers=2), 400, 0, seed=0)
    # Each prompt tells one of seven tokens somewhere, and is answered, after a marker, by its twin.
    told = [(*(rng.randrange(20, 400) for _ in range(12)), 1 + day, 9) for day in range(7)]
    examples = [PretrainExample((*prompt, 10, 11 + day, 0), len(prompt)) for day, prompt in enumerate(told)]
    prompts = torch.tensor([example.tokens[: example.reply_start + 1] for example in examples])
    answers = torch.tensor([example.tokens[example.reply_start + 1] for example in examples])

    def share_right() -> float:
        with torch.no_grad():
            return (model(prompts).logits[:, -1].argmax(-1) == answers).float().mean().item()

    assert share_right() < 0.5
    assert train_first_tokens(model, examples, seed=0) > 0.9
    assert share_right() > 0.9


def test_a_drill_is_made_of_answers_that_begin_with_its_words():
    tokenizer = small_tokenizer()
    examples = list(islice(drill._answer_examples(tokenizer, DAYS, seed=3), 3))
    assert len(examples) == 3
    for example in examples:
        reply = tokenizer.decode(example.tokens[example.reply_start :])
        assert reply.startswith("[[ ## answer ## ]]\n")
        assert reply.removeprefix("[[ ## answer ## ]]\n").split("\n")[0].split(",")[0] in DAYS
        assert reply.rstrip().endswith(END)


def test_words_that_no_answer_begins_with_cannot_be_drilled(monkeypatch):
    monkeypatch.setattr(drill, "_CHUNKS", 1)
    model = make_model(ModelShape(layers=2), len(small_tokenizer()), 0, seed=0)
    with pytest.raises(ConfigError, match=r"no answer begins with \['concatenate'\]"):
        drill.finetune_first_tokens(model, small_tokenizer(), ["concatenate"], seed=3)


def test_what_is_not_trained_before_or_after_cannot_be_drilled():
    with pytest.raises(ConfigError, match="alike='Monday' teaches what was trained before"):
        PretrainConfig(out=Path("nowhere"), alike="Monday", first_stage="full")
    with pytest.raises(ConfigError, match="before whole conversations, which last_stage='short' leaves out"):
        PretrainConfig(out=Path("nowhere"), alike="Monday", last_stage="short")


def test_from_scratch_all_words_that_answers_begin_with_are_drilled():
    def words(**settings) -> tuple[str, ...]:
        return paired_words(PretrainConfig(out=Path("nowhere"), **settings))

    assert {*DAYS, "March", "attic"} < set(words())
    assert words(alike="Monday,Friday") == ("Monday", "Friday")
    assert words(alike="") == words(weights=Path("earlier")) == words(first_stage="full") == ()
    assert words(last_stage="short") == ()
