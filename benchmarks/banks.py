"""Cost of large banks: open, search, add, fork and consolidate, compared with other stores.

python benchmarks/banks.py [--memories 1000000] [--namespaces 10000] [--seconds-per-store 25] [--check]

Everything is on disk: a memory counts as added when it is saved, synced and found by the next search. Each
size is measured in a process of its own that opens what another one wrote, so times are those of a cold start
and memory is that of one bank. Stores that are not installed are named and left out; all of them come with
pip install 'memory-program[bench]'.
"""

import argparse
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from measuring import CHUNK, NAMES, elapsed_ms, in_a_process, median_ms, memories, queries, resident_mb
from rich.console import Console
from rich.table import Table
from stores import NOTES, STORES, Store

from memory_program.bank.budget import count_tokens, fit_memories
from memory_program.bank.memory import MEMORY_KINDS, Draft, Provenance
from memory_program.bank.space import MemorySpace
from memory_program.bank.store import BankStore

TOP_K = 10
PER_NAMESPACE = 100
MEMORY_BUDGET = 20_000
BY = Provenance("semantic", "session_1")
LINEAR = 1.5  # times n times the figure of a bank an n-th as large: above the noise of two shared cores
Figures = dict[str, float]
Row = tuple[str, int, Figures]


# -- one bank ------------------------------------------------------------------------------------


def remember(space: MemorySpace, texts: Iterable[str]) -> None:
    """Write memories into a space."""
    for number, text in enumerate(texts):
        space.bank.create([Draft(text, MEMORY_KINDS[number % 3], None, (f"D1:{number}",))], BY)


def write(space: MemorySpace, store: BankStore, texts: Iterable[str]) -> None:
    """Write memories into a space and save it."""
    remember(space, texts)
    store.save(space)


