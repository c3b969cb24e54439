"""One call of a predictor and its failures."""

from contextlib import AbstractContextManager
from typing import Any, cast

import dspy
from dspy.utils.exceptions import AdapterParseError, LMError

from memory_program.agents.chat_adapter import COMPLETION_MARKER, StrictChatAdapter, TruncatedReplyError
from memory_program.agents.json_adapter import JsonReplyAdapter
from memory_program.agents.native_tools import NativeToolsAdapter
from memory_program.agents.reply_limits import READER_TOKENS
from memory_program.agents.tool_schema import ToolOffer, native_tools, reply_schema
from memory_program.bank.outcomes import CallFailure, Outcome
from memory_program.core.errors import MemoryProgramError, one_line
from memory_program.models.model_names import is_bundled
from memory_program.models.rate_limit import ending_hopeless_runs
from memory_program.models.reply_settings import ReplyFormat, ReplySettings, may_think, thinking_tokens
from memory_program.models.response_formats import RESPONSE_FORMATS
from memory_program.models.usage import UsageMeter, track_usage


class CallFailedError(MemoryProgramError):
    """A call to a model gave nothing usable; ``failure`` says where and why."""

    def __init__(self, failure: CallFailure) -> None:
        """Wrap the failure."""
        super().__init__(f"{failure.where}: {failure.outcome}: {failure.message}")
        self.failure = failure


class FailedReply(dspy.Prediction):
    """A reply that could not be read, as ``unreadable_reply``: optimisers find it in DSPy's trace."""


def dspy_history_disabled() -> AbstractContextManager[None]:
    """Stop DSPy from keeping this thread's calls inside the block.

    Otherwise it keeps up to ten thousand prompts: in a trace that all threads share, and in the histories of
    models and modules. Only optimisers need the trace, and nothing needs the histories.
    """
    return dspy.context(trace=None, disable_history=True)


def predict(
    where: str,
    predictor: dspy.Predict,
    replies: ReplySettings,
    limit_tokens: int,
    *,
    offer: ToolOffer | None = None,
    repaired: list[str] | None = None,
    **inputs: object,
) -> dspy.Prediction:
    """Call a predictor in the format of its replies.

    Args:
        where: the name of the call in records, for example ``writer.semantic``.
        predictor: the predictor to call.
        replies: the format of the reply, and a limit that overrides ``limit_tokens``.
        limit_tokens: the most tokens of the reply; thoughts of a reasoning model come on top.
        offer: the tools that the agent may call; None without tools.
        repaired: gets ``where`` if the reply was not in the program's form, and could still be read.
        **inputs: the predictor's input fields.

    Raises:
        CallFailedError: the model could not be reached, or its reply was cut off or could not be read.
        QuotaExhaustedError: no call will be answered until the account has credit.
        BatchError: the batch of the call failed, or was not finished.
    """
    offer = offer or ToolOffer()
    adapter = StrictChatAdapter()  # also of the format tools, where there is no tool to call
    if replies.format is ReplyFormat.JSON:
        adapter = JsonReplyAdapter()
    elif replies.format is ReplyFormat.TOOLS and offer.tools:
        adapter = NativeToolsAdapter(native_tools(offer))
    config = _call_config(predictor, replies, limit_tokens)
    signature = cast(type[dspy.Signature], predictor.signature)
    lm: Any = predictor.lm or dspy.settings.lm  # Any: DSPy does not type its settings
    limit_chars: int | None = None

    def send(keywords: dict[str, Any]) -> dspy.Prediction:
        with ending_hopeless_runs(where):
            return predictor(**inputs, config=config | keywords)

    with dspy.context(adapter=adapter), track_usage() as meter:
        try:
            if replies.format is ReplyFormat.JSON and lm is not None:
                schema = reply_schema(signature, offer, replies.max_tokens)
                limit_chars = schema["properties"].get("answer", {}).get("maxLength")
                prediction = RESPONSE_FORMATS.call(lm, schema, send)
            else:
                prediction = send({})
        except AdapterParseError as error:
            cut = isinstance(error, TruncatedReplyError) or _is_last_call_truncated(meter)
            outcome = Outcome.TRUNCATED if cut else Outcome.UNPARSED
            message = _name_repetition(error.lm_response, meter) or one_line(error)
            if dspy.settings.trace is not None:
                failed = FailedReply(unreadable_reply=error.lm_response)
                dspy.settings.trace.append((predictor, inputs, failed))
            raise CallFailedError(CallFailure(where, outcome, message)) from error
        except LMError as error:
            raise CallFailedError(CallFailure(where, Outcome.ERROR, one_line(error))) from error
    # A list of calls in a text has an end of its own. An answer that was cut can look whole, as can a list
    # without calls, calls without a list, and native calls, which the provider takes apart.
    if _is_last_call_truncated(meter):
        has_calls = any(isinstance(v, dspy.ToolCalls) and v.tool_calls for v in prediction.values())
        ends_in_text = list(signature.output_fields.values())[-1].annotation is str
        if ends_in_text or not has_calls or adapter.has_open_end or isinstance(adapter, NativeToolsAdapter):
            texts = " ".join(str(value) for value in prediction.values())
            message = _name_repetition(texts, meter) or "the reply reached the limit of tokens"
            raise CallFailedError(CallFailure(where, Outcome.TRUNCATED, message))
    answer = prediction.get("answer")
    # a grammar closes an answer at its limit; a space at its end is not kept
    if limit_chars and isinstance(answer, str) and limit_chars - 1 <= len(answer) <= limit_chars:
        message = _name_repetition(answer, meter) or (
            f"the answer was cut after {limit_chars} characters; a limit of more than {READER_TOKENS} tokens "
            "allows longer ones"
        )
        raise CallFailedError(CallFailure(where, Outcome.TRUNCATED, message))
    if adapter.is_repaired and repaired is not None:
        repaired.append(where)
    return prediction


def _name_repetition(reply: str, meter: UsageMeter) -> str | None:
    """Say that the model repeats itself, and how its reply begins; None if it does not."""
    if not (meter.calls and meter.calls[-1].is_repetitive):
        return None
    beginning = " ".join(reply.split())[:60]
    return f"the model repeats itself: {beginning!r}"


def _call_config(predictor: dspy.Predict, replies: ReplySettings, limit_tokens: int) -> dict[str, Any]:
    """Return the limit and the stop of one call; Any: the model's keyword arguments."""
    lm: Any = predictor.lm or dspy.settings.lm  # Any: DSPy does not type its settings
    if lm is None or "max_completion_tokens" in lm.kwargs:
        return {}  # a model whose thoughts DSPy counts has the limit of its language_model
    limit = replies.max_tokens or limit_tokens + thinking_tokens(lm.model, replies.chat_template_kwargs)
    own: int | None = lm.kwargs.get("max_tokens")
    config: dict[str, Any] = {"max_tokens": limit if own is None else min(limit, own)}
    # a model that thinks may rehearse the marker in its thoughts, and would be stopped there
    is_plain = not is_bundled(lm.model) and not may_think(lm.model, replies.chat_template_kwargs)
    if replies.format is ReplyFormat.CHAT and is_plain:
        config["stop"] = [COMPLETION_MARKER]
    return config


def _is_last_call_truncated(meter: UsageMeter) -> bool:
    return bool(meter.calls) and meter.calls[-1].is_truncated
