from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import pytest

from locomo.judge.calibration import nugget_calibration_answers
from locomo.judge.rubrics import NUGGETS, Rubric, Verdict
from locomo.types import (
    BeamAbility,
    Category,
    LongMemEvalType,
    PerltqaType,
    PersonaMemType,
    Question,
    WorldQuestionType,
)
from memory_program.bank.outcomes import Answer, CallFailure, Outcome, RankedItem, ReplyCounts, SessionRecord
from memory_program.core.json_files import Json
from memory_program.evaluation.item_records import AnswerRecord, BuildRecord, JudgeRecord
from memory_program.evaluation.scoring.judge_errors import JudgedKnownAnswer, mean_error_rates
from memory_program.evaluation.scoring.question_scores import (
    BootstrapSampler,
    ScoredQuestion,
    paired_comparisons,
    score_question,
    summarize_system,
)
from memory_program.models.usage import Usage

RESAMPLING = BootstrapSampler(seed=0)


def question(
    index: int, category: Category = Category.SINGLE_HOP, gold: str | None = "a red kite", talk: str = "t1"
) -> Question:
    evidence = ("D1:1", "D1:2") if index % 2 == 0 else ()
    return Question(talk, index, f"Question {index}?", category, gold, evidence)


def record(
    text: str,
    *,
    outcome: Outcome = Outcome.OK,
    ranked: Sequence[Sequence[str]] | None = None,
    usage: Usage | None = None,
) -> AnswerRecord:
    items = None if ranked is None else tuple(RankedItem(str(n), tuple(s), 900) for n, s in enumerate(ranked))
    answer = Answer(text, outcome, "why", ranked=items, context_tokens=40)
    return AnswerRecord("k", "q", answer, usage or Usage(), 0.5)


def verdict(value: Verdict | None, outcome: Outcome = Outcome.OK, usage: Usage | None = None) -> JudgeRecord:
    return JudgeRecord("k", "q", Rubric.LENIENT, value, outcome, "", usage or Usage(), 0.25)


def scored(
    *answers: str | AnswerRecord | None, category: Category = Category.SINGLE_HOP
) -> list[ScoredQuestion]:
    records = [record(a) if isinstance(a, str) else a for a in answers]
    return [score_question(question(n, category), r, {}) for n, r in enumerate(records)]


def test_the_mean_is_over_existing_answers():
    summary = summarize_system(
        scored("a red kite", "blue", record("a red kite", outcome=Outcome.ERROR), None), [], RESAMPLING
    )
    assert summary["locomo_f1"]["all"]["value"] == 0.5
    assert summary["locomo_f1"]["all"]["n"] == 2
    assert summary["failures"]["answer"] == {"error": 1, "unparsed": 0, "truncated": 0, "missing": 1}
    assert summary["failures"]["all"] == 2


def test_the_headline_is_the_micro_average_of_the_four_answerable_categories():
    wanted = [
        (Category.MULTI_HOP, "red, blue", "red"),  # 0.5: one of two parts
        (Category.TEMPORAL, "7 May 2023", "May 7th, 2023"),  # 2/3
        (Category.OPEN_DOMAIN, "yes; she said so", "yes"),  # 1: the gold is cut at the semicolon
        (Category.SINGLE_HOP, "a red kite", "a red kite"),  # 1
        (Category.SINGLE_HOP, "a red kite", "nothing"),  # 0
        (Category.ADVERSARIAL, None, "Not mentioned in the conversation"),  # 1, apart
        (Category.ADVERSARIAL, None, "red"),  # 0, apart
    ]
    items = [
        score_question(question(n, category, gold), record(text), {})
        for n, (category, gold, text) in enumerate(wanted)
    ]
    summary = summarize_system(items, [], RESAMPLING)
    values = {name: score["value"] for name, score in summary["locomo_f1"].items()}
    assert values == {
        "all": pytest.approx((0.5 + 2 / 3 + 1 + 1 + 0) / 5),
        "multi-hop": 0.5,
        "temporal": pytest.approx(2 / 3),
        "open-domain": 1.0,
        "single-hop": 0.5,
    }
    assert (summary["abstention"]["value"], summary["abstention"]["n"]) == (0.5, 2)
    overall = summary["overall_with_abstention"]
    assert overall == {**overall, "value": pytest.approx((0.5 + 2 / 3 + 1 + 1 + 0 + 1 + 0) / 7), "n": 7}


