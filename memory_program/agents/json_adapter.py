"""The reply format ``json``: one JSON object of the output fields, held to a schema by the server.

The prompt is short: no schema is printed, and the example of calls holds placeholders. A weak model copies a
plausible example word for word, so nothing in it could be taken for a fact, and the checks refuse it
(``grounding``). A reply of one answer has no example: SmolLM2-135M copied it in 11 of 24 answers.
"""

import json
import re
from typing import Any

import dspy

from memory_program.agents.chat_adapter import StrictChatAdapter, raise_parse_error
from memory_program.agents.grounding import PLACEHOLDERS
from memory_program.agents.tool_schema import tool_arguments

_Field = Any  # Any: pydantic's
_Json = Any  # Any: JSON, or what DSPy makes of it

_TOOL_LINE = re.compile(r"^- (\w+)\(", re.MULTILINE)


class JsonReplyAdapter(StrictChatAdapter):
    """Renders short prompts for replies of one JSON object, and reads them as strictly as chat."""

    has_field_markers = False

    def format_system_message(self, signature: type[dspy.Signature]) -> str:
        """Write the instruction, the input fields, the output fields and one example."""
        inputs: dict[str, Any] = signature.input_fields  # Any: pydantic's
        outputs: dict[str, Any] = signature.output_fields
        lines = [self.format_task_description(signature), "", "You are given:"]
        lines += [f"- {name}: {_description(field)}".removesuffix(": ") for name, field in inputs.items()]
        lines += ["", "Reply with one JSON object on one line, and nothing else. Its fields:"]
        lines += [f"- {name}: {_description(field)}".removesuffix(": ") for name, field in outputs.items()]
        if [field.annotation for field in outputs.values()] == [str]:
            return "\n".join(lines)
        example: dict[str, Any] = {}
        for name, field in outputs.items():
            if field.annotation is dspy.ToolCalls:
                tools = _TOOL_LINE.findall(_description(field))
                tool = next((tool for tool in tools if tool == "manage_memory"), tools[0])
                arguments: dict[str, Any] = {}  # those that a call needs, and the time of an event
                for argument, parameter in tool_arguments(tool).items():
                    if parameter.default is not parameter.empty and argument not in ("happened_at", "text"):
                        continue
                    choices = getattr(parameter.annotation, "__args__", ())
                    if parameter.annotation == list[str]:
                        arguments[argument] = [PLACEHOLDERS["memory_id"]] * 2
                    else:
                        arguments[argument] = choices[0] if choices else PLACEHOLDERS[argument]
                example[name] = [{"name": tool, "args": arguments}]
            elif field.annotation is str:
                example[name] = ""
            else:
                example[name] = [
                    {
                        **{k: PLACEHOLDERS[k] for k in ("question", "answer")},
                        "evidence": [PLACEHOLDERS["turn_id"]],
                    }
                ]
        lines += ["The form of a reply, without its content:", _compact(example)]
        # A reader that may search. Alone, a weak model takes the empty list for the answer.
        if len(outputs) > 1:
            without = {
                name: PLACEHOLDERS["answer"] if f.annotation is str else [] for name, f in outputs.items()
            }
            lines.append(f"Without calls: {_compact(without)}")
        return "\n".join(lines)

    def format_task_description(self, signature: type[dspy.Signature]) -> str:
        """Write the instruction as it stands in the signature."""
        return signature.instructions.strip()

    def user_message_output_requirements(self, signature: type[dspy.Signature]) -> str:
        """Remind of the format after the inputs."""
        names = ", ".join(f'"{name}"' for name in signature.output_fields)
        if list(signature.output_fields) == ["tool_calls"]:
            return (
                f"Go through the material line by line. Reply with the JSON object of {names} only: one call "
                "for each fact."
            )
        return f"Reply with the JSON object of {names} only."

    def format_assistant_message_content(
        self,
        signature: type[dspy.Signature],
        outputs: dict[str, Any],
        missing_field_message: str | None = None,
    ) -> str:
        """Render a reply as a model should write it."""
        fields: dict[str, _Json] = {}
        for name in signature.output_fields:
            value = outputs.get(name, missing_field_message)
            if isinstance(value, list):
                value = [one.model_dump() if hasattr(one, "model_dump") else one for one in value]
            calls = value.format() if isinstance(value, dspy.ToolCalls) else value
            fields[name] = calls["tool_calls"] if isinstance(calls, dict) and "tool_calls" in calls else value
        return _compact(fields)

    def parse(self, signature: type[dspy.Signature], completion: str) -> dict[str, Any]:
        """Read a reply into the output fields.

        Raises:
            AdapterParseError: as in chat; or the reply is the example of the prompt.
        """
        parsed = super().parse(signature, completion)
        if PLACEHOLDERS["answer"] in (value for value in parsed.values() if isinstance(value, str)):
            raise_parse_error(signature, completion, "the answer is the example of the prompt")
        return parsed


def _description(field: _Field) -> str:
    said: str = field.json_schema_extra["desc"]
    return "" if said.startswith("${") else said


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
