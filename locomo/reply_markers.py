"""Field markers and special tokens in a reply, as models write them where a program expects its own form."""

import re
from collections.abc import Iterable

_END_TOKEN = re.compile(
    r"<[|｜][^<>\n|｜]{1,40}[|｜]>|</(?:s|response)>|<end_of_turn>|<turn\|>|<eos>|\[/INST\]|\[EOS\]"
)
_BOX_TOKEN = re.compile(r"<\|(?:begin|end)_of_box\|>")  # GLM-4.5V puts its answer in a box
_CUT_END = re.compile(r"\[\[ ?##? ?(\w*+)[ #]*+\]?\s*+\Z")
_NO_VALUE = re.compile(r"[\W_]*(?:(?:n/?a|none|null|nil|nan|undefined|empty)[\W_]*)?", re.IGNORECASE)


def marker_pattern(names: Iterable[str]) -> re.Pattern[str]:
    """Compile a pattern of the markers of fields in any spelling; the group ``name`` is the field's."""
    blank = r"[^\S\n]*+"
    # A match begins at the first blank of a run. Trying each blank would take time quadratic in the run.
    return re.compile(
        rf"(?<![^\S\n]){blank}(?P<around>[*_`]{{0,3}})"
        rf"\[\[{blank}##{blank}(?P<name>{'|'.join(names)}){blank}##{blank}\]\]"
        rf"(?P=around){blank}",
        re.IGNORECASE,
    )


def separate_markers(text: str, marker: re.Pattern[str], *, is_line_begun: bool = False) -> str:
    r"""Put the markers of fields on lines of their own, and end a text where the model's turn ends.

    A text in the program's own form comes out as it was. ``is_line_begun``: it goes on in a line.

    Example:
        >>> separate_markers("**[[ ## answer ## ]]** Lisbon[[##completed##]]<|im_end|>",
        ...                  marker_pattern(["answer", "completed"]))
        '[[ ## answer ## ]]\nLisbon\n[[ ## completed ## ]]'
    """
    text = _BOX_TOKEN.sub("", text)
    if end := _END_TOKEN.search(text):
        text = text[: end.start()]
    if (cut := _CUT_END.search(text)) and "completed".startswith(cut[1].lower()):
        text = text[: cut.start()].rstrip()

    def write(found: re.Match[str]) -> str:
        plain = f"[[ ## {found['name'].lower()} ## ]]"
        above = text[found.start() - 1] if found.start() else " " if is_line_begun else "\n"
        before = "" if above == "\n" else "\n"
        after = "" if text[found.end() : found.end() + 1] in ("", "\n", "\r") else "\n"
        return f"{before}{plain}{after}"

    return marker.sub(write, text)


def is_no_value(text: str) -> bool:
    """Tell if a text says that there is nothing to say: blank, ``none``, ``N/A`` or only punctuation.

    Example:
        >>> is_no_value("**None**"), is_no_value("(n/a)"), is_no_value("-"), is_no_value("none of them")
        (True, True, True, False)
    """
    return _NO_VALUE.fullmatch(text) is not None
