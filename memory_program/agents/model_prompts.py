"""The prompts that a model was trained under: ``program.json`` in its folder replaces the shipped prompts.

A model that was trained here knows the prompts of its training, and no others. So its folder holds the
program that it was trained in, as ``dspy.Module.save`` writes it (``train.py`` does so, and ``pocket`` comes
with one). The prompts in ``signatures.py`` can change, and the model is still asked as it was taught.
"""

from copy import deepcopy
from dataclasses import replace
from typing import Any, Literal, cast

import dspy

from memory_program.agents.program import saved_reply_format
from memory_program.agents.reader import QAReader
from memory_program.agents.tools import READ_TOOLS
from memory_program.agents.writer import MemoryWriter
from memory_program.core.errors import ConfigError
from memory_program.core.json_files import read_json_file
from memory_program.models.model_names import model_program

SavedPrompts = dict[str, dict[str, Any]]
"""The state of each predictor, by its name in the program (``reader.answer``). Any: DSPy's JSON."""


def load_model_prompts(system: dspy.Module, *, writer: str | None = None, reader: str | None = None) -> None:
    """Give the agents of a system the prompts that their models were trained under.

    Args:
        system: has a ``writer``, a ``reader``, both or neither.
        writer: the name of the model that writes; None leaves the writer's prompts as they are.
        reader: the name of the model that answers; None leaves the reader's prompts as they are.

    Raises:
        ConfigError: a ``program.json`` beside weights is damaged, or is no program of this version.
    """
    for part, model in (("writer", writer), ("reader", reader)):
        module = getattr(system, part, None)
        if model is not None and isinstance(module, dspy.Module):
            load_agent_prompts(module, cast(Literal["writer", "reader"], part), model)


def load_agent_prompts(module: dspy.Module, part: Literal["writer", "reader"], model: str) -> None:
    """Give a writer or a reader the prompts that its model was trained under.

    Agents that the model's program lacks keep their prompts. So do agents that have the tools for reading
    while the saved prompt does not name them, or the reverse: it was saved with another ``max_turns``.

    Raises:
        ConfigError: as of ``load_model_prompts``.
    """
    program = _read_program(model)
    if program is None:
        return
    if isinstance(module, MemoryWriter | QAReader):
        module.saved_format = saved_reply_format(program, part)
        module.replies = replace(module.replies, format=module.saved_format)
    saved = read_model_prompts(model)
    predictors: list[tuple[str, Any]] = module.named_predictors()  # Any: DSPy types a signature as its own
    for name, predictor in predictors:
        state = saved.get(f"{part}.{name}")
        if state is None:
            continue
        signature = saved_signature(predictor.signature, state, model)
        if _names_read_tools(signature) == _names_read_tools(predictor.signature):
            predictor.signature, predictor.demos = signature, state["demos"]


def read_model_prompts(model: str) -> SavedPrompts:
    """Read the program beside a model's weights; empty where there is none.

    Raises:
        ConfigError: the file is not a saved program.
    """
    return {name: state for name, state in (_read_program(model) or {}).items() if "signature" in state}


def _read_program(model: str) -> SavedPrompts | None:
    """Read the program beside a model's weights; None where there is none."""
    path = model_program(model)
    if path is None:
        return None
    try:
        saved = read_json_file(path)
        for part in ("writer", "reader"):
            saved_reply_format(saved, part)
        return {name: dict(state) for name, state in saved.items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"the prompts of model {model!r} in {str(path)!r} cannot be read "
            f"({type(error).__name__}: {error}): put back the program.json that was saved with the weights"
        ) from error


def saved_signature(
    signature: type[dspy.Signature], state: dict[str, Any], model: str
) -> type[dspy.Signature]:
    """Rebuild a signature as it was saved: its instruction, its fields in their order, their descriptions.

    Input fields that were added since are left out. The types of fields are those of ``signature``.

    Raises:
        ConfigError: a saved field does not exist any more, or an output field was added since.
    """
    fields: dict[str, Any] = signature.fields  # Any: pydantic's
    by_prefix = {field.json_schema_extra["prefix"]: name for name, field in fields.items()}
    saved = [field["prefix"] for field in state["signature"]["fields"]]
    unknown = [prefix for prefix in saved if prefix not in by_prefix]
    new = [name for name in signature.output_fields if fields[name].json_schema_extra["prefix"] not in saved]
    if unknown or new:
        raise ConfigError(
            f"model {model!r} was trained with the fields {saved}, and {signature.__name__} has "
            f"{list(by_prefix)}: keep these fields in signatures.py, or train the model again"
        )
    names = [by_prefix[prefix] for prefix in saved]
    make: Any = dspy.Signature  # called with fields, the class makes a class
    same = make({name: deepcopy(fields[name]) for name in names}, "")
    return same.load_state(state["signature"])


def _names_read_tools(signature: type[dspy.Signature]) -> bool:
    outputs: dict[str, Any] = signature.output_fields  # Any: pydantic's
    described: list[str] = [field.json_schema_extra["desc"] for field in outputs.values()]
    return any(f"\n- {name}(" in text for text in described for name in READ_TOOLS)
