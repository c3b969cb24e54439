"""``benchmarks/libraries.py``: the proxy that counts, and mem0 and LangMem before a scripted server."""

import importlib.util
import json
import re
import subprocess
import sys

import httpx
import pytest

from benchmarks.counting_proxy import CountingProxy, Traffic, count_call
from memory_program.models.factory import language_model
from tests.competent_model import Prompt, competent_reply
from tests.conftest import CHECKOUT
from tests.embedding_server import EmbeddingServer
from tests.evaluation_samples import write_conversations
from tests.model_server import Behaviour, ModelServer, always

ASKED = {"model": "test", "messages": [{"role": "user", "content": "Are you ready?"}]}


def ask(address: str, **body: object) -> httpx.Response:
    return httpx.post(f"{address}/chat/completions", json={**ASKED, **body}, timeout=30)


# -- the proxy -------------------------------------------------------------------------------------


def test_the_proxy_counts_calls_and_tokens_by_label():
    with ModelServer() as server, CountingProxy(server.url) as proxy:
        whole = ask(proxy.url("mem0", "write", "a/b"))
        streamed = ask(proxy.url("mem0", "answer"), stream=True, stream_options={"include_usage": True})
        one = proxy.traffic("mem0", "write")
        assert httpx.get(f"{proxy.url('mem0', 'write')}/models").json()["data"] == [
            {"id": "test", "object": "model"}
        ]
        assert whole.json()["choices"][0]["message"]["content"] == "ready"
        assert streamed.text.endswith("data: [DONE]\n\n")
        assert one == Traffic(1, 0, whole.json()["usage"]["prompt_tokens"], 1)
        assert proxy.traffic("mem0") == one + one
        assert proxy.traffic("mem0", "write", "a") == proxy.traffic("mem") == Traffic()
        assert server.traffic.requests.total() == 2


@pytest.mark.parametrize(
    ("behaviour", "status"),
    [(Behaviour.SERVER_ERROR, 500), (Behaviour.RATE_LIMIT_WITH_HINT, 429), (Behaviour.NO_CHOICES, 200)],
)
def test_the_proxy_counts_failures_and_passes_them_on(behaviour, status):
    with ModelServer(always(behaviour)) as server, CountingProxy(server.url) as proxy:
        reply = ask(proxy.url("x"))
        assert (reply.status_code, proxy.traffic("x")) == (status, Traffic(calls=1, failed=1))
        assert ("retry-after" in reply.headers) == (status == 429)


def test_a_server_that_is_gone_or_breaks_off_is_a_failure():
    with ModelServer(always(Behaviour.DISCONNECT)) as server, CountingProxy(server.url) as proxy:
        ask(proxy.url("x"))
        assert proxy.traffic("x") == Traffic(calls=1, failed=1)
    with CountingProxy("http://127.0.0.1:9/v1") as proxy:
        assert ask(proxy.url("x")).status_code == 502
        assert proxy.traffic("x") == Traffic(calls=1, failed=1)


def test_the_tokens_of_a_reply_that_the_client_stopped_are_estimated():
    with ModelServer(always(Behaviour.LOOP), token_s=0.001) as server, CountingProxy(server.url) as proxy:
        lm = language_model("openai/test", api_base=proxy.url("x"), max_tokens=4000, max_retries=0)
        lm("Count.")
        stopped = proxy.traffic("x")
    assert (stopped.calls, stopped.failed, stopped.estimated) == (1, 0, 1)
    assert 50 < stopped.output_tokens < 2000
    assert stopped.input_tokens > 0


def test_a_whole_reply_without_usage_is_estimated():
    reply = b'{"choices": [{"message": {"content": "yes"}}]}'
    assert count_call(b"x" * 80, reply, 200, is_whole=True) == Traffic(1, 0, 20, 0, estimated=1)


# -- the libraries ---------------------------------------------------------------------------------


def said(prompt: Prompt) -> list[str]:
    """Find the first lines of a session that say something, in the prompt of either library."""
    session = prompt.user.partition("## New Messages")[2].partition("\n\n## ")[0] or prompt.user
    lines = re.findall(r"^(?:user: |assistant: )?(\w+: .{20,})$", session, re.MULTILINE)
    return lines[:3]


