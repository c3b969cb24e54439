"""A batch of texts that grow token by token: what the network keeps of each, and what texts share.

Texts lie in slots, one after the other and each from the left, so that one can join or leave without moving
the others. What a text needs beside the tokens is where its next token goes; masks and positions follow.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

_BLOCK_TOKENS = 16  # prompts share whole blocks; a shorter block is one more piece to copy for little gain
_CHUNK_TOKENS = 1024  # of a prompt at once, since the mask grows with chunk times context
_FIRST_CAPACITY = 512


class SlotCache(Cache):
    """Keys and values of ``slots`` texts, as the network reads and writes them while it runs.

    ``values_LKNHTD`` holds layers, keys or values, slots (texts), heads, tokens, and the width of a head.
    """

    def __init__(self, network: PreTrainedModel, kv_shape: tuple[int, int, int], slots: int) -> None:
        """Make room for short texts; it grows with them."""
        super().__init__(layers=[])
        layers, heads, width = kv_shape
        # zeros, not empty: masked tokens have weight 0, and 0 times what was in the memory may not be 0
        self._first = partial(
            torch.zeros,
            (layers, 2, slots, heads, _FIRST_CAPACITY, width),
            dtype=network.dtype,
            device=network.device,
        )
        self.values_LKNHTD = self._first()
        self._rows, self._positions, self._end = slice(0, 0), torch.empty(0), 0

    def clear(self) -> None:
        """Forget everything, numbers that are none included."""
        self.values_LKNHTD = self._first()

    def reserve(self, tokens: int, texts: int) -> None:
        """Make room for texts of ``tokens`` tokens; what the first ``texts`` slots hold is kept."""
        old = self.values_LKNHTD
        capacity = old.shape[4]
        if tokens > capacity:
            shape = list(old.shape)
            shape[4] = max(tokens, 2 * capacity)
            self.values_LKNHTD = old.new_zeros(shape)
            self.values_LKNHTD[:, :, :texts, :, :capacity] = old[:, :, :texts]

    def aim(self, rows: slice, positions_N_T: Tensor, end: int) -> None:
        """Say where the tokens of the next pass go: which texts and positions, and the longest's end."""
        self._rows, self._positions, self._end = rows, positions_N_T, end

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Store what a layer computed for the new tokens; give all that they may attend to."""
        kept_KNHTD = self.values_LKNHTD[layer_idx][:, self._rows]
        texts = torch.arange(kept_KNHTD.shape[1], device=kept_KNHTD.device)[:, None]
        for kept_NHTD, new_NHTD in zip(kept_KNHTD, (key_states, value_states), strict=True):
            kept_NHTD[texts, :, self._positions] = new_NHTD.transpose(1, 2)
        keys, values = kept_KNHTD[..., : self._end, :]
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Give the length of the longest text of this pass."""
        return self._end


class PrefixCache:
    """Keys and values of the beginnings of prompts, in blocks; those used longest ago go first."""

    def __init__(self, max_tokens: int) -> None:
        """Keep at most ``max_tokens`` tokens; 0 keeps nothing."""
        self._max_blocks = max_tokens // _BLOCK_TOKENS
        self._blocks: OrderedDict[bytes, Tensor] = OrderedDict()

    def __len__(self) -> int:
        """Count the tokens that are kept."""
        return len(self._blocks) * _BLOCK_TOKENS

    def longest(self, tokens: Sequence[int]) -> list[Tensor]:
        """Find the blocks at the beginning of a prompt, as many as there are."""
        found: list[bytes] = []
        for name in _block_names(tokens):
            if name not in self._blocks:
                break
            found.append(name)
        for name in reversed(found):  # the first block last, so that no block outlives one before it
            self._blocks.move_to_end(name)
        return [self._blocks[name] for name in found]

    def store(self, tokens: Sequence[int], values_LKHTD: Tensor) -> None:
        """Keep the whole blocks of a prompt, given what the network kept of it."""
        names = _block_names(tokens)[: self._max_blocks]
        for index in reversed(range(len(names))):
            if names[index] not in self._blocks:
                block = slice(index * _BLOCK_TOKENS, (index + 1) * _BLOCK_TOKENS)
                self._blocks[names[index]] = values_LKHTD[..., block, :].clone()
        while len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()


