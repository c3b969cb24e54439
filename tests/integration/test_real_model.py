"""SmolLM2-135M-Instruct in this process: grammars, stops, loops, a GGUF file, and a session of LoCoMo."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from dspy.lm15 import Config, Message, Request, Response

from locomo.locomo import read_conversations
from memory_program.agents.program import MemoryProgram
from memory_program.agents.writer import MemoryWriter
from memory_program.bank.space import MemorySpace
from memory_program.inference.engine import LocalEngine, LocalSettings
from memory_program.models.factory import language_model
from memory_program.models.local_model import LocalModel
from memory_program.models.model_names import model_fingerprint
from memory_program.models.reply_settings import ReplyFormat, ReplySettings
from memory_program.models.usage import track_usage
from tests.real_models import fetch_folder, fetch_gguf

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(600)]

QUESTIONS = ["What is a dog?", "Name a city in Norway.", "Why does it rain?", "Write a line about music."]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "kind": {"enum": ["person", "place", "thing"]},
        "facts": {"type": "array", "maxItems": 2, "items": {"type": "string", "maxLength": 30}},
    },
    "required": ["name", "kind", "facts"],
    "additionalProperties": False,
}
HELD = {"max_tokens": 120, "response_format": {"type": "json_schema", "schema": SCHEMA}}


@pytest.fixture(scope="module")
def folder() -> Path:
    return fetch_folder()


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[LocalEngine]:
    engine = LocalEngine(LocalSettings(source=str(folder), dtype="float32", device="cpu"))
    yield engine
    engine.close()


def ask(engine: LocalEngine, question: str, **config: Any) -> Response:
    settings = {"temperature": 0.0, "max_tokens": 12, **config}
    request = Request(model="m", messages=(Message.user(question),), config=Config(**settings))
    return engine.complete(request)


def ask_all(engine: LocalEngine, questions: list[str], **config: Any) -> list[Response]:
    with ThreadPoolExecutor(len(questions)) as threads:
        return list(threads.map(lambda question: ask(engine, question, **config), questions))


def test_greedy_text_is_the_same_alone_and_in_a_batch(engine: LocalEngine) -> None:
    alone = [ask(engine, question).text for question in QUESTIONS]
    assert [response.text for response in ask_all(engine, QUESTIONS)] == alone
    assert len(set(alone)) == len(QUESTIONS)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 1}, {"temperature": 2.0, "seed": 2}])
def test_a_reply_held_to_a_schema_always_parses(engine: LocalEngine, sampling: dict[str, Any]) -> None:
    for response in ask_all(engine, QUESTIONS, **HELD, **sampling):
        assert response.finish_reason == "stop"
        told = json.loads(response.text or "")
        assert list(told) == ["name", "kind", "facts"]
        assert told["kind"] in ("person", "place", "thing")
        assert len(told["facts"]) <= 2


def test_a_stop_string_ends_a_reply(engine: LocalEngine) -> None:
    whole = ask(engine, QUESTIONS[0]).text or ""
    stop = whole.split()[3]
    response = ask(engine, QUESTIONS[0], stop=(stop,))
    assert (response.text, response.finish_reason) == (whole[: whole.index(stop)], "stop")


def test_a_reply_that_repeats_itself_is_stopped_long_before_its_limit(engine: LocalEngine) -> None:
    response = ask(engine, "Write the letter a one hundred times.", max_tokens=2000)
    assert response.provider_data == {"is_repetitive": True}
    assert (response.usage.output_tokens or 0) <= 256


@pytest.mark.parametrize("capability", ["amx_bf16", "avx512_bf16"])
def test_a_large_model_computes_in_bfloat16_on_a_processor_that_multiplies_it(
    capability: str, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {capability: True}, raising=False)
    engine = LocalEngine(LocalSettings(source=str(folder), device="cpu"))
    engine.close()
    assert engine.model.network.dtype == torch.bfloat16
    assert "computes in bfloat16" in caplog.text


@pytest.mark.slow  # 40 s in the parser of transformers; tests/unit/test_gguf_export.py reads a small file
def test_a_gguf_file_answers_as_its_folder_does(engine: LocalEngine) -> None:
    gguf = fetch_gguf()
    from_file = LocalEngine(LocalSettings(source=str(gguf), dtype="float32", device="cpu"))
    for question in QUESTIONS[:2]:
        assert ask(from_file, question).text == ask(engine, question).text
    from_file.close()
    name = f"local:{gguf}"
    assert model_fingerprint(name).startswith(f"{name}@")


@pytest.mark.dataset
def test_a_session_of_locomo_ends_with_a_record_of_every_call(folder: Path, locomo_path: Path) -> None:
    conversation = read_conversations(locomo_path)[0]
    lm = language_model(f"local:{folder}")
    program = MemoryProgram(MemoryWriter(replies=ReplySettings(ReplyFormat.CHAT, max_tokens=32)))
    program.set_lm(lm)
    space = MemorySpace("caroline")
    first = conversation.sessions[0]
    with track_usage() as meter:
        record = program.remember(space, replace(first, turns=first.turns[:4]))
    assert isinstance(lm.engine, LocalModel)
    lm.engine.local.close()
    assert len(space.sessions) == 1
    assert meter.usage.failed_calls == 0
    assert all(call.usage.output_tokens <= 32 for call in meter.calls)
    # a model of this size rarely keeps to the format: what it cannot write is counted
    assert len(meter.calls) == 4
    assert len(record.failures) <= 4
