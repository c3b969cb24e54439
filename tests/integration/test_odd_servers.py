"""Servers as they are: slow, streaming, refusing parameters, and telling errors in words of their own."""

import json
import pickle
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import dspy
import pytest

from memory_program.core.errors import ModelError
from memory_program.models.factory import check_model, language_model, missing_keys
from memory_program.models.usage import track_usage
from tests.model_server import Behaviour, ModelServer, Reply, always, scripted

OWN = "openai/test"
LONG = "The lighthouse keeper wrote down every ship that passed, and its flag. " * 4


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "TOGETHER_API_KEY", "TOGETHERAI_API_KEY"):
        monkeypatch.delenv(variable, raising=False)


def model(url: str, name: str = OWN, **settings: Any) -> dspy.LM:
    defaults: dict[str, Any] = {
        "timeout_s": 5.0,
        "max_retries": 2,
        "first_wait_s": 0.01,
        "max_tokens": 400,
    }
    return language_model(name, api_base=url, **{**defaults, **settings})


def says(text: str) -> Reply:
    return lambda prompt, seen: text


@contextmanager
def answering(
    status: int, body: str, *, azure_keys: list[str] | None = None, **headers: str
) -> Generator[str]:
    """Answer every request by the same bytes; yields the address, and collects the keys for Azure."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            if azure_keys is not None:
                azure_keys.append(self.headers["api-key"])
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def wait_for(condition: Any) -> bool:
    until = time.monotonic() + 5
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return bool(condition())


# -- slow ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [True, False])
def test_a_reply_that_drips_for_longer_than_the_timeout_is_read(streams: bool) -> None:
    text = "The lighthouse keeper wrote it down."
    with ModelServer(always(Behaviour.DRIP), reply=says(text), drip_s=1.5, streams=streams) as server:
        assert model(server.url, timeout_s=0.6)("hello") == [text]
        assert server.traffic.requests.total() == 1


def test_silence_in_the_middle_of_a_reply_is_an_error_at_once_and_stops_the_server() -> None:
    with ModelServer(always(Behaviour.STALL)) as server:
        with pytest.raises(
            dspy.LMTimeoutError, match=r"too slow: .*lower --max-reply-tokens, or --concurrency"
        ):
            model(server.url, timeout_s=0.2)("hello")
        assert server.traffic.requests.total() == 1  # it is not asked for the same reply again
        assert wait_for(lambda: server.traffic.abandoned == 1)


def test_a_reply_without_end_is_an_error_at_once() -> None:
    with ModelServer(reply=says(LONG * 20), token_s=0.05) as server:
        with pytest.raises(dspy.LMTimeoutError, match="not complete after"):
            model(server.url, timeout_s=0.1, max_tokens=50)("hello")
        assert server.traffic.requests.total() == 1
        assert wait_for(lambda: server.traffic.abandoned == 1)


def test_a_silent_server_is_asked_at_most_three_times() -> None:
    with ModelServer(always(Behaviour.HANG)) as server:
        with pytest.raises(dspy.LMTimeoutError, match="tried 3 times"):
            model(server.url, timeout_s=0.1, max_retries=6)("hello")
        assert server.traffic.requests.total() == 3


def test_the_first_byte_may_take_longer_for_a_longer_reply() -> None:
    with ModelServer(latency_s=0.6) as server:
        with pytest.raises(dspy.LMTimeoutError):
            model(server.url, timeout_s=0.2, max_tokens=1, max_retries=0)("hello")
        assert model(server.url, timeout_s=0.2, max_tokens=4000, max_retries=0)("hello") == ["ready"]


def test_only_replies_that_may_take_long_are_streamed() -> None:
    with ModelServer(reply=says(LONG)) as server:
        lm = model(server.url, max_tokens=400)
        lm("first")
        assert server.traffic.streamed == 1  # nothing is known of its speed
        lm("second")
        assert server.traffic.streamed == 1
        with_room = model(server.url, max_tokens=4_000_000)
        assert with_room("third") == [LONG]
        assert server.traffic.streamed == 2


# -- loops ---------------------------------------------------------------------------------------


def test_a_looping_reply_is_stopped_and_recorded_as_repetitive() -> None:
    with ModelServer(always(Behaviour.LOOP), token_s=0.001) as server, track_usage() as meter:
        (text,) = model(server.url, max_tokens=4096)("hello")
        assert wait_for(lambda: server.traffic.abandoned == 1)
    (call,) = meter.calls
    assert text.startswith("1. 1. ")
    assert len(text) < 2000  # of 6,144
    assert (call.is_repetitive, call.is_truncated) == (True, True)
    assert 0 < call.usage.output_tokens < 1000  # estimated, since the server could not count


def test_a_looping_reply_that_came_whole_is_recorded_as_repetitive() -> None:
    with ModelServer(always(Behaviour.LOOP), streams=False) as server, track_usage() as meter:
        model(server.url)("hello")
    assert [call.is_repetitive for call in meter.calls] == [True]


def test_a_reply_that_is_only_cut_is_not_repetitive() -> None:
    with ModelServer(always(Behaviour.CUT)) as server, track_usage() as meter:
        model(server.url)("hello")
    assert [(call.is_truncated, call.is_repetitive) for call in meter.calls] == [(True, False)]


# -- replies -------------------------------------------------------------------------------------

GEMINI_QUOTA = {"violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}
BOTH_WAYS = pytest.mark.parametrize("streams", [True, False])


@BOTH_WAYS
@pytest.mark.parametrize("behaviour", [Behaviour.CUT, Behaviour.CUT_ANTHROPIC, Behaviour.CUT_GOOGLE])
def test_every_word_for_a_cut_reply_is_understood(behaviour: Behaviour, streams: bool) -> None:
    with ModelServer(always(behaviour), streams=streams) as server, track_usage() as meter:
        model(server.url)("hello")
    assert [call.is_truncated for call in meter.calls] == [True]


def ended(reason: str, **choice: object) -> tuple[int, object]:
    """Make a whole reply with a finish reason, as ``ModelServer(error=...)`` sends it."""
    message = {"role": "assistant", "content": "Lis"}
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    choices = [{"index": 0, "message": message, "finish_reason": reason, **choice}]
    body = {"id": "x", "object": "chat.completion", "created": 1, "model": "test", "choices": choices}
    return 200, {**body, "usage": usage}


LITELLM = "hosted_vllm/test"


@pytest.mark.parametrize("name", [OWN, LITELLM])
@pytest.mark.parametrize(
    "reason",
    [
        "max_output_tokens",
        "FinishReason.MAX_TOKENS",
        "model_context_window_exceeded",
        "max_length",
        "model_length",
    ],
)
def test_a_limit_of_tokens_is_understood_by_its_words(reason: str, name: str) -> None:
    with ModelServer(always(Behaviour.ERROR), error=ended(reason)) as server, track_usage() as meter:
        assert model(server.url, name)("hello") == ["Lis"]
    assert [call.is_truncated for call in meter.calls] == [True]


@pytest.mark.parametrize("name", [OWN, LITELLM])
def test_a_reply_that_a_content_filter_ended_is_a_failed_call(name: str) -> None:
    with ModelServer(always(Behaviour.ERROR), error=ended("content_filter")) as server:
        with pytest.raises(dspy.LMError, match="content filter"):
            model(server.url, name)("hello")
        assert server.traffic.requests.total() == 1


@BOTH_WAYS
def test_native_calls_without_content_are_read(streams: bool) -> None:
    with ModelServer(always(Behaviour.NATIVE_CALLS), streams=streams) as server:
        request = dspy.lm15.Request(model=OWN, messages=(dspy.lm15.Message.user("hello"),))
        reply = model(server.url)(request)
    (call,) = reply.tool_calls
    assert (call.name, call.input, reply.text) == ("search_memory", {"query": "x"}, None)


@pytest.mark.parametrize("content_type", ["application/json", "text/plain"])
def test_a_streamed_reply_is_read_whatever_it_is_called(content_type: str) -> None:
    choice = {"index": 0, "delta": {"content": "ready"}, "finish_reason": "stop"}
    events = f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n"
    with answering(200, events, content_type=content_type) as url:
        assert model(url)("hello") == ["ready"]


def test_an_error_that_is_called_a_stream_is_told_in_its_words() -> None:
    body = json.dumps({"error": {"message": "the tokens are used up for today"}})
    with (
        answering(200, body, content_type="text/event-stream") as url,
        pytest.raises(dspy.LMError, match="the tokens are used up for today"),
    ):
        model(url)("hello")


@BOTH_WAYS
def test_reasoning_is_no_part_of_the_answer(streams: bool) -> None:
    with ModelServer(always(Behaviour.REASONING), streams=streams) as server:
        request = dspy.lm15.Request(model=OWN, messages=(dspy.lm15.Message.user("hello"),))
        assert model(server.url)(request).text == "ready"


def test_a_streamed_reply_without_a_last_line_end_is_read_and_paid_once() -> None:
    with ModelServer(always(Behaviour.NO_LINE_END)) as server:
        assert model(server.url)("hello") == ["ready"]
        assert server.traffic.requests.total() == 1


@BOTH_WAYS
def test_missing_usage_adds_no_tokens(streams: bool) -> None:
    with ModelServer(always(Behaviour.NO_USAGE), streams=streams) as server, track_usage() as meter:
        assert model(server.url)("hello") == ["ready"]
    assert (meter.usage.output_tokens, meter.usage.unpriced_calls) == (0, 1)


def test_a_streamed_reply_is_metered_as_a_whole_one() -> None:
    usages = []
    for streams in (True, False):
        with ModelServer(reply=says(LONG), streams=streams) as server, track_usage() as meter:
            model(server.url)("hello")
        usages.append((meter.usage.input_tokens, meter.usage.output_tokens))
    assert usages[0] == usages[1]


# -- errors that pass, and errors that do not ------------------------------------------------------


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour.BLANK,
        Behaviour.NO_BODY,
        Behaviour.ERROR_IN_CHOICE,
        Behaviour.ERROR_IN_STREAM,
        Behaviour.PROXY_ERROR,
    ],
)
def test_a_passing_error_is_retried(behaviour: Behaviour) -> None:
    with ModelServer(scripted([behaviour])) as server, track_usage() as meter:
        assert model(server.url)("hello") == ["ready"]
    assert (meter.usage.calls, meter.usage.retries) == (1, 1)


def test_a_reply_that_is_empty_twice_is_taken_as_the_models() -> None:
    with ModelServer(always(Behaviour.EMPTY)) as server:
        assert model(server.url)("hello") == [""]
        assert server.traffic.requests.total() == 2


@pytest.mark.parametrize(
    "error",
    [
        (429, {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}),
        (402, {"error": {"message": "This request requires more credits", "code": 402}}),
        (429, {"error": {"message": "Your credit balance is too low to access the API"}}),
        (200, {"choices": [{"error": {"code": 402, "message": "Insufficient credits"}}]}),
        (429, {"error": {"message": "Quota exceeded for RequestsPerDayPerModel. Please retry in 5h2m."}}),
        (429, {"error": {"message": "Rate limit on tokens per day (TPD). Please try again in 5h3m"}}),
        (429, {"error": {"message": "Please retry in 43s.", "details": [GEMINI_QUOTA]}}),
        (403, {"error": {"message": "Key limit exceeded. Manage it at the settings", "code": 403}}),
        (400, {"error": {"message": "You have reached your specified API usage limits."}}),
        (400, {"error": {"code": "Arrearage", "message": "Access denied, check your account"}}),
        (400, {"error": {"type": "budget_exceeded", "message": "Current cost: 1.0, Max budget: 0.5"}}),
    ],
    ids=lambda error: str(error)[:70],
)
def test_an_exhausted_quota_is_not_retried(error: tuple[int, object]) -> None:
    with ModelServer(always(Behaviour.ERROR), error=error) as server:
        with pytest.raises(dspy.LMBillingError):
            model(server.url)("hello")
        assert server.traffic.requests.total() == 1


def test_a_wait_of_hours_is_an_exhausted_quota() -> None:
    with ModelServer(always(Behaviour.RATE_LIMIT_WITH_HINT), retry_after_s=18_000) as server:
        with pytest.raises(dspy.LMBillingError):
            model(server.url)("hello")
        assert server.traffic.requests.total() == 1


@pytest.mark.parametrize(
    "said",
    [
        "You exceeded your current quota, please check your billing details. Please retry in 0.1s.",
        "Rate limit reached on tokens per day (TPD): Limit 100000. Please try again in 7m12.5s",
        "You exceeded your quota of requests per minute",
    ],
)
def test_a_quota_that_is_refilled_soon_is_a_rate_limit(said: str) -> None:
    with ModelServer(always(Behaviour.ERROR), error=(429, {"error": {"message": said}})) as server:
        with pytest.raises(dspy.LMRateLimitError):
            model(server.url)("hello")
        assert server.traffic.requests.total() == 3


def test_a_prompt_over_the_context_is_told_with_both_numbers_and_not_retried() -> None:
    told = r"HTTP 400 from .*maximum context length is 2048 tokens.*4396 tokens.*lower --max-reply-tokens"
    with ModelServer(always(Behaviour.TOO_LONG)) as server:
        with pytest.raises(dspy.ContextWindowExceededError, match=told):
            model(server.url)("hello")
        assert server.traffic.requests.total() == 1


def test_an_untrusted_certificate_is_told_at_once_and_can_be_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed: it makes the certificate")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = [
        openssl,
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]

    def make(host: str) -> None:
        names = ["-addext", f"subjectAltName={host}", "-out", certificate, "-keyout", key]
        subprocess.run([*command, *names], check=True, capture_output=True)

    make("IP:127.0.0.1")
    with ModelServer(tls=(certificate, key)) as server:
        with pytest.raises(ModelError, match=r"certificate of 127\.0\.0\.1.*set SSL_CERT_FILE"):
            check_model(model(server.url, first_wait_s=60.0))  # a second try would be noticed
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        check_model(model(server.url))
        for unreadable in (tmp_path / "missing.pem", tmp_path, Path(__file__)):
            monkeypatch.setenv("SSL_CERT_FILE", str(unreadable))
            with pytest.raises(ModelError, match=r"SSL_CERT_FILE='.*' cannot be read \(.*name the PEM file"):
                model(server.url)
        assert model("http://127.0.0.1:8000/v1")  # without TLS it is not needed
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    make("DNS:elsewhere.example")
    with (
        ModelServer(tls=(certificate, key)) as server,
        pytest.raises(ModelError, match="is for another host"),
    ):
        check_model(model(server.url))


# -- the server's own words ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (
            400,
            {"object": "error", "message": "top_k must be -1", "type": "BadRequestError"},
            "top_k must be -1",
        ),
        (400, {"message": "bad payload"}, "bad payload"),
        (400, {"errors": [{"message": "one thing"}, {"message": "another"}]}, "one thing; another"),
        (422, {"detail": [{"loc": ["body", "n"], "msg": "Input should be 1"}]}, "n: Input should be 1"),
        (422, {"detail": [{"loc": 5, "msg": "field required"}]}, "field required"),
        (422, {"detail": [{"loc": "body", "msg": "field required"}]}, "field required"),
        (400, "[" * 100_000, r"\[\[\["),
        (400, {"error": "no slot available"}, "no slot available"),
        (
            400,
            {"error": {"message": "odd", "param": "response_format"}},
            r"odd \(parameter response_format\)",
        ),
        (400, "plain words", "plain words"),
        (400, {"statusCode": 400, "error": "Bad Request", "message": "must be array"}, "must be array"),
        (400, {"error": True, "message": "said so"}, "said so"),
        (400, {"error_code": 336, "error_msg": "bad param"}, "bad param"),
        (403, "<html><head><title>Sign in</title></head><body>long page</body></html>", "Sign in"),
        (400, {"odd": 1}, '{"odd": 1}'),
        (418, "", "no message"),
    ],
)
def test_the_check_tells_status_address_and_the_servers_words(status: int, body: object, told: str) -> None:
    with ModelServer(always(Behaviour.ERROR), error=(status, body)) as server:
        address = f"HTTP {status} from {server.url}/chat/completions: "
        with pytest.raises(ModelError, match=address + told):
            check_model(model(server.url))


def test_no_part_of_a_key_is_left_where_a_long_error_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "correct-horse-battery-staple")
    said = f"{'wrong ' * 97}correct-horse-battery-staple"  # the cut is within the key
    with (
        answering(401, json.dumps({"error": {"message": said}})) as url,
        pytest.raises(dspy.LMError, match="wrong wrong") as caught,
    ):
        model(url)("hello")
    assert "correct-horse" not in str(caught.value)


@pytest.mark.parametrize(
    ("location", "told"),
    [
        ("https://models.invalid/v1/chat/completions", "redirects to 'https://models.invalid/v1'"),
        ("/v2/chat/completions", r"redirects to 'http://127.0.0.1:\d+/v2'"),
    ],
)
def test_a_redirect_tells_the_address_and_is_not_followed(location: str, told: str) -> None:
    with (
        answering(308, "", location=location) as url,
        pytest.raises(dspy.LMError, match=f"HTTP 308 .*{told}: give that address"),
    ):
        model(url)("hello")


def test_an_address_without_v1_is_told_the_right_one() -> None:
    with ModelServer() as server:
        base = server.url.removesuffix("/v1")
        with pytest.raises(
            ModelError, match=rf"HTTP 404 from {base}/chat/completions: Not Found; .*try {base}/v1"
        ):
            check_model(model(base))


@pytest.mark.parametrize(
    "body", [{"detail": "login fail"}, {"message": "login fail"}, {"base_resp": {"status_msg": "login fail"}}]
)
def test_a_reply_that_is_no_completion_is_told_in_its_words(body: object) -> None:
    told = "no choices: it says 'login fail'"
    with (
        ModelServer(always(Behaviour.ERROR), error=(200, body)) as server,
        pytest.raises(ModelError, match=told),
    ):
        check_model(model(server.url))


@pytest.mark.parametrize("choices", [["x"], {"a": 1}, [["x"]], 7])
def test_choices_of_another_shape_are_retried_and_shown(choices: object) -> None:
    with (
        answering(200, json.dumps({"choices": choices})) as url,
        pytest.raises(dspy.LMServerError, match=r"reply of http://.*it begins with .*tried 3") as caught,
    ):
        model(url)("hello")
    assert json.dumps({"choices": choices}) in str(caught.value)


def test_a_reply_that_is_nested_too_deeply_is_retried() -> None:
    with answering(200, "[" * 100_000) as url, pytest.raises(dspy.LMServerError, match="tried 3 times"):
        model(url)("hello")


def test_an_address_that_is_too_long_is_told_the_right_one() -> None:
    with ModelServer() as server, pytest.raises(ModelError, match=f"HTTP 404 .*: try {server.url}(?!/chat)"):
        check_model(model(f"{server.url}/chat/completions"))


def test_an_unknown_model_is_told_the_names_that_the_server_has() -> None:
    told = "HTTP 404 .*model `test` does not exist.*this server has 'openai/qwen', 'openai/smol'"
    with ModelServer(models=("qwen", "smol")) as server, pytest.raises(ModelError, match=told):
        check_model(model(server.url))


# -- parameters that a model refuses ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("temperature", {"max_tokens"}),
        ("max_tokens", {"temperature", "max_completion_tokens"}),
        ("stream", {"temperature", "max_tokens"}),
        ("stream_options", {"temperature", "max_tokens"}),
    ],
)
def test_a_refused_parameter_is_dropped_once_with_one_line(
    name: str, left: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    with ModelServer(refuses=[name]) as server:
        for lm in (model(server.url), model(server.url)):  # reader and judge
            check_model(lm)
            assert lm("hello") == ["ready"]
        assert server.traffic.requests.total() == 5  # and one refusal
        sent = server.traffic.bodies[-1]
    assert left <= set(sent)
    assert name not in sent
    assert caplog.text.count("does not take") == 1


@pytest.mark.parametrize(
    ("status", "said", "left_out"),
    [
        (400, "invalid temperature: only 1 is allowed for this model", "temperature"),
        (400, "temperature must be 1 for this model", "temperature"),
        (400, "temperature must be strictly positive", "temperature"),
        (422, "max_completion_tokens: Field required", "max_tokens"),
    ],
)
def test_a_parameter_is_dropped_or_renamed_for_its_value(status: int, said: str, left_out: str) -> None:
    error = (status, {"error": {"message": said}})
    with ModelServer(scripted([Behaviour.ERROR]), error=error) as server:
        assert model(server.url)("hello") == ["ready"]
        first, second = server.traffic.bodies
    assert left_out in first
    assert left_out not in second


def test_refused_parameters_are_dropped_one_after_the_other() -> None:
    with ModelServer(refuses=["temperature", "max_tokens", "stream_options"]) as server:
        assert model(server.url)("hello") == ["ready"]


def test_a_parameter_that_cannot_be_left_out_is_an_error() -> None:
    with ModelServer(refuses=["max_tokens", "max_completion_tokens"]) as server:
        with pytest.raises(dspy.LMInvalidRequestError, match="max_completion_tokens"):
            model(server.url)("hello")
        assert server.traffic.requests.total() == 2


@pytest.mark.parametrize("name", ["response_format", "chat_template_kwargs"])
def test_what_was_asked_for_on_purpose_is_not_dropped(name: str) -> None:
    settings = {"chat_template_kwargs": {"enable_thinking": False}}
    with ModelServer(refuses=[name]) as server:
        with pytest.raises(dspy.LMInvalidRequestError, match=rf"HTTP 400 from .*'{name}'") as caught:
            model(server.url, **settings)("hello", response_format={"type": "json_object"})
        assert (caught.value.status, server.traffic.requests.total()) == (400, 1)


def test_the_check_is_made_with_the_temperature_of_the_run() -> None:
    with ModelServer() as server:
        check_model(model(server.url, temperature=0.7))
        assert server.traffic.bodies[0]["temperature"] == 0.7


def test_a_model_that_is_listed_without_sampling_is_sent_no_temperature(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with ModelServer() as server:
        monkeypatch.setattr("memory_program.models.model_names.OPENAI_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789")
        assert language_model("openai/claude-opus-4-7")("hello") == ["ready"]
        assert "temperature" not in server.traffic.bodies[0]
    assert caplog.text.count("takes no temperature") == 1


# -- through LiteLLM -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        ended("error", error={"code": 502, "message": "Provider returned error"}),
        ended("error"),
        (200, {"id": "x", "object": "chat.completion", "created": 1, "model": "test", "choices": []}),
        (200, ""),
    ],
    ids=["error in the choice", "only its name", "no choices", "empty"],
)
def test_a_passing_error_is_retried_through_litellm_too(error: tuple[int, object]) -> None:
    with ModelServer(scripted([Behaviour.ERROR]), error=error) as server, track_usage() as meter:
        assert model(server.url, LITELLM)("hello") == ["ready"]
    assert meter.usage.retries == 1


def test_an_exhausted_quota_in_the_choice_is_told_through_litellm_too() -> None:
    error = ended("error", error={"code": 402, "message": "Insufficient credits"})
    with ModelServer(always(Behaviour.ERROR), error=error) as server:
        with pytest.raises(dspy.LMBillingError, match="Insufficient credits"):
            model(server.url, LITELLM)("hello")
        assert server.traffic.requests.total() == 1


@pytest.mark.parametrize("name", ["temperature", "max_tokens"])
def test_a_refused_parameter_is_dropped_through_litellm_too(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ModelServer(refuses=[name]) as server:
        assert model(server.url, LITELLM)("hello") == ["ready"]
        assert server.traffic.requests.total() == 2
    assert f"does not take {name}" in caplog.text


@pytest.mark.parametrize(
    ("behaviour", "error", "told"),
    [
        (Behaviour.QUOTA, dspy.LMBillingError, "exceeded your current quota"),
        (Behaviour.TOO_LONG, dspy.ContextWindowExceededError, "2048 tokens.*4396 tokens"),
        (Behaviour.BAD_KEY, dspy.LMAuthError, "Incorrect API key"),
    ],
)
def test_errors_through_litellm_are_of_the_same_kinds(
    behaviour: Behaviour, error: type[Exception], told: str
) -> None:
    with ModelServer(always(behaviour)) as server:
        with pytest.raises(error, match=told):
            model(server.url, LITELLM)("hello")
        assert server.traffic.requests.total() == 1


def test_an_address_without_v1_is_told_the_right_one_through_litellm() -> None:
    with ModelServer() as server:
        base = server.url.removesuffix("/v1")
        with pytest.raises(ModelError, match=f"try {base}/v1"):
            check_model(model(base, LITELLM))


def test_a_slow_first_byte_is_allowed_through_litellm() -> None:
    with ModelServer(latency_s=0.8) as server:
        assert model(server.url, LITELLM, timeout_s=0.4, max_tokens=4000)("hello") == ["ready"]
        assert server.traffic.requests.total() == 1


# -- template arguments ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [OWN, "hosted_vllm/test"])
def test_arguments_of_the_chat_template_reach_the_server(name: str) -> None:
    with ModelServer() as server:
        lm = model(server.url, name, chat_template_kwargs={"enable_thinking": False})
        lm("hello")
        pickle.loads(pickle.dumps(lm))("again")
        sent = [body["chat_template_kwargs"] for body in server.traffic.bodies]
    assert sent == [{"enable_thinking": False}] * 2


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "Qwen/Qwen2.5-3B-Instruct",
            r"'local:Qwen/Qwen2\.5-3B-Instruct'.*'openai/Qwen/Qwen2\.5-3B-Instruct'",
        ),
        ("claude-4.5-sonnet", "did you mean 'anthropic/claude-sonnet-4-5'"),
        ("gpt-4.1-mini", "'openai/gpt-4.1-mini'"),
        ("gemini-2.5-flash", "'gemini/gemini-2.5-flash'"),
    ],
)
def test_a_name_without_its_provider_is_told_the_right_form(
    name: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789")
    with pytest.raises(ModelError, match=told):
        language_model(name)


@pytest.mark.parametrize(
    ("name", "listed", "other"),
    [
        (
            "together_ai/meta-llama/Llama-3.3-70B-Instruct-Turbo",
            "TOGETHERAI_API_KEY",
            "TOGETHER_API_KEY",
        ),
        ("azure/my-deployment", "AZURE_API_KEY", "AZURE_OPENAI_API_KEY"),
        ("huggingface/together/deepseek-ai/DeepSeek-R1", "HUGGINGFACE_API_KEY", "HF_TOKEN"),
        ("perplexity/sonar", "PERPLEXITYAI_API_KEY", "PERPLEXITY_API_KEY"),
    ],
)
def test_a_provider_is_reached_with_any_of_its_keys(
    name: str, listed: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in (listed, other, "AZURE_API_BASE", "AZURE_API_VERSION", "AZURE_AD_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ModelError, match=f"set {listed} or {other} in"):
        language_model(name)
    for variable in (listed, other):
        monkeypatch.setenv(variable, "0123456789")
        assert missing_keys(name) == []
        monkeypatch.delenv(variable)


def test_the_key_of_azure_is_sent_to_an_address_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AZURE_API_KEY", "0123456789")
    for variable in ("AZURE_API_BASE", "AZURE_API_VERSION"):
        monkeypatch.delenv(variable, raising=False)
    keys = list[str]()
    with answering(400, "no deployment", azure_keys=keys) as url, pytest.raises(dspy.LMError):
        model(url, "azure/test")("Say hello.")
    assert keys == ["0123456789"]


@pytest.mark.parametrize("closes", [True, False])
def test_a_stream_that_said_its_end_is_read_though_its_connection_is_not_ended(closes: bool) -> None:
    events = [{"choices": [{"delta": {"content": "ready"}, "finish_reason": "stop"}]}]
    lines = [f"data: {json.dumps(event)}\n\n" for event in events] + ["data: [DONE]\n\n"]
    sent, is_read = "".join(lines).encode(), threading.Event()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"

    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        connection.recv(65_536)
        connection.sendall(head + f"{len(sent):x}\r\n".encode() + sent + b"\r\n")
        if not closes:
            is_read.wait()
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, args=(listener,), daemon=True).start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        lm = language_model("openai/test", api_base=address, timeout_s=0.2, max_retries=0, max_tokens=4096)
        assert lm("Are you ready?") == ["ready"]
        is_read.set()
