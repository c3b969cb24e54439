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
    is_reasoning_model,
    make_client,
    read_completion,
    read_key,
    retry_after_s,
)
from memory_program.models.model_names import openai_url, own_server
from memory_program.models.server_errors import provider_error, read_error
from memory_program.models.usage import is_cut

JsonObject = dict[str, Any]  # Any: JSON

_TIMEOUT = httpx.Timeout(300.0, connect=10.0)  # a file of requests may have 200 MB
_ENDPOINT = "/v1/chat/completions"
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
_OVERLOADED = 529  # Anthropic's, of a call that it does not take
_UNFINISHED = ("batch_expired", "batch_cancelled")
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
"""The status of a direct call that fails with an error of this type; any other is one of the server (500)."""


@dataclass(frozen=True, slots=True)
class BatchReply:
    """The reply to one request of a batch: the status and the body that a direct call would have got."""

    status: int
    body: JsonObject


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """The state of a batch, in the provider's word for it; ``error`` says why it failed as a whole."""

    word: str
    done: int = 0
    has_ended: bool = False
    error: str = ""
    has_too_many_tokens: bool = False
    """True if the account has no room for the tokens of the batch."""
    files: tuple[str, ...] = ()
    """Ids of the files with the replies."""


class BatchApi(ABC):
    """The batch API of one model at one address. Its methods raise ``lm15.LM15Error`` if they fail."""

    max_bytes = 190_000_000
    """The most bytes of one batch: OpenAI takes 200 MB, Anthropic 256."""

    path = "/batches"
    """The path of the batches behind the address."""

    lists_inputs = False
    """True if ``find`` works: the provider's list says what each batch was made of."""

    _dialects: Mapping[str, OpenAIChatLM | AnthropicLM]
    """The dialect that writes requests, by the name of their limit of tokens."""

    _key_header: tuple[str, str]
    """The header of the key, and what stands before the key in it."""

    _other_headers: Mapping[str, str]

    def __init__(
        self, model: str, url: str, facts: EndpointFacts, key_variables: tuple[str | None, ...]
    ) -> None:
        """Prepare the client; nothing is connected yet.

        Args:
            model: its name, with the provider.
            url: the address, with its version.
            facts: what direct calls learn about the model; they are shared with it.
            key_variables: environment variables; the first one that has a key gives it.
        """
        self.model, self.url, self.facts = model, url, facts
        self._key_variables = key_variables
        self._client = make_client(url, connections=2)

    @property
    def token_field(self) -> str:
        """The name of the limit of tokens, as the model knows it."""
        return "max_tokens"

    def write_body(self, request: Request) -> JsonObject:
        """Write the body that a direct call would have."""
        named = replace(request, model=self.model.partition("/")[2])
        sent = self._dialects[self.token_field].build_request(named, stream=False)
        body: JsonObject = json.loads(sent.body or b"{}")
        body.pop("stream", None)  # a batch takes none
        return body

    def read_reply(self, request: Request, reply: BatchReply) -> Response:
        """Read the reply to one request; raise the error that a direct call would raise."""
        if reply.status != 200:
            raise provider_error(reply.status, read_error(json.dumps(reply.body)), url=self.url)
        return self.read_body(request, reply.body)

    @abstractmethod
    def read_body(self, request: Request, body: JsonObject) -> Response:
        """Read the body of a reply with status 200."""

    @abstractmethod
    def prepare(self, bodies: Mapping[str, JsonObject]) -> JsonObject:
        """Upload requests by their ids; return the body for ``create``. It costs nothing to repeat."""

    def create(self, wanted: JsonObject) -> str:
        """Create a batch, and return its id. After an error that is no ``was_refused``, it may exist."""
        (batch,) = self._send("POST", self.path, {"json": wanted})
        return str(batch["id"])

    def find(self, wanted: JsonObject) -> str | None:
        """Return the id of the batch that ``create`` made of this body, if there is one."""
        raise NotImplementedError

    @abstractmethod
    def status(self, batch_id: str) -> BatchStatus:
        """Ask for the state of a batch."""

    @abstractmethod
    def replies(self, batch_id: str, status: BatchStatus) -> dict[str, BatchReply]:
        """Fetch the replies of a batch that has ended; those that expired or were cancelled are missing."""

    def _send(self, method: str, path: str, content: JsonObject | None = None) -> list[JsonObject]:
        """Send a request; return the JSON of each line of the reply."""
        url, key = f"{self.url}{path}", next((k for k in map(read_key, self._key_variables) if k), NO_KEY)
        headers = {self._key_header[0]: f"{self._key_header[1]}{key}", **self._other_headers}
        try:
            reply = self._client.request(method, url, headers=headers, timeout=_TIMEOUT, **(content or {}))
        except httpx.TimeoutException as error:
            raise lm15.TimeoutError(f"no reply in time from {url}") from error
        except httpx.RequestError as error:
            raise lm15.TransportError(f"the connection to {url} failed: {error}") from error
        if not reply.is_success:
            wait_s = retry_after_s(reply.headers)
            raise provider_error(reply.status_code, read_error(reply.text), url=url, retry_after=wait_s)
        try:
            is_file = path.endswith(("/content", "/results"))
            texts = reply.text.split("\n") if is_file else [reply.text]
            found = [json.loads(text) for text in texts if text.strip() or not is_file]
        except ValueError as error:  # such as a gateway's error page: the next try may get through
            raise lm15.ServerError(f"the reply of {url} is not JSON: {reply.text[:200]!r}") from error
        if not is_file and (not isinstance(found[0], dict) or found[0].get("error")):
            raise provider_error(502, read_error(reply.text), url=url)  # an error with status 200
        return found


