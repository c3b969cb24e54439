"""LongMemEval and PerLTQA through the whole of an evaluation: real instances, and files to the schema."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from locomo.longmemeval import load_longmemeval, load_membuilder_split
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.configs.groups import DataSettings, TrainingPart
from memory_program.core.errors import ConfigError
from memory_program.core.json_files import Json
from memory_program.evaluation.data_splits import split_conversations
from memory_program.evaluation.evaluation_run import evaluate
from memory_program.evaluation.question_selection import load_selection
from memory_program.models.factory import language_model
from memory_program.rl.training_data import load_training_splits
from tests.competent_model import Prompt
from tests.longmemeval_samples import instance, instances
from tests.model_server import Behaviour, ModelServer
from tests.perltqa_samples import write_perltqa

pytestmark = pytest.mark.usefixtures("plots_are_not_drawn")

SYSTEMS = "memory,rag,full-context,no-memory,extractive"


def run(output_dir: Path, server: ModelServer | None = None, **settings: Any) -> tuple[Json, str]:
    console = Console(file=io.StringIO(), width=120)
    config = EvaluateConfig(output_dir=output_dir, mlflow=False, **settings)
    models = server and (lambda name, temperature: language_model(name, api_base=server.url))
    results = evaluate(config, console=console, models=models)
    assert results is not None
    return results, console.file.getvalue()


@pytest.fixture(scope="module")
def answered(longmemeval_path: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Json, str]:
    """The real instances, answered without a model, and by one that reads verbatim turns."""
    with ModelServer() as server:
        return run(
            tmp_path_factory.mktemp("longmemeval"),
            server,
            dataset="longmemeval",
            data=longmemeval_path,
            systems="extractive,rag",
            reader_model="openai/test",
        )


def test_real_instances_are_answered_and_their_rankings_scored(answered):
    results, output = answered
    report = re.findall(r"^report: (.+)$", output, re.MULTILINE)
    for system in results["systems"].values():
        assert system["failures"]["all"] == 0
        assert system["locomo_f1"]["all"]["n"] == 10
        assert system["abstention"]["n"] == 2
        # Two have no answer, and so no evidence to find.
        scores = system["retrieval"]
        assert scores["session/recall/5"]["n"] == scores["turn/ndcg/10"]["n"] == 8
        assert scores["session/recall/5"]["value"] >= 0.7
        assert scores["session/recall/10"]["value"] >= 0.9
        assert scores["turn/recall/50"]["value"] >= 0.7
        assert scores["session/ndcg/10"]["value"] >= 0.8
    assert results["systems"]["extractive"]["calls"] == 0
    assert "Retrieval: recall@k, full recall@k, NDCG@k" in Path(*report).read_text(encoding="utf-8")
    signature = results["systems"]["extractive"]["signature"]
    assert signature.startswith("locomo_f1|bench:longmemeval|n:10|judge:none|data:")


@pytest.fixture
def membuilder_splits(longmemeval_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MemBuilder's splits, as if they were downloaded."""
    published = longmemeval_path.with_name("longmemeval_splits.json")
    (tmp_path / "memory-program").mkdir()
    (tmp_path / "memory-program" / published.name).write_bytes(published.read_bytes())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.usefixtures("membuilder_splits")
def test_membuilder_splits_select_real_instances(longmemeval_path):
    settings = {"dataset": "longmemeval", "data": longmemeval_path, "systems": "extractive"}
    chosen = {
        split: [
            c.conversation_id for c in load_selection(EvaluateConfig(split=split, **settings)).conversations
        ]
        for split in ("rl", "test")
    }
    assert chosen["rl"] == ["32260d93", "19b5f2b3_abs"]
    assert len(chosen["test"]) == 8
    with pytest.raises(ConfigError, match="split='sft' has none of the 10 conversations of this file"):
        load_selection(EvaluateConfig(split="sft", **settings))
    with pytest.raises(ConfigError, match="10 conversations give 0 for training and 2 for validation"):
        split_conversations(load_longmemeval(longmemeval_path))  # and not those that are tested on


@pytest.mark.usefixtures("membuilder_splits")
def test_sft_and_rl_learn_from_membuilders_own_splits(tmp_path):
    ids = {
        split: load_membuilder_split(split)[:count] for split, count in (("sft", 3), ("rl", 8), ("test", 2))
    }
    data = tmp_path / "longmemeval.json"
    data.write_text(json.dumps([instance(name) for names in ids.values() for name in names]))
    source = DataSettings(dataset="longmemeval", data=data)

    def learned(**part: str) -> list[str]:
        splits = load_training_splits(source, 0, 600, 600, TrainingPart(**part))
        assert [c.conversation_id for c in splits.val] == ids["rl"][6:]
        assert [c.conversation_id for c in splits.test] == ids["test"]
        return [c.conversation_id for c in splits.train]

    assert learned(split="sft") == ids["sft"]
    assert learned(split="rl") == ids["rl"][:6]
    assert learned() == [*ids["sft"], *ids["rl"][:6]]
    assert learned(split="rl", conversations=ids["rl"][2]) == [ids["rl"][2]]


@pytest.mark.parametrize("dataset", ["longmemeval", "perltqa"])
def test_every_system_runs_on_files_to_the_schema(dataset, tmp_path):
    if dataset == "longmemeval":
        data = tmp_path / "longmemeval.json"
        data.write_text(json.dumps(instances()))
        questions, judged = 7, 7
    else:
        data = write_perltqa(tmp_path / "perltqa")
        questions, judged = 5, 5
    with ModelServer() as server:
        results, output = run(
            tmp_path / "run", server, dataset=dataset, data=data, systems=SYSTEMS, model="openai/test"
        )
    assert list(results["systems"]) == SYSTEMS.split(",")
    for name, system in results["systems"].items():
        assert system["failures"]["all"] == 0, name
        assert system["locomo_f1"]["all"]["n"] == questions
        assert system["judge"]["lenient"]["all"]["n"] == judged
        assert f"|bench:{dataset}|" in system["signature"]
    for name in ("memory", "rag", "extractive"):
        assert results["systems"][name]["retrieval"]["session/recall/5"]["n"] > 0
    assert results["systems"]["full-context"]["locomo_f1"]["all"]["value"] > 0
    assert "Judged correct" in output


def test_the_question_includes_its_date(tmp_path):
    data = tmp_path / "longmemeval.json"
    data.write_text(json.dumps(instances()))
    asked: list[str] = []

    def note(prompt: Prompt, seen: int) -> Behaviour:
        asked.append(prompt.fields.get("question", ""))
        return Behaviour.COMPETENT

    with ModelServer(note) as server:
        run(
            tmp_path / "run",
            server,
            dataset="longmemeval",
            data=data,
            conversations="q5",
            systems="no-memory",
            reader_model="openai/test",
        )
    assert "How many days ago was my dog's birthday? (Today is 30 May 2023.)" in asked
