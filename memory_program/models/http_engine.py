"""Engines that send a request over HTTP and try once, by DSPy 3.4's engine contract.

OpenAI's chat completions, which most self-hosted servers speak too, are called with httpx: a fraction of
LiteLLM's processor time a call, and no import of LiteLLM. LiteLLM reaches every other provider. Keys are read
from the environment when a request is sent, and never kept.
"""

import functools
import importlib
import logging
import math
import os
import ssl
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import dspy
import httpx
from dspy import lm15
from dspy.clients.engines.litellm_engine import LiteLLMEngine
from dspy.lm15 import OpenAIChatCompat, OpenAIChatLM, ProviderError, Request, Response

from memory_program.core.errors import ModelError
from memory_program.models.model_names import is_vllm

NO_KEY = "no-key"
"""The key that is sent to servers that need none."""

_OPENAI = "openai/"
_OPENAI_URL = "https://api.openai.com/v1"
_CONNECT_TIMEOUT_S = 10.0  # a host that accepts no connection within this time is down


class ChatCompletionsEngine:
    """OpenAI's chat completions, at OpenAI or another address, over connections that are kept alive.

    Any thread may call. The environment's proxies (HTTPS_PROXY, NO_PROXY) are read when the engine is made.
    """

    def __init__(
        self, api_base: str | None, *, key_variable: str | None = None, timeout_s: float, connections: int
    ) -> None:
        """Prepare the client; nothing is connected before the first call.

        Raises:
            ModelError: the environment names a proxy that does not speak HTTP.
        """

        def key() -> str:
            return read_key(key_variable) or read_key("OPENAI_API_KEY") or NO_KEY

        url = api_base or openai_url()
        self._client = httpx.Client(
            # callers wait for their turn before they come here, so the pool needs no timeout
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_TIMEOUT_S), pool=None),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            verify=ssl.create_default_context(),
            proxy=_proxy_url(url),
            trust_env=False,
        )
        # DSPy's dialect writes the body and reads errors. Some servers ignore ``max_completion_tokens`` in
        # silence, and a reply then runs until the context is full; reasoning models know no other name.
        plain = OpenAIChatCompat(max_tokens_field="max_tokens") if api_base is not None else None
        self._dialects = {
            reasons: OpenAIChatLM(api_key=key, base_url=url, compat=None if reasons else plain)
            for reasons in (False, True)
        }

    def complete(self, request: Request) -> Response:
        """Answer a request, trying once.

        Raises:
            lm15.LM15Error: the call failed; ``retry_after`` is the wait that the provider asked for, if any.
        """
        dialect = self._dialects[is_reasoning_model(request.model)]
        sent = dialect.build_request(
            replace(request, model=request.model.removeprefix(_OPENAI)), stream=False
        )
        headers = dict(sent.headers)
        if dialect.base_url == _OPENAI_URL:  # as OpenAI's own client does
            accounts = {"Organization": "OPENAI_ORG_ID", "Project": "OPENAI_PROJECT_ID"}
            headers |= {f"OpenAI-{k}": os.environ[v] for k, v in accounts.items() if os.environ.get(v)}
        server = urlsplit(sent.url).netloc
        try:
            reply = self._client.post(sent.url, content=sent.body, headers=headers)
        except httpx.TimeoutException as error:
            raise lm15.TimeoutError(f"no reply in time from {server}: {error}") from error
        except httpx.ConnectError as error:
            raise lm15.TransportError(f"failed to connect to {server}: {error}") from error
        except httpx.RequestError as error:
            raise lm15.TransportError(f"the connection to {server} failed: {error}") from error
        if not reply.is_success:
            failure = dialect.normalize_error(reply.status_code, reply.text)
            failure.retry_after = _retry_after_s(reply.headers)
            raise failure
        try:
            response = lm15.response_from_openai_chat(
                reply.json(), model=request.model, response_format=request.config.response_format
            )
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            # such as a gateway's error page: the next try may get through
            raise lm15.ServerError(
                f"the reply is not a chat completion: {error}; it begins with {reply.text[:200]!r}"
            ) from error
        if not (response.provider_data or {}).get("choices"):
            raise lm15.ServerError("the reply has no choices")
        return response


class PatchedLiteLLMEngine(LiteLLMEngine):
    """DSPy's LiteLLM engine with two corrections, and a key of its own."""

    key_variable: str | None = None
    """An environment variable whose key, if it has one, goes before the provider's own."""

    def complete(self, request: Request) -> Response:
        """Keep the provider's Retry-After, which LiteLLM stores where DSPy does not look."""
        try:
            return super().complete(request)
        except ProviderError as error:
            if error.retry_after is None:
                headers = getattr(error.__cause__, "litellm_response_headers", None) or {}
                error.retry_after = _retry_after_s(headers)
            raise

    def _arguments(self, request: Request, *, streaming: bool = False) -> dict[str, Any]:  # Any: JSON
        """Send the token limit under the name that every server knows: see ``ChatCompletionsEngine``."""
        arguments = super()._arguments(request, streaming=streaming)
        if self.client_options.get("api_base") and not is_reasoning_model(request.model):
            arguments["max_tokens"] = arguments.pop("max_completion_tokens", None)
        if read_key(self.key_variable):
            arguments["api_key"] = read_key(self.key_variable)
        return arguments


def read_key(variable: str | None) -> str:
    """Read a key from the environment; empty if it has none."""
    return os.environ.get(variable or "", "").strip()


def is_openai(name: str) -> bool:
    """Tell if a model is called without LiteLLM."""
    return name.startswith(_OPENAI) or is_vllm(name)


@functools.cache
def is_reasoning_model(name: str) -> bool:
    """Tell if DSPy counts a model as a reasoning one: it names their token limit differently."""
    return "max_completion_tokens" in dspy.LM(name).kwargs


@functools.cache
def import_litellm() -> ModuleType:
    """Import LiteLLM (6 s, so only once a model needs it) without network, telemetry or advertising."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # read while it is imported
    module = importlib.import_module("litellm")
    vars(module).update(telemetry=False, suppress_debug_info=True)
    # errors are raised; when logged they may contain keys
    logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)
    return module


def openai_url() -> str:
    """Give the address of OpenAI, or the one that the environment has in its place."""
    return os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE") or _OPENAI_URL


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Read a Retry-After header, in seconds or as a date; None if it is missing or makes no sense."""
    said = headers.get("retry-after", "")
    try:
        seconds = float(said)
    except ValueError:
        try:
            until = parsedate_to_datetime(said)
        except ValueError:
            return None
        seconds = max(0.0, (until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _proxy_url(url: str) -> str | None:
    """Return the environment's proxy for an address; None if there is none.

    Raises:
        ModelError: the proxy does not speak HTTP.
    """
    address = urlsplit(url)
    if address.hostname is None or proxy_bypass(address.hostname):
        return None
    proxies = getproxies()
    proxy = proxies.get(address.scheme) or proxies.get("all")
    if not proxy:
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"  # as other clients read it
    scheme, host = urlsplit(proxy).scheme, urlsplit(proxy).hostname
    if scheme != "http" or not host:
        raise ModelError(
            f"the environment's proxy at {host!r} is one for {scheme!r}, expected 'http': set "
            f"{address.scheme.upper()}_PROXY to http://HOST:PORT, or bypass it: NO_PROXY={address.hostname}"
        )
    return proxy
