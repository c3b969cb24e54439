"""Models over real HTTP: DSPy and our engines against a server that misbehaves on demand."""

import json
import logging
import pickle
import subprocess
import sys
import threading
import time
import traceback
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest

from memory_program.core.errors import ModelError
from memory_program.models.factory import AdaptiveLimiter, check_model, language_model
from memory_program.models.usage import track_usage
from tests.competent_model import Prompt
from tests.model_server import Behaviour, ModelServer, always, at_random, scripted

CHECKOUT = Path(__file__).resolve().parents[2]
OWN = "openai/test"


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in ("OPENAI", "ANTHROPIC", "GEMINI", "GOOGLE"):
        monkeypatch.delenv(f"{provider}_API_KEY", raising=False)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


def model(server: ModelServer, name: str = OWN, **settings: Any) -> dspy.LM:
    return language_model(
        name, api_base=server.url, **{"timeout_s": 5.0, "max_retries": 2, "first_wait_s": 0.01, **settings}
    )


# -- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behaviour", "error", "tries"),
    [
        (Behaviour.RATE_LIMIT, dspy.LMRateLimitError, 3),
        (Behaviour.SERVER_ERROR, dspy.LMServerError, 3),
        (Behaviour.DISCONNECT, dspy.LMTransportError, 3),
        (Behaviour.HTML, dspy.LMServerError, 3),
        (Behaviour.NO_CHOICES, dspy.LMServerError, 3),
        (Behaviour.BAD_KEY, dspy.LMAuthError, 1),
    ],
)
def test_each_fault_of_the_provider_has_its_error_and_number_of_tries(
    behaviour: Behaviour, error: type[Exception], tries: int
) -> None:
    with ModelServer(always(behaviour)) as server:
        with track_usage() as meter, pytest.raises(error):
            model(server)("hello")
        assert server.traffic.requests.total() == tries  # neither LiteLLM nor its client retries by itself
        assert (meter.usage.retries, meter.usage.failed_calls) == (tries - 1, 1)


def test_a_hang_past_the_timeout_is_a_timeout_and_is_tried_again() -> None:
    with ModelServer(always(Behaviour.HANG)) as server:
        with pytest.raises(dspy.LMTimeoutError, match="tried 3 times"):
            model(server, timeout_s=0.2)("hello")
        assert server.traffic.requests.total() == 3


@pytest.mark.parametrize(
    "behaviour",
    [Behaviour.RATE_LIMIT, Behaviour.SERVER_ERROR, Behaviour.DISCONNECT, Behaviour.HTML, Behaviour.HANG],
)
def test_a_temporary_fault_is_retried(behaviour: Behaviour) -> None:
    with ModelServer(scripted([behaviour, behaviour])) as server, track_usage() as meter:
        assert model(server, timeout_s=0.5)("hello") == ["ready"]
        assert (meter.usage.calls, meter.usage.retries, meter.usage.failed_calls) == (1, 2, 0)


def test_retry_after_is_honoured_over_http() -> None:
    with ModelServer(scripted([Behaviour.RATE_LIMIT_WITH_HINT] * 2), retry_after_s=0.4) as server:
        started = time.monotonic()
        assert model(server)("hello") == ["ready"]
        assert time.monotonic() - started >= 0.8


def test_a_retry_after_of_an_hour_fails_at_once() -> None:
    with ModelServer(always(Behaviour.RATE_LIMIT_WITH_HINT), retry_after_s=3600) as server:
        with pytest.raises(dspy.LMRateLimitError, match="asked to wait 3600 s"):
            model(server)("hello")
        assert server.traffic.requests.total() == 1


def test_a_reply_at_the_token_limit_is_metered_as_cut() -> None:
    with ModelServer(always(Behaviour.CUT)) as server, track_usage() as meter:
        model(server)("hello")
    assert [call.is_truncated for call in meter.calls] == [True]


