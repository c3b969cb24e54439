"""Requests and replies of DSPy's engines (``dspy.lm15``) as JSON, the format of ``calls.jsonl``.

This is the form in which lm15 writes itself. It must not change: a reply is found by the hash of its request.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from dspy import lm15

_PARTS: dict[str, Callable[..., Any]] = {
    "text": lm15.TextPart,
    "thinking": lm15.ThinkingPart,
    "refusal": lm15.RefusalPart,
    "citation": lm15.CitationPart,
    "tool_call": lm15.ToolCallPart,
    "data": lm15.DataPart,
}
"""The parts that a reply can have, by their ``type``."""


def request_to_json(request: lm15.Request) -> dict[str, Any]:  # Any: JSON values
    """Write a request as JSON."""
    return _to_json(request)


def response_to_json(response: lm15.Response) -> dict[str, Any]:  # Any: JSON values
    """Write a reply as JSON, without the part that only its provider understands."""
    return _to_json(dataclasses.replace(response, provider_data=None))


def response_from_json(content: dict[str, Any]) -> lm15.Response:  # Any: JSON values
    """Read a reply that ``response_to_json`` wrote, in this version or an earlier one."""
    message = content["message"]
    parts: list[Any] = []
    fields: dict[str, Any]
    for part in message["parts"]:
        fields = {name: value for name, value in part.items() if name not in ("type", "continuation")}
        parts.append(_PARTS[part["type"]](**fields, continuation=_continuation(part)))
    logprobs: list[lm15.TokenLogprob] = []
    for token in content.get("logprobs", ()):
        fields = {**token, "top": tuple(lm15.TopLogprob(**top) for top in token.get("top", ()))}
        logprobs.append(lm15.TokenLogprob(**fields))
    return lm15.Response(
        id=content.get("id"),
        model=content["model"],
        message=lm15.Message(message["role"], tuple(parts), _continuation(message)),
        finish_reason=content["finish_reason"],
        usage=lm15.Usage(**content.get("usage", {})),
        logprobs=tuple(logprobs) or None,
        logprobs_complete=content.get("logprobs_complete", True),
        adaptations=tuple(lm15.Adaptation(**adaptation) for adaptation in content.get("adaptations", ())),
    )


def _to_json(value: Any) -> Any:  # noqa: ANN401  # Any: a JSON value
    """Write a value; of an object, leave out optional fields that are empty or a boolean at its default."""
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    if not dataclasses.is_dataclass(value):
        return value
    written: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        content = _to_json(getattr(value, field.name))
        is_required = field.default is field.default_factory is dataclasses.MISSING
        is_default = isinstance(content, bool) and content == field.default
        if content is not None and (is_required or not (is_default or content in ("", [], {}))):
            written[field.name] = content
    return written


def _continuation(content: dict[str, Any]) -> tuple[lm15.ContinuationState, ...]:
    return tuple(lm15.ContinuationState(**state) for state in content.get("continuation", ()))
