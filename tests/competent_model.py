"""A model made of rules: it plays writer, reader and judge by reading the prompt, the same way every time.

It is no good at any of the three, but it does each job honestly: memories come from the session, answers from
what the reader is shown, verdicts from the words of the gold. So a program that loses or mixes up what it is
told scores worse with it, and a test can see that.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property
from hashlib import sha256

NOT_MENTIONED = "Not mentioned in the conversation"
MOST_MEMORIES = 8
"""How many memories it writes per kind and session: four agents stay under thirty operations."""

_FIELD = re.compile(r"^\[\[ ## (\w+) ## \]\]$", re.MULTILINE)
_MARKER = re.compile(r"`\[\[ ## (\w+) ## \]\]`")
_HAPPENED = re.compile(r"\b(yesterday|today|last|week|weekend|month|ago|tomorrow|next|\d+)\b", re.IGNORECASE)
_DONE = re.compile(r"\b(every|usually|always|recipe|routine|steps?|habit)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Prompt:
    """One request as a chat model sees it."""

    system: str
    user: str
    shown: tuple[str, ...] = ()
    """What the assistant is said to have replied to the demos, in order."""
    temperature: float = 0.0

    @cached_property
    def key(self) -> str:
        """A hash of the text: what faults and counts go by."""
        return sha256("\0".join((self.system, self.user, *self.shown)).encode()).hexdigest()

    @cached_property
    def fields(self) -> Mapping[str, str]:
        """The input fields of DSPy's chat format, by name."""
        parts = _FIELD.split(self.user.rpartition("\n\nRespond with")[0])
        return {name: text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}

    @cached_property
    def wanted(self) -> tuple[str, ...]:
        """The output fields that it asks for, in order; empty for a prompt in another format."""
        asked = self.user.rpartition("\n\nRespond with")[2]
        return tuple(name for name in _MARKER.findall(asked) if name != "completed")

    @property
    def writes(self) -> bool:
        """Whether the reply is to hold calls that write."""
        return "tool_calls" in self.wanted and "answer" not in self.wanted


def competent_reply(prompt: Prompt) -> str:
    """Answer a prompt of the program, of its judge, or any other (with a word)."""
    if not prompt.wanted:
        return "ready"
    return chat_format({name: _field(name, prompt) for name in prompt.wanted})


def chat_format(values: Mapping[str, str]) -> str:
    """Write output fields as DSPy's chat format wants them."""
    sections = [f"[[ ## {name} ## ]]\n{value}" for name, value in values.items()]
    return "\n\n".join([*sections, "[[ ## completed ## ]]"])


def calls_json(calls: Iterable[tuple[str, Mapping[str, object]]]) -> str:
    """Write tool calls as the JSON object that DSPy reads."""
    return json.dumps({"tool_calls": [{"name": name, "args": dict(args)} for name, args in calls]})


def _field(name: str, prompt: Prompt) -> str:
    if name == "tool_calls":
        return calls_json(_written(prompt) if prompt.writes else _searches(prompt.fields))
    if name == "answer":
        return "" if "tool_calls" in prompt.wanted and _searches(prompt.fields) else _answer(prompt.fields)
    if name == "verdict":
        return _verdict(prompt)
    return "Compared word by word."


def _written(prompt: Prompt) -> list[tuple[str, dict[str, object]]]:
    if "tokens_to_save" in prompt.fields:
        oldest = re.findall(r"^(m\d+): ", prompt.fields["memories"], re.MULTILINE)[:4]
        return [("delete_memory", {"memory_id": memory_id, "reason": "the oldest"}) for memory_id in oldest]
    turns = [line for line in prompt.fields.get("session", "").splitlines() if len(line.split()) > 5]
    if "related_memories" not in prompt.fields:
        first_lines = {line.partition(":")[0]: line[:200] for line in reversed(turns)}
        known = prompt.fields.get("core_memory", "")
        new = [line for name, line in reversed(first_lines.items()) if name not in known]
        return [("edit_core", {"action": "append", "text": line}) for line in new]
    told = re.search(r"write (episodic|semantic|procedural) memories", prompt.system)
    kinds = (told[1],) if told else ("episodic", "semantic", "procedural")
    day = _day(prompt.fields.get("session_date", ""))
    return [
        ("manage_memory", _memory(line, kind, day))
        for kind in kinds
        for line in [line for line in turns if _kind_of(line) == kind][:MOST_MEMORIES]
    ]


def _memory(line: str, kind: str, day: date | None) -> dict[str, object]:
    memory: dict[str, object] = {"action": "create", "text": line[:500], "kind": kind}
    if kind == "episodic" and day is not None:
        days_ago = 1 if "yesterday" in line.lower() else 0
        memory["happened_at"] = (day - timedelta(days=days_ago)).isoformat()
    return memory


def _kind_of(line: str) -> str:
    if _DONE.search(line):
        return "procedural"
    return "episodic" if _HAPPENED.search(line) else "semantic"


def _day(spelled: str) -> date | None:
    found = re.search(r"\d{4}-\d{2}-\d{2}", spelled)
    return date.fromisoformat(found[0]) if found else None


def _answer(fields: Mapping[str, str]) -> str:
    """Give the line that shares most words with the question, or say that there is none."""
    question = content_words(fields.get("question", ""))
    lines = [line for name in ("memories", "excerpts") for line in fields.get(name, "").splitlines()]
    best = max(lines, key=lambda line: len(question & content_words(line)), default="")
    if len(question & content_words(best)) < 2:
        return NOT_MENTIONED
    said = re.sub(
        r"^(\[[^]]*\] )?(\w+: )?|( \[[^]]*\])$", "", best
    )  # a turn after its day, a memory before it
    return " ".join(said.split()[:20])


def _searches(fields: Mapping[str, str]) -> list[tuple[str, dict[str, object]]]:
    """Look for the question's longest word when nothing that is shown fits, if that is still allowed."""
    if fields.get("searches_left", "0") == "0" or _answer(fields) != NOT_MENTIONED:
        return []
    longest = max(sorted(content_words(fields["question"])), key=len, default="")
    return [("search_memory", {"query": longest})] if longest else []


def _verdict(prompt: Prompt) -> str:
    """Say CORRECT if the answer has half of the gold's words, or all of them where the rubric is exact."""
    gold, given = (content_words(prompt.fields.get(name, "")) for name in ("gold_answer", "given_answer"))
    needed = 1.0 if "Be exact" in prompt.system else 0.5
    return "CORRECT" if gold and len(gold & given) >= needed * len(gold) else "WRONG"


def content_words(text: str) -> set[str]:
    """The words of a text that carry its sense: numbers, and words of four letters or more."""
    return {word for word in re.findall(r"\w+", text.lower()) if len(word) > 3 or word.isdigit()}
