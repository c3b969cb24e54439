"""A DSPy engine that samples the policy through the chat completions of an Arbor server."""

from typing import Any

from dspy import lm15

from memory_program.core.errors import ModelError
from memory_program.core.json_files import Json
from memory_program.rl.backends.arbor.arbor_client import ArborClient
from memory_program.rl.rollouts import chat_messages

OPENAI_PREFIX = "openai/"
"""DSPy's prefix for models with OpenAI's API."""

_SAMPLING = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""Unmodified sampling. Otherwise vLLM uses the model's recommended settings (such as top_p 0.8), and the
samples would be off-policy."""

_TIMEOUT_S = 600.0


class ArborEngine:
    """Samples from the current weights of a job, without retries."""

    def __init__(self, client: ArborClient) -> None:
        """Take the client of the server."""
        self.client = client

    @property
    def api_base(self) -> str:
        """The server's address."""
        return self.client.url

    def __deepcopy__(self, memo: object) -> "ArborEngine":
        return self

    def complete(self, request: lm15.Request) -> lm15.Response:
        """Sample a reply; raise ``lm15.ServerError`` if the server sends none."""
        config = request.config
        body: Json = {
            "model": request.model.removeprefix(OPENAI_PREFIX),
            "messages": chat_messages(request),
            **_SAMPLING,
        }
        told = {"temperature": config.temperature, "max_tokens": config.max_tokens, "seed": config.seed}
        body |= {name: value for name, value in told.items() if value is not None}
        try:
            answer = self.client.chat(body, _TIMEOUT_S)
        except ModelError as error:
            raise lm15.ServerError(str(error)) from error
        if not answer or not answer.get("choices"):
            raise lm15.ServerError(
                "vLLM gave no reply: the prompt may be longer than --max-prompt-tokens, or the server's "
                "inference.log says why"
            )
        choice: dict[str, Any] = answer["choices"][0]  # Any: JSON
        usage: dict[str, Any] = answer.get("usage") or {}  # Any: JSON
        return lm15.Response(
            id=answer.get("id"),
            model=request.model,
            message=lm15.Message.assistant([lm15.TextPart(choice["message"].get("content") or "")]),
            finish_reason="length" if choice.get("finish_reason") == "length" else "stop",
            usage=lm15.Usage(
                input_tokens=usage.get("prompt_tokens"),
                output_tokens=usage.get("completion_tokens"),
                total_tokens=usage.get("total_tokens"),
            ),
        )
