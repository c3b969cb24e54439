"""Settings of a model's replies that all agents share: the format, the limit of tokens, and thinking."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

THINKING_TOKENS = 8192
"""Room for the thoughts of a reasoning model, beside the reply itself."""

_THINKS = re.compile(
    r"qwen3(?!.*(instruct|coder))|qwq|deepseek-r1|-r1-|gpt-oss|magistral|glm-(4\.[5-9]|[5-9])|smollm3|"
    r"minimax-m\d|think|reason",
    re.IGNORECASE,
)
_HOSTED_THINKS = re.compile(r"gemini-(?!1|2\.0)|grok-(3-mini|[4-9])", re.IGNORECASE)
_ONLY_ANSWERS = re.compile(r"instruct|gpt-4|gpt-3", re.IGNORECASE)


class ReplyFormat(StrEnum):
    """The form of a reply: DSPy's chat text, one JSON object, or the provider's own tool calls."""

    CHAT = "chat"
    JSON = "json"
    TOOLS = "tools"


@dataclass(frozen=True, slots=True)
class ReplySettings:
    """The form and the limit of replies; ``max_tokens`` overrides the limit of each agent."""

    format: ReplyFormat = ReplyFormat.CHAT
    max_tokens: int | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])  # Any: JSON values


def most_reply_tokens(model: str, replies: ReplySettings) -> int:
    """Return the limit of a model that has several tasks; each call has a lower one that fits its task."""
    return replies.max_tokens or 4096 + thinking_tokens(model, replies.chat_template_kwargs)


def thinking_tokens(model: str, chat_template_kwargs: Mapping[str, object]) -> int:
    """Return the tokens that a model may think, beside its reply; 0 if it does not think.

    Models that think unasked are known by their names. ``enable_thinking: false`` among the arguments of the
    chat template switches off the thoughts of open ones (Qwen3); those of Gemini and Grok stay on.

    Example:
        >>> thinking_tokens("openai/Qwen/Qwen3-8B", {}), thinking_tokens("openai/qwen2.5-7b", {})
        (8192, 0)
        >>> thinking_tokens("openai/Qwen/Qwen3-8B", {"enable_thinking": False})
        0
    """
    is_off = chat_template_kwargs.get("enable_thinking") is False
    thinks = _HOSTED_THINKS.search(model) or (not is_off and _THINKS.search(model))
    return THINKING_TOKENS if thinks else 0


def may_think(model: str, chat_template_kwargs: Mapping[str, object]) -> bool:
    """Tell if a model may write thoughts into its reply: all but those that are known to write none.

    Example:
        >>> may_think("openai/my-model", {}), may_think("openai/Qwen/Qwen2.5-7B-Instruct", {})
        (True, False)
    """
    is_plain = chat_template_kwargs.get("enable_thinking") is False or _ONLY_ANSWERS.search(model)
    return thinking_tokens(model, chat_template_kwargs) > 0 or not is_plain
