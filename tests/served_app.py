"""An ASGI application behind a real HTTP server in a thread, on a free port of the loopback address."""

import threading
import time
from types import TracebackType
from typing import Any, Self

import uvicorn


class ServedApp:
    """The server, from ``__enter__`` to ``__exit__``."""

    def __init__(self, app: Any, port: int = 0, **settings: Any) -> None:
        """Prepare; the settings are uvicorn's."""
        config = uvicorn.Config(app, port=port, log_level="critical", access_log=False, **settings)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, name="served-app", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, port = self._server.servers[0].sockets[0].getsockname()
        return host, port

    def __enter__(self) -> Self:
        self._thread.start()
        deadline = time.monotonic() + 20
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise RuntimeError("the server did not start")
            time.sleep(0.01)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(timeout=10)
