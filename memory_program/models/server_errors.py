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

from memory_program.core.redaction import redact_text

_CONTEXT = re.compile(
    r"context[ _]?(length|window|size)|maximum (context|sequence|input|prompt)|max_model_len|"
    r"(prompt|input) is too long|too many (input )?tokens|exceed_context",
    re.IGNORECASE,
)
_QUOTA = re.compile(
    r"insufficient[_ ](quota|funds|balance|credit)|exceeded (your|its|the) (current )?quota|"
    r"exceeded_current_quota|credit balance|out of credits?|more credits|spend(ing)? limit|billing|"
    r"hard limit|payment required|balance is (too low|insufficient)|arrearage|budget[ _](has been )?exceeded|"
    r"key limit exceeded|usage limits|per[ _-]?day|daily (limit|quota)",
    re.IGNORECASE,
)
_DAILY = re.compile(r"quotaId=\w*PerDay")  # Gemini asks to retry in seconds, whatever the quota
_PASSES = re.compile(r"per[ _-]?(second|minute|hour)", re.IGNORECASE)
_WAIT = re.compile(
    r"(?:retry|again) (?:in|after) ((?:[\d.]+ ?[a-z]+ ?)+)|retrydelay\W+([\d.]+s)", re.IGNORECASE
)
_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST_PAUSE_S = 3600
"""A limit that asks for a longer wait is a quota that is used up."""

_UNKNOWN_MODEL = re.compile(
    r"model.{0,200}(not found|does not exist|doesn't exist|not exist|not_found|is not available|unknown)|"
    r"(invalid|unknown|no such|unsupported) model",
    re.IGNORECASE | re.DOTALL,
)
_REFUSED = re.compile(
    r"unsupported|not support|n't support|deprecated|not permitted|not allowed|unrecognized|unknown|"
    r"unexpected|extra (fields|inputs)|does not accept|cannot be (set|specified|used)|only the default|"
    r"\bonly\b.{0,30}\b(allowed|supported|accepted|permitted|valid)|"
    r"must be (exactly |set to |equal to )?1(\.0)?\b|strictly positive|both be specified|"
    r"may only be|must be verified|instead",
    re.IGNORECASE,
)
_TITLE = re.compile(r"<(title|h1)[^>]*>(.*?)</\1>", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"<(script|style).*?</\1>|<[^>]+>", re.IGNORECASE | re.DOTALL)
_STRUCTURED = ("error", "errors", "detail", "fault", "base_resp")
_WORDS = [
    "message",
    "detail",
    "msg",
    "errormessage",
    "errormsg",
    "statusmessage",
    "statusmsg",
    "errordescription",
    "faultstring",
    "reason",
    "error",
    "errors",
    "title",
]
"""The message before the name of the error, of all spellings."""

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
    except (ValueError, RecursionError):
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
    loc = fields.get("loc")  # FastAPI's: ["body", "top_p"]
    place = cast(list[Any], loc) if isinstance(loc, list) else []
    parameter = str(place[-1]) if place else str(fields.get("param") or "")
    code = str(fields.get("code") or fields.get("type") or "")
    structured = [key for key in _STRUCTURED if isinstance(fields.get(key), (dict, list))]
    plain = {key.lower().replace("_", ""): key for key in fields}
    for key in (*structured, *(plain[name] for name in _WORDS if name in plain)):
        if fields[key]:
            said = _read_json(fields[key])
            counted = [f"{key}={fields[key]}" for key in fields if key.startswith("n_")]  # llama.cpp's counts
            quotas = re.findall(r'"quotaId": "(\w+)', json.dumps(fields.get("details")))  # Gemini's
            counted += [f"quotaId={quota}" for quota in dict.fromkeys(quotas)]
            message = f"{said.message} ({', '.join(counted)})" if counted else said.message
            if place:
                message = f"{parameter}: {message}"
            return ServerError(message, said.code or code, said.parameter or parameter)
    return ServerError(_shortened(json.dumps(fields)), code, parameter)


def provider_error(
    status: int, said: ServerError, *, url: str, retry_after: float | None = None
) -> lm15.ProviderError:
    """Make the error of a refused call, with status, address and the server's words."""
    message = f"HTTP {status} from {url}: {said.message or 'no message'}"
    if said.parameter not in message:
        message += f" (parameter {said.parameter})"
    body = {"error": {"message": message, "code": said.code, "param": said.parameter}}
    error = _DIALECT.normalize_error(status, json.dumps(body))
    error.retry_after = retry_after
    code = said.code or None
    if is_context(status, said):
        return lm15.ContextLengthError(f"{message}; {CONTEXT_ADVICE}", status=status, provider_code=code)
    if isinstance(error, lm15.BillingError) or is_quota(status, said, retry_after):
        return lm15.BillingError(message, status=status, provider_code=code)
    if status in (400, 404) and _UNKNOWN_MODEL.search(said.message):
        return lm15.UnsupportedModelError(message, status=status, provider_code=code)
    return error


def is_context(status: int | None, said: ServerError) -> bool:
    """Tell if a prompt and its reply are longer than the model's context."""
    return status in (400, 413, 422) and _CONTEXT.search(f"{said.code} {said.message}") is not None


def is_quota(status: int | None, said: ServerError, retry_after: float | None = None) -> bool:
    """Tell if a call was refused because the account has nothing left, which no short wait mends."""
    if status not in (400, 403, 429):
        return status == 402
    told = f"{said.code} {said.message}"
    if _DAILY.search(told):
        return True
    waits = [0.0, retry_after or 0.0]
    for found in _WAIT.finditer(told):  # "retry in 5h2m"
        parts = re.findall(r"(\d+(?:\.\d+)?) ?(ms|[smhd])", found[1] or found[2], re.IGNORECASE)
        waits.append(sum(float(number) * _UNITS_S[unit.lower()] for number, unit in parts))
    wait_s = max(waits)
    if wait_s or _PASSES.search(told):
        return wait_s > _LONGEST_PAUSE_S
    return _QUOTA.search(told) is not None


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


def is_required(parameter: str, error: lm15.LM15Error) -> bool:
    """Tell if an error says that a parameter is missing."""
    return re.search(rf"(?<!\w){parameter}\W.{{0,20}}\b(required|missing)", error.message) is not None


def version_hint(api_base: str) -> str:
    """Suggest the usual end of an address, if it lacks it or goes on behind it."""
    if too_long := re.search(r"/(?:chat/)?completions/?$", api_base):
        return f"; the address of a server ends before {too_long[0]}: try {api_base[: too_long.start()]}"
    if re.search(r"/v\d", urlsplit(api_base).path):
        return ""
    return f"; the address of an OpenAI-compatible server usually ends in /v1: try {api_base.rstrip('/')}/v1"


_DIALECT = lm15.OpenAIChatLM(api_key="unused")  # it only sorts errors by their status


def _shortened(text: str) -> str:
    return redact_text(" ".join(text.split()))[:_LONGEST_CHARS]  # half a key would not be found any more