def test_questions_about_earlier_states_have_a_score_of_their_own():
    plain = scored("a red kite", "blue")
    asked = Question("t1", 2, "Question 2?", WorldQuestionType.EARLIER_STATE, "Oslo", ("D1:1",))
    items = [*plain, score_question(asked, record("Oslo"), {})]
    summary, without = summarize_system(items, [], RESAMPLING), summarize_system(plain, [], RESAMPLING)
    assert (summary["earlier_state"]["value"], summary["earlier_state"]["n"]) == (1.0, 1)
    assert without["earlier_state"]["n"] == 0
    for key in ("locomo_f1", "abstention", "overall_with_abstention", "bleu1"):
        assert summary[key] == without[key]


def test_set_f1_and_bleu_are_over_questions_that_have_them():
    items = [
        score_question(question(0, Category.MULTI_HOP, "red, blue"), record("red, blue, green, pink"), {}),
        score_question(question(1, Category.SINGLE_HOP, "red kite"), record("red kite"), {}),
        score_question(question(2, Category.ADVERSARIAL, None), record("red"), {}),
    ]
    summary = summarize_system(items, [], RESAMPLING)
    assert summary["set_f1"]["value"] == pytest.approx(2 * 2 / (4 + 2))
    assert summary["set_f1"]["n"] == 1
    assert summary["bleu1"]["all"]["value"] == pytest.approx((0.5 + 1) / 2)
    assert summary["bleu1"]["all"]["n"] == 2


@pytest.mark.parametrize(
    ("category", "gold", "answer", "f1"),
    [
        (Category.SINGLE_HOP, "云南", "云南", 1.0),
        (Category.SINGLE_HOP, "云南", "云南。", 1.0),
        (Category.SINGLE_HOP, "云南", "去云南旅行", 4 / 7),
        (Category.SINGLE_HOP, "แมว", "แมวสีส้ม", 6 / 9),
        (Category.MULTI_HOP, "绿茶、咖啡", "咖啡，绿茶", 1.0),
        (Category.OPEN_DOMAIN, "云南；因为他喜欢山", "云南", 1.0),
        (Category.SINGLE_HOP, "Oslo, Norway", "Oslo, in Norway", 0.8),
        (Category.SINGLE_HOP, "Tokyo", "Tokyo 東京都", 2 / 3),  # as officially, where the gold has spaces
    ],
)
def test_text_without_spaces_is_compared_by_characters(category, gold, answer, f1):
    item = score_question(question(0, category, gold), record(answer), {})
    assert item.locomo_f1 == pytest.approx(f1)
    assert item.bleu1 > 0


def test_unreported_tokens_are_unknown_and_not_zero():
    silent = Usage(calls=1, cost_usd=None, unpriced_calls=1)
    heard = Usage(calls=1, input_tokens=90, output_tokens=10)
    assert [item.tokens for item in scored(record("x", usage=silent), record("x", usage=heard), "x")] == [
        None,
        100,
        40,
    ]
    summary = summarize_system(scored(record("x", usage=silent)), [], RESAMPLING)
    assert summary["tokens_per_question"] is None


def test_a_category_without_questions_has_no_score_and_is_not_zero():
    summary = summarize_system(scored("a red kite"), [], RESAMPLING)
    assert summary["locomo_f1"]["temporal"] == {"value": None, "low": None, "high": None, "n": 0}


def test_the_gold_of_an_adversarial_question_is_ignored():
    with_gold = score_question(question(0, Category.ADVERSARIAL, "No"), record("No"), {})
    assert (with_gold.locomo_f1, with_gold.bleu1) == (0.0, None)


def test_recall_is_over_the_ranking_of_the_questions_with_evidence():
    ranking = [["D9:1"]] * 4 + [["D1:1"]] + [["D9:1"]] * 3 + [["D1:2", "D9:2"]]
    items = [
        score_question(question(0), record("x", ranked=ranking), {}),
        score_question(question(1), record("x", ranked=ranking), {}),  # no evidence
        score_question(question(2), record("x", ranked=[["D1:1", "D1:2"]]), {}),
        score_question(question(4), record("x"), {}),  # does not retrieve
    ]
    summary = summarize_system(items, [], RESAMPLING)
    # The second of two evidence turns is found at rank 9; two items of 900 tokens fit 2,000.
    expected = {"5": (0.5 + 1) / 2, "10": 1.0, "25": 1.0, "50": 1.0, "2000tok": (0 + 1) / 2}
    assert summary["recall"] == expected
    assert {interval["n"] for interval in summary["recall_intervals"].values()} == {2}


