"""A provider's quota that ends in the middle of a run: the run stops, and nothing is recorded as failed."""

import itertools
import json
from pathlib import Path

import pytest

from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.core.errors import QuotaExhaustedError
from tests.competent_model import Prompt
from tests.evaluation_samples import write_conversations
from tests.integration.test_evaluate_full_program import run, settings
from tests.model_server import Behaviour, ModelServer


@pytest.mark.parametrize(
    ("wanted", "where"), [("tool_calls", "writer"), ("answer", "reader"), ("verdict", "judge")]
)
def test_an_exhausted_quota_stops_the_run_which_goes_on_when_it_is_refilled(
    wanted: str, where: str, tmp_path: Path
) -> None:
    data, output_dir = write_conversations(tmp_path / "talks.json", 2), tmp_path / "run"
    config = EvaluateConfig(**settings(data, output_dir, systems="memory"))
    asked = itertools.count()

    def behave(prompt: Prompt, seen: int) -> Behaviour:
        is_over = wanted in prompt.wanted and next(asked) >= 5
        return Behaviour.QUOTA if is_over else Behaviour.COMPETENT

    with ModelServer(behave) as server:
        with pytest.raises(QuotaExhaustedError, match=rf"quota .* is used up \({where}.*add credit"):
            run(config, server)
        assert server.traffic.behaviours["quota"] < 20  # those that were on their way
    assert not recorded_failures(output_dir)
    with ModelServer() as server:
        results, _ = run(config, server)
    assert results is not None
    assert results["systems"]["memory"]["failures"]["all"] == 0


def recorded_failures(output_dir: Path) -> list[str]:
    lines = [line for path in output_dir.rglob("*.jsonl") for line in path.read_text().splitlines()]
    return [line for line in lines if "quota" in line or json.loads(line).get("outcome", "ok") != "ok"]
