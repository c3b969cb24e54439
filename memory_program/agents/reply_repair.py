"""Variants of a tool call that can be read in one way only; every other reply is refused as a whole.

Models write the arguments beside ``args``, under another name, or as a string of JSON. They are read as what
they can only mean, and the reply counts as repaired. Two values for one argument are ambiguous.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any, cast

from locomo.reply_markers import is_no_value
from memory_program.agents.tool_schema import tool_arguments

ReplyJson = Any  # Any: a decoded JSON value

_NAMES = ("name", "tool", "tool_name", "function")
_ARGUMENTS = re.compile(
    r"(?:kw|(?:tool|action|function)_?)?(?:arg(?:ument)?s?|param(?:eter)?s?|inputs?)", re.I
)
_LIST_BEGINS = re.compile(r'\s*(?:\[\[ ## tool_calls ## \]\]\s*)?\{\s*"tool_calls"\s*:\s*\[\s*')
_NO_CALLS = re.compile(
    r"\{\s*\}|\[\s*(?:null|none|\{\s*\})?\s*\]|no (?:tool )?calls?(?: (?:are )?needed)?|none needed", re.I
)
_WRITTEN_JSON = re.compile(r'[\[{].*[\]}"”]', re.DOTALL)
_COMMENT = re.compile(r'(?<=[,{}\[\]])[^\S\n]*(?://|#)[^\n"]*$', re.MULTILINE)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|[\\nrtbf])")
_FORM_WORD = re.compile(
    rf"name|tool|calls?|function|action|id|type|null|none|{_ARGUMENTS.pattern}", re.IGNORECASE
)


class AmbiguousReplyError(ValueError):
    """A reply can be read in two ways, or in none."""


class DuplicateKeyError(AmbiguousReplyError):
    """An object has a key twice: its first value would be lost."""


@dataclass(frozen=True, slots=True)
class ReadCalls:
    """The calls of a reply in the program's form, and whether the model wrote them in another."""

    calls: list[dict[str, ReplyJson]]
    is_repaired: bool


def _reject_duplicate_keys(pairs: list[tuple[str, ReplyJson]]) -> dict[str, ReplyJson]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        raise DuplicateKeyError(next(name for name in names if names.count(name) > 1))
    return members


def _read_whole_number(digits: str) -> int | str:
    """Read a whole number; one with more digits than Python converts, from a model in a loop, stays text."""
    try:
        return int(digits)
    except ValueError:
        return digits


# Not strict: models write line ends inside strings, which does no harm.
DECODER = json.JSONDecoder(
    object_pairs_hook=_reject_duplicate_keys, parse_int=_read_whole_number, strict=False
)


def is_no_calls(text: str) -> bool:
    r"""Tell if a text says that there are no calls: blank, ``none``, ``null`` or ``{}``, also in a fence.

    Example:
        >>> is_no_calls("- none"), is_no_calls("```json\n{ }\n```"), is_no_calls("none of them")
        (True, True, False)
    """
    said = text.replace("```json", "").strip("`()'\".\\*_- \n\t")
    return bool(_NO_CALLS.fullmatch(said)) or (is_no_value(said) and not re.search(r"[\[\]{}]", said))


def close_repeated_calls(text: str) -> str:
    """Close a list of calls that was cut while the model wrote calls of the list again.

    Nothing is lost: the last calls repeat those before them, and what was cut off begins as the next one of
    the loop. Any other text is returned as it is.

    Example:
        >>> call = '{"name":"search_memory","args":{"query":"cats"}}'
        >>> close_repeated_calls(f'{{"tool_calls":[{call},{call},{call},{{"name":"sea').count("cats")
        3
    """
    begin = _LIST_BEGINS.match(text)
    if begin is None:
        return text
    calls: list[str] = []
    start = end = begin.end()
    while text.startswith("{", start):
        try:
            _, end = DECODER.raw_decode(text, start)
        except (json.JSONDecodeError, DuplicateKeyError, RecursionError):
            break
        calls.append(text[start:end])
        start = end + len(text[end:]) - len(text[end:].lstrip(", \n"))
    if not calls or calls[-1] not in calls[:-1] or text[end:].lstrip().startswith("]"):
        return text
    period = calls[-2::-1].index(calls[-1]) + 1
    span = max(period, 2)  # one call twice may be an accident
    is_loop = len(calls) >= span + period and calls[-span:] == calls[-span - period : -period]
    return f"{text[:end]}]}}" if is_loop and calls[-period].startswith(text[start:]) else text


