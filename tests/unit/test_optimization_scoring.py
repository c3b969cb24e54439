"""Scores of attempts, and the feedback on them."""

from dataclasses import replace

import pytest
from dspy.lm15 import ServerError

from locomo.judge.rubrics import Rubric
from locomo.types import Category, Conversation, Question
from memory_program.bank.memory import Draft, MemoryKind, Provenance
from memory_program.bank.outcomes import Answer, CallFailure, Outcome, RankedItem, SessionRecord
from memory_program.bank.space import MemorySpace
from memory_program.optimization.candidate_metric import MemoryAttempt
from memory_program.optimization.dev_examples import MemoryCase
from memory_program.rl.rewards import AnswerMetric, build_answer_metric
from tests.conversations import session
from tests.scripted_lm import Reply, ScriptedLM, fields

DOG = Question("talk", 0, "What did Mara adopt?", Category.SINGLE_HOP, "a dog", ("D1:1",))
BOAT = Question("talk", 1, "Who sold a boat?", Category.SINGLE_HOP, "Tom", ("D1:2",))
VIOLIN = Question("talk", 2, "Which violin does Mara own?", Category.ADVERSARIAL, None, ("D1:1",))
SESSION = session(1, "Mara: I adopted a dog.", "Tom: I sold the boat.")
ABSTENTION = "Not mentioned in the conversation"
F1 = build_answer_metric("f1", Rubric.STRICT, None)


def attempt(
    *answers: Answer, score: AnswerMetric = F1, record: SessionRecord | None = None, stored: bool = True
) -> MemoryAttempt:
    questions = (DOG, BOAT, VIOLIN)[: len(answers)]
    space = MemorySpace("talk")
    if stored:
        note = Draft("Mara adopted a dog.", MemoryKind.EPISODIC, None, ("D1:1",))
        space.bank.create([note], Provenance("episodic", "session_1"))
    space.ingest(SESSION, record or SessionRecord("session_1"))
    talk = Conversation("talk", ("Mara", "Tom"), (SESSION,), questions)
    case = MemoryCase("talk/session_1", talk, space, questions)
    return MemoryAttempt(case, "prompts", answers, space, score, record)


def verdict(word: str) -> str:
    return fields(reasoning="Compared.", verdict=word)


def test_an_attempt_scores_the_mean_of_its_answers() -> None:
    found = attempt(Answer("a dog"), Answer("Mara"), Answer(ABSTENTION))
    assert (found.value(), found.is_unparsed) == (pytest.approx(2 / 3), False)


@pytest.mark.parametrize("outcome", [Outcome.UNPARSED, Outcome.TRUNCATED])
def test_a_reply_that_cannot_be_used_scores_0(outcome: Outcome) -> None:
    found = attempt(Answer("a dog"), Answer("", outcome, "reader.answer: cut"))
    assert (found.value(), found.is_unparsed) == (0.5, True)


def test_an_attempt_with_a_lost_call_has_no_score() -> None:
    lost = attempt(Answer("a dog"), Answer("", Outcome.ERROR, "reader.answer: no route"))
    assert lost.value() is None
    assert lost.lost_calls == ["reader.answer: no route"]
    failures = (
        CallFailure("writer.core", Outcome.UNPARSED, "prose"),
        CallFailure("writer.semantic", Outcome.ERROR, "no route"),
    )
    unwritten = attempt(Answer("a dog"), record=SessionRecord("session_1", failures=failures))
    assert unwritten.value() is None
    assert unwritten.lost_calls == ["writer.semantic: no route"]
    unread = attempt(Answer("a dog"), record=SessionRecord("session_1", failures=failures[:1]))
    assert unread.value() == 1.0


