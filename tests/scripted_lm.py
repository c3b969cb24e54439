"""A language model that plays a script: the one fake that the tests of DSPy modules share.

It sits at DSPy's own seam (an engine behind ``dspy.LM``), so adapters, parsing and error mapping are real.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import dspy
from dspy.lm15 import Config, Message, Request, Response, TextPart, Usage


class ScriptError(AssertionError):
    """The program asked for more replies than the script has, or for fewer."""


@dataclass(frozen=True, slots=True)
class AskedPrompt:
    """One request as the model saw it."""

    system: str
    user: str

    @property
    def text(self) -> str:
        """System and user text together, for ``in`` checks."""
        return f"{self.system}\n\n{self.user}"


@dataclass(frozen=True, slots=True)
class Truncated:
    """A reply that the token limit cut short (``finish_reason == "length"``)."""

    text: str


Reply = str | Truncated | Exception
Replies = Sequence[Reply] | Mapping[str, Sequence[Reply]]


class ScriptedEngine:
    """Answer each request with the next reply of the script, and record what was asked.

    A mapping holds one script per marker: a request takes the next reply of the only marker that occurs in
    its prompt, which keeps calls that run in parallel deterministic.
    """

    def __init__(self, replies: Replies) -> None:
        scripts = replies if isinstance(replies, Mapping) else {"": replies}
        self._scripts = {marker: list(script) for marker, script in scripts.items()}
        self._lock = threading.Lock()
        self.requests: list[AskedPrompt] = []
        self.configs: list[Config] = []
        self.refused: list[str] = []

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """A copied program keeps playing the same script."""
        return self

    def complete(self, request: Request) -> Response:
        prompt = AskedPrompt(
            request.system if isinstance(request.system, str) else "",
            "\n\n".join(message.text or "" for message in request.messages),
        )
        with self._lock:
            self.requests.append(prompt)
            self.configs.append(request.config)
            reply = self._next_reply(prompt)
        if isinstance(reply, Exception):
            raise reply
        text, finish = (reply.text, "length") if isinstance(reply, Truncated) else (reply, "stop")
        usage = Usage(input_tokens=len(prompt.text.split()), output_tokens=len(text.split()))
        return Response(
            id=None,
            model=request.model,
            message=Message.assistant([TextPart(text)]),
            finish_reason=finish,
            usage=usage,
        )

    def _next_reply(self, prompt: AskedPrompt) -> Reply:
        markers = [marker for marker in self._scripts if marker in prompt.text]
        if len(markers) != 1:
            self._refuse(
                f"{len(markers)} of the markers {list(self._scripts)} fit the prompt {prompt.text!r}"
            )
        script = self._scripts[markers[0]]
        if not script:
            self._refuse(f"no reply is left for request {len(self.requests)}: {prompt.user!r}")
        return script.pop(0)

    def _refuse(self, why: str) -> None:
        self.refused.append(why)  # the program may swallow the exception: assert_exhausted tells it again
        raise ScriptError(why)

    def assert_exhausted(self) -> None:
        if self.refused:
            raise ScriptError("the script could not answer: " + "; ".join(self.refused))
        left = {marker: script for marker, script in self._scripts.items() if script}
        if left:
            raise ScriptError(f"replies left over after {len(self.requests)} requests: {left!r}")


class ScriptedLM(dspy.LM):
    """A ``dspy.LM`` whose replies are written in the test.

    Use it as a context manager: leaving the block without an exception checks that calls equalled replies.

    Args:
        replies: What to answer, in order: a string, ``Truncated``, or an exception to raise (``dspy.lm15``
            errors arrive as ``dspy.LMError``). Or a mapping of marker to such a list.
        model: The name that usage and records show.
        **kwargs: Handed to ``dspy.LM``, for example ``temperature``.
    """

    def __init__(self, replies: Replies, *, model: str = "test/scripted", **kwargs: object) -> None:
        self.script = ScriptedEngine(replies)
        super().__init__(model, **{"engine": self.script, "cache": False, "num_retries": 0, **kwargs})

    @property
    def requests(self) -> list[AskedPrompt]:
        """What was asked so far, in order of arrival."""
        return self.script.requests

    def assert_exhausted(self) -> None:
        """Raise ``ScriptError`` unless every reply was asked for, and nothing beyond."""
        self.script.assert_exhausted()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.assert_exhausted()


def fields(**values: str) -> str:
    """Write a reply in the chat format: ``fields(answer="7 May 2023")``."""
    sections = [f"[[ ## {name} ## ]]\n{value}" for name, value in values.items()]
    return "\n\n".join([*sections, "[[ ## completed ## ]]"])
