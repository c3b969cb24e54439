"""The settings of ``memory-program serve``. Docstrings are the help of the flags."""

from typing import Literal, Self

from pydantic import Field, model_validator

from memory_program.configs.endpoints import ReaderAddress, WriterAddress
from memory_program.configs.groups import (
    Concurrency,
    SavedProgram,
    SearchSettings,
    ServerAddress,
    SystemSettings,
    Temperature,
)
from memory_program.core.errors import ConfigError
from memory_program.core.settings import ApiBase, DatabaseUrl, Settings, SettingsGroup

LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""The addresses that only this machine reaches."""


class SessionSettings(SettingsGroup):
    """The end of a session. Agents then write its turns; before that, a reader sees them verbatim."""

    session_pause: float = Field(default=900.0, gt=0)
    """Seconds of silence that end a session."""

    session_turns: int = Field(default=40, ge=1)
    """Number of turns that ends a session."""

    session_chars: int = Field(default=16_000, ge=1)
    """Number of characters that ends a session."""

    max_waiting: int = Field(default=2000, ge=1)
    """Maximum number of turns of a namespace that may wait to be written. Above it, the server answers
    429."""

    max_open_sessions: int = Field(default=10_000, ge=1)
    """Maximum number of open sessions in the database. Above it, the server answers turns of further
    namespaces with 429."""

    writers: int = Field(default=4, ge=1, le=64)
    """Number of sessions that are written in parallel, each of another namespace."""


class DoorSettings(SettingsGroup):
    """The interfaces of the server. Without --mcp, --rest and --proxy it opens REST, and MCP over HTTP."""

    mcp: Literal["stdio", "http"] | None = None
    """Serve MCP: http at /mcp, or stdio to the program that started this one."""

    rest: bool = False
    """Serve REST below /memory/v1, with its documentation at /docs, and a web page at / that shows
    memories."""

    proxy: bool = False
    """Serve an OpenAI-compatible proxy (/v1/chat/completions and /v1/models) that remembers."""

    upstream: ApiBase | None = None
    """Base URL of the chat API behind the proxy. API key: UPSTREAM_API_KEY, or else the client's own.
    Default: --api-base, or OpenAI's; OPENAI_API_KEY then works too."""

    namespace: str = "default"
    """Namespace of requests that name none."""

    host: str = "127.0.0.1"
    """Address to listen on. Any address but those of this machine alone requires tokens (memory-program
    token)."""

    port: int = Field(default=8080, ge=0, le=65_535)
    """Port to listen on."""

    require_tokens: bool = False
    """Require tokens on this machine's own address too, for example behind a reverse proxy."""

    max_megabytes: float = Field(default=8.0, gt=0, le=100_000)
    """Maximum size of a request, in megabytes."""

    requests_per_second: float = Field(default=50.0, gt=0)
    """Rate limit of a token, in requests per second. A burst may have ten seconds' worth. Above it, the
    server answers 429. Requests without a token, from this machine, are not limited."""

    grace: float = Field(default=10.0, ge=0, le=86_400)
    """Seconds that running work has to finish on shutdown. Unwritten sessions stay in the database, and are
    written after the next start."""


class ServeConfig(Settings, init=False):
    """Serve memory to other programs over REST, MCP and an OpenAI-compatible proxy.

    Turns are durable when a request returns. Agents write memories from them in the background. API keys come
    from the environment only.
    """

    db_url: DatabaseUrl = "sqlite:///memory.sqlite"
    """Database of the memories: an SQLAlchemy URL of SQLite or PostgreSQL, without a password."""

    model: str | None = None
    """Model that writes memories and answers: any that evaluate.py takes, for example openai/gpt-4.1-mini."""

    writer_model: str | None = None
    """Model that writes memories. Default: --model."""

    reader_model: str | None = None
    """Model that answers. Default: --model."""

    api_base: ServerAddress

    writer_api_base: WriterAddress

    reader_api_base: ReaderAddress

    program: SavedProgram

    temperature: Temperature

    concurrency: Concurrency

    doors: DoorSettings = DoorSettings()

    session_ends: SessionSettings = SessionSettings()

    system: SystemSettings = SystemSettings()

    search: SearchSettings = SearchSettings()

    @model_validator(mode="after")
    def _check_database(self) -> Self:
        scheme, _, place = self.db_url.partition("://")
        if scheme.startswith("sqlite") and place.partition("?")[0].lstrip("/") in ("", ":memory:"):
            raise ConfigError(
                f"db_url={self.db_url!r} is in memory, and the turns would be lost with this process: "
                "name a file, such as sqlite:///memory.sqlite, or PostgreSQL"
            )
        return self

    @model_validator(mode="after")
    def _check_models(self) -> Self:
        if self.model is None and (self.writer_model is None or self.reader_model is None):
            raise ConfigError("no model is named: give --model, or both --writer-model and --reader-model")
        if self.doors.proxy and self.doors.upstream is None and self.api_base is None:
            others = [name for name in (self.writer, self.reader) if not name.startswith("openai/")]
            if others or self.writer_api_base or self.reader_api_base:
                raise ConfigError(
                    "the proxy would send the chat and the memories to OpenAI: name the API of the chat "
                    "model with --upstream"
                )
        return self

    @property
    def writer(self) -> str:
        """The name of the model that writes."""
        return self.writer_model or self.model or ""

    @property
    def reader(self) -> str:
        """The name of the model that answers."""
        return self.reader_model or self.model or ""

    @property
    def asks_for_tokens(self) -> bool:
        """True if every request must show a token."""
        return self.doors.require_tokens or self.doors.host not in LOOPBACK
