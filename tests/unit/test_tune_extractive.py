from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.tune_extractive import choose_limit, fit_logistic, fit_softmax, score
from locomo.types import Category, Question
from memory_program.agents.spans.question_analysis import AnswerType


def example(kind, features, values):
    values = np.array(values, dtype=np.float32)
    return SimpleNamespace(
        kind=kind,
        features=np.array(features, dtype=np.float32),
        values=values,
        corrections=np.zeros_like(values),
        teaches=bool(values.max() > 0),
    )


def test_the_softmax_learns_the_features_of_the_best_candidates():
    examples = [
        example(AnswerType.NAME, [[1, 0], [0, 1], [0, 0]], [1.0, 0.0, 0.0]),
        example(AnswerType.MANNER, [[1, 0], [0, 1], [0, 0]], [0.0, 1.0, 0.0]),
        example(AnswerType.MANNER, [[1, 1], [0, 0]], [0.0, 0.0]),
    ]
    weights = fit_softmax(examples, (AnswerType.NAME, AnswerType.MANNER, AnswerType.WHAT), 0.01, 0.01)
    assert weights[AnswerType.NAME][0] > 1 > abs(weights[AnswerType.NAME][1])
    assert weights[AnswerType.MANNER][1] > 1 > abs(weights[AnswerType.MANNER][0])
    shared = weights[AnswerType.WHAT]  # of which there is no example
    assert shared[0] == pytest.approx(shared[1])
    assert 0 < shared[0] < weights[AnswerType.NAME][0]


def test_a_weighted_candidate_counts_by_its_weight():
    one = example(AnswerType.NAME, [[1], [0]], [1.0, 0.0])
    many = example(AnswerType.NAME, [[1], [0]], [1.0, 0.0])
    many.corrections = np.array([0.0, np.log(100)], dtype=np.float32)
    fitted = [fit_softmax([e], (AnswerType.NAME,), 0.05, 0.05)[AnswerType.NAME][0] for e in (one, many)]
    assert fitted[1] > fitted[0] > 0


def test_the_logistic_model_finds_the_log_odds():
    features = np.array([[1.0, 0.0]] * 4 + [[1.0, 1.0]] * 4)
    labels = np.array([True, False, False, False, True, True, True, False])
    assert fit_logistic(features, labels, penalty=0.0) == pytest.approx([-np.log(3), 2 * np.log(3)])


def test_a_question_without_an_answer_scores_nothing_for_any_answer():
    question = Question("c", 0, "Who?", Category.ADVERSARIAL, None)
    assert score("Not mentioned", question) == 0.0
    assert score("Rex", Question("c", 0, "Who?", Category.SINGLE_HOP, "Rex")) == 1.0


def test_the_limit_is_the_lowest_that_keeps_95_percent_of_f1():
    tried = [SimpleNamespace(has_answer=True, f1=1.0)] * 20 + [SimpleNamespace(has_answer=False, f1=0.0)]
    doubts = np.array([0.0] * 18 + [0.33, 0.61] + [0.9])
    assert choose_limit(tried, doubts) == 0.35
