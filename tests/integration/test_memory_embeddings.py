"""``memory-program serve --retrieval hybrid``: found by meaning, embedded once, nothing lost in an outage."""

import time
from itertools import repeat

import httpx
import pytest

from memory_program.bank import rows
from memory_program.bank.memory import Draft, MemoryKind, Provenance
from memory_program.bank.store import BankStore
from memory_program.core.errors import EmbeddingMismatchError
from tests.databases import DATABASES, empty_database
from tests.embedding_server import EmbeddingServer
from tests.memory_services import served
from tests.model_server import ModelServer

API = "memory/v1"
PUPPY = "Ana brought a puppy home."
OTHERS = ("Ana plays the piano.", "Ana walks along the beach.")


@pytest.fixture
def embedder():
    with EmbeddingServer() as server:
        yield server


@pytest.fixture(params=DATABASES)
def url(request, tmp_path):
    """A database with three memories and no vectors."""
    with empty_database(request.param, tmp_path) as url:
        with BankStore(url) as store:
            space = store.load("default")
            drafts = [Draft(fact, MemoryKind.SEMANTIC) for fact in (*OTHERS, PUPPY)]
            space.bank.create(drafts, Provenance("semantic", "session_1"))
            store.save(space)
        yield url


@pytest.fixture
def serve(embedder, url):
    """Serve the database with the embedder; gives a client."""
    with ModelServer() as model:

        def start(**settings):
            ranking = {"retrieval": "hybrid", "embedder": "openai/themes", "embedder_api_base": embedder.url}
            return served(url, model.url, **{**ranking, "proxy": True, **settings})

        yield start


def found(base, query, **params):
    answer = httpx.get(f"{base}/{API}/search", params={"query": query, **params}, timeout=60)
    assert answer.status_code == 200, answer.text
    return [hit["text"] for hit in answer.json()["items"]]


def add(base, content):
    message = {"role": "user", "name": "Mara", "content": content}
    return httpx.post(f"{base}/{API}/messages", json={"messages": [message], "end": True}, timeout=60)


def wait_for(condition):
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def count_vectors(url):
    with BankStore(url) as store, store.database.reading() as connection:
        return len(rows.read_vectors(connection, "default"))


@pytest.mark.parametrize("retrieval", ["hybrid", "dense"])
def test_a_memory_without_a_common_word_is_found_by_meaning(serve, retrieval):
    with serve(retrieval=retrieval) as (base, _):
        assert found(base, "Any animal around?", limit=1) == [PUPPY]
        context = httpx.get(f"{base}/{API}/context", params={"query": "Any animal around?"}).json()
        assert PUPPY in context["memories"]
    with serve(retrieval="bm25", embedder=None, embedder_api_base=None) as (base, _):
        assert found(base, "Any animal around?") == []


def test_vectors_of_memories_are_kept_in_the_database_and_deleted_with_their_namespace(serve, embedder, url):
    with serve() as (base, _):
        assert add(base, "I keep bees in Lisbon.").status_code == 202
        wait_for(lambda: count_vectors(url) == 4)
    embedder.texts.clear()
    with serve() as (base, _):
        assert found(base, "Any animal around?", limit=1) == [PUPPY]
        assert [one for one in embedder.texts if "Ana" in one or "bees" in one] == []
        assert httpx.delete(f"{base}/{API}/namespace", params={"namespace": "default"}).status_code == 200
    assert count_vectors(url) == 0


def test_an_outage_of_the_embedder_is_told_and_loses_no_turn(serve, embedder, url):
    with serve() as (base, parts):
        embedder.statuses = repeat(503)
        for path, params in (("search", {"query": "animal"}), ("context", {"query": "animal"})):
            answer = httpx.get(f"{base}/{API}/{path}", params=params, timeout=60)
            assert answer.status_code == 502
            assert answer.json()["code"] == "EmbeddingCall"
            assert answer.json()["detail"] == (
                "the embedding model of the server failed: send the request again later"
            )
        chat = {"model": "test", "messages": [{"role": "user", "content": "Any animal around?"}]}
        answer = httpx.post(f"{base}/v1/chat/completions", json=chat, timeout=60)
        assert answer.status_code == 502
        assert embedder.url not in answer.text
        body = {"memory_id": "m3", "text": "Ana brought a kitten home."}
        answer = httpx.post(f"{base}/{API}/corrections", json=body, timeout=60)
        assert answer.status_code == 502
        assert add(base, "I keep bees in Lisbon.").status_code == 202
        wait_for(lambda: parts.service.writer.counts.failed > 0)
        texts = [memory.text for memory in parts.service.bank("default").live()]
        assert sorted(texts) == sorted([*OTHERS, PUPPY])
        embedder.statuses = iter(())
        assert parts.service.wait("default", 60)
        assert found(base, "animal", limit=1) == [PUPPY]
        assert "I keep bees in Lisbon." in "\n".join(found(base, "bees Lisbon"))


def test_vectors_of_another_model_are_an_error_at_the_start(serve, url):
    with serve() as (base, _):
        assert add(base, "I keep bees in Lisbon.").status_code == 202
        wait_for(lambda: count_vectors(url) == 4)
    with (
        pytest.raises(EmbeddingMismatchError, match=r"holds vectors of 'openai/themes'"),
        serve(embedder="openai/other"),
    ):
        pass
