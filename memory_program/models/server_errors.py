"""Errors of model servers: their own words, and the kind of each.

Servers write an error in many shapes: OpenAI's ``{"error": {"message": ...}}``, FastAPI's
``{"detail": ...}``, ``{"object": "error", "message": ...}``, ``{"errors": [...]}``, a line of text, or the
page of a proxy.
"""

import html
import json
import re
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from dspy import lm15

_CONTEXT = re.compile(
    r"context[ _]?(length|window|size)|maximum (context|sequence|input|prompt)|max_model_len|"
    r"(prompt|input) is too long|too many (input )?tokens|exceed_context",
    re.IGNORECASE,
)
_QUOTA = re.compile(
    r"insufficient[_ ](quota|funds|balance|credit)|exceeded (your|its|the) (current )?quota|"
    r"exceeded_current_quota|credit balance|out of credits?|more credits|spend(ing)? limit|billing|"
    r"payment required|balance is (too low|insufficient)",
    re.IGNORECASE,
)
_PASSES = re.compile(r"retry in|retrydelay|per[ _-]?(second|minute|hour|day)", re.IGNORECASE)
_UNKNOWN_MODEL = re.compile(
    r"model.{0,200}(not found|does not exist|doesn't exist|not exist|not_found|is not available|unknown)|"
    r"(invalid|unknown|no such|unsupported) model",
    re.IGNORECASE | re.DOTALL,
)
_REFUSED = re.compile(
    r"unsupported|not support|n't support|deprecated|not permitted|not allowed|unrecognized|unknown|"
    r"unexpected|extra (fields|inputs)|does not accept|cannot be (set|specified|used)|only the default|"
    r"may only be|must be verified|instead",
    re.IGNORECASE,
)
_TITLE = re.compile(r"<(title|h1)[^>]*>(.*?)</\1>", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"<(script|style).*?</\1>|<[^>]+>", re.IGNORECASE | re.DOTALL)
_LONGEST_CHARS = 600
_REFUSAL_STATUS = (400, 404, 422)
_NEEDED = ("response_format", "json_schema", "tools", "tool_choice", "chat_template_kwargs")


CONTEXT_ADVICE = "lower --max-reply-tokens, or serve the model with a longer context"


class SlowReplyError(lm15.TimeoutError):
    """The server was alive, and slower than a reply may be; asking again would only take as long again."""


@dataclass(frozen=True, slots=True)
class ServerError:
    """An error as the server tells it: its message, its code or type, and the parameter that it names."""

    message: str
    code: str = ""
    parameter: str = ""


def read_error(text: str) -> ServerError:
    """Find the message in the body of an error.

    Example:
        >>> read_error('{"detail": "Not Found"}').message
        'Not Found'
    """
    try:
        body = json.loads(text)
    except ValueError:
        title = _TITLE.search(text) if "<" in text else None
        plain = title[2] if title else _TAG.sub(" ", text)
        return ServerError(_shortened(html.unescape(plain)))
    return _read_json(body)


def _read_json(body: object) -> ServerError:
    if isinstance(body, list):
        said = [_read_json(part) for part in cast(list[Any], body)]
        first = next((part for part in said if part.message), ServerError(""))
        return ServerError(_shortened("; ".join(s.message for s in said)), first.code, first.parameter)
    if not isinstance(body, dict):
        return ServerError(_shortened("" if body is None else str(body)))
    fields = cast(dict[str, Any], body)
    place = fields.get("loc")  # FastAPI's: ["body", "top_p"]
    parameter = str(cast(list[Any], place)[-1]) if place else str(fields.get("param") or "")
    code = str(fields.get("code") or fields.get("type") or "")
    for name in ("error", "errors", "detail", "message", "msg", "error_description", "title"):
        if fields.get(name):
            said = _read_json(fields[name])
            counted = [f"{key}={fields[key]}" for key in fields if key.startswith("n_")]  # llama.cpp's counts
            message = f"{said.message} ({', '.join(counted)})" if counted else said.message
            if place:
                message = f"{parameter}: {message}"
            return ServerError(message, said.code or code, said.parameter or parameter)
    return ServerError(_shortened(json.dumps(fields)), code, parameter)


def provider_error(
    status: int, said: ServerError, *, dialect: lm15.OpenAIChatLM, url: str
) -> lm15.ProviderError:
    """Make the error of a refused call, with status, address and the server's words."""
    message = f"HTTP {status} from {url}: {said.message or 'no message'}"
    if said.parameter not in message:
        message += f" (parameter {said.parameter})"
    body = {"error": {"message": message, "code": said.code, "param": said.parameter}}
    error = dialect.normalize_error(status, json.dumps(body))
    code = said.code or None
    if is_context(status, said):
        return lm15.ContextLengthError(f"{message}; {CONTEXT_ADVICE}", status=status, provider_code=code)
    if isinstance(error, lm15.BillingError) or is_quota(status, said):
        return lm15.BillingError(message, status=status, provider_code=code)
    if status in (400, 404) and _UNKNOWN_MODEL.search(said.message):
        return lm15.UnsupportedModelError(message, status=status, provider_code=code)
    return error


def is_context(status: int | None, said: ServerError) -> bool:
    """Tell if a prompt and its reply are longer than the model's context."""
    return status in (400, 413, 422) and _CONTEXT.search(f"{said.code} {said.message}") is not None


def is_quota(status: int | None, said: ServerError) -> bool:
    """Tell if a call was refused because the account has nothing left, which no wait mends."""
    if status == 402:
        return True
    told = f"{said.code} {said.message}"
    return status in (400, 403, 429) and _QUOTA.search(told) is not None and _PASSES.search(told) is None


def refused_parameter(error: lm15.LM15Error, sent: tuple[str, ...]) -> str | None:
    """Return the parameter, of those that were sent, that an error says the model does not take."""
    is_about_request = isinstance(error, (lm15.InvalidRequestError, lm15.UnsupportedFeatureError))
    is_too_long = isinstance(error, lm15.ContextLengthError)
    if not is_about_request or is_too_long or error.status not in (None, *_REFUSAL_STATUS):
        return None
    if not _REFUSED.search(f"{error.provider_code or ''} {error.message}"):
        return None
    found = {name: re.search(rf"(?<![\w/]){name}(?!\w)", error.message) for name in (*sent, *_NEEDED)}
    named = [(match.start(), name) for name, match in found.items() if match]
    first = min(named)[1] if named else None
    return first if first in sent else None


def version_hint(api_base: str) -> str:
    """Suggest the usual end of an address, if it lacks it."""
    if re.search(r"/v\d", urlsplit(api_base).path):
        return ""
    return f"; the address of an OpenAI-compatible server usually ends in /v1: try {api_base.rstrip('/')}/v1"


def _shortened(text: str) -> str:
    return " ".join(text.split())[:_LONGEST_CHARS]
