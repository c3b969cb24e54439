"""How a call to a model ended, and what a system reports of a session or a question."""

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """How a call ended. Only ``OK`` is ever scored as the model's own answer; the rest are counted."""

    OK = "ok"
    ERROR = "error"
    UNPARSED = "unparsed"
    TRUNCATED = "truncated"


@dataclass(frozen=True, slots=True)
class CallFailure:
    """A call that gave nothing usable: which one (``writer.semantic``), how, and why."""

    where: str
    outcome: Outcome
    message: str


@dataclass(frozen=True, slots=True)
class RankedItem:
    """One retrieved memory or turn, best first: the turn ids that it stands for, and its tokens."""

    item_id: str
    sources: tuple[str, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """What became of one session: operations applied, calls refused by a tool, calls that failed."""

    session_id: str
    operations: int = 0
    tool_calls: int = 0
    tool_errors: tuple[str, ...] = ()
    failures: tuple[CallFailure, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """A reader's answer and what it was given.

    ``ranked`` is the whole ranking that retrieval gave (at most 50), of which the reader was shown what fits
    its budget (``shown``, item ids); None when the system does not retrieve. ``context_tokens`` counts what
    was shown, not the fixed prompt around it.
    """

    text: str
    outcome: Outcome = Outcome.OK
    message: str = ""
    ranked: tuple[RankedItem, ...] | None = None
    shown: tuple[str, ...] = ()
    context_tokens: int = 0
    searches: int = 0
