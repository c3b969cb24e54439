"""``python optimize.py`` without flags, and ``evaluate.py --program`` with what it saved.

A careless model that knows the truth replaces the embedded one: its answers are right if its prompt has an
example, and half of the time otherwise.
"""

import io
from collections import Counter
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.lm15 import Message, Request, Response, TextPart
from dspy.lm15 import Usage as Tokens
from rich.console import Console

from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.configs.optimize_config import OptimizeConfig
from memory_program.evaluation.evaluation_run import evaluate
from memory_program.evaluation.role_models import ModelFactory
from memory_program.evaluation.scoring.question_scores import Json
from memory_program.models.rate_limit import AdaptiveLimiter, RateLimitedEngine, RetryPolicy
from memory_program.worlds import sample_worlds
from memory_program.worlds.oracle import Oracle
from tests.optimization_samples import is_odd, run
from tests.scripted_lm import fields

pytestmark = pytest.mark.usefixtures("plots_are_not_drawn")


class Careless:
    """Answers as the oracle does; without an example, often with the words around it.

    Those answers are always the same at temperature 0, and change from sample to sample above.
    """

    def __init__(self) -> None:
        self.oracle = Oracle(sample_worlds())
        self.asked = Counter[str]()

    @property
    def calls(self) -> int:
        return self.asked.total()

    def complete(self, request: Request) -> Response:
        texts = [message.text or "" for message in request.messages]
        sample = self.asked[texts[-1]] if request.config.temperature else 0
        self.asked[texts[-1]] += 1
        reply = "ready"
        if "[[ ##" in texts[-1]:
            reply = self.oracle.reply(str(request.system), texts[-1])
            is_careful = len(texts) > 1 or is_odd(f"{sample}:{texts[-1]}")
            if "[[ ## answer ## ]]" in reply and not is_careful:
                reply = fields(answer="Well, let me think about what it was that they said about this.")
        tokens = Tokens(input_tokens=len(texts[-1]) // 4, output_tokens=len(reply) // 4)
        message = Message.assistant([TextPart(reply)])
        return Response(id=None, model=request.model, message=message, finish_reason="stop", usage=tokens)


def maker(engine: Careless) -> ModelFactory:
    paced = RateLimitedEngine(engine, AdaptiveLimiter(8), RetryPolicy(max_retries=0))
    return lambda name, temperature: dspy.LM(
        name, engine=paced, temperature=temperature, num_retries=0, cache=False
    )


def config(folder: Path, **settings: Any) -> OptimizeConfig:
    paths = {"output": folder / "optimized.json", "output_dir": folder / "runs" / "optimize"}
    return OptimizeConfig(**paths, mlflow=False, **settings)


def evaluate_saved(folder: Path, model: Careless, **settings: Any) -> tuple[Json, str]:
    """Evaluate the saved program, and return the results and the output."""
    output = io.StringIO()
    paths = {"program": folder / "optimized.json", "output_dir": folder / "runs" / "evaluate"}
    evaluation = EvaluateConfig(**paths, mlflow=False, **settings)
    results = evaluate(evaluation, console=Console(file=output, width=200), models=maker(model))
    assert results is not None
    return results, output.getvalue()


def test_without_flags_demos_are_found_on_the_sample_and_gain_on_its_test_split(tmp_path: Path) -> None:
    model = Careless()
    results, output = run(config(tmp_path), maker(model))
    (stage,) = results["stages"]
    winner = next(c for c in stage["candidates"] if c["number"] == stage["winner"]["number"])
    assert winner["prompts"]["reader.answer"]["demos"]
    assert stage["comparison"]["low"] > 0.2
    assert stage["examples"] == {"train": 32, "val": 41}  # all questions of two conversations
    assert "sample: 4 conversations for training, 2 for validation, 2 left for the test" in output
    assert "estimated cost" not in output  # a model in this process costs nothing

    evaluated, report = evaluate_saved(tmp_path, model, systems="memory", split="test")
    assert evaluated["dataset"]["conversations"] == results["dataset"]["test"]
    (compared,) = evaluated["comparisons"]
    assert (compared["a"], compared["b"]) == ("memory", "optimized")
    assert compared["high"] < -0.2  # memory minus optimized
    assert "it was optimised or trained on" not in report


def test_an_evaluation_on_the_conversations_of_the_optimisation_says_so(tmp_path: Path) -> None:
    few: dict[str, Any] = {"max_sessions": 2, "trials": 1, "num_examples": 4, "num_val": 4}
    run(config(tmp_path, optimizer="bootstrap", **few), maker(Careless()))
    evaluated, report = evaluate_saved(tmp_path, Careless(), systems="optimized", num_test=30)
    assert evaluated["systems"]["optimized"]["chosen_on"] == evaluated["dataset"]["conversations"]
    note = "optimized: it was optimised or trained on 2 of these conversations: quote --split test"
    assert note in report
