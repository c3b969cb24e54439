"""Reader contexts: the memories and turns that a reader sees, under a token budget.

Every system answers with the same reader; they differ in the context that is built here. The reader never
sees the category or the gold, and only ``FullContext`` shows it the conversation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

from locomo.types import Session
from memory_program.agents.earlier_versions import find_earlier_versions
from memory_program.agents.memory_lines import format_ended, format_with_date
from memory_program.agents.signatures import EMPTY_PLACEHOLDER
from memory_program.bank.archive import ScoredTurn
from memory_program.bank.budget import count_tokens, pack_to_budget
from memory_program.bank.dates.date_span import format_day
from memory_program.bank.dates.resolve import add_dates
from memory_program.bank.memory import Memory
from memory_program.bank.memory_search import filter_by_relative_score, reciprocal_rank_fusion
from memory_program.bank.outcomes import RankedItem
from memory_program.bank.space import MemorySpace

RANKING_DEPTH = 50
"""The length of rankings, so that recall can be measured up to 50; the reader sees the first of them."""


@dataclass(frozen=True, slots=True)
class ReaderContext:
    """The fields of a reader's prompt, and the items in them."""

    core: str = EMPTY_PLACEHOLDER
    memories: str = EMPTY_PLACEHOLDER
    excerpts: str = EMPTY_PLACEHOLDER
    ranked: tuple[RankedItem, ...] | None = None
    shown: tuple[str, ...] = ()
    tokens: int = 0

    def inputs(self, question: str) -> dict[str, str]:
        """Return the inputs of a reader's signature, with the question before and after the memories."""
        return {
            "excerpts": self.excerpts,
            "question": question,
            "core_memory": self.core,
            "memories": self.memories,
            "question_again": question,
        }


class ContextBuilder(Protocol):
    """Builds a reader's context from a space."""

    def build(self, space: MemorySpace, queries: Sequence[str]) -> ReaderContext:
        """Build the context for a question: the first query; the others are the reader's searches."""
        ...


