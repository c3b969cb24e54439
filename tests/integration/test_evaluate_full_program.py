"""Every system with every stage, over real HTTP, against a server that fails one call in twenty."""

import io
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import dspy
import pytest
from rich.console import Console

from memory_program.agents.systems import load_program, make_system
from memory_program.bank.bank import MemoryBank
from memory_program.bank.store import BankStore
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.configs.groups import SystemSettings, WriterSettings
from memory_program.core.errors import BudgetExceededError, ConfigError, ModelError
from memory_program.core.json_files import Json
from memory_program.core.mlflow_address import import_mlflow
from memory_program.evaluation.evaluation_run import evaluate
from memory_program.evaluation.role_models import ModelFactory
from memory_program.models.factory import AdaptiveLimiter, language_model
from memory_program.tracking import EXPERIMENT
from tests.evaluation_samples import write_conversations
from tests.model_server import Behaviour, ModelServer, always, at_random

pytestmark = pytest.mark.usefixtures("plots_are_not_drawn")

SYSTEMS = ("memory", "rag", "full-context", "no-memory")
GIVES_NOTHING = (
    Behaviour.CUT,
    Behaviour.CUT_SILENTLY,
    Behaviour.EMPTY,
    Behaviour.REFUSAL,
    Behaviour.RATE_LIMIT,
    Behaviour.SERVER_ERROR,
    Behaviour.DISCONNECT,
    Behaviour.HTML,
    Behaviour.NO_CHOICES,
)


def impatient(url: str) -> ModelFactory:
    """Make real models of a server, which retry soon and wait briefly."""
    limiter = AdaptiveLimiter(8)

    def make(name: str, temperature: float) -> dspy.LM:
        return language_model(
            name,
            api_base=url,
            temperature=temperature,
            timeout_s=5.0,
            max_retries=2,
            first_wait_s=0.02,
            limiter=limiter,
        )

    return make


def run(config: EvaluateConfig, server: ModelServer) -> tuple[Json, str]:
    console = Console(file=io.StringIO(), width=120)
    results = evaluate(config, console=console, models=impatient(server.url))
    assert results is not None
    return results, console.file.getvalue()


def settings(data: Path, output_dir: Path, **more: Any) -> dict[str, Any]:
    defaults = {"dataset": str(data), "model": "openai/test", "output_dir": output_dir, "mlflow": False}
    return {**defaults, "systems": ",".join(SYSTEMS), **more}


def assert_banks_are_their_logs(output_dir: Path, conversations: int) -> None:
    with BankStore(f"sqlite:///{output_dir / 'banks.sqlite'}") as store:
        assert len(store.namespaces()) == conversations
        for namespace in store.namespaces():
            bank = store.load(namespace).bank
            replayed = MemoryBank.replay(namespace, bank.operations())
            assert (replayed.live(), replayed.core) == (bank.live(), bank.core)
            assert bank.live()


