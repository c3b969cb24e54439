"""Metrics by table. Each row says where its number comes from; what no source gives is worked out beside it.

O: computed by executing the official scorer's logic (snap-research/LoCoMo at 3eb6f2c, NLTK's PorterStemmer).
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locomo.benchmark_errors import ScoringError
from locomo.metrics import (
    bleu1,
    evidence_recall,
    evidence_recall_under_budget,
    is_abstention,
    locomo_f1,
    longmemeval_ndcg,
    set_f1,
)

OFFICIAL = [
    # O: token F1, one category that uses it
    (4, "a trophy", "a trophy", 1.0),
    (4, "She received a trophy", "a trophy", 0.5),
    (4, "self-care", "self care", 0.0),  # a deleted hyphen joins
    (4, "Joanna's dog", "joanna dog", 1.0),  # joannas is stemmed
    (4, "running and painting", "paint, run", 1.0),  # "and" and the comma go
    (4, "hiking and hiking", "hiking", 2 / 3),  # multisets, not sets
    (4, "", "yes", 0.0),
    (4, "the", "the", 0.0),  # both normalise to nothing
    (4, "A, an... THE & and!", "anything", 0.0),
    (4, "1,000", "1000", 1.0),
    (4, "the½", "½", 1.0),  # regex's boundary: re would keep "the½" as one word
    (4, "ΟΔΟΣ,ΟΔΟΣ", "οδοσοδος", 1.0),  # a sigma before a comma is not at the end: commas go first
    (4, "🏔️ hike", "hike", 2 / 3),
    (4, "café", "cafe", 0.0),
    # O: whole numbers as gold
    (2, "2022", 2022, 1.0),
    (2, "last year (2022)", 2022, 0.5),
    (4, "three", 3, 0.0),
    (4, "-1", -1, 1.0),
    # O: temporal
    (2, "7 May 2023", "7 May 2023", 1.0),
    (2, "May 7th, 2023", "7 May 2023", 2 / 3),
    (2, "The week before 9 June 2023", "The friday before 9 June 2023", 0.8),
    # O: open-domain, the gold ends at its first semicolon and the prediction does not
    (3, "Likely no", "Likely no; though she likes reading", 1.0),
    (3, "Yes; because", "Yes; because he enjoys it", 2 / 3),
    (3, "No", "Likely no, she does not refer to herself as part of it", 2 / 13),
    (3, "anything", "; reasons only", 0.0),
    # O: multi-hop, parts between commas
    (1, "pottery, camping, painting, swimming", "pottery, camping, painting, swimming", 1.0),
    (1, "swimming, painting, camping, pottery", "pottery, camping, painting, swimming", 1.0),
    (1, "pottery, chess", "pottery, camping, painting, swimming", 0.25),
    (1, "pottery camping painting swimming", "pottery, camping, painting, swimming", 0.4),
    (1, "beach, mountains, forest, chess, opera", "beach, mountains, forest", 1.0),  # too many cost nothing
    (1, "", "beach, mountains", 0.0),
    (1, "beach", "beach, ", 0.5),  # an empty gold part counts
    (1, "red; blue", "red; blue", 1.0),  # only category 3 cuts at a semicolon
    (1, "2022", 2022, 1.0),
    # O: adversarial, by phrase
    (5, "Not mentioned in the conversation", "", 1.0),
    (5, "There is NO INFORMATION AVAILABLE.", "", 1.0),
    (5, "self-care is important. Not mentioned elsewhere", "", 1.0),
    (5, "unknown", "", 0.0),
    (5, "no information is available", "", 0.0),
    (5, "not  mentioned", "", 0.0),
    (5, "", "", 0.0),
    (5, "Mallorca", "Mallorca", 0.0),
    (5, "not mentioned", None, 1.0),
]

TEXT = st.text(alphabet=st.sampled_from("ab run running the and,;. -'²½éσςΣ🏔"), max_size=30)


@pytest.mark.parametrize(("category", "prediction", "gold", "score"), OFFICIAL)
def test_the_official_score(category, prediction, gold, score):
    assert locomo_f1(prediction, gold, category) == pytest.approx(score, abs=1e-12)


@pytest.mark.parametrize("category", [0, 6, -1])
def test_an_unknown_category_is_refused_with_the_choices(category):
    with pytest.raises(ScoringError, match=r"is unknown; choose from 1 \(multi-hop\), .*5 \(adversarial\)"):
        locomo_f1("yes", "yes", category)


def test_an_answerable_question_without_gold_has_no_score():
    with pytest.raises(ScoringError, match="needs a gold answer"):
        locomo_f1("yes", None, 4)


@given(TEXT, TEXT, st.sampled_from([1, 2, 3, 4, 5]))
def test_every_score_lies_between_0_and_1(prediction, gold, category):
    assert 0 <= locomo_f1(prediction, gold, category) <= 1


@given(st.text(max_size=40), st.text(max_size=40))
def test_token_f1_is_symmetric_for_any_text(one, other):
    assert locomo_f1(one, other, 4) == locomo_f1(other, one, 4)


@given(st.lists(st.sampled_from(["red", "blue", "the", "green dog"]), min_size=1), st.randoms())
def test_the_order_of_the_parts_does_not_matter_in_multi_hop(parts, random):
    shuffled = random.sample(parts, len(parts))
    assert locomo_f1(", ".join(shuffled), "red, green dog", 1) == locomo_f1(
        ", ".join(parts), "red, green dog", 1
    )


SET_F1 = [  # worked out: 2 * matched / (predicted + gold parts)
    ("beach, mountains", "beach, mountains", 1.0),
    ("mountains, beach", "beach, mountains", 1.0),
    ("beach, mountains, chess, opera", "beach, mountains", 2 * 2 / 6),  # too many cost
    ("beach", "beach, mountains", 2 * 1 / 3),
    ("dog, dog", "dog, cat", 2 * 1 / 4),  # one gold is matched once
    (
        "red car",
        "red car, red",
        2 * 1 / 3,
    ),  # one part answers one gold, where the official score uses it twice
    (
        "red car, blue car",
        "car, red",
        2 * (2 / 3 + 2 / 3) / 4,
    ),  # greedy pairing finds 2/3 only: red car - car
    ("beach,, and, the", "beach", 1.0),  # parts that say nothing are no parts
    ("2022", 2022, 1.0),
    ("", "beach", 0.0),
    ("beach", "the", 0.0),
]


@pytest.mark.parametrize(("prediction", "gold", "score"), SET_F1)
def test_set_f1(prediction, gold, score):
    assert set_f1(prediction, gold) == pytest.approx(score, abs=1e-12)


def test_set_f1_charges_what_the_official_score_gives_away():
    guesses = "beach, mountains, forest, chess, opera, cinema"
    assert locomo_f1(guesses, "beach, mountains", 1) == 1.0
    assert set_f1(guesses, "beach, mountains") == 0.5


@given(TEXT, TEXT)
def test_set_f1_is_symmetric_and_bounded(one, other):
    assert set_f1(one, other) == pytest.approx(set_f1(other, one))
    assert 0 <= set_f1(one, other) <= 1 + 1e-12


BLEU_1 = [  # worked out from Papineni et al. 2002: brevity penalty * clipped precision
    ("7 May 2023", "7 May 2023", 1.0),
    ("on 7 May 2023", "7 May 2023", 3 / 4),
    ("7 May", "7 May 2023", math.exp(-1 / 2)),
    ("cat cat cat cat", "cat dog", 1 / 4),  # clipped
    ("hiking", "hikes", 0.0),  # not stemmed
    ("2022", 2022, 1.0),
    ("", "cat", 0.0),
    ("cat", "", 0.0),
]


@pytest.mark.parametrize(("prediction", "gold", "score"), BLEU_1)
def test_bleu1(prediction, gold, score):
    assert bleu1(prediction, gold) == pytest.approx(score, abs=1e-12)


@given(TEXT, TEXT)
def test_bleu1_agrees_with_nltk(prediction, gold):
    from nltk.translate.bleu_score import sentence_bleu

    # punctuation and articles go in ours: what is left is the same sentence for both
    gone = ("a", "an", "the", "and")
    words = [w for w in prediction.lower().split() if w.isalnum() and w not in gone]
    reference = [w for w in gold.lower().split() if w.isalnum() and w not in gone]
    expected = sentence_bleu([reference], words, weights=(1.0,)) if words else 0.0
    assert bleu1(" ".join(words), " ".join(reference)) == pytest.approx(float(expected))


def test_abstention_is_known_by_two_phrases_in_any_case():
    assert is_abstention("NOT MENTIONED in the conversation")
    assert is_abstention("No information available")
    assert not is_abstention("I do not know")


RANKING = [["D1:1"], ["D2:1", "D2:2"], ["D3:1"], []]


@pytest.mark.parametrize(
    ("evidence", "k", "recall"),
    [
        (["D1:1"], 1, 1.0),
        (["D2:2"], 1, 0.0),
        (["D2:2"], 2, 1.0),
        (["D1:1", "D3:1"], 2, 0.5),
        (["D1:1", "D3:1"], 50, 1.0),  # a ranking may be shorter than k
        (["D1:1", "D1:1", "D9:9"], 4, 0.5),  # doubles count once
    ],
)
def test_recall_at_k(evidence, k, recall):
    assert evidence_recall(evidence, RANKING, k) == recall


def test_nothing_retrieved_recalls_nothing():
    assert evidence_recall(["D1:1"], [], 5) == 0.0


def test_recall_needs_evidence_and_a_positive_k():
    with pytest.raises(ScoringError, match="leave it out"):
        evidence_recall([], RANKING, 5)
    with pytest.raises(ScoringError, match="k=0 must be at least 1"):
        evidence_recall(["D1:1"], RANKING, 0)


@pytest.mark.parametrize(
    ("budget", "recall"),
    [(0, 0.0), (49, 0.0), (50, 0.5), (100, 0.5), (149, 0.5), (150, 1.0), (350, 0.5), (400, 1.0)],
)
def test_recall_under_a_budget_takes_what_fits_from_the_top(budget, recall):
    found = evidence_recall_under_budget(["D1:1", "D3:1"], RANKING, [100, 250, 50, 10], budget)
    assert found == recall


def test_recall_under_a_budget_passes_over_what_does_not_fit():
    ranking = [["D1:1"], ["D2:1"], ["D3:1"]]
    assert evidence_recall_under_budget(["D2:1", "D3:1"], ranking, [500, 90, 20], 100) == 0.5


@given(
    st.lists(st.tuples(st.sampled_from(["D1:1", "D1:2", "D1:3"]), st.integers(0, 50)), max_size=8),
    st.integers(0, 500),
)
def test_recall_under_a_budget_is_at_most_the_recall_of_the_whole_ranking(ranked, budget):
    sources, tokens = [[turn] for turn, _ in ranked], [count for _, count in ranked]
    whole = evidence_recall(["D1:1", "D1:2"], sources, k=8)
    found = evidence_recall_under_budget(["D1:1", "D1:2"], sources, tokens, budget)
    assert found <= whole
    if sum(tokens) <= budget:
        assert found == whole


def test_recall_under_a_budget_refuses_what_does_not_fit_together():
    with pytest.raises(ScoringError, match="1 token counts for 4 ranked items"):
        evidence_recall_under_budget(["D1:1"], RANKING, [1], 10)
    with pytest.raises(ScoringError, match="must not be negative"):
        evidence_recall_under_budget(["D1:1"], RANKING, [1] * 4, -1)


@pytest.mark.parametrize(
    ("relevant", "ranking", "k", "gain"),
    [
        (["a"], ["a"], 5, 1.0),
        (["a"], ["x", "a"], 5, 1.0),  # the second rank is not discounted: log2(2) is 1
        (["a"], ["x", "y", "a"], 5, 1 / math.log2(3)),
        (["a"], ["x", "y", "a"], 2, 0.0),  # found too late
        (["a", "b"], ["a", "x", "y", "b"], 5, 1.5 / 2),
        (["a", "b", "c"], ["a", "b"], 2, 1.0),  # k bounds the best ranking too
        (["a", "b"], ["a"], 5, 0.5),  # a ranking may be shorter than k
        (["a"], [], 5, 0.0),
    ],
)
def test_ndcg_is_that_of_longmemevals_evaluation(relevant, ranking, k, gain):
    # Values by hand from ``dcg`` and ``ndcg`` of its src/retrieval/eval_utils.py.
    assert longmemeval_ndcg(relevant, ranking, k) == pytest.approx(gain)


@given(st.permutations(list("abcdef")), st.integers(1, 8))
def test_ndcg_is_1_for_the_best_ranking_and_never_more(ranking, k):
    relevant = {"a", "b"}
    assert longmemeval_ndcg(relevant, ranking, k) <= 1 + 1e-12
    assert longmemeval_ndcg(relevant, sorted(ranking), k) == pytest.approx(1)


def test_ndcg_needs_something_relevant_and_a_positive_k():
    with pytest.raises(ScoringError, match="leave it out"):
        longmemeval_ndcg([], ["a"], 5)
    with pytest.raises(ScoringError, match="k=0 must be at least 1"):
        longmemeval_ndcg(["a"], ["a"], 0)