class OpenAIBatchApi(BatchApi):
    """OpenAI's batches of chat completions: a file of requests, a batch of it, and files of the replies."""

    lists_inputs = True

    def __init__(self, model: str, api_base: str | None, key_variable: str | None) -> None:
        """Prepare the client; see ``BatchApi``."""
        url = (api_base or openai_url()).rstrip("/")
        is_own = own_server(model, api_base) is not None
        facts = endpoint_facts(url, model, is_listed=not is_own)
        super().__init__(model, url, facts, (key_variable, "OPENAI_API_KEY"))
        self._key_header, self._other_headers = ("Authorization", "Bearer "), account_headers(url)
        self._is_plain = is_own and not is_reasoning_model(model)
        self._dialects = {
            field: OpenAIChatLM(api_key=NO_KEY, compat=OpenAIChatCompat(max_tokens_field=field))
            for field in ("max_tokens", "max_completion_tokens")
        }

    @property
    def token_field(self) -> str:
        """The name of the limit of tokens; see ``ChatCompletionsEngine``."""
        return self.facts.token_field or ("max_tokens" if self._is_plain else "max_completion_tokens")

    def prepare(self, bodies: Mapping[str, JsonObject]) -> JsonObject:
        """Upload a file of requests."""
        lines = [
            {"custom_id": custom_id, "method": "POST", "url": _ENDPOINT, "body": body}
            for custom_id, body in bodies.items()
        ]
        content = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
        file = {"file": ("batch.jsonl", content, "application/jsonl")}
        (uploaded,) = self._send("POST", "/files", {"data": {"purpose": "batch"}, "files": file})
        return {"input_file_id": uploaded["id"], "endpoint": _ENDPOINT, "completion_window": "24h"}

    def find(self, wanted: JsonObject) -> str | None:
        """Look for the file of requests among those of the last 100 batches."""
        (listed,) = self._send("GET", f"{self.path}?limit=100")
        file = wanted["input_file_id"]
        return next((str(batch["id"]) for batch in listed["data"] if batch["input_file_id"] == file), None)

    def status(self, batch_id: str) -> BatchStatus:
        """Ask for the state of a batch."""
        (batch,) = self._send("GET", f"{self.path}/{batch_id}")
        counts: dict[str, int] = batch.get("request_counts") or {}
        told: JsonObject | list[Any] | None = batch.get("errors")
        errors = json.dumps(told.get("data") if isinstance(told, dict) else told)
        files = (batch.get("output_file_id"), batch.get("error_file_id"))
        return BatchStatus(
            str(batch["status"]),
            done=(counts.get("completed") or 0) + (counts.get("failed") or 0),
            has_ended=batch["status"] in ("completed", "failed", "expired", "cancelled"),
            error=read_error(errors).message,
            has_too_many_tokens="token_limit_exceeded" in errors,
            files=tuple(str(file) for file in files if file),
        )

    def replies(self, batch_id: str, status: BatchStatus) -> dict[str, BatchReply]:
        """Fetch the files of replies and of errors."""
        found: dict[str, BatchReply] = {}
        for line in [line for file in status.files for line in self._send("GET", f"/files/{file}/content")]:
            response: JsonObject | None = line.get("response")
            error: JsonObject = line.get("error") or {}
            if response is not None:
                found[str(line["custom_id"])] = BatchReply(response["status_code"], response["body"])
            elif error.get("code") not in _UNFINISHED:
                found[str(line["custom_id"])] = BatchReply(500, {"error": error})
        return found

    def read_body(self, request: Request, body: JsonObject) -> Response:
        """Read a chat completion."""
        return read_completion(body, request, self.url)


