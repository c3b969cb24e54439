"""Splits by conversation, and cases drawn in turn from every conversation and every depth."""

import random
from pathlib import Path

import pytest

from locomo.judge.calibration import calibration_answers
from locomo.judge.rubrics import Rubric, Verdict
from locomo.locomo import Dataset, read_dataset
from locomo.splits import SPLITS
from locomo.types import Benchmark, Category, Conversation, Question
from memory_program.bank.space import MemorySpace
from memory_program.core.errors import ConfigError
from memory_program.evaluation.data_splits import split_conversations
from memory_program.optimization.dev_examples import answer_cases, episode_cases, is_scorable, question_cases
from memory_program.rl.episodes import make_episodes
from tests.conversations import session
from tests.optimization_samples import write_conversations


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> list[Conversation]:
    path = write_conversations(tmp_path_factory.mktemp("data") / "codes.json", count=8)
    return list(read_dataset(path).conversations)


def spaces_of(conversation: Conversation) -> list[MemorySpace]:
    space = MemorySpace(conversation.conversation_id)
    return [space.fork() for _ in range(len(conversation.sessions) + 1)]


def of(talks: list[Conversation]) -> Dataset:
    return Dataset(tuple(talks), "0" * 64, False, name="talks")


@pytest.mark.parametrize(
    ("count", "train", "val", "test"),
    [(2, 1, 1, 0), (3, 1, 1, 1), (4, 2, 1, 1), (8, 4, 2, 2), (11, 7, 2, 2)],
)
def test_a_file_is_split_by_the_order_of_its_conversations(
    count: int, train: int, val: int, test: int
) -> None:
    talks = [Conversation(f"talk-{n}", ("Ana", "Ben"), (session(1, "Ana: Hi."),), ()) for n in range(count)]
    splits = split_conversations(of(talks))
    assert [len(splits.train), len(splits.val), len(splits.test)] == [train, val, test]
    assert [*splits.train, *splits.val, *splits.test] == talks


def test_the_conversations_of_locomo_have_their_reference_splits() -> None:
    names = [f"conv-{n}" for n in (26, 30, 41, 42, 43, 44, 47, 48, 49, 50)]
    talks = [Conversation(name, ("Ana", "Ben"), (session(1, "Ana: Hi."),), ()) for name in names]
    splits = split_conversations(of(talks))
    found = {"train": splits.train, "val": splits.val, "test": splits.test}
    assert {name: tuple(c.conversation_id for c in part) for name, part in found.items()} == SPLITS


def test_a_file_of_locomos_train_split_alone_is_split_by_order_and_nothing_held_out_is_in_it() -> None:
    talks = [Conversation(name, ("Ana", "Ben"), (session(1, "Ana: Hi."),), ()) for name in SPLITS["train"]]
    splits = split_conversations(of(talks))
    assert [len(splits.train), len(splits.val), len(splits.test)] == [4, 1, 1]


def test_one_conversation_is_too_few() -> None:
    talk = Conversation("talk-1", ("Ana", "Ben"), (session(1, "Ana: Hi."),), ())
    with pytest.raises(ConfigError, match="1 conversations give 0 for training and 1 for validation"):
        split_conversations(of([talk]))


def test_questions_are_drawn_in_turn_from_every_conversation(talks: list[Conversation]) -> None:
    spaces = {talk.conversation_id: spaces_of(talk) for talk in talks}
    cases = question_cases(talks[:4], spaces, 10, random.Random(0))
    drawn = [case.conversation.conversation_id for case in cases]
    assert drawn == [f"codes-{number}" for number in (1, 2, 3, 4, 1, 2, 3, 4, 1, 2)]
    assert len({case.case_id for case in cases}) == 10
    assert all(case.session is None and len(case.questions) == 1 for case in cases)
    assert all(case.memories is spaces[case.conversation.conversation_id][-1] for case in cases)
    assert cases == question_cases(talks[:4], spaces, 10, random.Random(0))
    assert cases != question_cases(talks[:4], spaces, 10, random.Random(1))


