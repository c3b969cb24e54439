"""The context of a reader while turns wait to be written: memories, and those turns word for word."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from locomo.types import Session
from memory_program.agents.context import MemoryContext, ReaderContext, format_reader_line
from memory_program.agents.signatures import EMPTY_PLACEHOLDER
from memory_program.bank.archive import Archive, ScoredTurn
from memory_program.bank.budget import pack_to_budget
from memory_program.bank.space import MemorySpace


@dataclass(frozen=True, slots=True)
class UnwrittenContext:
    """Turns that no agent has written yet, under half of the budget, and memories under the rest.

    Turns that share words with the queries come first, then the latest; they are shown in their order.
    Of a long turn that shares words, the passage is shown.
    """

    memories: MemoryContext
    waiting: Sequence[Session]

    def build(self, space: MemorySpace, queries: Sequence[str]) -> ReaderContext:
        """Pack the turns, then the memories."""
        if not self.waiting:
            return self.memories.build(space, queries)
        archive = Archive()
        archive.add_sessions(self.waiting)
        every = [ScoredTurn(turn, session, 0.0) for session in archive.sessions for turn in session.turns]
        place = {scored.turn.turn_id: number for number, scored in enumerate(every)}
        hits = [hit for query in queries for hit in archive.search(query)]
        ranked = dict.fromkeys([*(hit.turn.turn_id for hit in hits), *reversed(place)])
        best = {hit.turn.turn_id: hit for hit in reversed(hits)}
        adds_dates = self.memories.adds_dates
        found = {name: best.get(name, every[place[name]]) for name in ranked}
        lines = {name: format_reader_line(turn, adds_dates=adds_dates) for name, turn in found.items()}
        packed = pack_to_budget(list(ranked), self.memories.budget // 2, lines.__getitem__)
        shown = sorted(packed.kept, key=place.__getitem__)
        rest = replace(self.memories, budget=self.memories.budget - packed.tokens).build(space, queries)
        older = [] if rest.excerpts == EMPTY_PLACEHOLDER else [rest.excerpts]
        return replace(
            rest,
            excerpts="\n".join([*older, *(lines[name] for name in shown)]) or EMPTY_PLACEHOLDER,
            shown=(*rest.shown, *shown),
            tokens=rest.tokens + packed.tokens,
        )
