"""Agreement of a writer's operations with the oracle's: precision, recall and F1.

The writer is measured on the banks that it builds itself. Every prompt that a specialist was given is put to
the oracle too, and the operations of both replies are compared: so the gold of a session is ``operations`` of
its world, as far as they can be done in the bank as it was, seen through that prompt.

An operation is three things, and right if all three are equal to those of one gold operation of the same
reply, each gold operation counting once:

- what it does: creates, updates or deletes a memory of the specialist's kind, or appends to or replaces a
  line of the core block;
- its target: what is changed or deleted. A memory's id stands for the text that the prompt shows under that
  id, without its date, so that of two memories which say the same either will do; an id that the prompt does
  not show is a target of its own, which is never right. Of the core block it is the old text, and of what is
  new there is none;
- its text, normalised as the target is: without case, punctuation and spare spaces. A deletion has none.

Dates are counted apart, among the right operations whose gold has one. A reply that cannot be read, or a call
that failed, holds no operations; a call of any other form (a merge, say) is an operation that is never right.
"""

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import dspy
from dspy.lm15 import Request, Response
from dspy.utils.exceptions import AdapterParseError

from memory_program.agents.chat_adapter import ADAPTER
from memory_program.agents.signatures import SPECIALISTS
from memory_program.bank.dates.resolve import resolve_date
from memory_program.models.rate_limit import Engine
from memory_program.worlds import KINDS, Kind
from memory_program.worlds.oracle import Exchange
from memory_program.worlds.rendered_prompts import (
    extract_prompt,
    find_signature,
    parse_input_fields,
    parse_stored_memories,
)


@dataclass(frozen=True, slots=True)
class NormalizedOperation:
    """An operation as it is compared; ``raw_text`` is its text, or its target's, as it stands."""

    action: str
    target: str
    text: str
    raw_text: str = field(default="", compare=False)


