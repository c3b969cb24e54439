"""The REST door, below ``/memory/v1``: turns in, answers out, and every edit with its history."""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from hashlib import sha256
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Header, Path, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from memory_program.bank.forgetting import DeletedRows
from memory_program.bank.memory import Memory, MemoryKind, Validity, memory_number, validity_to_json
from memory_program.bank.outcomes import Outcome
from memory_program.bank.space import MemorySpace
from memory_program.bank.turn_buffer import RequestKey, SpokenTurn
from memory_program.core.errors import (
    BusyError,
    ConfigError,
    MemoryProgramError,
    ModelError,
    StoreError,
)
from memory_program.serving.service.api_tokens import ApiTokens, Principal
from memory_program.serving.service.http_guard import (
    ServiceMetrics,
    error_problem,
    header_namespace,
    log_deletion,
    problem,
)
from memory_program.serving.service.memory_service import BankChange, MemoryService
from memory_program.serving.wire import (
    MOST_CONTENT_CHARS,
    MOST_ITEMS,
    AddRequest,
    AddResponse,
    AskRequest,
    AskResponse,
    ChangeResponse,
    ChatMessage,
    ContextResponse,
    CorrectRequest,
    EraseResponse,
    ForgetRequest,
    Kind,
    MemoryId,
    MemoryItem,
    MemoryPage,
    NamespaceItem,
    NamespacePage,
    OperationItem,
    OperationPage,
    Problem,
    SearchHit,
    SearchPage,
    SourceItem,
    SourceList,
    UndoRequest,
)

_T = TypeVar("_T")
_CALLS_PER_THREAD = 8  # that may wait for a model; more are refused
_LONGEST_WAIT_S = 60.0
_LARGEST_OFFSET = 2**31 - 1
_MOST_IN_DETAIL = 3  # faults of a request in the detail; the field "errors" lists all

Limit = Annotated[int, Query(ge=1, le=MOST_ITEMS)]
Text = Annotated[str, Query(min_length=1, max_length=MOST_CONTENT_CHARS)]
WaitSeconds = Annotated[float, Query(ge=0, le=_LONGEST_WAIT_S)]


