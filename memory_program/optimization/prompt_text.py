"""What an optimiser changes of a program, as JSON: the instruction and the demos of each predictor."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import dspy
from dspy.predict.predict import serialize_object

from memory_program.core.hashing import content_hash
from memory_program.core.json_files import Json


@dataclass(frozen=True, slots=True)
class Prompt:
    """One predictor's instruction, and its demos as JSON objects."""

    instructions: str
    demos: tuple[Json, ...] = ()


Prompts = Mapping[str, Prompt]
"""The prompts of a program, by the name of the predictor (``reader.answer``)."""


def read_prompts(module: dspy.Module) -> dict[str, Prompt]:
    """Read the prompts of a program, or of a part of one, without its models."""
    return {name: _read_prompt(predictor) for name, predictor in module.named_predictors()}


def _read_prompt(predictor: dspy.Predict) -> Prompt:
    signature = cast(type[dspy.Signature], predictor.signature)
    demos = tuple({name: serialize_object(demo[name]) for name in demo} for demo in predictor.demos)
    return Prompt(signature.instructions, demos)


def fingerprint_prompts(prompts: Prompts) -> str:
    """Hash prompts: equal for programs that ask the same."""
    return content_hash({name: [prompt.instructions, prompt.demos] for name, prompt in prompts.items()})


def apply_prompts(prompts: Prompts, module: dspy.Module) -> None:
    """Put prompts into a program, or a part of one; predictors that they do not name stay as they are."""
    for name, predictor in module.named_predictors():
        if name in prompts:
            signature = cast(type[dspy.Signature], predictor.signature)
            predictor.signature = signature.with_instructions(prompts[name].instructions)
            predictor.demos = [dict(demo) for demo in prompts[name].demos]


def instruction_diff(before: Prompts, after: Prompts) -> str:
    """Write what changed in the instructions as a unified diff, and how many demos each predictor has."""
    parts: list[str] = []
    for name, prompt in after.items():
        old, new = before[name].instructions.splitlines(), prompt.instructions.splitlines()
        lines = difflib.unified_diff(old, new, f"{name} before", f"{name} after", lineterm="", n=1)
        parts += [*lines, f"# {name}: {len(before[name].demos)} demos before, {len(prompt.demos)} after", ""]
    return "\n".join(parts)


def prompts_to_json(prompts: Prompts) -> dict[str, Any]:  # Any: JSON
    """Write prompts as a JSON object."""
    return {name: {"instructions": p.instructions, "demos": list(p.demos)} for name, p in prompts.items()}
