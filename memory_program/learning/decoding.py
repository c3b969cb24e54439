"""A batch of texts that grow token by token, and what of them is in memory.

A text is a stem, which it may share with others, and a leaf of its own in a slot. Slots lie one after the
other, so that a text can join or leave without moving the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from memory_program.learning.attention import GrowingPass, LeafCache, Pass, ReadingPass, Stem
from memory_program.learning.prefixes import PrefixCache

_CHUNK_TOKENS = 512  # of a prompt at once, since the mask grows with chunk times context
_SHARED_TOKENS = 256  # a shorter beginning is copied for each text: a stem costs more than it saves
_LONG_TOKENS = 512  # a longer prompt is a stem of its own: the leaves are padded to the longest


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """A prompt that was read, for one text to begin with, or for many."""

    tokens: tuple[int, ...]

    known_tokens: int
    """How many of them did not have to be computed."""

    logits: Tensor
    """Those after it, as one row."""

    values_LKHTD: Tensor
    """What the network keeps of it."""


@dataclass(slots=True)
class _Text:
    """A text in its slot."""

    prompt: tuple[int, ...]
    """The tokens that it began with."""

    logits: Tensor
    """Those after its prompt, as one row."""

    stem: Stem | None
    leaf_tokens: int


class Decoder:
    """The network with the texts that it is writing.

    Any thread may read a prompt at any time; everything else is for one thread, which owns it.
    """

    def __init__(
        self, network: PreTrainedModel, kv_shape: tuple[int, int, int], prefixes: PrefixCache
    ) -> None:
        """Use what is known of prompts, and add to it."""
        self.device = network.device
        self._network = network
        self._kv_shape = kv_shape
        self._prefixes = prefixes
        self._leaves = LeafCache(kv_shape, network.dtype, network.device)
        self._texts: list[_Text] = []  # by slot
        self._shared: WeakValueDictionary[tuple[int, ...], Stem] = WeakValueDictionary()

    def read(self, prompt: Sequence[int]) -> ReadPrompt:
        """Read a prompt, from where it is not known any more."""
        blocks = self._prefixes.longest(prompt[:-1])  # the last one is computed: its logits are wanted
        known = sum(block.shape[-2] for block in blocks)
        values_LKHTD = self._room(len(prompt))
        if blocks:
            values_LKHTD[..., :known, :] = torch.cat(blocks, dim=-2)
        logits = self._read(prompt, known, values_LKHTD)
        self._prefixes.store(prompt, values_LKHTD)
        return ReadPrompt(tuple(prompt), known, logits, values_LKHTD)

    def begin(self, read: ReadPrompt) -> None:
        """Begin a text in the next slot."""
        stem = self._stem(read)
        leaf_LKHTD = read.values_LKHTD[..., _length(stem) :, :]
        self._add(_Text(read.tokens, read.logits, stem, leaf_LKHTD.shape[-2]), leaf_LKHTD)

    def begin_alike(self, prompt: Sequence[int]) -> Tensor:
        """Begin a text in the next slot as one that is there began, eight rollouts for example.

        Returns:
            The logits after the prompt, as one row.

        Raises:
            KeyError: no text began with this prompt.
        """
        tokens = tuple(prompt)
        for slot, twin in enumerate(self._texts):
            if twin.prompt == tokens:
                length = len(tokens) - _length(twin.stem)
                leaf_LKHTD = self._leaves.values_LKNHTD[:, :, slot, :, :length]
                self._add(replace(twin, leaf_tokens=length), leaf_LKHTD)
                return twin.logits
        raise KeyError(tokens)

    def _add(self, text: _Text, leaf_LKHTD: Tensor) -> None:
        slot = len(self._texts)
        longest = max(text.leaf_tokens for text in (*self._texts, text))
        self._leaves.fit(longest + 1, slot + 1)
        self._leaves.values_LKNHTD[:, :, slot, :, : text.leaf_tokens] = leaf_LKHTD
        self._texts.append(text)

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Append one token to each text; gives the logits after it, one row for each text."""
        lengths, stems = [text.leaf_tokens for text in self._texts], [text.stem for text in self._texts]
        self._leaves.fit(max(lengths) + 1, len(tokens))
        positions = [length + _length(stem) for length, stem in zip(lengths, stems, strict=True)]
        growing = GrowingPass(self._leaves, lengths, stems)
        logits = self._run(growing, torch.tensor(tokens)[:, None], torch.tensor(positions)[:, None])
        for text in self._texts:
            text.leaf_tokens += 1
        return logits

    def reread(self, tokens: Sequence[int]) -> Tensor:
        """Compute the logits after a text from its tokens alone, whatever is beside it or known of it."""
        return self._read(tokens, 0, self._room(len(tokens)))

    def end(self, slot: int) -> None:
        """Give a slot free; the last text moves there."""
        last = self._texts.pop()
        if slot == len(self._texts):
            return
        leaves = self._leaves.values_LKNHTD[..., : last.leaf_tokens, :]
        leaves[:, :, slot] = leaves[:, :, len(self._texts)]
        self._texts[slot] = last

    def clear(self) -> None:
        """Forget all texts, half-written ones too, and what was kept of prompts."""
        self._texts.clear()
        self._shared.clear()
        self._leaves.clear()
        self._prefixes.clear()

    def _stem(self, read: ReadPrompt) -> Stem | None:
        """Choose what a text shares with others; what is beyond it becomes the leaf."""
        tokens, known = read.tokens, read.known_tokens
        found = [stem for beginning, stem in self._shared.items() if tokens[: len(beginning)] == beginning]
        longest = max(found, key=_length, default=None)
        if longest is not None and len(tokens) - longest.tokens < _LONG_TOKENS:
            return longest
        if known >= _SHARED_TOKENS and len(tokens) - known < _LONG_TOKENS:
            stem = self._shared[tokens[:known]] = Stem(read.values_LKHTD[..., :known, :].clone())
            return stem
        return Stem(read.values_LKHTD) if len(tokens) >= _LONG_TOKENS else None

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


def _length(stem: Stem | None) -> int:
    return 0 if stem is None else stem.tokens
