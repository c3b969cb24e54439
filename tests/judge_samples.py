"""A judge that falls for what sounds alike, until it is told or shown better; and files of optimised judges.

On half of the answers that it falls for it makes no fault, so that there is something to learn from; at a
temperature above 0 it sometimes makes none either. As the one that writes instructions it proposes the cure
now and then, and something useless otherwise; only where it is shown what went wrong does it know better.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from locomo.judge.calibration import (
    AnswerKind,
    CalibrationAnswer,
    calibration_answers,
    split_calibration_answers,
)
from locomo.judge.judge import Judges
from locomo.judge.rubrics import Rubric, Verdict, list_gradings
from locomo.types import Benchmark
from memory_program.configs.optimize_config import OptimizeConfig
from tests.competent_model import Prompt
from tests.optimization_samples import Steerable, is_lucky, is_odd

CURE = "What sounds alike is not the same."
USELESS = "Take your time."
FALLS_FOR = (AnswerKind.VAGUE, AnswerKind.NEAR_MISS, AnswerKind.OTHER_SPEAKER, AnswerKind.ALTERNATIVES)


@dataclass(frozen=True)
class SteerableJudge(Steerable):
    """The model; ``is_curable`` says whether instructions and demos help it."""

    benchmark: Benchmark = Benchmark.PERLTQA
    is_curable: bool = True

    @cached_property
    def known(self) -> dict[tuple[str, str], CalibrationAnswer]:
        """The known answers by their question and text."""
        return {(a.question.text, a.text): a for a in calibration_answers(self.benchmark)}

    def _field(self, name: str, prompt: Prompt, seen: int) -> str:
        match name:
            case "verdict":
                return self._verdict(self._judged(prompt), prompt, seen)
            case "reasoning" if "given_answer" in prompt.fields:
                return f"This is: {self._judged(prompt).kind.value}."
            case "proposed_instruction":
                return f"{prompt.fields['basic_instruction']} {_advice(prompt, seen)}"
            case "new_instruction":
                missed = "it had to be WRONG" in prompt.fields["examples_with_feedback"]
                return f"{prompt.fields['current_instruction']} {CURE if missed else USELESS}"
            case "module_advice":
                modules = json.loads(prompt.fields["module_names"])
                return json.dumps(dict.fromkeys(modules, _advice(prompt, seen)))
            case _:
                return "It is about verdicts."

    def _judged(self, prompt: Prompt) -> CalibrationAnswer:
        return self.known[prompt.fields["question"], prompt.fields["given_answer"]]

    def _verdict(self, answer: CalibrationAnswer, prompt: Prompt, seen: int) -> str:
        rubric = Rubric.STRICT if "Be exact" in prompt.system else Rubric.LENIENT
        verdict = answer.verdicts.get(rubric, Verdict.CORRECT)
        shown = [reply for reply in prompt.shown if any(f"This is: {kind}." in reply for kind in FALLS_FOR)]
        knows = CURE in prompt.system or shown or is_lucky(prompt, seen, answer.text)
        if answer.kind in FALLS_FOR and not (self.is_curable and knows) and not is_odd(answer.text):
            verdict = Verdict.CORRECT
        return verdict.value.upper()


def _advice(prompt: Prompt, seen: int) -> str:
    return CURE if is_odd(f"{prompt.key}:{seen}") else USELESS


def quick_judge(folder: Path, **more: Any) -> OptimizeConfig:
    """A small optimisation of a judge, in a folder of its own."""
    settings: dict[str, Any] = {
        "target": "judge",
        "model": "openai/judge",
        "prompt_model": "openai/prompts",
        "dataset": "perltqa",
        "output": folder / "judge.json",
        "output_dir": folder / "run",
        "mlflow": False,
        "num_examples": 16,
        "num_val": 16,
        "num_candidates": 3,
        "batch_size": 8,
        "trials": 2,
    }
    return OptimizeConfig(**{**settings, **more})


def untouched_questions(benchmark: Benchmark) -> set[str]:
    """The questions whose answers no optimisation may see."""
    return {answer.question.text for answer in split_calibration_answers(benchmark)["test"]}


def write_judge(
    path: Path,
    benchmark: Benchmark = Benchmark.LOCOMO,
    rubric: Rubric = Rubric.STRICT,
    *,
    instruction: str = "",
    made_on: Sequence[str] = (),
) -> Path:
    """Write a file as an optimisation does: the built-in prompts, with an instruction added to each."""
    judges = Judges(rubric, gradings=list_gradings(benchmark))
    for _, predictor in judges.named_parameters():
        told = predictor.signature.instructions
        predictor.signature = predictor.signature.with_instructions(f"{told}{instruction}")
    dataset = {"benchmark": benchmark.value, "rubric": rubric.value, "train": list(made_on), "val": []}
    state = {**judges.dump_state(), "metadata": {"optimization": {"dataset": dataset}}}
    path.write_text(json.dumps(state), encoding="utf-8")
    return path
