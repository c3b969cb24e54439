"""Makes a ``dspy.LM`` from a model's name: a model in this process, or one behind an address.

Names are LiteLLM's, ``provider/model``. In this process run ``local:PATH_OR_HUB_ID`` and the embedded models
``pocket`` and ``pocket-base``. Keys come from the environment, under the providers' own variable names; none
is taken as an argument, saved or shown. A model that cannot be used as named is an error before the first
call, and is never replaced by another model.
"""

import logging
import os
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import dspy
from dspy.lm15 import Config, Message, Request
from dspy.utils.exceptions import LMError

from memory_program.core.errors import ConfigError, ModelError
from memory_program.core.extras import name_missing_extra
from memory_program.core.settings import holds_secret, is_server_address
from memory_program.inference.vllm_server import serve_model
from memory_program.models.batch_api import make_batch_api
from memory_program.models.batch_queue import MAX_BATCH_CALLS, BatchedEngine, BatchQueue
from memory_program.models.http_engine import (
    NO_KEY,
    ChatCompletionsEngine,
    is_openai,
    is_reasoning_model,
    read_key,
)
from memory_program.models.litellm_engine import PatchedLiteLLMEngine, import_litellm
from memory_program.models.model_names import (
    has_batch_api,
    is_bundled,
    is_local,
    is_vllm,
    model_source,
    openai_url,
    own_server,
    runs_here,
)
from memory_program.models.name_hints import name_hint, suggest_name
from memory_program.models.rate_limit import AdaptiveLimiter, RateLimitedEngine, RetryPolicy
from memory_program.models.reply_settings import thinking_tokens

__all__ = [
    "AdaptiveLimiter",
    "RemoteModel",
    "check_model",
    "language_model",
    "missing_keys",
    "takes_chat_template",
]

_MIN_REASONING_TOKENS = 16_000  # DSPy refuses a lower limit for reasoning models: their thoughts count too
_MODEL_NAME_HELP = (
    "a name looks like 'openai/gpt-4.1-mini' or 'anthropic/claude-sonnet-4-5' "
    "(https://docs.litellm.ai/docs/providers); for a server of your own use 'openai/NAME' and its address, "
    "api_base; for a model in this process 'local:' and its folder or its id on the Hugging Face hub, for "
    "one in a vLLM server that is started for it 'vllm:' and the same; for the embedded model 'pocket'"
)
_POCKET_TOKENS = 128  # the longest correct reply in twelve long worlds has 91; beyond, it only repeats itself

_CHECK_TOKENS = 16
_OTHER_KEYS = {
    "azure": ("AZURE_OPENAI_API_KEY", "AZURE_AD_TOKEN"),
    "cohere": ("CO_API_KEY",),
    "huggingface": ("HF_TOKEN",),
    "openrouter": ("OR_API_KEY",),
    "perplexity": ("PERPLEXITY_API_KEY",),
    "replicate": ("REPLICATE_API_TOKEN",),
    "together_ai": ("TOGETHER_API_KEY", "TOGETHER_AI_API_KEY", "TOGETHER_AI_TOKEN"),
}
"""Variables that LiteLLM takes a provider's key from, and does not list."""

_SLOW_WARNING_AFTER_S = 10.0
_SLOW_WARNING = "%r%s has not answered yet; it becomes an error after a minute or two of tries"

_logger = logging.getLogger(__name__)


