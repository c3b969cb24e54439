"""The program's reply format: DSPy's ChatAdapter, made strict.

Three things differ from the library's adapter. A reply whose tool calls were cut off is refused, not repaired
into half a memory. A reply whose calls can be read in two ways is refused, not read in part. Text in an input
field cannot pose as a field marker or as a turn of the chat. There is no second call in another format.
"""

import json
import re
from typing import Any, NoReturn, cast

import dspy
from dspy.utils.exceptions import AdapterParseError

from locomo.json_at import INVALID_CHARACTERS
from locomo.prompt_markers import escape_prompt_markers

COMPLETION_MARKER = "[[ ## completed ## ]]"
"""The end of a reply."""

_HEADER = re.compile(r"^[^\S\n]*\[\[ ## (\w+) ## \]\]", re.MULTILINE)
_CALLS_BEGIN = re.compile(r'\{\s*"(?:tool_calls|name|id|type|function)"|\[\s*[{\]]')
_CALL_NAME = re.compile(r"""["']name["']\s*:""")

ReplyJson = Any  # Any: a decoded JSON value


class TruncatedReplyError(AdapterParseError):
    """The reply ends in the middle of its tool calls."""


class StrictChatAdapter(dspy.ChatAdapter):
    """ChatAdapter without JSON fallback or repair of cut replies, safe against its own markers."""

    def __init__(self) -> None:
        """Make the adapter. It has no settings, so that rollouts and training text cannot differ."""
        super().__init__(use_json_adapter_fallback=False)

    def format_user_message_content(
        self,
        signature: type[dspy.Signature],
        inputs: dict[str, Any],
        prefix: str = "",
        suffix: str = "",
        main_request: bool = False,
    ) -> str:
        """Render the inputs; markers inside them are broken up, so that data stays data."""
        harmless = {name: escape_prompt_markers(v) if isinstance(v, str) else v for name, v in inputs.items()}
        return super().format_user_message_content(signature, harmless, prefix, suffix, main_request)

    def parse(self, signature: type[dspy.Signature], completion: str) -> dict[str, Any]:
        """Read a reply into the signature's output fields.

        No call is lost in silence: either all calls of the reply are read, or none.

        Raises:
            TruncatedReplyError: neither the tool calls nor the reply are closed.
            AdapterParseError: a field is missing or does not have its type, or the calls are ambiguous.
        """
        completion = _replace_invalid_characters(completion)
        named: dict[str, int] = {}
        for name, field in signature.output_fields.items():
            if field.annotation is dspy.ToolCalls:
                completion, named[name] = _normalize_calls(signature, completion, name)
        try:
            parsed = super().parse(signature, completion)
        except RecursionError:
            _raise_parse_error(signature, completion, "the reply is nested too deeply")
        for name, count in named.items():
            if len(parsed[name].tool_calls) < count:
                _raise_parse_error(signature, completion, f"some of {count} calls in `{name}` are unreadable")
            for call in parsed[name].tool_calls:
                call.args = _replace_invalid_characters(call.args)
        return parsed


def _normalize_calls(signature: type[dspy.Signature], completion: str, field: str) -> tuple[str, int]:
    """Replace a field's text by the JSON of its calls, without prose and code fences.

    Returns:
        the reply, and the number of calls in the field.
    """
    header = next((found for found in _HEADER.finditer(completion) if found[1] == field), None)
    if header is None:
        return completion, 0
    values: list[ReplyJson] = []
    end = header.end()
    try:
        # Only where calls begin is decoded: in a list that was cut, the first calls are whole too, and taking
        # them alone would lose the others. A marker inside a string of a call is text.
        while begin := _CALLS_BEGIN.search(completion, end):
            marker = _HEADER.search(completion, end)
            if marker is not None and marker.start() < begin.start():
                break
            value, end = _DECODER.raw_decode(completion, begin.start())
            values.append(value)
    except _DuplicateKeyError as error:
        _raise_parse_error(
            signature, completion, f"an object in `{field}` has the key {error.args[0]!r} twice"
        )
    except RecursionError:
        _raise_parse_error(signature, completion, f"`{field}` is nested too deeply")
    except ValueError:  # not quite JSON: the library's repair of commas and quotes is welcome
        values, end = [], header.end()
    following = list(_HEADER.finditer(completion, end))
    names = [marker[1] for marker in following]
    is_completed = "completed" in names
    if field in (names[: names.index("completed")] if is_completed else names):  # only one would be read
        _raise_parse_error(signature, completion, f"the reply has `{field}` more than once")
    rest_start = following[0].start() if following else len(completion)
    section = completion[end:rest_start]
    is_open = section.rfind("{") > section.rfind("}") if values else "{" in section
    if is_open and not is_completed:
        raise TruncatedReplyError(
            adapter_name="StrictChatAdapter",
            signature=signature,  # pyright: ignore[reportArgumentType]  # DSPy means the class
            lm_response=completion,
            message=f"the reply ends in the middle of `{field}`",
        )
    if not values:
        return completion, len(_CALL_NAME.findall(section))  # the repair must find as many
    calls = _extract_calls(values)
    if calls is None:
        _raise_parse_error(signature, completion, f"`{field}` holds more than one list of calls")
    # in ASCII: DSPy reads line by line, and also breaks at characters that may stand in a JSON string
    text = f"{completion[: header.end()]}\n{json.dumps({'tool_calls': calls})}\n\n{completion[rest_start:]}"
    return text, len(calls)


def _extract_calls(values: list[ReplyJson]) -> list[ReplyJson] | None:
    """Return the calls of one list, or bare calls that follow each other; None if there is more than that."""
    if len(values) > 1:
        are_bare = all(isinstance(value, dict) and "tool_calls" not in value for value in values)
        return values if are_bare else None
    (value,) = values
    if isinstance(value, list):
        return cast(list[ReplyJson], value)
    if "tool_calls" not in value:
        return [value]
    others = [other for name, other in value.items() if name != "tool_calls"]
    is_alone = not any(isinstance(other, (list, dict)) and other for other in others)
    calls = value["tool_calls"]
    return cast(list[ReplyJson], calls) if is_alone and isinstance(calls, list) else None


def _replace_invalid_characters(value: ReplyJson) -> ReplyJson:
    """Replace NUL and half surrogate pairs, which neither a database nor a request can carry."""
    if isinstance(value, str):
        return INVALID_CHARACTERS.sub("\ufffd", value)
    if isinstance(value, list):
        return [_replace_invalid_characters(element) for element in cast(list[ReplyJson], value)]
    if isinstance(value, dict):
        return {
            _replace_invalid_characters(name): _replace_invalid_characters(member)
            for name, member in cast(dict[str, ReplyJson], value).items()
        }
    return value


def _raise_parse_error(signature: type[dspy.Signature], completion: str, message: str) -> NoReturn:
    raise AdapterParseError(
        adapter_name="StrictChatAdapter",
        signature=signature,  # pyright: ignore[reportArgumentType]  # DSPy means the class
        lm_response=completion,
        message=message,
    ) from None


class _DuplicateKeyError(Exception):
    """An object has a key twice: its first value would be lost."""


def _reject_duplicate_keys(pairs: list[tuple[str, ReplyJson]]) -> dict[str, ReplyJson]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        raise _DuplicateKeyError(next(name for name in names if names.count(name) > 1))
    return members


# Not strict: models write line ends inside strings, which does no harm.
_DECODER = json.JSONDecoder(object_pairs_hook=_reject_duplicate_keys, strict=False)

ADAPTER = StrictChatAdapter()
"""The program's only adapter, for rollouts, evaluation and training text."""