@dataclass(frozen=True, slots=True)
class MemoryContext:
    """Core block, packed memories, and verbatim excerpts when the archive is on.

    Memories come best last, next to the question: each can be read alone and has its date. Excerpts come in
    the order of the conversation. Items of a ranking that score below ``min_relative_score`` times its best
    are dropped; on LoCoMo's turns 0.4 costs 0.001 of recall at 10.

    With ``adds_dates``, excerpts also have the dates that their phrases mean (see ``add_dates``).

    If the question names an earlier time, up to ``top_k`` memories that held then and were replaced since
    are shown as well, and as many lines of an earlier core block, each before the day on which it ended.
    """

    top_k: int = 10
    budget: int = 2000
    min_relative_score: float = 0.4
    with_memories: bool = True
    with_archive: bool = False
    adds_dates: bool = False

    def build(self, space: MemorySpace, queries: Sequence[str]) -> ReaderContext:
        """Retrieve, fuse, pack."""
        earlier = find_earlier_versions(space, queries[0]) if self.with_memories and queries else None
        bank, index = (earlier.bank, earlier.index) if earlier else (space.bank, space.index)
        ended = {(True, name): day for name, day in earlier.ended.items()} if earlier else {}
        entries: dict[_Key, Memory | ScoredTurn] = {}
        rankings: list[list[_Key]] = []
        relevant: set[_Key] = set()
        for query in queries:
            if self.with_memories:
                found = index.search(bank, query, RANKING_DEPTH)
                entries |= {_key(scored.memory): scored.memory for scored in found}
                rankings.append([_key(scored.memory) for scored in found])
                relevant |= {_key(s.memory) for s in filter_by_relative_score(found, self.min_relative_score)}
            if self.with_archive:
                turns = space.search_turns(query, RANKING_DEPTH)
                entries |= {_key(scored): scored for scored in turns}
                rankings.append([_key(scored) for scored in turns])
                relevant |= {_key(s) for s in filter_by_relative_score(turns, self.min_relative_score)}
        order = (
            rankings[0] if len(rankings) == 1 else [hit.doc_id for hit in reciprocal_rank_fusion(rankings)]
        )
        lines: dict[_Key, str] = {}
        ranked: list[RankedItem] = []
        for key in order[:RANKING_DEPTH]:
            entry = entries[key]
            lines[key] = format_reader_line(entry, adds_dates=self.adds_dates)
            if key in ended:
                lines[key] = format_ended(lines[key], ended[key])
            sources = entry.sources if isinstance(entry, Memory) else (entry.turn.turn_id,)
            ranked.append(RankedItem(key[1], sources, count_tokens(lines[key] + "\n")))
        # The tightest budgets do not hold all lines of the core block.
        core = pack_to_budget(space.bank.core.splitlines() if self.with_memories else [], self.budget)
        old_core = earlier.core_lines(queries[0], self.top_k, self.min_relative_score) if earlier else []
        replaced_core = pack_to_budget(old_core, (self.budget - core.tokens) // 4)
        core_tokens = core.tokens + replaced_core.tokens
        # Every ranking gives its first top_k candidates; packing keeps the best ones that fit.
        limit = self.top_k * len(rankings)
        current, replaced = ([key for key in lines if (key in ended) is old][:limit] for old in (False, True))
        eligible = relevant.intersection(current + replaced)
        candidates = [key for key in lines if key in eligible]
        shown = pack_to_budget(candidates, self.budget - core_tokens, lines.__getitem__)
        memories = [lines[key] for key in reversed(shown.kept) if isinstance(entries[key], Memory)]
        turns = [entry for key in shown.kept if isinstance(entry := entries[key], ScoredTurn)]
        turns.sort(key=lambda scored: (scored.session.number, scored.session.turns.index(scored.turn)))
        return ReaderContext(
            core="\n".join([*core.kept, *replaced_core.kept]) or EMPTY_PLACEHOLDER,
            memories="\n".join(memories) or EMPTY_PLACEHOLDER,
            excerpts="\n".join(lines[_key(turn)] for turn in turns) or EMPTY_PLACEHOLDER,
            ranked=tuple(ranked),
            shown=tuple(name for _, name in shown.kept),
            tokens=core_tokens + shown.tokens,
        )


@dataclass(frozen=True, slots=True)
class FullContext:
    """Every turn of every session: the full-context baseline.

    Of a conversation with more than ``budget`` tokens, the last turns that fit are shown. For ``adds_dates``
    see ``MemoryContext``.
    """

    budget: int | None = None
    adds_dates: bool = False

    def build(self, space: MemorySpace, queries: Sequence[str]) -> ReaderContext:
        """Write out the conversation; the queries are ignored."""
        sessions: Sequence[Session] = space.archive.sessions
        if self.adds_dates:
            sessions = [_with_dates(session) for session in sessions]
        if self.budget is not None:
            left, last = self.budget, list[Session]()
            for session in reversed(sessions):
                left -= count_tokens(f"{format_day(session.date_time.date())}\n\n\n")
                kept = 0
                for turn in reversed(session.turns):
                    left -= count_tokens(replace(session, turns=(turn,)).transcript + "\n")
                    if left < 0:
                        break
                    kept += 1
                last += [replace(session, turns=session.turns[-kept:])] if kept else []
                if kept < len(session.turns):
                    break
            sessions = last[::-1]
        text = "\n\n".join(f"{format_day(s.date_time.date())}\n{s.transcript}" for s in sessions)
        shown = tuple(turn.turn_id for session in sessions for turn in session.turns)
        return ReaderContext(excerpts=text or EMPTY_PLACEHOLDER, shown=shown, tokens=count_tokens(text))


@dataclass(frozen=True, slots=True)
class NoContext:
    """No context: the model answers from its own knowledge, or by luck."""

    def build(self, space: MemorySpace, queries: Sequence[str]) -> ReaderContext:
        """Return the empty context."""
        return ReaderContext()


def format_reader_line(entry: Memory | ScoredTurn, *, adds_dates: bool = False) -> str:
    """Write a memory or a turn as a reader sees it: a memory before its date, a turn after its date.

    With ``adds_dates``, a turn also has the dates that its phrases mean (see ``add_dates``).
    """
    if isinstance(entry, Memory):
        return format_with_date(entry)
    said_on, turn = entry.session.date_time.date(), entry.excerpt
    turn = replace(turn, text=add_dates(turn.text, said_on)) if adds_dates else turn
    return f"[{format_day(said_on)}] {turn.line}"


@lru_cache(maxsize=1000)  # for each question: a conversation takes a quarter of a second
def _with_dates(session: Session) -> Session:
    said_on = session.date_time.date()
    turns = tuple(replace(turn, text=add_dates(turn.text, said_on)) for turn in session.turns)
    return replace(session, turns=turns)


_Key = tuple[bool, str]
"""True for a memory, and its id: a turn and a memory may have the same id."""


def _key(entry: Memory | ScoredTurn) -> _Key:
    if isinstance(entry, Memory):
        return True, entry.memory_id
    return False, entry.turn.turn_id
