"""The thoughts of a reasoning model in the text of its reply: they are never its output."""

import re

_NAMES = r"(?:think(?:ing)?|thoughts?|reasoning|reflection|analysis|scratchpad)"
# In angle brackets, those of Kimi and of special tokens; then the blocks of Mistral, Gemma and gpt-oss.
_OPEN = re.compile(
    rf"<(?:\w+[:_])?{_NAMES}(?:\s[^<>]*)?>|◁{_NAMES}▷|<\|(?:begin_of_|start_)?{_NAMES}\|>"
    r"|\[THINK\]|<unused94>|<\|channel>thought\b|<\|channel\|>analysis<\|message\|>",
    re.IGNORECASE,
)
_CLOSE = re.compile(
    rf"(?:</(?:\w+[:_])?{_NAMES}\s*>|◁/{_NAMES}▷|<\|(?:/|end_of_|end_){_NAMES}\|>"
    r"|\[/THINK\]|<unused95>|<channel\|>|<\|channel\|>final<\|message\|>)\s*",
    re.IGNORECASE,
)
# Some chat templates open the block in the prompt, so a reply only closes it. What follows must look like
# output: in a string of a call the closing tag is text.
_QUOTE = re.compile(r'(?<!\\)(?:\\\\)*"')
_OUTPUT_BEGINS = re.compile(r"\[\[ ?##|\{|\[\s*[{\]]|```|\Z")


def strip_thinking(reply: str) -> str:
    r"""Leave out what a model thought before, in or after its reply.

    If the reply begins with a block that is never closed, nothing is output. A tag inside a JSON string is
    text.

    Example:
        >>> strip_thinking("<think>Is it Rome?</think>\n\nLisbon")
        'Lisbon'
        >>> strip_thinking("Is it Rome?\n</think>\n[[ ## answer ## ]]\nLisbon")
        '[[ ## answer ## ]]\nLisbon'
        >>> strip_thinking("[[ ## answer ## ]]\n<seed:think>Is it Rome?</seed:think>Lisbon")
        '[[ ## answer ## ]]\nLisbon'
        >>> strip_thinking("<think>Is it Rome? It must be")
        ''
    """
    place = 0
    while opened := _OPEN.search(reply, place):
        begin, close = opened.start(), _CLOSE.search(reply, opened.end())
        if _is_in_string(reply, begin):
            place = opened.end()
        elif close is not None:
            reply, place = reply[:begin] + reply[close.end() :], begin
        elif reply[:begin].strip():
            break
        else:
            return ""
    closes = [
        found.end()
        for found in _CLOSE.finditer(reply)
        if _OUTPUT_BEGINS.match(reply, found.end()) and not _is_in_string(reply, found.start())
    ]
    return reply[closes[-1] :] if closes else reply


def _is_in_string(reply: str, place: int) -> bool:
    """Tell if an odd number of quotation marks stands before a place in its line, as inside a JSON string."""
    line = reply[reply.rfind("\n", 0, place) + 1 : place]
    return len(_QUOTE.findall(line)) % 2 == 1
