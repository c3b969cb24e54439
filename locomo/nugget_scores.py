"""Scores of answers that a judge reads several times, once for each nugget.

A nugget of BEAM is a statement of the rubric, that of LoCoMo-Plus is the cue; those of MemoryAgentBench's
summaries are fluency, key points and sentences. Source: the modules cited in ``event_ordering.py``,
``memoryagentbench_metrics.py`` and ``locomo_plus.py``.
"""

import re
from collections.abc import Sequence
from enum import StrEnum
from statistics import fmean

from locomo.event_ordering import event_ordering_score
from locomo.memoryagentbench_metrics import summary_f1
from locomo.types import BeamAbility, MemoryAgentBenchTask, PlusRelation, Question


class NuggetGrading(StrEnum):
    """The tasks of a judge of one nugget of an answer, and the numbers that it may give."""

    STATEMENT = "statement"
    """The answer meets a statement: 0, 0.5 or 1."""
    EVENT = "event"
    """The number of the first line of the answer that mentions an event; 0 for none."""
    LINK = "link"
    """The answer shows that what was said earlier is remembered: 0 or 1."""
    FLUENCY = "fluency"
    """A summary is fluent: 0 or 1."""
    KEY_POINTS = "key-points"
    """The share of key points that a summary supports."""
    SENTENCES = "sentences"
    """The share of a summary's sentences that the gold summary supports."""


def list_nugget_gradings(question: Question) -> list[NuggetGrading]:
    """List what a judge is asked about an answer, one call each; nothing if it is not graded by nuggets."""
    match question.category:
        case BeamAbility.EVENT_ORDERING:
            return [NuggetGrading.EVENT] * len(question.nuggets)
        case BeamAbility():
            return [NuggetGrading.STATEMENT] * len(question.nuggets)
        case PlusRelation():
            return [NuggetGrading.LINK]
        case MemoryAgentBenchTask.SUMMARIZATION if question.nuggets:
            return [NuggetGrading.FLUENCY, NuggetGrading.KEY_POINTS, NuggetGrading.SENTENCES]
        case _:
            return []


def nugget_score(
    question: Question, prediction: str, values: Sequence[float], lines: Sequence[Sequence[int]] = ()
) -> float:
    """Combine what a judge found into the score of an answer, from 0 to 1.

    BEAM: the mean of the statements' scores; event ordering: ``event_ordering_score``. Summaries:
    ``summary_f1``. LoCoMo-Plus: whether the answer is linked to the cue.

    Args:
        question: the question.
        prediction: the answer.
        values: for each of ``list_nugget_gradings``, what the judge found.
        lines: for each event, the numbers of the lines that describe it, from 1.
    """
    # Deviation: half points count, as in the paper. The official code cuts them to 0, except in event
    # ordering, where it counts them and then reports tau-b only.
    if question.category is BeamAbility.EVENT_ORDERING:
        return event_ordering_score(question.nuggets, event_lines(prediction), lines)
    if question.category is MemoryAgentBenchTask.SUMMARIZATION:
        fluency, recall, precision = values
        return summary_f1(fluency, recall, precision)
    return fmean(values)


def event_lines(prediction: str) -> list[str]:
    """List the lines of an answer that say something: each is an event in the order of an answer."""
    return [line.strip() for line in prediction.split("\n") if line.strip()]


def answer_sentences(prediction: str) -> list[str]:
    """List the sentences of a summary: they end with a full stop, a question or an exclamation mark."""
    return [part for part in re.split(r"(?<=[.!?])\s+|\n+", prediction.strip()) if part]
