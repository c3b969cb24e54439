"""The batch APIs of OpenAI and Anthropic: many requests in one upload, at half the price, within 24 hours.

DSPy's dialects write the requests and read the replies. Its own batches are not used: those of OpenAI go to
the Responses API, and a run would get other replies with ``--batch`` than without. LiteLLM's cannot create a
batch at Anthropic. Each method here tries once; keys are read from the environment when a request is sent.
"""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import httpx
from dspy import lm15
from dspy.lm15 import AnthropicLM, OpenAIChatCompat, OpenAIChatLM, Request, Response

from memory_program.models.endpoint_facts import EndpointFacts, endpoint_facts
from memory_program.models.http_engine import (
    NO_KEY,
    account_headers,
    certificate_error,
    is_reasoning_model,
    make_client,
    openai_url,
    read_completion,
    read_key,
    retry_after_s,
    untrusted_certificate,
)
from memory_program.models.server_errors import provider_error, read_error

JsonObject = dict[str, Any]  # Any: JSON

_TIMEOUT = httpx.Timeout(300.0, connect=10.0)  # a file of requests may have 200 MB
_ENDPOINT = "/chat/completions"
_UNFINISHED = ("batch_expired", "batch_cancelled")
_TOO_MANY_TOKENS = "token_limit_exceeded"
_ANTHROPIC_VERSION = "2023-06-01"
_ANTHROPIC_STATUS = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""The status of a direct call that fails with an error of this type; any other type is a server error (500)."""


@dataclass(frozen=True, slots=True)
class BatchReply:
    """The reply to one request of a batch: the status and the body that a direct call would have got."""

    status: int
    body: JsonObject


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """The state of a batch, in the provider's word for it."""

    word: str
    done: int
    has_ended: bool = False
    error: str = ""
    """Why it failed as a whole."""
    has_too_many_tokens: bool = False
    """True if the account may not have so many tokens in batches at once."""
    files: tuple[str, ...] = ()
    """Ids of the files with the replies."""


class BatchApi(ABC):
    """The batch API of one provider at one address."""

    max_bytes: int
    """The most bytes of one batch, with some room for what surrounds the requests."""

    def __init__(self, url: str, key_variables: tuple[str | None, ...], *, is_listed: bool) -> None:
        """Prepare the client; nothing is connected yet.

        Args:
            url: the address, with its version.
            key_variables: environment variables; the first one that has a key gives it.
            is_listed: the models are those of LiteLLM's list.

        Raises:
            ModelError: the environment names a proxy that does not speak HTTP.
        """
        self.url = url
        self._key_variables, self._is_listed = key_variables, is_listed
        self._client = make_client(url, connections=2)

    @abstractmethod
    def facts(self, model: str) -> EndpointFacts:
        """Return what direct calls have learned about a model, under the same name."""

    @abstractmethod
    def token_field(self, model: str) -> str:
        """Name the limit of tokens as the model knows it."""

    @abstractmethod
    def write_body(self, request: Request) -> JsonObject:
        """Write the body that a direct call would have."""

    @abstractmethod
    def submit(self, bodies: Mapping[str, JsonObject]) -> str:
        """Submit requests by their ids, and return the id of the batch.

        Raises:
            lm15.LM15Error: the batch was not accepted.
        """

    @abstractmethod
    def status(self, batch_id: str) -> BatchStatus:
        """Ask for the state of a batch.

        Raises:
            lm15.LM15Error: the provider does not know it, or cannot be reached.
        """

    @abstractmethod
    def replies(self, batch_id: str, status: BatchStatus) -> dict[str, BatchReply]:
        """Fetch the replies of a batch that has ended; those that expired or were cancelled are missing.

        Raises:
            lm15.LM15Error: they cannot be fetched.
        """

    @abstractmethod
    def read_reply(self, request: Request, reply: BatchReply) -> Response:
        """Read the reply to one request.

        Raises:
            lm15.LM15Error: the request failed, as a direct call might.
        """

    @abstractmethod
    def _headers(self) -> dict[str, str]: ...

    def _key(self) -> str:
        return next((key for key in map(read_key, self._key_variables) if key), NO_KEY)

    def _send(self, method: str, path: str, content: JsonObject | None = None) -> httpx.Response:
        url = f"{self.url}{path}"
        try:
            reply = self._client.request(
                method, url, headers=self._headers(), timeout=_TIMEOUT, **(content or {})
            )
        except httpx.TimeoutException as error:
            raise lm15.TimeoutError(f"no reply in time from {url}") from error
        except httpx.RequestError as error:
            if certificate_error(error):
                raise lm15.ConfigurationError(untrusted_certificate(url, error)) from error
            raise lm15.TransportError(f"the connection to {url} failed: {error}") from error
        if not reply.is_success:
            wait_s = retry_after_s(reply.headers)
            raise provider_error(reply.status_code, read_error(reply.text), url=url, retry_after=wait_s)
        return reply

    def _send_json(self, method: str, path: str, content: JsonObject | None = None) -> JsonObject:
        reply = self._send(method, path, content)
        try:
            return cast(JsonObject, json.loads(reply.text))
        except ValueError as error:
            raise lm15.ServerError(f"the reply of {reply.url} is not JSON: {reply.text[:200]!r}") from error

    def _refusal(self, reply: BatchReply) -> lm15.ProviderError:
        return provider_error(reply.status, read_error(json.dumps(reply.body)), url=self.url)


