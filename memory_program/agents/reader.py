"""The QA reader: answers a question from its context, and may search again."""

import logging
import math
from typing import Any

import dspy

from locomo.metrics import ABSTENTION, is_abstention
from locomo.reply_markers import is_no_value
from memory_program.agents.context import ContextBuilder, ReaderContext
from memory_program.agents.predict_call import CallFailedError, predict
from memory_program.agents.reply_limits import READER_TOKENS, SEARCHING_READER_TOKENS
from memory_program.agents.signatures import AnswerOrSearch, AnswerQuestion
from memory_program.agents.tool_schema import ToolOffer
from memory_program.bank.outcomes import Answer
from memory_program.bank.space import MemorySpace
from memory_program.core.errors import ConfigError
from memory_program.models.reply_settings import ReplyFormat, ReplySettings

_logger = logging.getLogger(__name__)

_SEARCH = ToolOffer(("search_memory",))


class QAReader(dspy.Module):
    """Answers under a token budget; with ``max_searches`` it may search again with other words."""

    def __init__(
        self,
        context: ContextBuilder,
        max_searches: int = 0,
        replies: ReplySettings | None = None,
        abstain_below: float | None = None,
    ) -> None:
        """Make a reader.

        Args:
            context: builds the reader's context.
            max_searches: the most further searches before an answer.
            replies: the format and limit of replies; None for the defaults.
            abstain_below: the least log-probability of a reply; a less probable answer is withheld. None
                withholds none.
        """
        super().__init__()
        self.context = context
        self.max_searches = max_searches
        self.abstain_below = abstain_below
        self.replies = replies or ReplySettings()
        self.saved_format: ReplyFormat | None = None  # that of a saved program, once one is loaded
        self.answer = dspy.Predict(AnswerQuestion)
        if max_searches:
            self.answer_or_search = dspy.Predict(AnswerOrSearch)

    def forward(self, space: MemorySpace, question: str) -> dspy.Prediction:
        """Answer a question from a space, which is not changed.

        Returns:
            a prediction with ``answer`` (the text) and ``record`` (an ``Answer``).

        Raises:
            CallFailedError: a call gave nothing usable, so there is no answer.
            ConfigError: ``abstain_below`` is set, and the model sends no log-probabilities.
        """
        queries, repaired = [question], list[str]()
        inputs: dict[str, Any]  # Any: no keyword of ``predict`` is among them
        while len(queries) <= self.max_searches:
            context = self.context.build(space, queries)
            inputs = context.inputs(question) | {"searches_left": 1 + self.max_searches - len(queries)}
            reply = predict(
                "reader.answer_or_search",
                self.answer_or_search,
                self.replies,
                SEARCHING_READER_TOKENS,
                offer=_SEARCH,
                repaired=repaired,
                with_logprobs=self.abstain_below is not None,
                **inputs,
            )
            asked = [call.args.get("query") for call in reply.tool_calls.tool_calls]
            new = [q for q in asked if isinstance(q, str) and q.strip() and q not in queries]
            if reply.answer.strip() and not (new and is_no_value(reply.answer)):  # "None" beside a search
                return self._make_prediction(reply, context, queries, repaired)
            if not new:  # neither an answer nor a new search
                break
            queries.append(new[0])
        context = self.context.build(space, queries)
        inputs = context.inputs(question)
        reply = predict(
            "reader.answer",
            self.answer,
            self.replies,
            READER_TOKENS,
            repaired=repaired,
            with_logprobs=self.abstain_below is not None,
            **inputs,
        )
        return self._make_prediction(reply, context, queries, repaired)

    def ask(self, space: MemorySpace, question: str) -> Answer:
        """Answer a question; a failed call becomes the answer's outcome, not an exception."""
        try:
            answer: Answer = self(space=space, question=question).record
        except CallFailedError as error:
            failure = error.failure
            answer = Answer("", failure.outcome, f"{failure.where}: {failure.message}")
        _logger.info(
            "%s: retrieved %d, shown %d (%d tokens), searches %d: %s",
            space.namespace,
            len(answer.ranked or ()),
            len(answer.shown),
            answer.context_tokens,
            answer.searches,
            answer.outcome.value,
        )
        return answer

    def _make_prediction(
        self, reply: dspy.Prediction, context: ReaderContext, queries: list[str], repaired: list[str]
    ) -> dspy.Prediction:
        text, logprob, withheld = reply.answer.strip(), None, ""
        if self.abstain_below is not None:
            logprob = _reply_logprob(reply)
            if logprob < self.abstain_below and not is_abstention(text):
                text, withheld = ABSTENTION, text
        record = Answer(
            text=text,
            ranked=context.ranked,
            shown=context.shown,
            context_tokens=context.tokens,
            searches=len(queries) - 1,
            repaired=len(repaired),
            logprob=logprob,
            withheld=withheld,
        )
        return dspy.Prediction(answer=record.text, record=record)


def _reply_logprob(reply: dspy.Prediction) -> float:
    """Sum up the log-probabilities of the tokens of a reply, as servers give them."""
    tokens = (reply.get("logprobs") or {}).get("content")
    if not tokens:
        raise ConfigError(
            "abstain_below needs log-probabilities of the reader's tokens, and its model sends none: leave "
            "it out, or use a model in this process or on vLLM, llama.cpp or OpenAI"
        )
    return math.fsum(token["logprob"] for token in tokens)
