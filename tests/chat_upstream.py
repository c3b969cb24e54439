"""A chat API that plays a script byte for byte, and keeps what it was sent."""

import asyncio
import json
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from tests.served_app import ServedApp


def said(text: str | None, **more: Any) -> dict[str, Any]:
    """A whole reply."""
    message = {"role": "assistant", "content": text, **more}
    finish = "tool_calls" if "tool_calls" in more else "stop"
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


def streamed(whole: dict[str, Any]) -> list[bytes]:
    """The events of a reply, cut at odd places: in the middle of a character and of a line."""
    choice = whole["choices"][0]
    message = choice["message"]
    deltas = [{"role": "assistant", "content": ""}]
    deltas += [{"content": letter} for letter in message.get("content") or ""]
    for index, call in enumerate(message.get("tool_calls", [])):
        deltas.append({"tool_calls": [{"index": index, **call}]})
    chunk = {**whole, "object": "chat.completion.chunk"}
    events = [{**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    events.append({**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
    lines = [f"data: {json.dumps(event, ensure_ascii=False)}\n\n" for event in events]
    text = "".join([": hello\n\n", *lines, "data: [DONE]\n\n"]).encode()
    return [text[start : start + 37] for start in range(0, len(text), 37)]


class ChatUpstream(ServedApp):
    """The server, from ``__enter__`` to ``__exit__``. A reply is a whole one, or a status with a body."""

    def __init__(self, replies: Sequence[dict[str, Any] | tuple[int, Any]], event_s: float = 0.0) -> None:
        self._replies, self._event_s = list(replies), event_s
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        app = FastAPI()
        app.post("/v1/chat/completions", response_model=None)(self._complete)
        app.get("/v1/models")(lambda: {"object": "list", "data": [{"id": "m", "object": "model"}]})
        super().__init__(app)

    async def _complete(self, request: Request) -> Response:
        self.bodies.append(await request.json())
        self.keys.append(request.headers.get("authorization"))
        reply = self._replies.pop(0)
        if isinstance(reply, tuple):
            return JSONResponse(reply[1], reply[0], {"x-request-id": "r1", "retry-after": "7"})
        if not self.bodies[-1].get("stream"):
            return JSONResponse(reply)

        async def events() -> Any:
            for piece in streamed(reply):
                await asyncio.sleep(self._event_s)
                yield piece

        return StreamingResponse(events(), media_type="text/event-stream")

    @property
    def url(self) -> str:
        return "http://{}:{}/v1".format(*self.address)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if kind is None:
            assert not self._replies, "the script has replies left over"