class ModelThreads:
    """The threads of requests that wait for a model, so that the others never do."""

    def __init__(self, threads: int) -> None:
        """Make the threads."""
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="model-call")
        self._most, self._running = threads * _CALLS_PER_THREAD, set[Future[Any]]()  # Any: each has its own

    async def run(self, task: Callable[[], _T]) -> _T:
        """Run a task.

        Raises:
            BusyError: too many wait already.
        """
        if len(self._running) >= self._most:
            raise BusyError(f"{len(self._running)} requests wait for the model: send this one again later")
        future = self._pool.submit(task)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return await asyncio.wrap_future(future)

    def close(self) -> bool:
        """Begin no further task; False if one still runs."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        return not self._running


@dataclass(frozen=True, slots=True)
class ServerParts:
    """The parts of a server: the memory, the tokens, the metrics and the threads for model calls."""

    service: MemoryService
    tokens: ApiTokens
    metrics: ServiceMetrics
    threads: ModelThreads
    upstream_key: str | None = None

    async def run_search(self, search: Callable[[], _T]) -> _T:
        """Run a search of the service; one that asks an embedding model counts among the model calls.

        Raises:
            BusyError: too many wait already.
        """
        return await (self.threads.run(search) if self.service.asks_embedder else run_in_threadpool(search))


def spoken_turns(messages: list[ChatMessage]) -> list[SpokenTurn]:
    """Turn chat messages into turns: those of users and assistants that have text.

    A message without a time has that of the server's clock.

    Raises:
        ConfigError: a message is too long.
    """
    now, turns = datetime.now(UTC), list[SpokenTurn]()
    for message in messages:
        text = message.text
        if len(text) > MOST_CONTENT_CHARS:
            raise ConfigError(
                f"a message of {len(text):,} characters is longer than {MOST_CONTENT_CHARS:,}: split it"
            )
        if message.role in ("user", "assistant") and text:
            has_time = message.time is not None
            turns.append(SpokenTurn(message.speaker, text, message.role, message.time or now, has_time))
    return turns


def memory_item(memory: Memory, validity: Validity) -> MemoryItem:
    """Write a memory as JSON."""
    return MemoryItem.model_validate(
        {
            "memory_id": memory.memory_id,
            "kind": memory.kind.value,
            "text": memory.text,
            "happened_at": memory.happened_at,
            "sources": list(memory.sources),
            **validity_to_json(validity),
        }
    )


def memory_page(space: MemorySpace, kind: Kind | None, limit: int, cursor: str | None) -> MemoryPage:
    """Write the live memories after a cursor as JSON."""
    bank, validity = space.bank, space.valid_times().memories
    after = 0 if cursor is None else memory_number(cursor)
    live = bank.live(MemoryKind(kind) if kind is not None else None)
    rest = [memory for memory in live if memory_number(memory.memory_id) > after]
    page = rest[:limit]
    more = page[-1].memory_id if len(rest) > limit else None
    items = [memory_item(memory, validity[memory.memory_id]) for memory in page]
    return MemoryPage(items=items, next_cursor=more, version=bank.version, profile=bank.core)


def change_response(done: BankChange) -> ChangeResponse:
    """Write a change as JSON."""
    operations = [OperationItem.model_validate(operation) for operation in done.operations]
    return ChangeResponse(
        version=done.version,
        operations=operations,
        is_repeated=done.is_repeated,
        is_pending=done.is_pending,
    )


def _sender(request: Request) -> Principal:
    return request.state.principal


# These dependencies are coroutines since FastAPI runs each plain function in a thread of its own.


async def _readable(request: Request, namespace: Annotated[str | None, Query(max_length=200)] = None) -> str:
    asked = namespace if namespace is not None else header_namespace(request.headers)
    return _sender(request).choose_namespace(asked, request.app.state.default_namespace)


Readable = Annotated[str, Depends(_readable)]
"""The namespace of a request, whose sender may read it."""


async def _writable(request: Request, namespace: Readable) -> str:
    _sender(request).require_write()
    return namespace


Writable = Annotated[str, Depends(_writable)]
"""The namespace of a request, whose sender may change it."""


async def _request_key(
    request: Request, idempotency_key: Annotated[str | None, Header(min_length=1, max_length=200)] = None
) -> Callable[[BaseModel], RequestKey | None]:
    def key(body: BaseModel) -> RequestKey | None:
        if idempotency_key is None:
            return None
        content = json.dumps([request.url.path, body.model_dump(mode="json")])
        return RequestKey(idempotency_key, sha256(content.encode("utf-8", "surrogatepass")).hexdigest())

    return key


Key = Annotated[Callable[[BaseModel], RequestKey | None], Depends(_request_key)]
"""Makes the key of a request from its header and its body; None without the header."""


def _list_parameters(dependant: Dependant) -> set[str]:
    """List the parameters of a route and of what it depends on."""
    own = {parameter.alias for parameter in dependant.query_params}
    return own.union(*map(_list_parameters, dependant.dependencies))


async def _parts(request: Request) -> ServerParts:
    route: APIRoute = request.scope["route"]
    known = _list_parameters(route.dependant) | {"namespace"}  # which clients send with every request
    unknown = sorted(set(request.query_params) - known)
    if unknown:  # it may be a misspelt namespace, and mean the default one
        raise ConfigError(f"unknown parameter {unknown[0]!r:.80}: choose from {', '.join(sorted(known))}")
    return request.app.state.parts


Parts = Annotated[ServerParts, Depends(_parts)]
"""The parts of the server, for a request whose parameters are known."""

_PROBLEM = {"content": {"application/problem+json": {"schema": Problem.model_json_schema()}}}

router = APIRouter(
    prefix="/memory/v1",
    tags=["memory"],
    responses=dict.fromkeys((401, 403, 404, 409, 413, 422, 429, 502, 503), _PROBLEM),
)
"""The routes, for an application whose state has its ``parts``, and ``default_namespace`` for requests that
name none."""


@router.post("/messages", status_code=202)
async def add_messages(
    parts: Parts,
    body: AddRequest,
    namespace: Writable,
    key: Key,
    wait: bool = False,
    timeout_s: WaitSeconds = 30.0,
) -> AddResponse:
    """Add messages; they are durable when this returns, and written later (``wait``: before)."""
    turns = spoken_turns(body.messages)
    ends = body.end or wait
    added = await run_in_threadpool(parts.service.add, namespace, turns, ends=ends, request=key(body))
    if not added.is_repeated:
        parts.metrics.turns.inc(added.added)
    written = None
    if wait:
        try:
            written = await parts.threads.run(lambda: parts.service.wait(namespace, timeout_s))
        except (BusyError, StoreError):  # the messages are stored: an error would have them sent again
            written = False
    return AddResponse(
        added=added.added,
        skipped=len(body.messages) - len(turns),
        waiting=0 if written else added.waiting,
        sessions=list(added.sessions),
        is_repeated=added.is_repeated,
        written=written,
    )


@router.post("/ask")
async def ask(parts: Parts, body: AskRequest, namespace: Readable) -> AskResponse:
    """Answer a question from the memories, and from the turns that are not written yet."""
    answer = await parts.threads.run(lambda: parts.service.ask(namespace, body.question, body.as_of))
    parts.metrics.answers.labels(answer.outcome.value).inc()
    if answer.outcome is not Outcome.OK:
        raise ModelError(f"the model gave no usable answer ({answer.outcome.value}): ask again later")
    return AskResponse(
        answer=answer.text,
        shown=list(answer.shown),
        context_tokens=answer.context_tokens,
        searches=answer.searches,
    )


@router.get("/context")
async def show_context(
    parts: Parts, query: Text, namespace: Readable, as_of: date | None = None
) -> ContextResponse:
    """Show what a reader is shown for a question. No language model is asked."""
    shown = await parts.run_search(lambda: parts.service.context(namespace, query, as_of))
    return ContextResponse(
        profile=shown.core, memories=shown.memories, excerpts=shown.excerpts, tokens=shown.tokens
    )


@router.get("/search")
async def search_memories(
    parts: Parts,
    query: Text,
    namespace: Readable,
    kind: Kind | None = None,
    limit: Annotated[int, Query(ge=1, le=50)] = 10,
    offset: Annotated[int, Query(ge=0, le=_LARGEST_OFFSET)] = 0,
    as_of: date | None = None,
) -> SearchPage:
    """Find memories, best first, then unwritten turns. No language model is asked."""
    wanted = MemoryKind(kind) if kind is not None else None
    most = limit + offset + 1
    found = await parts.run_search(lambda: parts.service.search(namespace, query, most, wanted, as_of))
    shown = found[offset : offset + limit]
    hits = [SearchHit.model_validate(hit, from_attributes=True) for hit in shown]
    return SearchPage(items=hits, next_offset=offset + limit if len(found) > offset + limit else None)


@router.get("/memories")
async def list_memories(
    parts: Parts,
    namespace: Readable,
    kind: Kind | None = None,
    limit: Limit = 50,
    cursor: MemoryId | None = None,
) -> MemoryPage:
    """List the memories in the order of their creation."""
    return await run_in_threadpool(lambda: memory_page(parts.service.space(namespace), kind, limit, cursor))


@router.get("/memories/{memory_id}/history")
async def show_history(
    parts: Parts,
    memory_id: Annotated[MemoryId, Path()],
    namespace: Readable,
    limit: Limit = 50,
    cursor: Annotated[int, Query(ge=0)] = 0,
) -> OperationPage:
    """List the operations that led to a memory and followed from it, oldest first."""
    operations = await run_in_threadpool(parts.service.history, namespace, memory_id)
    rest = [operation for operation in operations if operation["version"] > cursor]
    more = str(rest[limit - 1]["version"]) if len(rest) > limit else None
    items = [OperationItem.model_validate(operation) for operation in rest[:limit]]
    return OperationPage(items=items, next_cursor=more)


@router.get("/memories/{memory_id}/sources")
async def show_sources(
    parts: Parts, memory_id: Annotated[MemoryId, Path()], namespace: Readable
) -> SourceList:
    """Show the turns that a memory is from."""
    found = await run_in_threadpool(parts.service.sources, namespace, memory_id)
    return SourceList(items=[SourceItem.model_validate(turn, from_attributes=True) for turn in found])


@router.post("/corrections")
async def correct(
    parts: Parts, body: CorrectRequest, namespace: Writable, key: Key, timeout_s: WaitSeconds = 30.0
) -> ChangeResponse:
    """Replace a memory's text, or let the agents find what a sentence corrects. History keeps both."""
    memory_id = body.memory_id
    if memory_id is None:
        make = partial(parts.service.correct_in_words, namespace, body.text, timeout_s, request=key(body))
        return change_response(await parts.threads.run(make))
    make = partial(parts.service.correct, namespace, memory_id, body.text, request=key(body))
    done = await run_in_threadpool(make, happened_at=body.happened_at, reason=body.reason)
    return change_response(done)


