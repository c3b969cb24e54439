"""Log-probabilities and entropies of completion tokens, computed a few rows of logits at a time.

The logits of a whole pass take tokens x vocabulary floats, several times over: 13 GiB for 5,000 tokens of a
vocabulary of 152,000. In chunks only one chunk of them exists at once; the backward pass computes it again.
"""

from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from memory_program.rl.trainer.objective import target_logprobs, token_entropies
from memory_program.rl.trainer.packing import PackedSequence

CHUNK_LOGITS = 2**25
"""Logits of one chunk: 128 MiB in float32."""


class TokenScorer:
    """Scores the completion tokens of packed sequences under a network."""

    def __init__(self, network: PreTrainedModel, chunk_logits: int = CHUNK_LOGITS) -> None:
        """Find out how the logits follow from the output layer; ``chunk_logits`` are computed at once."""
        self._chunk_logits = chunk_logits
        config = network.config.get_text_config()
        # Cohere and Granite scale their logits, Gemma 2 bounds them
        scale, divisor = getattr(config, "logit_scale", None), getattr(config, "logits_scaling", None)
        bound = getattr(config, "final_logit_softcapping", None)

        def adjust(logits: Tensor) -> Tensor:
            if scale is not None:
                logits = logits * scale
            if divisor is not None:
                logits = logits / divisor
            return logits if bound is None else torch.tanh(logits / bound) * bound

        self._adjust = adjust
        token = torch.zeros(1, 1, dtype=torch.long, device=network.device)
        with torch.no_grad():
            body: Any = network.base_model(input_ids=token, use_cache=False)  # Any: transformers' outputs
            whole: Any = network(input_ids=token, use_cache=False)
            # a model that does something else to its logits is asked for all of them at once
            self._is_known = torch.equal(self._adjust(_head(network)(body.last_hidden_state)), whole.logits)

    def score(
        self,
        network: PreTrainedModel,
        packed: PackedSequence,
        temperature: float,
        *,
        entropy_grad: bool = False,
        with_entropy: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Compute the log-probability and the entropy of each completion token, at a temperature.

        Args:
            network: the network, or its reference, which has the same architecture.
            packed: the sequence.
            temperature: divides the logits.
            entropy_grad: whether the entropies have a gradient.
            with_entropy: whether the entropies are computed; otherwise they are 0.
        """
        kind = network.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else network.dtype
        places, order = packed.predictors_N.unique(return_inverse=True)
        inputs: dict[str, Any] = {  # Any: tensors and a flag
            "input_ids": packed.tokens_T[None],
            "position_ids": packed.positions_T[None],
            "attention_mask": packed.mask(dtype)[None, None],  # else each layer casts and keeps its own
            "use_cache": False,
        }
        if not self._is_known:
            output: Any = network(**inputs, logits_to_keep=places)
            return _score(output.logits[0][order], packed.targets_N, temperature, entropy_grad, with_entropy)
        body: Any = network.base_model(**inputs)
        hidden_N = body.last_hidden_state[0][places][order]
        head = _head(network)
        rows = max(1, self._chunk_logits // head.weight.shape[0])

        def score_rows(hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            return _score(self._adjust(head(hidden)), targets, temperature, entropy_grad, with_entropy)

        if len(hidden_N) <= rows:
            return score_rows(hidden_N, packed.targets_N)
        parts: list[tuple[Tensor, Tensor]] = [
            checkpoint(score_rows, hidden, targets, use_reentrant=False)
            for hidden, targets in zip(hidden_N.split(rows), packed.targets_N.split(rows), strict=True)
        ]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def _head(network: PreTrainedModel) -> torch.nn.Linear:
    return cast(torch.nn.Linear, network.get_output_embeddings())


def _score(
    logits: Tensor, targets: Tensor, temperature: float, entropy_grad: bool, with_entropy: bool
) -> tuple[Tensor, Tensor]:
    logits = logits.float() / temperature
    if not with_entropy:
        return target_logprobs(logits, targets), logits.new_zeros(len(logits))
    with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
        entropies = token_entropies(logits)
    return target_logprobs(logits, targets), entropies
