"""``--retrieval hybrid`` and ``dense``: a server of embeddings or a local model, recorded and cached."""

import io
import json
import traceback
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from memory_program.bank.dense import DenseIndex
from memory_program.bank.store import BankStore
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.core.errors import ConfigError, EmbeddingError, EmbeddingMismatchError
from memory_program.core.json_files import Json
from memory_program.evaluation.evaluation_run import evaluate
from memory_program.forget.__main__ import main as forget_command
from memory_program.models.embedders import load_embedder
from memory_program.models.rate_limit import RetryPolicy
from tests.embedding_server import EmbeddingServer
from tests.evaluation_samples import write_conversations
from tests.model_server import ModelServer

pytestmark = pytest.mark.usefixtures("plots_are_not_drawn")

TALK = {
    "sample_id": "talk-1",
    "conversation": {
        "speaker_a": "Ana",
        "speaker_b": "Ben",
        "session_1_date_time": "1:30 pm on 1 May, 2023",
        "session_1": [
            {"speaker": "Ana", "dia_id": "D1:1", "text": "We brought a puppy home."},
            {"speaker": "Ben", "dia_id": "D1:2", "text": "Lovely weather here."},
            {"speaker": "Ana", "dia_id": "D1:3", "text": "The tide was high, a walk along the beach."},
        ],
    },
    "qa": [{"question": "Any dog around?", "answer": "a puppy", "category": 4, "evidence": ["D1:1"]}],
}


@pytest.fixture
def server():
    with EmbeddingServer() as served:
        yield served


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    path = tmp_path / "talk.json"
    path.write_text(json.dumps([TALK]))
    return path


def run(data: Path, folder: Path, **settings: Any) -> Json:
    defaults = {"dataset": str(data), "systems": "extractive", "mlflow": False, "output_dir": folder}
    results = evaluate(EvaluateConfig(**{**defaults, **settings}), console=Console(file=io.StringIO()))
    assert results is not None
    return results["systems"]


def ranked(folder: Path, system: str = "extractive") -> list[str]:
    (line,) = (folder / system / "answers.jsonl").read_text().splitlines()
    return [item["item_id"] for item in json.loads(line)["answer"]["ranked"]]


def with_server(server: EmbeddingServer, retrieval: str = "hybrid") -> dict[str, Any]:
    return {"retrieval": retrieval, "embedder": "openai/themes", "embedder_api_base": server.url}


def test_a_turn_without_a_common_word_is_found_by_meaning_alone(talk, server, tmp_path):
    run(talk, tmp_path / "words")
    assert ranked(tmp_path / "words") == []
    for retrieval in ("hybrid", "dense"):
        systems = run(talk, tmp_path / retrieval, **with_server(server, retrieval))
        assert ranked(tmp_path / retrieval)[0] == "D1:1"
        signature = systems["extractive"]["signature"]
        assert f"|retrieval:{retrieval}|embedder:openai/themes" in signature
        assert ("|dense_weight:1.0" in signature) == (retrieval == "hybrid")


def test_a_text_is_embedded_once_whatever_the_systems_and_attempts(talk, server, tmp_path):
    run(talk, tmp_path / "run", **with_server(server))
    assert len(server.texts) == len(set(server.texts)) == 1 + 3 + 1  # the probe, the turns, the question
    run(talk, tmp_path / "run", **with_server(server), dense_weight=2.0, systems="extractive")
    assert len(server.texts) == 5


def test_a_failed_embedding_names_the_endpoint_and_nothing_is_answered_by_words(talk, server, tmp_path):
    run(talk, tmp_path / "probed", **with_server(server))
    (tmp_path / "run").mkdir()
    (tmp_path / "probed/embeddings.sqlite").rename(tmp_path / "run/embeddings.sqlite")
    asked_again = json.loads(talk.read_text())
    asked_again[0]["qa"][0]["question"] = "Which animal lives with Ana?"
    talk.write_text(json.dumps(asked_again))
    server.statuses = repeat(400)
    with pytest.raises(EmbeddingError, match=rf"'openai/themes' at {server.url} failed: .*out of memory"):
        run(talk, tmp_path / "run", **with_server(server))
    answers = tmp_path / "run/extractive/answers.jsonl"
    assert not answers.exists() or answers.read_text() == ""
    server.statuses = iter(())
    run(talk, tmp_path / "run", **with_server(server))
    assert ranked(tmp_path / "run")[0] == "D1:1"


