"""Before every HTTP request: its size, its host, its token; after it: a line in the log, and the metrics."""

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping
from functools import partial
from http import HTTPStatus
from urllib.parse import unquote, unquote_to_bytes

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memory_program.configs.serve_config import LOOPBACK
from memory_program.core.errors import (
    AccessError,
    BusyError,
    ConfigError,
    ConflictError,
    EmbeddingError,
    MemoryProgramError,
    ModelError,
    QuotaExhaustedError,
    RepeatedKeyError,
    StoreError,
    UnknownMemoryError,
)
from memory_program.core.redaction import redact_text
from memory_program.serving.loopback import find_foreign_host
from memory_program.serving.service.api_tokens import LOCAL_USER, TOKEN_PREFIX, ApiTokens, Principal
from memory_program.serving.service.memory_service import MemoryService

NAMESPACE_HEADER = "X-Memory-Namespace"
"""Names the namespace of a request to the proxy or to MCP, percent-encoded where it is not ASCII."""

TOKEN_HEADER = "X-Memory-Token"
"""Holds a token of this server where ``Authorization`` holds the key of a provider."""

_OPEN_PATHS = ("/", "/health")  # the page has no memory in it: it asks for a token
_RETRY_AFTER_S = 5
_BURST_S = 10.0
_TOO_LARGE = "a request may have {:,} bytes: send less at once"
_logger = logging.getLogger("memory_program.serve")

_STATUSES: tuple[tuple[type[MemoryProgramError], int], ...] = (
    (BusyError, 429),
    (RepeatedKeyError, 422),
    (AccessError, 403),
    (UnknownMemoryError, 404),
    (ConflictError, 409),
    (StoreError, 503),
    (QuotaExhaustedError, 503),
    (ModelError, 502),
    (EmbeddingError, 502),
    (MemoryProgramError, 422),
)


def problem(
    status: int, detail: str, code: str, *, retry_after_s: float = _RETRY_AFTER_S, **more: object
) -> Response:
    """Make an error as RFC 9457 has it; 429 and 503 say when to try again."""
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status}
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    if status in (429, 503):
        headers["Retry-After"] = str(math.ceil(retry_after_s))
    content = {**body, "detail": redact_text(detail), "code": code, **more}
    # in ASCII: the names of fields in a bad request may hold what UTF-8 cannot
    return Response(json.dumps(content), status, headers, media_type="application/problem+json")


def error_problem(error: MemoryProgramError) -> Response:
    """Make the response to an error of this package."""
    return problem(error_status(error), error.server_message, type(error).__name__.removesuffix("Error"))


def error_status(error: MemoryProgramError) -> int:
    """Return the HTTP status of an error of this package."""
    return next(status for kind, status in _STATUSES if isinstance(error, kind))


def find_token(headers: Mapping[str, str]) -> str | None:
    """Return the token of this server among the headers of a request, if any."""
    bearer = headers.get("authorization", "")
    scheme, _, value = bearer.partition(" ")
    given = headers.get(TOKEN_HEADER.lower()) or (value.strip() if scheme.lower() == "bearer" else "")
    return given if given.startswith(TOKEN_PREFIX) else None


def find_principal(headers: Mapping[str, str], tokens: ApiTokens, *, is_required: bool) -> Principal:
    """Return the sender of a request.

    Raises:
        AccessError: its token is unknown or revoked, or it has none and needs one.
    """
    token = find_token(headers)
    if token is not None:
        return tokens.resolve(token)
    if is_required:
        raise AccessError(
            f"send a token of this server in the header Authorization (as Bearer) or {TOKEN_HEADER}: "
            "memory-program token create makes one"
        )
    return LOCAL_USER


def header_namespace(headers: Mapping[str, str]) -> str | None:
    """Return the namespace that a header names, if any.

    Raises:
        ConfigError: its percent-encoded bytes are not UTF-8: several names would be read as one.
    """
    named = headers.get(NAMESPACE_HEADER.lower())
    try:
        return None if named is None else unquote(named, errors="strict")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{NAMESPACE_HEADER} {named!r:.200} is not UTF-8: percent-encode its UTF-8"
        ) from error


def log_deletion(sender: Principal, event: str, namespace: str, **counts: int) -> None:
    """Write a line of the audit log: who took what out of which namespace; never the token itself."""
    who = {"token": sender.token_id, "label": sender.label}
    _logger.info(json.dumps({"event": event, "namespace": namespace, **who, **counts}))


class RateLimits:
    """A token bucket for each API token: a rate on average, and ten seconds' worth of requests at once."""

    def __init__(self, per_second: float) -> None:
        """Begin with full buckets."""
        self._per_second, self._most = per_second, max(1.0, per_second * _BURST_S)
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, token_id: str, now: float) -> float:
        """Take a request out of a bucket at a time in seconds; return the seconds to wait, 0 if it passes."""
        left, at = self._buckets.get(token_id, (self._most, now))
        left = min(self._most, left + (now - at) * self._per_second)
        wait_s = 0.0 if left >= 1 else (1 - left) / self._per_second
        self._buckets[token_id] = (left if wait_s else left - 1, now)
        return wait_s


