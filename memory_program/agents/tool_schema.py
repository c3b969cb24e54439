"""One definition of each tool, as a line of a prompt, as a JSON schema, and for native function calling.

A tool is a method of ``MemoryTools``: its docstring is its description, its annotations are its arguments.

Schemas keep to the subset that OpenAI's strict mode, vLLM's xgrammar and llguidance share: every property is
required, none may be added, the root is an object. ``uniqueItems`` is not among it (vLLM refuses it); the
writer makes equal calls of a reply once instead.
"""

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin

import dspy

from memory_program.agents.reply_limits import READER_TOKENS
from memory_program.agents.tools import DATE_LIMIT_CHARS, MAX_MERGED, MemoryTools
from memory_program.bank.memory import MemoryKind
from memory_program.bank.passages import whole_sentences
from memory_program.models.response_formats import JsonSchema

Branch = tuple[str, JsonSchema]
"""A tool and its arguments in one of its forms."""


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """The tools that an agent may call, and what they may act on.

    ``kind`` is the one kind of memory of the agent; None if its calls name a kind. Only ``shown_ids`` can be
    updated, deleted, merged or split. Without a profile no part of it can be replaced.
    """

    tools: tuple[str, ...] = ()
    kind: MemoryKind | None = None
    shown_ids: tuple[str, ...] = ()
    has_profile: bool = True


MAX_CALLS = 16
"""The most calls of a reply: LoCoMo's own notes have at most 16 facts for one of its 272 sessions."""

MAX_QUESTIONS = 16
"""The most questions of a reply."""

_LIMITS_CHARS = {"text": 400, "old_text": 400, "happened_at": DATE_LIMIT_CHARS, "reason": 120, "query": 120}
_LIMIT_CHARS = 400  # twice the longest of LoCoMo's 2,541 facts; a text without a limit may never end
_PROFILE_LIMIT_CHARS = 2000


@cache
def tool_arguments(name: str) -> Mapping[str, inspect.Parameter]:
    """Return the arguments of a tool; empty if there is no such tool."""
    method = getattr(MemoryTools, name, None) if name.endswith(("_memory", "_core")) else None
    if method is None:
        return {}
    return {key: value for key, value in inspect.signature(method).parameters.items() if key != "self"}


@cache
def describe_tool(name: str) -> str:
    """Describe a tool to a model in one line: its arguments and its docstring."""
    arguments: list[str] = []
    for parameter in tool_arguments(name).values():
        annotation = parameter.annotation
        if get_origin(annotation) is Literal:
            said = " | ".join(map(json.dumps, get_args(annotation)))
        else:
            said = annotation.__name__ if get_origin(annotation) is None else str(annotation)
        default = "" if parameter.default is parameter.empty else f" = {json.dumps(parameter.default)}"
        arguments.append(f"{parameter.name}: {said}{default}")
    return f"{name}({', '.join(arguments)}): {_description(name)}"


def native_tools(offer: ToolOffer) -> list[dspy.Tool]:
    """Make the tools of native function calling; an agent of one kind need not name it."""
    tools: list[dspy.Tool] = []
    for name in offer.tools:
        parameters = {k: v for k, v in tool_arguments(name).items() if k != "kind" or offer.kind is None}
        arguments = {
            key: _argument_schema(parameter)
            | ({} if parameter.default is parameter.empty else {"default": parameter.default})
            for key, parameter in parameters.items()
        }
        tools.append(dspy.Tool(getattr(MemoryTools, name), name, _description(name), arguments))
    return tools


