"""The baseline without a language model: the answer is a span of the best turns, or a date."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from dspy.predict.parameter import Parameter

from memory_program.agents.baselines import date_answers as when
from memory_program.agents.baselines import span_ranking as ranking
from memory_program.agents.baselines.question_analysis import AnswerType, parse_question
from memory_program.agents.baselines.span_features import Evidence, span_features
from memory_program.agents.baselines.span_ranking import ExtractorWeights
from memory_program.agents.context import RANKING_DEPTH, format_reader_line
from memory_program.agents.program import MemorySystem
from memory_program.bank.archive import Archive, ScoredTurn
from memory_program.bank.budget import count_tokens, pack_to_budget
from memory_program.bank.outcomes import Answer, RankedItem
from memory_program.bank.space import MemorySpace

ABSTENTION = "Not mentioned in the conversation"

MAX_SEARCHED_TURNS = 8
"""The number of turns that are searched for an answer: the best ones that fit the budget."""

_FIXED_ANSWERS = {AnswerType.YES_OR_NO: "Yes", AnswerType.GUESS: "Likely no"}
"""Answers that no span states: those that score best on LoCoMo's train split."""


class ExtractorParameter(Parameter):
    """The fitted weights as a parameter of a DSPy program, saved and loaded with it."""

    def __init__(self, weights: ExtractorWeights) -> None:
        """Hold the weights."""
        self.weights = weights

    def dump_state(self, json_mode: bool = True) -> dict[str, Any]:  # Any: a JSON object
        """Return the weights by feature name."""
        return self.weights.to_json()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Load the weights that ``dump_state`` returned.

        Raises:
            ConfigError: they belong to other features.
        """
        self.weights = ExtractorWeights.from_json(state)


class ExtractiveSystem(MemorySystem):
    """Archives sessions, finds turns by BM25, and chooses a span or a date by linear models.

    A date is resolved against the date of the session that mentions it. If the best spans were said by
    another person than the question names, the question probably has no answer, and gets none. The weights
    were fitted on LoCoMo's train split alone, by ``benchmarks/tune_extractive.py``.
    """

    def __init__(self, reader_budget: int = 2000, weights: ExtractorWeights | None = None) -> None:
        """Make a system that reads at most ``reader_budget`` tokens of the conversation."""
        super().__init__()
        self.reader_budget = reader_budget
        self.extraction = ExtractorParameter(weights if weights is not None else load_bundled_weights())

    def ask(self, space: MemorySpace, question: str) -> Answer:
        """Answer a question from a space, which is not changed."""
        found = space.archive.search(question, RANKING_DEPTH)
        lines = {hit.turn.turn_id: format_reader_line(hit) for hit in found}
        shown = pack_to_budget(list(lines), self.reader_budget, lines.__getitem__)
        read = [hit for hit in found if hit.turn.turn_id in shown.kept[:MAX_SEARCHED_TURNS]]
        return Answer(
            text=extract_answer(question, read, space.archive, self.extraction.weights),
            ranked=tuple(
                RankedItem(turn_id, (turn_id,), count_tokens(line + "\n")) for turn_id, line in lines.items()
            ),
            shown=shown.kept,
            context_tokens=shown.tokens,
        )


@cache
def load_bundled_weights() -> ExtractorWeights:
    """Load the weights that come with the package."""
    file = files("memory_program.agents.baselines").joinpath("extractive.json")
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
