"""A small OpenAI-compatible server on loopback that plays a model: competent, scripted, or faulty.

The program reaches it as it reaches any provider, through LiteLLM and HTTP. In a test::

    with ModelServer(behave=always(Behaviour.SERVER_ERROR)) as server:
        lm = language_model("openai/test", api_base=server.url)

On its own, printing its address: ``python -m tests.model_server --fault-rate 0.05 --latency-s 0.2``.
"""

import argparse
import asyncio
import json
import random
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tests.competent_model import Prompt, calls_json, chat_format, competent_reply
from tests.served_app import ServedApp


class Behaviour(StrEnum):
    """What the server does with one request."""

    COMPETENT = "competent"
    # replies that a careful program can still use, in whole or in part
    PROSE = "prose"
    UNKNOWN_TOOL = "unknown-tool"
    UNKNOWN_MEMORY = "unknown-memory"
    WRONG_TYPES = "wrong-types"
    HUGE_MEMORY = "huge-memory"
    # replies that nothing may be taken from
    CUT = "cut"
    CUT_SILENTLY = "cut-silently"
    EMPTY = "empty"
    REFUSAL = "refusal"
    # no reply
    RATE_LIMIT = "rate-limit"
    RATE_LIMIT_WITH_HINT = "rate-limit-with-hint"
    SERVER_ERROR = "server-error"
    HANG = "hang"
    DISCONNECT = "disconnect"
    HTML = "html"
    NO_CHOICES = "no-choices"
    BAD_KEY = "bad-key"
    # replies that look like good ones
    DRIP = "drip"
    MISDELIVERED = "misdelivered"
    # what servers do, rightly or not; never at random
    NATIVE_CALLS = "native-calls"
    REASONING = "reasoning"
    NO_USAGE = "no-usage"
    CUT_ANTHROPIC = "cut-anthropic"
    CUT_GOOGLE = "cut-google"
    LOOP = "loop"
    STALL = "stall"
    BLANK = "blank"
    NO_BODY = "no-body"
    ERROR_IN_CHOICE = "error-in-choice"
    ERROR_IN_STREAM = "error-in-stream"
    NO_LINE_END = "no-line-end"
    PROXY_ERROR = "proxy-error"
    TOO_LONG = "too-long"
    QUOTA = "quota"
    ERROR = "error"


_NOT_AT_RANDOM = (Behaviour.COMPETENT, Behaviour.BAD_KEY, Behaviour.DRIP, Behaviour.MISDELIVERED)
_SPECIAL = tuple(Behaviour)[tuple(Behaviour).index(Behaviour.NATIVE_CALLS) :]
FAULTS = tuple(b for b in Behaviour if b not in (*_NOT_AT_RANDOM, *_SPECIAL))
"""What can go wrong with a provider that works on the whole, and shows."""

Reply = Callable[[Prompt, int], str]
"""Answers a prompt; the number says how often it was asked before (0 at first)."""

Calls = Callable[[Prompt], Sequence[tuple[str, dict[str, object]]]]
"""Answers a prompt with tools by calls of them."""

Behave = Callable[[Prompt, int], Behaviour]
"""Chooses what to do with a prompt; the number says how often it was asked before (0 at first)."""


def always(behaviour: Behaviour) -> Behave:
    """Treat every request the same way."""
    return lambda prompt, seen: behaviour


def scripted(behaviours: Sequence[Behaviour]) -> Behave:
    """Treat the first requests as the script says, in order of arrival, and be competent afterwards."""
    left = list(behaviours)
    return lambda prompt, seen: left.pop(0) if left else Behaviour.COMPETENT


def at_random(rate: float, seed: int = 0, faults: Sequence[Behaviour] = FAULTS) -> Behave:
    """Fail a share of the prompts, each always in the same way: a rerun meets the same faults."""

    def behave(prompt: Prompt, seen: int) -> Behaviour:
        rng = random.Random(f"{seed}:{prompt.key}")
        return rng.choice(faults) if rng.random() < rate else Behaviour.COMPETENT

    return behave


