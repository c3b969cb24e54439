"""What turns one request into one reply over HTTP, trying once: two engines by DSPy 3.4's contract.

OpenAI's chat completions, which most servers of one's own speak too, go through the HTTP client that DSPy
carries: about a tenth of LiteLLM's processor time a call, and no import of LiteLLM. Every other provider is
reached through LiteLLM. Keys are read from the environment when a request is sent, and kept nowhere.
"""

import functools
import importlib
import logging
import os
from dataclasses import replace
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import dspy
from dspy import lm15
from dspy._vendor.lm15.transports import StdlibTransport  # dspy.lm15 re-exports all but this
from dspy.clients._http import retry_after_seconds
from dspy.clients.engines.litellm_engine import LiteLLMEngine
from dspy.lm15 import OpenAIChatCompat, OpenAIChatLM, ProviderError, Request, Response

from memory_program.core.errors import ModelError

NO_KEY = "no-key"
"""Sent to servers of one's own that need none."""

_OPENAI = "openai/"
_OPENAI_URL = "https://api.openai.com/v1"
_CONNECT_TIMEOUT_S = 10.0  # a host that does not answer for so long is down


def make_remote_engine(
    name: str, api_base: str | None, *, timeout_s: float, connections: int, lacks_key: bool
) -> "ChatCompletionsEngine | PatchedLiteLLMEngine":
    """Choose the engine that reaches a model.

    Args:
        name: LiteLLM's ``provider/model``.
        api_base: the address of a server; None is the provider's own.
        timeout_s: seconds without a byte until a try counts as failed.
        connections: calls that run at once at most.
        lacks_key: whether the environment has no key for the provider.
    """
    if name.startswith(_OPENAI):
        return ChatCompletionsEngine(api_base, timeout_s=timeout_s, connections=connections)
    key = {"api_key": NO_KEY} if lacks_key else {}
    return PatchedLiteLLMEngine(api_base=api_base, timeout=timeout_s, **key)


class ChatCompletionsEngine:
    """OpenAI's chat completions, there or at an address of one's own, over connections that are kept alive.

    Any thread may call. Proxies are those that the environment names (HTTPS_PROXY, NO_PROXY) when it is made.
    """

    def __init__(self, api_base: str | None, *, timeout_s: float, connections: int) -> None:
        """Prepare; nothing is connected before the first call.

        Raises:
            ModelError: the environment names a proxy that is none for HTTP.
        """
        url = api_base or openai_url()
        transport = StdlibTransport(
            connect_timeout=min(timeout_s, _CONNECT_TIMEOUT_S),
            read_timeout=timeout_s,
            write_timeout=timeout_s,
            pool_timeout=None,  # callers wait for their turn before they come here
            max_connections=connections,
            proxy=_proxy_url(url),
            trust_env=False,  # it would go through the whole environment for every call
        )
        is_own = api_base is not None
        self._client = {
            reasons: _ChatClient(
                api_key=_openai_key,
                base_url=url,
                transport=transport,
                # Servers of one's own may ignore ``max_completion_tokens`` without a word, and a reply then
                # runs until the context is full; models that reason know no other name.
                compat=OpenAIChatCompat(max_tokens_field="max_tokens") if is_own and not reasons else None,
            )
            for reasons in (False, True)
        }

    def complete(self, request: Request) -> Response:
        """Answer a request.

        Raises:
            lm15.LM15Error: the call failed; ``retry_after`` is what the provider asked for, if it did.
        """
        client = self._client[is_reasoning_model(request.model)]
        try:
            response = client.complete(replace(request, model=request.model.removeprefix(_OPENAI)))
        except lm15.TransportError as error:
            if _is_timeout(error):
                raise lm15.TimeoutError(error.message) from error
            raise
        except ProviderError as error:
            if error.status == 200:  # a page of a gateway's, say: the next try may get through
                raise lm15.ServerError(error.message, status=200, provider=error.provider) from error
            raise
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise lm15.ServerError(f"the reply is not a chat completion: {error}") from error
        if not (response.provider_data or {}).get("choices"):
            raise lm15.ServerError("the reply has no choices")
        return response


class _ChatClient(OpenAIChatLM):
    """DSPy's client, which says whose account is to be charged as OpenAI's own client does."""

    def _headers(self) -> dict[str, str]:
        headers = super()._headers()
        if self.base_url == _OPENAI_URL:
            for name, variable in (("Organization", "OPENAI_ORG_ID"), ("Project", "OPENAI_PROJECT_ID")):
                if os.environ.get(variable):
                    headers[f"OpenAI-{name}"] = os.environ[variable]
        return headers


class PatchedLiteLLMEngine(LiteLLMEngine):
    """DSPy's LiteLLM engine, mended in two places."""

    def complete(self, request: Request) -> Response:
        """Keep the provider's Retry-After, which LiteLLM stores where DSPy does not look."""
        try:
            return super().complete(request)
        except ProviderError as error:
            if error.retry_after is None:
                headers = getattr(error.__cause__, "litellm_response_headers", None) or {}
                error.retry_after = retry_after_seconds(headers.get("retry-after"))
            raise

    def _arguments(self, request: Request, *, streaming: bool = False) -> dict[str, Any]:  # Any: JSON
        """Call the token limit by the name that every server knows: see ``ChatCompletionsEngine``."""
        arguments = super()._arguments(request, streaming=streaming)
        if self.client_options.get("api_base") and not is_reasoning_model(request.model):
            arguments["max_tokens"] = arguments.pop("max_completion_tokens", None)
        return arguments


def is_openai(name: str) -> bool:
    """Whether a model is called without LiteLLM."""
    return name.startswith(_OPENAI)


@functools.cache
def is_reasoning_model(name: str) -> bool:
    """Whether DSPy counts a model among those that reason: it names their token limit differently."""
    return "max_completion_tokens" in dspy.LM(name).kwargs


@functools.cache
def import_litellm() -> ModuleType:
    """Import LiteLLM (6 s, so only once a model needs it), with no network, telemetry or advertising."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # read while it is imported
    module = importlib.import_module("litellm")
    vars(module).update(telemetry=False, suppress_debug_info=True)
    logging.getLogger("LiteLLM").setLevel(
        logging.CRITICAL
    )  # errors are raised, and may tell keys when logged
    return module


def _openai_key() -> str:
    return os.environ.get("OPENAI_API_KEY", "").strip() or NO_KEY


def openai_url() -> str:
    """Give the address of OpenAI, or the one that the environment has in its place."""
    return os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE") or _OPENAI_URL


def _proxy_url(url: str) -> str | None:
    """Name the proxy by which the environment wants an address reached; None if there is none.

    Raises:
        ModelError: it is none for HTTP.
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
            f"{address.scheme.upper()}_PROXY to http://HOST:PORT, or do without: NO_PROXY={address.hostname}"
        )
    return proxy


def _is_timeout(error: BaseException) -> bool:
    cause = error.__cause__  # the transport's own error, and under it the socket's
    return cause is not None and isinstance(cause.__cause__, TimeoutError)