class AnthropicBatchApi(BatchApi):
    """Anthropic's message batches. Their list does not say what a batch was made of."""

    path = "/messages/batches"

    def __init__(self, model: str, api_base: str | None, key_variable: str | None) -> None:
        """Prepare the client; see ``BatchApi``. The address is the one that LiteLLM would call."""
        named = api_base or os.environ.get("ANTHROPIC_API_BASE") or os.environ.get("ANTHROPIC_BASE_URL")
        host = (named or "https://api.anthropic.com").rstrip("/").removesuffix("/v1/messages")
        facts = endpoint_facts(str(api_base), model, is_listed=api_base is None)
        super().__init__(model, f"{host.removesuffix('/v1')}/v1", facts, (key_variable, "ANTHROPIC_API_KEY"))
        self._messages = AnthropicLM(api_key=NO_KEY)
        self._dialects = {self.token_field: self._messages}
        self._key_header = ("x-api-key", "")
        self._other_headers = {"anthropic-version": self._messages.api_version}

    def prepare(self, bodies: Mapping[str, JsonObject]) -> JsonObject:
        """Upload nothing: ``create`` sends the requests."""
        return {"requests": [{"custom_id": name, "params": body} for name, body in bodies.items()]}

    def status(self, batch_id: str) -> BatchStatus:
        """Ask for the state of a batch; until it ends, Anthropic says only how many are in process."""
        (batch,) = self._send("GET", f"{self.path}/{batch_id}")
        counts: dict[str, int] = batch.get("request_counts") or {}
        word, has_ended = str(batch["processing_status"]), batch["processing_status"] == "ended"
        unfinished = [kind for kind in ("expired", "canceled") if has_ended and counts.get(kind)]
        done = counts.get("succeeded", 0) + counts.get("errored", 0)
        return BatchStatus(unfinished[0] if unfinished else word, done, has_ended)

    def replies(self, batch_id: str, status: BatchStatus) -> dict[str, BatchReply]:
        """Fetch the results; not from ``results_url``, since a key goes to no address but the one named."""
        found: dict[str, BatchReply] = {}
        for line in self._send("GET", f"{self.path}/{batch_id}/results"):
            result: JsonObject = line["result"]
            if result["type"] == "succeeded":
                found[str(line["custom_id"])] = BatchReply(200, result["message"])
            elif result["type"] == "errored":
                error: JsonObject = result["error"]
                kind = str((error.get("error") or error).get("type"))
                found[str(line["custom_id"])] = BatchReply(_ANTHROPIC_STATUS.get(kind, 500), error)
        return found

    def read_body(self, request: Request, body: JsonObject) -> Response:
        """Read a message."""
        # the dialect asks nothing of the reply but its JSON
        response = self._messages.parse_response(request, cast(Any, httpx.Response(200, json=body)))
        if response.finish_reason == "content_filter":
            raise lm15.ProviderError("the provider's content filter ended the reply")
        # a cut list of tool calls has the reason of a whole one
        return replace(response, finish_reason="length") if is_cut(body.get("stop_reason")) else response


def was_refused(error: lm15.LM15Error) -> bool:
    """Tell if a failed call certainly did nothing: it was not sent, or the provider refused it."""
    if error.status is None:
        return isinstance(error.__cause__, _NOT_SENT)
    return error.status == _OVERLOADED or (error.status < 500 and error.status != 408)


def make_batch_api(model: str, api_base: str | None, key_variable: str | None) -> BatchApi:
    """Make the batch API of a model that has one; see ``has_batch_api``."""
    api = AnthropicBatchApi if model.startswith("anthropic/") else OpenAIBatchApi
    return api(model, api_base, key_variable)
