"""A typed client of the memory server (``memory-program serve``), sync and async. It needs the base install.

``remembering`` gives an ``openai`` client a memory, by the server's proxy.
"""

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import date, datetime
from types import TracebackType
from typing import Any, Protocol, Self, TypedDict, TypeVar, cast
from urllib.parse import quote
from uuid import uuid4

import httpx
from pydantic import BaseModel

from locomo.json_at import INVALID_CHARACTERS
from memory_program.core.errors import MemoryProgramError
from memory_program.serving.wire import (
    AddResponse,
    AskResponse,
    ChangeResponse,
    ContextResponse,
    EraseResponse,
    Kind,
    MemoryItem,
    MemoryPage,
    NamespaceItem,
    NamespacePage,
    OperationItem,
    OperationPage,
    SearchPage,
    SourceItem,
    SourceList,
)

_API = "/memory/v1"
_BROKEN = (httpx.NetworkError, httpx.RemoteProtocolError)  # no timeout: the server may still be at work
_ResponseT = TypeVar("_ResponseT", bound=BaseModel)


class MessageRequired(TypedDict):
    """The fields that a message must have."""

    role: str
    content: Any  # Any: text, or parts as chat APIs have them


class Message(MessageRequired, total=False):
    """A message to remember; ``time`` needs a zone."""

    name: str
    time: datetime | str


class MemoryServerError(MemoryProgramError):
    """The server refused a request. ``status`` is that of HTTP, ``code`` names the kind of error."""

    def __init__(self, status: int, code: str, detail: str, retry_after_s: float | None = None) -> None:
        """Tell what the server said."""
        super().__init__(f"{status} {code}: {detail}")
        self.status, self.code, self.retry_after_s = status, code, retry_after_s


class _Call(BaseModel):
    """A request, before it is sent."""

    method: str
    route: str
    params: dict[str, Any] = {}  # Any: values of a query
    content: dict[str, Any] | None = None  # Any: JSON
    headers: dict[str, str] = {}


def _add(messages: Sequence[Message], end: bool, wait: bool, timeout_s: float) -> _Call:
    sent = [
        {**message, "time": time.isoformat() if isinstance(time := message.get("time"), datetime) else time}
        for message in messages
    ]
    params = {"wait": wait, "timeout_s": timeout_s}
    return _change("messages", {"messages": sent, "end": end}, params)


def _change(route: str, content: dict[str, Any], params: dict[str, Any] | None = None) -> _Call:
    # with its key a request may be sent twice, and counts once
    key = {"Idempotency-Key": uuid4().hex}
    return _Call(method="POST", route=route, content=content, params=params or {}, headers=key)


def _erase(namespace: str) -> _Call:
    return _Call(method="DELETE", route="namespace", params={"namespace": namespace})


def _ask(question: str, as_of: date | None) -> _Call:
    day = {} if as_of is None else {"as_of": as_of.isoformat()}
    return _Call(method="POST", route="ask", content={"question": question, **day})


def _get(route: str, *, as_of: date | None = None, **params: object) -> _Call:
    sent = {**params, "as_of": as_of.isoformat() if as_of else None}
    return _Call(method="GET", route=route, params={k: v for k, v in sent.items() if v is not None})


def _correct(text: str, memory_id: str | None, happened_at: date | None, reason: str) -> _Call:
    day = happened_at.isoformat() if happened_at else None
    content = {"text": text, "memory_id": memory_id, "happened_at": day, "reason": reason}
    return _change("corrections", content)


def _settings(url: str, token: str | None, timeout_s: float) -> dict[str, Any]:  # Any: httpx's arguments
    headers = {} if token is None else {"X-Memory-Token": token}
    return {"base_url": url.rstrip("/"), "headers": headers, "timeout": timeout_s}


def _arguments(call: _Call, namespace: str | None) -> dict[str, Any]:  # Any: httpx's arguments
    named = call.params if namespace is None else {"namespace": namespace, **call.params}
    params = {
        name: INVALID_CHARACTERS.sub("\ufffd", value) if isinstance(value, str) else value
        for name, value in named.items()
    }
    return {
        "method": call.method,
        "url": f"{_API}/{call.route}",
        "params": params,
        # as ASCII, which has a place for half an emoji
        "content": None if call.content is None else json.dumps(call.content).encode(),
        "headers": {**call.headers, "Content-Type": "application/json"},
    }


def _read(response: httpx.Response, kind: type[_ResponseT]) -> _ResponseT:
    try:
        if response.is_success:
            return kind.model_validate_json(response.content)
        problem: Mapping[str, Any] = response.json()  # Any: JSON
        code, detail = str(problem["code"]), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        code, detail = "Http", f"{response.url.host} is not a memory server, or something before it answers"
    waits = response.headers.get("retry-after", "")
    raise MemoryServerError(
        response.status_code, code, detail, float(waits) if waits.replace(".", "", 1).isdigit() else None
    )