def keeps_words(broken: str, repaired: ReplyJson) -> bool:
    """Tell if a repair of broken JSON kept all of its words, except those of its form and of comments.

    A library that guesses may take a quotation mark inside a text for its end, and leave out the rest.

    Example:
        >>> keeps_words('{"text": "He said: "no""}', {"text": "He said:"})
        False
        >>> keeps_words("{'text': 'It is Rex', 'kind': None}", {"text": "It is Rex", "kind": None})
        True
    """
    written = _WRITTEN_JSON.search(broken)
    said = _COMMENT.sub("", written[0]) if written else ""
    lost = _count_words(said) - _count_words(json.dumps(repaired, ensure_ascii=False))
    return all(_FORM_WORD.fullmatch(word) for word in lost)


def _count_words(text: str) -> Counter[str]:
    plain = _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else " ", text)
    return Counter(re.findall(r"[^\W_]+", plain))


def read_calls(values: list[ReplyJson]) -> ReadCalls:
    """Read the calls of a reply from its JSON values: one list of calls, or calls that follow each other.

    Raises:
        AmbiguousReplyError: there is more than one list, or a call can be read in two ways or in none.
    """
    is_repaired = True
    if len(values) > 1:
        if any(not isinstance(value, dict) or "tool_calls" in value for value in values):
            raise AmbiguousReplyError("more than one list of calls")
        written = values
    else:
        written, is_repaired = _list_calls(values[0])
    calls: list[dict[str, ReplyJson]] = []
    for value in written:
        if not isinstance(value, dict):
            raise AmbiguousReplyError(f"{value!r:.40} is no call")
        call: dict[str, ReplyJson] = dict(cast(dict[str, ReplyJson], value))
        for key, inner in value.items():
            if isinstance(inner, dict) and (key == "function" or len(value) == 1):  # as OpenAI writes it
                call = (
                    {"name": key, "args": inner}
                    if tool_arguments(key)
                    else {"name": call.get("name"), **inner}
                )
        names = set[str]()
        for said in (call[key] for key in _NAMES if isinstance(call.get(key), str)):
            name = re.split("[./:]", said.strip())[
                -1
            ].lower()  # behind a template's namespace: ``functions.``
            names.add(name if tool_arguments(name) else said)
        if len(names) != 1:
            raise AmbiguousReplyError(f"a call has the names {sorted(names)}")
        (name,) = names
        filled: list[dict[str, ReplyJson]] = []
        for key, member in call.items():
            if key in _NAMES or not (isinstance(member, dict) or _ARGUMENTS.fullmatch(key)):
                continue
            if isinstance(member, str):
                member = None if is_no_calls(member) else _decode("args", member)
            if member is not None and not isinstance(member, dict):
                raise AmbiguousReplyError(f"args={member!r:.40} is no object")
            filled += [member] if member else []
        if any(arguments != filled[0] for arguments in filled):
            raise AmbiguousReplyError(f"a call of {name} has its arguments twice")
        arguments = dict(filled[0]) if filled else {}
        for key in tool_arguments(name):
            if key in call and key not in _NAMES:
                if key in arguments and arguments[key] != call[key]:
                    raise AmbiguousReplyError(f"a call of {name} has two values for {key}")
                arguments[key] = call[key]
        calls.append({"name": name, "args": arguments})
    # an id and a type beside the name are the provider's own form of a call
    plain = [{key: call[key] for key in call if key not in ("id", "type")} for call in written]
    return ReadCalls(calls, is_repaired or calls != plain)


def _list_calls(value: ReplyJson) -> tuple[list[ReplyJson], bool]:
    if isinstance(value, list):
        calls = [call for call in cast(list[ReplyJson], value) if call not in (None, {})]
        return calls, len(calls) < len(value)
    if not isinstance(value, dict):
        raise AmbiguousReplyError(f"{value!r:.40} is no call")
    members = cast(dict[str, ReplyJson], value)
    if "tool_calls" not in members:
        return [members], True
    calls = members["tool_calls"]
    if any(
        isinstance(other, (list, dict)) and other for key, other in members.items() if key != "tool_calls"
    ):
        raise AmbiguousReplyError("more than one list of calls")
    if isinstance(calls, list):
        return _list_calls(calls)
    if calls is None or calls == {} or (isinstance(calls, str) and is_no_calls(calls)):
        return [], True
    if isinstance(calls, str):
        calls = _decode("tool_calls", calls)
    if isinstance(calls, (list, dict)) and calls:
        return _list_calls(calls)[0], True
    raise AmbiguousReplyError(f"tool_calls={calls!r:.40} is no list of calls")


def _decode(name: str, text: str) -> ReplyJson:
    try:
        return DECODER.decode(text)
    except RecursionError:
        raise AmbiguousReplyError(f"{name} is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise AmbiguousReplyError(f"{name}={text!r:.40} is no JSON") from error
