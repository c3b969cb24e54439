"""The program's prompts as text: rendered as the program does, and taken apart again."""

import re
from collections.abc import Mapping
from functools import cache

import dspy
from dspy.lm15 import Message, Request, Response, TextPart, Usage

from locomo.prompt_markers import escape_prompt_markers
from locomo.types import Session
from memory_program.agents.chat_adapter import ADAPTER
from memory_program.agents.json_adapter import JsonReplyAdapter
from memory_program.agents.model_prompts import read_model_prompts, saved_signature
from memory_program.agents.signatures import (
    SPECIALISTS,
    AnswerOrSearch,
    AnswerQuestion,
    Consolidate,
    WriteAll,
)
from memory_program.agents.writer import format_session_date
from memory_program.bank.budget import count_tokens
from memory_program.core.errors import OracleError
from memory_program.models.model_names import POCKET

_FIELD = re.compile(r"^\[\[ ## (\w+) ## \]\]\n", re.MULTILINE)
_JSON = JsonReplyAdapter()
_JSON_FIELDS = "\n\nYou are given:\n"
_FORMAT_REMINDER = re.compile(
    r"\n\n(?:Respond with|Reply with the JSON|Go through the material line by line).*"
)
_STORED = re.compile(r"(?:\[\d{4}-\d\d-\d\d\] )?(?P<text>.*) \[(?P<id>m\d+)\]")


def prompt_structure(system: str) -> str:
    """Give the part of a system prompt that says how it is laid out: all but the instruction."""
    if _JSON_FIELDS in system:
        return system.rpartition(_JSON_FIELDS)[2]
    return system.partition("\nIn adhering to this structure")[0]


def render_prompt(signature: type[dspy.Signature], **inputs: object) -> tuple[str, str]:
    """Render a prompt as the program does: the system's message, and the user's."""
    system, user = ADAPTER.format(signature, demos=[], inputs=inputs)
    return str(system["content"]), str(user["content"])


def known_response(request: Request, text: str) -> Response:
    """Make the response of an expert that knows the reply: a model that needs no weights."""
    prompt = "".join(extract_prompt(request))
    usage = Usage(input_tokens=count_tokens(prompt), output_tokens=count_tokens(text))
    message = Message.assistant([TextPart(text)])
    return Response(id=None, model=request.model, message=message, finish_reason="stop", usage=usage)


def find_signature(system: str) -> type[dspy.Signature]:
    """Find the signature that a system prompt was rendered from.

    Raises:
        OracleError: it is none of the program's.
    """
    signature = _signature_by_structure().get(prompt_structure(system))
    if signature is None:
        raise OracleError(f"not a prompt that the oracle can answer: {system!r:.200}")
    return signature


def parse_stored_memories(fields: Mapping[str, str]) -> dict[str, str]:
    """List what a writer is shown of the bank: the texts of memories, without their dates, by id."""
    lines = [_STORED.fullmatch(line) for line in fields.get("related_memories", "").splitlines()]
    return {match["id"]: match["text"] for match in lines if match}


@cache
def _signature_by_structure() -> dict[str, type[dspy.Signature]]:
    """Map the structure of a prompt to its signature, for the shipped prompts and for those of pocket."""
    shipped = {
        **{f"writer.{kind}": signature for kind, signature in SPECIALISTS.items()},
        "writer.generalist": WriteAll,
        "writer.consolidate": Consolidate,
        "reader.answer": AnswerQuestion,
        "reader.answer_or_search": AnswerOrSearch,
    }
    saved = read_model_prompts(POCKET)
    prompts = [(signature, signature) for signature in shipped.values()]
    prompts += [(saved_signature(shipped[name], saved[name], POCKET), shipped[name]) for name in saved]
    return {
        prompt_structure(render_prompt(prompt, **dict.fromkeys(prompt.input_fields, ""))[0]): signature
        for prompt, signature in prompts
    } | {
        prompt_structure(_JSON.format_system_message(signature)): signature for signature in shipped.values()
    }


def parse_input_fields(user: str) -> dict[str, str]:
    """Take a user's message apart into the input fields that it was rendered from."""
    *_, reminder = _FORMAT_REMINDER.finditer(user)
    parts = _FIELD.split(user[: reminder.start()])
    return {name: text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def session_fields(session: Session) -> tuple[str, str]:
    """Return the date and the text of a session as ``parse_input_fields`` finds them in a writer's prompt."""
    # the fields of a prompt are stripped; a last turn without a text ends in a space
    return format_session_date(session), escape_prompt_markers(session.transcript).strip()


def render_reply(system: str, signature: type[dspy.Signature], **outputs: object) -> str:
    """Render a reply as a model would write it, in the format that the system prompt asks for."""
    if _JSON_FIELDS in system:
        return _JSON.format_assistant_message_content(signature, outputs)
    if "tool_calls" in outputs:
        outputs["tool_calls"] = dspy.ToolCalls.from_dict_list(outputs["tool_calls"])  # pyright: ignore[reportArgumentType]  # a list of calls
    return ADAPTER.format_assistant_message_content(signature, outputs)


def extract_prompt(request: Request) -> tuple[str, str]:
    """Take a prompt out of a request: the system's message, and the user's."""
    system = request.system if isinstance(request.system, str) else ""
    return system, "\n\n".join(message.text or "" for message in request.messages)