class Decoder:
    """The network with the texts that it is writing. Not safe for threads: one thread owns it."""

    def __init__(
        self, network: PreTrainedModel, kv_shape: tuple[int, int, int], slots: int, prefix_tokens: int
    ) -> None:
        """Prepare for at most ``slots`` texts at once; keep ``prefix_tokens`` tokens of past prompts."""
        self._prefixes = PrefixCache(prefix_tokens)
        self.device = network.device
        self._network = network
        self._cache = SlotCache(network, kv_shape, slots)
        self._lengths: list[int] = []

    def begin(self, prompt: Sequence[int]) -> tuple[Tensor, int]:
        """Read a prompt into the next slot.

        Returns:
            The logits after it, as one row, and how many of its tokens did not have to be computed.
        """
        slot = len(self._lengths)
        self._cache.reserve(len(prompt) + 1, slot)
        kept = self._cache.values_LKNHTD[:, :, slot]
        blocks = self._prefixes.longest(prompt[:-1])  # the last one is computed: its logits are wanted
        known = len(blocks) * _BLOCK_TOKENS
        if blocks:
            kept[..., :known, :] = torch.cat(blocks, dim=-2)
        logits = self._read(slot, prompt, known)
        self._prefixes.store(prompt, kept)
        self._lengths.append(len(prompt))
        return logits, known

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Append one token to each text; gives the logits after it, one row for each text."""
        self._cache.reserve(max(self._lengths) + 1, len(tokens))
        positions = torch.tensor(self._lengths)[:, None]
        logits = self._pass(slice(0, len(tokens)), torch.tensor(tokens)[:, None], positions)
        self._lengths = [length + 1 for length in self._lengths]
        return logits

    def reread(self, slot: int, tokens: Sequence[int]) -> Tensor:
        """Compute the logits after a text from its tokens alone, whatever is beside it or known of it."""
        return self._read(slot, tokens, 0)

    def end(self, slot: int) -> None:
        """Give a slot free; the last text moves there."""
        last = len(self._lengths) - 1
        if slot != last:
            kept = self._cache.values_LKNHTD[..., : self._lengths[last], :]
            kept[:, :, slot] = kept[:, :, last]
        self._lengths[slot] = self._lengths[last]
        self._lengths.pop()

    def clear(self) -> None:
        """Forget all texts, half-written ones too, and what was kept of prompts."""
        self._lengths.clear()
        self._cache.clear()
        self._prefixes.clear()

    def _read(self, slot: int, tokens: Sequence[int], known: int) -> Tensor:
        """Compute a text from its token ``known`` on."""
        logits = torch.empty(0)
        for first in range(known, len(tokens), _CHUNK_TOKENS):
            chunk = torch.tensor([tokens[first : first + _CHUNK_TOKENS]])
            positions = torch.arange(first, first + chunk.shape[1])[None]
            logits = self._pass(slice(slot, slot + 1), chunk, positions)
        return logits

    @torch.no_grad()  # and not inference_mode, whose tensors could not take part in training later
    def _pass(self, rows: slice, tokens_N_T: Tensor, positions_N_T: Tensor) -> Tensor:
        """Run the network over new tokens of some texts; gives the logits after the last, in float32."""
        end = int(positions_N_T.max()) + 1
        device, dtype = self._network.device, self._network.dtype
        positions = positions_N_T.to(device)
        self._cache.aim(rows, positions, end)
        is_later = torch.arange(end, device=device) > positions[..., None]
        mask_N_T_E = torch.zeros(is_later.shape, dtype=dtype, device=device)
        mask_N_T_E.masked_fill_(is_later, -torch.inf)
        output = self._network(
            input_ids=tokens_N_T.to(device),
            attention_mask=mask_N_T_E[:, None],
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1].float()


def _block_names(tokens: Sequence[int]) -> list[bytes]:
    """Name each whole block of a text by all tokens up to its end."""
    names: list[bytes] = []
    name = b""
    for end in range(_BLOCK_TOKENS, len(tokens) + 1, _BLOCK_TOKENS):
        block = array("q", tokens[end - _BLOCK_TOKENS : end])
        name = blake2b(name + block.tobytes(), digest_size=16).digest()
        names.append(name)
    return names
