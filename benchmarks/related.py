"""Related memories shown to a writer: recall of the memories that its session changes, and distractors.

In made-up worlds it is known which memory each update or deletion is about. The oracle writes; before each
session the bank is searched, once with the whole session as one query and once with each of its turns (a
memory has the best of its scores), and what a specialist would be shown is compared with what it will change.

Run it with ``python benchmarks/related.py --help``. Twenty worlds take a few seconds.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from locomo.statistics import clustered_interval
from memory_program.agents.program import MemoryProgram
from memory_program.agents.writer import MemoryWriter, specialist_memory_kind
from memory_program.bank.budget import count_tokens
from memory_program.bank.memory_search import ScoredMemory, filter_by_relative_score
from memory_program.bank.space import MemorySpace
from memory_program.configs.groups import DatasetName, DataSettings
from memory_program.core.command_line import parse_flags, run_script
from memory_program.core.settings import Settings
from memory_program.evaluation.datasets import load_worlds
from memory_program.worlds import KINDS, Action, World
from memory_program.worlds.oracle import oracle_lm

FLOORS = (0.0, 0.2, 0.3, 0.4, 0.5)
"""Shares of the best score; what scores less is not shown."""

DEFAULTS = MemoryWriter()


class Related(Settings):
    """Measure what writers are shown, by how the bank is searched and what is left out."""

    seed: int = Field(default=1, ge=0)
    """Chooses the worlds."""

    conversations: int = Field(default=20, ge=1)
    """How many worlds."""

    related: int = Field(default=DEFAULTS.related, ge=1)
    """How many memories are shown at most."""


@dataclass(frozen=True, slots=True)
class Search:
    """Results of a search before a session, best first, and the texts that the session will change."""

    conversation: str
    found: Sequence[ScoredMemory]
    changed: Sequence[str]


def main() -> None:
    """Read the flags, measure, and print the table."""
    benchmark = parse_flags(Related)
    worlds = load_worlds(
        DataSettings(dataset=DatasetName.WORLD.value, num_worlds=benchmark.conversations), benchmark.seed
    )
    by_query: dict[str, list[Search]] = {"the whole session": [], "each turn": []}
    for world in track(worlds, "worlds", console=Console(stderr=True)):
        for by_session, by_turn in _searches(world):
            by_query["the whole session"].append(by_session)
            by_query["each turn"].append(by_turn)
    table = Table(
        title=f"{len(worlds)} worlds of seed {benchmark.seed}, at most {benchmark.related} memories shown",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("query", no_wrap=True)
    for heading in ("floor", "of what changes, shown", "best", "memories", "tokens"):
        table.add_column(heading, justify="right")
    for query, searches in by_query.items():
        for floor in FLOORS:
            table.add_row(query, f"{floor:.1f}", *_cells(searches, benchmark.related, floor))
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _searches(world: World) -> Iterable[tuple[Search, Search]]:
    """Search before each session for each specialist that has memories: by the session, and by its turns."""
    name = world.conversation.conversation_id
    program, space = MemoryProgram(), MemorySpace(name)
    program.set_lm(oracle_lm([world]))
    for session in world.conversation.sessions:
        for kind in KINDS:
            if kind == "core":
                continue
            changed = [
                operation.old_text
                for operation in world.session_operations(session.number, kind)
                if operation.action in (Action.UPDATE, Action.DELETE)
            ]
            whole, turns = (
                space.index.search_any(
                    space.bank, queries, len(space.bank) or 1, specialist_memory_kind(kind)
                )
                for queries in ([session.transcript], [turn.line for turn in session.turns])
            )
            yield Search(name, whole, changed), Search(name, turns, changed)
        program.remember(space, session)


def _cells(searches: Sequence[Search], related: int, floor: float) -> list[str]:
    is_shown, is_best, conversations = list[float](), list[float](), list[str]()
    counts, tokens = list[int](), list[int]()
    for search in searches:
        texts = [scored.memory.text for scored in filter_by_relative_score(search.found[:related], floor)]
        counts.append(len(texts))
        tokens.append(sum(count_tokens(text) for text in texts))
        for text in search.changed:
            is_shown.append(float(text in texts))
            is_best.append(float(text in texts[:1]))
            conversations.append(search.conversation)
    if not is_shown:
        return ["-", "-", f"{np.mean(counts):.1f}", f"{np.mean(tokens):.0f}"]
    recall = clustered_interval(is_shown, conversations, rng=np.random.default_rng(0))
    interval = "" if recall.low is None else f" {recall.low:.3f}..{recall.high:.3f}"
    return [
        f"{recall.value:.3f}{interval}",
        f"{np.mean(is_best):.3f}",
        f"{np.mean(counts):.1f}",
        f"{np.mean(tokens):.0f}",
    ]


if __name__ == "__main__":
    sys.exit(run_script(main))
