"""The program's reply format ``chat``: DSPy's ChatAdapter, made strict where a memory could be lost.

A reply whose tool calls were cut off is refused, not repaired into half a memory. A reply that can be read in
two ways is refused, not read in part. What can only mean one thing is read, and counted as repaired: see
``reply_repair``. Text in an input field cannot pose as a field marker or as a turn of the chat. There is no
second call in another format.
"""

import json
import re
from contextlib import suppress
from functools import lru_cache
from typing import Any, NoReturn, cast

import dspy
from dspy.utils.exceptions import AdapterParseError
from pydantic import TypeAdapter, ValidationError

from locomo.json_at import INVALID_CHARACTERS
from locomo.prompt_markers import escape_prompt_markers
from locomo.reply_markers import marker_pattern, separate_markers
from locomo.thinking import strip_thinking
from memory_program.agents.reply_repair import (
    DECODER,
    AmbiguousReplyError,
    DuplicateKeyError,
    ReplyJson,
    close_repeated_calls,
    is_no_calls,
    keeps_words,
    read_calls,
)

COMPLETION_MARKER = "[[ ## completed ## ]]"
"""The end of a reply."""

_HEADER = re.compile(r"^[^\S\n]*\[\[ ## (\w+) ## \]\]", re.MULTILINE)
_CALLS_BEGIN = re.compile(r'\{\s*"(?:tool_calls|name|id|type|function|tool|tool_name)"|\[\s*[{\]]')
_CALL_NAME = re.compile(r"""["']name["']\s*:""")
_JSON_BEGINS = re.compile(r"\{|\[\s*[{\]]")
_UNREAD_CALL = re.compile(r"(?=[^{]*\{).*\w_(?:memory|core)\b", re.DOTALL)
# Special tokens of chat templates that stand before the reply, and Granite's tag.
_ROLE_TOKENS = re.compile(r"\s*(?:(?:<[|｜][^<>\n|｜]{1,40}[|｜]>|<response>)\s*(?:assistant\s*)?)+")
_TAGGED = re.compile(r"\s*<answer>(.*?)</answer>\s*", re.DOTALL)  # as Hunyuan and GLM-4.1V write it
_FENCED = re.compile(r"\s*```[a-z]*[^\S\n]*\n((?:(?!```).)*?)\s*```\s*", re.DOTALL)
_OPEN_FENCE = re.compile(r"\s*```[a-z]*\s*(?=\{|\[\s*[{\]])")


@lru_cache(maxsize=64)
def _render_fields(signature: type[dspy.Signature]) -> str:
    # DSPy makes the JSON schema of the tool calls for each prompt, a third of the processor time of a call
    return dspy.ChatAdapter().format_field_structure(signature)


class TruncatedReplyError(AdapterParseError):
    """The reply ends in the middle of its tool calls."""

    place: str = ""


