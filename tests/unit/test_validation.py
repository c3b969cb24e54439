"""Validation scores the memory at the end of a conversation."""

import json
from dataclasses import asdict, replace

import dspy
import pytest
from dspy import lm15

from locomo.observations import Observation
from locomo.types import Category, Conversation, Question
from memory_program.agents.program import MemoryProgram
from memory_program.rl.rewards import RewardRule, build_answer_metric
from memory_program.rl.rollouts import Grader, sampling_program
from memory_program.rl.training_progress import format_validation
from memory_program.rl.validation import ValidationResult, validate_policy
from tests.conversations import session
from tests.scripted_lm import fields

ONE, TWO = session(1, "Mara: I moved to Oslo."), session(2, "Tom: I got a dog.", day=9)
TALK = Conversation(
    "talk",
    ("Mara", "Tom"),
    (ONE, TWO),
    (
        Question("talk", 0, "Where did Mara move?", Category.SINGLE_HOP, "Oslo", ("D1:1",)),
        Question("talk", 1, "What did Tom get?", Category.SINGLE_HOP, "a dog", ("D2:1",)),
    ),
)


class Model:
    """As writer it notes the session, and may delete older notes; as reader it quotes what it is shown."""

    def __init__(self, *, forgets: bool, loses: str = "") -> None:
        self.forgets, self.loses = forgets, loses

    def __deepcopy__(self, memo: object) -> "Model":
        return self

    def complete(self, request: lm15.Request) -> lm15.Response:
        user = "\n".join(message.text or "" for message in request.messages)
        if self.loses and self.loses in user:
            raise lm15.ServerError("down")
        text = (
            self._answer(user) if "[[ ## question ## ]]" in user else self._written(str(request.system), user)
        )
        return lm15.Response(
            id=None,
            model=request.model,
            message=lm15.Message.assistant([lm15.TextPart(text)]),
            finish_reason="stop",
            usage=lm15.Usage(input_tokens=1, output_tokens=1),
        )

    def _written(self, system: str, user: str) -> str:
        calls: list[dict[str, object]] = []
        if "Remember what happened" in system:
            text = "Mara moved to Oslo." if "to Oslo" in user.partition("session ##")[2] else "Tom got a dog."
            calls.append({"name": "manage_memory", "args": {"action": "create", "text": text}})
            if self.forgets and text == "Tom got a dog.":
                calls.append({"name": "delete_memory", "args": {"memory_id": "m1", "reason": "old"}})
        return fields(tool_calls=json.dumps({"tool_calls": calls}))

    def _answer(self, user: str) -> str:
        asked = "Mara moved to" if "Where did" in user else "Tom got"
        line = next((line for line in user.splitlines() if line.startswith(asked)), "")
        return fields(answer=line.removeprefix(asked).strip(" .") or "nothing")


def validated(model: Model, talk: Conversation = TALK) -> ValidationResult:
    program = MemoryProgram()
    program.set_lm(dspy.LM("test/model", engine=model, temperature=0.0, cache=False, num_retries=0))
    grader = Grader(program.reader, build_answer_metric("f1"), RewardRule("outcome"), threads=1)
    return validate_policy(sampling_program(program, 0.0, 64), [talk], grader, threads=1)


def test_forgetting_in_a_later_session_lowers_the_score():
    scores = {"talk": {"talk:q0": 1.0, "talk:q1": 1.0}}
    assert validated(Model(forgets=False)) == ValidationResult(
        1.0, questions=2, lost=0, scores=scores, answerable_score=1.0
    )
    scores = {"talk": {"talk:q0": 0.0, "talk:q1": 1.0}}
    assert validated(Model(forgets=True)) == ValidationResult(
        0.5, questions=2, lost=0, scores=scores, answerable_score=0.5
    )


@pytest.mark.parametrize("what", ["What did", "I got a dog"])
def test_questions_with_lost_calls_are_counted_and_not_scored(what):
    assert validated(Model(forgets=False, loses=what)) == ValidationResult(
        1.0, questions=1, lost=1, scores={"talk": {"talk:q0": 1.0}}, answerable_score=1.0
    )


def test_the_score_of_answers_and_abstention_are_told_apart():
    unanswerable = Question("talk", 2, "Where did Tom move?", Category.ADVERSARIAL, None, ("D1:1",))
    found = validated(Model(forgets=False), replace(TALK, questions=(*TALK.questions, unanswerable)))
    assert found.score == pytest.approx(2 / 3)
    assert (found.answerable_score, found.abstention) == (1.0, 0.0)


def test_every_question_has_the_same_weight():
    more = Question("talk", 2, "Where did Tom move?", Category.SINGLE_HOP, "Rome", ("D1:1",))
    found = validated(Model(forgets=False), replace(TALK, questions=(*TALK.questions, more)))
    assert found.score == pytest.approx(2 / 3)


def test_a_validation_measures_what_was_stored_where_the_facts_are_known():
    notes = ("Mara moved to Oslo.", "Tom got a dog.")
    told = tuple(
        replace(of, observations=(Observation(note.split()[0], note, (of.turns[0].turn_id,)),))
        for of, note in zip(TALK.sessions, notes, strict=True)
    )
    known = replace(TALK, sessions=told)
    for forgets, recall in ((False, 1.0), (True, 0.5)):
        found = validated(Model(forgets=forgets), known)
        assert (found.stored_precision, found.stored_recall) == (1.0, recall)
        entry = {"step": 1, "best_step": 1, **asdict(found)}
        assert f"stored facts precision 1.000, recall {recall:.3f}, f1 " in format_validation(entry)
    unknown = validated(Model(forgets=False))
    assert unknown.stored_f1 is None
    assert "stored" not in format_validation({"step": 1, "best_step": 1, **asdict(unknown)})
