"""Runs through the batch APIs of OpenAI and Anthropic: equal scores, half the price, nothing paid twice."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import fastapi
import pytest
from dspy.lm15 import Config, Message, Request, TransportError
from fastapi.responses import JSONResponse, Response
from rich.console import Console

from memory_program.bank.store import BankStore
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.core.errors import BatchError, ConfigError
from memory_program.core.journal import Journal
from memory_program.core.json_files import Json
from memory_program.evaluation.evaluation_run import evaluate
from memory_program.evaluation.question_selection import load_selection
from memory_program.evaluation.report.write_reports import load_system_records
from memory_program.models.batch_api import OpenAIBatchApi, was_refused
from memory_program.models.batch_queue import BatchQueue
from memory_program.models.factory import language_model
from memory_program.models.usage import track_usage
from tests.batch_server import AnthropicBatchServer, BatchServer, OpenAIBatchServer
from tests.competent_model import Prompt, competent_reply
from tests.conftest import CHECKOUT
from tests.evaluation_samples import write_conversations

pytestmark = pytest.mark.usefixtures("plots_are_not_drawn")

KEY = "sk-test-0123456789abcdef"
MODELS = {OpenAIBatchServer: "openai/gpt-4.1-mini", AnthropicBatchServer: "anthropic/claude-haiku-4-5"}


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, KEY)


def point_to(server: BatchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the provider's own address be the server's: prices are those of the list."""
    for variable in ("OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("memory_program.models.model_names.OPENAI_URL", server.url)
    monkeypatch.setenv("ANTHROPIC_API_BASE", server.url)


def settings(data: Path, folder: Path, model: str, **more: Any) -> dict[str, Any]:
    defaults = {"dataset": str(data), "model": model, "systems": "rag", "rubrics": "lenient"}
    return {**defaults, "output_dir": folder, "mlflow": False, "reply_format": "chat", **more}


def run(config: dict[str, Any]) -> tuple[Json | None, str]:
    console = Console(file=io.StringIO(), width=120)
    results = evaluate(EvaluateConfig(**config), console=console)
    return results, console.file.getvalue()


def without_costs(found: Any) -> Any:
    """Leave out what may differ: times, costs, retries, and what names the folder."""
    if isinstance(found, list):
        return [without_costs(part) for part in found]
    if not isinstance(found, dict):
        return found
    left_out = ("config", "git_commit", "seconds", "latency", "usage", "cost_usd", "cost_per_correct_usd")
    return {name: without_costs(part) for name, part in found.items() if name not in left_out}


def records(folder: Path, journal: str, system: str = "rag") -> list[dict[str, Any]]:
    lines = (folder / system / f"{journal}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def cost_usd(folder: Path, journal: str, system: str = "rag") -> float:
    return sum(record["usage"]["cost_usd"] for record in records(folder, journal, system))


@pytest.mark.parametrize("kind", [OpenAIBatchServer, AnthropicBatchServer])
def test_a_batched_run_has_the_scores_of_a_direct_one_for_half_the_price(kind, tmp_path, monkeypatch):
    data = write_conversations(tmp_path / "talks.json", 2)

    with kind(
        fails=lambda p: "dolphin" in p.fields.get("question", "") and "given_answer" not in p.fields
    ) as server:
        point_to(server, monkeypatch)
        direct, _ = run(settings(data, tmp_path / "direct", MODELS[kind]))
        assert not server.batches
        asked = server.traffic.requests.total()
        batched, output = run(settings(data, tmp_path / "batched", MODELS[kind], batch=True))

    assert direct is not None
    assert without_costs(batched) == without_costs(direct)
    questions, judged = 18, len(records(tmp_path / "direct", "judgements"))
    assert server.sizes == [questions, 1, judged]  # the answers, the one that failed, the verdicts
    assert server.traffic.requests.total() == asked + 1  # the check that the model answers
    retried = [record for record in records(tmp_path / "batched", "answers") if record["usage"]["retries"]]
    assert [record["usage"]["retries"] for record in retried] == [1]
    for journal in ("answers", "judgements"):
        price = cost_usd(tmp_path / "direct", journal)
        assert price > 0
        assert cost_usd(tmp_path / "batched", journal) == pytest.approx(price / 2)
    assert batched["systems"]["rag"]["cost_usd"] == pytest.approx(direct["systems"]["rag"]["cost_usd"] / 2)
    assert f"{MODELS[kind]}: batch batch_1: 0 of {questions} done, submitted, waits" in output
    assert f"{MODELS[kind]}: batch batch_1: {questions} of {questions} done" in output


def banks(folder: Path) -> dict[str, Any]:
    with BankStore(f"sqlite:///{folder / 'banks.sqlite'}") as store:
        spaces = {name: store.load(name) for name in store.namespaces()}
        return {name: (space.bank.live(), space.bank.core) for name, space in spaces.items()}


def test_each_phase_of_a_build_is_one_batch_of_all_conversations(tmp_path, monkeypatch):
    data = write_conversations(tmp_path / "talks.json", 2)
    with OpenAIBatchServer() as server:
        point_to(server, monkeypatch)
        common = {"systems": "memory", "mode": "build", "build": "two-phase"}
        run(settings(data, tmp_path / "direct", "openai/gpt-4.1-mini", **common))
        asked = server.traffic.requests.total()
        run(settings(data, tmp_path / "batched", "openai/gpt-4.1-mini", batch=True, **common))
        direct_calls = server.traffic.requests.total() - asked

    assert banks(tmp_path / "batched") == banks(tmp_path / "direct")
    proposed = records(tmp_path / "batched", "proposals", "memory")
    assert server.sizes[0] == 2 * 4 * 4  # conversations, sessions, agents
    assert len(server.sizes) == 2
    assert sum(server.sizes) + direct_calls - 1 == len(proposed)  # conflicts are asked at once
    assert len(proposed) == len(records(tmp_path / "direct", "proposals", "memory"))


def test_a_repeated_build_that_breaks_off_and_goes_on_counts_every_call(tmp_path, monkeypatch):
    def reply(prompt: Prompt, seen: int) -> str:
        is_bad = len(server.batches) <= 2 and "ermine" in prompt.user
        return "I'm sorry, but I can't help with that." if is_bad else competent_reply(prompt)

    data = write_conversations(tmp_path / "talks.json", 1)
    with OpenAIBatchServer(expires=[4], reply=reply) as server:  # 1 and 2 are the phases of the first build
        point_to(server, monkeypatch)
        more = {"systems": "memory", "mode": "build", "build": "two-phase", "max_errors": 100}
        config = settings(data, tmp_path / "run", MODELS[OpenAIBatchServer], batch=True, **more)
        run(config)
        with pytest.raises(BatchError, match="batch_4 expired"):
            run({**config, "retry_errors": True})
        recorded = load_system_records(EvaluateConfig(**config), load_selection(EvaluateConfig(**config)))
        paid = cost_usd(tmp_path / "run", "proposals", "memory")
        assert recorded[0].spent_usd() == pytest.approx(paid)
        run({**config, "retry_errors": True})
    assert len(server.sizes) == 5
    paid = cost_usd(tmp_path / "run", "proposals", "memory")
    assert cost_usd(tmp_path / "run", "build", "memory") == pytest.approx(paid)


def start(data: Path, folder: Path, server: BatchServer) -> subprocess.Popen[str]:
    command = [
        sys.executable, str(CHECKOUT / "evaluate.py"), "--dataset", str(data), "--systems", "rag", "--batch",
        "--model", "openai/gpt-4.1-mini", "--judge-model", "none", "--output-dir", str(folder),
        "--reply-format", "chat", "--no-mlflow",
    ]  # fmt: skip
    environment = {**os.environ, "OPENAI_BASE_URL": server.url, "OMP_NUM_THREADS": "1"}
    piped = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=piped, stderr=piped, text=True)


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_killed_while_it_waits_collects_the_same_batch_later(ending, tmp_path):
    data = write_conversations(tmp_path / "talks.json", 1)
    journal = tmp_path / "run" / "batches.jsonl"
    with OpenAIBatchServer() as server:
        server.is_held = True
        process = start(data, tmp_path / "run", server)
        until = time.monotonic() + 120
        while server.polled < 2:
            assert time.monotonic() < until, process.communicate()
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        process.send_signal(ending)
        said = process.communicate(timeout=60)
        assert journal.read_text().count("\n") == 1
        assert not (tmp_path / "run" / "rag" / "answers.jsonl").exists()
        server.is_held = False
        process = start(data, tmp_path / "run", server)
        finished = process.communicate(timeout=120)
        assert process.returncode == 0, finished
        assert server.sizes == [9]  # nothing was submitted, and paid for, again
        assert server.batch_keys == {f"Bearer {KEY}"}

    answers = records(tmp_path / "run", "answers")
    assert len(answers) == 9
    assert all(record["answer"]["outcome"] == "ok" for record in answers)
    assert "rag: answer: 9 of 9 done" in finished[0]
    assert KEY not in "".join((*said, *finished))
    for path in (tmp_path / "run").rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path


@pytest.mark.parametrize("kind", [OpenAIBatchServer, AnthropicBatchServer])
def test_a_batch_that_expires_ends_the_run_and_only_the_rest_is_submitted_again(kind, tmp_path, monkeypatch):
    data = write_conversations(tmp_path / "talks.json", 1)
    with kind(expires=[1]) as server:
        point_to(server, monkeypatch)
        config = settings(data, tmp_path / "run", MODELS[kind], batch=True, judge_model="none")
        with pytest.raises(BatchError, match=r"batch_1 expired; calls without a reply: 4; .* same command"):
            run(config)
        assert len(records(tmp_path / "run", "answers")) == 5
        run(config)
        assert server.sizes == [9, 4]
    assert len(records(tmp_path / "run", "answers")) == 9


def test_an_answer_that_cannot_be_read_is_asked_again_after_a_stage_that_broke_off(tmp_path, monkeypatch):
    def reply(prompt: Prompt, seen: int) -> str:
        is_bad = "answer" in prompt.wanted and not refused
        refused.extend([prompt.key] if is_bad else [])
        return "I'm sorry, but I can't help with that." if is_bad else competent_reply(prompt)

    data, refused = write_conversations(tmp_path / "talks.json", 1), list[str]()
    with OpenAIBatchServer(expires=[2], reply=reply) as server:
        point_to(server, monkeypatch)
        config = settings(data, tmp_path / "run", MODELS[OpenAIBatchServer], batch=True)
        with pytest.raises(BatchError, match="batch_2 expired"):
            run(config)
        run({**config, "retry_errors": True})
        assert server.sizes[2] == 1  # and not the old reply once more
    assert records(tmp_path / "run", "answers")[-1]["answer"]["outcome"] == "ok"


def question(text: str, model: str = "openai/gpt-4.1-mini") -> Request:
    config = Config(max_tokens=20, temperature=0.0)
    return Request(model=model, messages=(Message.user(text),), config=config)


def ask_all(queue: BatchQueue, server: BatchServer, texts: Sequence[str]) -> list[str]:
    """Ask all at once, each in a thread of its own; return the replies, or the errors' words."""
    lm = language_model("openai/gpt-4.1-mini", api_base=server.url, batches=queue, first_wait_s=0.01)

    def ask(text: str) -> str:
        try:
            return lm.engine.complete(question(text)).message.text
        except BatchError as error:
            return f"{type(error).__name__}: {error}"

    with ThreadPoolExecutor(len(texts)) as pool:
        asked = [pool.submit(copy_context().run, ask, text) for text in texts]
        return [future.result() for future in asked]


def quick(folder: Path, said: list[str], **more: Any) -> BatchQueue:
    return BatchQueue(folder / "batches.jsonl", said.append, gather_s=0.2, first_poll_s=0.02, **more)


def echo(prompt: Any, seen: int) -> str:
    return f"you said {prompt.user}"


def test_batches_are_halved_until_the_account_takes_them(tmp_path):
    texts, said = [f"question {number}" for number in range(10)], list[str]()
    with OpenAIBatchServer(most_requests=3, reply=echo) as server, quick(tmp_path, said) as queue:
        assert ask_all(queue, server, texts) == [f"you said {text}" for text in texts]
    assert server.sizes == [10, 5, 2, 2, 2, 2, 2]
    assert sum("batches are halved" in line for line in said) == 2


def test_a_batch_holds_one_model_and_no_more_calls_than_allowed(tmp_path):
    texts, said = [f"question {number}" for number in range(7)], list[str]()
    with OpenAIBatchServer(reply=echo) as server, quick(tmp_path, said, max_calls=3) as queue:
        other = language_model("openai/gpt-4.1", api_base=server.url, batches=queue)
        alone = threading.Thread(target=other.engine.complete, args=[question("other", "openai/gpt-4.1")])
        alone.start()
        assert ask_all(queue, server, texts) == [f"you said {text}" for text in texts]
        alone.join()
    assert sorted(server.sizes) == [1, 1, 3, 3]


def test_a_batch_holds_no_more_bytes_than_allowed(tmp_path, monkeypatch):
    monkeypatch.setattr(OpenAIBatchApi, "max_bytes", 3000)  # a request has about 1,300
    texts, said = [f"{number} {'word ' * 200}" for number in range(5)], list[str]()
    with OpenAIBatchServer(reply=echo) as server, quick(tmp_path, said) as queue:
        assert ask_all(queue, server, texts) == [f"you said {text}" for text in texts]
    assert server.sizes == [2, 2, 1]


def test_equal_requests_are_answered_each_and_claimed_each_after_a_kill(tmp_path):
    said = list[str]()
    with OpenAIBatchServer(reply=echo) as server:
        server.is_held = True
        killed = quick(tmp_path, said)
        killed.__enter__()  # and never left, as in a process that is killed
        waiting = threading.Thread(target=ask_all, args=[killed, server, ["again", "again", "once"]])
        waiting.start()
        while not server.polled:
            time.sleep(0.01)
        server.is_held = False
        with quick(tmp_path, said) as queue:
            assert ask_all(queue, server, ["again", "again", "again"]) == ["you said again"] * 3
        assert server.sizes == [3, 1]
        killed.abandon()
        waiting.join()
        with quick(tmp_path, said) as queue:  # one that is used is not given again; one that is not, is
            assert ask_all(queue, server, ["once", "again"]) == ["you said once", "you said again"]
        assert server.sizes == [3, 1, 1]


def test_calls_that_claim_replies_while_others_are_handed_out_are_not_submitted_again(tmp_path):
    def slowly(frame: Any, event: str, arg: object) -> Any:
        if threading.current_thread().name == "batches" and frame.f_code.co_filename.endswith("queue.py"):
            time.sleep(0.001)  # other threads run between any two lines
        return slowly

    texts = [f"question {number}" for number in range(100)]
    with OpenAIBatchServer(reply=echo) as server:
        server.is_held = True
        with quick(tmp_path, []) as queue:
            waiting = threading.Thread(target=ask_all, args=[queue, server, texts])
            waiting.start()
            while not server.polled:
                time.sleep(0.01)
            queue.abandon()
            waiting.join()
        server.is_held = False
        sizes = server.sizes
        before = threading.gettrace()
        threading.settrace(slowly)
        try:
            with quick(tmp_path, []) as queue:
                assert ask_all(queue, server, texts) == [f"you said {text}" for text in texts]
        finally:
            threading.settrace(before)
        assert server.sizes == sizes


def test_calls_of_a_batch_that_the_provider_has_forgotten_are_submitted_again(tmp_path):
    said = list[str]()
    with OpenAIBatchServer(reply=echo) as server:
        with quick(tmp_path, said) as queue:
            ask_all(queue, server, ["hello"])
        first = json.loads((tmp_path / "batches.jsonl").read_text().splitlines()[0])
        (tmp_path / "batches.jsonl").write_text(json.dumps(first | {"key": "batch_9"}) + "\n")
        with quick(tmp_path, said) as queue:
            assert ask_all(queue, server, ["hello"]) == ["you said hello"]
        assert server.sizes == [1, 1]
    assert any("batch_9 is lost: HTTP 404" in line and "submitted again: 1" in line for line in said)


class Locked(OpenAIBatchServer):
    """Refuses the key while it is locked."""

    is_locked = False

    async def _state(self, batch_id: str) -> Response:
        if self.is_locked:
            return JSONResponse({"error": {"message": "Incorrect API key provided."}}, 401)
        return await super()._state(batch_id)


def test_a_batch_that_a_key_may_not_ask_for_is_waited_for_once_the_key_is_mended(tmp_path):
    said, replies = list[str](), list[str]()
    with Locked(reply=echo) as server:
        server.is_held = True
        with quick(tmp_path, said) as queue:
            waiting = threading.Thread(target=lambda: replies.extend(ask_all(queue, server, ["a", "b"])))
            waiting.start()
            while not server.polled:
                time.sleep(0.01)
            server.is_locked = True
            waiting.join()
        server.is_locked = server.is_held = False
        with quick(tmp_path, said) as queue:
            assert ask_all(queue, server, ["a", "b"]) == ["you said a", "you said b"]
        assert server.sizes == [2]
    assert "Incorrect API key provided." in replies[0]
    assert "the same command waits for the batch" in replies[0]
    assert "To fix" not in replies[0]


class Odd(OpenAIBatchServer):
    """Tells the state of a batch first in a way of its own."""

    states: Sequence[object] = ()

    async def _state(self, batch_id: str) -> Response:
        self.states, odd = self.states[1:], self.states[:1]
        return JSONResponse(odd[0]) if odd else await super()._state(batch_id)


@pytest.mark.parametrize(
    "state",
    [
        {"error": {"message": "upstream timed out"}},
        {"status": "in_progress", "request_counts": {"completed": None, "failed": None}},
        {"message": "try again"},
        [],
    ],
)
def test_a_batch_is_not_lost_by_an_odd_answer_about_it(state, tmp_path):
    with Odd(reply=echo) as server, quick(tmp_path, []) as queue:
        server.states = [state]
        assert ask_all(queue, server, ["hello"]) == ["you said hello"]
    assert server.sizes == [1]


@pytest.mark.parametrize("errors", [["no room"], {"data": [{"message": "no room"}]}])
def test_a_batch_that_failed_tells_why(errors, tmp_path):
    with Odd(reply=echo) as server, quick(tmp_path, []) as queue:
        server.states = [{"status": "failed", "errors": errors}]
        (told,) = ask_all(queue, server, ["hello"])
    assert "batch batch_1 failed (no room); calls without a reply: 1" in told


class Busy(OpenAIBatchServer):
    """Asks for a long pause when a batch is asked for."""

    is_busy = True

    async def _state(self, batch_id: str) -> Response:
        if self.is_busy:
            self.polled += 1
            return JSONResponse({"error": {"message": "Too many."}}, 429, headers={"retry-after": "180"})
        return await super()._state(batch_id)


def test_a_batch_is_not_lost_by_a_rate_limit_that_asks_for_a_long_pause(tmp_path):
    said = list[str]()
    with Busy(reply=echo) as server:
        with quick(tmp_path, said) as queue:
            waiting = threading.Thread(target=ask_all, args=[queue, server, ["a", "b"]])
            waiting.start()
            while not server.polled:
                time.sleep(0.01)
            time.sleep(0.3)  # ten polls, if the pause were not kept
            assert (server.polled, waiting.is_alive()) == (1, True)
            queue.abandon()
            waiting.join()
        server.is_busy = False
        with quick(tmp_path, said) as queue:
            assert ask_all(queue, server, ["a", "b"]) == ["you said a", "you said b"]
        assert server.sizes == [2]


class Gateway(BatchServer):
    """Answers the first calls that create a batch with an error, and may pass them on all the same."""

    errors: Sequence[tuple[int, bool]] = ()
    """Of each: the status, and True if the batch is created."""

    async def _create(self, request: fastapi.Request) -> Response:
        errors, self.errors = self.errors[:1], self.errors[1:]
        for status, is_created in errors:
            if is_created:
                await super()._create(request)
            return JSONResponse({"error": {"message": "bad gateway"}}, status)
        return await super()._create(request)


class OpenAIGateway(Gateway, OpenAIBatchServer):
    pass


class AnthropicGateway(Gateway, AnthropicBatchServer):
    pass


@pytest.mark.parametrize(
    "errors", [[(502, True)], [(502, False), (502, True)], [(502, False)], [(429, False)]]
)
def test_a_batch_whose_creation_got_no_reply_is_found_and_not_created_twice(errors, tmp_path):
    with OpenAIGateway(reply=echo) as server, quick(tmp_path, []) as queue:
        server.errors = errors
        assert ask_all(queue, server, ["hello"]) == ["you said hello"]
    assert server.sizes == [1]


class Listless(OpenAIGateway):
    """Does not list its batches."""

    def _list(self, limit: int = 20) -> Response:
        return JSONResponse({"detail": "Not Found"}, 404)


@pytest.mark.parametrize(
    ("kind", "model"),
    [(Listless, "openai/gpt-4.1-mini"), (AnthropicGateway, "anthropic/claude-haiku-4-5")],
)
def test_a_batch_that_may_have_been_created_and_cannot_be_found_is_not_created_again(kind, model, tmp_path):
    with kind(reply=echo) as server, quick(tmp_path, []) as queue:
        server.errors = [(502, True)]
        lm = language_model(model, api_base=server.url, batches=queue)
        with pytest.raises(
            BatchError, match=r"a batch of 1 calls may have been created, .*batches or on the"
        ):
            lm.engine.complete(question("hello", model))
    assert server.sizes == [1]


def test_a_batch_that_anthropic_did_not_take_is_created_later(tmp_path):
    with AnthropicGateway(reply=echo) as server, quick(tmp_path, []) as queue:
        server.errors = [(429, False), (529, False)]
        lm = language_model(MODELS[AnthropicBatchServer], api_base=server.url, batches=queue)
        reply = lm.engine.complete(question("hello", MODELS[AnthropicBatchServer]))
    assert (reply.message.text, server.sizes) == ("you said hello", [1])


def test_a_batch_cannot_have_been_created_if_no_connection_was_made():
    api = OpenAIBatchApi("openai/m", "http://127.0.0.1:9/v1", None)
    with pytest.raises(TransportError) as refused:
        api.create({})
    assert was_refused(refused.value)
    assert not was_refused(TransportError("the connection was dropped"))


def test_calls_fail_when_a_batch_cannot_be_recorded(tmp_path, monkeypatch):
    def full(self: object, record: object) -> None:
        raise OSError(28, "No space left on device")

    server, queue = OpenAIBatchServer(reply=echo), quick(tmp_path, [], max_calls=2)
    with server, queue, monkeypatch.context() as patch:
        patch.setattr(Journal, "add", full)
        replies = ask_all(queue, server, ["a", "b", "c"])
    assert len([reply for reply in replies if "batches.jsonl' cannot be written" in reply]) == 3


def test_a_server_without_batches_is_told_apart(tmp_path):
    said = list[str]()
    with OpenAIBatchServer() as server, quick(tmp_path, said) as queue:
        lm = language_model("openai/m", api_base=f"{server.url}/nowhere", batches=queue)
        with pytest.raises(
            BatchError, match=r"a batch of 1 calls was not accepted: HTTP 404.*/nowhere/files"
        ):
            lm.engine.complete(question("hello"))


def test_a_parameter_that_the_model_refuses_in_a_batch_is_left_out_of_the_next(tmp_path):
    server, queue = OpenAIBatchServer(reply=echo, refuses=["temperature"]), quick(tmp_path, [])
    with server, queue, track_usage() as meter:
        assert ask_all(queue, server, ["hello", "you"]) == ["you said hello", "you said you"]
    sent = ["temperature" in body for batch in server.batches.values() for body in batch.requests.values()]
    assert sent == [True, True, False, False]
    assert (meter.usage.calls, meter.usage.failed_calls) == (2, 0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": "local:weights"}, "'local:weights' has no batch API: choose a model of openai/ or anthr"),
        ({"model": "vllm:Qwen/Qwen3-8B"}, "'vllm:Qwen/Qwen3-8B' has no batch API"),
        ({"model": "gemini/gemini-2.5-flash"}, "'gemini/gemini-2.5-flash' has no batch API"),
        ({"dataset": "sample", "model": None}, "'pocket' has no batch API"),
        ({"judge_model": "local:weights"}, "'local:weights' has no batch API"),
        ({"systems": "memory"}, "build='sequential' would take a batch for each session: add --build two-ph"),
        ({"executor": "ray"}, "batch=True works in one process, and executor='ray' uses several"),
    ],
)
def test_a_batch_that_cannot_be_is_refused_before_the_run(changed, message, tmp_path):
    config = settings(tmp_path / "talks.json", tmp_path / "run", "openai/gpt-4.1-mini", batch=True)
    with pytest.raises(ConfigError, match=message):
        EvaluateConfig(**(config | changed))
