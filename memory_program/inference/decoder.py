"""A batch of texts that grow token by token, and what of them is in memory.

A text is a stem, which it may share with others, and a leaf of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from memory_program.inference.attention import (
    AttentionPass,
    DecodePass,
    PrefillChunk,
    PrefillPass,
    SharedPrefixKV,
)
from memory_program.inference.kv_cache import KVCache, SequenceKV
from memory_program.inference.prefix_cache import PrefixCache

PREFILL_CHUNK_TOKENS = 512
"""Of a prompt at once, since the mask grows with them times the context; of short prompts at once, too, since
more would let the first one wait."""

_MIN_SHARED_PREFIX_TOKENS = (
    256  # a shorter beginning is copied for each text: a stem costs more than it saves
)
_LONG_PROMPT_TOKENS = 512  # a longer prompt is a stem of its own: the leaves are padded to the longest


@dataclass(frozen=True, slots=True)
class PrefilledPrompt:
    """A prompt that was read, for one text to begin with, or for many."""

    tokens: tuple[int, ...]

    cached_tokens: int
    """How many of them did not have to be computed."""

    logits: Tensor
    """Those after it, as one row."""

    kv_LKHTD: Tensor
    """What the network keeps of it."""


@dataclass(frozen=True, slots=True)
class _UncachedPrompt:
    """A text of which the beginning is known."""

    tokens: Sequence[int]
    cached_tokens: int
    kv_LKHTD: Tensor

    def next_chunk(self, done: int) -> PrefillChunk:
        """Give what comes next when so many unknown tokens are done."""
        first = self.cached_tokens + done
        return PrefillChunk(self.kv_LKHTD, first, min(first + PREFILL_CHUNK_TOKENS, len(self.tokens)))


@dataclass(slots=True)
class _DecoderSequence:
    """A text in its slot."""

    prompt: tuple[int, ...]
    """The tokens that it began with."""

    logits: Tensor
    """Those after its prompt, as one row."""

    shared_prefix: SharedPrefixKV | None
    sequence_kv: SequenceKV

    @property
    def tokens(self) -> int:
        """How many there are by now."""
        return _prefix_length(self.shared_prefix) + self.sequence_kv.tokens


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
        self._leaves = KVCache(kv_shape, network.dtype, network.device)
        self._texts: list[_DecoderSequence] = []  # by slot
        self._shared: WeakValueDictionary[tuple[int, ...], SharedPrefixKV] = WeakValueDictionary()

    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[PrefilledPrompt]:
        """Read prompts together, each from where it is not known any more."""
        texts = [self._load_cached_prefix(prompt) for prompt in prompts]
        rows = self._prefill_uncached(texts)
        for text in texts:
            self._prefixes.store(text.tokens, text.kv_LKHTD)
        return [
            PrefilledPrompt(tuple(text.tokens), text.cached_tokens, logits, text.kv_LKHTD)
            for text, logits in zip(texts, rows, strict=True)
        ]

    def add_sequence(self, read: PrefilledPrompt) -> None:
        """Begin a text in the next slot."""
        stem = self._select_shared_prefix(read)
        leaf = self._leaves.add(read.kv_LKHTD[..., _prefix_length(stem) :, :].unbind(1))
        self._texts.append(_DecoderSequence(read.tokens, read.logits, stem, leaf))

    def clone_sequence(self, prompt: Sequence[int]) -> Tensor:
        """Begin a text in the next slot as one that is there began, eight rollouts for example.

        Returns:
            The logits after the prompt, as one row.

        Raises:
            KeyError: no text began with this prompt.
        """
        tokens = tuple(prompt)
        for twin in self._texts:
            if twin.prompt == tokens:
                length = len(tokens) - _prefix_length(twin.shared_prefix)
                leaf = self._leaves.add([part[..., :length, :] for part in twin.sequence_kv.parts_LHTD])
                self._texts.append(replace(twin, sequence_kv=leaf))
                return twin.logits
        raise KeyError(tokens)

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Append one token to each text; gives the logits after it, one row for each text."""
        self._leaves.ensure_capacity()
        slot_of = {text.sequence_kv: slot for slot, text in enumerate(self._texts)}
        slots = [slot_of[leaf] for leaf in self._leaves]
        growing = DecodePass(self._leaves.buckets, [self._texts[slot].shared_prefix for slot in slots])
        new = torch.tensor([(tokens[slot], self._texts[slot].tokens) for slot in slots])
        logits = self._forward(growing, new[:, :1], new[:, 1:], 1)[:, 0]
        for leaf in self._leaves:
            leaf.tokens += 1
        rows = sorted(range(len(slots)), key=slots.__getitem__)
        return logits[rows]

    def recompute_logits(self, tokens: Sequence[int]) -> Tensor:
        """Compute the logits after a text from its tokens alone, whatever is beside it or known of it."""
        return self._prefill_uncached([_UncachedPrompt(tokens, 0, self._allocate_kv(len(tokens)))])[0]

    def remove_sequence(self, slot: int) -> None:
        """Give a slot free; the last text moves there."""
        self._leaves.remove(self._texts[slot].sequence_kv)
        last = self._texts.pop()
        if slot < len(self._texts):
            self._texts[slot] = last

    def clear(self) -> None:
        """Forget all texts, half-written ones too, and what was kept of prompts."""
        self._texts.clear()
        self._shared.clear()
        self._leaves.clear()
        self._prefixes.clear()

    def _select_shared_prefix(self, read: PrefilledPrompt) -> SharedPrefixKV | None:
        """Choose what a text shares with others; what is beyond it becomes the leaf."""
        tokens, known = read.tokens, read.cached_tokens
        found = [stem for beginning, stem in self._shared.items() if tokens[: len(beginning)] == beginning]
        longest = max(found, key=_prefix_length, default=None)
        if longest is not None and len(tokens) - longest.tokens < _LONG_PROMPT_TOKENS:
            return longest
        if known >= _MIN_SHARED_PREFIX_TOKENS and len(tokens) - known < _LONG_PROMPT_TOKENS:
            stem = self._shared[tokens[:known]] = SharedPrefixKV(read.kv_LKHTD[..., :known, :].clone())
            return stem
        return SharedPrefixKV(read.kv_LKHTD) if len(tokens) >= _LONG_PROMPT_TOKENS else None

    def _allocate_kv(self, tokens: int) -> Tensor:
        layers, heads, width = self._kv_shape
        return torch.empty(
            (layers, 2, heads, tokens, width), dtype=self._network.dtype, device=self._network.device
        )

    def _load_cached_prefix(self, prompt: Sequence[int]) -> "_UncachedPrompt":
        blocks = self._prefixes.find_longest_prefix(
            prompt[:-1]
        )  # the last one is computed: its logits are wanted
        known = sum(block.shape[-2] for block in blocks)
        values_LKHTD = self._allocate_kv(len(prompt))
        if blocks:
            values_LKHTD[..., :known, :] = torch.cat(blocks, dim=-2)
        return _UncachedPrompt(prompt, known, values_LKHTD)

    def _prefill_uncached(self, texts: Sequence["_UncachedPrompt"]) -> list[Tensor]:
        """Compute texts from what is known of them on; gives the logits after each, as one row."""
        rows = [torch.empty(0)] * len(texts)
        most = max(len(text.tokens) - text.cached_tokens for text in texts)
        for done in range(0, most, PREFILL_CHUNK_TOKENS):
            unread = {
                row: text for row, text in enumerate(texts) if text.cached_tokens + done < len(text.tokens)
            }
            pieces = [text.next_chunk(done) for text in unread.values()]
            of_texts = zip(pieces, unread.values(), strict=True)
            tokens = [torch.tensor(text.tokens[piece.first : piece.end]) for piece, text in of_texts]
            positions = [torch.arange(piece.first, piece.end) for piece in pieces]
            last = torch.tensor([len(of_text) for of_text in tokens]).cumsum(0) - 1
            reading = PrefillPass(pieces)
            logits = self._forward(reading, torch.cat(tokens)[None], torch.cat(positions)[None], last)
            for row, of_text in zip(unread, logits[0].split(1), strict=True):
                rows[row] = of_text
        return rows

    @torch.no_grad()  # and not inference_mode, whose tensors could not take part in training later
    def _forward(
        self, growing: AttentionPass, tokens_N_T: Tensor, positions_N_T: Tensor, kept: Tensor | int
    ) -> Tensor:
        """Run the network over new tokens; gives the logits after those that ``kept`` names, in float32.

        Args:
            growing: what the tokens attend to.
            tokens_N_T: the new tokens.
            positions_N_T: where each is in its text.
            kept: their places on the second axis; a number counts from its end.
        """
        device = self._network.device
        output = self._network(
            input_ids=tokens_N_T.to(device),
            attention_mask=torch.empty(1, 1, 1, 1, device=device),  # one is there, so that none is made
            position_ids=positions_N_T.to(device),
            use_cache=False,
            logits_to_keep=kept,
            attention_pass=growing,
        )
        return output.logits.float()


def _prefix_length(stem: SharedPrefixKV | None) -> int:
    return 0 if stem is None else stem.tokens
