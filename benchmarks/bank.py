"""How fast a bank takes in and finds memories, beside LangGraph's InMemoryStore and SQLite FTS5.

python benchmarks/bank.py [--sizes 1000,10000,100000] [--seed 0] [--check]

Every system gets the same memories one at a time, as an agent writes them, and the same queries. An add of
the bank is the operation in the log and its indexing, so that the next search finds it. Nothing is durable
here but what the last table says is.
"""

import argparse
import gc
import itertools
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from bm25s.stopwords import STOPWORDS_EN
from langgraph.store.memory import InMemoryStore
from rich.console import Console
from rich.table import Table

from memory_program.bank.bank import MemoryBank
from memory_program.bank.memory import MEMORY_KINDS, Draft, Provenance
from memory_program.bank.retrieval import MemoryIndex
from memory_program.bank.space import MemorySpace
from memory_program.bank.store import BankStore

TOP_K = 10
MEASURED_ADDS = 500
QUERIES = 300
QUERIES_LIMIT_S = 3.0
ADD_TARGET_MS = 2.0
SEARCH_TARGETS_MS = {1_000: 2.0, 100_000: 15.0}
NAMES = ("Caroline", "Melanie")
BY = Provenance("semantic", "session_1")


@dataclass(frozen=True, slots=True)
class Timing:
    """How long something took, one entry a time, in milliseconds."""

    times_ms: Sequence[float]

    @property
    def mean_ms(self) -> float:
        """The mean."""
        return float(np.mean(self.times_ms))

    def percentile_ms(self, percent: float) -> float:
        """A percentile."""
        return float(np.percentile(self.times_ms, percent))

    @property
    def per_second(self) -> float:
        """How many there would be in a second."""
        return 1000 / self.mean_ms


@dataclass(frozen=True, slots=True)
class Row:
    """What one system did at one size."""

    system: str
    size: int
    adds: Timing
    searches: Timing
    ranking: str

    @property
    def misses_a_target(self) -> bool:
        """Whether an add or the median search takes longer than it may."""
        limit = SEARCH_TARGETS_MS.get(self.size, max(SEARCH_TARGETS_MS.values()))
        return self.adds.mean_ms >= ADD_TARGET_MS or self.searches.percentile_ms(50) >= limit


class Subject(Protocol):
    """A system under measurement."""

    name: str
    ranking: str

    def add(self, number: int, text: str) -> None:
        """Take in a memory so that the next search finds it."""
        ...

    def search(self, query: str) -> int:
        """Find memories and say how many."""
        ...


class BankSubject:
    """This project's bank with its index."""

    name = "memory-program"
    ranking = "BM25"

    def __init__(self) -> None:
        self.bank = MemoryBank("benchmark")
        self.index = MemoryIndex()

    def add(self, number: int, text: str) -> None:
        """Append the operation and index it."""
        self.bank.create([Draft(text, MEMORY_KINDS[number % 3], None, (f"D1:{number}",))], BY)
        self.index.refresh(self.bank)

    def search(self, query: str) -> int:
        """Rank by BM25."""
        return len(self.index.search(self.bank, query, TOP_K))


class InMemoryStoreSubject:
    """The store that LangMem keeps its memories in by default."""

    name = "InMemoryStore"
    ranking = "nothing¹"

    def __init__(self) -> None:
        self.store = InMemoryStore()

    def add(self, number: int, text: str) -> None:
        """Put an item."""
        self.store.put(("benchmark",), f"m{number}", {"text": text})

    def search(self, query: str) -> int:
        """Search as configured, which is without an embedding."""
        return len(self.store.search(("benchmark",), query=query, limit=TOP_K))


