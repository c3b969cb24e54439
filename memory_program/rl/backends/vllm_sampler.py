"""Samples from a vLLM server for a training in this process, which publishes its adapter after each update.

The trainer owns the weights. After each optimiser step it writes its LoRA adapter to a folder, and the server
loads that under a new name: its prefix cache is kept by name, and would otherwise hold keys and values of
older weights. Prompts go out as token ids, and replies come back as token ids with log-probabilities, so
nothing is tokenized twice.
"""

import hashlib
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
from dspy import lm15
from tenacity import Retrying, retry_if_exception

from memory_program.core.errors import ModelError
from memory_program.core.repetition import CHECKED_TOKENS, find_repetition
from memory_program.inference.batcher import Continuation, Ending, GenerationRequest
from memory_program.models.rate_limit import RetryPolicy
from memory_program.models.server_errors import provider_error, read_error

_logger = logging.getLogger(__name__)
_TIMEOUT = httpx.Timeout(600.0, connect=10.0, pool=None)  # a call may wait for its turn on the server
_CHECKED_EVERY_TOKENS = 32  # as the engine of this process looks for loops
_LOOP = {"min_pattern_size": 25, "max_pattern_size": 50, "min_count": 4}
"""vLLM stops a loop of at least 100 tokens; a shorter part is found as a multiple of itself. vLLM compares
each size after each token, so longer parts are only found once the whole reply is there."""
_CONTINUE = "the last checkpoint is kept, and the same command continues from it"


@dataclass(frozen=True, slots=True)
class _Adapter:
    name: str
    folder: Path


