"""Outcomes: of a call to a model, of an ingested session, and of an answered question."""

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """The outcome of a call. Only ``OK`` is scored as the model's own answer; the others are counted."""

    OK = "ok"
    ERROR = "error"
    UNPARSED = "unparsed"
    TRUNCATED = "truncated"


UNREADABLE_OUTCOMES = (Outcome.UNPARSED, Outcome.TRUNCATED)
"""The outcomes of a call whose reply came, and could not be used."""


@dataclass(frozen=True, slots=True)
class CallFailure:
    """A call without a usable reply: its agent (``writer.semantic``), its outcome, and why."""

    where: str
    outcome: Outcome
    message: str

    def __str__(self) -> str:
        """Return the agent and the reason in one line."""
        return f"{self.where}: {self.message}"


@dataclass(frozen=True, slots=True)
class ReplyCounts:
    """Flaws of replies and calls that did no harm, or that a check found.

    ``repaired``: replies that were not in the program's form but could mean only one thing. ``duplicates``:
    calls that repeat another one of their reply; they are not made. ``invented`` and ``copied``: refused
    memories, which are not from the session, or are the prompt's example.
    """

    repaired: int = 0
    duplicates: int = 0
    invented: int = 0
    copied: int = 0

    def __add__(self, other: "ReplyCounts") -> "ReplyCounts":
        return ReplyCounts(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class RankedItem:
    """One retrieved memory or turn: the ids of its source turns, and its number of tokens."""

    item_id: str
    sources: tuple[str, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """The outcome of one session: operations applied, calls refused by a tool, calls that failed.

    ``odd_dates`` are the times of stored memories that are no dates; those memories have none.
    ``clock_times`` are the turns that came without a time and have that of the server's clock.
    """

    session_id: str
    operations: int = 0
    tool_calls: int = 0
    tool_errors: tuple[str, ...] = ()
    failures: tuple[CallFailure, ...] = ()
    left_out: tuple[str, ...] = ()
    odd_dates: tuple[str, ...] = ()
    counts: ReplyCounts = ReplyCounts()
    clock_times: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """A reader's answer and its context.

    ``ranked`` is the whole retrieved ranking (at most 50 items), None for a system without retrieval.
    ``shown`` has the ids of the items that fit the reader's budget, ``context_tokens`` their tokens, without
    the fixed prompt around them. ``repaired`` counts replies as ``ReplyCounts`` does.
    """

    text: str
    outcome: Outcome = Outcome.OK
    message: str = ""
    ranked: tuple[RankedItem, ...] | None = None
    shown: tuple[str, ...] = ()
    context_tokens: int = 0
    searches: int = 0
    repaired: int = 0

    @property
    def failure(self) -> CallFailure | None:
        """The failed call in place of an answer; None if there is an answer."""
        if self.outcome is Outcome.OK:
            return None
        where, colon, why = self.message.partition(": ")
        return CallFailure(where if colon else "reader", self.outcome, why if colon else self.message)