@router.post("/forget")
async def forget(
    parts: Parts, request: Request, body: ForgetRequest, namespace: Writable, key: Key
) -> ChangeResponse:
    """Take memories out of all later answers. Undo brings them back; only erasing deletes data."""
    done = await run_in_threadpool(
        parts.service.forget, namespace, body.memory_ids, reason=body.reason, request=key(body)
    )
    if not done.is_repeated:
        log_deletion(_sender(request), "forget", namespace, memories=len(set(body.memory_ids)))
    return change_response(done)


@router.post("/undo")
async def undo_changes(
    parts: Parts, request: Request, body: UndoRequest, namespace: Writable, key: Key
) -> ChangeResponse:
    """Undo the last change (all of one session or request), or every change after a version."""
    done = await run_in_threadpool(parts.service.undo, namespace, body.version, key(body))
    if not done.is_repeated:
        log_deletion(_sender(request), "undo", namespace, operations=len(done.operations))
    return change_response(done)


@router.get("/namespaces")
async def list_namespaces(
    parts: Parts, request: Request, limit: Limit = 50, cursor: Annotated[str, Query(max_length=200)] = ""
) -> NamespacePage:
    """List the namespaces that the sender may use."""
    sender = _sender(request)
    names = [name for name in await run_in_threadpool(parts.service.namespaces) if sender.allows(name)]
    rest = [name for name in names if name > cursor]
    return NamespacePage(items=rest[:limit], next_cursor=rest[limit - 1] if len(rest) > limit else None)