def language_model(
    name: str,
    *,
    api_base: str | None = None,
    key_variable: str | None = None,
    temperature: float = 0.0,
    max_tokens: int = 4096,
    timeout_s: float = 120.0,
    max_retries: int = 6,
    first_wait_s: float = 1.0,
    limiter: AdaptiveLimiter | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,  # Any: JSON
    batches: BatchQueue | None = None,
) -> dspy.LM:
    """Make the language model of a name.

    Reasoning models (``openai/gpt-5`` and the o-series) have a fixed temperature and think within
    ``max_tokens``: for them the temperature is not sent, and neither is a limit under 16,000. A model in this
    process has no address, timeout or retries.

    Args:
        name: LiteLLM's ``provider/model``; or ``pocket``, ``pocket-base``, or ``local:`` and a folder or hub
            id. Each call of this function loads a local model again. ``vllm:`` and a folder or hub id starts
            a vLLM server, once a process (see ``inference.vllm_server``).
        api_base: the address of a server that is OpenAI-compatible, or speaks the provider's own protocol.
            With it no key is needed; the provider's key is sent if the environment has one.
        key_variable: an environment variable whose key, if it has one, goes before the provider's own.
        temperature: sampling temperature, from 0 to 2.
        max_tokens: the most tokens of one reply.
        timeout_s: the longest silence of the server in seconds; it grows with the prompt and ``max_tokens``.
        max_retries: tries after the first; ``RetryPolicy`` says after which errors.
        first_wait_s: the longest wait before the second try; it doubles from try to try.
        limiter: shared by all models under one rate limit. None allows eight calls at once, or as many as a
            model in this process batches.
        chat_template_kwargs: arguments of the model's chat template, such as ``{"enable_thinking": False}``.
        batches: sends the calls through the provider's batch API, for half the price; a call may then take
            24 hours, and ``limiter`` limits direct calls only.

    Raises:
        ConfigError: a number is out of range, or the provider has no batch API.
        ModelError: the provider is unknown, its key is missing, or the model cannot be loaded.
    """
    if not 0 <= temperature <= 2:
        raise ConfigError(f"temperature={temperature!r} must be from 0 to 2")
    if max_tokens < 1:
        raise ConfigError(f"max_tokens={max_tokens!r} must be at least 1")
    if batches is not None and not has_batch_api(name):
        raise ConfigError(f"{name!r} has no batch API: choose a model of openai/ or anthropic/")
    if runs_here(name):
        name = name.rstrip("/")
        if not model_source(name):
            raise ModelError(f"{name!r} names no model: {_MODEL_NAME_HELP}")
    if is_local(name):
        return _local_language_model(name, temperature, max_tokens, limiter, chat_template_kwargs)
    if is_vllm(name):
        api_base = serve_model(name, model_source(name))
    engine = RemoteModel(
        name,
        api_base=api_base,
        key_variable=key_variable,
        timeout_s=timeout_s,
        retries=RetryPolicy(max_retries, first_wait_s),
        limiter=limiter or AdaptiveLimiter(8),
        chat_template_kwargs=chat_template_kwargs,
        batches=batches,
    )
    reasons = is_reasoning_model(name)
    if reasons:
        _logger.warning(
            "%s is a reasoning model: it runs at its own temperature, not at %g", name, temperature
        )
    has_room = not reasons or max_tokens >= _MIN_REASONING_TOKENS
    return dspy.LM(
        name,
        engine=engine,
        temperature=None if reasons else temperature,
        max_tokens=max_tokens if has_room else None,
        num_retries=0,  # the engine retries, and counts it
        cache=False,
    )


def takes_chat_template(name: str, api_base: str | None) -> bool:
    """Tell if arguments of the chat template are sent to a model.

    They are sent to models on this machine, to servers with an address, and to hosted models whose thoughts
    they switch off: other hosted APIs have no such argument.
    """
    can_be_off = thinking_tokens(name, {}) > thinking_tokens(name, {"enable_thinking": False})
    return runs_here(name) or bool(own_server(name, api_base)) or can_be_off


def _local_language_model(
    name: str,
    temperature: float,
    max_tokens: int,
    limiter: AdaptiveLimiter | None,
    chat_template_kwargs: Mapping[str, Any] | None,  # Any: JSON
) -> dspy.LM:
    with name_missing_extra():  # torch takes seconds to import, and an API model does without
        from memory_program.inference.engine import LocalSettings
        from memory_program.models.local_model import LocalModel

    return dspy.LM(
        name,
        engine=LocalModel(LocalSettings(source=model_source(name)), limiter, chat_template_kwargs),
        temperature=temperature,
        max_tokens=min(max_tokens, _POCKET_TOKENS) if is_bundled(name) else max_tokens,
        num_retries=0,
        cache=False,
    )


def check_model(lm: dspy.LM, tries: int = 1) -> None:
    """Make one small call, so that a model that does not answer fails before a run and not once per item.

    Call it before an optimiser too: optimisers swallow failed calls and still return a program. With two
    ``tries``, one unusable reply in a hundred does not stop a run.

    Raises:
        ModelError: each call failed, after the retries that its policy allows.
    """
    for _ in range(tries - 1):
        try:
            return _call_once(lm)
        except ModelError:
            pass
    _call_once(lm)


def _call_once(lm: dspy.LM) -> None:
    api_base = getattr(lm.engine, "api_base", None)
    place = f" at {api_base}" if api_base else ""
    slow_warning = threading.Timer(_SLOW_WARNING_AFTER_S, _logger.warning, (_SLOW_WARNING, lm.model, place))
    slow_warning.daemon = True
    if not is_local(lm.model):
        slow_warning.start()
    try:
        # with the parameters of the run, since a model may refuse one; a weak model may not know when to stop
        thinks = not is_local(lm.model) and is_reasoning_model(lm.model)
        limit = lm.kwargs.get("max_completion_tokens") if thinks else _CHECK_TOKENS
        config = Config(max_tokens=limit, temperature=lm.kwargs.get("temperature"))
        lm(Request(model=lm.model, messages=(Message.user("Answer with the word: ready"),), config=config))
    except LMError as error:
        raise ModelError(f"{lm.model!r}{place} does not answer: {error}") from error
    finally:
        slow_warning.cancel()


