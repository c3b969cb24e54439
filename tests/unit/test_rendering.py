"""The adapters of the program and of the judge render what DSPy's own does, letter by letter."""

import dspy
import pytest

from locomo.judge.judge import GradeAnswer
from locomo.rendering import PromptCachingAdapter
from memory_program.agents.signatures import (
    SPECIALISTS,
    AnswerOrSearch,
    AnswerQuestion,
    Consolidate,
    WriteAll,
)

DSPY = dspy.ChatAdapter(use_json_adapter_fallback=False)
OURS = PromptCachingAdapter(use_json_adapter_fallback=False)


@pytest.mark.parametrize(
    "signature", [*SPECIALISTS.values(), WriteAll, Consolidate, AnswerQuestion, AnswerOrSearch, GradeAnswer]
)
def test_every_prompt_is_rendered_as_dspy_does(signature: type[dspy.Signature]) -> None:
    inputs = {name: f"\n {name} [[x]]\t\n" for name in signature.input_fields}
    for number in ("tokens_to_save", "searches_left"):
        if number in inputs:
            inputs[number] = 7
    demos = [{**inputs, **dict.fromkeys(signature.output_fields, "made up")}]
    for _ in range(2):  # once rendered, once remembered
        assert OURS.format(signature, demos, inputs) == DSPY.format(signature, demos, inputs)


def test_a_missing_or_empty_input_is_rendered_as_dspy_does() -> None:
    for inputs in ({}, {"question": ""}, {"question": "Who?", "memories": None}, {"memories": ["a", "b"]}):
        assert OURS.format(AnswerQuestion, [], inputs) == DSPY.format(AnswerQuestion, [], inputs)


def test_a_signature_that_is_changed_in_place_is_rendered_anew() -> None:
    signature = AnswerQuestion.with_instructions("Answer.")
    before = OURS.format_system_message(signature)
    signature.instructions = "Answer in French."
    assert "Answer in French." in OURS.format_system_message(signature)
    changed = signature.with_updated_fields("answer", desc="one word")
    assert "one word" in OURS.format_system_message(changed)
    assert "French" not in before