def test_tokens_are_of_the_reader_or_of_the_context():
    paid = Usage(calls=1, input_tokens=500, output_tokens=20)
    items = scored(record("x", usage=paid), record("y"), record("", outcome=Outcome.ERROR, usage=paid))
    assert summarize_system(items, [], RESAMPLING)["tokens_per_question"] == (520 + 40) / 2
    assert summarize_system(scored(None), [], RESAMPLING)["tokens_per_question"] is None


def test_usage_is_summed_by_stage_and_failed_calls_cost_too():
    build = BuildRecord(
        "k", "t1", "session_1", "h", SessionRecord("session_1"), Usage(calls=4, cost_usd=0.4), 2
    )
    failed = record("", outcome=Outcome.ERROR, usage=Usage(calls=1, cost_usd=0.1))
    judged = verdict(Verdict.CORRECT, usage=Usage(calls=1, cost_usd=0.01))
    item = score_question(question(0), failed, {"lenient": judged})
    summary = summarize_system([item], [build, None], RESAMPLING)
    assert summary["calls"] == 6
    assert summary["cost_usd"] == pytest.approx(0.51)
    assert summary["seconds"] == 2.75
    assert [summary["usage"][stage]["calls"] for stage in ("build", "answer", "judge")] == [4, 1, 1]


def test_latency_is_given_per_question_and_per_session():
    items = [score_question(question(n), replace(record("x"), elapsed_s=n + 1.0), {}) for n in range(3)]
    found = summarize_system([*items, score_question(question(3), None, {})], [None], RESAMPLING)["latency"]
    assert found["seconds"]["question"] == {"p50": 2.0, "p95": pytest.approx(2.9)}
    assert found["seconds"]["session"] == {"p50": None, "p95": None}


def test_records_replaced_by_a_retry_count_as_cost():
    item = score_question(question(0), record("x", usage=Usage(calls=1, cost_usd=0.1)), {})
    before = record("", outcome=Outcome.ERROR, usage=Usage(calls=1, cost_usd=0.2))
    summary = summarize_system([item], [], RESAMPLING, [before])
    assert (summary["calls"], summary["cost_usd"]) == (2, pytest.approx(0.3))
    assert summary["usage"]["answer"]["calls"] == 2
    assert summary["seconds"] == 1.0
    assert summary["failures"]["all"] == 0


def test_an_unknown_cost_is_not_a_number():
    item = scored(record("x", usage=Usage(calls=1, cost_usd=None, unpriced_calls=1)))
    assert summarize_system(item, [], RESAMPLING)["cost_usd"] is None


def test_building_is_summed_up_with_its_failures():
    failures = (
        CallFailure("writer.core", Outcome.UNPARSED, "?"),
        CallFailure("writer.core", Outcome.ERROR, "!"),
    )
    built = SessionRecord(
        "session_1", 3, 5, ("bad id", "empty"), failures, ("m1",), counts=ReplyCounts(1, 2, 3, 4)
    )
    record = BuildRecord("k", "t1", "session_1", "h", built, Usage(), 1)
    summary = summarize_system([], [record, record, None], RESAMPLING)
    assert summary["memory"] == {
        "sessions": 2,
        "silent_sessions": 0,
        "operations": 6,
        "tool_calls": 10,
        "tool_errors": 4,
        "odd_dates": 0,
        "left_out": 2,
        "repaired": 2,
        "duplicates": 4,
        "invented": 6,
        "copied": 8,
    }
    assert summary["failures"]["build"] == {"error": 2, "unparsed": 2, "truncated": 0, "missing": 1}


def judged(*verdicts: tuple[Verdict | None, Verdict | None]) -> Json:
    items = [
        score_question(
            question(n),
            record("x"),
            {"lenient": lenient and verdict(lenient), "strict": strict and verdict(strict)},
        )
        for n, (lenient, strict) in enumerate(verdicts)
    ]
    return summarize_system(items, [], RESAMPLING)


def test_an_unparsed_verdict_is_not_wrong():
    right, wrong, unparsed = Verdict.CORRECT, Verdict.WRONG, Verdict.UNPARSED
    summary = judged((right, right), (right, wrong), (wrong, wrong), (unparsed, right), (None, wrong))
    lenient, strict = summary["judge"]["lenient"], summary["judge"]["strict"]
    assert (lenient["all"]["value"], lenient["all"]["n"], lenient["unparsed"]) == (pytest.approx(2 / 3), 3, 1)
    assert (strict["all"]["value"], strict["all"]["n"], strict["unparsed"]) == (0.4, 5, 0)
    # Over the three that both graded: agreement 2/3, by chance (2*1 + 1*2) / 9 = 4/9.
    assert summary["judge"]["kappa"] == pytest.approx((2 / 3 - 4 / 9) / (1 - 4 / 9))
    assert summary["failures"]["judge"] == {"error": 0, "unparsed": 1, "truncated": 0, "missing": 1}


