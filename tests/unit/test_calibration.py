"""The built-in answers that judges are tried on: what rules make of a gold, and which verdict is known."""

from collections import Counter
from datetime import date

import pytest

from locomo.judge.calibration import (
    AnswerKind,
    CalibrationAnswer,
    calibration_answers,
    format_gold,
    off_by_one_golds,
    split_calibration_answers,
)
from locomo.judge.calibration_items import CALIBRATION_ITEMS, CountedThings, YearMonth
from locomo.judge.rubrics import Grading, Rubric, Verdict, list_gradings, select_grading
from locomo.metrics import is_abstention
from locomo.types import Benchmark

JUDGED = [benchmark for benchmark in Benchmark if benchmark.is_judged]
RIGHT, WRONG = Verdict.CORRECT, Verdict.WRONG


def answers_to(question: str) -> list[CalibrationAnswer]:
    found = [
        a for benchmark in Benchmark for a in calibration_answers(benchmark) if question in a.question.text
    ]
    assert len({answer.question for answer in found}) == 1
    return found


def texts(question: str, kind: AnswerKind) -> list[str]:
    return [answer.text for answer in answers_to(question) if answer.kind is kind]


def test_a_date_is_said_in_other_forms_and_missed_by_one_unit():
    question = "When did Nora's sister come to visit?"
    assert texts(question, AnswerKind.GOLD) == ["31 March 2023"]
    assert texts(question, AnswerKind.PARAPHRASE)[:2] == ["March 31, 2023", "2023-03-31"]
    assert texts(question, AnswerKind.DATE_OFF_BY_ONE) == [
        "30 March 2023",
        "1 April 2023",
        "28 February 2023",
        "30 April 2023",
        "31 March 2022",
        "31 March 2024",
    ]


def test_a_month_is_missed_by_a_month_and_by_a_year_but_not_by_a_day():
    question = "When will Theo take his sailing exam?"
    assert texts(question, AnswerKind.DATE_OFF_BY_ONE) == [
        "November 2023",
        "January 2024",
        "December 2022",
        "December 2024",
    ]


def test_a_number_is_said_as_a_word_and_missed_by_one():
    question = "How many concerts did I go to this spring?"
    assert texts(question, AnswerKind.PARAPHRASE)[:2] == ["4", "four concerts"]
    assert texts(question, AnswerKind.COUNT_OFF_BY_ONE) == ["3 concerts", "5 concerts"]


def test_a_list_is_said_in_another_order_and_cut():
    question = "In which countries has Nora been hiking?"
    assert texts(question, AnswerKind.PARAPHRASE)[0] == "Scotland, Slovenia and Norway"
    assert texts(question, AnswerKind.PART) == ["Norway, Slovenia"]


def test_a_changed_fact_is_outdated_alone_and_right_beside_the_new_one():
    question = "Where does my sister live now?"
    assert texts(question, AnswerKind.OUTDATED) == ["in Toronto"]
    assert texts(question, AnswerKind.OUTDATED_THEN_GOLD) == ["Formerly in Toronto, but now in Calgary"]


def test_texts_and_lists_have_no_neighbours():
    assert off_by_one_golds("Ghent") == off_by_one_golds(("tea", "milk")) == []
    assert [format_gold(n) for n in off_by_one_golds(CountedThings(1, "days"))] == ["0 days", "2 days"]
    assert format_gold(off_by_one_golds(date(2024, 2, 29))[-1]) == "28 February 2025"
    assert format_gold(off_by_one_golds(YearMonth(2023, 1))[0]) == "December 2022"


