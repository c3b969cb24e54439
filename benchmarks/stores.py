"""Other stores of memories, each behind the same few calls, for banks.py to measure."""

import importlib.util
import os
import sqlite3
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

from latency_server import DIMENSION, hashed_words

from memory_program.bank.stems import STOP_WORDS


class Store:
    """A store under measurement; it keeps what it has in a folder, if it can."""

    name: ClassVar[str]
    needs: ClassVar[tuple[str, str]] = ("", "")
    """The module that it is made of, and the package to install."""
    ranking: ClassVar[str]
    is_durable: ClassVar[bool] = True
    batch: ClassVar[int] = 10_000
    """How many memories are added at once when it is filled."""

    @classmethod
    def missing_package(cls) -> str | None:
        """Name the package that is not installed."""
        module, package = cls.needs
        try:
            return package if module and importlib.util.find_spec(module) is None else None
        except ModuleNotFoundError:  # not even the package around the module
            return package

    def __init__(self, folder: Path) -> None:
        """Open what is in the folder."""
        raise NotImplementedError

    def add(self, numbered: Sequence[tuple[int, str]]) -> None:
        """Take in memories so that the next search finds them."""
        raise NotImplementedError

    def search(self, query: str, top_k: int) -> int:
        """Find memories and say how many."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of the folder."""


class Fts5(Store):
    """SQLite's full-text index with its Porter stemmer; stop words are left out of the query."""

    name = "SQLite FTS5"
    ranking = "BM25"

    def __init__(self, folder: Path) -> None:
        self.connection = sqlite3.connect(folder / "fts5.sqlite", isolation_level=None)
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute("PRAGMA synchronous=FULL")
        self.connection.execute(
            "CREATE VIRTUAL TABLE IF NOT EXISTS memories USING fts5(text, tokenize='porter unicode61')"
        )

    def add(self, numbered: Sequence[tuple[int, str]]) -> None:
        """Insert rows in one transaction."""
        self.connection.execute("BEGIN")
        self.connection.executemany("INSERT INTO memories(rowid, text) VALUES (?, ?)", numbered)
        self.connection.execute("COMMIT")

    def search(self, query: str, top_k: int) -> int:
        """Rank the rows that hold any of the words."""
        words = " OR ".join(f'"{word}"' for word in query.split() if word.lower() not in STOP_WORDS)
        rows = self.connection.execute(
            "SELECT rowid FROM memories WHERE memories MATCH ? ORDER BY rank LIMIT ?", (words, top_k)
        )
        return len(rows.fetchall())

    def close(self) -> None:
        """Close the file."""
        self.connection.close()


class Tantivy(Store):
    """Tantivy's index with its English stemmer, one writer thread."""

    name = "tantivy"
    needs = ("tantivy", "tantivy")
    ranking = "BM25"

    def __init__(self, folder: Path) -> None:
        import tantivy  # pyright: ignore[reportMissingImports]  # an extra

        schema = tantivy.SchemaBuilder()
        schema.add_integer_field("number", stored=True)
        schema.add_text_field("text", stored=True, tokenizer_name="en_stem")
        path = folder / "tantivy"
        path.mkdir(exist_ok=True)
        self.index = tantivy.Index(schema.build(), path=str(path))
        self.writer = self.index.writer(heap_size=50_000_000, num_threads=1)
        self.document = tantivy.Document

    def add(self, numbered: Sequence[tuple[int, str]]) -> None:
        """Commit documents, and see them."""
        for number, text in numbered:
            self.writer.add_document(self.document(number=number, text=text))
        self.writer.commit()
        self.index.reload()

    def search(self, query: str, top_k: int) -> int:
        """Rank the documents that hold any of the words."""
        return len(self.index.searcher().search(self.index.parse_query(query, ["text"]), top_k).hits)

    def close(self) -> None:
        """Wait for merges."""
        self.writer.wait_merging_threads()


class LangGraphMemory(Store):
    """LangMem's store in memory, with an embedding."""

    name = "LangMem, InMemoryStore"
    needs = ("langgraph.store.memory", "langgraph")
    ranking = "cosine¹"
    is_durable = False

    def __init__(self, folder: Path) -> None:
        from langgraph.store.base import PutOp
        from langgraph.store.memory import InMemoryStore

        self.put = PutOp
        self.store = InMemoryStore(index={"dims": DIMENSION, "embed": hashed_words, "fields": ["text"]})

    def add(self, numbered: Sequence[tuple[int, str]]) -> None:
        """Put items in one batch."""
        self.store.batch(
            [self.put(("benchmark",), f"m{number}", {"text": text}) for number, text in numbered]
        )

    def search(self, query: str, top_k: int) -> int:
        """Search as configured."""
        return len(self.store.search(("benchmark",), query=query, limit=top_k))


class LangGraphSqlite(LangGraphMemory):
    """LangMem's store in SQLite; its vectors need an SQLite that loads extensions, which not all do."""

    name = "LangMem, SqliteStore"
    needs = ("langgraph.store.sqlite", "langgraph-checkpoint-sqlite")
    ranking = "nothing²"
    is_durable = True

    def __init__(self, folder: Path) -> None:
        from langgraph.store.base import PutOp
        from langgraph.store.sqlite import SqliteStore  # pyright: ignore[reportMissingImports]  # an extra

        self.put = PutOp
        self.opened = ExitStack()
        self.store = self.opened.enter_context(SqliteStore.from_conn_string(str(folder / "langgraph.sqlite")))
        self.store.setup()

    def close(self) -> None:
        """Close the file."""
        self.opened.close()


class Mem0(Store):
    """The vector store that mem0 uses by default: Qdrant in this process, on disk."""

    name = "mem0, local Qdrant"
    needs = ("mem0", "mem0ai")
    ranking = "cosine¹"
    batch = 500

    def __init__(self, folder: Path) -> None:
        os.environ["MEM0_TELEMETRY"] = "False"
        from mem0.vector_stores.qdrant import Qdrant  # pyright: ignore[reportMissingImports]  # an extra

        self.store = Qdrant("benchmark", DIMENSION, path=str(folder / "qdrant"), on_disk=True)

    def add(self, numbered: Sequence[tuple[int, str]]) -> None:
        """Insert points with their payload."""
        self.store.insert(
            hashed_words([text for _, text in numbered]),
            payloads=[{"data": text, "user_id": "benchmark"} for _, text in numbered],
            ids=[str(uuid.UUID(int=number)) for number, _ in numbered],
        )

    def search(self, query: str, top_k: int) -> int:
        """Rank by the vectors."""
        (vector,) = hashed_words([query])
        return len(self.store.search(query, vector, top_k=top_k, filters={"user_id": "benchmark"}))

    def close(self) -> None:
        """Close the folder."""
        self.store.client.close()


STORES: tuple[type[Store], ...] = (Fts5, Tantivy, LangGraphMemory, LangGraphSqlite, Mem0)
NOTES = (
    "¹ of hashed words, 64 dimensions: no model is loaded. "
    "² Without an embedding it ignores the query and lists what came first."
)