def test_episodes_are_drawn_from_every_depth(talks: list[Conversation]) -> None:
    episodes = [
        make_episodes(talk, spaces_of(talk), max_questions=2, rng=random.Random(0)) for talk in talks[:4]
    ]
    cases = episode_cases(episodes, 100, random.Random(0))
    assert len(cases) == 4 * 3
    assert {case.session.number for case in cases[:4] if case.session} != {1}
    for case in cases:
        assert case.session is not None
        told = {turn.turn_id for turn in case.session.turns}
        assert len(case.questions) == 2
        assert all(set(question.evidence) <= told for question in case.questions)


def test_an_optimiser_is_shown_the_gold_but_not_as_an_input(talks: list[Conversation]) -> None:
    spaces = {talk.conversation_id: spaces_of(talk) for talk in talks}
    (case,) = question_cases(talks[:1], spaces, 1, random.Random(0))
    example = case.example
    assert example.gold == case.questions[0].answer
    assert dict(example.inputs()) == {"case_id": case.case_id, "question": case.questions[0].text}
    (episode,) = episode_cases(
        [make_episodes(talks[0], spaces_of(talks[0]), max_questions=2, rng=random.Random(0))],
        1,
        random.Random(0),
    )
    assert set(episode.example.inputs()) == {"case_id"}
    assert [entry["gold"] for entry in episode.example.asked_later] == [q.answer for q in episode.questions]


@pytest.mark.parametrize(
    ("category", "answer", "expected"),
    [
        (Category.SINGLE_HOP, "a dog", True),
        (Category.SINGLE_HOP, None, False),
        (Category.ADVERSARIAL, None, True),
    ],
)
def test_a_question_without_gold_has_no_score_unless_it_is_to_be_abstained_from(
    category: Category, answer: str | None, expected: bool
) -> None:
    assert is_scorable(Question("talk", 0, "What?", category, answer, ())) is expected


def test_unscorable_questions_are_not_drawn(tmp_path: Path) -> None:
    (talk,) = read_dataset(write_conversations(tmp_path / "one.json", count=1)).conversations
    lost = Question(talk.conversation_id, 99, "What?", Category.SINGLE_HOP, None, ())
    more = Conversation(talk.conversation_id, talk.speakers, talk.sessions, (*talk.questions, lost))
    cases = question_cases([more], {talk.conversation_id: spaces_of(talk)}, 99, random.Random(0))
    assert len(cases) == len(talk.questions)


@pytest.mark.parametrize("rubric", Rubric)
def test_answers_are_drawn_in_turn_from_both_verdicts_and_from_every_kind(rubric: Rubric) -> None:
    answers = calibration_answers(Benchmark.LOCOMO)
    cases = answer_cases(answers, rubric, 40, random.Random(0))
    assert len({case.case_id for case in cases}) == 40
    assert [case.known for case in cases] == [Verdict.CORRECT, Verdict.WRONG] * 20
    wrong = [case.answer.kind for case in cases if case.known is Verdict.WRONG]
    kinds = {answer.kind for answer in answers if answer.verdicts.get(rubric) is Verdict.WRONG}
    assert set(wrong[: len(kinds)]) == kinds
    assert cases == answer_cases(answers, rubric, 40, random.Random(0))
    assert cases != answer_cases(answers, rubric, 40, random.Random(1))
    everything = answer_cases(answers, rubric, 9999, random.Random(0))
    assert len(everything) == sum(rubric in answer.verdicts for answer in answers)


def test_a_judge_is_shown_what_it_judges_but_not_the_verdict() -> None:
    case = answer_cases(calibration_answers(Benchmark.PERLTQA), Rubric.STRICT, 2, random.Random(0))[1]
    question = case.answer.question
    assert dict(case.example.inputs()) == {
        "case_id": case.case_id,
        "question": question.text,
        "gold_answer": question.answer,
        "given_answer": case.answer.text,
    }
    assert (case.example.known_verdict, case.example.kind_of_answer) == ("WRONG", case.answer.kind.value)
    assert case.group == question.text