class Fts5Subject:
    """SQLite's full-text index, in memory, with its Porter stemmer; stop words are left out of the query."""

    name = "SQLite FTS5"
    ranking = "BM25"

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.execute("CREATE VIRTUAL TABLE memories USING fts5(text, tokenize='porter unicode61')")

    def add(self, number: int, text: str) -> None:
        """Insert a row."""
        self.connection.execute("INSERT INTO memories(rowid, text) VALUES (?, ?)", (number, text))

    def search(self, query: str) -> int:
        """Rank the rows that hold any of the words."""
        words = " OR ".join(f'"{word}"' for word in query.split() if word not in STOPWORDS_EN)
        rows = self.connection.execute(
            "SELECT rowid FROM memories WHERE memories MATCH ? ORDER BY rank LIMIT ?", (words, TOP_K)
        )
        return len(rows.fetchall())


# -- memories and queries ------------------------------------------------------------------------


def vocabulary(rng: random.Random, size: int = 20_000) -> list[str]:
    """Make up words, the most frequent first: English stop words, then pronounceable syllables."""
    syllables = ["".join(pair) for pair in itertools.product("bdfgklmnprstvz", "aeiou")]
    words = dict.fromkeys(str(word) for word in STOPWORDS_EN)
    while len(words) < size:
        words["".join(rng.choices(syllables, k=rng.randint(2, 4)))] = None
    return list(words)


def sentences(rng: random.Random) -> Iterator[str]:
    """Write sentences of 12 to 20 words, one a name, the rest drawn by Zipf's law (exponent 1)."""
    words = vocabulary(rng)
    weights = list(itertools.accumulate(1 / rank for rank in range(1, len(words) + 1)))
    while True:
        drawn = rng.choices(words, cum_weights=weights, k=rng.randint(11, 19))
        yield f"{rng.choice(NAMES)} {' '.join(drawn)}."


def queries(rng: random.Random, texts: Sequence[str]) -> list[str]:
    """Ask with a name, and six words of a memory."""
    asked = [rng.choice(texts).rstrip(".").split()[1:] for _ in range(QUERIES)]
    return [" ".join([rng.choice(NAMES), *rng.sample(words, 6)]) for words in asked]


# -- measuring -----------------------------------------------------------------------------------


def timed(calls: Iterable[Callable[[], object]], limit_s: float = float("inf")) -> Timing:
    """Time calls one by one, at least 20 of them, until the time is over."""
    gc.collect()
    times: list[float] = []
    for call in calls:
        started = time.perf_counter()
        call()
        times.append((time.perf_counter() - started) * 1000)
        if len(times) >= 20 and sum(times) > limit_s * 1000:
            break
    return Timing(times)


def measure(subject: Subject, texts: Sequence[str], sizes: Sequence[int], seed: int) -> list[Row]:
    """Grow a system to each of the sizes, and measure the last adds before it and the searches at it."""
    rows: list[Row] = []
    filled = 0
    for size in sizes:
        unmeasured = max(filled, size - MEASURED_ADDS)
        for number in range(filled, unmeasured):
            subject.add(number + 1, texts[number])
        adds = timed(lambda n=number: subject.add(n + 1, texts[n]) for number in range(unmeasured, size))
        asked = queries(random.Random(seed), texts[:size])
        assert subject.search(asked[0]) > 0
        searches = timed((lambda q=query: subject.search(q) for query in asked), QUERIES_LIMIT_S)
        rows.append(Row(subject.name, size, adds, searches, subject.ranking))
        filled = size
    return rows


def branches(subject: BankSubject, rng: random.Random) -> list[tuple[str, Timing]]:
    """Measure what a rollout, an undo and a look at the past cost, at the largest size."""
    bank, index = subject.bank, subject.index

    def write_to_a_fork() -> None:
        bank_fork, index_fork = bank.fork(), index.fork()
        bank_fork.create([Draft("Caroline adopted a dog.", MEMORY_KINDS[0])], BY)
        assert index_fork.search(bank_fork, "adopted", 1)

    versions = [rng.randrange(bank.version) for _ in range(200)]
    return [
        ("fork the bank", timed([bank.fork] * 200)),
        ("fork the index", timed([index.fork] * 200)),
        ("fork both, write one memory, find it", timed([write_to_a_fork] * 50)),
        ("undo one operation", timed([bank.undo] * 200)),
        ("at a random version", timed(lambda v=version: bank.at(v) for version in versions)),
    ]


