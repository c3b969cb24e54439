"""Each role has its own server and key, and only the servers that a mode calls are reached."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.core.errors import ConfigError, ModelError, RecordError
from memory_program.core.json_files import Json
from memory_program.evaluation.evaluation_run import evaluate
from memory_program.models.factory import RemoteModel, language_model
from tests.evaluation_samples import write_conversations
from tests.model_server import ModelServer

pytestmark = pytest.mark.usefixtures("plots_are_not_drawn")

NOBODY = "http://127.0.0.1:9/v1"
ALL_KEYS = ("OPENAI_API_KEY", "WRITER_API_KEY", "READER_API_KEY", "JUDGE_API_KEY")


@pytest.fixture
def talks(tmp_path: Path) -> Path:
    return write_conversations(tmp_path / "talks.json", 2, sessions=2)


def run(talks: Path, **settings: Any) -> tuple[Json | None, str]:
    console = Console(file=io.StringIO(), width=200)
    folder = talks.parent
    defaults = {
        "dataset": str(talks),
        "systems": "memory",
        "mlflow": False,
        "rubrics": "lenient",
        "output_dir": folder / "run",
        "db_url": f"sqlite:///{folder / 'banks.sqlite'}",
    }
    results = evaluate(EvaluateConfig(**{**defaults, **settings}), console=console)
    return results, console.file.getvalue()


def asked(server: ModelServer) -> set[str]:
    return {body["model"] for body in server.traffic.bodies}


def test_a_build_and_its_answers_come_from_two_servers_of_which_the_first_is_stopped(talks):
    with ModelServer() as first:
        build = {"mode": "build", "writer_model": "openai/a", "writer_api_base": first.url}
        others = {"reader_model": "openai/b", "reader_api_base": NOBODY, "judge_api_base": NOBODY}
        run(talks, **build, **others)
        stopped = first.url
    assert asked(first) == {"a"}
    answer = {"mode": "answer", "reader_model": "openai/b", "writer_api_base": stopped}
    elsewhere = {"output_dir": talks.parent / "elsewhere"}
    with ModelServer() as second:
        _, output = run(talks, **answer, **elsewhere, reader_api_base=second.url, judge_api_base=NOBODY)
    assert asked(second) == {"b"}
    assert "memory: answers from the banks that openai/a wrote" in output
    answers = (talks.parent / "elsewhere/memory/answers.jsonl").read_text().splitlines()
    outcomes = [json.loads(line)["answer"]["outcome"] for line in answers]
    assert outcomes == ["ok"] * 10
    with ModelServer() as third:  # neither the writer nor the reader is called
        judge = {"mode": "judge", "judge_model": "openai/c", "judge_api_base": third.url}
        before = json.loads((talks.parent / "elsewhere/config.json").read_text())
        run(talks, **judge, **elsewhere, writer_api_base=stopped, reader_api_base=NOBODY)
        after = json.loads((talks.parent / "elsewhere/config.json").read_text())
        assert {name for name in after if after[name] != before[name]} == {"judge_model", "judge_api_base"}
    assert asked(third) == {"c"}
    results, _ = run(talks, mode="report", **elsewhere)
    assert results is not None
    memory = results["systems"]["memory"]
    assert memory["failures"]["all"] == 0
    assert "|writer:openai/a|" in memory["signature"]
    assert memory["judge"]["lenient"]["all"]["n"] == 8


def test_the_writer_of_several_that_fit_is_asked_for(talks):
    with ModelServer() as server:
        for writer in ("openai/a", "openai/z"):
            run(talks, mode="build", writer_model=writer, api_base=server.url)
        answer = {"mode": "answer", "reader_model": "openai/b", "api_base": server.url}
        message = "written by 'openai/a' and by 'openai/z': name one with --writer-model"
        with pytest.raises(ConfigError, match=message):
            run(talks, **answer)
        run(talks, **answer, writer_model="openai/z")
        with pytest.raises(RecordError, match=r"no bank fits .*there are banks of 'openai/a' and 'openai/z'"):
            run(talks, **answer, memory_budget=99)
        with pytest.raises(RecordError, match=r"4 sessions .* are not built .*'openai/a' and 'openai/z' are"):
            run(talks, **answer, writer_model="openai/typo")


@pytest.mark.parametrize(
    ("role", "settings"),
    [
        ("writer", {"mode": "build", "writer_api_base": NOBODY}),
        ("reader", {"systems": "rag", "reader_api_base": NOBODY}),
        ("judge", {"judge_api_base": NOBODY}),
    ],
)
def test_the_error_of_a_server_names_its_role_and_flags(talks, role, settings, monkeypatch):
    monkeypatch.setattr("memory_program.evaluation.role_models.language_model", impatient)
    with (
        ModelServer() as server,
        pytest.raises(ModelError, match=f"model of the {role} .*127.0.0.1:9.*--{role}-api-base"),
    ):
        run(talks, model="openai/m", api_base=server.url, **settings)


def impatient(name: str, **settings: Any) -> Any:
    return language_model(name, max_retries=0, **settings)


def test_a_key_of_a_role_goes_before_that_of_the_provider(talks, monkeypatch):
    for name in ALL_KEYS:
        monkeypatch.setenv(name, f"sk-{name}")
    with ModelServer() as server:
        run(talks, model="openai/m", api_base=server.url, num_test=1)
    assert server.traffic.keys == {"sk-WRITER_API_KEY", "sk-READER_API_KEY", "sk-JUDGE_API_KEY"}
    monkeypatch.delenv("WRITER_API_KEY")
    with ModelServer() as server:
        run(talks, mode="build", writer_model="openai/m", api_base=server.url, memory_budget=9_999)
    assert server.traffic.keys == {"sk-OPENAI_API_KEY"}


def test_a_model_of_another_provider_takes_the_key_of_its_role(monkeypatch):
    monkeypatch.setenv("READER_API_KEY", "sk-reader")
    with ModelServer() as server:
        lm = language_model("together_ai/test", api_base=server.url, key_variable="READER_API_KEY")
        copy = RemoteModel.load_state(lm.engine.dump_state())
        assert lm("hello")
    assert server.traffic.keys == {"sk-reader"}
    assert copy.key_variable == "READER_API_KEY"
    assert "sk-reader" not in repr(lm.engine.dump_state())


def test_a_served_model_has_no_price_and_another_role_keeps_its_own(talks):
    with ModelServer() as server:
        settings = {"systems": "rag", "mode": "answer", "reader_api_base": server.url}
        _, output = run(talks, model="openai/gpt-4.1-mini", **settings)
    assert "rag answer: 10 calls to openai/gpt-4.1-mini" in output
    assert "price unknown" in output


def test_a_named_none_switches_the_judge_off(talks):
    with ModelServer() as server:
        results, _ = run(talks, systems="rag", model="openai/m", judge_model="none", api_base=server.url)
    assert results is not None
    assert results["systems"]["rag"]["judge"] is None
    assert "|judge:none|" in results["systems"]["rag"]["signature"]
    with pytest.raises(ConfigError, match="mode='judge' needs a judge"):
        run(talks, mode="judge", model="openai/m", judge_model="none")
