"""The rendered prompts are data: each is pinned by a golden file.

After a deliberate change of a prompt: ``UPDATE_GOLDEN=1 python -m pytest tests/unit/test_prompts.py``, and
commit the change on its own.
"""

import os
from pathlib import Path

import dspy
import pytest

from memory_program.agents import signatures
from memory_program.agents.chat_adapter import ADAPTER
from memory_program.agents.json_adapter import JsonReplyAdapter
from memory_program.agents.signatures import SPECIALISTS

GOLDEN = Path(__file__).parents[1] / "golden" / "prompts"
SIGNATURES = [
    value
    for value in vars(signatures).values()
    if isinstance(value, type) and issubclass(value, dspy.Signature) and value is not dspy.Signature
]


def rendered(signature: type[dspy.Signature], adapter: dspy.Adapter = ADAPTER) -> str:
    inputs = {name: f"<{name}>" for name in signature.input_fields}
    messages = adapter.format(signature, demos=[], inputs=inputs)
    return "\n".join(f"=== {message['role']}\n{message['content']}" for message in messages) + "\n"


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda signature: signature.__name__)
def test_each_prompt_equals_its_golden_file(signature):
    path = GOLDEN / f"{signature.__name__}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(rendered(signature), encoding="utf-8")
    assert rendered(signature) == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda signature: signature.__name__)
def test_each_prompt_of_the_format_json_equals_its_golden_file(signature):
    path, text = GOLDEN / "json" / f"{signature.__name__}.txt", rendered(signature, JsonReplyAdapter())
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("signature", SPECIALISTS.values(), ids=lambda signature: signature.__name__)
def test_fields_that_change_with_the_session_come_last(signature):
    first, *_, last = signature.input_fields
    assert (first, last) == ("core_memory", "tool_results")


def test_the_question_stands_before_and_after_the_memories():
    for signature in (signatures.AnswerQuestion, signatures.AnswerOrSearch):
        names = list(signature.input_fields)
        places = [names.index(name) for name in ("excerpts", "question", "memories", "question_again")]
        assert places == sorted(places)


def test_no_prompt_of_the_reader_has_a_field_for_the_category_or_the_gold():
    for signature in (signatures.AnswerQuestion, signatures.AnswerOrSearch):
        assert not {"category", "gold", "evidence"} & set(signature.input_fields)
