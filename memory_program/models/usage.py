"""Usage of model calls: tokens, dollars and seconds.

``models.rate_limit`` writes a ``CallRecord`` of every call to each meter that is open where the call was
made. Prices are LiteLLM's list prices, read from the file in its package: importing LiteLLM takes
6 s, reading the file 0.1 s.
"""

import json
import logging
import re
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from memory_program.core.errors import ConfigError
from memory_program.models.model_names import own_server, runs_here

_logger = logging.getLogger(__name__)
BATCH_PRICE_SHARE = 0.5
"""The price of a batched call, as a share of the list price: OpenAI and Anthropic charge half of it."""

_PRICE_FILE = "model_prices_and_context_window_backup.json"


@dataclass(frozen=True, slots=True)
class Price:
    """List price in US dollars per token, without tiers for long prompts, batches or priorities."""

    input_usd: float
    cached_usd: float
    output_usd: float

    def cost_usd(self, input_tokens: int, cached_tokens: int, output_tokens: int) -> float:
        """Price a call whose ``input_tokens`` include the ``cached_tokens``."""
        fresh_tokens = input_tokens - cached_tokens
        return (
            fresh_tokens * self.input_usd + cached_tokens * self.cached_usd + output_tokens * self.output_usd
        )

    def saved_usd(self, cached_tokens: int) -> float:
        """Return what the prompt cache saved, in USD."""
        return cached_tokens * (self.input_usd - self.cached_usd)


@dataclass(frozen=True, slots=True)
class Usage:
    """Totals over some calls; ``+`` adds two, and ``Usage()`` is the zero.

    ``calls`` counts the program's calls, ``retries`` the tries beyond the first, ``failed_calls`` the calls
    that ended in an error after all tries. ``input_tokens`` include ``cached_tokens``. ``seconds`` is the
    summed time of the tries, without waits for a slot or for a rate limit.

    ``saved_usd`` is what the provider's prompt cache saved. ``cost_usd`` is None, never 0, if a call has no
    known price; ``unpriced_calls`` counts those. A server that reports no usage adds no tokens, and its calls
    are unpriced. A failed try is not priced.
    """

    calls: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0.0
    seconds: float = 0.0
    retries: int = 0
    failed_calls: int = 0
    unpriced_calls: int = 0
    saved_usd: float = 0.0

    def __add__(self, other: "Usage") -> "Usage":
        sums: dict[str, Any] = {}  # Any: whole numbers and dollars
        for name in self.__slots__:
            left, right = getattr(self, name), getattr(other, name)
            sums[name] = None if left is None or right is None else left + right
        return Usage(**sums)


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call of the program, over all its tries.

    ``finish_reason`` is the model's own reason for stopping (``length``: the reply was cut). It is None when
    the call failed; then ``error`` says why. ``is_repetitive``: the reply repeats itself, and was stopped for
    it or ran on to its limit.
    """

    model: str
    usage: Usage
    finish_reason: str | None = None
    error: str | None = None
    is_repetitive: bool = False

    @property
    def is_truncated(self) -> bool:
        """True if the reply stopped at the token limit."""
        return is_cut(self.finish_reason)


_CUT = re.compile(r"length|max_(?:\w+_)?tokens|token_limit|context_window", re.IGNORECASE)


def is_cut(finish_reason: str | None) -> bool:
    """Tell if a reply ended at a limit of tokens, in the words of any provider.

    Example:
        >>> is_cut("length"), is_cut("FinishReason.MAX_TOKENS"), is_cut("eos_token")
        (True, True, False)
    """
    return finish_reason is not None and _CUT.search(finish_reason) is not None


@dataclass(frozen=True, slots=True)
class UsageMeter:
    """The calls made while it was open, in the order in which they ended."""

    calls: list[CallRecord] = field(default_factory=list[CallRecord])
    on_call: Callable[[CallRecord], None] | None = None
    """Called with each call as it ends, in the thread that made it."""

    @property
    def usage(self) -> Usage:
        """The sum over the calls so far."""
        return sum((call.usage for call in tuple(self.calls)), Usage())


_open_meters: ContextVar[tuple[UsageMeter, ...]] = ContextVar("open_meters", default=())


@contextmanager
def track_usage(on_call: Callable[[CallRecord], None] | None = None) -> Generator[UsageMeter]:
    """Record every model call made inside the block, also in threads that run in a copy of this context.

    Meters nest: the inner one sees only its own calls, the outer one all of them. ``on_call`` is called with
    each call as it ends, in the thread that made it.

    Example:
        >>> with track_usage() as whole:
        ...     with track_usage() as part:
        ...         record_call(CallRecord("openai/gpt-4.1-mini", Usage(calls=1)))
        ...     record_call(CallRecord("openai/gpt-4.1-mini", Usage(calls=1)))
        >>> part.usage.calls, whole.usage.calls
        (1, 2)
    """
    meter = UsageMeter(on_call=on_call)
    token = _open_meters.set((*_open_meters.get(), meter))
    try:
        yield meter
    finally:
        _open_meters.reset(token)


def record_call(record: CallRecord) -> None:
    """Write a call to every meter that is open in this context."""
    for meter in _open_meters.get():
        meter.calls.append(record)
        if meter.on_call is not None:
            meter.on_call(record)


def list_price(model: str, *, api_base: str | None = None) -> Price | None:
    """Look up a model's list price in LiteLLM's price file; a model on this machine is free.

    Return None when the price is unknown: the model is not listed, it is at a server that is not the
    provider's, or it is listed at zero (LiteLLM writes zero for subscriptions, previews and self-hosted
    models; none of them is free).
    """
    if runs_here(model):
        return Price(0.0, 0.0, 0.0)
    if own_server(model, api_base) is not None:
        return None
    provider, slash, bare_name = model.partition("/")
    prices = _price_list()
    if model in prices:
        return prices[model][1]
    listed_provider, price = prices.get(bare_name, ("", None))
    # LiteLLM lists some providers by their API: bedrock_converse, vertex_ai-language-models
    is_same = re.match(rf"{re.escape(provider)}(?![a-z\d])", listed_provider)
    return price if slash and is_same else None


def check_max_cost(max_cost: float | None, models: Iterable[tuple[str, str | None]]) -> None:
    """Refuse a limit in dollars for models without a price.

    Args:
        max_cost: the limit in USD; None is no limit.
        models: the name of each model that is called, and its ``api_base``.

    Raises:
        ConfigError: there is a limit, and a model has no known price.
    """
    if max_cost is None:
        return
    unpriced = sorted({model for model, api_base in models if list_price(model, api_base=api_base) is None})
    if unpriced:
        raise ConfigError(
            f"max_cost={max_cost!r} cannot be enforced: as called here, {', '.join(unpriced)} has no "
            "known price; leave --max-cost out and give --max-calls, or choose a model with a list price"
        )


def estimate_cost(
    model: str, calls: int, input_tokens: float, output_tokens: float, *, api_base: str | None = None
) -> float | None:
    """Estimate the cost of ``calls`` calls in USD from the mean tokens of one; None without a price."""
    price = list_price(model, api_base=api_base)
    return (
        None if price is None else calls * (input_tokens * price.input_usd + output_tokens * price.output_usd)
    )


def takes_sampling_parameters(model: str) -> bool:
    """Tell if a model takes a temperature, as far as LiteLLM's list of models knows."""
    names = (model, model.partition("/")[2])
    entry = next((listed_models()[name] for name in names if name in listed_models()), {})
    return entry.get("supports_sampling_params") is not False