def assert_four_comparable_runs(output_dir: Path, results: Json) -> None:
    client = import_mlflow().MlflowClient(tracking_uri=f"sqlite:///{output_dir.parent / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(EXPERIMENT)
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = (run for run in runs if "mlflow.parentRunId" not in run.data.tags)
    children = {run.data.params["system"]: run for run in runs if run is not parent}
    assert sorted(children) == sorted(SYSTEMS)
    for name, child in children.items():
        assert child.info.status == "FINISHED"
        assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert child.data.tags["dataset.sha256"] == results["dataset"]["sha256"]
        score = results["systems"][name]["locomo_f1"]["all"]["value"]
        assert child.data.metrics["locomo_f1/all"] == pytest.approx(score)
        assert child.data.metrics["failures"] == results["systems"][name]["failures"]["all"]
        files = {entry.path for entry in client.list_artifacts(child.info.run_id)}
        assert {"answers.jsonl", "judgements.jsonl", "program.json", "questions.jsonl"} <= files
    ranked = ("recall/", "retrieval/")  # not every system ranks something
    names = [frozenset(n for n in c.data.metrics if not n.startswith(ranked)) for c in children.values()]
    assert len(set(names)) == 1  # side by side in the compare view
    assert {"results.json", "score_by_category.png", "tokens_against_score.png"} <= {
        entry.path for entry in client.list_artifacts(parent.info.run_id)
    }


def assert_failures_are_those_of_the_records(output_dir: Path, results: Json) -> None:
    for name in SYSTEMS:
        found: dict[str, Counter[str]] = {"build": Counter(), "answer": Counter(), "judge": Counter()}
        for line in (output_dir / name / "build.jsonl").read_text().splitlines():
            found["build"].update(failure["outcome"] for failure in json.loads(line)["record"]["failures"])
        for line in (output_dir / name / "answers.jsonl").read_text().splitlines():
            found["answer"][json.loads(line)["answer"]["outcome"]] += 1
        for line in (output_dir / name / "judgements.jsonl").read_text().splitlines():
            found["judge"][json.loads(line)["outcome"]] += 1
        failures = results["systems"][name]["failures"]
        for stage, counts in found.items():
            assert failures[stage] == {
                kind: counts[kind] for kind in ("error", "unparsed", "truncated", "missing")
            }


def test_every_stage_of_every_system_over_a_faulty_server(tmp_path):
    data, output_dir = write_conversations(tmp_path / "talks.json", 2, sessions=8), tmp_path / "runs/one"
    with ModelServer(at_random(0.05, seed=1, faults=GIVES_NOTHING)) as server:
        config = EvaluateConfig(**settings(data, output_dir, mlflow=True))
        results, output = run(config, server)
        asked = server.traffic.behaviours.total()
        again, second_output = run(config, server)
        assert server.traffic.behaviours.total() == asked  # the second run asks nothing
    failed = sum(results["systems"][name]["failures"]["all"] for name in SYSTEMS)
    assert failed > 0
    assert "counted but not scored; --retry-errors repeats them" in output
    assert {**again, "git_commit": None} == {**results, "git_commit": None}
    assert second_output.count(": 0 of ") == 3 * len(SYSTEMS)
    assert_failures_are_those_of_the_records(output_dir, results)
    assert_banks_are_their_logs(output_dir, conversations=2)
    assert_four_comparable_runs(output_dir, results)
    for name in SYSTEMS:
        system = results["systems"][name]
        unanswered = sum(system["failures"]["answer"].values())
        assert system["locomo_f1"]["all"]["n"] + system["abstention"]["n"] == 2 * 17 - unanswered
        assert system["judge"]["lenient"]["all"]["n"] <= system["locomo_f1"]["all"]["n"]
    assert (
        results["systems"]["memory"]["tokens_per_question"]
        > results["systems"]["no-memory"]["tokens_per_question"]
    )
    assert results["systems"]["memory"]["calls"] > results["systems"]["rag"]["calls"]
    assert len(results["comparisons"]) == 6 * 3


@pytest.mark.dataset
@pytest.mark.timeout(900)
def test_a_conversation_of_locomo_over_a_faulty_server(locomo_path, tmp_path):
    output_dir = tmp_path / "runs/locomo"
    with ModelServer(at_random(0.05, seed=2)) as server:
        config = EvaluateConfig(
            dataset="locomo",
            data=locomo_path,
            conversations="conv-30",
            systems=",".join(SYSTEMS),
            model="openai/test",
            rubrics="lenient",
            output_dir=output_dir,
        )
        results, _ = run(config, server)
        asked = server.traffic.requests.total()
    assert len(server.traffic.behaviours) > 8  # all sorts of faults were met
    assert results["dataset"]["questions"] == 105
    failed = sum(results["systems"][name]["failures"]["all"] for name in SYSTEMS)
    assert 0.005 * asked < failed < 0.06 * asked
    assert_failures_are_those_of_the_records(output_dir, results)
    assert_banks_are_their_logs(output_dir, conversations=1)
    assert_four_comparable_runs(output_dir, results)


def test_a_retry_on_a_working_server_repairs_failures(tmp_path):
    data, output_dir = write_conversations(tmp_path / "talks.json", 2), tmp_path / "run"
    config = settings(data, output_dir, systems="memory,rag")
    with ModelServer(at_random(0.2, seed=3, faults=GIVES_NOTHING)) as server:
        faulty, _ = run(EvaluateConfig(**config), server)
    assert all(faulty["systems"][name]["failures"]["all"] for name in ("memory", "rag"))
    with ModelServer() as server:
        repaired, _ = run(EvaluateConfig(**config, retry_errors=True), server)
        untroubled, _ = run(EvaluateConfig(**{**config, "output_dir": tmp_path / "other"}), server)
    for name in ("memory", "rag"):
        assert repaired["systems"][name]["failures"]["all"] == 0
        for score in ("locomo_f1", "abstention", "judge", "recall", "memory"):
            assert repaired["systems"][name][score] == untroubled["systems"][name][score]


@pytest.mark.parametrize("systems", ["memory", "memory,optimized"])
def test_a_retry_of_a_session_asks_all_questions_of_its_conversation_again(tmp_path, systems):
    data = write_conversations(tmp_path / "talks.json", 1)
    program = make_system("memory", SystemSettings())
    program.reader.answer.signature = program.reader.answer.signature.with_instructions(
        "Answer in few words."
    )
    program.save(str(tmp_path / "program.json"))
    config = settings(data, tmp_path / "run", systems=systems, concurrency=1)
    config |= {"program": tmp_path / "program.json"} if "optimized" in systems else {}
    calls = itertools.count()
    with ModelServer(lambda *_: Behaviour.CUT if next(calls) == 0 else Behaviour.COMPETENT) as server:
        faulty, _ = run(EvaluateConfig(**config), server)
    failures = faulty["systems"]["memory"]["failures"]
    assert (failures["all"], failures["build"]["truncated"]) == (1, 1)
    with ModelServer() as server:
        repaired, _ = run(EvaluateConfig(**config, retry_errors=True), server)
    for name in systems.split(","):
        assert repaired["systems"][name]["failures"]["all"] == 0
        assert repaired["systems"][name]["locomo_f1"]["all"]["n"] == 8


def test_a_refused_key_ends_the_run_early(tmp_path):
    data = write_conversations(tmp_path / "talks.json", 3)
    with ModelServer(always(Behaviour.BAD_KEY)) as server:
        config = EvaluateConfig(**settings(data, tmp_path / "run", systems="no-memory", concurrency=1))
        with pytest.raises(BudgetExceededError, match=r"the first 20 items all failed; .*API key"):
            run(config, server)
        assert server.traffic.requests.total() == 20


def test_answers_can_be_judged_later_by_another_model(tmp_path):
    data, output_dir = write_conversations(tmp_path / "talks.json", 2), tmp_path / "run"
    config = settings(
        data, output_dir, systems="rag", rubrics="strict", model=None, reader_model="openai/test"
    )
    with ModelServer() as server:
        unjudged, _ = run(EvaluateConfig(**config), server)
        assert server.traffic.requests.total() == 18
        judge = {"mode": "judge", "model": None, "judge_model": "openai/judge"}
        judged_only = evaluate(EvaluateConfig(**{**config, **judge}), models=impatient(server.url))
        assert server.traffic.requests.total() == 18 + 16  # no verdict on what cannot be answered
        report = EvaluateConfig(**{**config, "mode": "report", "reader_model": None})
        judged, _ = run(report, server)
        assert server.traffic.requests.total() == 18 + 16
    assert judged_only is None
    assert unjudged["systems"]["rag"]["judge"] is None
    assert judged["systems"]["rag"]["judge"]["strict"]["all"]["n"] == 16
    assert judged["systems"]["rag"]["locomo_f1"] == unjudged["systems"]["rag"]["locomo_f1"]
    assert "|judge:openai/judge|" in judged["systems"]["rag"]["signature"]
    assert "|judge:none|" in unjudged["systems"]["rag"]["signature"]


def test_a_saved_program_is_evaluated_beside_memory_and_shares_its_banks(tmp_path):
    data, output_dir = write_conversations(tmp_path / "talks.json", 2), tmp_path / "run"
    config = settings(data, output_dir, systems="memory", rubrics="lenient")
    program = make_system("memory", SystemSettings())
    program.reader.answer.signature = program.reader.answer.signature.with_instructions("Answer in one word.")
    program.save(str(tmp_path / "program.json"))
    saved = (tmp_path / "program.json").read_text(encoding="utf-8")
    (tmp_path / "program.json").write_text(saved, encoding="utf-8-sig")  # as some editors do
    with ModelServer() as server:
        results, output = run(EvaluateConfig(**config, program=tmp_path / "program.json"), server)
        alone, _ = run(EvaluateConfig(**{**config, "output_dir": tmp_path / "alone"}), server)
    assert "memory: build: 8 of 8 done" in output
    assert "optimized: build: 0 of 8 to do" in output
    memory, optimized = (results["systems"][name] for name in ("memory", "optimized"))
    assert memory["locomo_f1"] == alone["systems"]["memory"]["locomo_f1"]
    answers, verdicts = 18, 16
    assert optimized["calls"] == answers + verdicts
    assert memory["calls"] == 8 * 4 + answers + verdicts
    assert optimized["signature"] != memory["signature"]
    compared = [(entry["a"], entry["b"], entry["metric"]) for entry in results["comparisons"]]
    assert compared[0] == ("memory", "optimized", "locomo_f1")
    assert "Answer in one word." in (output_dir / "optimized/program.json").read_text()
    assert "Answer in one word." not in (output_dir / "memory/program.json").read_text()


@pytest.mark.parametrize("content", [None, "{", "{}", '{"metadata": {"dependency_versions": {}}}'])
def test_a_file_that_is_not_a_program_is_refused(tmp_path, content):
    data, path = write_conversations(tmp_path / "talks.json", 1), tmp_path / "program.json"
    if content is not None:
        path.write_text(content)
    config = EvaluateConfig(**settings(data, tmp_path / "run", systems="memory", program=path))
    with pytest.raises(ConfigError, match=r"program=.*program.json' cannot be loaded \("):
        evaluate(config, models=impatient("http://127.0.0.1:1/v1"))


@pytest.mark.parametrize(("saved", "given"), [("generalist", "specialists"), ("specialists", "generalist")])
def test_a_program_of_another_writer_mode_is_refused_with_its_mode(tmp_path, saved, given):
    make_system("memory", SystemSettings(writer=WriterSettings(writer_mode=saved))).save(
        str(tmp_path / "program.json")
    )
    system = make_system("memory", SystemSettings(writer=WriterSettings(writer_mode=given)))
    with pytest.raises(ConfigError, match=rf"\(ValueError: it was saved with --writer-mode {saved}\)"):
        load_program(system, tmp_path / "program.json")


def test_a_program_with_other_fields_is_refused(tmp_path):
    """DSPy would load it, and describe each field as the one that stood in its place."""
    data, path = write_conversations(tmp_path / "talks.json", 1), tmp_path / "program.json"
    make_system("memory", SystemSettings()).save(str(path))
    saved = json.loads(path.read_text())
    fields = saved["reader.answer"]["signature"]["fields"]
    fields[0], fields[1] = fields[1], fields[0]
    path.write_text(json.dumps(saved))
    config = EvaluateConfig(**settings(data, tmp_path / "run", systems="memory", program=path))
    with pytest.raises(
        ConfigError, match=r"'reader.answer' was saved with the fields \['Question:', 'Excerpts:'"
    ):
        evaluate(config, models=impatient("http://127.0.0.1:1/v1"))


@pytest.mark.parametrize(
    ("model", "complaint"),
    [("openai/gpt-4.1-mini", "needs a key: set OPENAI_API_KEY"), ("gpt-99", "names no provider")],
)
def test_an_unusable_judge_ends_the_run_before_the_build(tmp_path, monkeypatch, model, complaint):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    data = write_conversations(tmp_path / "talks.json", 1)
    config = EvaluateConfig(
        dataset=str(data),
        systems="extractive",
        judge_model=model,
        output_dir=tmp_path / "run",
        mlflow=False,
    )
    with pytest.raises(ModelError, match=complaint):
        evaluate(config)
    assert not list((tmp_path / "run").glob("**/*.jsonl"))