class OpenAIBatchApi(BatchApi):
    """OpenAI's batches of chat completions: a file of requests, a batch of it, and files of the replies."""

    max_bytes = 190_000_000

    def __init__(self, api_base: str | None, key_variable: str | None) -> None:
        """Prepare the client; see ``BatchApi``."""
        super().__init__(
            (api_base or openai_url()).rstrip("/"),
            (key_variable, "OPENAI_API_KEY"),
            is_listed=api_base is None,
        )
        self._dialects = {
            field: OpenAIChatLM(api_key=NO_KEY, compat=OpenAIChatCompat(max_tokens_field=field))
            for field in ("max_tokens", "max_completion_tokens")
        }

    def facts(self, model: str) -> EndpointFacts:
        """Return what direct calls have learned about a model, under the same name."""
        return endpoint_facts(self.url, model, is_listed=self._is_listed)

    def token_field(self, model: str) -> str:
        """Name the limit of tokens as the model knows it; see ``ChatCompletionsEngine``."""
        is_plain = not self._is_listed and not is_reasoning_model(model)
        return self.facts(model).token_field or ("max_tokens" if is_plain else "max_completion_tokens")

    def write_body(self, request: Request) -> JsonObject:
        """Write the body that a direct call would have."""
        return _bare_body(self._dialects[self.token_field(request.model)], request)

    def submit(self, bodies: Mapping[str, JsonObject]) -> str:
        """Upload a file of requests, and make a batch of it."""
        lines = [
            {"custom_id": custom_id, "method": "POST", "url": f"/v1{_ENDPOINT}", "body": body}
            for custom_id, body in bodies.items()
        ]
        content = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
        file = {"file": ("batch.jsonl", content, "application/jsonl")}
        uploaded = self._send_json("POST", "/files", {"data": {"purpose": "batch"}, "files": file})
        wanted = {
            "input_file_id": uploaded["id"],
            "endpoint": f"/v1{_ENDPOINT}",
            "completion_window": "24h",
        }
        return str(self._send_json("POST", "/batches", {"json": wanted})["id"])

    def status(self, batch_id: str) -> BatchStatus:
        """Ask for the state of a batch."""
        batch = self._send_json("GET", f"/batches/{batch_id}")
        counts = batch.get("request_counts") or {}
        errors: list[JsonObject] = (batch.get("errors") or {}).get("data") or []
        files = (batch.get("output_file_id"), batch.get("error_file_id"))
        return BatchStatus(
            str(batch["status"]),
            done=int(counts.get("completed") or 0) + int(counts.get("failed") or 0),
            has_ended=batch["status"] in ("completed", "failed", "expired", "cancelled"),
            error="; ".join(str(error.get("message")) for error in errors[:3]),
            has_too_many_tokens=any(error.get("code") == _TOO_MANY_TOKENS for error in errors),
            files=tuple(str(file) for file in files if file),
        )

    def replies(self, batch_id: str, status: BatchStatus) -> dict[str, BatchReply]:
        """Fetch the files of replies and of errors."""
        found: dict[str, BatchReply] = {}
        for file in status.files:
            for line in _lines(self._send("GET", f"/files/{file}/content")):
                response: JsonObject | None = line.get("response")
                error: JsonObject = line.get("error") or {}
                if response is not None:
                    reply = BatchReply(int(response["status_code"]), response["body"])
                    found[str(line["custom_id"])] = reply
                elif error.get("code") not in _UNFINISHED:
                    found[str(line["custom_id"])] = BatchReply(500, {"error": error})
        return found

    def read_reply(self, request: Request, reply: BatchReply) -> Response:
        """Read the reply to one request."""
        if reply.status != 200:
            raise self._refusal(reply)
        return read_completion(reply.body, request, self.url)

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key()}"} | account_headers(self.url)