@dataclass(slots=True)
class Traffic:
    """What the server has seen so far."""

    requests: Counter[str] = field(default_factory=Counter[str])
    """How often each prompt was asked, by its hash."""
    behaviours: Counter[str] = field(default_factory=Counter[str])
    in_flight: int = 0
    most_in_flight: int = 0
    keys: set[str] = field(default_factory=set[str])
    """The API keys that came along."""
    bodies: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """What was asked, without the messages: model, temperature, limits."""
    streamed: int = 0
    abandoned: int = 0
    """Streamed replies whose client went away before their end."""

    def as_json(self) -> dict[str, Any]:
        return {
            "requests": self.requests.total(),
            "prompts": len(self.requests),
            "behaviours": dict(self.behaviours),
            "most_in_flight": self.most_in_flight,
        }


class ModelServer(ServedApp):
    """The server in a thread of its own, from ``__enter__`` to ``__exit__``.

    Args:
        behave: Chooses the behaviour per request; None is always competent.
        reply: Answers where the behaviour is the competent one; None leaves it to ``competent_reply``.
        calls: Answers a request with tools by calls of them, as names and arguments; None answers by text.
        latency_s: How long a reply takes.
        retry_after_s: What ``RATE_LIMIT_WITH_HINT`` asks for.
        hang_s: How long ``HANG`` hangs, unless the client goes away before.
        drip_s: How long ``DRIP`` takes for a reply, byte by byte.
        port: Where to listen; 0 takes a free one.
        streams: Stream where it is asked for; otherwise send whole replies all the same.
        token_s: How long a streamed token takes.
        refuses: Parameters of a request that are an error.
        error: Status and body of ``ERROR``.
        models: The names that it serves; others are an error. None serves every name.
        tls: The files of a certificate and its key, to serve HTTPS.
    """

    def __init__(
        self,
        behave: Behave | None = None,
        *,
        reply: Reply | None = None,
        calls: Calls | None = None,
        latency_s: float = 0.0,
        retry_after_s: float = 1.0,
        hang_s: float = 60.0,
        drip_s: float = 0.5,
        port: int = 0,
        streams: bool = True,
        token_s: float = 0.0,
        refuses: Sequence[str] = (),
        error: tuple[int, object] = (400, {}),
        models: Sequence[str] | None = None,
        tls: tuple[Path, Path] | None = None,
    ) -> None:
        self.traffic = Traffic()
        self._streams, self._token_s = streams, token_s
        self._refuses, self._error, self._models = refuses, error, models
        self._behave = behave or always(Behaviour.COMPETENT)
        self._reply = reply or (lambda prompt, seen: competent_reply(prompt))
        self._calls = calls
        self._latency_s = latency_s
        self._retry_after_s = retry_after_s
        self._hang_s = hang_s
        self._drip_s = drip_s
        self._others: list[Prompt] = []
        self._scheme = "http" if tls is None else "https"
        certificate, key = tls or (None, None)
        super().__init__(self._app(), port, ssl_certfile=certificate, ssl_keyfile=key)

    @property
    def url(self) -> str:
        """The ``api_base`` to give to a client."""
        return "{}://{}:{}/v1".format(self._scheme, *self.address)

    def _app(self) -> FastAPI:
        app = FastAPI()
        app.post("/v1/chat/completions", response_model=None)(self._complete)
        app.get("/v1/models")(self._list_models)
        app.get("/traffic")(self.traffic.as_json)
        app.get("/health")(lambda: {})
        return app

    def _list_models(self) -> dict[str, Any]:
        return {
            "object": "list",
            "data": [{"id": name, "object": "model"} for name in self._models or ("test",)],
        }

    async def _complete(self, request: Request) -> Response:
        body: dict[str, Any] = await request.json()
        prompt = read_prompt(body.pop("messages"), body.get("temperature", 0.0))
        traffic = self.traffic
        seen = traffic.requests[prompt.key]
        behaviour = self._behave(prompt, seen)
        traffic.requests[prompt.key] += 1
        traffic.behaviours[behaviour.value] += 1
        traffic.bodies.append(body)
        others = [other for other in self._others if other.system != prompt.system]
        self._others.append(prompt)
        traffic.keys.add(request.headers.get("authorization", "").removeprefix("Bearer "))
        traffic.in_flight += 1
        traffic.most_in_flight = max(traffic.most_in_flight, traffic.in_flight)
        try:
            await asyncio.sleep(self._latency_s)
            if behaviour is Behaviour.HANG:
                await self._hang(request)
            refusal = self._refusal(body)
            if refusal is not None:
                return refusal
            if behaviour is Behaviour.COMPETENT:
                if self._calls is not None and body.get("tools"):
                    text = chat_format({"tool_calls": calls_json(self._calls(prompt))})
                    whole = chat_completion(str(body["model"]), prompt, text, "tool_calls")
                    whole["choices"][0]["message"] |= {"content": None, "tool_calls": native_calls(text)}
                    return self._send(whole, body)
                text = self._reply(prompt, seen)
                return self._send(chat_completion(str(body["model"]), prompt, text, "stop"), body)
            if behaviour is Behaviour.MISDELIVERED:
                text = competent_reply(others[-1]) if others else ""
                return self._send(chat_completion(str(body["model"]), prompt, text, "stop"), body)
            if behaviour is Behaviour.DRIP:
                whole = chat_completion(str(body["model"]), prompt, self._reply(prompt, seen), "stop")
                if self._is_streamed(body):
                    return self._send(whole, body, token_s=self._drip_s / _count_tokens(whole))
                return StreamingResponse(
                    self._dripping(json.dumps(whole).encode()), media_type="application/json"
                )
            return self._response(behaviour, prompt, request, body)
        finally:
            traffic.in_flight -= 1

    def _refusal(self, body: dict[str, Any]) -> Response | None:
        if self._models is not None and body["model"] not in self._models:
            message = f"The model `{body['model']}` does not exist."
            return JSONResponse(
                {"object": "error", "message": message, "type": "NotFoundError", "code": 404}, 404
            )
        for name in self._refuses:
            if name in body:
                return _error(
                    400,
                    f"Unsupported parameter: '{name}' is not supported with this model.",
                    "unsupported_parameter",
                )
        return None

    def _is_streamed(self, body: dict[str, Any]) -> bool:
        return self._streams and bool(body.get("stream"))

    def _send(self, whole: dict[str, Any], body: dict[str, Any], *, token_s: float | None = None) -> Response:
        """Send a completion whole, or in events where the client asked for them."""
        if not self._is_streamed(body):
            return JSONResponse(whole)
        self.traffic.streamed += 1
        pace_s = self._token_s if token_s is None else token_s
        return StreamingResponse(self._events(whole, body, pace_s), media_type="text/event-stream")

    async def _events(
        self, whole: dict[str, Any], body: dict[str, Any], token_s: float
    ) -> AsyncIterator[bytes]:
        choice, head = whole["choices"][0], {"id": whole["id"], "model": whole["model"]}
        is_finished = False
        try:
            yield b": keep-alive\n\n"
            for delta in _deltas(choice["message"]):
                if token_s:
                    await asyncio.sleep(token_s)
                yield _event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
            end = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
            yield _event({**head, "choices": [end]})
            if whole.get("usage") and (body.get("stream_options") or {}).get("include_usage"):
                yield _event({**head, "choices": [], "usage": whole["usage"]})
            yield b"data: [DONE]\n\n"
            is_finished = True
        finally:
            self.traffic.abandoned += not is_finished

    async def _stalling(self) -> AsyncIterator[bytes]:
        is_finished = False
        try:
            yield _event({"choices": [{"index": 0, "delta": {"content": "Well"}, "finish_reason": None}]})
            await asyncio.sleep(self._hang_s)
            is_finished = True
        finally:
            self.traffic.abandoned += not is_finished

    async def _dripping(self, content: bytes) -> AsyncIterator[bytes]:
        for place in range(len(content)):
            await asyncio.sleep(self._drip_s / len(content))
            yield content[place : place + 1]

    async def _hang(self, request: Request) -> None:
        until = time.monotonic() + self._hang_s
        while time.monotonic() < until and not await request.is_disconnected():
            await asyncio.sleep(0.02)

    def _response(
        self, behaviour: Behaviour, prompt: Prompt, request: Request, body: dict[str, Any]
    ) -> Response:
        key, model = request.headers.get("authorization", ""), str(body["model"])
        match behaviour:
            case Behaviour.RATE_LIMIT:
                return _error(429, "Rate limit reached for requests", "rate_limit_exceeded")
            case Behaviour.RATE_LIMIT_WITH_HINT:
                hint = {"retry-after": f"{self._retry_after_s:g}"}
                return _error(429, "Rate limit reached for requests", "rate_limit_exceeded", hint)
            case Behaviour.SERVER_ERROR:
                return _error(500, "The server had an error while processing your request", "server_error")
            case Behaviour.BAD_KEY:
                return _error(401, f"Incorrect API key provided: {key}", "invalid_api_key")
            case Behaviour.HTML:
                return HTMLResponse("<html><body><h1>502 Bad Gateway</h1></body></html>")
            case Behaviour.PROXY_ERROR:
                page = "<html><head><title>504 Gateway Time-out</title></head><body>nginx</body></html>"
                return HTMLResponse(page, 503)
            case Behaviour.NO_CHOICES:
                return JSONResponse({"id": "x", "object": "chat.completion", "model": model})
            case Behaviour.NO_BODY:
                return Response(b"", media_type="application/json")
            case Behaviour.DISCONNECT:
                return _BrokenResponse(chat_completion(model, prompt, competent_reply(prompt), "stop"))
            case Behaviour.STALL:
                return StreamingResponse(self._stalling(), media_type="text/event-stream")
            case Behaviour.ERROR_IN_STREAM:
                said = _event({"error": {"message": "the worker died", "code": 500}}) + b"data: [DONE]\n\n"
                return Response(_event({"choices": [{"delta": {"content": "We"}}]}) + said, media_type=_SSE)
            case Behaviour.NO_LINE_END:
                end = {"choices": [{"delta": {"content": "ready"}, "finish_reason": "stop"}]}
                return Response(_event(end).rstrip(), media_type=_SSE)
            case Behaviour.ERROR_IN_CHOICE:
                error = {"code": 502, "message": "Provider returned error"}
                choice = {
                    "message": {"role": "assistant", "content": ""},
                    "error": error,
                    "finish_reason": "error",
                }
                return JSONResponse({"id": "x", "model": model, "choices": [choice]})
            case Behaviour.QUOTA:
                return _error(
                    429, "You exceeded your current quota, please check your plan", "insufficient_quota"
                )
            case Behaviour.TOO_LONG:
                said = (
                    "This model's maximum context length is 2048 tokens. However, you requested 4396 tokens."
                )
                return JSONResponse({"object": "error", "message": said, "code": 400}, 400)
            case Behaviour.ERROR:
                status, content = self._error
                if isinstance(content, str):
                    return Response(content, status)
                return JSONResponse(content, status)
            case Behaviour.LOOP:
                text = "1. " * (int(body.get("max_tokens") or 4096) // 2)
                return self._send(chat_completion(model, prompt, text, "length"), body)
            case _:
                text, finish_reason = spoken(behaviour, prompt)
                whole = chat_completion(model, prompt, text, finish_reason)
                message = whole["choices"][0]["message"]
                if behaviour is Behaviour.NATIVE_CALLS:
                    message |= {"content": None, "tool_calls": native_calls(text)}
                    whole["choices"][0]["finish_reason"] = "tool_calls"
                if behaviour is Behaviour.REASONING:
                    message["reasoning_content"] = "[[ ## answer ## ]]\nPerhaps Lima?\n\nNo, wait."
                if behaviour is Behaviour.BLANK:
                    whole["choices"][0]["finish_reason"] = None
                if behaviour in (Behaviour.NO_USAGE, Behaviour.BLANK):
                    del whole["usage"]
                return self._send(whole, body)


def native_calls(text: str) -> list[dict[str, Any]]:
    """Turn the tool calls in a reply's text into native ones; without any, call ``search_memory``."""
    written = text.partition("[[ ## tool_calls ## ]]\n")[2].partition("\n\n[[ ## ")[0]
    calls = (
        json.loads(written)["tool_calls"] if written else [{"name": "search_memory", "args": {"query": "x"}}]
    )
    return [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(call["args"])},
        }
        for number, call in enumerate(calls)
    ]


