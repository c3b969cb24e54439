"""``optimize.py --target retrieval``: settings are tried on train and chosen on validation."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import dspy
import numpy as np
import pytest

from locomo.statistics import paired_comparison
from locomo.types import Question
from memory_program.agents.context import MemoryContext
from memory_program.agents.reader import QAReader
from memory_program.bank.outcomes import Answer, Outcome
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.configs.optimize_config import OptimizeConfig
from memory_program.core.command_line import parse_flags
from memory_program.core.errors import ModelError
from memory_program.core.mlflow_address import import_mlflow
from memory_program.optimization.call_journal import ReplyCache
from memory_program.optimization.retrieval_target import RetrievalChoice, RetrievalTrial, RetrievalTuner
from memory_program.tracking import EXPERIMENT
from tests.competent_model import Prompt
from tests.embedding_server import EmbeddingServer
from tests.model_server import Behaviour, ModelServer
from tests.optimization_samples import Steerable, held_out, quick, run
from tests.scripted_lm import ScriptedLM, fields
from tests.unit.test_optimization_evaluator import cases


def wants_three_lines(question: Question, answer: Answer) -> float:
    """A score that more context raises, up to three lines."""
    return min(len(answer.shown), 3) / 3


def wants_one_line(question: Question, answer: Answer) -> float:
    return 1 / max(len(answer.shown), 1)


@pytest.mark.parametrize("retrieval", ["bm25", "hybrid"])
def test_better_settings_are_found_and_evaluate_reads_them(retrieval: str, tmp_path: Path) -> None:
    model = Steerable([])
    with ModelServer(reply=model) as server, EmbeddingServer() as embeddings:
        is_hybrid = retrieval == "hybrid"
        search = {"embedder": "openai/themes", "embedder_api_base": embeddings.url} if is_hybrid else {}
        config = quick(
            tmp_path,
            target="retrieval",
            trials=6,
            top_k=1,
            reader_budget=500,
            retrieval=retrieval,
            **search,
            num_examples=4,
        )
        results, output = run(config, server, wants_three_lines)
    untouched = {str(q.answer) for conversation in held_out(config) for q in conversation.questions}
    sent = " ".join(f"{prompt.user} {prompt.shown}" for prompt in model.asked)
    assert not [code for code in untouched if code in sent]
    found = results["retrieval"]
    assert len(found["trials"]) == 6
    assert found["trials"][0]["settings"]["top_k"] == 1
    assert found["comparison"]["difference"] > 0
    assert found["winner"] == found["best"]["settings"] != found["trials"][0]["settings"]
    assert "retrieval: 0.333 -> " in output
    assert json.loads((tmp_path / "run/results.json").read_text())["retrieval"]["winner"] == found["winner"]
    settings = parse_flags(EvaluateConfig, ["--config", str(config.output)])
    assert settings.system.retrieval.reader_budget == 500
    assert settings.system.retrieval.top_k == found["winner"]["top_k"]
    assert (settings.search.retrieval, settings.search.embedder) == (retrieval, search.get("embedder"))
    assert ("dense_weight" in found["winner"]) == is_hybrid


def test_the_present_settings_stay_if_nothing_beats_them(tmp_path: Path) -> None:
    with ModelServer(reply=Steerable([])) as server:
        config = quick(tmp_path, target="retrieval", trials=3, top_k=1, num_examples=4, num_val=4)
        results, output = run(config, server, wants_one_line)
    assert results["retrieval"]["winner"]["top_k"] == 1
    assert "no settings beat the present ones on train, which stay" in output
    assert json.loads(config.output.read_text())["top_k"] == 1


def test_mlflow_has_a_run_for_every_trial(tmp_path: Path) -> None:
    config = quick(
        tmp_path,
        target="retrieval",
        trials=3,
        top_k=1,
        num_examples=4,
        num_val=4,
        output_dir=tmp_path / "runs" / "one",
        mlflow=True,
    )
    with ModelServer(reply=Steerable([])) as server:
        results, _ = run(config, server, wants_three_lines)
        run(config, server, wants_three_lines)  # logs nothing new
    client = import_mlflow().MlflowClient(
        tracking_uri=f"sqlite:///{(tmp_path / 'runs/mlflow.db').as_posix()}"
    )
    runs = client.search_runs([client.get_experiment_by_name(EXPERIMENT).experiment_id])
    (parent,) = (one for one in runs if "mlflow.parentRunId" not in one.data.tags)
    found = results["retrieval"]
    assert parent.data.metrics["best/val"] == found["best"]["score"]
    scores = {one.data.tags["number"]: one.data.metrics["train/score"] for one in runs if one is not parent}
    assert scores == {str(n): trial["score"] for n, trial in enumerate(found["trials"], start=1)}
    files = {entry.path for entry in client.list_artifacts(parent.info.run_id)}
    assert {"results.json", config.output_file.name} <= files


def test_settings_under_which_questions_are_lost_do_not_win():
    baseline = RetrievalTrial({"top_k": 10}, {str(n): 0.6 for n in range(40)})
    lossy = RetrievalTrial({"top_k": 50}, {str(n): 1.0 if n == 0 else None for n in range(40)})
    found = paired_comparison([1.0], [0.6], ["talk"], rng=np.random.default_rng(0))
    choice = RetrievalChoice([baseline, lossy], baseline, lossy, found)
    assert choice.winner is baseline
    (line,) = choice.summary()
    assert "only 1 of 40 validation questions have a score; the present ones stay" in line


def compared(baseline: list[float | None], best: list[float | None]) -> RetrievalChoice:
    """The choice between the present settings and others with these scores on validation."""
    trials = [
        RetrievalTrial({"top_k": k}, {str(n): score for n, score in enumerate(scores)})
        for k, scores in ((10, baseline), (50, best))
    ]
    pairs = [
        (other, base, f"talk {n // 2}")
        for n, (base, other) in enumerate(zip(baseline, best, strict=True))
        if base is not None and other is not None
    ]
    ours, theirs, groups = zip(*pairs, strict=True)
    found = paired_comparison(ours, theirs, groups, rng=np.random.default_rng(0))
    return RetrievalChoice(trials, *trials, found)


def test_a_difference_of_rounding_does_not_win():
    choice = compared([2 / 7, 1.0, 1.0, 1 / 3], [1 / 3, 1.0, 2 / 7, 1.0])
    assert choice.comparison is not None
    assert choice.comparison.difference > 0  # 1.4e-17
    assert choice.winner is choice.baseline


def test_the_means_in_the_summary_are_those_that_are_compared():
    scores = [0.5] * 19
    choice = compared([*scores, None], [*scores, 1.0])
    (line, _) = choice.summary()
    assert "0.500 -> 0.500 on validation, +0.000 (p 1.00, n 19); the present settings stay" in line


def test_a_seed_may_be_larger_than_numpy_takes(tmp_path: Path) -> None:
    config = small(tmp_path, trials=1, seed=2**32)
    (case,) = cases("talk", each=1)
    with closing(ReplyCache(tmp_path / "calls.jsonl")) as calls:
        tuner = RetrievalTuner(config, QAReader(MemoryContext()), wants_one_line, calls, lambda: None)
        with ScriptedLM([fields(answer="yes")]) as lm, dspy.context(lm=lm):
            tuner.search([case], print)
    assert [trial.answered for trial in tuner.trials] == [1]


def test_a_trial_whose_calls_all_fail_does_not_end_the_search(tmp_path: Path) -> None:
    def fails_on_more_than_one_line(question: Question, answer: Answer) -> float | None:
        return 0.5 if len(answer.shown) <= 1 else None

    config = quick(tmp_path, target="retrieval", trials=4, top_k=1, num_examples=4, num_val=4)
    with ModelServer(reply=Steerable([])) as server:
        results, output = run(config, server, fails_on_more_than_one_line)
    scores = [trial["score"] for trial in results["retrieval"]["trials"]]
    assert scores[0] == 0.5
    assert None in scores
    assert "4 of 4 questions have no score" in output
    assert results["retrieval"]["winner"]["top_k"] == 1
    assert config.output.is_file()


def small(folder: Path, **more: Any) -> OptimizeConfig:
    """A search on four questions that begins with the worst settings."""
    return quick(folder, **{"target": "retrieval", "top_k": 1, "num_examples": 4, "num_val": 4, **more})


@pytest.mark.parametrize("answered", [6, 12])
def test_a_server_that_dies_ends_the_search_with_an_error(answered: int, tmp_path: Path) -> None:
    """It dies during the second of three trials, or after the last one."""
    asked: list[Prompt] = []

    def behave(prompt: Prompt, seen: int) -> Behaviour:
        asked.extend([prompt] * ("Answer a question about a conversation" in prompt.system))
        return Behaviour.BAD_KEY if len(asked) > answered else Behaviour.COMPETENT

    def score(question: Question, answer: Answer) -> float | None:
        return wants_three_lines(question, answer) if answer.outcome is Outcome.OK else None

    config = small(tmp_path, trials=3)
    with (
        ModelServer(behave, reply=Steerable([])) as server,
        pytest.raises(ModelError, match=r"'openai/task' at .* does not answer: .* Incorrect API key"),
    ):
        run(config, server, score)
    assert not config.output.exists()


def test_mlflow_leaves_out_a_score_that_is_missing_on_validation(tmp_path: Path) -> None:
    def score(question: Question, answer: Answer) -> float | None:
        is_lost = question.conversation_id in ("codes-5", "codes-6") and len(answer.shown) > 1
        return None if is_lost else wants_three_lines(question, answer)

    config = small(tmp_path, trials=3, output_dir=tmp_path / "runs" / "one", mlflow=True)
    with ModelServer(reply=Steerable([])) as server:
        results, output = run(config, server, score)
    assert results["retrieval"]["best"]["score"] is None
    assert "only 0 of 4 validation questions have a score; the present ones stay" in output


def test_a_limit_during_the_search_leaves_calls_to_compare_the_best_trial_so_far(tmp_path: Path) -> None:
    with ModelServer(reply=Steerable([])) as server:
        config = small(tmp_path, trials=9, max_calls=40)
        results, output = run(config, server, wants_three_lines)
    found = results["retrieval"]
    assert len(found["trials"]) < 9
    assert found["comparison"]["difference"] > 0
    assert json.loads(config.output.read_text())["top_k"] == found["winner"]["top_k"] > 1
    assert "(the rest is reserved for the final comparison); the best so far is saved" in output


def test_if_a_limit_leaves_no_comparison_the_present_settings_are_saved(tmp_path: Path) -> None:
    config = small(tmp_path, trials=9, num_val=8, max_calls=22)
    with ModelServer(reply=Steerable([])) as server:
        results, output = run(config, server, wants_three_lines)
    assert "comparison" not in results["retrieval"]
    assert results["retrieval"]["trials"][0]["score"] == 1 / 3
    assert json.loads(config.output.read_text())["top_k"] == 1
    assert "nothing was compared: the saved settings are the present ones" in output
