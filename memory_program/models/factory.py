"""A model's name -> a ``dspy.LM``: one in this process, or any that is reached over HTTP, on the meter.

Names are LiteLLM's, ``provider/model``; in this process run ``local:PATH_OR_HUB_ID``, and ``pocket`` and
``pocket-base``, the embedded model and one that overlooks most small things. Keys come from the
environment, under the names that the providers give them; none is ever taken as an argument, saved or shown.
A model that cannot be used as named is an error before the first call, and never becomes another model.
"""

import logging
import os
import threading
from typing import Any
from urllib.parse import urlsplit

import dspy
from dspy.lm15 import Config, Message, Request
from dspy.utils.exceptions import LMError

from memory_program.core.errors import ConfigError, ModelError
from memory_program.core.extras import name_missing_extra
from memory_program.models.http_engine import (
    import_litellm,
    is_openai,
    is_reasoning_model,
    make_remote_engine,
    openai_url,
)
from memory_program.models.model_names import is_bundled, is_local, model_source
from memory_program.models.rate_limit import AdaptiveLimiter, RateLimitedEngine, RetryPolicy

__all__ = ["AdaptiveLimiter", "RemoteModel", "check_model", "language_model"]

_MIN_REASONING_TOKENS = 16_000  # DSPy refuses reasoning models a limit below: their thoughts count too
_MODEL_NAME_HELP = (
    "a name looks like 'openai/gpt-4.1-mini' or 'anthropic/claude-sonnet-4-5' "
    "(https://docs.litellm.ai/docs/providers); for a server of your own give 'openai/NAME' and its address, "
    "api_base; for a model in this process 'local:' and its folder or its id on the Hugging Face hub; for "
    "the embedded model 'pocket'"
)
_POCKET_TOKENS = 128  # the longest right reply in twelve long worlds has 91: beyond, it only repeats itself

_SLOW_WARNING_AFTER_S = 10.0
_SLOW_WARNING = "%r%s has not answered yet; it is asked for a minute or two before that is an error"

_logger = logging.getLogger(__name__)


def language_model(
    name: str,
    *,
    api_base: str | None = None,
    temperature: float = 0.0,
    max_tokens: int = 4096,
    timeout_s: float = 120.0,
    max_retries: int = 6,
    first_wait_s: float = 1.0,
    limiter: AdaptiveLimiter | None = None,
) -> dspy.LM:
    """Make the language model of a name.

    Models that reason (``openai/gpt-5`` and the o-series) fix their temperature and think within
    ``max_tokens``: for them the temperature is left out, and a limit under 16,000 too. A model in this
    process has no address, and nothing to wait for or to try again.

    Args:
        name: LiteLLM's ``provider/model``; or ``pocket``, ``pocket-base``, or ``local:`` and a folder or
            hub id, for a model that is loaded into this process and shares nothing with another one of the
            same name.
        api_base: the address of an OpenAI-compatible (or the provider's own kind of) server. With it a key
            is sent if the environment has one for the provider, and none is needed.
        temperature: of sampling, from 0 to 2.
        max_tokens: the most tokens of one reply.
        timeout_s: seconds without a byte from the server until a try counts as failed.
        max_retries: tries after the first; ``RetryPolicy`` says after which errors.
        first_wait_s: the longest wait before the second try; it doubles from try to try.
        limiter: shared by all models under one rate limit; None lets eight calls run at once, and of a
            model in this process as many as it batches.

    Raises:
        ConfigError: a number is out of range.
        ModelError: no such provider, no key for it, or a kind of model that this version does not have.
    """
    if not 0 <= temperature <= 2:
        raise ConfigError(f"temperature={temperature!r} must be from 0 to 2")
    if max_tokens < 1:
        raise ConfigError(f"max_tokens={max_tokens!r} must be at least 1")
    if is_local(name):
        return _local_model(name.rstrip("/"), temperature, max_tokens, limiter)
    engine = RemoteModel(
        name,
        api_base=api_base,
        timeout_s=timeout_s,
        retries=RetryPolicy(max_retries, first_wait_s),
        limiter=limiter or AdaptiveLimiter(8),
    )
    reasons = is_reasoning_model(name)
    if reasons:
        _logger.warning("%s reasons: it runs at its own temperature, not at %g", name, temperature)
    has_room = not reasons or max_tokens >= _MIN_REASONING_TOKENS
    return dspy.LM(
        name,
        engine=engine,
        temperature=None if reasons else temperature,
        max_tokens=max_tokens if has_room else None,
        num_retries=0,  # the engine retries, and counts it
        cache=False,
    )


def _local_model(name: str, temperature: float, max_tokens: int, limiter: AdaptiveLimiter | None) -> dspy.LM:
    source = model_source(name)
    if is_bundled(name):
        max_tokens = min(max_tokens, _POCKET_TOKENS)
    if not source:
        raise ModelError(f"{name!r} names no model: {_MODEL_NAME_HELP}")
    with name_missing_extra():  # torch takes seconds to import, and an API model does without
        from memory_program.inference.engine import LocalSettings
        from memory_program.models.local_model import LocalModel

    engine = LocalModel(LocalSettings(source=source), limiter)
    return dspy.LM(
        name, engine=engine, temperature=temperature, max_tokens=max_tokens, num_retries=0, cache=False
    )


