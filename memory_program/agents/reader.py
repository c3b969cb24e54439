"""The QA reader: answers a question from what it is shown, and may search again."""

import dspy

from memory_program.agents.context import ContextBuilder, ReaderContext
from memory_program.agents.predict_call import CallFailedError, predict
from memory_program.agents.signatures import AnswerOrSearch, AnswerQuestion
from memory_program.bank.outcomes import Answer
from memory_program.bank.space import MemorySpace


class QAReader(dspy.Module):
    """Answers under a token budget; with ``max_searches`` it may look for something under other words."""

    def __init__(self, context: ContextBuilder, max_searches: int = 0) -> None:
        """Make a reader.

        Args:
            context: builds what the reader is shown.
            max_searches: how often the reader may ask for another search before it answers.
        """
        super().__init__()
        self.context = context
        self.max_searches = max_searches
        self.answer = dspy.Predict(AnswerQuestion)
        if max_searches:
            self.answer_or_search = dspy.Predict(AnswerOrSearch)

    def forward(self, space: MemorySpace, question: str) -> dspy.Prediction:
        """Answer a question from a space, which is not changed.

        Returns:
            a prediction with ``answer`` (the text) and ``record`` (an ``Answer``).

        Raises:
            CallFailedError: a call gave nothing usable; there is no answer.
        """
        queries = [question]
        while len(queries) <= self.max_searches:
            context = self.context.build(space, queries)
            left = 1 + self.max_searches - len(queries)
            reply = predict(
                "reader.answer_or_search",
                self.answer_or_search,
                **context.inputs(question),
                searches_left=left,
            )
            if reply.answer.strip():
                return _make_prediction(reply, context, queries)
            wanted = [call.args.get("query") for call in reply.tool_calls.tool_calls]
            words = [query for query in wanted if isinstance(query, str) and query.strip()]
            new = [query for query in words if query not in queries]
            if not new:  # neither an answer nor anything else to look for
                break
            queries.append(new[0])
        context = self.context.build(space, queries)
        return _make_prediction(
            predict("reader.answer", self.answer, **context.inputs(question)), context, queries
        )

    def ask(self, space: MemorySpace, question: str) -> Answer:
        """Answer a question; a failed call is an outcome of the answer, not an exception."""
        try:
            return self(space=space, question=question).record
        except CallFailedError as error:
            failure = error.failure
            return Answer("", failure.outcome, f"{failure.where}: {failure.message}")


def _make_prediction(reply: dspy.Prediction, context: ReaderContext, queries: list[str]) -> dspy.Prediction:
    record = Answer(
        text=reply.answer.strip(),
        ranked=context.ranked,
        shown=context.shown,
        context_tokens=context.tokens,
        searches=len(queries) - 1,
    )
    return dspy.Prediction(answer=record.text, record=record)