def reply_schema(
    signature: type[dspy.Signature], offer: ToolOffer, max_tokens: int | None = None
) -> JsonSchema:
    """Make the JSON schema of an agent's reply to one call: its properties are the output fields.

    A reader that may search has to give both fields, one of them empty: the root of a strict schema has no
    alternatives. A question may cite only the turns of ``offer.shown_ids``. An answer has no limit of its own
    if the user's ``max_tokens`` is higher than the reader's: it would be cut there, and count as whole.
    """
    # the forms of a call: one for each action, and none that has nothing to act on
    branches: list[Branch] = []
    ids = offer.shown_ids
    for tool in offer.tools:
        arguments = {key: _argument_schema(parameter) for key, parameter in tool_arguments(tool).items()}
        if offer.kind is not None:
            arguments.pop("kind", None)
        if "memory_id" in arguments:
            if tool != "manage_memory" and not ids:
                continue
            arguments["memory_id"] = _one_of(ids)
        if "memory_ids" in arguments:
            if len(ids) < 2:
                continue
            arguments["memory_ids"] = _list_of(ids, 2, MAX_MERGED)
        if "action" not in arguments:
            branches.append((tool, arguments))
            continue
        for action in arguments["action"]["enum"]:
            unused = {
                "create": {"memory_id"},
                "update": {"kind"},
                "append": {"old_text"},
                "rewrite": {"old_text"},
            }
            form = {key: value for key, value in arguments.items() if key not in unused.get(action, ())}
            form["action"] = _one_of([action])
            if action == "create" and "kind" in form:
                form["kind"] = _one_of([name for name in form["kind"]["enum"] if name])
            if action == "replace":
                form |= {"text": _text(0), "old_text": _text(1)}
            if action == "rewrite":
                form["text"] = _text(1, _PROFILE_LIMIT_CHARS)
            if (action != "update" or ids) and (action != "replace" or offer.has_profile):
                branches.append((tool, form))
    properties: JsonSchema = {}
    outputs: dict[str, Any] = signature.output_fields  # Any: pydantic's
    for name, field in outputs.items():
        if field.annotation is dspy.ToolCalls:
            calls = [_object({"name": _one_of([tool]), "args": _object(args)}) for tool, args in branches]
            limit = MAX_CALLS if len(outputs) == 1 else 1  # a reader searches for one thing at a time
            properties[name] = {"type": "array", "items": {"anyOf": calls}, "maxItems": limit}
        elif field.annotation is str:
            least = 1 if len(outputs) == 1 else 0
            properties[name] = _text(least)
            if max_tokens and max_tokens > READER_TOKENS:
                del properties[name]["maxLength"]
        else:
            question = {"question": _text(1), "answer": _text(1), "evidence": _list_of(ids, 0)}
            properties[name] = {"type": "array", "items": _object(question), "maxItems": MAX_QUESTIONS}
    return _object(properties)


def without_cut_sentence(arguments: Mapping[str, Any]) -> dict[str, Any] | None:  # Any: JSON
    """Leave out the sentence in which the limit of the schema cut a text of a call.

    Returns:
        the arguments; None if no whole sentence is left, or if the call would replace a memory or the profile
        by a part of the new text.
    """
    action = arguments.get("action")
    limit = _PROFILE_LIMIT_CHARS if action == "rewrite" else _LIMIT_CHARS
    values = [one for value in arguments.values() for one in (value if isinstance(value, list) else [value])]
    if not any(isinstance(value, str) and len(value) == limit for value in values):
        return dict(arguments)
    text = arguments.get("text")
    whole = whole_sentences(text) if action in ("create", "append") and isinstance(text, str) else ""
    return {**arguments, "text": whole} if whole else None


def _argument_schema(parameter: inspect.Parameter) -> JsonSchema:
    annotation = parameter.annotation
    if get_origin(annotation) is Literal:
        return _one_of(get_args(annotation))
    least = 1 if parameter.default is parameter.empty else 0
    if annotation is str:
        return _text(least, _LIMITS_CHARS.get(parameter.name, _LIMIT_CHARS))
    if annotation is int:
        return {"type": "integer", "minimum": 1, "maximum": 50}
    assert annotation == list[str], f"{parameter}: add its schema here"
    return {"type": "array", "items": _text(1), "minItems": 2, "maxItems": MAX_MERGED}


def _description(name: str) -> str:
    return " ".join((getattr(MemoryTools, name).__doc__ or "").split())


def _object(properties: JsonSchema) -> JsonSchema:
    required = list(properties)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _one_of(values: Sequence[str]) -> JsonSchema:
    return {"type": "string", "enum": list(values)}


def _text(least: int, most: int = _LIMIT_CHARS) -> JsonSchema:
    return {"type": "string", **({"minLength": least} if least else {}), "maxLength": most}


def _list_of(values: Sequence[str], least: int, most: int = MAX_MERGED) -> JsonSchema:
    items = _one_of(values) if values else _text(1)
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}
