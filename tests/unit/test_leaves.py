"""Leaves keep their numbers through whatever joins, grows, moves and leaves beside them."""

import random

import pytest
import torch
from torch import Tensor

from memory_program.inference.kv_cache import KVCache, SequenceKV

LAYERS, HEADS, WIDTH = 2, 3, 4


def make_leaves() -> KVCache:
    return KVCache((LAYERS, HEADS, WIDTH), torch.float32, torch.device("cpu"))


def parts(tokens: int) -> tuple[Tensor, Tensor]:
    keys, values = torch.randn(2, LAYERS, HEADS, tokens, WIDTH)
    return keys, values


def grow(leaves: KVCache, expected: dict[SequenceKV, tuple[Tensor, Tensor]]) -> None:
    """Append a token to every leaf, as a step does, layer by layer in the rows of the buckets."""
    leaves.ensure_capacity()
    for bucket in leaves.buckets:
        for slot, leaf in enumerate(bucket.leaves):
            new_keys, new_values = parts(1)
            bucket.keys_LNHDT[:, slot, :, :, leaf.tokens] = new_keys[:, :, 0]
            bucket.values_LNHTD[:, slot, :, leaf.tokens] = new_values[:, :, 0]
            keys, values = expected[leaf]
            expected[leaf] = torch.cat((keys, new_keys), dim=2), torch.cat((values, new_values), dim=2)
            leaf.tokens += 1


@pytest.mark.parametrize("seed", range(5))
def test_a_leaf_is_what_was_put_into_it(seed: int) -> None:
    torch.manual_seed(seed)
    choose, leaves, expected = random.Random(seed), make_leaves(), dict[SequenceKV, tuple[Tensor, Tensor]]()
    for _ in range(150):
        what = choose.random()
        if what < 0.3 or not expected:
            new = parts(choose.choice([0, 1, 60, 63, 64, 90, 127, 128, 190]))
            expected[leaves.add(new)] = new
        elif what < 0.45:
            leaf = choose.choice(list(expected))
            leaves.remove(leaf)
            del expected[leaf]
        else:
            grow(leaves, expected)
        assert set(leaves) == set(expected)
        for leaf, both in expected.items():
            assert leaf.bucket.leaves[leaf.slot] is leaf
            assert all(torch.equal(kept, part) for kept, part in zip(leaf.parts_LHTD, both, strict=True))


@pytest.mark.parametrize(
    ("tokens", "capacity"),
    [(0, 64), (63, 64), (64, 96), (95, 96), (96, 128), (128, 192), (191, 192), (250, 256), (1500, 1536)],
)
def test_a_bucket_has_room_for_another_token_and_little_more(tokens: int, capacity: int) -> None:
    assert make_leaves().add(parts(tokens)).bucket.capacity == capacity


def test_numbers_that_are_none_do_not_outlive_their_leaves() -> None:
    leaves = make_leaves()
    leaf = leaves.add([torch.full_like(part, torch.nan) for part in parts(10)])
    leaves.clear()
    assert list(leaves) == []
    again = leaves.add(parts(3))
    assert again.bucket is leaf.bucket
    assert again.bucket.keys_LNHDT.isfinite().all()
    assert again.bucket.values_LNHTD.isfinite().all()
