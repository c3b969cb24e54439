"""Prompts rendered as DSPy's ChatAdapter does, without doing twice what comes out the same.

The library describes a signature's fields anew for every call, and makes a serializer for every value: a
third of the processor time that a call of the program took. What is rendered is the same, letter by letter;
golden files pin it.
"""

from functools import lru_cache
from typing import Any

import dspy

_PROMPT_CACHE_SIZE = 256  # optimisers try many


class PromptCachingAdapter(dspy.ChatAdapter):
    """ChatAdapter that renders the fixed part of a prompt once, and text as it stands."""

    def format_system_message(self, signature: type[dspy.Signature]) -> str:
        """Give what every call of a signature begins with."""
        return _cached_system_message(type(self), _SignatureKey(self, signature))

    def format_user_message_content(
        self,
        signature: type[dspy.Signature],
        inputs: dict[str, Any],
        prefix: str = "",
        suffix: str = "",
        main_request: bool = False,
    ) -> str:
        """Render the inputs; whatever is not text is left to the library."""
        shown = {name: inputs[name] for name in signature.input_fields if name in inputs}
        if not all(type(value) is str for value in shown.values()):
            return super().format_user_message_content(signature, inputs, prefix, suffix, main_request)
        parts = [prefix, *(f"[[ ## {name} ## ]]\n{value}" for name, value in shown.items())]
        if main_request:
            parts.append(self.user_message_output_requirements(signature))
        return "\n\n".join([*parts, suffix]).strip()

    def render_system_message(self, signature: type[dspy.Signature]) -> str:
        """Render what every call of a signature begins with, as the library does."""
        return super().format_system_message(signature)


class _SignatureKey:
    """A signature, equal to another one if it renders alike: DSPy changes signatures in place."""

    def __init__(self, adapter: PromptCachingAdapter, signature: type[dspy.Signature]) -> None:
        self.adapter, self.signature = adapter, signature
        fields = (
            (name, field.annotation, field.default, repr(field.json_schema_extra), field.description)
            for name, field in signature.fields.items()
        )
        self.key = (signature.instructions, repr([*fields]))

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SignatureKey) and self.key == other.key


@lru_cache(maxsize=_PROMPT_CACHE_SIZE)
def _cached_system_message(adapter_type: type[PromptCachingAdapter], rendered: _SignatureKey) -> str:
    return rendered.adapter.render_system_message(rendered.signature)
