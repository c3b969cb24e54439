"""The reply format ``tools``: the provider's native function calling, through DSPy.

DSPy sends the tools beside the prompt and reads the calls of the reply. For a model that declares no function
calling it writes the tools into the prompt instead.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

import dspy

from locomo.thinking import strip_thinking
from memory_program.agents.chat_adapter import (
    StrictChatAdapter,
    raise_parse_error,
    replace_invalid_characters,
)
from memory_program.agents.reply_repair import is_no_calls, read_calls

_TAGS = re.compile(r"</?tool_calls?>")
_UNREADABLE = frozenset({"partial_json", "value"})
"""The names under which DSPy hands on arguments that are no JSON object; no tool has such an argument."""
_HAS_JSON = re.compile(r"[{\[]")


class NativeToolsAdapter(StrictChatAdapter):
    """Offers tools natively; a reply is calls, or text that holds none."""

    def __init__(self, tools: Sequence[dspy.Tool]) -> None:
        """Make the adapter of one call, which offers ``tools``."""
        super().__init__()
        self.use_native_function_calling = True
        self._tools = list(tools)

    def __call__(
        self,
        lm: dspy.BaseLM,
        lm_kwargs: dict[str, Any],
        signature: type[dspy.Signature],
        demos: list[dict[str, Any]],
        inputs: dict[str, Any],
    ) -> list[dict[str, Any]]:
        """Call the model with the tools, and fill in what a reply of only calls or only text lacks.

        Raises:
            AdapterParseError: the arguments of a call are no JSON object, so none of the calls is made.
        """
        offered = signature.append("tools", dspy.InputField(desc="the tools"), list[dspy.Tool])
        values = super().__call__(lm, lm_kwargs, offered, demos, {**inputs, "tools": self._tools})
        outputs: dict[str, Any] = signature.output_fields  # Any: pydantic's
        for value in values:
            made: Any = value.get("tool_calls")  # Any: of DSPy; None if there are none
            for call in made.tool_calls if isinstance(made, dspy.ToolCalls) else ():
                if _UNREADABLE.issuperset(call.args) and call.args:
                    raise_parse_error(
                        signature, str(call.args), f"the arguments of {call.name} are no JSON object"
                    )
                call.args = replace_invalid_characters(call.args)
            for name, field in outputs.items():
                if value.get(name) is None:
                    value[name] = dspy.ToolCalls(tool_calls=[]) if field.annotation is dspy.ToolCalls else ""
        return values

    def format_system_message(self, signature: type[dspy.Signature]) -> str:
        """Leave out the structure of a reply that has no fields besides its calls."""
        if signature.output_fields:
            return super().format_system_message(signature)
        inputs: dict[str, Any] = signature.input_fields  # Any: pydantic's
        given = [f"- {name}: {field.json_schema_extra['desc']}" for name, field in inputs.items()]
        return "\n".join([signature.instructions.strip(), "", "You are given:", *given])

    def user_message_output_requirements(self, signature: type[dspy.Signature]) -> str:
        """Ask for the calls in one reply."""
        if signature.output_fields:
            return f"Call a tool. Or: {super().user_message_output_requirements(signature)}"
        return "Make all calls now, in this one reply. If there is nothing to call, reply with the word: none"

    def format_demos(
        self, signature: type[dspy.Signature], demos: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Render examples with their calls as the provider writes calls."""
        if signature.output_fields:
            return super().format_demos(signature, demos)
        messages: list[dict[str, Any]] = []
        for number, demo in enumerate(demos):
            written = demo.get("tool_calls") or {"tool_calls": []}  # of an optimiser's trace no JSON yet
            read = read_calls([written.format() if isinstance(written, dspy.ToolCalls) else written])
            calls = list[dict[str, Any]]()
            for place, call in enumerate(read.calls):
                arguments = json.dumps(call["args"], ensure_ascii=False)
                function = {"name": call["name"], "arguments": arguments}
                calls.append({"id": f"example-{number}-{place}", "type": "function", "function": function})
            results = [{"role": "tool", "tool_call_id": call["id"], "content": "done"} for call in calls]
            reply = {"content": None, "tool_calls": calls} if calls else {"content": "none"}
            user = self.format_user_message_content(signature, demo)
            messages += [{"role": "user", "content": user}, {"role": "assistant", **reply}, *results]
        return messages

    def parse(self, signature: type[dspy.Signature], completion: str) -> dict[str, Any]:
        """Read the text of a reply without native calls; prose that holds no call says that there is none.

        Raises:
            AdapterParseError: an answer or a call in the text cannot be read.
        """
        if signature.output_fields:
            return super().parse(signature, completion)
        text = strip_thinking(_TAGS.sub("\n", completion)).strip()
        names = [tool.name for tool in self._tools if tool.name]
        if text and not _HAS_JSON.search(text) and not any(name in text for name in names):
            self.is_repaired = not is_no_calls(text)
            return {}
        # a server without a parser for the calls of its model leaves them in the text
        return super().parse(signature.append("tool_calls", dspy.OutputField(), dspy.ToolCalls), text)
