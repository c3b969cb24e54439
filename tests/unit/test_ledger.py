"""What calls cost, and who counts them."""

import logging
import subprocess
import sys
from importlib.util import find_spec

import pytest

from memory_program.models.usage import (
    CallRecord,
    Price,
    Usage,
    estimate_cost,
    list_price,
    record_call,
    track_usage,
)


def call(**usage: float) -> CallRecord:
    return CallRecord("openai/gpt-4.1-mini", Usage(calls=1, **usage))


def test_usage_adds_field_by_field() -> None:
    left = Usage(1, 10, 4, 3, 0.5, 1.5, 2, 1, 0)
    right = Usage(2, 20, 0, 7, 0.25, 0.5, 0, 0, 0)
    assert left + right == Usage(3, 30, 4, 10, 0.75, 2.0, 2, 1, 0)


def test_the_empty_usage_is_zero() -> None:
    usage = Usage(calls=1, input_tokens=5, cost_usd=0.1)
    assert Usage().cost_usd == 0.0
    assert usage + Usage() == usage == Usage() + usage


def test_one_unpriced_call_makes_the_cost_unknown() -> None:
    unpriced = Usage(calls=1, cost_usd=None, unpriced_calls=1)
    total = Usage(calls=1, cost_usd=0.1) + unpriced + Usage(calls=1, cost_usd=0.2) + unpriced
    assert (total.cost_usd, total.unpriced_calls, total.calls) == (None, 2, 4)


def test_an_inner_meter_sees_its_own_calls_and_the_outer_all() -> None:
    with track_usage() as outer:
        record_call(call(input_tokens=1))
        with track_usage() as first:
            record_call(call(input_tokens=2))
        with track_usage() as second:
            record_call(call(input_tokens=4))
    record_call(call(input_tokens=8))  # nobody counts
    assert [m.usage.input_tokens for m in (outer, first, second)] == [7, 2, 4]
    assert [c.usage.input_tokens for c in outer.calls] == [1, 2, 4]


def test_a_meter_closes_when_its_block_fails() -> None:
    with pytest.raises(ValueError, match="boom"), track_usage() as meter:
        raise ValueError("boom")
    record_call(call())
    assert meter.calls == []


def test_only_a_reply_that_stopped_at_the_token_limit_was_cut() -> None:
    assert CallRecord("m", Usage(), "length").is_truncated
    assert not CallRecord("m", Usage(), "stop").is_truncated
    assert not CallRecord("m", Usage(), error="ServerError: boom").is_truncated


@pytest.mark.parametrize(
    ("name", "per_million"),
    [  # OpenAI's and Anthropic's list prices, as in LiteLLM 1.106's file: input, cached, output
        ("openai/gpt-4.1-mini", (0.40, 0.10, 1.60)),
        ("gpt-4.1-mini", (0.40, 0.10, 1.60)),
        ("anthropic/claude-sonnet-4-5", (3.00, 0.30, 15.00)),
        ("azure/gpt-4.1-mini", (0.40, 0.10, 1.60)),
    ],
)
def test_a_listed_model_has_its_list_price(name: str, per_million: tuple[float, float, float]) -> None:
    price = list_price(name)
    assert price is not None
    assert (price.input_usd, price.cached_usd, price.output_usd) == pytest.approx(
        tuple(dollars / 1e6 for dollars in per_million)
    )


@pytest.mark.parametrize(
    "name",
    [
        "openai/no-such-model",
        "groq/gpt-4.1-mini",  # another provider's model of that name
        "ollama/llama3",  # listed at zero: one's own hardware is not free
        "sample_spec",
        "",
    ],
)
def test_a_model_without_a_known_price_has_none_rather_than_zero(name: str) -> None:
    assert list_price(name) is None
    assert estimate_cost(name, 10, 1000, 100) is None


def test_a_listed_name_at_another_address_has_no_price() -> None:
    assert list_price("openai/gpt-4.1-mini", api_base="http://127.0.0.1:8000/v1") is None
    assert estimate_cost("openai/gpt-4.1-mini", 1, 1, 1, api_base="http://127.0.0.1:8000/v1") is None


@pytest.mark.parametrize(
    ("address", "is_listed"),
    [
        ("https://api.openai.com/v1/", True),
        ("https://eu.api.openai.com/v1", True),
        ("http://127.0.0.1:8000/v1", False),
        ("https://fake-api.openai.com.example.org/v1", False),
    ],
)
def test_a_server_in_the_place_of_openai_has_no_list_price(
    address: str, is_listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", address)
    assert (list_price("openai/gpt-4.1-mini") is not None) is is_listed
    assert list_price("anthropic/claude-haiku-4-5") is not None


def test_an_estimate_multiplies_calls_by_the_mean_call() -> None:
    assert estimate_cost("openai/gpt-4.1-mini", 1000, 2000, 50) == pytest.approx(2e6 * 0.4e-6 + 5e4 * 1.6e-6)


def test_cached_input_tokens_are_cheaper() -> None:
    assert Price(1.0, 0.1, 10.0).cost_usd(100, 40, 2) == pytest.approx(60 + 4 + 20)
    assert Price(1.0, 0.1, 10.0).saved_usd(40) == pytest.approx(40 - 4)


def test_usage_is_added_up() -> None:
    both = Usage(input_tokens=100, cached_tokens=40, output_tokens=50, saved_usd=0.5) + Usage(
        input_tokens=100, saved_usd=0.25
    )
    assert (both.input_tokens, both.cached_tokens, both.saved_usd) == (200, 40, 0.75)


def test_prices_are_read_without_importing_litellm() -> None:
    check = (
        "import sys; from memory_program.models.usage import list_price; "
        "assert list_price('openai/gpt-4.1-mini'); "
        "sys.exit(any(name in sys.modules for name in ('litellm', 'dspy')))"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_the_price_file_is_where_litellm_keeps_it(caplog: pytest.LogCaptureFixture) -> None:
    assert find_spec("litellm") is not None
    with caplog.at_level(logging.WARNING):
        assert list_price("openai/gpt-4.1-mini") is not None
    assert not caplog.records
