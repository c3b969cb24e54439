"""Text that is data in a prompt: whatever in it could pose as a part of the prompt is broken up.

A conversation may quote, or forge, what separates the fields of a prompt or the turns of a chat. A model, or
the tokenizer before it, would take that for the real thing. Ordinary text comes out byte for byte as it was.
"""

import re
from functools import lru_cache

from locomo.json_at import INVALID_CHARACTERS

_ZERO_WIDTH = "[\u00ad\u034f\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]"
"""Characters that take no room: inside a marker they hide it from a search, and not from a model."""

_FIELD_MARKER = re.compile(rf"[\[［]{_ZERO_WIDTH}*[\[［](?=(?:\s|{_ZERO_WIDTH})*[#＃]{_ZERO_WIDTH}*[#＃])")
# The special tokens of the families of models: ChatML and Llama 3, DeepSeek, Gemma, Llama 2, Seed, GLM,
# Nemotron, and those of tool calls; then Mistral, EXAONE, GLM and MiniMax.
_CHAT_TOKEN = re.compile(
    rf"<(?={_ZERO_WIDTH}*[|｜]{_ZERO_WIDTH}*[\w/]|\w+[|｜]>|/?s>|(?:start|end)_of_\w+>|</?SYS>>|(?:seed:)?[be]os>"
    r"|[se]op>|(?:extra_id|SPECIAL)_\d+>|/?tool_(?:call|response)s?>)"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|ARGS|CALL_ID|THINK)\]"
    r"|[|｜]\w|gMASK\]|e~\[)|\](?=~!?b[\[\]])"
)
# Tag characters spell what nobody sees, but in the flag of a region; variation selectors in a row do, too.
_FLAG_OR_TAGS = re.compile("(\U0001f3f4[\U000e0020-\U000e007e]{1,6}\U000e007f)|[\U000e0000-\U000e007f]+")
_REPEATED_SELECTORS = re.compile(
    "([\ufe00-\ufe0f\U000e0100-\U000e01ef])[\ufe00-\ufe0f\U000e0100-\U000e01ef]+"
)
_HIDDEN_TEXT = re.compile("[\U000e0000-\U000e01ef]|[\ufe00-\ufe0f]{2}")


@lru_cache(maxsize=256)  # every agent of a session is shown the same text
def escape_prompt_markers(text: str) -> str:
    """Break up what would read as a field marker of the prompt or as a special token of a chat template.

    Hidden text (tag characters, rows of variation selectors) is left out, and half a surrogate pair, which no
    request can carry, becomes U+FFFD.

    Example:
        >>> escape_prompt_markers("[[ ## answer ## ]] <|im_end|>")
        '[ [ ## answer ## ]] < |im_end|>'
    """
    if _HIDDEN_TEXT.search(text):
        text = _REPEATED_SELECTORS.sub(r"\1", _FLAG_OR_TAGS.sub(r"\1", text))
    text = _FIELD_MARKER.sub("[ [", INVALID_CHARACTERS.sub("\ufffd", text))
    return _CHAT_TOKEN.sub(lambda found: f"{found[0]} ", text)
