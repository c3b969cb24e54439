"""Memories and lines of the core block that were replaced, for questions that name an earlier time."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

from locomo.types import without_day
from memory_program.agents.memory_lines import format_ended
from memory_program.bank.bank import MemoryBank
from memory_program.bank.dates.date_span import DateSpan
from memory_program.bank.dates.phrases import WEEKDAY_NAME
from memory_program.bank.dates.resolve import find_dates
from memory_program.bank.lexical import BM25Index
from memory_program.bank.memory import Validity
from memory_program.bank.memory_search import MemoryIndex, filter_by_relative_score
from memory_program.bank.space import MemorySpace

_MOST_CHARS = 2_000  # of a question that are searched for dates: 32,000 take half a second


@dataclass(frozen=True, slots=True)
class EarlierVersions:
    """The live memories, and the replaced ones that held at the time that a question names.

    ``bank`` has both as live memories, and ``index`` searches it. ``ended`` has the day on which each
    replaced memory ended; one that was deleted for the memory budget alone did not end. ``core_ended`` has
    that day for each line that the core block no longer has.
    """

    bank: MemoryBank
    index: MemoryIndex
    ended: Mapping[str, date]
    core_ended: Mapping[str, date]

    def core_lines(self, question: str, top_k: int, floor: float) -> list[str]:
        """List the earlier lines of the core block that share words with a question, best first."""
        index, lines = BM25Index(), list(self.core_ended)
        for line in lines:
            index.add(line)
        found = filter_by_relative_score(index.search(question, top_k), floor)
        return [format_ended(line, self.core_ended[line]) for line in (lines[hit.doc_id] for hit in found)]


def find_named_times(question: str, last_day: date) -> list[DateSpan]:
    """List the times that a question names.

    "Last week" is counted from the day on which the question is asked, if it says so, and else from the day
    of the last session. A weekday alone is no time: "every Saturday" asks for a habit.
    """
    asked = without_day(question)
    said_on = [mention.date_span.first for mention in find_dates(question[len(asked) :], last_day)]
    return [
        mention.date_span
        for mention in find_dates(asked[:_MOST_CHARS], said_on[-1] if said_on else last_day)
        if not re.fullmatch(WEEKDAY_NAME, asked[mention.start : mention.end], re.IGNORECASE)
    ]


def find_earlier_versions(space: MemorySpace, question: str) -> EarlierVersions | None:
    """Find what was replaced since a time that a question names, and held then.

    Returns:
        None if the question names no time, or nothing of that time was replaced.
    """
    days = [one.session.date_time.date() for one in space.sessions.values()]
    spans = find_named_times(question, max(days)) if days else []
    if not spans:
        return None
    times = space.valid_times()

    def held(validity: Validity) -> bool:
        return any(validity.held_during(span.first, span.last) for span in spans)

    past = {
        name: validity.valid_to
        for name, validity in times.memories.items()
        if validity.valid_to is not None and held(validity)
    }
    ended = {name: day for name, day in past.items() if name not in times.dropped}
    core_ended: dict[str, date] = {}
    current = set(space.bank.core.splitlines())
    for text, validity in times.cores:
        for line in text.splitlines():
            if validity.valid_to and line not in current and (held(validity) or line in core_ended):
                core_ended[line] = validity.valid_to
    if not past and not core_ended:
        return None
    live = [memory.memory_id for memory in space.bank.live()]
    bank = space.bank.with_live([*live, *past], space.bank.core)
    return EarlierVersions(bank, space.index.empty_copy(), ended, core_ended)
