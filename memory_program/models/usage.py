"""What model calls cost: tokens, dollars and seconds, by whatever part of the program asks.

Every paid call passes one place (``memory_program.models.rate_limit``), which writes a ``CallRecord`` to each meter
that is open where the call was made. Prices are LiteLLM's list prices, read from the file in its package,
since importing LiteLLM takes 6 s and the file 0.1 s.
"""

import json
import logging
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from memory_program.models.model_names import is_local

_logger = logging.getLogger(__name__)
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
        """Say how much dearer cached tokens would have been fresh."""
        return cached_tokens * (self.input_usd - self.cached_usd)


@dataclass(frozen=True, slots=True)
class Usage:
    """What some calls took; ``+`` adds, and ``Usage()`` is nothing.

    ``calls`` counts what the program asked for, ``retries`` the tries beyond the first, ``failed_calls``
    those calls that ended in an error after all tries. ``input_tokens`` include ``cached_tokens``.
    ``seconds`` is the time that tries took, summed; waits for a slot or for a rate limit are left out.

    ``saved_usd`` is what the cached tokens would have cost more without the provider's cache of prompts.
    ``cost_usd`` is None, never 0, as soon as one call has no known price; ``unpriced_calls`` says how many. A
    server that reports no usage adds no tokens, and its calls are unpriced. A failed try is not priced.
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

    @property
    def cached_share(self) -> float | None:
        """The share of the input tokens that came from the provider's cache; None if none were counted."""
        return self.cached_tokens / self.input_tokens if self.input_tokens else None

    def __add__(self, other: "Usage") -> "Usage":
        costs = (self.cost_usd, other.cost_usd)
        return Usage(
            calls=self.calls + other.calls,
            input_tokens=self.input_tokens + other.input_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost_usd=None if costs[0] is None or costs[1] is None else costs[0] + costs[1],
            seconds=self.seconds + other.seconds,
            retries=self.retries + other.retries,
            failed_calls=self.failed_calls + other.failed_calls,
            unpriced_calls=self.unpriced_calls + other.unpriced_calls,
            saved_usd=self.saved_usd + other.saved_usd,
        )


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call that the program made, over all its tries.

    ``finish_reason`` is the model's own word for why it stopped (``length``: the reply was cut); None when
    the call failed, and then ``error`` says how.
    """

    model: str
    usage: Usage
    finish_reason: str | None = None
    error: str | None = None

    @property
    def is_truncated(self) -> bool:
        """Whether the reply stopped at the token limit."""
        return self.finish_reason == "length"


@dataclass(frozen=True, slots=True)
class UsageMeter:
    """The calls made while it was open, in the order in which they ended."""

    calls: list[CallRecord] = field(default_factory=list[CallRecord])

    @property
    def usage(self) -> Usage:
        """The sum over the calls so far."""
        return sum((call.usage for call in tuple(self.calls)), Usage())


_open_meters: ContextVar[tuple[UsageMeter, ...]] = ContextVar("open_meters", default=())


@contextmanager
def track_usage() -> Generator[UsageMeter]:
    """Count every model call made inside, also in threads that run in a copy of this context.

    Meters nest: the inner one sees its own calls only, the outer one sees all of them.

    Example:
        >>> with track_usage() as whole:
        ...     with track_usage() as part:
        ...         record_call(CallRecord("openai/gpt-4.1-mini", Usage(calls=1)))
        ...     record_call(CallRecord("openai/gpt-4.1-mini", Usage(calls=1)))
        >>> part.usage.calls, whole.usage.calls
        (1, 2)
    """
    meter = UsageMeter()
    token = _open_meters.set((*_open_meters.get(), meter))
    try:
        yield meter
    finally:
        _open_meters.reset(token)


def record_call(record: CallRecord) -> None:
    """Write a call to every meter that is open in this context."""
    for meter in _open_meters.get():
        meter.calls.append(record)


def list_price(model: str, *, api_base: str | None = None) -> Price | None:
    """Look a model's list price up in LiteLLM's price file; what runs in this process is free.

    None when it is unknown: the model is not listed, it is served from an address of one's own, or it is
    listed at zero (LiteLLM writes zero for subscriptions, previews and one's own hardware; none is free).
    """
    if is_local(model):
        return Price(0.0, 0.0, 0.0)
    if api_base is not None:
        return None
    provider, slash, bare_name = model.partition("/")
    prices = _price_list()
    if model in prices:
        return prices[model].price
    listed = prices.get(bare_name) if slash else None
    return listed.price if listed is not None and listed.provider == provider else None


def estimate_cost(
    model: str, calls: int, input_tokens: float, output_tokens: float, *, api_base: str | None = None
) -> float | None:
    """Estimate what ``calls`` calls cost in dollars, given the mean tokens of one; None without a price."""
    price = list_price(model, api_base=api_base)
    return (
        None if price is None else calls * (input_tokens * price.input_usd + output_tokens * price.output_usd)
    )


@dataclass(frozen=True, slots=True)
class _Listed:
    provider: str
    price: Price


@cache
def _price_list() -> dict[str, _Listed]:
    package = find_spec("litellm")
    folder = Path(package.origin).parent if package is not None and package.origin else Path()
    try:
        entries = json.loads((folder / _PRICE_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        _logger.warning("LiteLLM's %s is not in its package any more: every price is unknown", _PRICE_FILE)
        return {}
    prices: dict[str, _Listed] = {}
    for name, entry in entries.items():
        input_usd, output_usd = entry.get("input_cost_per_token"), entry.get("output_cost_per_token")
        if input_usd is None or output_usd is None or input_usd == output_usd == 0:
            continue
        cached_usd = entry.get("cache_read_input_token_cost")
        price = Price(input_usd, input_usd if cached_usd is None else cached_usd, output_usd)
        prices[name] = _Listed(entry.get("litellm_provider", ""), price)
    return prices
