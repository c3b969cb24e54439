"""The models of a run by role: the address of each one's server, and the variable that holds its key."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from memory_program.core.settings import ApiBase, Settings


class Role(StrEnum):
    """A part of the program that calls a model. Each may have a server and a key of its own."""

    WRITER = "writer"
    READER = "reader"
    JUDGE = "judge"
    PROMPT = "prompt"

    @property
    def key_variable(self) -> str:
        """The environment variable whose key goes before that of the provider."""
        return f"{self.value.upper()}_API_KEY"


_TEMPLATE = (
    "Base URL of the server of the model that {}. API key: {}, or that of the provider. Default: --api-base."
)


def _describe(role: Role, task: str) -> str:
    return _TEMPLATE.format(task, role.key_variable)


WriterAddress = Annotated[
    ApiBase | None, Field(default=None, description=_describe(Role.WRITER, "writes memories"))
]
ReaderAddress = Annotated[ApiBase | None, Field(default=None, description=_describe(Role.READER, "answers"))]
JudgeAddress = Annotated[ApiBase | None, Field(default=None, description=_describe(Role.JUDGE, "judges"))]
PromptAddress = Annotated[
    ApiBase | None, Field(default=None, description=_describe(Role.PROMPT, "writes instructions"))
]


def server_address(settings: Settings, role: Role) -> str | None:
    """Return the address of the server of a role's model: its own, or that of all API models."""
    values = settings.flat_values()
    return values.get(f"{role.value}_api_base") or values["api_base"]
