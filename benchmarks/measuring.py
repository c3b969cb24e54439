"""Input of every measured store, and the measurement of its time and memory."""

import itertools
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np

from memory_program.bank.stems import STOP_WORDS

CHUNK = 10_000
NAMES = ("Caroline", "Melanie")
_Result = TypeVar("_Result")


# -- memories and queries ------------------------------------------------------------------------


def vocabulary(size: int = 20_000) -> list[str]:
    """Make up words, the most frequent first: English stop words, then pronounceable syllables."""
    rng = random.Random(0)
    syllables = ["".join(pair) for pair in itertools.product("bdfgklmnprstvz", "aeiou")]
    words = dict.fromkeys(STOP_WORDS)
    while len(words) < size:
        words["".join(rng.choices(syllables, k=rng.randint(2, 4)))] = None
    return list(words)


WORDS = np.array(vocabulary())
ZIPF = np.cumsum(1 / np.arange(1, len(WORDS) + 1))


def sentences(chunk: int) -> list[str]:
    """Write 10,000 sentences of 12 to 20 words, one a name, the rest drawn by Zipf's law (exponent 1)."""
    rng = np.random.default_rng(chunk)
    lengths = rng.integers(11, 20, CHUNK)
    drawn = WORDS[np.searchsorted(ZIPF / ZIPF[-1], rng.random(int(lengths.sum())))].tolist()
    ends = np.cumsum(lengths).tolist()
    starts = [0, *ends[:-1]]
    names = rng.integers(0, len(NAMES), CHUNK).tolist()
    return [
        f"{NAMES[name]} {' '.join(drawn[start:end])}."
        for name, start, end in zip(names, starts, ends, strict=True)
    ]


def memories(count: int, first: int = 0) -> Iterator[str]:
    """Write memories number ``first`` and on, the same for every store."""
    for chunk in range(first // CHUNK, (first + count - 1) // CHUNK + 1):
        skipped = max(first - chunk * CHUNK, 0)
        yield from sentences(chunk)[skipped : first + count - chunk * CHUNK]


def queries(count: int, written: int) -> list[str]:
    """Ask with a name, and six words of one of the first 10,000 memories."""
    rng = random.Random(count)
    asked = [rng.choice(sentences(0)[:written]).rstrip(".").split()[1:] for _ in range(count)]
    return [" ".join([rng.choice(NAMES), *rng.sample(words, 6)]) for words in asked]


# -- measuring -----------------------------------------------------------------------------------


def in_a_process(function: Callable[..., _Result], *arguments: object) -> _Result:
    """Call a function in a fresh process, which has the modules and nothing else in memory."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("forkserver")) as pool:
        return pool.submit(function, *arguments).result()


def elapsed_ms(call: Callable[[], object]) -> float:
    """Time a call."""
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


def median_ms(calls: Iterable[Callable[[], object]], limit_s: float = 4.0) -> float:
    """Time calls one by one until they or the time are over, at least 5 of them."""
    times: list[float] = []
    for call in calls:
        times.append(elapsed_ms(call))
        if len(times) >= 5 and sum(times) > limit_s * 1000:
            break
    return float(np.median(times))


def resident_mb() -> float:
    """Read how much memory this process has (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