@cache
def listed_models() -> dict[str, dict[str, Any]]:
    """Read LiteLLM's list of models: provider, prices and abilities by name."""
    package = find_spec("litellm")
    folder = Path(package.origin).parent if package is not None and package.origin else Path()
    try:
        return json.loads((folder / _PRICE_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        _logger.warning("LiteLLM's %s is missing from its package: every price is unknown", _PRICE_FILE)
        return {}


@cache
def _price_list() -> dict[str, tuple[str, Price]]:
    """Take the providers and prices from the list of models."""
    prices: dict[str, tuple[str, Price]] = {}
    for name, entry in listed_models().items():
        input_usd, output_usd = entry.get("input_cost_per_token"), entry.get("output_cost_per_token")
        if input_usd is None or output_usd is None or input_usd == output_usd == 0:
            continue
        cached_usd = entry.get("cache_read_input_token_cost")
        price = Price(input_usd, input_usd if cached_usd is None else cached_usd, output_usd)
        prices[name] = (entry.get("litellm_provider", ""), price)
    return prices


@contextmanager
def silence_truncation_warnings() -> Generator[None]:
    """Silence DSPy's warnings of truncated replies: here they are recorded, counted and reported."""

    def is_wanted(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("LM response was truncated")

    dspy_logger = logging.getLogger("dspy.clients.lm")
    dspy_logger.addFilter(is_wanted)
    try:
        yield
    finally:
        dspy_logger.removeFilter(is_wanted)
