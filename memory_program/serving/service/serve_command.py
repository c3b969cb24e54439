"""``memory-program serve``: one process, one database, and the doors that its flags open."""

import asyncio
import gc
import json
import logging
import os
import shlex
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.routing import Route

from memory_program import __version__
from memory_program.agents.program import MemoryProgram
from memory_program.agents.systems import make_memory_program, set_models
from memory_program.bank.archive import import_bm25s
from memory_program.bank.store import check_namespace
from memory_program.bank.turn_buffer import SessionRule
from memory_program.configs.endpoints import Role
from memory_program.configs.serve_config import ServeConfig
from memory_program.core.errors import ConfigError, StoreError
from memory_program.evaluation.role_models import check_template_arguments, load_dense_index, make_role_models
from memory_program.models.http_engine import read_key
from memory_program.models.model_names import openai_url
from memory_program.models.response_formats import RESPONSE_FORMATS
from memory_program.models.usage import silence_truncation_warnings
from memory_program.serving.service.api_tokens import ApiTokens
from memory_program.serving.service.chat_proxy import ChatProxy
from memory_program.serving.service.http_guard import HttpGuard, ServiceMetrics
from memory_program.serving.service.memory_page import MemoryPageDocument
from memory_program.serving.service.memory_service import MemoryService
from memory_program.serving.service.rest_api import ModelThreads, ServerParts, add_problem_handlers, router
from memory_program.serving.service.session_writer import WriterPace

if TYPE_CHECKING:
    from mcp.server import MCPServer

_logger = logging.getLogger("memory_program.serve")
_KEEP_ALIVE_S = 75  # people pause between messages: uvicorn's 5 s would close most connections in between


@silence_truncation_warnings()  # the calls that check the models ask for few tokens
def make_served_program(config: ServeConfig) -> MemoryProgram:
    """Make the program of a server, with its models, each of which is checked by a small call.

    Raises:
        ConfigError: the saved program cannot be loaded, or arguments of the chat template reach no model.
        ModelError: a model cannot be used.
    """
    names = {"writer": config.writer, "reader": config.reader}
    check_template_arguments(config, [(Role(part), name) for part, name in names.items()])
    models = make_role_models(config, check=True)
    system = make_memory_program(config.system, **names, program=config.program)
    lms = {part: models(Role(part), name, config.temperature) for part, name in names.items()}
    replies = config.system.replies
    for line in system.choose_reply_formats(
        replies.reply_format,
        names,
        lambda part, model: RESPONSE_FORMATS.default_format(model, lambda: lms[part], replies.settings()),
    ):
        _logger.info("%s", line)
    set_models(system, writer_lm=lms["writer"], reader_lm=lms["reader"])
    return system


def make_parts(config: ServeConfig, program: MemoryProgram, upstream_key: str | None = None) -> ServerParts:
    """Open the database of a server, and make its parts.

    Raises:
        ConfigError: the namespace of requests that name none is no name.
        EmbeddingError: the embedding model cannot be used.
        StoreError: the database cannot be opened, or has vectors of another embedding model.
    """
    check_namespace(config.doors.namespace)
    ends = config.session_ends
    rule = SessionRule(ends.session_pause, ends.session_turns, ends.session_chars)
    pace = WriterPace(threads=ends.writers)
    limits = {"most_waiting": ends.max_waiting, "most_open": ends.max_open_sessions}
    service = MemoryService(config.db_url, program, rule, load_dense_index(config), **limits, pace=pace)
    tokens, metrics = ApiTokens(service.store.database), ServiceMetrics(service)
    return ServerParts(service, tokens, metrics, ModelThreads(config.concurrency), upstream_key)


def make_mcp(config: ServeConfig, parts: ServerParts) -> "MCPServer[Any]":  # Any: it has no state of its own
    """Make the MCP server of a config."""
    from memory_program.serving.service.mcp_tools import make_mcp_server  # the SDK is slow to import

    return make_mcp_server(parts, config.doors.namespace)


def make_memory_app(config: ServeConfig, parts: ServerParts) -> FastAPI:
    """Make the HTTP application: ``/health``, ``/metrics`` and the interfaces of the config."""
    doors, service = config.doors, parts.service
    opens_default = not (doors.mcp or doors.rest or doors.proxy)

    mcp = make_mcp(config, parts) if doors.mcp == "http" or opens_default else None
    proxy = None
    if doors.proxy:
        upstream = doors.upstream or config.api_base or openai_url()
        proxy = ChatProxy(parts, doors.namespace, upstream)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            if proxy is not None:
                stack.push_async_callback(proxy.close)
            if mcp is not None:
                await stack.enter_async_context(mcp.session_manager.run())
            yield

    app = FastAPI(title="memory-program", version=__version__, lifespan=lifespan, redoc_url=None)
    app.state.default_namespace = doors.namespace
    add_problem_handlers(app)

    @app.get("/health", tags=["server"])
    @app.head("/health", include_in_schema=False)
    async def health() -> Response:
        """Say if the database answers."""
        try:
            waiting = await run_in_threadpool(service.buffer.waiting)
        except StoreError:
            return JSONResponse({"status": "the database does not answer", "version": __version__}, 503)
        turns = sum(one.turns for one in waiting)
        return JSONResponse({"status": "ok", "version": __version__, "waiting_turns": turns})

    @app.get("/metrics", tags=["server"])
    async def metrics() -> Response:
        """Return Prometheus metrics."""
        text = await run_in_threadpool(generate_latest, parts.metrics.registry)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    if doors.rest or opens_default:
        app.state.parts = parts
        app.include_router(router)
        page = MemoryPageDocument()

        @app.get("/", include_in_schema=False)
        async def memory_page() -> Response:
            return page.response()

    if proxy is not None:
        app.include_router(proxy.router())
    if mcp is not None:
        from mcp.server.transport_security import TransportSecuritySettings

        # without sessions of its own, so that every request shows its token; the guard checks hosts
        no_check = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        inner = mcp.streamable_http_app(
            stateless_http=True, json_response=True, transport_security=no_check, host=doors.host
        )
        for route in inner.routes:
            assert isinstance(route, Route)
            route.methods = {
                "POST"
            }  # without sessions a stream (GET) has nothing to tell, and may end in a 500
        app.router.routes.extend(inner.routes)
    app.add_middleware(
        HttpGuard,
        tokens=parts.tokens,
        metrics=parts.metrics,
        requires_tokens=config.asks_for_tokens,
        host=doors.host,
        max_bytes=int(doors.max_megabytes * 1e6),
        per_second=doors.requests_per_second,
    )
    return app


