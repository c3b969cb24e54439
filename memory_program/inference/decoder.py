"""Prefill and decode: the network, the sequences that it continues, and their keys and values."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from memory_program.inference.attention import AttentionPass, DecodePass, PrefillChunk, PrefillPass
from memory_program.inference.kv_cache import KVCache
from memory_program.inference.prefix_cache import PrefixCache

PREFILL_CHUNK_TOKENS = 512
"""Most tokens of one prompt in a pass, since the mask has this many rows of the length of the context. On a
processor also the most tokens of short prompts in a pass, since more would delay the first of them."""
_GPU_PASS_TOKENS = 4096
"""Most tokens of the first pass over prompts on a GPU, which computes many at once.

No other number was tried.
"""


@dataclass(frozen=True, slots=True)
class PrefilledPrompt:
    """The keys and values of a prompt, from which one or many sequences can start.

    ``cached_tokens`` of its tokens were in the prefix cache; ``logits`` is one row, those after its last
    token.
    """

    cached_tokens: int
    logits: Tensor
    kv_LKHTD: Tensor


class Decoder:
    """The network with the sequences that it is continuing, in slots 0, 1, ...

    Any thread may prefill a prompt at any time. Everything else belongs to one thread.
    """

    def __init__(
        self, network: PreTrainedModel, kv_shape: tuple[int, int, int], prefixes: PrefixCache
    ) -> None:
        """Start without sequences; ``kv_shape`` is layers, heads and the width of a head."""
        self.device = network.device
        self.pass_tokens = _GPU_PASS_TOKENS if self.device.type == "cuda" else PREFILL_CHUNK_TOKENS
        self._network = network
        self._kv_shape = kv_shape
        self._prefixes = prefixes
        self._cache = KVCache(kv_shape, network.dtype, network.device)

    def prefill(
        self, prompts: Sequence[Sequence[int]], *, use_prefixes: bool = True
    ) -> list[PrefilledPrompt]:
        """Compute prompts together, each from the end of its cached prefix, and cache their prefixes.

        Args:
            prompts: the tokens of each, at least one.
            use_prefixes: False computes every token, and leaves the prefix cache as it is.
        """
        layers, heads, width = self._kv_shape
        cached_tokens: list[int] = []
        kvs_LKHTD: list[Tensor] = []
        for prompt in prompts:
            # not the last token: its logits are needed
            blocks = self._prefixes.find_longest_prefix(prompt[:-1]) if use_prefixes else []
            shape = (layers, 2, heads, len(prompt), width)
            kv_LKHTD = torch.empty(shape, dtype=self._network.dtype, device=self.device)
            cached_tokens.append(sum(block.shape[-2] for block in blocks))
            if blocks:
                kv_LKHTD[..., : cached_tokens[-1], :] = torch.cat(blocks, dim=-2)
            kvs_LKHTD.append(kv_LKHTD)
        logits, done = [torch.empty(0)] * len(prompts), list(cached_tokens)
        while rows := [row for row, prompt in enumerate(prompts) if done[row] < len(prompt)]:
            # later chunks are short: they have a mask, of their tokens by all before them
            sizes = [PREFILL_CHUNK_TOKENS if done[row] else self.pass_tokens for row in rows]
            ends = [min(done[row] + size, len(prompts[row])) for row, size in zip(rows, sizes, strict=True)]
            chunks = [
                PrefillChunk(kvs_LKHTD[row], done[row], end) for row, end in zip(rows, ends, strict=True)
            ]
            pairs = list(zip(rows, chunks, strict=True))
            tokens = torch.cat([torch.tensor(prompts[row][chunk.start : chunk.end]) for row, chunk in pairs])
            positions = torch.cat([torch.arange(chunk.start, chunk.end) for chunk in chunks])
            last = torch.tensor([chunk.end - chunk.start for chunk in chunks]).cumsum(0) - 1
            computed = self._forward(PrefillPass(chunks), tokens[None], positions[None], last)[0]
            for (row, chunk), row_logits in zip(pairs, computed.split(1), strict=True):
                done[row], logits[row] = chunk.end, row_logits
        if use_prefixes:
            for prompt, kv_LKHTD in zip(prompts, kvs_LKHTD, strict=True):
                self._prefixes.store(prompt, kv_LKHTD)
        columns = zip(cached_tokens, logits, kvs_LKHTD, strict=True)
        return [PrefilledPrompt(*column) for column in columns]

    def recompute_logits(self, tokens: Sequence[int]) -> Tensor:
        """Compute the logits after a sequence from its tokens alone, independent of batch and caches."""
        return self.prefill([tokens], use_prefixes=False)[0].logits

    def add_sequence(self, prefilled: PrefilledPrompt) -> None:
        """Start a sequence in the next slot; the prompt can start others too (rollouts, for example)."""
        self._cache.add(*prefilled.kv_LKHTD.unbind(1))

    def decode(self, tokens: Sequence[int]) -> Tensor:
        """Append one token to each sequence; return the logits after it, one row for each sequence."""
        new = torch.tensor(list(zip(tokens, self._cache.lengths, strict=True)))
        logits = self._forward(DecodePass(self._cache), new[:, :1], new[:, 1:], 1)[:, 0]
        self._cache.lengths = [length + 1 for length in self._cache.lengths]
        return logits

    def remove_sequence(self, slot: int) -> None:
        """Free a slot; the last sequence moves there."""
        self._cache.remove(slot)

    def clear(self) -> None:
        """Remove all sequences, and clear the prefix cache."""
        self._cache.clear()
        self._prefixes.clear()

    @torch.no_grad()  # not inference_mode: its tensors could not take part in training later
    def _forward(
        self, attention_pass: AttentionPass, tokens_N_T: Tensor, positions_N_T: Tensor, kept: Tensor | int
    ) -> Tensor:
        """Run the network over new tokens; return logits in float32.

        Args:
            attention_pass: stores the keys and values of the tokens, and attends.
            tokens_N_T: the new tokens.
            positions_N_T: the position of each in its sequence.
            kept: the tokens whose logits are returned, as indices on the second axis; a number counts from
                its end.
        """
        output = self._network(
            input_ids=tokens_N_T.to(self.device),
            # given so that transformers does not make one; the attention pass has its own
            attention_mask=torch.empty(1, 1, 1, 1, device=self.device),
            position_ids=positions_N_T.to(self.device),
            use_cache=False,
            logits_to_keep=kept,
            attention_pass=attention_pass,
        )
        return output.logits.float()
