"""The batch APIs of OpenAI and Anthropic on loopback, beside the direct calls of the model server.

States advance from poll to poll, replies come in another order than requests, single requests fail, batches
expire, and OpenAI's refuses batches that the account has no room for.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from tests.competent_model import Prompt
from tests.model_server import ModelServer, chat_completion, read_prompt

Body = dict[str, Any]


@dataclass(slots=True)
class ServedBatch:
    """A batch, with the bodies of its requests by their ids."""

    requests: dict[str, Body]
    expires: bool
    error: Body | None = None
    polls: int = 0
    outcomes: list[tuple[str, Body | None, str]] = field(default_factory=list)
    """Of each request, in another order: its reply or refusal, if any, and the word for it."""


class BatchServer(ModelServer):
    """The parts that both providers share.

    Args:
        polls: How often a batch is asked for before it ends.
        fails: Picks the prompts whose first request in a batch is an error of the server.
        expires: The numbers of the batches (from 1) that expire when half of their requests are done.
        most_requests: Batches with more requests are refused, as over the account's limit of tokens.
    """

    def __init__(
        self,
        *,
        polls: int = 2,
        fails: Callable[[Prompt], bool] = lambda prompt: False,
        expires: Collection[int] = (),
        most_requests: int | None = None,
        **more: Any,
    ) -> None:
        self.batches: dict[str, ServedBatch] = {}
        self.is_held = False
        """True: no batch ends."""
        self.polled = 0
        self.batch_keys: set[str] = set()
        self._polls, self._fails, self._expires = polls, fails, expires
        self._most_requests = most_requests
        self._asked = Counter[str]()
        super().__init__(**more)

    @property
    def sizes(self) -> list[int]:
        """The number of requests of each batch, in order."""
        return [len(batch.requests) for batch in self.batches.values()]

    def _add(self, requests: dict[str, Body]) -> str:
        number = len(self.batches) + 1
        batch_id = f"batch_{number}"
        self.batches[batch_id] = ServedBatch(requests, number in self._expires)
        return batch_id

    def _poll(self, batch: ServedBatch) -> bool:
        """Tell if a batch has ended."""
        self.polled += 1
        batch.polls += not self.is_held
        has_ended = batch.error is not None or batch.polls > self._polls
        if has_ended and not batch.outcomes:
            self._answer(batch)
        return has_ended

    def _answer(self, batch: ServedBatch) -> None:
        for place, (custom_id, body) in enumerate(batch.requests.items()):
            prompt = self._prompt(body)
            first = not self._asked[prompt.key]
            self._asked[prompt.key] += 1
            refusal = self._refusal(body)
            if refusal is not None:
                found = (custom_id, json.loads(bytes(refusal.body)), "refused")
            elif batch.expires and place % 2:
                found = (custom_id, None, "expired")
            elif first and self._fails(prompt):
                found = (custom_id, None, "errored")
            else:
                found = (custom_id, self._whole(body, prompt), "succeeded")
            batch.outcomes.insert(0, found)

    def _prompt(self, body: Body) -> Prompt:
        return read_prompt(body["messages"], body.get("temperature", 0.0))

    def _whole(self, body: Body, prompt: Prompt) -> Body:
        return chat_completion(body["model"], prompt, self._reply(prompt, 0), "stop")


class OpenAIBatchServer(BatchServer):
    """OpenAI's files and batches."""

    def _app(self) -> FastAPI:
        app = super()._app()
        self._files: dict[str, str] = {}
        self._inputs: dict[str, str] = {}
        app.post("/v1/files", response_model=None)(self._upload)
        app.post("/v1/batches", response_model=None)(self._create)
        app.get("/v1/batches")(self._list)
        app.get("/v1/batches/{batch_id}", response_model=None)(self._state)
        app.get("/v1/files/{file_id}/content", response_model=None)(self._download)
        return app

    async def _upload(self, request: Request) -> Response:
        self.batch_keys.add(request.headers["authorization"])
        form = await request.form()
        assert form["purpose"] == "batch"
        file = form["file"]
        assert not isinstance(file, str)
        assert file.filename.endswith(".jsonl")
        name = f"file-{len(self._files) + 1}"
        self._files[name] = (await file.read()).decode()
        return JSONResponse({"id": name, "object": "file", "purpose": "batch"})

    async def _create(self, request: Request) -> Response:
        wanted = await request.json()
        assert (wanted["endpoint"], wanted["completion_window"]) == ("/v1/chat/completions", "24h")
        lines = [json.loads(line) for line in self._files[wanted["input_file_id"]].splitlines()]
        for line in lines:
            assert set(line) == {"custom_id", "method", "url", "body"}
            assert (line["method"], line["url"]) == ("POST", wanted["endpoint"])
            assert "stream" not in line["body"]
        requests = {line["custom_id"]: line["body"] for line in lines}
        batch_id = self._add(requests)
        batch = self.batches[batch_id]
        self._inputs[batch_id] = wanted["input_file_id"]
        if len(requests) < len(lines):
            batch.error = {"code": "duplicate_custom_id", "message": "The custom_id is already used."}
        elif len({body["model"] for body in requests.values()}) > 1:
            batch.error = {"code": "mismatched_model", "message": "The models of the lines differ."}
        elif self._most_requests is not None and len(requests) > self._most_requests:
            batch.error = {"code": "token_limit_exceeded", "message": "Enqueued token limit reached."}
        return JSONResponse({"id": batch_id, "object": "batch", "status": "validating"})

    def _list(self, limit: int = 20) -> Body:
        newest = [*self._inputs.items()][: -limit - 1 : -1]
        return {"object": "list", "data": [{"id": made, "input_file_id": file} for made, file in newest]}

    async def _state(self, batch_id: str) -> Response:
        if batch_id not in self.batches:
            return JSONResponse({"error": {"message": f"No batch found with id '{batch_id}'."}}, 404)
        batch = self.batches[batch_id]
        found: Body = {"id": batch_id, "object": "batch", "status": "in_progress", "errors": None}
        found["request_counts"] = {"total": len(batch.requests), "completed": batch.polls, "failed": 0}
        if self._poll(batch):
            found["status"] = "expired" if batch.expires else "completed"
            if batch.error is not None:
                found |= {"status": "failed", "errors": {"object": "list", "data": [batch.error]}}
            else:
                found |= {"output_file_id": f"out-{batch_id}", "error_file_id": f"err-{batch_id}"}
        return JSONResponse(found)

    async def _download(self, file_id: str) -> Response:
        kind, _, batch_id = file_id.partition("-")
        said = {"error": {"message": "The server had an error.", "type": "server_error"}}
        expired = {"code": "batch_expired", "message": "This request could not be executed."}
        lines: list[str] = []
        for custom_id, whole, word in self.batches[batch_id].outcomes:
            line: Body = {"id": f"r-{custom_id}", "custom_id": custom_id, "response": None, "error": None}
            if word == "expired":
                line["error"] = expired
            else:
                status = {"succeeded": 200, "refused": 400}.get(word, 500)
                line["response"] = {"status_code": status, "body": whole or said}
            if (word == "succeeded") == (kind == "out"):
                lines.append(json.dumps(line))
        return PlainTextResponse("\n".join(lines))


