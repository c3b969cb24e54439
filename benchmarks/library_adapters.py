"""mem0 and LangMem behind the same few calls, for libraries.py to measure; set up as in their documentation.

Both are given a whole session at once, with the first speaker as the user and the other one as the assistant,
and write with the model of the run. Both search by the embedding model of the run.
"""

import importlib.util
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any, ClassVar

from locomo.types import Conversation, Session
from memory_program.agents.writer import format_session_date
from memory_program.bank.dense import DenseIndex
from memory_program.core.errors import MemoryProgramError
from memory_program.models.http_engine import NO_KEY, read_key

_ALL = 100_000  # more memories than a conversation has
_REPLY_TOKENS = 2000  # mem0's default; LangMem has none, so that a loop would fill the context
_TIMEOUT_S = 3600.0  # both have 600 s by default, which a reply of 2,000 tokens can take on a CPU


class LostMemoryError(MemoryProgramError):
    """A library reported a memory as written, and its store does not have it."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The model of a library: its name on the server, and the address."""

    model: str
    url: str

    @property
    def key(self) -> str:
        """The key of the environment; a local server needs none."""
        return read_key("OPENAI_API_KEY") or NO_KEY


@dataclass(frozen=True, slots=True)
class FoundMemory:
    """A memory that a search found, and the day of the session that wrote it last."""

    text: str
    day: date


class Library(ABC):
    """The memory of one conversation."""

    packages: ClassVar[tuple[str, ...]]
    """The modules that it is made of."""

    @classmethod
    def missing_packages(cls) -> list[str]:
        """List the modules that are not installed."""
        return [name for name in cls.packages if importlib.util.find_spec(name) is None]

    @abstractmethod
    def __init__(self, talk: Conversation, endpoint: Endpoint, dense: DenseIndex, folder: Path) -> None:
        """Make an empty memory, with its files in a folder."""

    @abstractmethod
    def remember(self, session: Session) -> int:
        """Write the memories of a session; return the number written, changed or deleted.

        Raises:
            Exception: any error of the library.
        """

    @abstractmethod
    def search(self, query: str, limit: int) -> list[FoundMemory]:
        """Find memories, best first."""

    def close(self) -> None:  # noqa: B027  # a memory without files has nothing to close
        """Close the files."""


class Mem0(Library):
    """mem0's open-source ``Memory`` with its default store, Qdrant in this process.

    Its prompt counts relative times from the day of the run, and takes no other; so its custom instructions,
    which have the highest priority there, give the session's date. Without spaCy and fastembed, which are
    optional and load models, it ranks by the embedding alone.
    """

    packages = ("mem0", "langchain")

    def __init__(self, talk: Conversation, endpoint: Endpoint, dense: DenseIndex, folder: Path) -> None:
        """Make a memory with a collection and a history of its own."""
        os.environ["MEM0_TELEMETRY"] = "False"  # both are read when the module is loaded
        os.environ["MEM0_DIR"] = str(folder)
        os.environ.pop("OPENROUTER_API_KEY", None)  # with it, mem0 would call another server
        from mem0 import Memory  # pyright: ignore[reportMissingImports]  # an extra

        self._user = {"user_id": talk.conversation_id}
        self._first_speaker = talk.sessions[0].turns[0].speaker
        llm = {"model": endpoint.model, "openai_base_url": endpoint.url, "api_key": endpoint.key}
        store = {"path": str(folder / "qdrant"), "embedding_model_dims": dense.dimension, "on_disk": True}
        self._memory = Memory.from_config(
            {
                "llm": {
                    "provider": "openai",
                    "config": {**llm, "temperature": 0.0, "max_tokens": _REPLY_TOKENS},
                },
                "embedder": {"provider": "langchain", "config": {"model": _embeddings(dense)}},
                "vector_store": {"provider": "qdrant", "config": {"collection_name": "memories", **store}},
                "history_db_path": str(folder / "history.db"),
            }
        )
        self._memory.llm.client = self._memory.llm.client.with_options(timeout=_TIMEOUT_S)

    def remember(self, session: Session) -> int:
        """Call ``add``."""
        day = session.date_time.date().isoformat()
        done = self._memory.add(
            _messages(session, self._first_speaker),
            **self._user,
            metadata={"created_at": session.date_time.isoformat()},
            prompt=f"The Observation Date is {day}. Resolve every relative time against this date.",
        )
        return len(done["results"])

    def search(self, query: str, limit: int) -> list[FoundMemory]:
        """Call ``search``, with its own threshold."""
        found = self._memory.search(query, top_k=limit, filters=dict(self._user))["results"]
        return [FoundMemory(one["memory"], datetime.fromisoformat(one["created_at"]).date()) for one in found]

    def close(self) -> None:
        """Close the history and the store."""
        self._memory.close()
        self._memory.vector_store.client.close()