_Dated = tuple[NormalizedOperation, str]  # with its date, or ""
_ISO_DAY = re.compile(r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True, slots=True)
class OperationCounts:
    """Counts of predicted, gold and correct operations.

    ``gold_dates`` counts the right operations whose gold has a date, ``correct_dates`` those that have the
    same one.
    """

    correct: int = 0
    predicted: int = 0
    gold: int = 0
    gold_dates: int = 0
    correct_dates: int = 0

    @property
    def precision(self) -> float | None:
        """``right / written``; None if nothing was written."""
        return self.correct / self.predicted if self.predicted else None

    @property
    def recall(self) -> float | None:
        """``right / gold``; None if there was nothing to write."""
        return self.correct / self.gold if self.gold else None

    @property
    def f1(self) -> float | None:
        """``2 * right / (written + gold)``; None if nothing was written, and rightly so."""
        both = self.predicted + self.gold
        return 2 * self.correct / both if both else None

    def __add__(self, other: "OperationCounts") -> "OperationCounts":
        """Count two together."""
        return OperationCounts(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


def operation_agreement(
    exchanges: Iterable[Exchange], gold_reply: Callable[[str, str], str]
) -> dict[tuple[Kind, str], OperationCounts]:
    """Compare what specialists wrote with what they should have; what was said to others is left out.

    Args:
        exchanges: what a model was asked and replied.
        gold_reply: replies to a rendered prompt (the system's message, the user's), as ``Oracle.reply`` does.

    Returns:
        By the kind of memory, and what the operation does; what nobody did or should have is not in it.

    Raises:
        OracleError: a prompt is not one of the program's, or about a world that the oracle does not know.
    """
    tallies: dict[tuple[Kind, str], OperationCounts] = {}
    for kind, written, gold in _operation_pairs(exchanges, gold_reply):
        for does in sorted({operation.action for operation, _ in (*written, *gold)}):
            did = [pair for pair in written if pair[0].action == does]
            due = [pair for pair in gold if pair[0].action == does]
            right = Counter(operation for operation, _ in did) & Counter(operation for operation, _ in due)
            dated = [pair for pair in due if pair[0] in right and pair[1]]
            right_dates = (Counter(did) & Counter(dated)).total()
            tally = OperationCounts(right.total(), len(did), len(due), len(dated), right_dates)
            tallies[kind, does] = tallies.get((kind, does), OperationCounts()) + tally
    return tallies


def gold_operations(
    exchanges: Iterable[Exchange], gold_reply: Callable[[str, str], str]
) -> Iterator[tuple[Kind, NormalizedOperation, bool]]:
    """List the operations that specialists should have written, each with whether they did.

    Takes what ``operation_agreement`` takes, and raises what it raises.
    """
    for kind, written, gold in _operation_pairs(exchanges, gold_reply):
        left = Counter(operation for operation, _ in written)
        for operation, _ in gold:
            yield kind, operation, left[operation] > 0
            left[operation] -= 1


class RecordingEngine:
    """An engine of DSPy that keeps what passes through another one; a call that failed got no reply."""

    def __init__(self, engine: Engine) -> None:
        """Stand before an engine."""
        self._engine = engine
        self._lock = threading.Lock()
        self.exchanges: list[Exchange] = []

    def __deepcopy__(self, memo: dict[int, object]) -> "RecordingEngine":
        """A copied program is recorded together with the first one."""
        return self

    def complete(self, request: Request) -> Response:
        """Pass a request on."""
        reply = ""
        try:
            response = self._engine.complete(request)
            reply = response.text or ""
        finally:
            with self._lock:
                self.exchanges.append(Exchange(*extract_prompt(request), reply))
        return response


def _operation_pairs(
    exchanges: Iterable[Exchange], gold_reply: Callable[[str, str], str]
) -> Iterator[tuple[Kind, list[_Dated], list[_Dated]]]:
    """Give the operations of each reply of a specialist, and those of the gold reply to the same prompt."""
    kinds: dict[type[dspy.Signature], Kind] = {SPECIALISTS[kind]: kind for kind in KINDS}
    for exchange in exchanges:
        signature = find_signature(exchange.system)
        if signature in kinds:
            fields = parse_input_fields(exchange.user)
            written, gold = (
                _parse_operations(signature, reply, fields)
                for reply in (exchange.reply, gold_reply(exchange.system, exchange.user))
            )
            yield kinds[signature], written, gold


def _parse_operations(signature: type[dspy.Signature], reply: str, fields: Mapping[str, str]) -> list[_Dated]:
    """List the operations of a reply, each with its day, counted from the session's date as the tool does."""
    try:
        calls: Sequence[dspy.ToolCalls.ToolCall] = ADAPTER.parse(signature, reply)["tool_calls"].tool_calls
    except AdapterParseError:
        return []
    operations: list[_Dated] = []
    anchor = _ISO_DAY.search(fields.get("session_date", ""))
    for call in calls:
        arguments: dict[str, Any] = call.args  # Any: whatever a model wrote
        given = {name: str(value) for name, value in arguments.items() if value not in (None, "")}
        action, said = given.get("action", ""), given.get("text", "")
        text, target = normalize_operation_text(said), ""
        if call.name == "manage_memory" and action in ("create", "update"):
            if "memory_id" in given:
                target, _ = _resolve_target(given["memory_id"], fields)
        elif call.name == "delete_memory":
            target, said = _resolve_target(given.get("memory_id", ""), fields)
            action, text = "delete", ""
        elif call.name == "edit_core" and action in ("append", "replace"):
            target = normalize_operation_text(given.get("old_text", ""))
        else:
            action, target = f"{call.name} {action}".strip(), repr(sorted(given.items()))
        written_day = str(arguments.get("happened_at") or "")
        day = resolve_date(written_day, date.fromisoformat(anchor[0])) if written_day and anchor else None
        operation = NormalizedOperation(action, target, text, said)
        operations.append((operation, day.isoformat() if day else written_day))
    return operations


def _resolve_target(memory_id: str, fields: Mapping[str, str]) -> tuple[str, str]:
    """Give what an id stands for as it is compared, and as it stands in the prompt."""
    text = parse_stored_memories(fields).get(memory_id)
    unknown = f"<{memory_id}>"
    return (unknown, unknown) if text is None else (normalize_operation_text(text), text)


def normalize_operation_text(text: str) -> str:
    """Leave case, punctuation and spare spaces out of a text.

    Example:
        >>> normalize_operation_text("  Ana's dog is called Pip. ")
        'ana s dog is called pip'
    """
    return " ".join(re.findall(r"\w+", text.casefold()))
