"""The gradient that Arbor makes of a batch: its loss counts the tokens of prompts too, which must cancel."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from memory_program.inference.loading import load_model
from memory_program.rl.backends.arbor.arbor_wire import ArborItem, to_arbor_batch, to_arbor_group
from tests.tiny_model import save_tiny_model
from tests.training_samples import one_thread

FIRST = [{"role": "system", "content": "Remember."}, {"role": "user", "content": "Nate adopted a turtle."}]


def item(reply: str, advantage: float, results: str = "") -> dict[str, Any]:
    user = {"role": "user", "content": f"{FIRST[1]['content']} Results: {results}"}
    return {
        "messages": [FIRST[0], user],
        "completion": {"role": "assistant", "content": reply},
        "reward": 0.0,
        "advantage": advantage,
    }


OPENING = "<|im_start|>assistant\n"
GROUPS = [
    [item("search", 1.0), item("Nate has a turtle.", 1.0, "none"), item("x", -0.5), item("Nate", -0.5)],
    [item("search", -0.7), item("It is named Pebble.", -0.7, "1"), item("ok", 0.7), item("yes", 0.7, "2")],
]


def render(tokenizer: PreTrainedTokenizerBase, sample: ArborItem) -> tuple[str, str]:
    """Split a sample into prompt and completion, as trl 0.23.1 does for Arbor."""
    reply = [sample["completion"]] if sample["completion"] else []
    prompt = str(
        tokenizer.apply_chat_template(sample["messages"], tokenize=False, add_generation_prompt=True)
    )
    whole = str(tokenizer.apply_chat_template([*sample["messages"], *reply], tokenize=False))
    shared = next((n for n, (a, b) in enumerate(zip(prompt, whole)) if a != b), min(len(prompt), len(whole)))  # noqa: B905
    return whole[:shared], whole[shared:]


def logprobs(network: PreTrainedModel, tokens: Sequence[int]) -> torch.Tensor:
    """Log-probabilities of all tokens but the first."""
    ids = torch.tensor([tokens])
    scores = network(input_ids=ids).logits[0, :-1].log_softmax(-1)
    return scores.gather(1, ids[0, 1:, None]).squeeze(1)


def gradient(network: PreTrainedModel, loss: torch.Tensor) -> torch.Tensor:
    found = torch.autograd.grad(loss, list(network.parameters()), retain_graph=True, allow_unused=True)
    return torch.cat([part.flatten() for part in found if part is not None])


def test_arbors_loss_trains_on_replies_alone_also_in_later_turns(tmp_path: Path):
    loaded = load_model(str(save_tiny_model(tmp_path, "llama", loudness=2.0)), "cpu", torch.float64)
    network, tokenizer = loaded.network, loaded.tokenizer

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    groups = [group for given in GROUPS if (group := to_arbor_group(given)) is not None]
    batch = to_arbor_batch(groups, 16)
    first = [group[0]["messages"] for group in GROUPS]
    with one_thread():
        arbor = wanted = uncancelled = torch.zeros(())
        tokens = 0
        for sample in batch:
            prompt, completion = map(ids, render(tokenizer, sample))
            scores, reward = logprobs(network, [*prompt, *completion]), sample["reward"]
            arbor = arbor - reward * scores.sum()
            tokens += len(completion)
            if sample["completion"]:
                uncancelled = uncancelled - reward * scores.sum()
                # the counterpart of a later turn does not open a reply
                opening = 0 if sample["messages"] in first else len(ids(OPENING))
                wanted = wanted - reward * scores[len(prompt) - 1 - opening :].sum()
        made, meant, without = (gradient(network, loss / tokens) for loss in (arbor, wanted, uncancelled))
    assert tokens == sum(len(ids(render(tokenizer, one)[1])) for group in GROUPS for one in group)
    assert torch.allclose(made, meant, atol=1e-6, rtol=0)  # norms are computed in float32
    assert (without - meant).abs().max() > 0.01
