"""Probes: how often the model would reply exactly as the oracle does, in worlds whose words it never saw.

Greedy decoding gives the oracle's reply if and only if every token of it is the most likely one after those
before it. So one forward pass measures exact match, and nothing has to be generated.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from memory_program.agents.signatures import NOT_MENTIONED
from memory_program.worlds import generate_worlds
from recipes.pocket.example import PretrainExample
from recipes.pocket.examples import collect_exchanges, encode_exchange, has_no_calls
from recipes.pocket.pocket_tokenizer import SPACE
from recipes.pocket.token_layout import PaddedExamples, group_by_length

_REPEATED, _BEGUN = 48, 2  # random tokens that are said twice, and how many have to be seen again first


@dataclass(frozen=True, slots=True)
class PretrainProbe:
    """Replies to reproduce, and random tokens that are said twice.

    ``open_tokens`` are those that words are pieced together from; ``repeated`` are of these only.
    """

    examples_by_kind: dict[str, list[PretrainExample]]
    open_tokens: frozenset[int]
    repeated: list[PretrainExample]


def make_pretrain_probe(
    tokenizer: PreTrainedTokenizerFast, seed: int, size: int, sessions: tuple[int, int]
) -> PretrainProbe:
    """Make a probe from held-out worlds: ``size`` examples of each kind, and as many random texts.

    The kinds are ``writer`` (something to write), ``nothing`` (nothing to), ``reader`` (an answer to give)
    and ``abstain`` (none).
    """
    rng = random.Random(f"probe:{seed}")
    kinds: dict[str, list[PretrainExample]] = {"writer": [], "nothing": [], "reader": [], "abstain": []}
    number = 0
    while any(len(examples) < size for examples in kinds.values()):
        world = generate_worlds(seed + number, sessions=sessions, held_out=True)[0]
        number += 1
        found = collect_exchanges(world, rng)
        for exchange in rng.sample(found, min(len(found), size)):
            is_writer = "tool_calls" in exchange.reply
            fails = has_no_calls(exchange) if is_writer else NOT_MENTIONED in exchange.reply
            kind = ("nothing" if fails else "writer") if is_writer else ("abstain" if fails else "reader")
            if len(kinds[kind]) < size:
                kinds[kind].append(encode_exchange(exchange, tokenizer))
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    pieces = frozenset(number for word, number in vocabulary.items() if word.isalpha() and word[0] != SPACE)
    texts = [rng.choices(sorted(pieces), k=_REPEATED) for _ in range(size)]
    return PretrainProbe(
        kinds, pieces, [PretrainExample((*text, *text), _REPEATED + _BEGUN) for text in texts]
    )


@torch.no_grad()
def measure_exact_match(model: LlamaForCausalLM, probe: PretrainProbe, batch_tokens: int) -> dict[str, float]:
    """Measure a model: the share of replies of each kind that are exact, and of open tokens in the writers'.

    Returns:
        ``writer``, ``nothing``, ``reader``, ``abstain``: exact replies, from 0 to 1. And of the replies of
        writers and readers, the share of tokens that come out right after the right ones: ``tokens`` of all,
        ``copied`` of those that open words are pieced together from. ``induction`` is that share for random
        tokens that are said a second time, but for the first two (Olsson et al. 2022, arXiv 2209.11895).
    """
    scores: dict[str, float] = {}
    counts = torch.zeros(4, dtype=torch.long, device=model.device)
    for kind, examples in probe.examples_by_kind.items():
        exact = 0
        for tokens, is_reply, is_right in _predict_batches(model, examples, batch_tokens):
            exact += int((is_right | ~is_reply).all(dim=1).sum())
            if kind in ("writer", "reader"):
                is_open = is_reply & torch.isin(tokens, _tensor(probe.open_tokens, model.device))
                of = (is_right & is_reply, is_reply, is_right & is_open, is_open)
                counts += torch.stack([mask.sum() for mask in of])
        scores[kind] = exact / len(examples)
    right, told, copied, of_open = counts.tolist()
    again = torch.cat(
        [
            is_right[is_reply]
            for _, is_reply, is_right in _predict_batches(model, probe.repeated, batch_tokens)
        ]
    )
    return {
        **scores,
        "tokens": right / max(1, told),
        "copied": copied / max(1, of_open),
        "induction": again.float().mean().item(),
    }


def _predict_batches(
    model: LlamaForCausalLM, examples: Sequence[PretrainExample], batch_tokens: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Read examples in batches: the tokens, which are replies', which come out right; each (rows, tokens)."""
    for group in group_by_length(examples, batch_tokens, random.Random(0)):
        layout = PaddedExamples.from_examples(group)
        tokens = torch.from_numpy(layout.tokens).to(model.device)
        is_reply = torch.from_numpy(layout.is_reply[:, 1:]).to(model.device)
        likely = model(input_ids=tokens, use_cache=False).logits[:, :-1].argmax(-1)
        yield tokens[:, 1:], is_reply, likely == tokens[:, 1:]


def _tensor(numbers: frozenset[int], device: torch.device) -> Tensor:
    return torch.tensor(sorted(numbers), device=device)
