"""The ceiling is the oracle's own run: what only a model's run has is no part of it."""

from pathlib import Path
from typing import Any

import pytest

from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.evaluation.evaluation_run import evaluate_oracle
from tests.embedding_server import EmbeddingServer


@pytest.mark.parametrize(
    "settings",
    [
        {"judge_model": "openai/judge", "judge_program": Path("judge.json")},
        {"model": "openai/model", "executor": "ray", "db_url": "sqlite:///elsewhere.sqlite"},
    ],
)
def test_it_is_measured_whoever_judges_and_wherever_a_run_computes(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    config = EvaluateConfig(
        systems="memory", num_test=4, output_dir=tmp_path / "run", mlflow=False, **settings
    )
    ceiling = evaluate_oracle(config)
    assert ceiling is not None
    assert ceiling["locomo_f1"]["all"]["value"] == 1.0
    assert ceiling["run"]["judge"] is None


def test_it_searches_with_the_embedder_at_the_address_of_the_run(tmp_path: Path) -> None:
    with EmbeddingServer() as server:
        config = EvaluateConfig(
            model="openai/model",
            api_base=server.url,
            retrieval="hybrid",
            embedder="openai/themes",
            systems="memory",
            num_test=1,
            output_dir=tmp_path / "run",
            mlflow=False,
        )
        ceiling = evaluate_oracle(config)
    assert ceiling is not None
    assert server.texts