def use(space: MemorySpace, store: BankStore, asked: Sequence[str], count: int) -> Figures:
    """Search, add, fork and consolidate a bank that was opened: what a session does to it."""

    def search(in_space: MemorySpace, query: str) -> None:
        assert in_space.index.search(in_space.bank, query, TOP_K)

    def write_to_a_fork() -> None:
        fork = space.fork()
        fork.bank.create([Draft("Caroline adopted a quokka.", MEMORY_KINDS[0])], BY)
        search(fork, "quokka")

    def consolidate() -> None:
        live = fit_memories(space.bank.live(), MEMORY_BUDGET, space.bank.core).kept
        for one, other in zip(live[0:20:2], live[1:20:2], strict=True):
            text = f"{one.text} {other.text}"
            space.bank.merge([one.memory_id, other.memory_id], Draft(text, one.kind), BY)
        store.save(space)
        search(space, asked[0])

    def add(text: str) -> None:
        remember(space, [text])
        space.index.refresh(space.bank)

    def add_and_save(text: str) -> None:
        write(space, store, [text])
        search(space, text)

    new = list(memories(2 * count, first=3 * CHUNK + 1))
    search(space, asked[0])
    figures = {
        "search, median": median_ms(lambda q=query: search(space, q) for query in asked),
        "search, a name alone": median_ms([lambda: search(space, NAMES[0])] * 20),
        "add one": median_ms(lambda t=text: add(t) for text in new[:count]),
        "add one, save, find it": median_ms(lambda t=text: add_and_save(t) for text in new[count:]),
        "fork": median_ms([space.fork] * 50),
        "as it was half-way": median_ms([lambda: space.bank.at(space.bank.version // 2)] * 3),
        "fork, write one, find it": median_ms([write_to_a_fork] * 10),
        "memory in use, MB": resident_mb(),
    }
    count_tokens("")  # the table of tokens is not part of a bank
    return figures | {"consolidate": elapsed_ms(consolidate), "memory then, MB": resident_mb()}


# -- one namespace -------------------------------------------------------------------------------


def fill_one(url: str, count: int) -> Figures:
    """Write one bank, 10,000 memories a save, and leave as much of its log out of its snapshot as may be."""
    began = time.perf_counter()
    in_chunks, in_snapshot = int(0.8 * count), int(count / 1.09)
    ends = [*range(CHUNK, in_chunks, CHUNK), in_chunks, in_snapshot, count]
    with BankStore(url) as store:
        space = store.load("benchmark")
        for first, end in itertools.pairwise([0, *ends]):
            write(space, store, memories(end - first, first))
    return {"write and save, memories/s": count / (time.perf_counter() - began)}


def use_one(url: str, count: int) -> Figures:
    """Open the bank and use it."""
    asked = queries(200, count)
    with BankStore(url) as store:
        began = time.perf_counter()
        space = store.load("benchmark")
        opened_ms = (time.perf_counter() - began) * 1000
        first_ms = elapsed_ms(lambda: space.index.search(space.bank, asked[0], TOP_K))
        return {"open": opened_ms, "first search": first_ms} | use(space, store, asked, 30)


# -- many namespaces -----------------------------------------------------------------------------


def fill_many(url: str, count: int) -> Figures:
    """Write 100 memories into each of many namespaces, one save each."""
    texts = memories(count * PER_NAMESPACE)
    began = time.perf_counter()
    with BankStore(url) as store:
        for number in range(count):
            write(store.load(f"user {number}"), store, itertools.islice(texts, PER_NAMESPACE))
    return {"write and save, memories/s": count * PER_NAMESPACE / (time.perf_counter() - began)}


def use_many(url: str, count: int) -> Figures:
    """Open some of the namespaces and use each; the figures are medians."""
    rng = random.Random(count)
    found: list[Figures] = []
    with BankStore(url) as store:
        listed_ms = elapsed_ms(store.namespaces)
        for number in rng.sample(range(count), min(count, 20)):
            began = time.perf_counter()
            space = store.load(f"user {number}")
            opened_ms = (time.perf_counter() - began) * 1000
            (text,) = memories(1, first=number * PER_NAMESPACE)
            found.append({"open": opened_ms} | use(space, store, [text] * 5, 2))
    medians = {name: float(np.median([figures[name] for figures in found])) for name in found[0]}
    return {"list the namespaces": listed_ms} | medians


# -- other stores --------------------------------------------------------------------------------


def measure_store(kind: type[Store], folder: Path, sizes: Sequence[int], limit_s: float) -> list[Row]:
    """Fill a store as far as the time allows, and measure it at each size on the way."""
    rows: list[Row] = []
    filled, spent_s = 0, 0.0
    for size in sizes:
        store = kind(folder)
        if not kind.is_durable:
            filled, spent_s = 0, 0.0
        while filled < size and spent_s < limit_s:
            batch = list(enumerate(memories(min(kind.batch, size - filled), filled), filled))
            spent_s += elapsed_ms(partial(store.add, batch)) / 1000
            filled += len(batch)
        rate = filled / spent_s
        asked = [partial(store.search, query, TOP_K) for query in queries(50, filled)]
        new = [partial(store.add, [one]) for one in enumerate(memories(20, filled), filled)]
        figures = {
            "add one": median_ms(new, 2.0),
            "search, median": median_ms(asked, 3.0),
            "memory in use, MB": resident_mb(),
        }
        filled += len(new)
        store.close()
        if kind.is_durable:
            figures["open and search once"] = elapsed_ms(lambda: _reopened(kind, folder))
        rows.append((kind.name, filled, figures | {"memories/s": rate}))
        if filled < size:
            break
    return rows


def _reopened(kind: type[Store], folder: Path) -> None:
    store = kind(folder)
    assert store.search(NAMES[0], TOP_K)
    store.close()


# -- printing ------------------------------------------------------------------------------------


def said(value: float | None) -> str:
    """Write a figure with three digits."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def growth_table(title: str, rows: Sequence[tuple[int, Figures]]) -> Table:
    """Lay the figures out by size, and say by how much the last step grew."""
    table = Table("milliseconds, or as named", title=title)
    for size, _ in rows:
        table.add_column(f"{size:,}", justify="right")
    (before, earlier), (after, later) = rows[-2:]
    table.add_column(f"growth, {after / before:.3g} x", justify="right")
    for name in later:
        table.add_row(name, *(said(found[name]) for _, found in rows), f"{later[name] / earlier[name]:.2f}")
    return table


def stores_table(rows: Sequence[Row]) -> Table:
    """Lay out what the stores did, size by size."""
    names = list(dict.fromkeys(name for _, _, figures in rows for name in figures))
    ranking = {kind.name: kind.ranking for kind in STORES}
    table = Table("store", "memories", *names, "ranked by", title="Other stores (milliseconds, or as named)")
    for store, size, figures in rows:
        cells = [said(figures.get(name)) for name in names]
        table.add_row(store, f"{size:,}", *cells, ranking.get(store, "BM25"))
    table.caption = NOTES
    return table


def worse_than_linear(rows: Sequence[tuple[int, Figures]]) -> list[str]:
    """Name the figures that grew faster than the bank, or for a search, half as fast or faster."""
    (before, earlier), (after, later) = rows[-2:]
    limits = {name: after / before * (0.5 if name == "search, median" else LINEAR) for name in later}
    return [
        f"{name} grew {later[name] / earlier[name]:.1f} times from {before:,} to {after:,}, above {limit:.1f}"
        for name, limit in limits.items()
        if not name.endswith("/s") and later[name] > limit * earlier[name]
    ]


def at_least_100(text: str) -> int:
    """Read a size, of which a hundredth is measured, too."""
    size = int(text)
    if size < 100:
        raise argparse.ArgumentTypeError(f"{size} is too small to measure growth: give at least 100")
    return size


def main() -> int:
    """Measure, print, and with ``--check`` say by the exit status whether the figures grow as they should."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--memories", type=at_least_100, default=1_000_000, help="in the largest namespace")
    parser.add_argument("--namespaces", type=at_least_100, default=10_000, help="of 100 memories, at most")
    parser.add_argument(
        "--seconds-per-store", type=float, default=25, help="to fill each of the other stores"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if anything grows too fast")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 140)
    faults: list[str] = []
    sizes = [options.memories // 100, options.memories // 10, options.memories]
    counts = [options.namespaces // 100, options.namespaces // 10, options.namespaces]
    for title, of, fill, measure in (
        ("One namespace, by its memories", sizes, fill_one, use_one),
        ("Namespaces of 100 memories, by their number", counts, fill_many, use_many),
    ):
        rows: list[tuple[int, Figures]] = []
        for size in of:
            with tempfile.TemporaryDirectory() as folder:
                url = f"sqlite:///{folder}/banks.sqlite"
                filled = in_a_process(fill, url, size)
                rows.append((size, filled | in_a_process(measure, url, size)))
        console.print(growth_table(title, rows))
        faults += worse_than_linear(rows)
    others: list[Row] = []
    for kind in STORES:
        if package := kind.missing_package():
            console.print(f"{kind.name} is left out: pip install {package}")
            continue
        with tempfile.TemporaryDirectory() as folder:
            others += in_a_process(measure_store, kind, Path(folder), sizes, options.seconds_per_store)
    console.print(stores_table(others))
    for fault in faults:
        console.print(f"[red]{fault}[/red]")
    return 1 if options.check and faults else 0


if __name__ == "__main__":
    sys.exit(main())
