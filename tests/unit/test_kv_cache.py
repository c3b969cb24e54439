"""The KV cache keeps the numbers of each sequence while others join, grow, move and leave."""

import random

import pytest
import torch
from torch import Tensor

from memory_program.inference.kv_cache import KVCache

LAYERS, HEADS, WIDTH = 2, 3, 4


@pytest.fixture
def cache() -> KVCache:
    return KVCache((LAYERS, HEADS, WIDTH), torch.float32, torch.device("cpu"))


def kv(tokens: int) -> tuple[Tensor, Tensor]:
    keys, values = torch.randn(2, LAYERS, HEADS, tokens, WIDTH)
    return keys, values


def row(cache: KVCache, slot: int) -> tuple[Tensor, Tensor]:
    tokens = cache.lengths[slot]
    return cache.keys_LNHDT[:, slot, :, :, :tokens].mT, cache.values_LNHTD[:, slot, :, :tokens]


def grow(cache: KVCache, expected: list[tuple[Tensor, Tensor]]) -> None:
    """Append a token to every row, as a decode step does."""
    cache.reserve(len(cache.lengths), max(cache.lengths) + 1)
    for slot, (keys, values) in enumerate(expected):
        new_keys, new_values = kv(1)
        cache.keys_LNHDT[:, slot, :, :, cache.lengths[slot]] = new_keys[:, :, 0]
        cache.values_LNHTD[:, slot, :, cache.lengths[slot]] = new_values[:, :, 0]
        expected[slot] = torch.cat((keys, new_keys), dim=2), torch.cat((values, new_values), dim=2)
        cache.lengths[slot] += 1


@pytest.mark.parametrize("seed", range(5))
def test_a_row_is_what_was_put_into_it(cache: KVCache, seed: int) -> None:
    torch.manual_seed(seed)
    choose, expected = random.Random(seed), list[tuple[Tensor, Tensor]]()
    for _ in range(150):
        action = choose.random()
        if action < 0.3 or not expected:
            expected.append(kv(choose.choice([0, 1, 60, 63, 64, 90, 127, 128, 190])))
            cache.add(*expected[-1])
        elif action < 0.45:
            slot, last = choose.randrange(len(expected)), expected.pop()
            if slot < len(expected):
                expected[slot] = last
            cache.remove(slot)
        else:
            grow(cache, expected)
        assert cache.lengths == [keys.shape[2] for keys, _ in expected]
        for slot, both in enumerate(expected):
            assert all(torch.equal(kept, part) for kept, part in zip(row(cache, slot), both, strict=True))


@pytest.mark.parametrize(
    ("tokens", "capacity"),
    [(0, 1), (63, 64), (64, 128), (95, 128), (96, 128), (128, 256), (191, 256), (250, 256), (1500, 2048)],
)
def test_a_row_has_room_for_another_token(cache: KVCache, tokens: int, capacity: int) -> None:
    cache.add(*kv(tokens))
    assert (cache.keys_LNHDT.shape[-1], cache.values_LNHTD.shape[-2]) == (capacity, capacity)


def test_nan_does_not_outlive_its_sequence(cache: KVCache) -> None:
    cache.add(*[torch.full_like(part, torch.nan) for part in kv(10)])
    cache.clear()
    assert cache.lengths == []
    cache.add(*kv(3))
    assert cache.keys_LNHDT.isfinite().all()
    assert cache.values_LNHTD.isfinite().all()
