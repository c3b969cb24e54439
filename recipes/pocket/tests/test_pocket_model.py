"""The first weights of the network copy before it has learned anything."""

import pytest
import torch
from transformers import LlamaForCausalLM

from recipes.pocket.pocket_model import ModelShape, make_model

VOCABULARY = 1000


@pytest.fixture(scope="module")
def fresh() -> LlamaForCausalLM:
    return make_model(ModelShape(), VOCABULARY, 0, seed=0).eval()


def next_tokens(model: LlamaForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=tokens).logits.argmax(-1)


@pytest.mark.parametrize("length", [16, 64, 128])
def test_a_fresh_network_continues_a_text_that_it_reads_for_the_second_time(fresh, length):
    once = torch.randint(1, VOCABULARY, (8, length), generator=torch.Generator().manual_seed(length))
    twice = torch.cat((once, once), dim=1)
    said = next_tokens(fresh, twice)[:, length + 1 : -1]
    assert (said == twice[:, length + 2 :]).float().mean() > 0.97


def test_of_two_places_it_copies_from_the_one_with_the_same_token_before(fresh):
    draws = torch.Generator().manual_seed(1)
    right = 0
    for _ in range(50):
        a, b, shared, x, y, *noise = (torch.randperm(VOCABULARY - 1, generator=draws) + 1)[:25].tolist()
        context = [*noise[:8], a, shared, x, *noise[8:14], b, shared, y, *noise[14:], a, shared]
        right += int(next_tokens(fresh, torch.tensor([context]))[0, -1] == x)
    assert right >= 45


def test_without_these_first_weights_the_network_does_not_copy():
    model = LlamaForCausalLM(make_model(ModelShape(), VOCABULARY, 0, seed=0).config)
    once = torch.randint(1, VOCABULARY, (8, 32), generator=torch.Generator().manual_seed(3))
    twice = torch.cat((once, once), dim=1)
    assert (next_tokens(model, twice)[:, 33:-1] == twice[:, 34:]).float().mean() < 0.1


def test_the_same_seed_gives_the_same_weights_and_another_seed_others():
    first, again, other = (make_model(ModelShape(layers=2), 50, 0, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_the_architecture_is_a_plain_llama_that_other_programs_load(fresh, tmp_path):
    fresh.save_pretrained(tmp_path)
    loaded = LlamaForCausalLM.from_pretrained(tmp_path)
    tokens = torch.arange(1, 40)[None]
    assert torch.equal(next_tokens(loaded, tokens), next_tokens(fresh, tokens))
    assert loaded.config.tie_word_embeddings
    assert loaded.config.rope_parameters["rope_theta"] == 1e6


def test_it_has_the_promised_size():
    model = make_model(ModelShape(), 3072, 0, seed=0)
    assert 3_000_000 < model.num_parameters() < 8_000_000
