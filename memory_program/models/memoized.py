"""A frozen model asked once: the same greedy request gives the same reply, so it is not paid for again.

Eight rollouts of a session often leave the same memories to be read for a question. Only what is frozen may
stand behind this: a reader or a judge outside the student, at temperature 0.
"""

import threading
from concurrent.futures import Future
from hashlib import blake2b
from typing import cast

import dspy
from dspy.lm15 import Request, Response

from memory_program.models.rate_limit import Engine


def memoized(lm: dspy.LM, most: int = 100_000) -> dspy.LM:
    """Give a model that remembers the replies of a greedy one; any other model comes back as it is."""
    if lm.kwargs.get("temperature") != 0.0:
        return lm
    return lm.copy(engine=MemoizedEngine(cast(Engine, lm.engine), most))


class MemoizedEngine:
    """An engine before another one that asks each request once; failures are asked again."""

    def __init__(self, engine: Engine, most: int) -> None:
        """Stand before an engine.

        Args:
            engine: of the frozen model.
            most: how many replies are kept; at more, all are forgotten.
        """
        self._engine = engine
        self._most = most
        self._known: dict[bytes, Future[Response]] = {}
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: object) -> "MemoizedEngine":
        """A copied program asks the same model."""
        return self

    def complete(self, request: Request) -> Response:
        """Answer a request; whoever asks it meanwhile waits for the same reply, and asks if that failed."""
        key = blake2b(repr(request).encode(), digest_size=16).digest()
        while True:
            with self._lock:
                if len(self._known) >= self._most:
                    self._known.clear()
                is_first = key not in self._known
                future = self._known.setdefault(key, Future())
            if is_first:
                return self._ask(key, request, future)
            if future.exception() is None:
                return future.result()

    def _ask(self, key: bytes, request: Request, future: Future[Response]) -> Response:
        try:
            future.set_result(self._engine.complete(request))
        except BaseException as error:
            with self._lock:
                if self._known.get(key) is future:
                    del self._known[key]
            future.set_exception(error)
            raise
        return future.result()
