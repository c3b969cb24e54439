"""Prompts as JSON: read, applied, fingerprinted, compared."""

import json

import dspy
from dspy.lm15 import Message, Request, Response, TextPart, Usage

from locomo.types import Session
from memory_program.agents.program import MemoryProgram
from memory_program.bank.space import MemorySpace
from memory_program.optimization.optimizers import append_rule
from memory_program.optimization.prompt_text import (
    apply_prompts,
    fingerprint_prompts,
    instruction_diff,
    read_prompts,
)
from tests.conversations import session
from tests.scripted_lm import ScriptedLM, fields

SESSION: Session = session(1, "Mara: I adopted a dog.", "Tom: I sold the boat.")
CALLS = {
    "tool_calls": [{"name": "manage_memory", "args": {"action": "create", "text": "A dog.", "kind": ""}}]
}


class Recording:
    """Replies with one call, and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def complete(self, request: Request) -> Response:
        self.requests.append(request)
        message = Message.assistant([TextPart(fields(tool_calls=json.dumps(CALLS)))])
        usage = Usage(input_tokens=1, output_tokens=1)
        return Response(id=None, model=request.model, message=message, finish_reason="stop", usage=usage)


def traced_program() -> MemoryProgram:
    """A program whose specialists have a demo each, as optimisers make them of what they trace."""
    program = MemoryProgram()
    with dspy.context(lm=dspy.LM("test/m", engine=Recording(), cache=False), trace=[]):
        program.remember(MemorySpace("talk"), SESSION)
        trace = dspy.settings.trace
    assert len(trace) == 4
    for predictor, inputs, outputs in trace:
        predictor.demos = [dspy.Example(augmented=True, **inputs, **outputs)]
    return program


def asked_of(program: MemoryProgram) -> list[str]:
    engine = Recording()
    with dspy.context(lm=dspy.LM("test/m", engine=engine, cache=False)):
        program.remember(MemorySpace("talk"), SESSION)
    return sorted(repr((request.system, request.messages)) for request in engine.requests)


def test_prompts_are_named_by_their_predictors() -> None:
    prompts = read_prompts(MemoryProgram())
    names = ["core", "episodic", "semantic", "procedural", "consolidate"]
    assert list(prompts) == [*(f"writer.{name}" for name in names), "reader.answer"]
    assert prompts["reader.answer"].instructions.startswith("Answer a question about a conversation")
    assert all(prompt.demos == () for prompt in prompts.values())


def test_applied_prompts_give_the_same_requests() -> None:
    program, copy = traced_program(), MemoryProgram()
    prompts = read_prompts(program)
    assert len(prompts["writer.semantic"].demos) == 1
    apply_prompts(prompts, copy)
    assert asked_of(copy) == asked_of(program)
    assert asked_of(copy) != asked_of(MemoryProgram())
    assert fingerprint_prompts(read_prompts(copy)) == fingerprint_prompts(prompts)


def test_a_saved_program_gives_the_same_requests_as_the_traced_one(tmp_path: object) -> None:
    program, loaded = traced_program(), MemoryProgram()
    path = f"{tmp_path}/program.json"
    program.save(path)
    loaded.load(path)
    assert asked_of(loaded) == asked_of(program)
    assert fingerprint_prompts(read_prompts(loaded)) == fingerprint_prompts(read_prompts(program))


def test_another_instruction_or_demo_is_another_fingerprint() -> None:
    program = MemoryProgram()
    before = fingerprint_prompts(read_prompts(program))
    assert before == fingerprint_prompts(read_prompts(MemoryProgram()))
    program.reader.answer.demos = [dspy.Example(question="Who?", answer="Mara")]
    with_demo = fingerprint_prompts(read_prompts(program))
    program.reader.answer.demos = []
    program.reader.answer.signature = program.reader.answer.signature.with_instructions("Answer.")
    assert len({before, with_demo, fingerprint_prompts(read_prompts(program))}) == 3


def test_the_diff_shows_what_changed_and_counts_demos() -> None:
    before = {"reader.answer": read_prompts(MemoryProgram())["reader.answer"]}
    program = MemoryProgram()
    predictor = program.reader.answer
    predictor.signature = predictor.signature.with_instructions(
        f"{predictor.signature.instructions}\nBe brief."
    )
    predictor.demos = [{"question": "Who?", "answer": "Mara"}]
    diff = instruction_diff(before, {"reader.answer": read_prompts(program)["reader.answer"]})
    assert "\n+Be brief.\n" in diff
    assert "-Answer" not in diff
    assert diff.splitlines()[-1] == "# reader.answer: 0 demos before, 1 after"


def test_the_model_that_writes_rules_for_simba_sees_the_calls_of_both_attempts() -> None:
    program = MemoryProgram()
    with dspy.context(lm=dspy.LM("test/m", engine=Recording(), cache=False), trace=[]):
        program.remember(MemorySpace("talk"), SESSION)
        trace = dspy.settings.trace
    tried = {
        "example": dspy.Example(case_id="a", gold="Pip").with_inputs("case_id"),
        "prediction": dspy.Prediction(answers=["Pip"]),
        "trace": trace,
        "output_metadata": {},
    }
    advice = fields(discussion="-", module_advice=json.dumps({"writer.semantic": "Name the dog."}))
    with ScriptedLM([advice]) as lm:
        append_rule(
            [{**tried, "score": 1.0}, {**tried, "score": 0.0}],
            program,
            predictor2name={id(predictor): name for name, predictor in program.named_predictors()},
            batch_10p_score=0.0,
            batch_90p_score=1.0,
            prompt_model=lm,
        )
    assert lm.requests[0].text.count('"text": "A dog."') == 2 * len(trace)
    assert read_prompts(program)["writer.semantic"].instructions.endswith("Name the dog.")
