"""mem0's library as a server, for serve.py to measure beside ours.

python benchmarks/mem0_server.py --port 8090 --api-base http://127.0.0.1:9000/v1 --folder FOLDER

The package ``mem0ai`` holds the library, and no server. mem0's own server (github.com/mem0ai/mem0, folder
``server``, read at 8d5b7865) runs in containers. So this is a door of ours over ``mem0.Memory``: two of its
routes with the same bodies, each a plain function in FastAPI's threads, as there. It checks no key and keeps
no log of requests. Vectors are in the library's default store, Qdrant in this process, which fails when two
threads use it at once: here they take turns. mem0's server has PostgreSQL with pgvector. spaCy and fastembed
are not used, since that server does not install them either.
"""

import argparse
import os
import threading
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from latency_server import DIMENSION
from pydantic import BaseModel


class AddedMessages(BaseModel):
    """The body of ``POST /memories``."""

    messages: list[dict[str, str]]
    user_id: str


class Search(BaseModel):
    """The body of ``POST /search``."""

    query: str
    filters: dict[str, str]
    top_k: int


class OneAtATime:
    """A vector store of mem0 whose methods run one at a time."""

    def __init__(self, store: Any) -> None:  # Any: the package is not a dependency
        """Wrap a store."""
        self._store, self._lock = store, threading.Lock()

    def __getattr__(self, name: str) -> Any:  # Any: the store's method
        method = getattr(self._store, name)

        def call(*arguments: Any, **named: Any) -> Any:  # Any: the method's
            with self._lock:
                return method(*arguments, **named)

        return call


def make_app(api_base: str, folder: Path) -> FastAPI:
    """Make the two routes over a new memory."""
    os.environ |= {"MEM0_TELEMETRY": "False", "MEM0_DIR": str(folder)}  # read when mem0 is imported
    from mem0 import Memory  # pyright: ignore[reportMissingImports]  # an extra

    model = {"api_key": "benchmark", "openai_base_url": api_base, "model": "benchmark"}
    store = {"path": str(folder / "qdrant"), "on_disk": True, "embedding_model_dims": DIMENSION}
    memory = Memory.from_config(
        {
            "llm": {"provider": "openai", "config": model},
            "embedder": {"provider": "openai", "config": model},
            "vector_store": {"provider": "qdrant", "config": store},
            "history_db_path": str(folder / "history.sqlite"),
        }
    )
    memory.vector_store = OneAtATime(memory.vector_store)
    app = FastAPI()

    @app.post("/memories", response_model=None)
    def add_memory(body: AddedMessages) -> Any:  # Any: JSON
        return memory.add(body.messages, user_id=body.user_id)

    @app.post("/search", response_model=None)
    def search_memories(body: Search) -> Any:  # Any: JSON
        return memory.search(body.query, filters=body.filters, top_k=body.top_k)

    return app


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, required=True, help="port on the loopback address")
    parser.add_argument("--api-base", required=True, help="address of latency_server.py")
    parser.add_argument("--folder", type=Path, required=True, help="an empty folder for its databases")
    options = parser.parse_args()
    app = make_app(options.api_base, options.folder)
    keep_alive_s = 75  # as memory-program serve
    uvicorn.run(
        app, port=options.port, log_level="warning", access_log=False, timeout_keep_alive=keep_alive_s
    )


if __name__ == "__main__":
    main()