class VllmSampler:
    """Generates on a vLLM server with the adapter that was published last, or with the base model before.

    Every setting of sampling is sent with each call, so that no default of the server or of the model's
    ``generation_config.json`` changes the distribution that is sampled from. The seed is not: a reply depends
    on its batch there anyway, and vLLM 0.32 on a CPU ends when it reads the prompt of a seeded call in parts.
    """

    def __init__(self, url: str, folder: Path, stop_ids: frozenset[int], key: str = "") -> None:
        """Find the served model, and withdraw what a killed training has left.

        Args:
            url: the address of the server, which ends in /v1.
            folder: of the adapters; the server sees it under the same path.
            stop_ids: the tokens that end a reply.
            key: of the server, if it wants one.

        Raises:
            ModelError: no vLLM server answers there.
        """
        self._url, self._folder, self._stop_ids = url.rstrip("/"), folder.resolve(), stop_ids
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.Client(
            headers=headers,
            timeout=_TIMEOUT,
            trust_env=False,  # a proxy would be in the way
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        )
        policy = RetryPolicy()
        self._retrying = Retrying(
            stop=policy.gives_up,
            retry=retry_if_exception(policy.should_retry),
            wait=policy.wait_s,
            reraise=True,
        )
        self._adapter: _Adapter | None = None
        try:
            reply = self._client.get(f"{self._url}/models", timeout=10.0)
            reply.raise_for_status()
            base = next(entry for entry in reply.json()["data"] if entry.get("parent") is None)
            self._base: str = base["id"]
            self._context: int = base["max_model_len"]
        except (
            httpx.HTTPError,
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            StopIteration,
        ) as error:
            raise ModelError(
                f"no vLLM server answers at {self._url}: {type(error).__name__}: {str(error)[:200]!r}; start "
                "one with vllm serve MODEL --enable-lora, and give its address, which ends in /v1"
            ) from error
        for left in sorted(self._folder.glob("policy-*")):
            self._withdraw(_Adapter(left.name, left))

    @property
    def context_tokens(self) -> int:
        """The most tokens of prompt and reply together on the server."""
        return self._context

    def generate(self, request: GenerationRequest, config: lm15.Config) -> Continuation:
        """Continue a prompt; see ``AdapterSampler``. A reply ends where the engine of this process ends it.

        A failure of the connection or the server is tried again, as calls of API models are.

        Raises:
            lm15.LM15Error: the last try failed.
        """
        adapter, sampling = self._adapter, request.sampling
        body: dict[str, Any] = {  # Any: JSON
            "model": self._base if adapter is None else adapter.name,
            "prompt": list(request.prompt),
            "max_tokens": request.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or 0,  # 0: all tokens
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "min_tokens": 0,
            "stop": list(config.stop),
            "stop_token_ids": sorted(self._stop_ids),
            "logprobs": 0,  # of the chosen tokens only
            "return_token_ids": True,
            "repetition_detection": _LOOP,
        }
        if config.response_format:
            schema = config.response_format.get("schema", {"type": "object"})
            named = {"name": "reply", "schema": schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        reply = self._retrying(self._complete, body)
        try:
            whole = reply.json()
            choice = whole["choices"][0]
            tokens = cast(list[int], choice["token_ids"])
            logprobs = cast(list[float], choice["logprobs"]["token_logprobs"])
            reason = choice["finish_reason"]
            cached = (whole["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise lm15.ServerError(
                f"the reply of {reply.url} has no tokens with log-probabilities ({type(error).__name__}: "
                f"{error}): return_token_ids needs vLLM 0.10.2 or later; it begins with {reply.text[:200]!r}"
            ) from error
        if not tokens or len(tokens) != len(logprobs) or reason not in ("stop", "length", "repetition"):
            raise lm15.ServerError(
                f"the reply of {reply.url} broke off: {len(tokens)} tokens, {len(logprobs)} "
                f"log-probabilities, finish_reason {reason!r}"
            )
        endings = {"length": Ending.LIMIT, "repetition": Ending.REPETITION}
        ending = (
            Ending.STOP_TOKEN if tokens[-1] in self._stop_ids else endings.get(reason, Ending.STOP_STRING)
        )
        for end in range(_CHECKED_EVERY_TOKENS, len(tokens) + 1, _CHECKED_EVERY_TOKENS):
            if find_repetition(tokens[max(0, end - CHECKED_TOKENS) : end]):
                tokens, logprobs, ending = tokens[:end], logprobs[:end], Ending.REPETITION
                break
        return Continuation(tokens, logprobs, ending, cached)

    def _complete(self, body: dict[str, Any]) -> httpx.Response:  # Any: JSON
        try:
            reply = self._client.post(f"{self._url}/completions", json=body)
        except httpx.TimeoutException as error:
            raise lm15.TimeoutError(f"no reply in time from {self._url}: {error}") from error
        except httpx.RequestError as error:
            raise lm15.TransportError(f"the connection to {self._url} failed: {error}") from error
        if not reply.is_success:
            raise provider_error(reply.status_code, read_error(reply.text), url=str(reply.url))
        return reply

    def publish(self, name: str, save: Callable[[Path], None]) -> None:
        """Sample from another adapter from now on; the one before is withdrawn, and its folder removed.

        Raises:
            ModelError: the server does not take it.
        """
        draft = self._folder / "draft"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        save(draft)
        with (draft / "adapter_model.safetensors").open("rb") as file:
            found = hashlib.file_digest(file, "sha256")
        # equal names mean equal weights, since a repeated step may reach other ones; two trainings share none
        found.update(str(self._folder).encode())
        digest = found.hexdigest()[:8]
        published = _Adapter(f"{name}-{digest}", self._folder / f"{name}-{digest}")
        before = self._adapter
        if before == published:
            shutil.rmtree(draft)
            return
        shutil.rmtree(published.folder, ignore_errors=True)
        draft.replace(published.folder)
        self._ask("unload_lora_adapter", published.name)  # left by a training whose folder was removed
        problem = self._ask("load_lora_adapter", published.name, lora_path=str(published.folder))
        if problem is not None:
            raise ModelError(
                f"the vLLM server at {self._url} does not take the adapter {published.name!r}: {problem}; "
                "start it with --enable-lora --max-lora-rank (at least --lora-r) and with "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment, where it can read "
                f"{str(self._folder)!r}; {_CONTINUE}"
            )
        self._adapter = published
        if before is not None:
            self._withdraw(before)

    def close(self) -> None:
        """Withdraw the adapter, and close the connections. A server that is gone has no adapter any more."""
        try:
            if self._adapter is not None:
                self._withdraw(self._adapter)
        except ModelError as error:
            _logger.warning("%s", error)
        finally:
            self._adapter = None
            self._client.close()

    def _withdraw(self, adapter: _Adapter) -> None:
        problem = self._ask("unload_lora_adapter", adapter.name)
        # a server that was started again, or that updates no adapters, does not know it
        if problem is not None and not problem.startswith("HTTP 404"):
            raise ModelError(
                f"the vLLM server at {self._url} does not unload the adapter {adapter.name!r}: {problem}; "
                f"{_CONTINUE}"
            )
        shutil.rmtree(adapter.folder, ignore_errors=True)

    def _ask(self, action: str, name: str, **fields: str) -> str | None:
        """Ask for a change of adapters; return the server's words if it refuses."""
        try:
            reply = self._client.post(f"{self._url}/{action}", json={"lora_name": name, **fields})
        except httpx.RequestError as error:
            return f"{type(error).__name__}: {error}"
        return None if reply.is_success else f"HTTP {reply.status_code}: {read_error(reply.text).message}"