def serve_memory(config: ServeConfig) -> None:
    """Serve until the process is told to stop; then let running sessions finish for the time of the grace.

    Raises:
        ConfigError: the address is in use, or is open to others, and there is no token.
        EmbeddingError: the embedding model cannot be used.
        ModelError: a model cannot be used.
        StoreError: the database cannot be opened, or has vectors of another embedding model.
    """
    _log_as_json()
    if config.doors.mcp != "stdio" or config.doors.rest or config.doors.proxy:
        family = socket.AF_INET6 if ":" in config.doors.host else socket.AF_INET
        try:  # uvicorn only logs that it cannot listen, and exits
            socket.create_server((config.doors.host, config.doors.port), family=family).close()
        except OSError as error:
            raise ConfigError(
                f"the server cannot listen: {error.strerror}; end the other server, or choose another --port "
                "or --host"
            ) from error
    key = read_key("UPSTREAM_API_KEY")
    if not key and config.doors.upstream is None:  # that API is the one of the models
        key = read_key("OPENAI_API_KEY")
    parts = make_parts(config, make_served_program(config), key or None)
    if config.asks_for_tokens and not any(token.revoked_at is None for token in parts.tokens.list()):
        raise ConfigError(
            f"host={config.doors.host!r} asks for tokens, and there is none: make one with "
            f"memory-program token create --db-url {shlex.quote(config.db_url)} --namespaces NAME"
        )
    import_bm25s()
    gc.freeze()  # what a server has imported stays: to look for garbage in it stops every request for 0.1 s
    parts.service.start()

    def end_at_once(*_: object) -> None:
        """Stop without the event loop, which would wait for the thread that reads the next line of stdin."""
        _stop(config, parts)
        os._exit(0)

    # uvicorn stops at the signal, and then raises it again: what is behind it stops as well
    if config.doors.mcp == "stdio":
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end_at_once)
    else:
        signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
    try:
        asyncio.run(_serve_doors(config, parts))
    finally:
        if not _stop(config, parts) and not isinstance(sys.exception(), Exception):
            os._exit(0)  # threads that wait for a model would keep the process for minutes


def _stop(config: ServeConfig, parts: ServerParts) -> bool:
    """Let running sessions finish for the time of the grace; False if a thread still waits for a model."""
    are_calls_done = parts.threads.close()
    is_idle = parts.service.stop(config.doors.grace)
    if not is_idle:
        _logger.warning(
            json.dumps({"event": "stop", "unfinished": "a session is written after the next start"})
        )
    sys.stderr.flush()
    return is_idle and are_calls_done


async def _serve_doors(config: ServeConfig, parts: ServerParts) -> None:
    doors = config.doors
    server = uvicorn.Server(
        uvicorn.Config(
            make_memory_app(config, parts),
            host=doors.host,
            port=doors.port,
            log_config=None,
            access_log=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(doors.grace)),
        )
    )
    if doors.mcp != "stdio":
        await server.serve()
        return
    serving = asyncio.create_task(server.serve()) if doors.rest or doors.proxy else None
    await make_mcp(config, parts).run_stdio_async()  # until the program that started this one closes it
    if serving is not None:
        server.should_exit = True
        await serving


class _JsonLines(logging.Formatter):
    """A log line as JSON: the time, the level, where it is from, and the message or its own fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record; a message that is JSON itself becomes part of the object."""
        entry: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        message = record.getMessage()
        fields: dict[str, object] = {"message": message}
        if record.name == _logger.name and message.startswith("{"):
            fields = json.loads(message)
        if record.exc_info and record.exc_info[0] is not None:  # a traceback may quote what was said
            fields["error"] = record.exc_info[0].__name__
        return json.dumps({**entry, **fields})


def _log_as_json() -> None:
    handler, for_others = logging.StreamHandler(), logging.StreamHandler()
    for_others.setLevel(logging.WARNING)
    for one in (handler, for_others):
        one.setFormatter(_JsonLines())
    logging.getLogger().handlers = [for_others]
    logging.getLogger("dspy").handlers = [for_others]  # DSPy has a handler of its own
    for name in ("memory_program", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