@router.get("/namespace")
async def show_namespace(parts: Parts, namespace: Readable) -> NamespaceItem:
    """Show the size of a namespace."""
    status = await run_in_threadpool(parts.service.status, namespace)
    return NamespaceItem.model_validate(status, from_attributes=True)


@router.delete("/namespace")
async def erase(
    parts: Parts, request: Request, namespace: Annotated[str, Query(min_length=1, max_length=200)]
) -> EraseResponse:
    """Delete all data of a namespace, which must be named. This cannot be undone."""
    name = _sender(request).choose_namespace(namespace, namespace)
    _sender(request).require_write()

    def log(deleted: DeletedRows) -> None:
        log_deletion(_sender(request), "erase", name, rows=sum(deleted.rows.values()))

    deleted = await run_in_threadpool(parts.service.erase, name, log)
    return EraseResponse(rows=sum(deleted.rows.values()))


def add_problem_handlers(app: FastAPI) -> None:
    """Answer every error as problem+json, without what the request held."""

    async def on_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, MemoryProgramError)
        return error_problem(error)

    async def on_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        found = [{"loc": list(one["loc"]), "msg": one["msg"]} for one in error.errors()]
        if isinstance(error.body, bytes):  # which FastAPI did not read as JSON
            given = request.headers.get("content-type", "")
            for one in found:
                if one["loc"] == ["body"]:
                    one["msg"] = f"Content-Type {given!r:.80} must be application/json"
        return refuse(found)

    def refuse(found: list[dict[str, Any]]) -> Response:  # Any: places and messages
        faults = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in found]
        detail = f"the request is not as expected: {'; '.join(faults[:_MOST_IN_DETAIL])}"
        return problem(422, detail, "Invalid", errors=found)

    async def on_http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 400:  # FastAPI's for a body that Python cannot decode
            msg = "Input should be JSON in UTF-8, not nested too deeply, and without huge numbers"
            return refuse([{"loc": ["body"], "msg": msg}])
        code = "TooLarge" if error.status_code == 413 else "Http"
        answer = problem(error.status_code, str(error.detail), code)
        answer.headers.update(error.headers or {})  # of a 405, the methods that are allowed
        return answer

    async def on_bug(_: Request, error: Exception) -> Response:
        return problem(500, f"the server failed ({type(error).__name__})", "Bug")

    app.add_exception_handler(MemoryProgramError, on_error)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, on_bug)