def test_a_failed_judge_call_is_an_error_and_no_verdict():
    item = score_question(question(0), record("x"), {"lenient": verdict(None, Outcome.ERROR)})
    summary = summarize_system([item], [], RESAMPLING)
    assert summary["judge"]["lenient"]["all"]["value"] is None
    assert summary["judge"]["kappa"] is None
    assert summary["failures"]["judge"]["error"] == 1


def test_a_failed_answer_misses_no_verdict():
    item = score_question(question(0), record("", outcome=Outcome.ERROR), {"lenient": None})
    assert summarize_system([item], [], RESAMPLING)["failures"]["judge"]["missing"] == 0


def test_without_a_judge_there_is_no_judge_score():
    assert summarize_system(scored("x"), [], RESAMPLING)["judge"] is None


def many(text: str, talks: Sequence[str] = ("t1", "t2", "t3")) -> list[ScoredQuestion]:
    return [
        score_question(question(n, talk=talk), record(text if n % 3 else "a red kite"), {})
        for talk in talks
        for n in range(10)
    ]


def test_equal_records_and_seed_give_equal_numbers():
    first = summarize_system(many("blue"), [], RESAMPLING)
    summarize_system(many("a red"), [], RESAMPLING)
    assert summarize_system(many("blue"), [], RESAMPLING) == first


def test_systems_are_compared_on_the_questions_that_both_answered():
    better, worse = many("a red kite"), many("blue")
    worse[0] = score_question(better[0].question, None, {})
    (pair,) = paired_comparisons({"rag": better, "no-memory": worse}, [], RESAMPLING)
    assert (pair["a"], pair["b"], pair["metric"], pair["n"]) == ("rag", "no-memory", "locomo_f1", 29)
    assert pair["difference"] == pytest.approx(18 / 29)
    assert pair["low"] <= pair["difference"] <= pair["high"]
    assert pair["p_value"] == 0.25  # the least that three conversations can give


def of_beam(number: int, value: float | None) -> ScoredQuestion:
    asked = Question(f"c{number}", 0, "?", BeamAbility.EXTRACTION, "x", nuggets=("n",))
    found = JudgeRecord("k", "q", NUGGETS, None, Outcome.OK, "", Usage(), 0.0, value)
    return score_question(asked, record("x"), {}, [found if value is not None else None])


def test_scores_by_different_judges_are_not_compared():
    systems = {"one": [of_beam(n, 1.0) for n in range(3)], "two": [of_beam(n, 0.5) for n in range(3)]}
    (pair,) = paired_comparisons(systems, [NUGGETS], RESAMPLING)[:1]
    assert (pair["metric"], pair["difference"]) == ("nugget_score", 0.5)
    assert paired_comparisons(systems, [], RESAMPLING, rubrics_apart=[NUGGETS]) == []


def test_the_beginnings_of_one_history_are_one_cluster():
    histories = {"a": "(a)", "b": "(b)"}
    items = [
        score_question(Question(f"{name}@{end}", 0, "?", PersonaMemType.RECALL, "(a)"), record(said), {})
        for name, said in histories.items()
        for end in range(40)
    ]
    found = summarize_system(items, [], RESAMPLING)["locomo_f1"]["all"]
    assert (found["value"], found["low"], found["high"]) == (0.5, 0.0, 1.0)


def test_a_harsh_judge_of_nuggets_rejects_and_does_not_accept():
    answers = nugget_calibration_answers()

    def rates(of_half: float) -> tuple[float, float]:
        tried = [
            JudgedKnownAnswer(answer, NUGGETS, None, of_half if answer.value == 0.5 else answer.value)
            for answer in answers
        ]
        found = mean_error_rates(tried, RESAMPLING)
        return found["false_accept"]["value"], found["false_reject"]["value"]

    harsh, lenient = rates(0.0), rates(1.0)
    assert harsh[0] == lenient[1] == 0.0
    assert harsh[1] > 0.1
    assert lenient[0] > 0.1