class MemoryClient:
    """A memory server, over HTTP. Any thread may use it.

    Each method raises a MemoryServerError if the server refuses the request, and an ``httpx.HTTPError`` if
    it is not reached. If the connection breaks, a request is sent once more; a change then counts once.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        *,
        namespace: str | None = None,
        token: str | None = None,
        timeout_s: float = 120.0,
    ) -> None:
        """Connect.

        Args:
            url: the address of the server.
            namespace: whose memory; None is that of the token, or the server's default.
            token: a token of the server, if it asks for one.
            timeout_s: the longest silence of the server.
        """
        self._http = httpx.Client(**_settings(url, token, timeout_s))
        self.namespace = namespace

    def add(
        self, messages: Sequence[Message], *, end: bool = False, wait: bool = False, timeout_s: float = 30.0
    ) -> AddResponse:
        """Add messages; ``end`` ends the session, ``wait`` also waits until it is written."""
        return self._send(_add(messages, end, wait, timeout_s), AddResponse)

    def ask(self, question: str, *, as_of: date | None = None) -> AskResponse:
        """Ask a question; with ``as_of`` it is answered from what held on that day."""
        return self._send(_ask(question, as_of), AskResponse)

    def context(self, query: str, *, as_of: date | None = None) -> ContextResponse:
        """Return what a reader is shown for a question."""
        return self._send(_get("context", query=query, as_of=as_of), ContextResponse)

    def search(
        self,
        query: str,
        *,
        kind: Kind | None = None,
        limit: int = 10,
        offset: int = 0,
        as_of: date | None = None,
    ) -> SearchPage:
        """Find memories, then turns that are not written yet, by their words."""
        call = _get("search", query=query, kind=kind, limit=limit, offset=offset, as_of=as_of)
        return self._send(call, SearchPage)

    def memory_page(
        self, *, kind: Kind | None = None, limit: int = 50, cursor: str | None = None
    ) -> MemoryPage:
        """Return one page of the memories, with the profile."""
        return self._send(_get("memories", kind=kind, limit=limit, cursor=cursor), MemoryPage)

    def memories(self, *, kind: Kind | None = None) -> Iterator[MemoryItem]:
        """Iterate over all memories."""
        cursor = None
        while True:
            page = self.memory_page(kind=kind, limit=200, cursor=cursor)
            yield from page.items
            cursor = page.next_cursor
            if cursor is None:
                return

    def history(self, memory_id: str) -> list[OperationItem]:
        """Return the operations that led to a memory and followed from it."""
        found, cursor = list[OperationItem](), None
        while True:
            page = self._send(_get(f"memories/{memory_id}/history", limit=200, cursor=cursor), OperationPage)
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                return found

    def sources(self, memory_id: str) -> list[SourceItem]:
        """Return the turns that a memory is from."""
        found = self._send(_get(f"memories/{memory_id}/sources"), SourceList)
        return found.items

    def correct(
        self,
        text: str,
        memory_id: str | None = None,
        *,
        happened_at: date | None = None,
        reason: str = "",
    ) -> ChangeResponse:
        """Replace a memory; without an id the agents find what the text corrects."""
        return self._send(_correct(text, memory_id, happened_at, reason), ChangeResponse)

    def forget(self, memory_ids: Sequence[str], *, reason: str = "") -> ChangeResponse:
        """Take memories out of all later answers."""
        return self._send(
            _change("forget", {"memory_ids": list(memory_ids), "reason": reason}), ChangeResponse
        )

    def undo(self, version: int | None = None) -> ChangeResponse:
        """Undo the last change, or every change after a version."""
        return self._send(_change("undo", {"version": version}), ChangeResponse)

    def status(self) -> NamespaceItem:
        """Return the size of the namespace."""
        return self._send(_get("namespace"), NamespaceItem)

    def namespaces(self, *, limit: int = 200, cursor: str = "") -> NamespacePage:
        """Return one page of the namespaces that the token may use."""
        return self._send(_get("namespaces", limit=limit, cursor=cursor), NamespacePage)

    def erase(self, namespace: str) -> EraseResponse:
        """Delete all data of a namespace. This cannot be undone."""
        return self._send(_erase(namespace), EraseResponse)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def _send(self, call: _Call, kind: type[_ResponseT]) -> _ResponseT:
        arguments = _arguments(call, self.namespace)
        try:
            response = self._http.request(**arguments)
        except _BROKEN:
            response = self._http.request(**arguments)
        return _read(response, kind)


class AsyncMemoryClient:
    """``MemoryClient`` for asyncio: the same methods, awaited."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        *,
        namespace: str | None = None,
        token: str | None = None,
        timeout_s: float = 120.0,
    ) -> None:
        """Connect, as ``MemoryClient`` does."""
        self._http = httpx.AsyncClient(**_settings(url, token, timeout_s))
        self.namespace = namespace

    async def add(
        self, messages: Sequence[Message], *, end: bool = False, wait: bool = False, timeout_s: float = 30.0
    ) -> AddResponse:
        """Add messages; ``end`` ends the session, ``wait`` also waits until it is written."""
        return await self._send(_add(messages, end, wait, timeout_s), AddResponse)

    async def ask(self, question: str, *, as_of: date | None = None) -> AskResponse:
        """Ask a question; with ``as_of`` it is answered from what held on that day."""
        return await self._send(_ask(question, as_of), AskResponse)

    async def context(self, query: str, *, as_of: date | None = None) -> ContextResponse:
        """Return what a reader is shown for a question."""
        return await self._send(_get("context", query=query, as_of=as_of), ContextResponse)

    async def search(
        self,
        query: str,
        *,
        kind: Kind | None = None,
        limit: int = 10,
        offset: int = 0,
        as_of: date | None = None,
    ) -> SearchPage:
        """Find memories, then turns that are not written yet, by their words."""
        call = _get("search", query=query, kind=kind, limit=limit, offset=offset, as_of=as_of)
        return await self._send(call, SearchPage)

    async def memory_page(
        self, *, kind: Kind | None = None, limit: int = 50, cursor: str | None = None
    ) -> MemoryPage:
        """Return one page of the memories, with the profile."""
        return await self._send(_get("memories", kind=kind, limit=limit, cursor=cursor), MemoryPage)

    async def memories(self, *, kind: Kind | None = None) -> AsyncIterator[MemoryItem]:
        """Iterate over all memories."""
        cursor = None
        while True:
            page = await self.memory_page(kind=kind, limit=200, cursor=cursor)
            for item in page.items:
                yield item
            cursor = page.next_cursor
            if cursor is None:
                return

    async def history(self, memory_id: str) -> list[OperationItem]:
        """Return the operations that led to a memory and followed from it."""
        found, cursor = list[OperationItem](), None
        while True:
            page = await self._send(
                _get(f"memories/{memory_id}/history", limit=200, cursor=cursor), OperationPage
            )
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                return found

    async def sources(self, memory_id: str) -> list[SourceItem]:
        """Return the turns that a memory is from."""
        found = await self._send(_get(f"memories/{memory_id}/sources"), SourceList)
        return found.items

    async def correct(
        self,
        text: str,
        memory_id: str | None = None,
        *,
        happened_at: date | None = None,
        reason: str = "",
    ) -> ChangeResponse:
        """Replace a memory; without an id the agents find what the text corrects."""
        return await self._send(_correct(text, memory_id, happened_at, reason), ChangeResponse)

    async def forget(self, memory_ids: Sequence[str], *, reason: str = "") -> ChangeResponse:
        """Take memories out of all later answers."""
        content = {"memory_ids": list(memory_ids), "reason": reason}
        return await self._send(_change("forget", content), ChangeResponse)

    async def undo(self, version: int | None = None) -> ChangeResponse:
        """Undo the last change, or every change after a version."""
        return await self._send(_change("undo", {"version": version}), ChangeResponse)

    async def status(self) -> NamespaceItem:
        """Return the size of the namespace."""
        return await self._send(_get("namespace"), NamespaceItem)

    async def namespaces(self, *, limit: int = 200, cursor: str = "") -> NamespacePage:
        """Return one page of the namespaces that the token may use."""
        return await self._send(_get("namespaces", limit=limit, cursor=cursor), NamespacePage)

    async def erase(self, namespace: str) -> EraseResponse:
        """Delete all data of a namespace. This cannot be undone."""
        return await self._send(_erase(namespace), EraseResponse)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        """Return the client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()

    async def _send(self, call: _Call, kind: type[_ResponseT]) -> _ResponseT:
        arguments = _arguments(call, self.namespace)
        try:
            response = await self._http.request(**arguments)
        except _BROKEN:
            response = await self._http.request(**arguments)
        return _read(response, kind)


class _OpenAIClient(Protocol):
    """An ``openai`` client, sync or async."""

    def with_options(self, *, base_url: str, default_headers: Mapping[str, str]) -> object:
        """Copy it with other settings."""
        ...


_ClientT = TypeVar("_ClientT", bound=_OpenAIClient)


def remembering(
    client: _ClientT,
    url: str = "http://127.0.0.1:8080",
    *,
    namespace: str | None = None,
    token: str | None = None,
) -> _ClientT:
    """Return a copy of an ``openai`` client that remembers: it talks through the proxy of a memory server.

    Args:
        client: an ``OpenAI`` or ``AsyncOpenAI``; its key goes on to the API behind the proxy.
        url: the address of a server that runs with ``--proxy``.
        namespace: whose memory; None is that of the token, or the server's default.
        token: a token of the server, if it asks for one.
    """
    headers = {} if token is None else {"X-Memory-Token": token}
    if namespace is not None:
        headers["X-Memory-Namespace"] = quote(namespace)
    return cast(_ClientT, client.with_options(base_url=f"{url.rstrip('/')}/v1", default_headers=headers))
