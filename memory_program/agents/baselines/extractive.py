"""The baseline without a language model: the answer is a span of the best turns, or a date."""

from collections.abc import Mapping
from typing import Any

from dspy.predict.parameter import Parameter

from memory_program.agents.context import RANKING_DEPTH, format_reader_line
from memory_program.agents.program import MemorySystem
from memory_program.agents.spans.span_answers import (
    MAX_SEARCHED_TURNS,
    extract_answer,
    load_bundled_weights,
)
from memory_program.agents.spans.span_ranking import ExtractorWeights
from memory_program.bank.budget import count_tokens, pack_to_budget
from memory_program.bank.outcomes import Answer, RankedItem
from memory_program.bank.space import MemorySpace


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
