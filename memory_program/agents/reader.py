"""The QA reader: answers a question from its context, and may search again."""

import logging
from typing import Any

import dspy

from locomo.reply_markers import is_no_value
from memory_program.agents.context import ContextBuilder, ReaderContext
from memory_program.agents.predict_call import CallFailedError, predict
from memory_program.agents.reply_limits import READER_TOKENS, SEARCHING_READER_TOKENS
from memory_program.agents.signatures import AnswerOrSearch, AnswerQuestion
from memory_program.agents.spans.span_answers import ABSTENTION, seems_unanswerable
from memory_program.agents.tool_schema import ToolOffer
from memory_program.bank.outcomes import Answer
from memory_program.bank.space import MemorySpace
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
        *,
        checks_answerability: bool = False,
    ) -> None:
        """Make a reader.

        Args:
            context: builds the reader's context.
            max_searches: the most further searches before an answer.
            replies: the format and limit of replies; None for the defaults.
            checks_answerability: abstain without a call where ``seems_unanswerable`` says so.
        """
        super().__init__()
        self.context = context
        self.max_searches = max_searches
        self.checks_answerability = checks_answerability
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
        """
        queries, repaired = [question], list[str]()
        if self.checks_answerability and seems_unanswerable(question, space.archive):
            return _make_prediction(ABSTENTION, self.context.build(space, queries), queries, repaired)
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
                **inputs,
            )
            asked = [call.args.get("query") for call in reply.tool_calls.tool_calls]
            new = [q for q in asked if isinstance(q, str) and q.strip() and q not in queries]
            if reply.answer.strip() and not (new and is_no_value(reply.answer)):  # "None" beside a search
                return _make_prediction(reply.answer, context, queries, repaired)
            if not new:  # neither an answer nor a new search
                break
            queries.append(new[0])
        context = self.context.build(space, queries)
        inputs = context.inputs(question)
        reply = predict(
            "reader.answer", self.answer, self.replies, READER_TOKENS, repaired=repaired, **inputs
        )
        return _make_prediction(reply.answer, context, queries, repaired)

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
    text: str, context: ReaderContext, queries: list[str], repaired: list[str]
) -> dspy.Prediction:
    record = Answer(
        text=text.strip(),
        ranked=context.ranked,
        shown=context.shown,
        context_tokens=context.tokens,
        searches=len(queries) - 1,
        repaired=len(repaired),
    )
    return dspy.Prediction(answer=record.text, record=record)
