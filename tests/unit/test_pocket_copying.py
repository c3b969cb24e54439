"""The copy loss: what it scores is the attention of the last layer, and nothing else."""

import math

import pytest
import torch
from transformers import LlamaForCausalLM

from memory_program.pocket.copying import CopyLoss
from memory_program.pocket.examples import Example
from memory_program.pocket.model import COPY_HEADS, Shape, make_model
from memory_program.pocket.probes import padded
from tests.pocket_samples import small_tokenizer

PROMPT = "Ava: I moved to Zorbek.\nBen: Is it far from Lund?"
REPLIES = ("Ava moved to Zorbek.", "Ben asked about Lund, not Oslo.", "Zorbek 7")


def example(prompt: str, reply: str) -> Example:
    encode = small_tokenizer().backend_tokenizer.encode
    ids = encode(prompt).ids
    return Example((*ids, *encode(reply).ids), len(ids))


@pytest.fixture
def model() -> LlamaForCausalLM:
    return make_model(Shape(layers=3), len(small_tokenizer()), 0, seed=0, copies=True).train()


def copy_loss(model: LlamaForCausalLM, group: list[Example]) -> torch.Tensor:
    scored = CopyLoss(model, small_tokenizer())
    tokens, _ = padded(group, model.device)
    model(input_ids=tokens, use_cache=False)
    return scored(group, tokens)


def looked_up(model: LlamaForCausalLM, group: list[Example], is_copied) -> float:
    """The same figure, token by token, from the attentions that transformers gives."""
    model.set_attn_implementation("eager")
    losses: list[float] = []
    for one in group:
        with torch.no_grad():
            shares = model(input_ids=torch.tensor([one.tokens]), output_attentions=True).attentions[-1][0]
        for at in range(one.reply_start, len(one.tokens)):
            places = [p for p in range(one.reply_start) if one.tokens[p] == one.tokens[at]]
            if places and is_copied(one.tokens[at]):
                losses += (-shares[:COPY_HEADS, at - 1, places].sum(-1).log()).tolist()
    return sum(losses) / len(losses)


def test_it_is_the_attention_to_where_the_next_token_stands_in_the_prompt(model):
    tokenizer = small_tokenizer()

    def is_copied(token: int) -> bool:
        text = tokenizer.decode([token])  # a piece of a name has no space before it: "to" of "Tomato" counts
        return text.strip().isalnum() and text != " to"

    group = [example(PROMPT, reply) for reply in REPLIES]
    assert math.isclose(copy_loss(model, group).item(), looked_up(model, group, is_copied), rel_tol=1e-4)


def test_a_reply_with_nothing_of_its_prompt_costs_nothing(model):
    loss = copy_loss(model, [example("x", "Not mentioned")])
    loss.backward()
    assert loss.item() == 0


def test_by_itself_it_teaches_a_head_where_to_look(model):
    group = [example(PROMPT, reply) for reply in REPLIES]
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    losses: list[float] = []
    for _ in range(15):
        loss = copy_loss(model, group)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_without_a_forward_pass_there_is_nothing_to_score(model):
    scored = CopyLoss(model, small_tokenizer())
    model.eval()
    group = [example(PROMPT, REPLIES[0])]
    tokens, _ = padded(group, model.device)
    model(input_ids=tokens, use_cache=False)
    with pytest.raises(AssertionError, match="not run in training"):
        scored(group, tokens)