class RemoteModel(RateLimitedEngine):
    """A model over HTTP; saved and sent to other processes by its settings, never with a key."""

    supports_function_calling = True  # DSPy asks; tools are sent only by --reply-format tools

    def __init__(
        self,
        name: str,
        *,
        api_base: str | None,
        key_variable: str | None = None,
        timeout_s: float,
        retries: RetryPolicy,
        limiter: AdaptiveLimiter,
        chat_template_kwargs: Mapping[str, Any] | None = None,  # Any: JSON
        batches: BatchQueue | None = None,
    ) -> None:
        """Check that the model can be used as named, and prepare to call it.

        Raises:
            ConfigError: the timeout is not positive.
            ModelError: the name, the address or the provider is invalid, or its key is missing.
        """
        if timeout_s <= 0:
            raise ConfigError(f"timeout_s={timeout_s!r} must be positive")
        provider, slash, rest = name.partition("/")
        if not name.strip() or (slash and not (provider and rest)):
            raise ModelError(f"{name!r} is not the name of a model: {_MODEL_NAME_HELP}")
        url = openai_url() if api_base is None and is_openai(name) else api_base
        if url is not None:
            source = "OPENAI_BASE_URL" if api_base is None else "api_base"
            is_address = is_server_address(url)
            if holds_secret(url):
                place = f" at {urlsplit(url).hostname!r}" if is_address else ""
                raise ModelError(
                    f"{source}{place} holds a password or a key: leave it out, keys come from the environment"
                )
            if not is_address or (is_openai(name) and urlsplit(url).query):
                raise ModelError(
                    f"{source}={url!r} is not an address: one looks like 'http://127.0.0.1:8000/v1'"
                )
        if not slash and not is_vllm(name):
            raise ModelError(_no_provider(name))
        missing = missing_keys(name)
        if read_key(key_variable):
            missing = []
        server = own_server(name, api_base)
        if missing and server is None:
            named = missing if key_variable is None else [*missing, key_variable]
            raise ModelError(
                f"{name!r} needs a key: set {' or '.join(named)} in the environment, or give the address "
                "(api_base) of a server of your own that needs none"
            )
        if is_openai(name):
            engine = ChatCompletionsEngine(
                server, key_variable=key_variable, timeout_s=timeout_s, connections=limiter.limit
            )
        else:
            key = {"api_key": NO_KEY} if missing else {}
            engine = PatchedLiteLLMEngine(api_base=api_base, **key)
            engine.key_variable, engine.timeout_s = key_variable, timeout_s
        self._concurrency = limiter.limit
        if batches is not None:
            engine = BatchedEngine(engine, make_batch_api(name, api_base, key_variable), batches, limiter)
            limiter = AdaptiveLimiter(MAX_BATCH_CALLS)
        super().__init__(
            engine, limiter, retries, api_base=api_base, chat_template_kwargs=chat_template_kwargs
        )
        self.name = name
        self.key_variable = key_variable
        self.timeout_s = timeout_s

    def dump_state(self) -> dict[str, Any]:  # Any: a JSON object, as DSPy saves engines
        """Return the settings as JSON."""
        return {
            "name": self.name,
            "api_base": self.api_base,
            "key_variable": self.key_variable,
            "timeout_s": self.timeout_s,
            "retries": {field: getattr(self.retries, field) for field in self.retries.__slots__},
            "concurrency": self._concurrency,
            "chat_template_kwargs": self.chat_template_kwargs,
        }

    @classmethod
    def load_state(cls, state: dict[str, Any]) -> "RemoteModel":  # Any: see dump_state
        """Make the engine that ``dump_state`` described, with a limiter of its own."""
        return cls(
            state["name"],
            api_base=state["api_base"],
            key_variable=state.get("key_variable"),
            timeout_s=state["timeout_s"],
            retries=RetryPolicy(**state["retries"]),
            limiter=AdaptiveLimiter(state["concurrency"]),
            chat_template_kwargs=state.get("chat_template_kwargs"),
        )

    def __reduce__(self) -> tuple[Any, ...]:  # Any: pickle's protocol
        return RemoteModel.load_state, (self.dump_state(),)

    def __repr__(self) -> str:
        return f"RemoteModel({self.name!r}, api_base={self.api_base!r})"


def _no_provider(name: str) -> str:
    suggested, key = suggest_name(name) if "/" not in name else None, ""
    missing = missing_keys(suggested) if suggested is not None else []
    if missing:
        key = f" (it needs a key: set {' or '.join(missing)} in the environment)"
    return f"{name!r} names no provider that LiteLLM knows: {name_hint(name)}{key}; {_MODEL_NAME_HELP}"


def missing_keys(name: str) -> list[str]:
    """List the variables of keys that a model needs and the environment lacks.

    Raises:
        ModelError: LiteLLM does not know the provider.
    """
    variable = "OPENAI_API_KEY"
    if not is_openai(name):
        litellm = import_litellm()
        try:
            provider: str = litellm.get_llm_provider(model=name)[1]
        except litellm.BadRequestError:
            raise ModelError(_no_provider(name)) from None
        # Clouds with accounts (AWS, Google) find their credentials themselves: only keys are checked. If one
        # variable of Azure is missing, such as its address, LiteLLM lists all of them.
        known = litellm.validate_environment(model=name)["missing_keys"]
        listed = [variable for variable in known if variable.endswith(("_API_KEY", "_API_TOKEN"))]
        others = _OTHER_KEYS.get(provider, ())
        if listed:
            return [] if any(map(read_key, (*listed, *others))) else [*listed, *others[:1]]
        variable = f"{provider.upper()}_API_KEY"
    elif variable not in os.environ:
        return [variable]
    is_empty = variable in os.environ and not read_key(variable)
    return [variable] if is_empty else []
