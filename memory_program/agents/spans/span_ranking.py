"""Linear models that choose the answer among the candidates, or abstain.

Each model is a softmax over the candidates of a question, ``p(c) = exp(w . x(c)) / sum of exp(w . x(c'))``,
fitted so that p is high where the official F1 with the gold is (``benchmarks/tune_extractive.py``).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memory_program.agents.spans.candidate_spans import WordColumn
from memory_program.agents.spans.date_answers import DATE_FEATURES
from memory_program.agents.spans.question_analysis import AnswerType
from memory_program.agents.spans.span_features import SPAN_FEATURES, TURN_FEATURES, Evidence, Matrix
from memory_program.agents.spans.word_classes import WordClass
from memory_program.core.errors import ConfigError

SPAN_KINDS = (AnswerType.NUMBER, AnswerType.NAME, AnswerType.MANNER, AnswerType.WHICH, AnswerType.WHAT)
"""The answer types whose answer is a span; each has its own weights."""

NO_ANSWER_FEATURES = (
    "always",
    "probability told by the one who is named",
    "probability told by the other",
    "best score of the one who is named, less that of the other",
    "best coverage of the one who is named, less that of the other",
)

_FIT_AGAIN = "fit them again with benchmarks/tune_extractive.py"
_CONSENSUS_SPANS = 100
_MAX_ITEMS = 3
_UNSCORED_STEMS = frozenset({"a", "an", "the", "and"})
_SCORE, _COVERAGE = TURN_FEATURES.index("score"), TURN_FEATURES.index("coverage")
_BY_NAMED = TURN_FEATURES.index("told by the one who is named")
_BY_OTHER = TURN_FEATURES.index("told by the other")


@dataclass(frozen=True, slots=True, eq=False)
class ExtractorWeights:
    """The fitted weights of spans (by answer type), of dates, and of the no-answer model.

    A question whose doubt (the probability that it has no answer) is ``doubt_limit`` or more is not answered.
    """

    spans: Mapping[AnswerType, Matrix]
    dates: Matrix
    doubt: Matrix
    doubt_limit: float

    def to_json(self) -> dict[str, Any]:  # Any: a JSON object
        """Return the weights by feature name, rounded to four decimals."""
        return {
            "spans": {kind.value: _weights_by_name(SPAN_FEATURES, self.spans[kind]) for kind in SPAN_KINDS},
            "dates": _weights_by_name(DATE_FEATURES, self.dates),
            "doubt": _weights_by_name(NO_ANSWER_FEATURES, self.doubt),
            "doubt_limit": self.doubt_limit,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "ExtractorWeights":
        """Read what ``to_json`` wrote.

        Raises:
            ConfigError: a weight is missing, or belongs to no feature.
        """
        try:
            spans = {
                kind: _vector(f"spans.{kind}", SPAN_FEATURES, record["spans"][kind]) for kind in SPAN_KINDS
            }
            dates = _vector("dates", DATE_FEATURES, record["dates"])
            doubt = _vector("doubt", NO_ANSWER_FEATURES, record["doubt"])
            return cls(spans, dates, doubt, float(record["doubt_limit"]))
        except (KeyError, TypeError) as error:
            raise ConfigError(f"not the weights of an extractive system ({error!r}): {_FIT_AGAIN}") from error


def span_candidates(evidence: Evidence) -> NDArray[np.intp]:
    """Return the indices of spans that may answer: for a question about a number, those that have one."""
    starts, ends = evidence.excerpts.spans
    if evidence.clues.answer_type is not AnswerType.NUMBER:
        return np.arange(len(starts))
    classes = evidence.excerpts.columns[WordColumn.CLASS]
    counts = np.cumsum([0, *np.isin(classes, (WordClass.NUMBER, WordClass.DIGITS))])
    return np.flatnonzero(counts[ends] > counts[starts])


def candidate_probabilities(features: Matrix, weights: Matrix) -> Matrix:
    """Return the softmax over all candidates, shape (candidates,)."""
    scores = features @ weights
    powers = np.exp(scores - scores.max(initial=-np.inf))
    return powers / powers.sum()


def best_spans(evidence: Evidence, spans: NDArray[np.intp], shares: Matrix) -> list[int]:
    """Choose the span with the highest expected F1; several spans if the question asks for several.

    The expected F1 is estimated from the probability that a stem is in the answer and from the expected
    length: ``2 x (sum over its stems of P(stem)) / (its stems + expected stems)``. Further spans come from
    other turns and share no stem with earlier ones; there are at most three.

    Args:
        evidence: the question and its turns.
        spans: the candidates, as indices of spans.
        shares: the probability of each candidate.
    """
    likely = np.argsort(-shares, kind="stable")[:_CONSENSUS_SPANS]
    stems_of = [
        frozenset(evidence.excerpts.stems[slice(*evidence.excerpts.spans[:, spans[k]])]) - _UNSCORED_STEMS
        for k in likely
    ]
    probable: dict[str, float] = defaultdict(float)
    expected_length = 0.0
    for share, stems in zip(shares[likely] / shares[likely].sum(), stems_of, strict=True):
        expected_length += share * len(stems)
        for stem in stems:
            probable[stem] += share
    agreement = [
        2 * sum(probable[stem] for stem in stems) / (len(stems) + expected_length) if stems else 0.0
        for stems in stems_of
    ]
    chosen, used, hits = list[int](), set[str](), set[int]()
    for k in sorted(range(len(likely)), key=lambda k: -agreement[k]):
        span = int(spans[likely[k]])
        hit = int(evidence.excerpts.span_hits[span])
        if hit not in hits and used.isdisjoint(stems_of[k]):
            chosen.append(span)
            hits.add(hit)
            used |= stems_of[k]
        if len(chosen) == (_MAX_ITEMS if evidence.clues.wants_several else 1):
            break
    return chosen


def no_answer_features(evidence: Evidence, hits: NDArray[np.intp], shares: Matrix) -> Matrix:
    """Compute the evidence against an answer: that somebody else said it, probably about themselves.

    Args:
        evidence: the question and its turns.
        hits: the index of each candidate's hit.
        shares: the probability of each candidate.
    """
    rows = evidence.turn_rows
    by_turn = np.bincount(hits, weights=shares, minlength=len(rows))
    named, other = rows[:, _BY_NAMED], rows[:, _BY_OTHER]
    leads = [
        (rows[:, column] * named).max(initial=0.0) - (rows[:, column] * other).max(initial=0.0)
        for column in (_SCORE, _COVERAGE)
    ]
    return np.array([1.0, by_turn @ named, by_turn @ other, *leads])


def no_answer_probability(features: Matrix, weights: Matrix) -> float:
    """Return the probability that the question has no answer, by a logistic model."""
    return float(1 / (1 + np.exp(-(features @ weights))))


def _weights_by_name(names: Sequence[str], weights: Matrix) -> dict[str, float]:
    return {name: round(float(weight), 4) for name, weight in zip(names, weights, strict=True)}


def _vector(where: str, names: Sequence[str], record: Mapping[str, float]) -> Matrix:
    if set(record) != set(names):
        odd = sorted(set(record) ^ set(names))
        raise ConfigError(
            f"the weights of {where} do not match the {len(names)} features (at {odd[0]!r}): {_FIT_AGAIN}"
        )
    return np.array([record[name] for name in names], dtype=np.float64)
