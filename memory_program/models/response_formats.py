"""The response formats that each endpoint takes: found out by refusals, and remembered for the process.

A server may take a schema, a schema without limits of length, any JSON object, or none of these. Each refusal
of a request (400) costs one call, once per endpoint.
"""

import json
import logging
import re
import threading
from collections.abc import Callable
from enum import IntEnum
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import dspy
from dspy.lm15 import Config, DataPart, Message, Request
from dspy.utils.exceptions import (
    AdapterParseError,
    ContextWindowExceededError,
    LMError,
    LMInvalidRequestError,
    LMUnsupportedFeatureError,
    LMUnsupportedModelError,
)

from memory_program.core.errors import ModelError
from memory_program.core.json_files import Json
from memory_program.models.model_names import OBSERVATIONS, is_bundled, is_local
from memory_program.models.reply_settings import ReplyFormat, ReplySettings, thinking_tokens

JsonSchema = Json
ReplyT = TypeVar("ReplyT")

_LIMITS = ("minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum")
_ABOUT_FORMAT = re.compile(
    r"response.?format|json|schema|structured|guided|grammar|strict|format|m(?:in|ax)(?:Length|Items)",
    re.IGNORECASE,
)
_PROBE_TOKENS = 64
_logger = logging.getLogger(__name__)


class SchemaSupport(IntEnum):
    """The response formats of an endpoint, from the most to the least."""

    SCHEMA = 0
    SCHEMA_WITHOUT_LIMITS = 1
    JSON_OBJECT = 2
    NOTHING = 3


_NAMES = {
    SchemaSupport.SCHEMA_WITHOUT_LIMITS: "a JSON schema without limits of length",
    SchemaSupport.JSON_OBJECT: "JSON, but no schema",
    SchemaSupport.NOTHING: "no response format: replies are only asked to be JSON",
}


class ResponseFormats:
    """The support of each endpoint, by its engine, which copies of a model share."""

    def __init__(self) -> None:
        """Begin without knowledge."""
        self._support: WeakKeyDictionary[object, SchemaSupport] = WeakKeyDictionary()
        self._holds_schema: WeakKeyDictionary[object, bool] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def support(self, lm: dspy.LM) -> SchemaSupport | None:
        """Return what an endpoint was found to take; None if nothing was sent yet."""
        return self._support.get(_endpoint(lm))

    def call(self, lm: dspy.LM, schema: JsonSchema, send: Callable[[dict[str, Any]], ReplyT]) -> ReplyT:
        """Send a request with as much of its schema as the endpoint takes.

        Args:
            lm: the model.
            schema: the schema of the reply.
            send: makes the call, given the keyword arguments of the format.

        Raises:
            LMError: the call failed, and not for its format.
        """
        known = self.support(lm)
        first_error: LMError | None = None
        for support in list(SchemaSupport)[known or 0 :]:
            sent = schema if support is SchemaSupport.SCHEMA else _without_limits(schema)
            format_: JsonSchema = {"type": "json_object"}
            if support < SchemaSupport.JSON_OBJECT:  # in the form that LiteLLM and DSPy take
                named = {"name": "reply", "schema": sent, "strict": True}
                format_ = {"type": "json_schema", "json_schema": named}
            try:
                reply = send({} if support is SchemaSupport.NOTHING else {"response_format": format_})
            except LMError as error:
                is_refusal = isinstance(error, LMInvalidRequestError | LMUnsupportedFeatureError)
                is_other = isinstance(error, ContextWindowExceededError | LMUnsupportedModelError)
                # an endpoint that took the format before says so
                may_be_about_format = _ABOUT_FORMAT.search(str(error)) or (
                    known is None and not re.search(r"context|too long|token|temperature", str(error))
                )
                if is_other or not (is_refusal and may_be_about_format):
                    raise first_error or error from None
                first_error = first_error or error
                continue
            except AdapterParseError:  # the reply came, and could not be read
                self._remember(lm, support)
                raise
            self._remember(lm, support)
            return reply
        assert first_error is not None
        raise first_error

    def takes_schema(self, lm: dspy.LM, replies: ReplySettings) -> bool:
        """Tell by one small call if an endpoint holds replies to a schema; the answer is remembered.

        Raises:
            LMError: the endpoint does not answer.
        """
        known = self._holds_schema.get(_endpoint(lm))
        if known is not None:
            return known
        schema: JsonSchema = {
            "type": "object",
            "properties": {"ready": {"type": "string", "enum": ["yes"]}},
            "required": ["ready"],
            "additionalProperties": False,
        }
        room = _PROBE_TOKENS + thinking_tokens(lm.model, replies.chat_template_kwargs)
        limit = None if "max_completion_tokens" in lm.kwargs else room
        texts = list[str]()

        def send(keywords: dict[str, Any]) -> None:
            format_ = keywords.get("response_format")
            if format_ is not None and "json_schema" in format_:
                format_ = {"type": "json_schema", **format_["json_schema"]}
            asked = (Message.user("Are you ready?"),)
            config = Config(max_tokens=limit, response_format=format_)
            response = lm(Request(model=lm.model, messages=asked, config=config))
            data = response.message.first(DataPart)  # an answer of one choice is parsed already
            texts.append(response.text or "" if data is None else json.dumps(data.value))

        self.call(lm, schema, send)
        try:
            is_held = json.loads(texts[-1]) == {"ready": "yes"}  # nobody asked for this word
        except ValueError:
            is_held = False
        with self._lock:
            self._holds_schema[_endpoint(lm)] = is_held
        return is_held

    def default_format(
        self, model: str, make_model: Callable[[], dspy.LM], replies: ReplySettings
    ) -> ReplyFormat:
        """Return the format of a model without a saved program: JSON if its replies are held to a schema.

        Args:
            model: its name. A model in this process is not made for this: it takes a grammar, unless it is an
                embedded one, which speaks chat. LoCoMo's own notes fit any format.
            make_model: makes the model, to ask its endpoint.
            replies: the settings of replies.

        Raises:
            ModelError: the endpoint does not answer.
        """
        if is_local(model) or model == OBSERVATIONS:
            return ReplyFormat.CHAT if is_bundled(model) else ReplyFormat.JSON
        try:
            return ReplyFormat.JSON if self.takes_schema(make_model(), replies) else ReplyFormat.CHAT
        except LMError as error:
            raise ModelError(
                f"{model!r} does not say which replies it can give: {error}; choose with --reply-format"
            ) from error

    def _remember(self, lm: dspy.LM, support: SchemaSupport) -> None:
        with self._lock:
            is_new = self._support.get(_endpoint(lm)) != support
            self._support[_endpoint(lm)] = support
        if is_new and support in _NAMES:
            _logger.warning("%s takes %s", lm.model, _NAMES[support])


RESPONSE_FORMATS = ResponseFormats()
"""What the endpoints of this process take."""


def _endpoint(lm: dspy.LM) -> object:
    return lm if isinstance(lm.engine, str) else getattr(lm.engine, "endpoint", lm.engine)


def _without_limits(value: Any) -> Any:  # noqa: ANN401  # JSON
    if isinstance(value, list):
        return [_without_limits(element) for element in value]
    if isinstance(value, dict):
        return {key: _without_limits(member) for key, member in value.items() if key not in _LIMITS}
    return value