@pytest.mark.parametrize(
    ("question", "kind", "lenient", "strict"),
    [
        ("Where did Theo grow up?", AnswerKind.GOLD, RIGHT, RIGHT),
        ("Where did Theo grow up?", AnswerKind.PARAPHRASE, RIGHT, RIGHT),
        ("Where did Theo grow up?", AnswerKind.VAGUE, WRONG, WRONG),
        ("Where did Theo grow up?", AnswerKind.NEAR_MISS, WRONG, WRONG),
        ("Where did Theo grow up?", AnswerKind.OTHER_SPEAKER, WRONG, WRONG),
        ("Where did Theo grow up?", AnswerKind.ALTERNATIVES, None, WRONG),
        ("Where did Theo grow up?", AnswerKind.REFUSAL, WRONG, WRONG),
        ("Where did Theo grow up?", AnswerKind.EMPTY, WRONG, WRONG),
        ("Where did Theo grow up?", AnswerKind.INSTRUCTION, WRONG, WRONG),
        ("Which books did Theo read in autumn?", AnswerKind.PART, None, WRONG),
        ("How many siblings does Theo have?", AnswerKind.COUNT_OFF_BY_ONE, WRONG, WRONG),
        # LongMemEval: a part is wrong, and off-by-one counts are forgiven where time is asked for.
        ("Which plants have I repotted?", AnswerKind.PART, WRONG, WRONG),
        ("How many concerts did I go to this spring?", AnswerKind.COUNT_OFF_BY_ONE, WRONG, WRONG),
        ("How many weeks ago did I begin", AnswerKind.COUNT_OFF_BY_ONE, RIGHT, WRONG),
        ("Where does my sister live now?", AnswerKind.OUTDATED, WRONG, WRONG),
        ("Where does my sister live now?", AnswerKind.OUTDATED_THEN_GOLD, RIGHT, RIGHT),
        ("What could I cook for dinner?", AnswerKind.PARAPHRASE, RIGHT, RIGHT),
        ("What could I cook for dinner?", AnswerKind.NEAR_MISS, WRONG, WRONG),
        ("What could I cook for dinner?", AnswerKind.GENERIC, WRONG, WRONG),
        ("What breed is my cat?", AnswerKind.REFUSAL, RIGHT, RIGHT),
        ("What breed is my cat?", AnswerKind.GOLD, RIGHT, RIGHT),
        ("What breed is my cat?", AnswerKind.INVENTED, WRONG, WRONG),
        ("What breed is my cat?", AnswerKind.GUESS, None, WRONG),
        ("What did Jonas give Mira", AnswerKind.PARAPHRASE, RIGHT, RIGHT),
    ],
)
def test_the_known_verdict_follows_the_rubric(question, kind, lenient, strict):
    found = [answer.verdicts for answer in answers_to(question) if answer.kind is kind]
    assert found
    for verdicts in found:
        assert (verdicts.get(Rubric.LENIENT), verdicts.get(Rubric.STRICT)) == (lenient, strict)


def test_a_right_answer_is_never_among_the_wrong_ones():
    for benchmark in JUDGED:
        seen = Counter((answer.question, answer.text) for answer in calibration_answers(benchmark))
        assert max(seen.values()) == 1
        for answer in calibration_answers(benchmark):
            if answer.verdicts.get(Rubric.LENIENT) is WRONG:
                assert answer.text != answer.question.answer


def test_every_benchmark_is_tried_on_all_its_gradings_with_enough_of_both_verdicts():
    for benchmark in JUDGED:
        answers = calibration_answers(benchmark)
        assert {select_grading(answer.question) for answer in answers} == set(list_gradings(benchmark))
        for rubric in Rubric:
            known = Counter(answer.verdicts.get(rubric) for answer in answers)
            assert known[RIGHT] >= 20
            assert known[WRONG] >= 60
    assert {grading for benchmark in Benchmark for grading in list_gradings(benchmark)} == set(Grading)


def test_a_question_keeps_its_name_whatever_else_is_asked():
    ids = [answer.question.question_id for b in Benchmark for answer in calibration_answers(b)]
    assert len(set(ids)) == len(CALIBRATION_ITEMS)
    assert ids[0] == "calibration-locomo:q0"


def test_a_refusal_is_one_by_the_official_words_too():
    refusals = texts("Where did Theo grow up?", AnswerKind.REFUSAL)
    assert [is_abstention(text) for text in refusals] == [True, False]


@pytest.mark.parametrize("benchmark", JUDGED)
def test_the_answers_are_split_by_question_with_every_kind_of_question_in_each_split(benchmark):
    splits = split_calibration_answers(benchmark)
    assert list(splits) == ["train", "val", "test"]
    questions = [{answer.question for answer in answers} for answers in splits.values()]
    assert sum(map(len, questions)) == len(set.union(*questions))
    assert {len(answers) for answers in questions} != {0}
    every = [answer for answers in splits.values() for answer in answers]
    assert Counter((a.question, a.text) for a in every) == Counter(
        (a.question, a.text) for a in calibration_answers(benchmark)
    )
    for answers in splits.values():
        assert {select_grading(answer.question) for answer in answers} == set(list_gradings(benchmark))
        for rubric in Rubric:
            assert {RIGHT, WRONG} <= {answer.verdicts.get(rubric) for answer in answers}
    assert len(questions[0]) >= len(questions[1]) + len(questions[2]) - 1