@pytest.mark.parametrize(
    ("metric", "question", "text", "replies", "expected"),
    [
        ("f1", DOG, "a brown dog", [], 2 / 3),  # precision 1/2, recall 1: 2 * 1/2 / (3/2)
        ("f1", VIOLIN, ABSTENTION, [], 1.0),
        ("f1", VIOLIN, "a Stradivari", [], 0.0),
        ("judge", DOG, "a hound", ["CORRECT"], 1.0),
        ("judge", DOG, "a cat", ["WRONG"], 0.0),
        ("judge", DOG, "a cat", ["I cannot say"], None),
        ("judge", VIOLIN, ABSTENTION, [], 1.0),  # an abstention needs no judge
        ("judge", VIOLIN, "a Stradivari", [], 0.0),
        ("judge", DOG, ABSTENTION, [], 0.0),
        ("mix", DOG, "a brown dog", ["CORRECT"], (2 / 3 + 1) / 2),
        ("mix", VIOLIN, ABSTENTION, [], 1.0),
        ("mix", DOG, "a cat", ["I cannot say"], None),
    ],
)
def test_an_answer_scores_by_the_metric(
    metric: str, question: Question, text: str, replies: list[str], expected: float | None
) -> None:
    with ScriptedLM([verdict(word) for word in replies]) as judge:
        found = build_answer_metric(metric, Rubric.STRICT, judge)(question, Answer(text))  # type: ignore[arg-type]  # a Literal
    assert found == (None if expected is None else pytest.approx(expected))


def test_without_a_verdict_there_is_no_score() -> None:
    replies: list[Reply] = [ServerError("out of order", provider="test"), verdict("CORRECT")]
    with ScriptedLM(replies) as judge:
        score = build_answer_metric("judge", Rubric.STRICT, judge)
        assert attempt(Answer("a dog"), score=score).value() is None
        assert attempt(Answer("a dog"), score=score).value() == 1.0


def test_an_attempt_of_which_one_answer_has_no_score_has_none() -> None:
    """Else candidates would be compared on different questions."""

    def fails_on_the_boat(question: Question, answer: Answer) -> float | None:
        return None if question is BOAT else 1.0

    assert attempt(Answer("a dog"), Answer("Tom"), score=fails_on_the_boat).value() is None


def test_a_question_without_a_gold_answer_is_left_out_of_the_score() -> None:
    found = attempt(Answer("a dog"), Answer("Tom"))
    asked = (DOG, replace(BOAT, answer=None))
    assert replace(found, case=replace(found.case, questions=asked)).value() == 1.0
    unread = (Answer("a dog"), Answer("", Outcome.UNPARSED, "prose"))
    assert replace(found, case=replace(found.case, questions=asked), answers=unread).value() == 1.0


@pytest.mark.parametrize(
    ("text", "stored", "shown", "expected"),
    [
        ("a cat", False, False, ["never stored", "Lost was this: Mara: I adopted a dog."]),
        ("a cat", True, False, ["stored but not retrieved", "Lost was this: Mara: I adopted a dog."]),
        ("a cat", True, True, ["retrieved but misread"]),
        (ABSTENTION, True, True, ["abstained although shown"]),
    ],
)
def test_feedback_names_the_step_at_which_the_evidence_was_lost(
    text: str, stored: bool, shown: bool, expected: list[str]
) -> None:
    items = (RankedItem("m1", ("D1:1",), 5),)
    answer = Answer(text, ranked=items, shown=("m1",) if shown else ())
    told = attempt(answer, stored=stored).feedback().splitlines()
    assert told[:4] == [
        "Asked: What did Mara adopt?",
        "Wanted: a dog",
        f"Answered: {text}",
        "Score: 0.00 of 1.",
    ]
    assert told[4:] == [f"What went wrong: {expected[0]}.", *expected[1:]]


def test_feedback_on_a_question_without_answer_wants_an_abstention() -> None:
    told = attempt(Answer("a dog"), Answer("Tom"), Answer("a Stradivari")).feedback()
    right, _, wrong = told.split("\n\n")
    assert "What went wrong" not in right
    assert "Score: 1.00 of 1." in right
    assert "Wanted: an abstention: the conversation does not say" in wrong
    assert "What went wrong: should have abstained." in wrong


def test_feedback_lists_replies_and_tool_calls_that_could_not_be_used() -> None:
    record = SessionRecord(
        "session_1",
        tool_errors=("semantic: update: unknown id 'm9'",),
        failures=(CallFailure("writer.core", Outcome.UNPARSED, "no calls found"),),
    )
    told = attempt(Answer("", Outcome.TRUNCATED, "reader.answer: cut"), record=record).feedback()
    assert "Answered: (nothing)\nThe reply could not be used: reader.answer: cut" in told
    assert "A tool refused a call: semantic: update: unknown id 'm9'" in told
    assert "writer.core gave nothing usable: no calls found" in told