def check_model(lm: dspy.LM) -> None:
    """Make one small call, so that a run does not find out item by item that its model does not answer.

    Optimisers swallow failing calls and return a program all the same; check before them too.

    Raises:
        ModelError: the call failed, after the retries that its policy allows.
    """
    patience = threading.Timer(
        _SLOW_WARNING_AFTER_S, _logger.warning, (_SLOW_WARNING, lm.model, _address_suffix(lm))
    )
    patience.daemon = True
    if not is_local(lm.model):
        patience.start()
    try:
        # one that reasons needs more tokens than a word has, one in this process may not know when to stop
        config = Config(max_tokens=16) if is_local(lm.model) else Config()
        lm(Request(model=lm.model, messages=(Message.user("Answer with the word: ready"),), config=config))
    except LMError as error:
        raise ModelError(f"{lm.model!r}{_address_suffix(lm)} does not answer: {error}") from error
    finally:
        patience.cancel()


def _address_suffix(lm: dspy.LM) -> str:
    api_base = getattr(lm.engine, "api_base", None)
    return f" at {api_base}" if api_base else ""


class RemoteModel(RateLimitedEngine):
    """One model over HTTP. Saved and sent to other processes by its settings, never with a key."""

    def __init__(
        self,
        name: str,
        *,
        api_base: str | None,
        timeout_s: float,
        retries: RetryPolicy,
        limiter: AdaptiveLimiter,
    ) -> None:
        """Check that the model can be used as named, and prepare to call it.

        Raises:
            ConfigError: the timeout is not positive.
            ModelError: no such provider, no key for it, or a kind of model that this version does not have.
        """
        if timeout_s <= 0:
            raise ConfigError(f"timeout_s={timeout_s!r} must be positive")
        _check_name(name)
        _check_address("api_base", api_base)
        if api_base is None and is_openai(name):
            _check_address("OPENAI_BASE_URL", openai_url())
        engine = make_remote_engine(
            name,
            api_base,
            timeout_s=float(timeout_s),
            connections=limiter.limit,
            lacks_key=_lacks_key(name, api_base),
        )
        super().__init__(engine, limiter, retries, api_base=api_base)
        self.name = name
        self.timeout_s = timeout_s

    def dump_state(self) -> dict[str, Any]:  # Any: a JSON object, as DSPy saves engines
        """Give the settings as JSON."""
        return {
            "name": self.name,
            "api_base": self.api_base,
            "timeout_s": self.timeout_s,
            "retries": {field: getattr(self.retries, field) for field in self.retries.__slots__},
            "concurrency": self.limiter.limit,
        }

    @classmethod
    def load_state(cls, state: dict[str, Any]) -> "RemoteModel":  # Any: see dump_state
        """Make the engine that ``dump_state`` described, with a limiter of its own."""
        return cls(
            state["name"],
            api_base=state["api_base"],
            timeout_s=state["timeout_s"],
            retries=RetryPolicy(**state["retries"]),
            limiter=AdaptiveLimiter(state["concurrency"]),
        )

    def __reduce__(self) -> tuple[Any, ...]:  # Any: pickle's protocol
        return RemoteModel.load_state, (self.dump_state(),)

    def __repr__(self) -> str:
        return f"RemoteModel({self.name!r}, api_base={self.api_base!r})"


def _check_name(name: str) -> None:
    provider, slash, rest = name.partition("/")
    if not name.strip() or (slash and not (provider and rest)):
        raise ModelError(f"{name!r} is not the name of a model: {_MODEL_NAME_HELP}")


def _check_address(name: str, url: str | None) -> None:
    if url is None:
        return
    address = urlsplit(url)
    if address.password or address.username:
        raise ModelError(
            f"{name} at {address.hostname!r} holds a password: leave it out, keys come from the environment"
        )
    if address.scheme not in ("http", "https") or not address.hostname:
        raise ModelError(f"{name}={url!r} is not an address: one looks like 'http://127.0.0.1:8000/v1'")


def _lacks_key(name: str, api_base: str | None) -> bool:
    """Whether the environment lacks the key of the model's provider.

    Raises:
        ModelError: the provider is unknown, or it lacks the key and is not a server of one's own.
    """
    missing = _missing_keys(name)
    if missing and api_base is None:
        raise ModelError(
            f"{name!r} needs a key: set {' or '.join(missing)} in the environment, or give the address "
            "(api_base) of a server of your own that needs none"
        )
    return bool(missing)


def _missing_keys(name: str) -> list[str]:
    """Name the variables of keys that a model needs and the environment lacks."""
    usual = "OPENAI_API_KEY"
    if not is_openai(name):
        known = import_litellm()
        try:
            provider: str = known.get_llm_provider(model=name)[1]
        except known.BadRequestError:
            raise ModelError(f"{name!r} names no provider that LiteLLM knows: {_MODEL_NAME_HELP}") from None
        # Clouds with accounts of their own (AWS, Google) are left to find their credentials: only keys are
        # asked.
        missing = [
            variable
            for variable in known.validate_environment(model=name)["missing_keys"]
            if variable.endswith(("_API_KEY", "_API_TOKEN"))
        ]
        if missing:
            return missing
        usual = f"{provider.upper()}_API_KEY"
    elif usual not in os.environ:
        return [usual]
    return [] if os.environ.get(usual, "(unset)").strip() else [usual]  # it may be there, but empty