def durability(texts: Sequence[str], folder: Path) -> list[tuple[str, Timing]]:
    """Measure saves of ten memories each to a SQLite file, and loading a log of 10,000 at most."""
    log = texts[:10_000]
    with BankStore(f"sqlite:///{folder / 'bank.sqlite'}") as store:
        space = MemorySpace("benchmark")

        def save(written: Sequence[str]) -> None:
            for text in written:
                space.bank.create([Draft(text, MEMORY_KINDS[0])], BY)
            store.save(space)

        in_tens = min(len(log), 2_000)
        saves = timed(lambda s=start: save(log[s : s + 10]) for start in range(0, in_tens, 10))
        save(log[in_tens:])
        loads = timed([lambda: store.load("benchmark")] * 5)
    return [
        ("write and save ten memories (SQLite, synced to disk)", saves),
        (f"load a log of {len(log):,} operations", loads),
    ]


# -- printing ------------------------------------------------------------------------------------


def speed_table(rows: Sequence[Row]) -> Table:
    """Lay out what the systems did."""
    table = Table(title="One memory at a time; times in milliseconds")
    for heading in (
        "memories",
        "system",
        "add",
        "p99",
        "adds/s",
        "search p50",
        "p99",
        "searches/s",
        "ranked by",
    ):
        is_text = heading in ("system", "ranked by")
        table.add_column(heading, justify="left" if is_text else "right")
    for row in sorted(rows, key=lambda row: row.size):
        figures = [
            f"{row.adds.mean_ms:.3f}",
            f"{row.adds.percentile_ms(99):.3f}",
            f"{row.adds.per_second:,.0f}",
            f"{row.searches.percentile_ms(50):.3f}",
            f"{row.searches.percentile_ms(99):.3f}",
            f"{row.searches.per_second:,.0f}",
        ]
        is_last = row.system == Fts5Subject.name
        table.add_row(f"{row.size:,}", row.system, *figures, row.ranking, end_section=is_last)
    table.caption = (
        "¹ Without an embedding configured, LangGraph's store ignores the query and lists what came first."
    )
    return table


def other_table(title: str, timings: Sequence[tuple[str, Timing]]) -> Table:
    """Lay out single figures."""
    table = Table("", "mean", "p99", title=title)
    for name, timing in timings:
        table.add_row(name, f"{timing.mean_ms:.3f}", f"{timing.percentile_ms(99):.3f}")
    return table


def sizes_from(text: str) -> list[int]:
    """Read sizes such as ``1000,10000``."""
    sizes = sorted({int(part) for part in text.split(",")})
    if sizes[0] < 100:
        raise argparse.ArgumentTypeError(f"{sizes[0]} is too small to measure: give at least 100")
    return sizes


def main() -> int:
    """Measure, print, and with ``--check`` say by the exit status whether the targets are met."""
    parser = argparse.ArgumentParser(description="Measure the bank beside InMemoryStore and SQLite FTS5.")
    parser.add_argument("--sizes", type=sizes_from, default=[1_000, 10_000, 100_000], help="e.g. 1000,10000")
    parser.add_argument("--seed", type=int, default=0, help="of the generated memories and queries")
    parser.add_argument("--check", action="store_true", help="exit with 1 if the bank misses a target")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    texts = list(itertools.islice(sentences(rng), options.sizes[-1]))
    ours = BankSubject()
    rows = [
        row
        for subject in (ours, InMemoryStoreSubject(), Fts5Subject())
        for row in measure(subject, texts, options.sizes, options.seed)
    ]
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(speed_table(rows))
    console.print(other_table(f"Branches of a bank of {len(texts):,} memories (ms)", branches(ours, rng)))
    with tempfile.TemporaryDirectory() as folder:
        console.print(other_table("Durability (ms)", durability(texts, Path(folder))))
    missed = [row for row in rows if row.system == ours.name and row.misses_a_target]
    for row in missed:
        console.print(f"[red]missed a target at {row.size:,} memories[/red]")
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
