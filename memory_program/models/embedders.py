"""Makes the dense index of an embedding model: one behind an address, or one in this process.

Names are LiteLLM's, ``provider/model``, or ``local:`` and a folder or hub id of a sentence-transformers or
model2vec model. A failed call is an error that names the endpoint; nothing is ever found by words instead.
"""

import sqlite3
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from dspy import lm15
from dspy.clients.engines.litellm_errors import litellm_errors
from numpy.typing import ArrayLike, NDArray
from tenacity import Retrying, retry_if_exception

from locomo.json_at import INVALID_CHARACTERS
from memory_program.bank.dense import (
    DENSE_WEIGHT,
    DenseIndex,
    EmbeddingFunction,
    TokenFunction,
    text_digest,
)
from memory_program.core.errors import (
    EmbeddingCallError,
    EmbeddingError,
    EmbeddingMismatchError,
    StoreError,
    one_line,
)
from memory_program.core.extras import name_missing_extra
from memory_program.core.redaction import redact_error
from memory_program.models.factory import missing_keys
from memory_program.models.http_engine import NO_KEY, read_key
from memory_program.models.litellm_engine import import_litellm
from memory_program.models.model_names import embedder_fingerprint, is_bundled, is_local, model_source
from memory_program.models.rate_limit import AdaptiveLimiter, RetryPolicy

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

EMBEDDER_KEY = "EMBEDDER_API_KEY"
"""The environment variable whose key goes before that of the provider."""

_MAX_CHARS = 2000  # many models take 512 tokens, and their servers refuse more
_TIMEOUT_S = 120.0
_CLIENT_RETRIES = 1  # of OpenAI's client, within each try: LiteLLM takes 0 for its default, 2
_PROBE = "The length of this vector is that of all."
_KEPT_BYTES = 2**29
"""Vectors of tokens that are kept: those of about 10,000 turns of LoCoMo under a model of 384 dimensions."""


def load_embedder(
    name: str,
    *,
    api_base: str | None = None,
    cache_file: Path | None,
    weight: float | None = DENSE_WEIGHT,
    reranker: str | None = None,
    limiter: AdaptiveLimiter | None = None,
    retries: RetryPolicy | None = None,
) -> DenseIndex:
    """Make the empty dense index of an embedding model.

    Args:
        name: LiteLLM's name, or ``local:`` and a folder or hub id.
        api_base: the address of an OpenAI-compatible server; None is the provider's own.
        cache_file: the SQLite file of its vectors, by model and text. A text in it is never embedded again.
            None keeps no file.
        weight: as of ``DenseIndex``.
        reranker: ``local:`` and a folder or hub id of a sentence-transformers model for ``embed_tokens``.
        limiter: limits the calls of an API that run at once; None allows eight.
        retries: says which failed calls of an API are tried again.

    Raises:
        EmbeddingError: the model cannot be used; the message names it and its endpoint.
        ModelError: LiteLLM does not know the provider.
        StoreError: the file of the vectors cannot be used.
    """
    if is_bundled(name):
        raise EmbeddingError(
            f"embedder {name!r} is a language model: name an embedding model, for example "
            "openai/text-embedding-3-small"
        )
    embed_tokens = None if reranker is None else _token_function(reranker)
    model = embedder_fingerprint(name)
    lock = threading.Lock()  # tokenizers are not safe to share
    call_endpoint = partial(
        _call_endpoint, name, api_base, limiter or AdaptiveLimiter(8), retries or RetryPolicy()
    )

    @cache
    def load() -> "SentenceTransformer":
        return _load_local_model(name)

    def embed_texts(task: str, texts: list[str]) -> ArrayLike:
        readable = [INVALID_CHARACTERS.sub("\ufffd", text) for text in texts]
        if not is_local(name):
            return call_endpoint(readable)
        with lock:
            encode = load().encode_query if task == "query" else load().encode_document
            return encode(readable, show_progress_bar=False)

    embed: EmbeddingFunction = partial(embed_texts, "document")
    embed_query: EmbeddingFunction = partial(embed_texts, "query")
    if cache_file is not None:
        embed = CachedEmbedding(embed, f"document:{model}", cache_file)
        embed_query = CachedEmbedding(embed_query, f"query:{model}", cache_file)
    dimension = np.asarray(embed([_PROBE])).shape[-1]
    return DenseIndex(
        embed, model, dimension, embed_query=embed_query, weight=weight, embed_tokens=embed_tokens
    )


class CachedEmbedding:
    """An embedding function whose vectors are kept in a file. Any thread may call it, and any process."""

    def __init__(self, embed: EmbeddingFunction, model: str, path: Path) -> None:
        """Open the file, and create it if there is none.

        Raises:
            StoreError: it cannot be opened.
        """
        self._embed, self._model, self._path = embed, model, path
        with self._database() as database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS vectors (model TEXT, digest TEXT, vector BLOB,"
                " PRIMARY KEY (model, digest)) WITHOUT ROWID"
            )

    def __call__(self, texts: list[str]) -> list[NDArray[np.float32]]:
        """Return the vectors of texts; those that are not in the file are computed, and saved.

        Raises:
            EmbeddingError: the function failed.
            EmbeddingMismatchError: the model of this name gives vectors of another length than before.
            StoreError: the file cannot be read or written.
        """
        digests = [text_digest(text) for text in texts]
        marks = ", ".join("?" * len(digests))
        query = f"SELECT digest, vector FROM vectors WHERE model = ? AND digest IN ({marks})"
        with self._database() as database:
            found = database.execute(query, (self._model, *digests)).fetchall()
        known = {digest: np.frombuffer(vector, dtype=np.float32) for digest, vector in found}
        missing = {digest: text for digest, text in zip(digests, texts, strict=True) if digest not in known}
        if missing:
            fresh = np.asarray(self._embed(list(missing.values())), dtype=np.float32)
            known |= dict(zip(missing, fresh, strict=True))
            rows = [(self._model, digest, known[digest].tobytes()) for digest in missing]
            if np.isfinite(fresh).all():  # else the index refuses them
                with self._database() as database:
                    database.executemany("INSERT OR IGNORE INTO vectors VALUES (?, ?, ?)", rows)
        if len({vector.size for vector in known.values()}) > 1:
            raise EmbeddingMismatchError(
                f"{str(self._path)!r} holds vectors of {self._model!r} of another length than it gives now: "
                "delete the file, and they are computed again"
            )
        return [known[digest] for digest in digests]

    @contextmanager
    def _database(self) -> Generator[sqlite3.Connection]:
        """Open the file for one transaction."""
        try:
            with closing(sqlite3.connect(self._path, timeout=60)) as database, database:
                yield database
        except sqlite3.Error as error:
            raise StoreError(
                f"the vectors in {str(self._path)!r} cannot be used: {error}; delete the file, and they are "
                "computed again"
            ) from error