def reply(prompt: Prompt, seen: int) -> str:
    if "Memory Extractor" not in prompt.system:
        return competent_reply(prompt)
    return json.dumps({"memory": [{"id": str(n), "text": line} for n, line in enumerate(said(prompt))]})


def behave(prompt: Prompt, seen: int) -> Behaviour:
    """Fail the first try of each session for mem0, and every call about one session for LangMem."""
    if "memory subroutine" in prompt.system and "2 May 2023" in prompt.user:
        return Behaviour.BAD_KEY
    return Behaviour.SERVER_ERROR if "Memory Extractor" in prompt.system and not seen else Behaviour.COMPETENT


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "benchmarks/libraries.py", *flags]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False, timeout=250)


def test_mem0_and_langmem_are_scored_and_counted_beside_this_project(tmp_path):
    for name in ("mem0", "langmem", "langchain_openai"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}: pip install 'memory-program[bench]'")
    out, talks = tmp_path / "run", write_conversations(tmp_path / "talks.json", 1, sessions=2)
    calls = lambda prompt: [("Memory", {"content": line}) for line in said(prompt)]  # noqa: E731
    with ModelServer(behave, reply=reply, calls=calls) as server, EmbeddingServer() as embeddings:
        flags = ["--model", "openai/test", "--api-base", server.url, "--embedder", "openai/themes"]
        flags += ["--embedder-api-base", embeddings.url, "--dataset", str(talks), "--output-dir", str(out)]
        done = run(*flags)
        assert done.returncode == 0, done.stderr
        requests = server.traffic.requests.total()
    names = ("memory", "mem0", "langmem")
    read = {name: json.loads((out / name / "traffic.json").read_text()) for name in names}
    write = {name: Traffic(**found["write"]) for name, found in read.items()}
    assert sum(write[name].calls + read[name]["answer"]["calls"] for name in names) == requests
    systems = json.loads((out / "results.json").read_text())["systems"]
    assert list(systems) == ["mem0", "langmem"]
    for name, system in systems.items():
        usage = system["usage"]["build"]
        spent = (usage["calls"], usage["failed_calls"], usage["input_tokens"], usage["output_tokens"])
        assert Traffic(*spent) == write[name]
        assert (system["memory"]["sessions"], system["usage"]["answer"]["calls"]) == (2, 5)
        assert system["locomo_f1"]["all"]["n"] > 0
        lines = [json.loads(line) for line in (out / name / f"{name}.jsonl").read_text().splitlines()]
        shown = [memory for line in lines if "question_id" in line for memory in line["memories"]]
        assert all(re.search(r" \[\d+ May 2023\]$", memory) for memory in shown)
        assert any(shown)
    assert (write["mem0"].calls, write["mem0"].failed) == (4, 2)
    assert systems["mem0"]["failures"]["build"]["error"] == 0  # the second tries worked
    assert systems["langmem"]["failures"]["build"]["error"] == 1
    assert "nothing was written" in systems["langmem"]["first_failures"]["build"]
    own = json.loads((out / "memory" / "results.json").read_text())["systems"]["memory"]
    assert write["memory"].calls >= own["usage"]["build"]["calls"] == 8
    page = (out / "report.html").read_text()
    for name in names:
        assert name in page
        assert re.search(rf"^ {name} .*\d", done.stdout, re.MULTILINE)
    again = run(*flags)  # the servers are gone, and every system is finished
    assert (again.returncode, "langmem: finished before" in again.stdout) == (0, True), again.stderr
    other = run(*flags, "--num-test", "2")
    assert other.returncode == 2
    assert "was made with other settings (num_test): choose another --output-dir" in other.stderr


def test_without_a_library_evaluate_is_named(tmp_path):
    flags = ["--model", "openai/x", "--api-base", "http://127.0.0.1:9/v1", "--embedder", "openai/y"]
    done = run(*flags, "--systems", "memory", "--output-dir", str(tmp_path))
    assert done.returncode == 2
    assert "names neither mem0 nor langmem: evaluate.py compares the others" in done.stderr
