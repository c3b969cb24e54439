"""Answers that are a span of a turn or a date, by linear models; and the check if there is any answer."""

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

import numpy as np

from memory_program.agents.spans import date_answers as when
from memory_program.agents.spans import span_ranking as ranking
from memory_program.agents.spans.question_analysis import AnswerType, parse_question
from memory_program.agents.spans.span_features import Evidence, span_features
from memory_program.agents.spans.span_ranking import ExtractorWeights
from memory_program.bank.archive import Archive, ScoredTurn

ABSTENTION = "Not mentioned in the conversation"

MAX_SEARCHED_TURNS = 8
"""The number of turns that are searched for an answer: the best ones that fit the budget."""

_FIXED_ANSWERS = {AnswerType.YES_OR_NO: "Yes", AnswerType.GUESS: "Likely no"}
"""Answers that no span states: those that score best on LoCoMo's train split."""


@cache
def load_bundled_weights() -> ExtractorWeights:
    """Load the weights that come with the package."""
    file = files("memory_program.agents.spans").joinpath("extractive.json")
    return ExtractorWeights.from_json(json.loads(file.read_text("utf-8")))


def extract_answer(
    question: str, hits: Sequence[ScoredTurn], archive: Archive, weights: ExtractorWeights
) -> str:
    """Find the answer to a question in turns of an archive, or abstain if there seems to be none."""
    clues = parse_question(question, archive.speakers)
    evidence = Evidence(clues, hits, archive)
    if not hits:
        return ABSTENTION
    if clues.answer_type in _FIXED_ANSWERS:
        return _FIXED_ANSWERS[clues.answer_type]
    if clues.answer_type is AnswerType.DATE:
        dates = when.date_candidates(evidence)
        return dates[int(np.argmax(when.date_features(evidence, dates) @ weights.dates))].text
    spans = ranking.span_candidates(evidence)
    if not len(spans):
        return ABSTENTION
    shares = ranking.candidate_probabilities(span_features(evidence)[spans], weights.spans[clues.answer_type])
    doubts = ranking.no_answer_features(evidence, evidence.excerpts.span_hits[spans], shares)
    if ranking.no_answer_probability(doubts, weights.doubt) >= weights.doubt_limit:
        return ABSTENTION
    return ", ".join(evidence.excerpts.text(span) for span in ranking.best_spans(evidence, spans, shares))


def seems_unanswerable(question: str, archive: Archive) -> bool:
    """Tell if a question probably has no answer: the turns that fit it best are not by the speaker it names.

    The weights are those of the extractive baseline, fitted on LoCoMo's train split. Questions that ask for a
    date, yes-or-no questions and questions that no turn fits are not checked.
    """
    hits = archive.search(question, MAX_SEARCHED_TURNS)
    return bool(hits) and extract_answer(question, hits, archive, load_bundled_weights()) == ABSTENTION