class LangMem(Library):
    """LangMem's store manager, over LangGraph's store in memory with an index of embeddings.

    The manager changes and deletes memories through trustcall, so the server has to answer with tool calls.
    """

    packages = ("langmem", "langgraph", "langchain_openai")

    def __init__(self, talk: Conversation, endpoint: Endpoint, dense: DenseIndex, folder: Path) -> None:
        """Make a manager with a store of its own; the folder is not used."""
        from langchain_openai import ChatOpenAI  # pyright: ignore[reportMissingImports]  # an extra
        from langgraph.store.memory import InMemoryStore
        from langmem import create_memory_store_manager  # pyright: ignore[reportMissingImports]  # an extra

        self._namespace = ("memories", talk.conversation_id)
        self._first_speaker = talk.sessions[0].turns[0].speaker
        self._store = InMemoryStore(index={"dims": dense.dimension, "embed": _embeddings(dense)})
        model = ChatOpenAI(
            model=endpoint.model,
            base_url=endpoint.url,
            api_key=endpoint.key,
            temperature=0.0,
            max_tokens=_REPLY_TOKENS,
            timeout=_TIMEOUT_S,
        )
        self._manager = create_memory_store_manager(model, namespace=self._namespace, store=self._store)
        self._days: dict[str, date] = {}
        """The day of the session that wrote each live memory last."""

    def remember(self, session: Session) -> int:
        """Call ``invoke``, and check that everything was stored: the manager drops errors of its store.

        Raises:
            LostMemoryError: something was not.
        """
        dated = {"role": "user", "content": f"This session took place on {format_session_date(session)}."}
        said = _messages(session, self._first_speaker)
        put = self._manager.invoke({"messages": [dated, *said]}, config={"configurable": {}})
        live = {item.key for item in self._store.search(self._namespace, limit=_ALL)}
        written = {one["key"] for one in put}
        if lost := written - live:
            raise LostMemoryError(f"{len(lost)} of {len(written)} memories were not stored: see its log")
        deleted = self._days.keys() - live
        day = session.date_time.date()
        self._days = {key: day if key in written else self._days[key] for key in live}
        return len(written) + len(deleted)

    def search(self, query: str, limit: int) -> list[FoundMemory]:
        """Search the store, as LangMem's search tool does."""
        found = self._store.search(self._namespace, query=query, limit=limit)
        return [FoundMemory(one.value["content"]["content"], self._days[one.key]) for one in found]


def _messages(session: Session, first_speaker: str) -> list[dict[str, str]]:
    """Write a session as messages; each says its speaker, since the roles do not."""
    return [
        {"role": "user" if turn.speaker == first_speaker else "assistant", "content": turn.line}
        for turn in session.turns
    ]


def _embeddings(dense: DenseIndex) -> Any:  # a class of LangChain, which may be missing
    """Make LangChain's interface to an embedding model of this project."""
    from langchain_core.embeddings import Embeddings

    class SharedEmbeddings(Embeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            own = dense.fork()
            own.add(texts)
            return own.vectors.tolist()

        def embed_query(self, text: str) -> list[float]:
            return dense.embed_queries([text])[0].tolist()

    return SharedEmbeddings()


LIBRARIES: dict[str, type[Library]] = {"mem0": Mem0, "langmem": LangMem}
"""The libraries by the names of their systems."""