def test_a_server_gets_the_key_of_its_provider_and_none_is_needed(server, tmp_path, monkeypatch):
    for variable in ("EMBEDDER_API_KEY", "OPENAI_API_KEY", "MISTRAL_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    for place, key in enumerate(("", "0123456789")):
        if key:
            monkeypatch.setenv("MISTRAL_API_KEY", key)
        load_embedder("mistral/themes", api_base=server.url, cache_file=tmp_path / f"{place}.sqlite")
    assert server.keys == ["no-key", "0123456789"]


def test_an_outage_of_a_few_calls_is_survived(server, tmp_path):
    server.statuses = iter([503, 429, 500, 503, 429])
    retries = RetryPolicy(first_wait_s=0.01)
    load_embedder("openai/x", api_base=server.url, cache_file=tmp_path / "v.sqlite", retries=retries)
    assert len(server.keys) == 6


@pytest.mark.parametrize(
    ("status", "is_advised"), [(401, True), (403, True), (404, True), (429, False), (503, False)]
)
def test_only_a_refused_call_is_told_to_check_name_address_and_key(server, tmp_path, status, is_advised):
    server.statuses = repeat(status)
    with pytest.raises(EmbeddingError, match=r"failed: .*out of memory.*; start the same command") as caught:
        load_embedder(
            "openai/x",
            api_base=server.url,
            cache_file=tmp_path / "v.sqlite",
            retries=RetryPolicy(max_retries=0),
        )
    assert ("check --embedder, " in str(caught.value)) == is_advised


def test_a_provider_without_a_key_is_told_its_variables(tmp_path, monkeypatch):
    for variable in ("EMBEDDER_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(EmbeddingError, match="needs a key: set OPENAI_API_KEY or EMBEDDER_API_KEY"):
        load_embedder("openai/x", cache_file=tmp_path / "v.sqlite")


@pytest.mark.parametrize(
    "edit",
    [
        lambda data: data[::-1],
        lambda data: [{k: v for k, v in one.items() if k != "index"} for one in data],
        lambda data: [{k: v for k, v in one.items() if v != 0} for one in data],
    ],
    ids=["another order", "no index", "no index 0"],
)
def test_each_text_gets_its_own_vector(server, tmp_path, edit):
    dense = load_embedder("openai/x", api_base=server.url, cache_file=tmp_path / "v.sqlite")
    server.edit = edit
    vectors = dense.embed_queries(["dog", "sea", "piano"])
    assert vectors.argmax(axis=1).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "edit",
    [
        lambda data: [{**one, "index": 0} for one in data],
        lambda data: [{**one, "index": one["index"] + 1} for one in data],
        lambda data: data[:1],
        lambda data: [*data, data[0]],
        lambda data: ["x", "y"],
    ],
    ids=["twice the same", "from 1", "too few", "too many", "no vectors"],
)
def test_vectors_that_cannot_be_told_apart_are_an_error(server, tmp_path, edit):
    no_retries = RetryPolicy(max_retries=0)
    file = tmp_path / "v.sqlite"
    dense = load_embedder("openai/x", api_base=server.url, cache_file=file, retries=no_retries)
    server.edit = edit
    with pytest.raises(EmbeddingError, match="the reply has not one vector for each text"):
        dense.embed_queries(["dog", "sea"])


def test_no_part_of_a_key_that_a_server_echoes_is_left(server, tmp_path, monkeypatch):
    key = "correct-horse-battery-staple"
    monkeypatch.setenv("EMBEDDER_API_KEY", key)
    server.statuses = repeat(401)
    for server.message in (f"bad key {key}", f"{'wrong ' * 35}{key}"):  # the cut is within the second
        with pytest.raises(EmbeddingError, match="check --embedder") as caught:
            load_embedder("openai/x", api_base=server.url, cache_file=tmp_path / "v.sqlite")
        assert "correct-horse" not in "".join(traceback.format_exception(caught.value))


def test_a_store_records_the_embedder_and_its_vectors(server, tmp_path):
    data = write_conversations(tmp_path / "talks.json", 1, sessions=1)
    models = {"systems": "memory", "model": "openai/test", "judge_model": "none"}
    with ModelServer() as model:
        run(data, tmp_path / "run", **models, **with_server(server), api_base=model.url)
    other = DenseIndex(lambda texts: [[1.0]] * len(texts), "other", 1)
    with pytest.raises(EmbeddingMismatchError, match="'openai/themes' with dimension 4"):
        BankStore(f"sqlite:///{tmp_path}/run/banks.sqlite", other)


def test_forgetting_a_conversation_deletes_the_vectors_of_a_run(talk, server, tmp_path):
    run(talk, tmp_path / "run", **with_server(server))
    assert forget_command(["--namespace", "talk-1", "--folder", str(tmp_path / "run")]) == 0
    assert not (tmp_path / "run/embeddings.sqlite").exists()


def save_tiny_transformer(folder: Path) -> None:
    """Save an untrained BERT of a few words in the format of sentence-transformers."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "ana",
        "ben",
        "walk",
        "puppy",
        "lovely",
        "any",
        "dog",
    ]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(words))
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    BertModel(BertConfig(vocab_size=len(words), **sizes)).save_pretrained(folder)
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    transformer = Transformer(str(folder))
    SentenceTransformer(modules=[transformer, Pooling(8)]).save(str(folder))


def test_a_local_model_ranks_again_and_is_recorded(server, talk, tmp_path, monkeypatch):
    pytest.importorskip("sentence_transformers")
    save_tiny_transformer(tmp_path / "tiny")
    name = f"local:{tmp_path / 'tiny'}"
    plain = run(talk, tmp_path / "plain", **with_server(server))
    systems = run(talk, tmp_path / "run", **with_server(server), reranker=name)
    assert f"|reranker:{name}@" in systems["extractive"]["signature"]
    assert "reranker" not in plain["extractive"]["signature"]
    keys = {
        json.loads(line)["key"]
        for folder in ("plain", "run")
        for line in (tmp_path / folder / "extractive/answers.jsonl").read_text().splitlines()
    }
    assert len(keys) == 2  # answers with and without it are different records
    dense = load_embedder(name, cache_file=tmp_path / "vectors.sqlite", reranker=name)
    assert dense.embed_tokens is not None
    dense.embed(["half an emoji \ud83d"])
    assert len(dense.embed_tokens(["half an emoji \ud83d"])) == 1
    monkeypatch.setattr("memory_program.models.embedders._KEPT_BYTES", 100)  # a text has 64
    once, twice = dense.embed_tokens(["Any dog", "Any dog"])
    assert once.shape == (2, 8)
    assert np.linalg.norm(once, axis=1) == pytest.approx(1)
    assert (once == twice).all()


def test_a_local_folder_embeds_in_this_process(talk, tmp_path):
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = ["[UNK]", "dog", "puppy", "beach"]
    tokenizer = Tokenizer(WordLevel({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    weights = np.array([[0, 0, 0.1], [1, 0, 0], [1, 0, 0], [0, 1, 0]], dtype=np.float32)
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=weights)]).save(
        str(tmp_path / "tiny")
    )
    systems = run(talk, tmp_path / "run", retrieval="hybrid", embedder=f"local:{tmp_path / 'tiny'}")
    assert ranked(tmp_path / "run")[0] == "D1:1"
    assert f"embedder:local:{tmp_path / 'tiny'}@" in systems["extractive"]["signature"]
    with pytest.raises(EmbeddingError, match="has no vectors of tokens"):
        load_embedder("openai/x", cache_file=tmp_path / "v.sqlite", reranker=f"local:{tmp_path / 'tiny'}")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"retrieval": "hybrid"}, "--retrieval hybrid needs an embedding model: name one with --embedder"),
        ({"embedder": "openai/x"}, "--embedder only applies to --retrieval hybrid and dense"),
        ({"reranker": "local:x"}, "--reranker only applies to --retrieval hybrid and dense"),
        (
            {"retrieval": "dense", "embedder": "openai/x", "reranker": "openai/x"},
            "--reranker openai/x is not a local model",
        ),
        (
            {"retrieval": "dense", "embedder": "openai/x", "dense_weight": 2.0},
            "--dense-weight only applies to --retrieval hybrid",
        ),
        (
            {"retrieval": "dense", "embedder": "openai/x", "executor": "ray", "model": "openai/y"},
            "drop --retrieval or --executor",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, says):
    with pytest.raises(ConfigError, match=says):
        EvaluateConfig(**{"systems": "rag", **settings})