def test_tokens_are_metered_as_the_server_counts_them(server: ModelServer) -> None:
    lm = model(server)
    with track_usage() as meter:
        lm(dspy.lm15.Request(model=OWN, system="s" * 400, messages=(dspy.lm15.Message.user("u" * 40),)))
    usage = meter.usage
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens) == (110, 100, 1)
    assert (usage.cost_usd, usage.unpriced_calls) == (None, 1)
    assert usage.seconds > 0


def test_nothing_is_printed_when_calls_fail(capfd: pytest.CaptureFixture[str]) -> None:
    with ModelServer(always(Behaviour.SERVER_ERROR)) as server, pytest.raises(dspy.LMServerError):
        model(server)("hello")
    printed = capfd.readouterr()
    assert "LiteLLM" not in printed.out + printed.err
    assert "Feedback" not in printed.out + printed.err


# -- concurrency ---------------------------------------------------------------------------------


def test_models_that_share_a_limiter_stay_under_it_together() -> None:
    with ModelServer(latency_s=0.05) as server:
        limiter = AdaptiveLimiter(4)
        lms = [model(server, limiter=limiter), model(server, limiter=limiter)]
        _at_once(20, lambda number: lms[number % 2](f"hello {number}"))
        assert server.traffic.most_in_flight == 4
        assert server.traffic.requests.total() == 20


def test_a_burst_of_rate_limits_lowers_the_concurrency_and_all_calls_succeed() -> None:
    with ModelServer(scripted([Behaviour.RATE_LIMIT] * 6), latency_s=0.02) as server:
        limiter = AdaptiveLimiter(8)
        lm = model(server, limiter=limiter, max_retries=6)
        assert _at_once(12, lambda number: lm(f"hello {number}")) == [["ready"]] * 12
        assert limiter._allowed < 8


def _at_once(count: int, call: Any) -> list[Any]:
    replies: list[Any] = [None] * count

    def run(number: int) -> None:
        replies[number] = call(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    return replies


# -- names and keys ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nosuch/model", "gpt-5000-ultra", "Qwen/Qwen3-4B"])
def test_an_unknown_provider_is_refused_with_an_example(name: str) -> None:
    with pytest.raises(ModelError, match=r"names no provider that LiteLLM knows: .*openai/gpt-4\.1-mini"):
        language_model(name)


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("openai/gpt-4.1-mini", "OPENAI_API_KEY"),
        ("gpt-4.1-mini", "OPENAI_API_KEY"),
        ("anthropic/claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
        ("gemini/gemini-2.5-flash", "GEMINI_API_KEY"),
    ],
)
def test_a_missing_key_is_reported_with_its_variable(name: str, variable: str) -> None:
    with pytest.raises(ModelError, match=f"needs a key: set .*{variable} in the environment"):
        language_model(name)


def test_an_empty_key_is_a_missing_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", " ")
    with pytest.raises(ModelError, match="set OPENAI_API_KEY"):
        language_model("openai/gpt-4.1-mini")


def test_a_self_hosted_server_needs_no_key_and_gets_an_existing_one(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model(server)("hello")
    assert server.traffic.keys == {"no-key"}
    monkeypatch.setenv("OPENAI_API_KEY", "sk-for-my-server")
    model(server)("hello")
    assert server.traffic.keys == {"no-key", "sk-for-my-server"}


def test_a_key_that_the_server_echoes_is_removed_everywhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "very-private-0123")
    with ModelServer(always(Behaviour.BAD_KEY)) as server, caplog.at_level(logging.DEBUG):
        with track_usage() as meter, pytest.raises(dspy.LMAuthError, match="key removed") as caught:
            model(server)("hello")
        assert server.traffic.keys == {"very-private-0123"}  # it was sent, and echoed
    told = "".join(traceback.format_exception(caught.value)) + str(meter.calls)
    printed = capfd.readouterr()
    assert "very-private" not in told + caplog.text + printed.out + printed.err


