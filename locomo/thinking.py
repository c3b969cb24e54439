"""The thoughts of a reasoning model in the text of its reply: they are never its output."""

import re

_TAGS = r"think|thinking|thought|thoughts|reasoning|reflection"
_OPEN = re.compile(rf"\s*(?:<({_TAGS})>|\[THINK\])", re.IGNORECASE)
_CLOSE = re.compile(rf"(?:</(?:{_TAGS})>|\[/THINK\])\s*", re.IGNORECASE)
# Some chat templates open the block in the prompt, so a reply only closes it. What follows must look like
# output: in a string of a call the closing tag is text.
_QUOTE = re.compile(r'(?<!\\)(?:\\\\)*"')
_OUTPUT_BEGINS = re.compile(r"\[\[ ?##|\{|\[\s*[{\]]|```|\Z")


def strip_thinking(reply: str) -> str:
    r"""Leave out what a model thought before its reply; of a block that is never closed, nothing is output.

    Example:
        >>> strip_thinking("<think>Is it Rome?</think>\n\nLisbon")
        'Lisbon'
        >>> strip_thinking("Is it Rome?\n</think>\n[[ ## answer ## ]]\nLisbon")
        '[[ ## answer ## ]]\nLisbon'
        >>> strip_thinking("<think>Is it Rome? It must be")
        ''
        >>> strip_thinking("Lisbon")
        'Lisbon'
    """
    if "</" not in reply and "[/" not in reply and not _OPEN.match(reply):
        return reply
    while _OPEN.match(reply):
        close = _CLOSE.search(reply)
        if close is None:
            return ""
        reply = reply[close.end() :]
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