class AnthropicBatchApi(BatchApi):
    """Anthropic's message batches."""

    max_bytes = 240_000_000

    def __init__(self, api_base: str | None, key_variable: str | None) -> None:
        """Prepare the client; see ``BatchApi``. The address is the one that LiteLLM would call."""
        named = api_base or os.environ.get("ANTHROPIC_API_BASE") or os.environ.get("ANTHROPIC_BASE_URL")
        host = (named or "https://api.anthropic.com").rstrip("/")
        url = host.removesuffix("/v1/messages").removesuffix("/v1") + "/v1"
        super().__init__(url, (key_variable, "ANTHROPIC_API_KEY"), is_listed=api_base is None)
        self._api_base = api_base
        self._dialect = AnthropicLM(api_key=NO_KEY)

    def facts(self, model: str) -> EndpointFacts:
        """Return what direct calls have learned about a model, under the same name."""
        return endpoint_facts(str(self._api_base), model, is_listed=self._is_listed)

    def token_field(self, model: str) -> str:
        """Name the limit of tokens."""
        return "max_tokens"

    def write_body(self, request: Request) -> JsonObject:
        """Write the body that a direct call would have."""
        return _bare_body(self._dialect, request)

    def submit(self, bodies: Mapping[str, JsonObject]) -> str:
        """Submit the requests in one call."""
        requests = [{"custom_id": custom_id, "params": body} for custom_id, body in bodies.items()]
        return str(self._send_json("POST", "/messages/batches", {"json": {"requests": requests}})["id"])

    def status(self, batch_id: str) -> BatchStatus:
        """Ask for the state of a batch; until it ends, Anthropic says only how many are in process."""
        batch = self._send_json("GET", f"/messages/batches/{batch_id}")
        counts: dict[str, int] = batch.get("request_counts") or {}
        has_ended = batch["processing_status"] == "ended"
        unfinished = [word for word in ("expired", "canceled") if counts.get(word)] if has_ended else []
        return BatchStatus(
            unfinished[0] if unfinished else str(batch["processing_status"]),
            done=sum(counts.get(word, 0) for word in ("succeeded", "errored")),
            has_ended=has_ended,
        )

    def replies(self, batch_id: str, status: BatchStatus) -> dict[str, BatchReply]:
        """Fetch the results; not from ``results_url``, since a key goes to no address but the one named."""
        found: dict[str, BatchReply] = {}
        for line in _lines(self._send("GET", f"/messages/batches/{batch_id}/results")):
            result: JsonObject = line["result"]
            if result["type"] == "succeeded":
                found[str(line["custom_id"])] = BatchReply(200, result["message"])
            elif result["type"] == "errored":
                error: JsonObject = result["error"]
                kind = str((error.get("error") or error).get("type"))
                found[str(line["custom_id"])] = BatchReply(_ANTHROPIC_STATUS.get(kind, 500), error)
        return found

    def read_reply(self, request: Request, reply: BatchReply) -> Response:
        """Read the reply to one request."""
        if reply.status != 200:
            raise self._refusal(reply)
        # the dialect asks nothing of the reply but its JSON
        response: Response = self._dialect.parse_response(
            request, cast(Any, httpx.Response(200, json=reply.body))
        )
        if response.finish_reason == "content_filter":
            raise lm15.ProviderError("the provider's content filter ended the reply")
        return response

    def _headers(self) -> dict[str, str]:
        return {"x-api-key": self._key(), "anthropic-version": _ANTHROPIC_VERSION}


def make_batch_api(name: str, api_base: str | None, key_variable: str | None) -> BatchApi:
    """Make the batch API of a model that has one; see ``has_batch_api``."""
    api = AnthropicBatchApi if name.startswith("anthropic/") else OpenAIBatchApi
    return api(api_base, key_variable)


def _bare_body(dialect: OpenAIChatLM | AnthropicLM, request: Request) -> JsonObject:
    """Write the body of a request, without what a batch does not take."""
    sent = dialect.build_request(replace(request, model=request.model.partition("/")[2]), stream=False)
    body: JsonObject = json.loads(sent.body or b"{}")
    body.pop("stream", None)
    return body


def _lines(reply: httpx.Response) -> list[JsonObject]:
    """Read a file of JSON lines.

    Raises:
        lm15.ServerError: it is something else, such as the page of a proxy.
    """
    try:
        return [json.loads(line) for line in reply.text.split("\n") if line.strip()]
    except ValueError as error:
        raise lm15.ServerError(f"the reply of {reply.url} is not JSON lines: {error}") from error
