"""Outcomes: of a call to a model, of an ingested session, and of an answered question."""

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """The outcome of a call. Only ``OK`` is scored as the model's own answer; the others are counted."""

    OK = "ok"
    ERROR = "error"
    UNPARSED = "unparsed"
    TRUNCATED = "truncated"


@dataclass(frozen=True, slots=True)
class CallFailure:
    """A call without a usable reply: its agent (``writer.semantic``), its outcome, and why."""

    where: str
    outcome: Outcome
    message: str


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
    """

    session_id: str
    operations: int = 0
    tool_calls: int = 0
    tool_errors: tuple[str, ...] = ()
    failures: tuple[CallFailure, ...] = ()
    left_out: tuple[str, ...] = ()
    odd_dates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """A reader's answer and its context.

    ``ranked`` is the whole retrieved ranking (at most 50 items), None for a system without retrieval.
    ``shown`` has the ids of the items that fit the reader's budget, ``context_tokens`` their tokens, without
    the fixed prompt around them.
    """

    text: str
    outcome: Outcome = Outcome.OK
    message: str = ""
    ranked: tuple[RankedItem, ...] | None = None
    shown: tuple[str, ...] = ()
    context_tokens: int = 0
    searches: int = 0
