"""The examples run, with the embedded model and a tiny setting."""

import pytest

from examples.evaluate_minimal import evaluate
from examples.grpo_loop import LoopSettings, grpo
from memory_program.worlds import generate_worlds, sample_worlds
from tests.conftest import CHECKOUT
from tests.model_server import Behaviour, ModelServer, always


def test_the_minimal_evaluation_scores_the_embedded_model(capsys):
    conversation = sample_worlds()[0].conversation
    found = evaluate("pocket", [conversation], max_questions=5)
    assert found.n == 5
    assert found.value > 0.5
    assert capsys.readouterr().out.splitlines()[-1].endswith(" memories")


def test_the_minimal_evaluation_gives_failed_calls_no_score(capsys, monkeypatch):
    with ModelServer(always(Behaviour.BAD_KEY)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "wrong")
        with pytest.raises(SystemExit, match="no question was answered"):
            evaluate("openai/m", [sample_worlds()[0].conversation], max_questions=2)
    said = capsys.readouterr().out
    assert "session_1: " in said
    assert "401" in said


def test_the_grpo_loop_trains_and_reports_each_step(capsys):
    (world,) = generate_worlds(0, sessions=(4, 4), questions_per_session=10.0)
    settings = LoopSettings(steps=2, examples_per_step=1, group_size=2, max_questions=3)
    scores = grpo([world.conversation], settings)
    assert len(scores) == 2
    assert all(0 <= score <= 1 for score in scores)
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["step 1", "step 2"]


def test_the_examples_are_short():
    lines = {path.name: len(path.read_text().splitlines()) for path in (CHECKOUT / "examples").glob("*.py")}
    assert lines["evaluate_minimal.py"] <= 60
    assert lines["grpo_loop.py"] <= 150
