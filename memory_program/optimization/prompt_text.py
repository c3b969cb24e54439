"""The prompts of a program as JSON: the instruction and the demos of each predictor."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import dspy
from pydantic import BaseModel

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
    prompts: dict[str, Prompt] = {}
    for name, predictor in module.named_predictors():
        signature = cast(type[dspy.Signature], predictor.signature)
        demos = tuple({field: to_json_value(demo[field]) for field in demo} for demo in predictor.demos)
        prompts[name] = Prompt(signature.instructions, demos)
    return prompts


def to_json_value(value: object) -> object:
    """Write a value that DSPy traced, or a list or dict of such values, as JSON."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, (list, tuple)):
        return [to_json_value(item) for item in value]
    return {key: to_json_value(item) for key, item in value.items()} if isinstance(value, dict) else value


def fingerprint_prompts(prompts: Prompts) -> str:
    """Hash prompts: equal for programs that ask the same."""
    return content_hash({name: [prompt.instructions, prompt.demos] for name, prompt in prompts.items()})


def apply_prompts(prompts: Prompts, module: dspy.Module) -> None:
    """Set the prompts of a program, or of a part of one; predictors that are not named stay as they are."""
    for name, predictor in module.named_predictors():
        if name in prompts:
            signature = cast(type[dspy.Signature], predictor.signature)
            predictor.signature = signature.with_instructions(prompts[name].instructions)
            predictor.demos = [dict(demo) for demo in prompts[name].demos]


def instruction_diff(before: Prompts, after: Prompts) -> str:
    """Write the changes of the instructions as a unified diff, with the number of demos of each predictor."""
    parts: list[str] = []
    for name, prompt in after.items():
        old, new = before[name].instructions.splitlines(), prompt.instructions.splitlines()
        lines = difflib.unified_diff(old, new, f"{name} before", f"{name} after", lineterm="", n=1)
        parts += [*lines, f"# {name}: {len(before[name].demos)} demos before, {len(prompt.demos)} after", ""]
    return "\n".join(parts)


def prompts_to_json(prompts: Prompts) -> dict[str, Json]:
    """Write prompts as a JSON object."""
    return {name: {"instructions": p.instructions, "demos": list(p.demos)} for name, p in prompts.items()}
