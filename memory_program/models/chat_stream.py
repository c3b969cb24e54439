"""A chat completion, put together from the server-sent events of a streamed reply."""

import json
from contextlib import suppress
from typing import cast

from dspy import lm15

from memory_program.core.json_files import Json


class StreamedReply:
    """The reply so far; feed it bytes as they arrive.

    It takes what servers send: deltas of content, reasoning, refusal and tool calls, comments that only keep
    the connection alive, a last event with the usage, ``[DONE]`` or none, and errors in the middle.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.error: Json | None = None
        self.is_complete = False
        self.is_done = False
        """The stream said that nothing follows."""
        self.events = 0
        """Events that carried text: about the number of tokens."""
        self._rest = b""
        self._head: Json = {}
        self._texts: dict[str, list[str]] = {"content": [], "reasoning_content": [], "refusal": []}
        self._tool_calls: list[Json] = []
        self._places: dict[object, int] = {}
        self._finish_reason: object = None
        self._usage: Json | None = None
        self._unchecked: list[str] = []
        self._written = ""

    def feed(self, received: bytes) -> None:
        """Take the next bytes.

        Raises:
            lm15.ServerError: an event is not JSON, or no part of a chat completion.
        """
        *lines, self._rest = (self._rest + received).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue  # a comment, the name of an event, or the empty line between two events
            event = line[5:].strip()
            if event == b"[DONE]":
                self.is_complete = self.is_done = True
            if event in (b"", b"[DONE]"):
                continue
            begin = event[:200].decode(errors="replace")
            try:
                chunk = json.loads(event)
            except (ValueError, RecursionError) as error:
                raise lm15.ServerError(
                    f"an event of the reply is not JSON; it begins with {begin!r}"
                ) from error
            if not isinstance(chunk, dict):
                continue
            chunk, before = cast(Json, chunk), len(self._unchecked)
            try:
                self._head = self._head or {name: chunk.get(name) for name in ("id", "created", "model")}
                self._usage = chunk.get("usage") or self._usage
                self.error = self.error or in_band_error(chunk)
                choice: Json = next(iter(chunk.get("choices") or []), None) or {}
                if choice.get("finish_reason"):
                    self._finish_reason, self.is_complete = choice["finish_reason"], True
                delta: Json = choice.get("delta") or choice.get("message") or {}
                self._take_text("content", delta.get("content"))
                self._take_text("reasoning_content", delta.get("reasoning_content") or delta.get("reasoning"))
                self._take_text("refusal", delta.get("refusal"))
                for call in delta.get("tool_calls") or []:
                    self._take_call(call)
            except (TypeError, AttributeError) as error:
                raise lm15.ServerError(
                    f"an event of the reply is no part of a chat completion; it begins with {begin!r}"
                ) from error
            self.events += len(self._unchecked) > before

    def finish(self) -> None:
        """Take the last line, which some servers do not end. Half an event is left: the reply broke off."""
        with suppress(lm15.ServerError):
            self.feed(b"\n")

    @property
    def new_chars(self) -> int:
        """Characters that arrived since ``written`` was last asked for."""
        return sum(map(len, self._unchecked))

    def written(self, last_chars: int) -> str:
        """Return the end of what the model wrote so far: text, thoughts and arguments as they came."""
        self._written = (self._written + "".join(self._unchecked))[-last_chars:]
        self._unchecked.clear()
        return self._written

    def body(self, *, is_stopped: bool = False) -> Json:
        """Return the reply as a server sends it whole; ``is_stopped``: it was not read to its end."""
        message: Json = {"role": "assistant", "content": None}
        message |= {name: "".join(texts) for name, texts in self._texts.items() if texts}
        if self._tool_calls:
            message["tool_calls"] = self._tool_calls
        reason = "length" if is_stopped else self._finish_reason
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": self._usage,
        }

    def _take_text(self, name: str, text: object) -> None:
        if isinstance(text, list):  # parts, as Mistral sends them
            parts = cast(list[Json | str], text)
            of_text = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
            text = "".join(str(part.get("text") or "") for part in of_text if part.get("type") == "text")
        if isinstance(text, str) and text:
            self._texts[name].append(text)
            self._unchecked.append(text)

    def _take_call(self, call: Json) -> None:
        """Add a piece of a tool call; without an index it belongs to its id, or to the last call.

        Some servers give each call the index 0, but an id of its own: another id begins another call. Some
        give no ids: a function's name after whole arguments begins another call.
        """
        identity, key, said = call.get("id"), call.get("index"), call.get("function") or {}
        key = identity if key is None else key
        place = self._places.get(key) if key is not None else len(self._tool_calls) - 1
        begun: Json = self._tool_calls[place] if place is not None and place >= 0 else {}
        begins_another = not begun
        if begun and identity and begun["id"]:
            begins_another = identity != begun["id"]
        elif begun and said.get("name") and begun["function"]["name"]:
            with suppress(ValueError, RecursionError):
                begins_another = isinstance(json.loads(begun["function"]["arguments"]), dict)
        if place is None or begins_another:
            place = len(self._tool_calls)
            function = {"name": "", "arguments": ""}
            self._tool_calls.append({"id": identity, "type": "function", "function": function})
        if key is not None:
            self._places[key] = place
        known = self._tool_calls[place]
        known["id"] = known["id"] or identity
        known["function"]["name"] = known["function"]["name"] or said.get("name") or ""
        arguments = said.get("arguments") or ""
        arguments = arguments if isinstance(arguments, str) else json.dumps(arguments)
        known["function"]["arguments"] += arguments
        if arguments:
            self._unchecked.append(arguments)


def in_band_error(body: Json) -> Json | None:
    """Return the error that a reply with status 200 carries; None if it carries none.

    Servers put it beside the choices, in place of the whole reply (vLLM's ``object: error``), or in the
    choice (OpenRouter).
    """
    choice = first_choice(body)
    error = body.get("error") or choice.get("error")
    if not error and body.get("object") == "error":
        error = body
    if not error and finish_reason(choice) in ("error", "network_error", "insufficient_system_resource"):
        error = "the provider behind the server failed"
    if not error:
        return None
    return cast(Json, error) if isinstance(error, dict) else {"message": str(error)}


def first_choice(body: Json) -> Json:
    """Return the choice of a reply, with what LiteLLM moved out of it; empty without one."""
    choice: Json = next(iter(body.get("choices") or []), None) or {}
    return choice | (choice.get("provider_specific_fields") or {})


def finish_reason(choice: Json) -> str:
    """Return the reason why a reply ended; LiteLLM keeps the provider's own beside the one it maps it to."""
    reasons = (choice.get("native_finish_reason"), choice.get("finish_reason"))
    return next((str(reason).lower() for reason in reasons if reason), "")
