"""``python optimize.py`` without flags, and ``evaluate.py --program`` with what it saved.

In the place of the embedded model stands one that knows the truth and is careless: its answers are right if
it is shown an example, and half of the time otherwise.
"""

import io
from collections import Counter
from pathlib import Path

import dspy
from dspy.lm15 import Message, Request, Response, TextPart
from dspy.lm15 import Usage as Tokens
from rich.console import Console

from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.configs.optimize_config import OptimizeConfig
from memory_program.evaluation.evaluation_run import evaluate
from memory_program.evaluation.stages.system_runner import ModelFactory
from memory_program.models.rate_limit import AdaptiveLimiter, RateLimitedEngine, RetryPolicy
from memory_program.optimization.optimization_run import optimize
from memory_program.worlds import sample_worlds
from memory_program.worlds.oracle import Oracle
from tests.optimization_samples import is_odd
from tests.scripted_lm import fields


class Careless:
    """Answers as the oracle does; without an example, often with the words around it.

    Which answers those are is always the same at temperature 0, and changes from sample to sample above.
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


def test_without_flags_demos_are_found_on_the_sample_and_gain_on_its_test_split(tmp_path: Path) -> None:
    config = OptimizeConfig(
        output=tmp_path / "optimized.json", output_dir=tmp_path / "runs" / "optimize", mlflow=False
    )
    model, console = Careless(), Console(file=io.StringIO(), width=200)
    results = optimize(config, console=console, models=maker(model))
    (stage,) = results["stages"]
    winner = next(c for c in stage["candidates"] if c["number"] == stage["winner"]["number"])
    assert winner["prompts"]["reader.answer"]["demos"]
    assert stage["comparison"]["low"] > 0.2
    assert stage["examples"] == {"train": 32, "val": 41}  # all that is asked about two conversations
    output = console.file.getvalue()  # type: ignore[attr-defined]  # the StringIO above
    assert "sample: 4 conversations for training, 2 for validation, 2 left for the test" in output
    assert "estimated cost: about $0.0000" in output
    estimated = sum(
        int(line.partition(": ")[2].partition(" calls")[0].replace(",", ""))
        for line in output.splitlines()
        if " calls to pocket" in line
    )
    assert model.calls <= estimated < 2 * model.calls

    evaluated = evaluate(
        EvaluateConfig(
            program=config.output,
            systems="memory",
            split="test",
            output_dir=tmp_path / "runs" / "evaluate",
            mlflow=False,
        ),
        console=(shown := Console(file=io.StringIO(), width=200)),
        models=maker(model),
    )
    assert evaluated is not None
    assert evaluated["dataset"]["conversations"] == results["dataset"]["test"]
    (compared,) = evaluated["comparisons"]
    assert (compared["a"], compared["b"]) == ("memory", "optimized")
    assert compared["high"] < -0.2  # how much better memory is than optimized
    assert "its prompts were made and chosen on" not in shown.file.getvalue()  # type: ignore[attr-defined]


def test_an_evaluation_on_what_the_prompts_were_chosen_on_says_so(tmp_path: Path) -> None:
    config = OptimizeConfig(
        output=tmp_path / "optimized.json",
        output_dir=tmp_path / "runs" / "optimize",
        mlflow=False,
        max_sessions=2,
        optimizer="bootstrap",
        trials=1,
        num_examples=4,
        num_val=4,
    )
    optimize(config, console=Console(file=io.StringIO()), models=maker(Careless()))
    shown = Console(file=io.StringIO(), width=200)
    evaluated = evaluate(
        EvaluateConfig(
            program=config.output,
            systems="optimized",
            num_test=30,
            output_dir=tmp_path / "runs" / "evaluate",
            mlflow=False,
        ),
        console=shown,
        models=maker(Careless()),
    )
    assert evaluated is not None
    assert evaluated["systems"]["optimized"]["chosen_on"] == evaluated["dataset"]["conversations"]
    output = shown.file.getvalue()  # type: ignore[attr-defined]  # the StringIO above
    assert (
        "optimized: its prompts were made and chosen on 2 of these conversations: quote --split test"
        in output
    )
