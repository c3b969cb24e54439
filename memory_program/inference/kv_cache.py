"""Keys and values of what each text has beyond its stem, in buckets of about one length.

A step of a batch reads all of them. In one rectangle, as wide as the longest text, half of what it reads is
padding, and of a small model that is most of what a step costs on a processor.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_MIN_BUCKET_TOKENS = {"cpu": 64, "cuda": 512}
"""Of a bucket: each bucket has products of its own, which cost a GPU more than padding does."""


@dataclass(slots=True, eq=False)
class SequenceKV:
    """What one text has beyond its stem."""

    bucket: "LengthBucket"
    slot: int
    tokens: int

    @property
    def parts_LHTD(self) -> tuple[Tensor, Tensor]:
        """Its keys and its values, where they lie: layers, heads, tokens, width of a head."""
        keys_LNHDT, values_LNHTD = self.bucket.keys_LNHDT, self.bucket.values_LNHTD
        return keys_LNHDT[:, self.slot, :, :, : self.tokens].mT, values_LNHTD[:, self.slot, :, : self.tokens]


class LengthBucket:
    """Leaves of up to ``capacity`` tokens, in slots that lie one after the other, each from the left.

    Keys and values are two areas of layers, slots (texts) and heads. The keys of a head lie by column, since
    a processor multiplies one query with columns up to twice as fast as with rows.
    """

    def __init__(self, keys_LNHDT: Tensor, values_LNHTD: Tensor) -> None:
        """Use this memory, which is doubled where it is too small."""
        self.keys_LNHDT, self.values_LNHTD = keys_LNHDT, values_LNHTD
        self.leaves: list[SequenceKV] = []

    @property
    def capacity(self) -> int:
        """How many tokens a leaf may have."""
        return self.values_LNHTD.shape[3]

    def insert(self, leaf: SequenceKV, parts_LHTD: Sequence[Tensor]) -> None:
        """Copy a leaf to the next slot."""
        slot = len(self.leaves)
        if slot == self.values_LNHTD.shape[1]:
            # zeros, since masked tokens have weight 0, and 0 times what is no number is none
            both = (self.keys_LNHDT, self.values_LNHTD)
            grown = [torch.cat((room, torch.zeros_like(room)), dim=1) for room in both]
            self.keys_LNHDT, self.values_LNHTD = grown
        self.leaves.append(leaf)
        self._copy_into_slot(leaf, slot, parts_LHTD)

    def remove(self, slot: int) -> None:
        """Give a slot free; the last leaf moves there."""
        last = self.leaves.pop()
        if slot < len(self.leaves):
            self.leaves[slot] = last
            self._copy_into_slot(last, slot, last.parts_LHTD)

    def _copy_into_slot(self, leaf: SequenceKV, slot: int, parts_LHTD: Sequence[Tensor]) -> None:
        leaf.bucket, leaf.slot = self, slot
        for room, part in zip(leaf.parts_LHTD, parts_LHTD, strict=True):
            room.copy_(part)


class KVCache:
    """The leaves of all texts of a batch."""

    def __init__(self, kv_shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> None:
        """Make room when the first leaf comes.

        Args:
            kv_shape: layers, heads, and the width of a head.
            dtype: of the keys and values.
            device: where they lie.
        """
        self._kv_shape, self._dtype, self._device = kv_shape, dtype, device
        self._buckets: dict[int, LengthBucket] = {}  # by capacity

    def __iter__(self) -> Iterator[SequenceKV]:
        """Give the leaves, bucket by bucket."""
        return (leaf for bucket in self.buckets for leaf in bucket.leaves)

    @property
    def buckets(self) -> list[LengthBucket]:
        """Those that hold something."""
        return [bucket for bucket in self._buckets.values() if bucket.leaves]

    def add(self, parts_LHTD: Sequence[Tensor]) -> SequenceKV:
        """Copy a leaf, its keys and its values, and leave room for one token more."""
        tokens = parts_LHTD[0].shape[-2]
        bucket = self._bucket_for(tokens + 1)
        leaf = SequenceKV(bucket, len(bucket.leaves), tokens)
        bucket.insert(leaf, parts_LHTD)
        return leaf

    def remove(self, leaf: SequenceKV) -> None:
        """Give free what a leaf takes."""
        leaf.bucket.remove(leaf.slot)

    def ensure_capacity(self) -> None:
        """Move the leaves that have no room for one token more."""
        for leaf in [leaf for leaf in self if leaf.tokens == leaf.bucket.capacity]:
            outgrown, slot = leaf.bucket, leaf.slot
            self._bucket_for(leaf.tokens + 1).insert(leaf, leaf.parts_LHTD)
            outgrown.remove(slot)

    def clear(self) -> None:
        """Forget all leaves, numbers that are none included."""
        if self._device.type != "cpu":  # whatever changes the weights meanwhile needs the memory
            self._buckets.clear()
        for bucket in self._buckets.values():  # and here, memory that is new costs more than to clear it
            bucket.leaves.clear()
            bucket.keys_LNHDT.zero_()
            bucket.values_LNHTD.zero_()

    def _bucket_for(self, tokens: int) -> LengthBucket:
        capacity = _bucket_capacity(tokens, _MIN_BUCKET_TOKENS[self._device.type])
        if capacity not in self._buckets:
            layers, heads, width = self._kv_shape
            keys_LNHDT, values_LNHTD = (
                torch.zeros(layers, 1, heads, *of_head, dtype=self._dtype, device=self._device)
                for of_head in ((width, capacity), (capacity, width))
            )
            self._buckets[capacity] = LengthBucket(keys_LNHDT, values_LNHTD)
        return self._buckets[capacity]


def _bucket_capacity(tokens: int, smallest: int) -> int:
    """Choose a power of two, or the middle between two: past the smallest, a third is padding at most."""
    power = max(smallest, 1 << (tokens - 1).bit_length())
    middle = power // 4 * 3
    return middle if tokens <= middle and power > smallest else power
