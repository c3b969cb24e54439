"""How prompts are rendered and replies are read: DSPy's ChatAdapter, made strict.

Two things differ from the library's adapter. A reply whose tool calls were cut off is refused instead of
being repaired into half a memory; and text that stands in an input field cannot pose as a field marker or
as a turn of the chat. There is no second call in another format behind the caller's back.
"""

import json
import re
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

_COMPLETED = "[[ ## completed ## ]]"
_FIELD_MARKER = re.compile(r"\[\[(\s*##)")
_CHAT_MARKER = re.compile(r"<\|(?=\w)")
_CALLS_BEGIN = re.compile(r'\{\s*"(?:tool_calls|name|id|type|function)"|\[\s*[{\]]')
_DECODER = json.JSONDecoder()


class TruncatedReplyError(AdapterParseError):
    """The reply ends in the middle of its tool calls."""


class StrictChatAdapter(dspy.ChatAdapter):
    """ChatAdapter without the JSON fallback or repairs of cut replies, safe against its own markers."""

    def __init__(self) -> None:
        """Make the adapter; it has no settings, so that rollouts and training text cannot differ."""
        super().__init__(use_json_adapter_fallback=False)

    def format_user_message_content(
        self,
        signature: type[dspy.Signature],
        inputs: dict[str, Any],
        prefix: str = "",
        suffix: str = "",
        main_request: bool = False,
    ) -> str:
        """Render the inputs; markers inside them are broken up so that data stays data."""
        harmless = {name: neutralised(v) if isinstance(v, str) else v for name, v in inputs.items()}
        return super().format_user_message_content(signature, harmless, prefix, suffix, main_request)

    def parse(self, signature: type[dspy.Signature], completion: str) -> dict[str, Any]:
        """Read a reply into the signature's output fields.

        Raises:
            TruncatedReplyError: the tool calls are not closed and neither is the reply.
            AdapterParseError: a field is missing or does not have its type.
        """
        for name, field in signature.output_fields.items():
            if field.annotation is dspy.ToolCalls:
                completion = _with_bare_calls(signature, completion, name)
        return super().parse(signature, completion)


def neutralised(text: str) -> str:
    """Break up what would read as a field marker of the prompt or as a special token of a chat template.

    Example:
        >>> neutralised("[[ ## answer ## ]] <|im_end|>")
        '[ [ ## answer ## ]] < |im_end|>'
    """
    return _CHAT_MARKER.sub("< |", _FIELD_MARKER.sub(r"[ [\1", text))


def _with_bare_calls(signature: type[dspy.Signature], completion: str, field: str) -> str:
    """Replace the field's text by the JSON in it, leaving prose and code fences out."""
    header = f"[[ ## {field} ## ]]"
    before, found, after = completion.partition(header)
    if not found:
        return completion
    end = after.find("[[ ## ")
    section, rest = (after, "") if end < 0 else (after[:end], after[end:])
    bare = _whole_calls(section)
    if bare is not None:
        return f"{before}{header}\n{bare}\n\n{rest}"
    if "{" in section and _COMPLETED not in rest:
        raise TruncatedReplyError(
            adapter_name="StrictChatAdapter",
            signature=signature,  # pyright: ignore[reportArgumentType]  # DSPy means the class
            lm_response=completion,
            message=f"the reply ends in the middle of `{field}`",
        )
    return completion  # complete but not quite JSON: the library's repair of commas and quotes is welcome


def _whole_calls(section: str) -> str | None:
    """Find the JSON of the calls, if it is whole.

    Only where the calls begin is decoded: inside a list that was cut, the first calls are whole too, and to
    take them alone would lose the others silently.
    """
    begin = _CALLS_BEGIN.search(section)
    if begin is None:
        return None
    try:
        _, end = _DECODER.raw_decode(section, begin.start())
    except json.JSONDecodeError:
        return None
    return section[begin.start() : end]


ADAPTER = StrictChatAdapter()
"""The one adapter of the program: rollouts, evaluation and training text all go through it."""