class ServiceMetrics:
    """Prometheus metrics of a service and of its doors; no label holds a name of a user."""

    def __init__(self, service: MemoryService) -> None:
        """Register them."""
        self._service = service
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "memory_requests", "Requests", ["route", "method", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "memory_request_seconds", "Seconds of a request", ["route"], registry=self.registry
        )
        self.turns = Counter("memory_turns_added", "Turns taken", registry=self.registry)
        self.answers = Counter("memory_answers", "Questions by outcome", ["outcome"], registry=self.registry)
        self.lost_exchanges = Counter(
            "memory_lost_exchanges", "Exchanges of the proxy not remembered", registry=self.registry
        )
        self.registry.register(self)  # pyright: ignore[reportArgumentType]  # a collector needs only collect

    def collect(self) -> Iterator[Metric]:
        """Read the state of the queue and of the background."""
        waiting, counts = self._service.buffer.waiting(), self._service.writer.counts
        yield GaugeMetricFamily(
            "memory_waiting_turns", "Turns that are not written yet", sum(one.turns for one in waiting)
        )
        yield GaugeMetricFamily("memory_waiting_namespaces", "Namespaces with such turns", len(waiting))
        oldest = max((time.time() - one.oldest_added_at for one in waiting), default=0.0)
        yield GaugeMetricFamily("memory_oldest_waiting_seconds", "Age of the oldest such turn", oldest)
        yield GaugeMetricFamily(
            "memory_sessions_in_progress", "Sessions being written", self._service.writer.busy
        )
        yield CounterMetricFamily("memory_sessions_written", "Sessions written", counts.written)
        yield CounterMetricFamily("memory_session_failures", "Tries that failed", counts.failed)
        yield CounterMetricFamily(
            "memory_sessions_incomplete", "Written without some calls", counts.incomplete
        )


class HttpGuard:
    """ASGI middleware: see the module."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        tokens: ApiTokens,
        metrics: ServiceMetrics,
        requires_tokens: bool,
        host: str,
        max_bytes: int,
        per_second: float,
    ) -> None:
        """Guard an application."""
        self._rates = RateLimits(per_second)
        self._app, self._tokens, self._metrics = app, tokens, metrics
        self._requires_tokens, self._max_bytes = requires_tokens, max_bytes
        self._checks_host = host in LOOPBACK and not requires_tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, hand it on, and count it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status, size = time.perf_counter(), 500, 0

        async def receive_limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._max_bytes:
                raise HTTPException(413, _TOO_LARGE.format(self._max_bytes))
            return message

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        headers = Headers(scope=scope)
        token_id = "-"
        try:
            refusal: Response | None
            try:
                refusal = self._check_request(headers, scope["query_string"])
                if refusal is None and scope["path"] not in _OPEN_PATHS:
                    find = partial(find_principal, headers, self._tokens, is_required=self._requires_tokens)
                    reads_database = find_token(headers) is not None
                    principal = await run_in_threadpool(find) if reads_database else find()
                    scope.setdefault("state", {})["principal"] = principal
                    token_id = principal.token_id
                    is_limited = principal is not LOCAL_USER
                    wait_s = self._rates.take(token_id, time.monotonic()) if is_limited else 0.0
                    if wait_s:
                        again = f"try again in {math.ceil(wait_s)} s"
                        why = f"the token {token_id} sends too many requests: {again}"
                        refusal = problem(429, why, "Rate", retry_after_s=wait_s)
            except AccessError as error:
                refusal = problem(401, str(error), "Access")
            except StoreError as error:
                refusal = error_problem(error)
            if refusal is not None:
                await refusal(scope, receive, send_counted)
                return
            await self._app(scope, receive_limited, send_counted)
        finally:
            unnamed = "/mcp" if scope["path"] == "/mcp" else "other"  # never a path that a client made up
            route = getattr(scope.get("route"), "path", unnamed)
            seconds = time.perf_counter() - begun
            self._metrics.requests.labels(route, scope["method"], status).inc()
            self._metrics.seconds.labels(route).observe(seconds)
            entry = {"event": "request", "route": route, "method": scope["method"], "status": status}
            _logger.info(json.dumps({**entry, "ms": round(seconds * 1000, 1), "token": token_id}))

    def _check_request(self, headers: Headers, query: bytes) -> Response | None:
        if self._checks_host:  # a web page in a browser of this machine must not reach the memories
            foreign = find_foreign_host(headers)
            if foreign is not None:
                return problem(403, foreign, "Host")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._max_bytes:
            return problem(413, _TOO_LARGE.format(self._max_bytes), "TooLarge")
        try:
            header_namespace(headers)
            unquote_to_bytes(query).decode()  # bytes that are not UTF-8 would be read as one and the same
        except ConfigError as error:
            return error_problem(error)
        except UnicodeDecodeError:
            return problem(422, "the query is not UTF-8: percent-encode its UTF-8", "Config")
        return None
