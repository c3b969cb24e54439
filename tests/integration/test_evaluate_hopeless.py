"""Models and servers with which a run cannot succeed: it ends early, says why, and never with exit code 0."""

import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from memory_program.cli import run_evaluate
from tests.competent_model import chat_format
from tests.conftest import CHECKOUT
from tests.evaluation_samples import write_conversations
from tests.model_server import Behave, Behaviour, ModelServer, always

LOOP = "1. " * 400


def evaluate(
    folder: Path, server: ModelServer, *flags: str, sessions: int = 6, own_process: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run evaluate.py; most tests do so in this process, which has imported what takes seconds to import."""
    data = write_conversations(folder / "talks.json", 1, sessions=sessions)
    arguments = [
        "--dataset", str(data), "--output-dir", str(folder / "run"), "--no-mlflow", "--judge-model", "none",
        "--api-base", server.url, "--model", "openai/test", *flags,
    ]  # fmt: skip
    if own_process:
        command = [sys.executable, str(CHECKOUT / "evaluate.py"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    with redirect_stdout(StringIO()) as output, redirect_stderr(StringIO()) as errors:
        status = run_evaluate(arguments)
    return subprocess.CompletedProcess(arguments, status, output.getvalue(), errors.getvalue())


def test_a_build_with_useless_replies_ends_after_three_sessions_and_can_go_on(tmp_path):
    def reply(prompt, seen):
        return "ready" if "ready" in prompt.user else LOOP

    with ModelServer(reply=reply) as server:
        ended = evaluate(tmp_path, server, "--systems", "memory", "--mode", "build", own_process=True)
    assert ended.returncode == 1
    (line,) = ended.stderr.strip().splitlines()
    assert line.startswith("error: 12 of the first 12 replies were cut or cannot be read; the first: writer.")
    assert "1. 1. 1." in line
    assert (
        "choose another model, a larger --max-reply-tokens or, for writer and reader, --reply-format json"
        in line
    )
    assert server.traffic.requests.total() == 2 + 3 * 4  # and two, to check the model and its formats
    kept = (tmp_path / "run/memory/build.jsonl").read_text().splitlines()
    assert len(kept) == 3
    with ModelServer() as good:
        again = evaluate(tmp_path, good, "--systems", "memory", "--retry-errors")
    assert again.returncode == 0, again.stderr
    assert "memory: build: 6 of 6 done" in again.stdout


def test_a_build_whose_tool_calls_are_all_refused_ends_after_three_sessions(tmp_path):
    example = {"name": "manage_memory", "args": {"action": "create", "text": "<one fact from the session>"}}
    with ModelServer(
        reply=lambda prompt, seen: chat_format({"tool_calls": json.dumps({"tool_calls": [example]})})
    ) as server:
        ended = evaluate(tmp_path, server, "--systems", "memory", "--mode", "build", "--concurrency", "1")
        forced = evaluate(tmp_path, server, "--systems", "memory", "--mode", "build", "--max-errors", "9999")
    assert ended.returncode == 1
    (line,) = ended.stderr.strip().splitlines()
    assert line.startswith(
        "error: all of the first 12 tool calls were refused, so nothing is remembered; the"
    )
    assert "the first: core: manage_memory: " in line
    assert "memory: build: 3 of 3 done" in forced.stdout


@pytest.mark.parametrize("reply_format", ["chat", "json"])
def test_answers_that_are_cut_end_the_run_after_ten(tmp_path, reply_format):
    flags = ["--systems", "no-memory", "--concurrency", "1", "--reply-format", reply_format]
    with ModelServer(only("Answer a question", Behaviour.CUT)) as server:
        ended = evaluate(tmp_path, server, *flags)
    assert ended.returncode == 1
    assert (
        "error: 10 of the first 10 replies were cut or cannot be read; the first: reader.answer"
        in ended.stderr
    )
    assert ("--reply-format json" in ended.stderr) == (
        reply_format == "chat"
    )  # no advice to do what was done


def only(part: str, behaviour: Behaviour) -> Behave:
    return lambda prompt, seen: behaviour if part in prompt.system + prompt.user else Behaviour.COMPETENT


@pytest.mark.parametrize(
    ("mode", "part", "flags", "told"),
    [
        (
            "full",
            "Answer a question",
            ["--systems", "no-memory"],
            "no-memory answer: 5 failed, the first: reader",
        ),
        (
            "answer",
            "Answer a question",
            ["--systems", "rag"],
            "rag answer: 5 failed, the first: reader.answer",
        ),
        ("build", "memor", ["--systems", "memory"], "memory build: 8 failed, the first: writer."),
    ],
)
def test_a_stage_in_which_every_call_fails_is_an_error_with_the_first_reason(
    tmp_path, mode, part, flags, told
):
    with ModelServer(only(part, Behaviour.BAD_KEY)) as server:
        ended = evaluate(tmp_path, server, "--mode", mode, *flags, sessions=2)
    assert ended.returncode == 1
    assert f"error: every item of a stage failed: {told}" in ended.stderr
    assert "Incorrect API key" in ended.stderr
    if mode == "full":
        assert (tmp_path / "run/results.json").exists()


def test_some_failed_answers_are_a_warning_with_the_first_reason(tmp_path):
    def behave(prompt, seen):
        return Behaviour.REFUSAL if "violin" in prompt.user else Behaviour.COMPETENT

    with ModelServer(behave) as server:
        ended = evaluate(tmp_path, server, "--systems", "no-memory", "--num-test", "5", sessions=2)
        assert ended.returncode == 0, ended.stderr
        assert "no-memory: 1 failed in answer (1 unparsed), counted but not scored" in ended.stdout
        assert "--retry-errors repeats them; the first: reader.answer: " in ended.stdout
        part = evaluate(tmp_path, server, "--systems", "no-memory", "--mode", "answer", sessions=2)
    assert part.returncode == 0
    assert "no-memory answer: 1 failed, the first: reader.answer: " in part.stdout


def test_a_server_that_never_answers_is_found_before_the_first_item(tmp_path):
    with ModelServer(always(Behaviour.BAD_KEY)) as server:
        ended = evaluate(tmp_path, server, "--systems", "no-memory")
    assert ended.returncode == 2
    assert "the model of the reader cannot be used: 'openai/test' at http://127.0.0.1" in ended.stderr
    assert "--reader-model and --reader-api-base" in ended.stderr