def _call_endpoint(
    name: str, api_base: str | None, limiter: AdaptiveLimiter, retries: RetryPolicy, texts: list[str]
) -> ArrayLike:
    """Embed texts by one call of an API, trying as often as the policy allows."""
    key = read_key(EMBEDDER_KEY)
    if not key and (missing := missing_keys(name)):
        if api_base is None:
            raise EmbeddingError(
                f"embedder {name!r} needs a key: set {' or '.join([*missing, EMBEDDER_KEY])} in the "
                "environment, or give the address of a server that needs none with --embedder-api-base"
            )
        key = NO_KEY
    options: dict[str, Any] = {"api_key": key} if key else {}  # Any: LiteLLM's
    options |= {"api_base": api_base} if api_base is not None else {}

    def try_once() -> ArrayLike:
        with limiter.slot():
            try:
                vectors = _request_vectors(name, texts, options)
            except (lm15.RateLimitError, lm15.TimeoutError):  # too many calls at once, either way
                limiter.record_rate_limit()
                raise
            limiter.record_success()
            return vectors

    retrying = Retrying(
        stop=retries.gives_up,
        retry=retry_if_exception(retries.should_retry),
        wait=retries.wait_s,
        reraise=True,
    )
    try:
        return retrying(try_once)
    except lm15.LM15Error as error:
        redact_error(error)
        said = one_line(error.message.partition("\n\n")[0])  # without the client's advice
        is_refused = error.status in (401, 403, 404)
        advice = f"; check --embedder, --embedder-api-base and {EMBEDDER_KEY}" if is_refused else ""
        raise EmbeddingCallError(
            f"embedder {name!r} at {api_base or 'the address of its provider'} failed: {said}{advice}"
        ) from error


def _request_vectors(name: str, texts: list[str], options: dict[str, Any]) -> ArrayLike:  # Any: LiteLLM's
    """Ask an API for the vectors of texts, trying once.

    Raises:
        lm15.LM15Error: the call failed, or its reply has not one vector for each text.
    """
    litellm = import_litellm()  # without telemetry
    try:
        with litellm_errors(model=name):
            reply = litellm.embedding(
                model=name,
                input=[text[:_MAX_CHARS] or " " for text in texts],
                timeout=_TIMEOUT_S,
                max_retries=_CLIENT_RETRIES,
                caching=False,
                **options,
            )
        # a server may answer in another order; some leave out an index, such as 0
        places = [at if item.get("index") is None else item["index"] for at, item in enumerate(reply.data)]
        if sorted(places) != list(range(len(texts))):
            raise ValueError(f"{len(texts)} texts, and vectors with the indices {places[:20]}")
        vectors = np.asarray([item["embedding"] for item in reply.data], dtype=np.float32)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise lm15.ServerError(f"the reply has not one vector for each text: {error}") from error
    return vectors[np.argsort(places)]


def _token_function(name: str) -> TokenFunction:
    """Return the function of a local model for tokens, and load the model; it keeps what it computed last."""
    lock, model, known = threading.Lock(), _load_local_model(name), dict[str, NDArray[np.float32]]()
    kept_bytes = 0

    def embed(texts: list[str]) -> list[NDArray[np.float32]]:
        nonlocal kept_bytes
        with lock:
            missing = [text for text in dict.fromkeys(texts) if text not in known]
            if missing:
                readable = [INVALID_CHARACTERS.sub("\ufffd", text) for text in missing]
                encoded: Any = model.encode(
                    readable, output_value="token_embeddings", show_progress_bar=False
                )
                for text, vectors in zip(missing, encoded, strict=True):
                    rows = vectors.float().cpu().numpy()[1:-1]  # without the marks of the beginning and end
                    known[text] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
                    kept_bytes += known[text].nbytes
            found = [known[text] for text in texts]
            while kept_bytes > _KEPT_BYTES:
                kept_bytes -= known.pop(next(iter(known))).nbytes
            return found

    try:
        embed([_PROBE])
    except (KeyError, AttributeError, ValueError) as error:
        raise EmbeddingError(
            f"reranker {name!r} has no vectors of tokens: name a sentence-transformers model that is a "
            "transformer, for example local:sentence-transformers/all-MiniLM-L6-v2"
        ) from error
    return embed


def _load_local_model(name: str) -> "SentenceTransformer":
    with name_missing_extra():
        from sentence_transformers import SentenceTransformer
    try:
        return SentenceTransformer(str(Path(model_source(name)).expanduser()))
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise EmbeddingError(
            f"embedder {name!r} cannot be loaded: {one_line(error)}; name the folder or the hub id of a "
            "sentence-transformers or model2vec model after 'local:'"
        ) from error