class AnthropicBatchServer(BatchServer):
    """Anthropic's messages and message batches."""

    @property
    def url(self) -> str:
        return super().url.removesuffix("/v1")

    def _app(self) -> FastAPI:
        app = super()._app()
        self._ids = itertools.count(1)
        app.post("/v1/messages", response_model=None)(self._message)
        app.post("/v1/messages/batches", response_model=None)(self._create)
        app.get("/v1/messages/batches/{batch_id}", response_model=None)(self._state)
        app.get("/v1/messages/batches/{batch_id}/results", response_model=None)(self._download)
        return app

    async def _message(self, request: Request) -> Response:
        body = await request.json()
        prompt = self._prompt(body)
        self.traffic.requests[prompt.key] += 1
        return JSONResponse(self._whole(body, prompt))

    async def _create(self, request: Request) -> Response:
        assert request.headers["anthropic-version"] == "2023-06-01"
        self.batch_keys.add(request.headers["x-api-key"])
        wanted = await request.json()
        ids = [line["custom_id"] for line in wanted["requests"]]
        assert len(set(ids)) == len(ids)
        assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", custom_id) for custom_id in ids)
        assert all(line["params"]["max_tokens"] for line in wanted["requests"])
        batch_id = self._add({line["custom_id"]: line["params"] for line in wanted["requests"]})
        return JSONResponse(self._described(batch_id, has_ended=False))

    async def _state(self, batch_id: str) -> Response:
        return JSONResponse(self._described(batch_id, has_ended=self._poll(self.batches[batch_id])))

    def _described(self, batch_id: str, *, has_ended: bool) -> Body:
        batch, words = self.batches[batch_id], ("processing", "succeeded", "errored", "canceled", "expired")
        counts = dict.fromkeys(words, 0)
        if has_ended:
            counts |= Counter(word for _, _, word in batch.outcomes)
        else:  # all are in process until the last one is done
            counts["processing"] = len(batch.requests)
        return {
            "id": batch_id,
            "type": "message_batch",
            "processing_status": "ended" if has_ended else "in_progress",
            "request_counts": counts,
            "results_url": "https://elsewhere.invalid/results" if has_ended else None,
        }

    async def _download(self, batch_id: str) -> Response:
        lines: list[str] = []
        for custom_id, whole, word in self.batches[batch_id].outcomes:
            result: Body = {"type": word}
            if word == "succeeded":
                result["message"] = whole
            if word == "errored":
                error = {"type": "overloaded_error", "message": "Overloaded"}
                result["error"] = {"type": "error", "error": error}
            lines.append(json.dumps({"custom_id": custom_id, "result": result}))
        return PlainTextResponse("\n".join(lines))

    def _prompt(self, body: Body) -> Prompt:
        system = body.get("system", "")
        messages = [{"role": "system", "content": _text(system)}] if system else []
        messages += [{"role": m["role"], "content": _text(m["content"])} for m in body["messages"]]
        return read_prompt(messages, body.get("temperature", 0.0))

    def _whole(self, body: Body, prompt: Prompt) -> Body:
        text = self._reply(prompt, 0)
        return {
            "id": f"msg_{next(self._ids)}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {
                "input_tokens": (len(prompt.system) + len(prompt.user)) // 4,
                "output_tokens": len(text) // 4,
            },
        }


def _text(content: str | list[Body]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
