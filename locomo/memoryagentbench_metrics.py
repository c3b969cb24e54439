"""Metrics of MemoryAgentBench: matching of strings, movies and summaries.

The official scorer is ``utils/eval_other_utils.py`` and ``llm_based_eval/summarization_evaluate.py`` of
HUST-AI-HYZ/MemoryAgentBench at 455306d, reimplemented from its described behaviour.
"""

import re
import string
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from locomo.benchmark_errors import ScoringError
from locomo.types import MemoryAgentBenchTask

RECOMMENDATION_CUTOFF = 5
"""The official evaluation also has 1 and 10; the paper quotes recall@5."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_DELETE_PUNCTUATION = str.maketrans("", "", string.punctuation)
_PREFIXED = re.compile(r"answer:(.*)(?:\n|$)", re.IGNORECASE)
_PREFIX = re.compile(r"^answer:", re.IGNORECASE)
_NUMBERING = re.compile(r"^(?:\d+[.)、]?\s*[-—–]?\s*)?")
_PARENTHESES = re.compile(r"\([^()]*\)")


def memoryagentbench_score(
    task: MemoryAgentBenchTask, prediction: str, golds: Sequence[str], movies: Sequence[str] = ()
) -> float | None:
    """Score an answer by the metric that is quoted for its task; None if a judge has to score it.

    Questions on documents and on facts: substring exact match; EventQA: all golds are substrings;
    classification and DetectiveQA: exact match; recommendation: recall@5. LongMemEval and summaries need a
    judge. Where several golds are right, the best score counts. Exact matches are tried on the whole answer,
    too, but of a classification only on the part that ``answer_part`` finds.

    Args:
        task: the task.
        prediction: the answer of a system.
        golds: the right answers; of a recommendation, all right titles.
        movies: the titles that recommendations are matched with.

    Raises:
        ScoringError: there is no gold.
    """
    if not golds:
        raise ScoringError(f"a question of {task.label} needs a gold answer; got none; correct the data")
    part = answer_part(prediction)
    match task:
        case MemoryAgentBenchTask.LONGMEMEVAL | MemoryAgentBenchTask.SUMMARIZATION:
            return None
        case MemoryAgentBenchTask.EVENT_QA:
            return float(all(gold.lower() in prediction.lower() for gold in golds))
        case MemoryAgentBenchTask.CLASSIFICATION:
            return _best(exact_match, [part], golds)
        case MemoryAgentBenchTask.DETECTIVE_QA:
            return _best(exact_match, [prediction, part], golds)
        case MemoryAgentBenchTask.RECOMMENDATION:
            return recommendation_recall(prediction, golds, movies, RECOMMENDATION_CUTOFF)
        case _:
            return _best(substring_exact_match, [prediction, part], golds)


def exact_match(prediction: str, gold: str) -> float:
    """Return 1 if both are equal without case, punctuation, articles and extra spaces, else 0.

    Example:
        >>> exact_match("The  Eiffel tower.", "Eiffel Tower")
        1.0
    """
    return float(normalize_answer(prediction) == normalize_answer(gold))


def substring_exact_match(prediction: str, gold: str) -> float:
    """Return 1 if the gold is a part of the answer, both normalised as for ``exact_match``, else 0.

    Words may be cut: ``art`` is a part of ``party``, as officially.
    """
    return float(normalize_answer(gold) in normalize_answer(prediction))


def summary_f1(fluency: float, recall: float, precision: float) -> float:
    """Score a summary: fluency times the harmonic mean of recall and precision.

    Args:
        fluency: 1 if the summary is coherent, without repetition and incomplete sentences, else 0.
        recall: key points that the summary supports / key points.
        precision: sentences of the summary that the experts' summary supports / sentences.

    Example:
        >>> summary_f1(1, 0.5, 0.25)
        0.3333333333333333
    """
    return fluency * 2 * recall * precision / (recall + precision) if recall + precision else 0.0


def recommendation_recall(prediction: str, golds: Sequence[str], movies: Sequence[str], k: int) -> float:
    """Compute the share of the right movies among the first k recommendations of an answer.

    Recommendations are the lines after ``1.``, or without it what commas and line ends separate. Each stands
    for the movie whose title is nearest by edit distance, so that a wrong spelling counts, and a movie that
    is not in the list becomes another one.

    Raises:
        ScoringError: no movie to match with, or k below 1.
    """
    if k < 1 or not movies:
        raise ScoringError(f"k={k!r} and {len(movies)} movies: give at least one of each")
    _, numbered, listed = prediction.partition("1.")
    lines = (listed if numbered else prediction.replace(",", "\n")).split("\n")
    # Deviation: officially the first line may be empty (after "1." alone), and is matched with the shortest
    # title; only lines that say something count here. Of titles at the same distance the first one counts,
    # where the official choice is that of a set, and differs from run to run.
    bare = (" ".join(_NUMBERING.sub("", _PARENTHESES.sub("", line.strip())).split()) for line in lines)
    named = {nearest_movie(item, tuple(movies)) for item in list(filter(None, bare))[:k]}
    return sum(gold in named for gold in golds) / len(golds)


def movie_title(name: str) -> str:
    """Make the title of a movie from the name of its entity: ``.../The_Matrix_(film)>`` is ``The Matrix``."""
    spaced = re.sub(r"[_\->]", " ", name.rpartition("/")[2])
    return " ".join(_PARENTHESES.sub("", spaced).split())


def nearest_movie(name: str, movies: tuple[str, ...]) -> str:
    """Return the title with the smallest edit distance (Levenshtein, without case), the first of several."""
    counts, lowered = _letter_counts(movies)
    name = name.lower()
    difference = counts - _count_letters(name)
    at_least = np.maximum(np.maximum(difference, 0).sum(1), np.maximum(-difference, 0).sum(1))
    best, nearest = len(name) + max(map(len, lowered)) + 1, 0
    for index in np.argsort(at_least, kind="stable").tolist():
        if at_least[index] > best:
            break
        row = list(range(len(lowered[index]) + 1))  # of the matrix of distances between prefixes
        for i, letter in enumerate(name, start=1):
            above, row = row, [i]
            for j, other in enumerate(lowered[index], start=1):
                row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (letter != other)))
        if (row[-1], index) < (best, nearest):
            best, nearest = row[-1], index
    return movies[nearest]


def answer_part(prediction: str) -> str:
    """Return what follows ``Answer:`` on its line, or else the first line."""
    found = _PREFIXED.search(prediction)
    text = found[1] if found else prediction.partition("\n")[0]
    return _PREFIX.sub("", text.strip()).strip()


def normalize_answer(text: str) -> str:
    """Remove case, punctuation, articles and extra spaces, in this order."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_DELETE_PUNCTUATION)).split())


def _best(metric: Callable[[str, str], float], predictions: Sequence[str], golds: Sequence[str]) -> float:
    return max(metric(prediction, gold) for prediction in predictions for gold in golds)


@lru_cache(maxsize=4)
def _letter_counts(movies: tuple[str, ...]) -> tuple[np.ndarray, list[str]]:
    lowered = [movie.lower() for movie in movies]
    return np.array([_count_letters(movie) for movie in lowered]), lowered


def _count_letters(text: str) -> np.ndarray:
    return np.bincount([ord(letter) % 64 for letter in text], minlength=64)