def test_a_saved_model_holds_no_key_and_works_when_loaded(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "very-private-0123")
    program = dspy.Predict("question -> answer")
    program.lm = model(server, max_tokens=77, limiter=AdaptiveLimiter(3))
    program.save(tmp_path / "program.json")
    assert "very-private" not in (tmp_path / "program.json").read_text()
    loaded = dspy.Predict("question -> answer")
    loaded.load(tmp_path / "program.json", allow_unsafe_lm_state=True)
    loaded.lm("hello")
    assert server.traffic.bodies[-1]["max_tokens"] == 77
    assert loaded.lm.engine.limiter.limit == 3


def test_a_model_travels_to_another_process_without_its_key(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "very-private-0123")
    lm = model(server)
    packed = pickle.dumps(lm)
    assert b"very-private" not in packed
    assert "very-private" not in repr(lm) + repr(lm.engine)
    assert pickle.loads(packed)("hello") == ["ready"]


# -- settings ------------------------------------------------------------------------------------


def test_temperature_and_token_limit_reach_the_server(server: ModelServer) -> None:
    model(server, temperature=0.3, max_tokens=50)("hello")
    (body,) = server.traffic.bodies
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("test", 0.3, 50)


@pytest.mark.parametrize(("max_tokens", "sent"), [(4096, None), (20_000, 20_000)])
def test_a_reasoning_model_runs_at_its_own_temperature_with_room_to_think(
    server: ModelServer, max_tokens: int, sent: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    model(server, "openai/gpt-5-mini", max_tokens=max_tokens)("hello")
    (body,) = server.traffic.bodies
    assert "temperature" not in body
    assert body.get("max_completion_tokens") == sent
    assert "runs at its own temperature" in caplog.text


# -- checking a model before a run ---------------------------------------------------------------


def test_a_model_that_answers_passes_the_check(server: ModelServer) -> None:
    check_model(model(server))
    assert server.traffic.requests.total() == 1


def test_a_model_that_refuses_its_key_fails_the_check() -> None:
    refusal = r"'openai/test' at http.* does not answer: .*Incorrect API key"
    with ModelServer(always(Behaviour.BAD_KEY)) as server, pytest.raises(ModelError, match=refusal):
        check_model(model(server))


def test_an_address_where_nothing_listens_fails_the_check() -> None:
    with ModelServer() as server:
        lm = model(server)
    with pytest.raises(ModelError, match=r"does not answer: .*failed to connect"):
        check_model(lm)


def test_a_slow_model_is_reported(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with ModelServer() as server:
        url, lm = server.url, model(server, first_wait_s=1.0, max_retries=3)
        check_model(lm)
    assert "has not answered" not in caplog.text
    monkeypatch.setattr("memory_program.models.factory._SLOW_WARNING_AFTER_S", 0.05)
    with pytest.raises(ModelError, match="does not answer"):
        check_model(lm)
    assert f"'openai/test' at {url} has not answered yet" in caplog.text


# -- the server itself ---------------------------------------------------------------------------


def test_random_faults_have_their_rate_and_are_reproducible() -> None:
    prompts = [Prompt("", f"prompt {number}") for number in range(2000)]
    chosen = [[behave(p, 0) for p in prompts] for behave in (at_random(0.05, 7), at_random(0.05, 7))]
    assert chosen[0] == chosen[1]
    faulty = sum(behaviour is not Behaviour.COMPETENT for behaviour in chosen[0])
    assert 70 <= faulty <= 130  # 100 expected, standard deviation 10
    assert [at_random(0.05, 8)(p, 0) for p in prompts] != chosen[0]
    assert [at_random(0.05, 7)(p, 3) for p in prompts] == chosen[0]  # however often it is asked


def test_the_server_runs_in_a_process_of_its_own_and_prints_its_address() -> None:
    command = [sys.executable, "-m", "tests.model_server", "--latency-s", "0.01"]
    process = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert language_model(OWN, api_base=url)("hello") == ["ready"]
        with urllib.request.urlopen(url.removesuffix("/v1") + "/traffic") as reply:
            assert json.load(reply)["requests"] == 1
    finally:
        process.terminate()
        process.wait(timeout=10)
