"""A batch of texts that grow token by token, and what of them is in memory.

A text is a stem, which it may share with others, and a leaf of its own in a slot. Slots lie one after the
other, so that a text can join or leave without moving the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from memory_program.learning.attention import GrowingPass, LeafCache, Pass, ReadingPass, Stem
from memory_program.learning.prefixes import PrefixCache

T = TypeVar("T")

_CHUNK_TOKENS = 512  # of a prompt at once, since the mask grows with chunk times context
_SHARED_TOKENS = 256  # a shorter beginning is copied for each text: a stem costs more than it saves
_LONG_TOKENS = 512  # a longer prompt is a stem of its own: the leaves are padded to the longest


@dataclass(frozen=True, slots=True)
class _Prompt:
    """What a text began with, and the logits after it, as one row."""

    tokens: tuple[int, ...]
    logits: Tensor


class Decoder:
    """The network with the texts that it is writing. Not safe for threads: one thread owns it.

    Several may run one network, whose weights they only read.
    """

    def __init__(
        self, network: PreTrainedModel, kv_shape: tuple[int, int, int], prefixes: PrefixCache
    ) -> None:
        """Use what is known of prompts, and add to it; decoders of one network may share it."""
        self.device = network.device
        self._network = network
        self._kv_shape = kv_shape
        self._prefixes = prefixes
        self._leaves = LeafCache(kv_shape, network.dtype, network.device)
        self._stems: list[Stem | None] = []
        self._lengths: list[int] = []  # of the leaves
        self._prompts: list[_Prompt] = []
        self._shared: WeakValueDictionary[tuple[int, ...], Stem] = WeakValueDictionary()

    def begin(self, prompt: Sequence[int]) -> tuple[Tensor, int]:
        """Read a prompt into the next slot.

        Returns:
            The logits after it, as one row, and how many of its tokens did not have to be computed.
        """
        slot, tokens = len(self._lengths), tuple(prompt)
        for twin, other in enumerate(self._prompts):
            if other.tokens == tokens:  # eight rollouts begin alike
                stem = self._stems[twin]
                leaf = self._leaves.values_LKNHTD[:, :, twin, :, : len(prompt) - _length(stem)]
                self._add(slot, other, stem, leaf)
                return other.logits, len(prompt)
        blocks = self._prefixes.longest(prompt[:-1])  # the last one is computed: its logits are wanted
        known = sum(block.shape[-2] for block in blocks)
        values_LKHTD = self._room(len(prompt))
        if blocks:
            values_LKHTD[..., :known, :] = torch.cat(blocks, dim=-2)
        logits = self._read(prompt, known, values_LKHTD)
        self._prefixes.store(prompt, values_LKHTD)
        stem = self._stem(prompt, known, values_LKHTD)
        self._add(slot, _Prompt(tokens, logits), stem, values_LKHTD[..., _length(stem) :, :])
        return logits, known

    def _add(self, slot: int, prompt: "_Prompt", stem: Stem | None, leaf_LKHTD: Tensor) -> None:
        length = leaf_LKHTD.shape[3]
        self._leaves.reserve(length + 1, slot + 1)
        self._leaves.values_LKNHTD[:, :, slot, :, :length] = leaf_LKHTD
        self._prompts.append(prompt)
        self._stems.append(stem)
        self._lengths.append(length)

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Append one token to each text; gives the logits after it, one row for each text."""
        self._leaves.reserve(max(self._lengths) + 1, len(tokens))
        positions = [length + _length(stem) for length, stem in zip(self._lengths, self._stems, strict=True)]
        growing = GrowingPass(self._leaves, self._lengths, self._stems)
        logits = self._run(growing, torch.tensor(tokens)[:, None], torch.tensor(positions)[:, None])
        self._lengths = [length + 1 for length in self._lengths]
        return logits

    def reread(self, tokens: Sequence[int]) -> Tensor:
        """Compute the logits after a text from its tokens alone, whatever is beside it or known of it."""
        return self._read(tokens, 0, self._room(len(tokens)))

    def end(self, slot: int) -> None:
        """Give a slot free; the last text moves there."""
        last = len(self._lengths) - 1
        if slot != last:
            leaves = self._leaves.values_LKNHTD[..., : self._lengths[last], :]
            leaves[:, :, slot] = leaves[:, :, last]
        _give_free(self._lengths, slot)
        _give_free(self._stems, slot)
        _give_free(self._prompts, slot)

    def clear(self) -> None:
        """Forget all texts, half-written ones too, and what was kept of prompts."""
        self._lengths.clear()
        self._stems.clear()
        self._prompts.clear()
        self._shared.clear()
        self._leaves.clear()
        self._prefixes.clear()

    def _stem(self, prompt: Sequence[int], known: int, values_LKHTD: Tensor) -> Stem | None:
        """Choose what a text shares with others; what is beyond it becomes the leaf."""
        tokens = tuple(prompt)
        found = [stem for beginning, stem in self._shared.items() if tokens[: len(beginning)] == beginning]
        longest = max(found, key=_length, default=None)
        if longest is not None and len(prompt) - longest.tokens < _LONG_TOKENS:
            return longest
        if known >= _SHARED_TOKENS and len(prompt) - known < _LONG_TOKENS:
            stem = self._shared[tokens[:known]] = Stem(values_LKHTD[..., :known, :].clone())
            return stem
        return Stem(values_LKHTD) if len(prompt) >= _LONG_TOKENS else None

    def _room(self, tokens: int) -> Tensor:
        layers, heads, width = self._kv_shape
        return torch.empty(
            (layers, 2, heads, tokens, width), dtype=self._network.dtype, device=self._network.device
        )

    def _read(self, tokens: Sequence[int], known: int, values_LKHTD: Tensor) -> Tensor:
        """Compute a text from its token ``known`` on."""
        logits = torch.empty(0)
        for first in range(known, len(tokens), _CHUNK_TOKENS):
            chunk = torch.tensor([tokens[first : first + _CHUNK_TOKENS]])
            end = first + chunk.shape[1]
            reading = ReadingPass(values_LKHTD, first, end)
            logits = self._run(reading, chunk, torch.arange(first, end)[None])
        return logits

    @torch.no_grad()  # and not inference_mode, whose tensors could not take part in training later
    def _run(self, growing: Pass, tokens_N_T: Tensor, positions_N_T: Tensor) -> Tensor:
        """Run the network over new tokens of some texts; gives the logits after the last, in float32."""
        device = self._network.device
        output = self._network(
            input_ids=tokens_N_T.to(device),
            attention_mask=torch.empty(1, 1, 1, 1, device=device),  # one is there, so that none is made
            position_ids=positions_N_T.to(device),
            use_cache=False,
            logits_to_keep=1,
            growing=growing,
        )
        return output.logits[:, -1].float()


def _give_free(of_texts: list[T], slot: int) -> None:
    """Move what is of the last text to a slot."""
    of_texts[slot] = of_texts[-1]
    of_texts.pop()


def _length(stem: Stem | None) -> int:
    return 0 if stem is None else stem.tokens
