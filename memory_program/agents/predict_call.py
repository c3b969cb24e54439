"""One call of a predictor and its failures."""

from contextlib import AbstractContextManager
from typing import Any, cast

import dspy
from dspy.utils.exceptions import AdapterParseError, LMBillingError, LMError

from memory_program.agents.chat_adapter import ADAPTER, COMPLETION_MARKER, TruncatedReplyError
from memory_program.bank.outcomes import CallFailure, Outcome
from memory_program.core.errors import MemoryProgramError, QuotaExhaustedError
from memory_program.models.model_names import is_bundled
from memory_program.models.reply_settings import ReplyFormat, ReplySettings, thinking_tokens
from memory_program.models.usage import UsageMeter, track_usage


class CallFailedError(MemoryProgramError):
    """A call to a model gave nothing usable; ``failure`` says where and why."""

    def __init__(self, failure: CallFailure) -> None:
        """Wrap the failure."""
        super().__init__(f"{failure.where}: {failure.outcome}: {failure.message}")
        self.failure = failure


def dspy_history_disabled() -> AbstractContextManager[None]:
    """Stop DSPy from keeping this thread's calls inside the block.

    Otherwise it keeps up to ten thousand prompts: in a trace that all threads share, and in the histories of
    models and modules. Only optimisers need the trace, and nothing needs the histories.
    """
    return dspy.context(trace=None, disable_history=True)


def predict(
    where: str, predictor: dspy.Predict, replies: ReplySettings, limit_tokens: int, **inputs: object
) -> dspy.Prediction:
    """Call a predictor through the program's adapter.

    Args:
        where: the name of the call in records, for example ``writer.semantic``.
        predictor: the predictor to call.
        replies: the format of the reply, and a limit that overrides ``limit_tokens``.
        limit_tokens: the most tokens of the reply; thoughts of a reasoning model come on top.
        **inputs: the predictor's input fields.

    Raises:
        CallFailedError: the model could not be reached, or its reply was cut off or could not be read.
        QuotaExhaustedError: no call will be answered until the account has credit.
    """
    with dspy.context(adapter=ADAPTER), track_usage() as meter:
        try:
            prediction = predictor(**inputs, config=_call_config(predictor, replies, limit_tokens))
        except AdapterParseError as error:
            cut = isinstance(error, TruncatedReplyError) or _is_last_call_truncated(meter)
            outcome = Outcome.TRUNCATED if cut else Outcome.UNPARSED
            raise CallFailedError(CallFailure(where, outcome, _one_line(error))) from error
        except LMBillingError as error:
            raise QuotaExhaustedError(f"{where}: {_one_line(error)}") from error
        except LMError as error:
            raise CallFailedError(CallFailure(where, Outcome.ERROR, _one_line(error))) from error
        # Tool calls have an end of their own; a text that was cut can look whole.
        signature = cast(type[dspy.Signature], predictor.signature)
        ends_in_text = list(signature.output_fields.values())[-1].annotation is str
        if ends_in_text and _is_last_call_truncated(meter):
            message = "the reply reached the limit of tokens"
            raise CallFailedError(CallFailure(where, Outcome.TRUNCATED, message))
    return prediction


def _call_config(predictor: dspy.Predict, replies: ReplySettings, limit_tokens: int) -> dict[str, Any]:
    """Return the limit and the stop of one call; Any: the model's keyword arguments."""
    lm: Any = predictor.lm or dspy.settings.lm  # Any: DSPy does not type its settings
    if lm is None or "max_completion_tokens" in lm.kwargs:
        return {}  # a model whose thoughts DSPy counts has the limit of its language_model
    limit = replies.max_tokens or limit_tokens + thinking_tokens(lm.model, replies.chat_template_kwargs)
    own: int | None = lm.kwargs.get("max_tokens")
    config: dict[str, Any] = {"max_tokens": limit if own is None else min(limit, own)}
    if replies.format is ReplyFormat.CHAT and not is_bundled(lm.model):
        config["stop"] = [COMPLETION_MARKER]
    return config


def _is_last_call_truncated(meter: UsageMeter) -> bool:
    return bool(meter.calls) and meter.calls[-1].is_truncated


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
