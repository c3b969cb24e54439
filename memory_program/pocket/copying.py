"""The copy loss: where the last layer looks while a reply repeats a word of its prompt.

The loss on tokens says what was to be said, and leaves it to chance where the model should have read it. Here
a few heads, laid out to carry the token they look at into the output, are told: when the next token of the
reply stands in the prompt, look at it. It is the loss of a pointer network (Vinyals et al. 2015, arXiv
1506.03134) summed over all places where the token stands, as a copy mechanism does it (Gu et al. 2016, ACL).
It changes no architecture: without it, the same heads attend as any other.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import AttentionInterface, LlamaForCausalLM, PreTrainedTokenizerFast

from memory_program.pocket.examples import Example
from memory_program.pocket.model import COPY_HEADS

_ATTENTION = "causal_recording"
_GLUE = (" a", " an", " and", " at", " for", " from", " in", " is", " of", " on", " the", " to", " with")
_NOWHERE = -1e9


class CopyLoss:
    """Records what the copy heads of a network's last layer attend to, and scores it."""

    def __init__(self, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
        """Make ``model`` attend through this object; one network of a process can do so at a time."""
        self._last = model.config.num_hidden_layers - 1
        self._recorded: tuple[Tensor, Tensor, float] | None = None
        self._counts_V = torch.tensor(
            [_is_copied(tokenizer, token) for token in range(len(tokenizer))], device=model.device
        )
        AttentionInterface.register(_ATTENTION, self._attend)
        model.set_attn_implementation(_ATTENTION)

    def _attend(
        self,
        module: torch.nn.Module,
        query_BHTD: Tensor,
        key_BHTD: Tensor,
        value_BHTD: Tensor,
        _mask: Tensor | None,
        *,
        scaling: float,
        **_options: object,
    ) -> tuple[Tensor, None]:
        """Attend causally; on a CPU in float32, whose backward pass takes half the time of bfloat16's."""
        if module.layer_idx == self._last and module.training:
            self._recorded = (query_BHTD[:, :COPY_HEADS], key_BHTD[:, :COPY_HEADS], scaling)
        on_cpu = query_BHTD.device.type == "cpu"
        with torch.autocast("cpu", enabled=False):
            query, key, value = (x.float() if on_cpu else x for x in (query_BHTD, key_BHTD, value_BHTD))
            attended = torch.nn.functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=scaling
            )
        return attended.transpose(1, 2), None

    def __call__(self, group: Sequence[Example], tokens_BT: Tensor) -> Tensor:
        """Score the last forward pass of a batch in training.

        Args:
            group: its examples.
            tokens_BT: their tokens, padded at the end, as they were passed through the network.

        Returns:
            the mean of ``-log`` of the attention that a copy head gives to the places of the prompt where the
            next token of the reply stands, over heads and over the tokens of replies that stand there.
        """
        assert self._recorded is not None, "the network was not run in training"
        query_BHTD, key_BHTD, scaling = self._recorded
        self._recorded = None
        device = tokens_BT.device
        starts_B1 = torch.tensor([[example.reply_start] for example in group], device=device)
        ends_B1 = torch.tensor([[len(example.tokens)] for example in group], device=device)
        longest = int((ends_B1 - starts_B1).max())
        said_BR = starts_B1 + torch.arange(longest, device=device)  # where the tokens of the reply stand
        is_said_BR = said_BR < ends_B1
        said_BR = said_BR.clamp(max=tokens_BT.shape[1] - 1)
        next_BR = tokens_BT.gather(1, said_BR)
        places_T = torch.arange(tokens_BT.shape[1], device=device)
        holds_BRT = (tokens_BT[:, None] == next_BR[..., None]) & (places_T < starts_B1)[:, None]
        is_copy_BR = is_said_BR & self._counts_V[next_BR] & holds_BRT.any(-1)
        if not is_copy_BR.any():
            return query_BHTD.sum() * 0.0
        with torch.autocast(device.type, enabled=False):
            rows = (said_BR - 1)[:, None, :, None].expand(-1, COPY_HEADS, -1, query_BHTD.shape[-1])
            asked_BHRD = query_BHTD.float().gather(2, rows)
            scores_BHRT = asked_BHRD @ key_BHTD.float().mT * scaling
            is_later_BRT = places_T > (said_BR - 1)[..., None]
            log_shares_BHRT = scores_BHRT.masked_fill(is_later_BRT[:, None], _NOWHERE).log_softmax(-1)
            found_BHR = log_shares_BHRT.masked_fill(~holds_BRT[:, None], _NOWHERE).logsumexp(-1)
        return -found_BHR.transpose(1, 2)[is_copy_BR].mean()


def _is_copied(tokenizer: PreTrainedTokenizerFast, token: int) -> bool:
    """Whether a token is a word, a piece of one or a digit that a reply can have from its prompt alone."""
    text: str = tokenizer.backend_tokenizer.decode([token], skip_special_tokens=False)
    return token not in tokenizer.all_special_ids and text.strip().isalnum() and text not in _GLUE
