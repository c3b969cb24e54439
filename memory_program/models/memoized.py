"""A reply cache for frozen models: an equal greedy request is not paid for twice.

Eight rollouts of a session often end in the same memories for a question. Only a frozen model may be cached:
a reader or a judge outside the student, at temperature 0.
"""

import threading
from concurrent.futures import Future
from hashlib import blake2b
from typing import cast

import dspy
from dspy.lm15 import Request, Response

from memory_program.models.rate_limit import Engine
from memory_program.models.usage import CallRecord, Usage, record_call, track_usage

_MAX_REPLIES = 100_000


def memoized(lm: dspy.LM) -> dspy.LM:
    """Wrap a greedy model in a reply cache; return any other model unchanged."""
    if lm.kwargs.get("temperature") != 0.0:
        return lm
    return lm.copy(engine=MemoizedEngine(cast(Engine, lm.engine), _MAX_REPLIES))


class MemoizedEngine:
    """An engine that sends each distinct request once; failed requests are sent again."""

    def __init__(self, engine: Engine, max_replies: int) -> None:
        """Wrap an engine.

        Args:
            engine: of the frozen model.
            max_replies: the most replies that are kept; at more, all are dropped.
        """
        self._engine = engine
        self._max_replies = max_replies
        self._known: dict[bytes, Future[tuple[Response, CallRecord]]] = {}
        self._lock = threading.Lock()

    @property
    def supports_function_calling(self) -> bool:
        """True if the engine takes tools; DSPy sends none otherwise."""
        return getattr(self._engine, "supports_function_calling", False)

    def __deepcopy__(self, memo: object) -> "MemoizedEngine":
        """Return the same engine: a copied program shares the cache."""
        return self

    def complete(self, request: Request) -> Response:
        """Answer a request; equal requests wait for its reply, and are sent themselves if it failed.

        A known reply is recorded as a call without usage, since its record says whether the reply was cut.
        """
        key = blake2b(repr(request).encode(), digest_size=16).digest()
        while True:
            with self._lock:
                if len(self._known) >= self._max_replies:
                    self._known.clear()
                is_first = key not in self._known
                future = self._known.setdefault(key, Future())
            if is_first:
                break
            if future.exception() is None:
                response, record = future.result()
                record_call(record)
                return response
        try:
            with track_usage() as meter:
                response = self._engine.complete(request)
            is_repetitive = bool(meter.calls) and meter.calls[-1].is_repetitive
            record = CallRecord(request.model, Usage(), response.finish_reason, is_repetitive=is_repetitive)
            future.set_result((response, record))
        except BaseException as error:
            with self._lock:
                if self._known.get(key) is future:
                    del self._known[key]
            future.set_exception(error)
            raise
        return response
