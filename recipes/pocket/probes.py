"""Probes: how often the model replies exactly as the oracle does, in worlds whose words it never saw.

Greedy decoding gives the oracle's reply if and only if every token of it is the most likely one after the
tokens before it. So one forward pass measures exact match, and nothing has to be generated.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from memory_program.agents.signatures import NOT_MENTIONED
from memory_program.worlds import generate_worlds
from recipes.pocket.batches import PaddedExamples, group_by_length
from recipes.pocket.parsed_example import PretrainExample
from recipes.pocket.pocket_tokenizer import SPACE
from recipes.pocket.training_text import collect_exchanges, encode_exchange, has_no_calls

_REPEATED_TOKENS, _SEEN_AGAIN = 48, 2  # length of a random text, and tokens of its repetition in the prompt


@dataclass(frozen=True, slots=True)
class PretrainProbe:
    """Replies to reproduce, by kind, and random texts that are repeated.

    ``open_tokens`` are the tokens that open words are made of; ``repeated`` is made of these only.
    """

    examples_by_kind: dict[str, list[PretrainExample]]
    open_tokens: frozenset[int]
    repeated: list[PretrainExample]


def make_pretrain_probe(
    tokenizer: PreTrainedTokenizerFast, seed: int, size: int, sessions: tuple[int, int]
) -> PretrainProbe:
    """Make a probe from held-out worlds: ``size`` examples of each kind, and as many random texts.

    The kinds are ``writer`` (something to write), ``nothing`` (nothing to write), ``reader`` (an answer to
    give) and ``abstain`` (no answer to give).
    """
    rng = random.Random(f"probe:{seed}")
    kinds: dict[str, list[PretrainExample]] = {"writer": [], "nothing": [], "reader": [], "abstain": []}
    number = 0
    while any(len(examples) < size for examples in kinds.values()):
        world = generate_worlds(seed + number, sessions=sessions, held_out=True)[0]
        number += 1
        exchanges = collect_exchanges(world, rng)
        for exchange in rng.sample(exchanges, min(len(exchanges), size)):
            if "tool_calls" in exchange.reply:
                kind = "nothing" if has_no_calls(exchange) else "writer"
            else:
                kind = "abstain" if NOT_MENTIONED in exchange.reply else "reader"
            if len(kinds[kind]) < size:
                kinds[kind].append(encode_exchange(exchange, tokenizer))
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    pieces = frozenset(token for word, token in vocabulary.items() if word.isalpha() and word[0] != SPACE)
    texts = [rng.choices(sorted(pieces), k=_REPEATED_TOKENS) for _ in range(size)]
    repeated = [PretrainExample((*text, *text), _REPEATED_TOKENS + _SEEN_AGAIN) for text in texts]
    return PretrainProbe(kinds, pieces, repeated)


@torch.no_grad()
def measure_exact_match(model: LlamaForCausalLM, probe: PretrainProbe, batch_tokens: int) -> dict[str, float]:
    """Measure the share of replies that a model reproduces exactly, and the share of tokens.

    Returns:
        ``writer``, ``nothing``, ``reader``, ``abstain``: share of exact replies of a kind, from 0 to 1.
        ``tokens``: share of right tokens in the replies of writers and readers, after the right ones;
        ``copied``: the same of the tokens that open words are made of. ``induction``: share of right tokens
        in the repetition of a random text, without its first two (Olsson et al. 2022, arXiv 2209.11895).
    """
    scores: dict[str, float] = {}
    open_tokens = torch.tensor(sorted(probe.open_tokens), device=model.device)
    counts = torch.zeros(4, dtype=torch.long, device=model.device)
    for kind, examples in probe.examples_by_kind.items():
        exact = 0
        for tokens, is_reply, is_right in _predict_batches(model, examples, batch_tokens):
            exact += int((is_right | ~is_reply).all(dim=1).sum())
            if kind in ("writer", "reader"):
                is_open = is_reply & torch.isin(tokens, open_tokens)
                masks = (is_right & is_reply, is_reply, is_right & is_open, is_open)
                counts += torch.stack([mask.sum() for mask in masks])
        scores[kind] = exact / len(examples)
    right, replied, copied, open_count = counts.tolist()
    repetitions = _predict_batches(model, probe.repeated, batch_tokens)
    is_repeated = torch.cat([is_right[is_reply] for _, is_reply, is_right in repetitions])
    return {
        **scores,
        "tokens": right / max(1, replied),
        "copied": copied / max(1, open_count),
        "induction": is_repeated.float().mean().item(),
    }


def _predict_batches(
    model: LlamaForCausalLM, examples: Sequence[PretrainExample], batch_tokens: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield, for each batch, the tokens, which belong to replies, and which are predicted right."""
    for group in group_by_length(examples, batch_tokens, random.Random(0)):
        layout = PaddedExamples.from_examples(group)
        tokens = torch.from_numpy(layout.tokens).to(model.device)
        is_reply = torch.from_numpy(layout.is_reply[:, 1:]).to(model.device)
        predicted = model(input_ids=tokens, use_cache=False).logits[:, :-1].argmax(-1)
        yield tokens[:, 1:], is_reply, predicted == tokens[:, 1:]
