"""What a ranking is worth by turn and by session, whatever it is a ranking of."""

import pytest

from locomo.types import LongMemEvalType, Question
from memory_program.bank.outcomes import RankedItem
from memory_program.evaluation.scoring.recall import RETRIEVAL_KEYS, retrieval_scores


def asked(evidence: tuple[str, ...], sessions: tuple[str, ...] = ()) -> Question:
    kind = LongMemEvalType.MULTI_SESSION
    return Question("q1", 0, "?", kind, "x", evidence, labelled_groups=sessions)


def ranked(*sources: tuple[str, ...]) -> list[RankedItem]:
    return [RankedItem(f"m{n}", turns, 10) for n, turns in enumerate(sources, start=1)]


def test_a_ranking_of_turns_is_scored_by_turn_and_by_session():
    ranking = ranked(("D9:1",), ("D1:4",), ("D9:2",), ("D2:1",), ("D1:3",), ("D2:7",))
    scores = retrieval_scores(asked(("D1:3", "D2:1")), ranking)
    assert scores is not None
    assert set(scores) == set(RETRIEVAL_KEYS)
    # By turn the evidence stands at ranks 4 and 5, by session (D9, D1, D2) at 2 and 3.
    assert scores["turn/recall/5"] == scores["turn/recall_all/5"] == 1
    assert scores["turn/ndcg/5"] == pytest.approx((1 / 2 + 0.430676558) / 2)
    assert scores["session/recall_all/5"] == 1
    assert scores["session/ndcg/5"] == pytest.approx((1 + 0.630929754) / 2)


def test_half_of_the_evidence_is_half_a_recall_and_not_all_of_it():
    scores = retrieval_scores(asked(("D1:1", "D7:1")), ranked(("D1:1",), ("D3:1",)))
    assert scores is not None
    assert scores["turn/recall/5"] == scores["session/recall/5"] == 0.5
    assert scores["turn/recall_all/5"] == scores["session/recall_all/5"] == 0


def test_a_memory_stands_for_the_turns_that_it_cites_each_counted_once():
    ranking = ranked(("D9:1", "D9:2"), ("D9:2", "D8:1", "D7:1"), ("D1:1", "D6:1"))
    first, second = (retrieval_scores(asked((turn,)), ranking) for turn in ("D1:1", "D6:1"))
    assert first is not None
    assert second is not None
    assert first["turn/recall/5"] == 1  # the fifth turn: one before it is cited twice
    assert (second["turn/recall/5"], second["turn/recall/10"]) == (0, 1)
    assert second["session/recall/5"] == 1  # the fifth session


def test_the_sessions_that_the_benchmark_names_go_before_those_of_the_turns():
    scores = retrieval_scores(asked(("D1:1",), sessions=("D1", "D2")), ranked(("D1:1",)))
    assert scores is not None
    assert (scores["turn/recall/5"], scores["session/recall/5"]) == (1, 0.5)


def test_a_question_of_which_only_sessions_are_known_is_scored_by_session_alone():
    scores = retrieval_scores(asked((), sessions=("D2",)), ranked(("D2:5",)))
    assert scores is not None
    assert {key.partition("/")[0] for key in scores} == {"session"}


def test_without_evidence_or_a_ranking_there_is_nothing_to_score():
    assert retrieval_scores(asked(()), ranked(("D1:1",))) is None
    assert retrieval_scores(asked(("D1:1",)), None) is None
