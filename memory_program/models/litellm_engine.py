"""The engine of all other providers: LiteLLM, with corrections."""

import functools
import importlib
import logging
import os
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from dspy import lm15
from dspy.clients.engines.litellm_engine import LiteLLMEngine
from dspy.lm15 import ProviderError, Request, Response

from memory_program.models.endpoint_facts import endpoint_facts
from memory_program.models.http_engine import (
    allowed_silence_s,
    certificate_error,
    check_body,
    is_reasoning_model,
    read_key,
    retry_after_s,
    untrusted_certificate,
    with_cut,
)
from memory_program.models.server_errors import (
    CONTEXT_ADVICE,
    ServerError,
    is_context,
    is_quota,
    version_hint,
)


class PatchedLiteLLMEngine(LiteLLMEngine):
    """DSPy's LiteLLM engine with corrections, and a key of its own."""

    key_variable: str | None = None
    """An environment variable whose key, if it has one, goes before the provider's own."""

    timeout_s: float = 120.0
    """The longest silence of the server; see ``allowed_silence_s``."""

    def complete(self, request: Request) -> Response:
        """Answer a request, trying once; a parameter that the model refuses is left out from then on.

        Keep the provider's Retry-After, which LiteLLM stores where DSPy does not look.
        """
        api_base = self.client_options.get("api_base")
        facts = endpoint_facts(str(api_base), request.model, is_listed=api_base is None)
        facts.can_stream = False
        while True:
            sent = facts.adapted(request)
            try:
                response = super().complete(sent)
                body = response.provider_data or {}
                check_body(body, str(api_base or request.model))
                return with_cut(response, body)
            except lm15.LM15Error as error:
                if facts.learn_refusal(error, sent, self._token_field(request.model)):
                    continue
                # the error, or one of the right kind where LiteLLM has only its words
                if isinstance(error, ProviderError) and error.retry_after is None:
                    headers = getattr(error.__cause__, "litellm_response_headers", None) or {}
                    error.retry_after = retry_after_s(headers)
                if certificate_error(error) or "CERTIFICATE_VERIFY_FAILED" in error.message:
                    place = urlsplit(str(api_base or "")).netloc or request.model
                    raise lm15.ConfigurationError(untrusted_certificate(place, error)) from error
                said = ServerError(error.message, error.provider_code or "")
                if is_quota(error.status, said, getattr(error, "retry_after", None)):
                    raise lm15.BillingError(error.message, status=error.status) from error
                # such as an empty body: the next try may get through
                if "Unable to get json response" in error.message:
                    raise lm15.ServerError(error.message, status=error.status) from error
                if is_context(error.status, said):
                    message = f"{error.message}; {CONTEXT_ADVICE}"
                    raise lm15.ContextLengthError(message, status=error.status) from error
                if error.status == 404 and api_base:
                    error.message += version_hint(str(api_base))
                raise

    def _token_field(self, model: str) -> str:
        """Name the limit of tokens as every server knows it: see ``ChatCompletionsEngine``."""
        api_base = self.client_options.get("api_base")
        is_plain = api_base is not None and not is_reasoning_model(model)
        facts = endpoint_facts(str(api_base), model, is_listed=api_base is None)
        return facts.token_field or ("max_tokens" if is_plain else "max_completion_tokens")

    def _arguments(self, request: Request, *, streaming: bool = False) -> dict[str, Any]:  # Any: JSON
        arguments = super()._arguments(request, streaming=streaming)
        limit = arguments.pop("max_completion_tokens", None)
        if limit is not None:
            arguments[self._token_field(request.model)] = limit
        if "chat_template_kwargs" in arguments:  # where every provider's client passes it on
            arguments["extra_body"] = {"chat_template_kwargs": arguments.pop("chat_template_kwargs")}
        arguments["timeout"] = allowed_silence_s(self.timeout_s, request)
        if read_key(self.key_variable):
            arguments["api_key"] = read_key(self.key_variable)
        return arguments


@functools.cache
def import_litellm() -> ModuleType:
    """Import LiteLLM (6 s, so only once a model needs it) without network, telemetry or advertising."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # read while it is imported
    module = importlib.import_module("litellm")
    vars(module).update(telemetry=False, suppress_debug_info=True)
    # errors are raised; when logged they may contain keys
    logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)
    return module