_SSE = "text/event-stream"


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def _deltas(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Cut a message into tokens of four characters, and its tool calls in two pieces each."""
    yield {"role": "assistant", "content": ""}
    for name in ("reasoning_content", "content"):
        text = message.get(name) or ""
        for start in range(0, len(text), 4):
            yield {name: text[start : start + 4]}
    for index, call in enumerate(message.get("tool_calls", [])):
        said = call["function"]["arguments"]
        first = {"name": call["function"]["name"], "arguments": said[:5]}
        yield {"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": first}]}
        yield {"tool_calls": [{"index": index, "function": {"arguments": said[5:]}}]}


def _count_tokens(whole: dict[str, Any]) -> int:
    return sum(1 for _ in _deltas(whole["choices"][0]["message"]))


def spoken(behaviour: Behaviour, prompt: Prompt) -> tuple[str, str]:
    """Give the text of a reply, well or badly behaved, and its finish reason."""
    reply = competent_reply(prompt)
    match behaviour:
        case Behaviour.PROSE:
            opening, colon, rest = reply.partition("[[ ## tool_calls ## ]]\n")
            if not colon:
                return f"Let me think about this.\n\n{reply}\n\nI hope this helps!", "stop"
            calls, marker, end = rest.partition("\n\n[[ ## ")
            return f"{opening}{colon}Sure! Here you go:\n```json\n{calls}\n```\nDone.{marker}{end}", "stop"
        case _ if behaviour in _CUT_REASONS:
            return reply[: len(reply) // 2], _CUT_REASONS[behaviour]
        case Behaviour.EMPTY | Behaviour.BLANK:
            return "", "stop"
        case Behaviour.REFUSAL:
            return "I'm sorry, but I can't help with that.", "stop"
        case _ if behaviour in _BAD_CALLS and prompt.writes:
            return _with_bad_call(reply, *_BAD_CALLS[behaviour]), "stop"
        case _:
            return reply, "stop"


_CUT_REASONS = {
    Behaviour.CUT: "length",
    Behaviour.CUT_SILENTLY: "stop",
    Behaviour.CUT_ANTHROPIC: "max_tokens",
    Behaviour.CUT_GOOGLE: "MAX_TOKENS",
}
_BAD_CALLS: dict[Behaviour, tuple[str, dict[str, object]]] = {
    Behaviour.UNKNOWN_TOOL: ("drop_database", {"confirm": True}),
    Behaviour.UNKNOWN_MEMORY: ("delete_memory", {"memory_id": "m999999", "reason": "wrong"}),
    Behaviour.WRONG_TYPES: ("manage_memory", {"action": "create", "text": 12, "kind": ["episodic"]}),
    Behaviour.HUGE_MEMORY: ("manage_memory", {"action": "create", "text": " ".join(map(str, range(2000)))}),
}


def _with_bad_call(reply: str, name: str, args: dict[str, object]) -> str:
    """Put one bad call before the good ones, so that it could spoil all of them."""
    good = reply.partition('{"tool_calls": [')[2].partition("]}\n\n[[ ## completed")[0]
    bad = calls_json([(name, args)])
    return chat_format({"tool_calls": f"{bad[:-2]}, {good}]}}" if good else bad})


def read_prompt(messages: Sequence[dict[str, Any]], temperature: float = 0.0) -> Prompt:
    systems = [message["content"] for message in messages if message["role"] in ("system", "developer")]
    shown = tuple(message["content"] for message in messages if message["role"] == "assistant")
    return Prompt("\n\n".join(systems), messages[-1]["content"], shown, temperature)


def chat_completion(model: str, prompt: Prompt, text: str, finish_reason: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    prompt_tokens, completion_tokens = (len(prompt.system) + len(prompt.user)) // 4, len(text) // 4
    return {
        "id": f"chatcmpl-{prompt.key[:12]}",
        "object": "chat.completion",
        "created": 1_683_554_160,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": len(prompt.system) // 4},
        },
    }


def _error(status: int, message: str, code: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": {"message": message, "code": code}}, status, headers)


class _BrokenResponse(JSONResponse):
    """Send half of the body that the header promises, and drop the connection."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        half = bytes(self.body)[: len(self.body) // 2]
        await send({"type": "http.response.body", "body": half, "more_body": True})
        raise ConnectionAbortedError("dropped on purpose")


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="where to listen; 0 takes a free port")
    parser.add_argument("--fault-rate", type=float, default=0.0, help="share of the prompts that fail")
    parser.add_argument("--seed", type=int, default=0, help="which prompts fail, and how")
    parser.add_argument("--latency-s", type=float, default=0.0, help="how long a reply takes")
    parser.add_argument("--hang-s", type=float, default=60.0, help="how long a hanging request hangs")
    options = parser.parse_args()
    behave = at_random(options.fault_rate, options.seed)
    with ModelServer(behave, latency_s=options.latency_s, hang_s=options.hang_s, port=options.port) as server:
        print(server.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