class StrictChatAdapter(dspy.ChatAdapter):
    """ChatAdapter without JSON fallback or repair of cut replies, safe against its own markers.

    ``is_repaired`` tells if the last reply that it read was not in the program's form, ``has_open_end`` if
    its calls are in no list, so that nothing shows that the last one is there.
    """

    has_field_markers = True
    """True if replies have markers of their fields; a reply that is one JSON object was then repaired."""

    def __init__(self) -> None:
        """Make the adapter. It has no settings, so that rollouts and training text cannot differ."""
        super().__init__(use_json_adapter_fallback=False)
        self.is_repaired = False
        self.has_open_end = False

    def format_field_structure(self, signature: type[dspy.Signature]) -> str:
        """Render the fields, once for each signature."""
        return _render_fields(signature)  # type: ignore[reportArgumentType]  # a class can be hashed

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

        No call is lost in silence: either all calls of the reply are read, or none. A reader that may search
        gives an answer or a search, and need not name the other. Thoughts are no output.

        Raises:
            TruncatedReplyError: neither the tool calls nor the reply are closed.
            AdapterParseError: a field is missing or does not have its type, or the calls are ambiguous.
        """
        completion = replace_invalid_characters(completion)
        text = strip_thinking(completion)
        if tagged := _TAGGED.fullmatch(text):
            text = tagged[1]
        if roles := _ROLE_TOKENS.match(text):
            text = text[roles.end() :]
        if fenced := _FENCED.fullmatch(text):
            text = fenced[1]
        elif opened := _OPEN_FENCE.match(text):
            text = text[opened.end() :]
        text = close_repeated_calls(text.lstrip())
        self.is_repaired, self.has_open_end = text.strip() != completion.strip(), False
        outputs: dict[str, Any] = signature.output_fields  # Any: pydantic's
        calls_field = next((n for n, field in outputs.items() if field.annotation is dspy.ToolCalls), None)
        try:
            parsed = self._read_json(signature, text, calls_field) if _JSON_BEGINS.match(text) else None
            if parsed is None:
                if calls_field is not None and _JSON_BEGINS.match(text):
                    # a value that is whole, or that no marker follows; a marker inside of it is text
                    is_value = _HEADER.search(text) is None
                    with suppress(json.JSONDecodeError):
                        DECODER.raw_decode(text)
                        is_value = True
                    if is_value:
                        text, self.is_repaired = f"[[ ## {calls_field} ## ]]\n{text}", True
                parsed = self._read_sections(signature, text, calls_field)
        except TruncatedReplyError as error:
            _raise_truncated(signature, completion, error.place)
        except DuplicateKeyError as error:
            raise_parse_error(signature, completion, f"an object has the key {error.args[0]!r} twice")
        except AmbiguousReplyError as error:
            raise_parse_error(signature, completion, str(error))
        except RecursionError:
            raise_parse_error(signature, completion, "the reply is nested too deeply")
        if parsed.keys() != outputs.keys():
            missing = ", ".join(name for name in outputs if name not in parsed)
            raise_parse_error(signature, completion, f"the reply lacks {missing}")
        return parsed

    def _read_json(
        self, signature: type[dspy.Signature], text: str, calls_field: str | None
    ) -> dict[str, Any] | None:
        """Read a reply that is one JSON object of the output fields; None if it may be bare calls."""
        outputs: dict[str, Any] = signature.output_fields  # Any: pydantic's
        begins_with_calls = calls_field == next(iter(outputs))
        try:
            value, end = DECODER.raw_decode(text)
        except json.JSONDecodeError:
            if begins_with_calls:
                return None
            if not _is_closed(text):
                _raise_truncated(signature, text, "the middle of a JSON object")
            raise AmbiguousReplyError("the reply is no valid JSON") from None
        is_whole = not _JSON_BEGINS.search(text, end) and not _HEADER.search(text, end)
        if not is_whole or not isinstance(value, dict) or not outputs.keys() & value.keys():
            if begins_with_calls:
                return None
            raise AmbiguousReplyError("the reply is not one object of the output fields")
        self.is_repaired |= self.has_field_markers or bool(text[end:].strip())
        parsed: dict[str, Any] = {}
        for name in outputs.keys() & value.keys():
            if name == calls_field:
                inner = value[name]
                is_nested = isinstance(inner, dict) and "tool_calls" in inner  # as DSPy's JSON has it
                read = read_calls([inner if is_nested else value])
                self.is_repaired |= read.is_repaired
                parsed[name] = dspy.ToolCalls.from_dict_list(replace_invalid_characters(read.calls))
            elif outputs[name].annotation is str:
                said = value[name]
                if isinstance(said, list) and all(isinstance(element, str) for element in said):
                    said = ", ".join(said)
                if isinstance(said, bool | list | dict):
                    raise AmbiguousReplyError(f"{name}={said!r:.40} is no text")
                said = replace_invalid_characters("" if said is None else str(said).strip())
                parsed[name] = self._read_value(separate_markers(said, marker_pattern(["completed"])))
                self.is_repaired |= parsed[name] != said
            else:
                try:
                    parsed[name] = TypeAdapter(outputs[name].annotation).validate_python(value[name])
                except ValidationError as error:
                    raise AmbiguousReplyError(f"{name}: {error.errors()[0]['msg']}") from error
        is_filled = any(v.tool_calls if isinstance(v, dspy.ToolCalls) else v for v in parsed.values())
        if calls_field is None or len(parsed) == len(outputs) or not is_filled:
            return parsed
        # only an answer, or only a search: the other field is empty
        empty = {name: "" for name, field in outputs.items() if field.annotation is str}
        return {calls_field: dspy.ToolCalls(tool_calls=[]), **empty, **parsed}

    def _read_sections(
        self, signature: type[dspy.Signature], text: str, calls_field: str | None
    ) -> dict[str, Any]:
        """Read a reply whose fields stand after their markers, on lines of their own or glued to the text."""
        outputs: dict[str, Any] = signature.output_fields  # Any: pydantic's
        marker, count, filled, broken = marker_pattern([*outputs, "completed"]), 0, None, ""
        if calls_field is not None:
            text, count, broken = self._normalize_calls(signature, text, calls_field, marker)
            present = {found[1] for found in _HEADER.finditer(text)}
            filled = next((name for name in outputs if name not in present), None)
            if filled == calls_field and len(present - {"completed"}) == 1:
                text = f'[[ ## {filled} ## ]]\n{{"tool_calls": []}}\n\n{text}'
            elif filled and count:
                text = f"{text}\n\n[[ ## {filled} ## ]]\n"
        elif all(field.annotation is str for field in outputs.values()):
            text = self._separate_markers(text, marker)
        parsed = super().parse(signature, text)
        for name, value in parsed.items():
            if name == calls_field:
                if len(value.tool_calls) < count:
                    raise AmbiguousReplyError(f"some of {count} calls in `{name}` are unreadable")
                if not keeps_words(broken, value.format()):
                    raise AmbiguousReplyError(f"a repair of `{name}` would lose a part of it")
                for call in value.tool_calls:
                    call.args = replace_invalid_characters(call.args)
            elif isinstance(value, str):
                parsed[name] = self._read_value(value)
        if filled == calls_field is not None and not any(parsed[n] for n in outputs if n != filled):
            raise AmbiguousReplyError(f"the reply has neither {' nor '.join(outputs)}")
        return parsed

    def _normalize_calls(
        self, signature: type[dspy.Signature], text: str, field: str, marker: re.Pattern[str]
    ) -> tuple[str, int, str]:
        """Replace a field's text by the JSON of its calls, without prose and code fences.

        Returns:
            the reply, its other markers on lines of their own, the number of calls in the field, and the
            field's text if it is no JSON and was left for the library to repair.
        """
        own = marker_pattern([field])
        header = next((found for found in _HEADER.finditer(text) if found[1] == field), own.search(text))
        if header is None:
            return self._separate_markers(text, marker), 0, ""
        before = self._separate_markers(text[: header.end()], marker).rstrip()
        values: list[ReplyJson] = []
        skipped: list[str] = []
        start = end = header.end()
        is_broken = False
        try:
            # Only where calls begin is decoded: in a list that was cut, the first calls are whole too, and
            # taking them alone would lose the others. A marker inside a string of a call is text.
            while begin := _CALLS_BEGIN.search(text, end):
                other = marker.search(text, end)
                if other is not None and other.start() < begin.start():
                    break
                skipped.append(text[end : begin.start()])
                value, end = DECODER.raw_decode(text, begin.start())
                values.append(value)
        except json.JSONDecodeError:  # not quite JSON: the library's repair of commas and quotes is welcome
            values, end, is_broken = [], start, True
        rest = text[end:] if is_broken else self._separate_markers(text[end:], marker, is_line_begun=True)
        following = list(_HEADER.finditer(rest))
        names = [found[1] for found in following]
        is_completed = "completed" in names
        if field in (names[: names.index("completed")] if is_completed else names):  # only one would be read
            raise AmbiguousReplyError(f"the reply has `{field}` more than once")
        rest_start = following[0].start() if following else len(rest)
        section, rest = text[start:end] + rest[:rest_start], rest[rest_start:]
        if is_no_calls(section):
            values = [{"tool_calls": []}]
            self.is_repaired = True
        is_open = section.rfind("{") > section.rfind("}") if values else not _is_closed(section)
        if is_open and not (is_completed and (values or _lacks_only_brackets(section))):
            _raise_truncated(signature, text, f"the middle of `{field}`")
        if not values:
            self.is_repaired = True
            must_repair = len(_CALL_NAME.findall(section))
            return f"{before}\n{section}\n\n{rest}", must_repair, section
        if any(map(_UNREAD_CALL.match, [*skipped, section[end - start :]])):
            raise AmbiguousReplyError(f"a call in `{field}` is unreadable")
        is_list = len(values) == 1 and (isinstance(values[0], list) or "tool_calls" in values[0])
        self.has_open_end = not is_list and not is_completed
        read = read_calls(values)
        self.is_repaired |= read.is_repaired or len(section.strip()) != len(text[start:end].strip())
        # in ASCII: DSPy reads line by line, and also breaks at characters that may stand in a JSON string
        return f"{before}\n{json.dumps({'tool_calls': read.calls})}\n\n{rest}", len(read.calls), ""

    def _separate_markers(self, text: str, marker: re.Pattern[str], *, is_line_begun: bool = False) -> str:
        separated = separate_markers(text, marker, is_line_begun=is_line_begun)
        self.is_repaired |= separated != text
        return separated

    def _read_value(self, said: str) -> str:
        """Take the text of a field out of thoughts, a code fence and what stands behind the end marker."""
        value = strip_thinking(said).partition(COMPLETION_MARKER)[0].strip()
        if tagged := _TAGGED.fullmatch(value):
            value = tagged[1].strip()
        if fenced := _FENCED.fullmatch(value):
            value = fenced[1].strip()
        self.is_repaired |= value != said
        return value


def _is_closed(text: str) -> bool:
    """Tell if all brackets outside of strings are closed."""
    depth, in_string, is_escaped = 0, False, False
    for character in text:
        if in_string:
            in_string = is_escaped or character != '"'
            is_escaped = character == "\\" and not is_escaped
        elif character == '"':
            in_string = True
        elif character in "{[":
            depth += 1
        elif character in "}]":
            depth -= 1
    return depth == 0 and not in_string


def _lacks_only_brackets(text: str) -> bool:
    """Tell if JSON that is not closed ends behind a whole value: no text in it was cut."""
    quote = next((character for character in text if character in "\"'“"), '"').replace("“", "”")
    whole = rf"[^\s:,\[{{\\]{quote}|[:,\[]\s*(?:-?\d+|true|false|null|none)|\[\s*\]|\{{\s*\}}"
    return re.search(rf"(?:{whole})[\s}}\]`]*\Z", text, re.IGNORECASE) is not None


def replace_invalid_characters(value: ReplyJson) -> ReplyJson:
    """Replace NUL and half surrogate pairs, which neither a database nor a request can carry."""
    if isinstance(value, str):
        return INVALID_CHARACTERS.sub("\ufffd", value)
    if isinstance(value, list):
        return [replace_invalid_characters(element) for element in cast(list[ReplyJson], value)]
    if isinstance(value, dict):
        return {
            replace_invalid_characters(name): replace_invalid_characters(member)
            for name, member in cast(dict[str, ReplyJson], value).items()
        }
    return value


def raise_parse_error(signature: type[dspy.Signature], completion: str, message: str) -> NoReturn:
    """Refuse a reply."""
    raise AdapterParseError(
        adapter_name="StrictChatAdapter",
        signature=signature,  # pyright: ignore[reportArgumentType]  # DSPy means the class
        lm_response=completion,
        message=message,
    ) from None


def _raise_truncated(signature: type[dspy.Signature], completion: str, place: str) -> NoReturn:
    error = TruncatedReplyError(
        adapter_name="StrictChatAdapter",
        signature=signature,  # pyright: ignore[reportArgumentType]  # DSPy means the class
        lm_response=completion,
        message=f"the reply ends in {place}",
    )
    error.place = place
    raise error from None


ADAPTER = StrictChatAdapter()
"""The adapter of the format chat, for texts that are rendered or read without a call. It counts nothing."""