def test_each_pair_of_three_systems_is_compared():
    systems = {name: many("blue") for name in ("a", "b", "c")}
    pairs = paired_comparisons(systems, ["lenient"], RESAMPLING)
    assert [(pair["a"], pair["b"]) for pair in pairs] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert {pair["difference"] for pair in pairs} == {0.0}


# -- the other benchmarks ------------------------------------------------------------------------


def of_longmemeval(
    kind: LongMemEvalType, gives: Verdict | None, *, must_abstain: bool = False
) -> ScoredQuestion:
    number = next(NUMBERS)
    asked = Question(f"q{number}", 0, "?", kind, "red", ("D1:1",), must_abstain=must_abstain)
    said = record("Not mentioned" if must_abstain else "red", ranked=[["D2:1"], ["D1:1"]])
    return score_question(asked, said, {"lenient": gives and verdict(gives)})


NUMBERS = count()


def test_longmemeval_is_scored_by_type_together_and_as_the_mean_of_types():
    right, wrong, user = Verdict.CORRECT, Verdict.WRONG, LongMemEvalType.USER
    items = [
        *(of_longmemeval(user, gives) for gives in (right, right, right)),
        of_longmemeval(user, wrong, must_abstain=True),
        of_longmemeval(LongMemEvalType.TEMPORAL, wrong),
        of_longmemeval(LongMemEvalType.TEMPORAL, Verdict.UNPARSED),
    ]
    judged = summarize_system(items, [], RESAMPLING)["judge"]["lenient"]
    values = {name: judged[name]["value"] for name in judged if name != "unparsed"}
    # What has no answer counts within its type, as in the benchmark's print_qa_metrics.py.
    assert {name: value for name, value in values.items() if value is not None} == {
        "all": 3 / 5,
        "single-session-user": 3 / 4,
        "temporal-reasoning": 0,
        "mean of types": (3 / 4 + 0) / 2,
        "abstention": 0,
    }
    assert (judged["mean of types"]["n"], judged["abstention"]["n"], judged["unparsed"]) == (5, 1, 1)
    assert judged["mean of types"]["low"] < judged["mean of types"]["value"] < judged["mean of types"]["high"]


def test_unanswerable_longmemeval_questions_score_abstention():
    items = [of_longmemeval(LongMemEvalType.USER, None, must_abstain=flag) for flag in (True, False)]
    summary = summarize_system(items, [], RESAMPLING)
    assert (summary["abstention"]["value"], summary["abstention"]["n"]) == (1, 1)
    assert summary["locomo_f1"]["single-session-user"]["n"] == 2
    assert summary["bleu1"]["all"]["n"] == 1  # there is no gold to compare an abstention with


def test_rankings_are_summed_up_by_turn_and_session():
    summary = summarize_system([of_longmemeval(LongMemEvalType.USER, None)], [], RESAMPLING)
    assert summary["retrieval"]["session/recall_all/5"]["value"] == 1
    assert summary["retrieval"]["turn/ndcg/10"]["n"] == 1


def test_perltqa_is_scored_by_the_kind_of_memory():
    items = [
        score_question(Question("Mira", n, "?", kind, "red kite"), record(text), {})
        for n, (kind, text) in enumerate(
            [
                (PerltqaType.PROFILE, "red kite"),
                (PerltqaType.EVENT, "a kite"),
                (PerltqaType.EVENT, "nothing"),
            ]
        )
    ]
    scores = summarize_system(items, [], RESAMPLING)["locomo_f1"]
    assert {name: score["value"] for name, score in scores.items()} == {
        "all": pytest.approx((1 + 2 / 3 + 0) / 3),
        "profile": 1,
        "social-relationship": None,
        "events": pytest.approx(1 / 3),
        "dialogues": None,
    }


def test_each_rubric_is_compared_by_its_own_verdicts():
    def judged(lenient: Verdict, strict: Verdict):
        verdicts = {"lenient": verdict(lenient), "strict": replace(verdict(strict), rubric=Rubric.STRICT)}
        return [score_question(question(0), record("x"), verdicts)]

    one, other = judged(Verdict.CORRECT, Verdict.CORRECT), judged(Verdict.CORRECT, Verdict.WRONG)
    pairs = paired_comparisons({"a": one, "b": other}, ["lenient", "strict"], RESAMPLING)
    assert {pair["metric"]: pair["difference"] for pair in pairs} == {
        "locomo_f1": 0,
        "judge/lenient": 0,
        "judge/strict": 1,
    }
