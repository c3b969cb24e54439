"""Scores that a reader would have if it withheld its least probable answers.

Source: selective prediction by the probability of the answer, the baseline of Kamath et al. 2020, ACL,
"Selective Question Answering under Domain Shift".
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from locomo.metrics import ABSTENTION
from memory_program.core.json_files import Json
from memory_program.evaluation.scoring.question_scores import ScoredQuestion, score_question


@dataclass(frozen=True, slots=True)
class _Known:
    """An answer with its log-probability, and the scores of the answer and of an abstention."""

    logprob: float
    is_answerable: bool
    answered: float
    withheld: float


def abstention_curve(scored: Sequence[ScoredQuestion]) -> list[Json]:
    """Score the answers under ten values of ``abstain_below``: none, and each tenth of the log-probabilities.

    Returns:
        for each value, from the lowest: ``abstain_below`` (None withholds nothing), and the means
        ``locomo_f1`` over the answerable questions, ``abstention`` over the others and ``overall`` over both.
        Empty without log-probabilities, and for a benchmark with a score of its own.
    """
    known = [found for item in scored if (found := _score_both(item)) is not None]
    if not known:
        return []
    ordered = sorted(one.logprob for one in known)
    values = [None, *dict.fromkeys(ordered[len(ordered) * tenth // 10] for tenth in range(1, 10))]
    return [_score_under(known, least) for least in values]


def _score_both(item: ScoredQuestion) -> _Known | None:
    record, question = item.record, item.question
    if record is None or record.answer.logprob is None or question.benchmark.has_own_score:
        return None
    answer = record.answer
    said, abstained = (
        score_question(question, replace(record, answer=replace(answer, text=text)), {}).locomo_f1
        for text in (answer.withheld or answer.text, ABSTENTION)
    )
    if said is None or abstained is None or not (item.is_headline or not item.is_answerable):
        return None
    return _Known(record.answer.logprob, item.is_answerable, said, abstained)


def _score_under(known: Sequence[_Known], least: float | None) -> Json:
    scores = [
        (one.is_answerable, one.withheld if least is not None and one.logprob < least else one.answered)
        for one in known
    ]
    groups = {
        "locomo_f1": [score for is_answerable, score in scores if is_answerable],
        "abstention": [score for is_answerable, score in scores if not is_answerable],
        "overall": [score for _, score in scores],
    }
    return {"abstain_below": least, **{name: fmean(of) if of else None for name, of in groups.items()}}
