"""Search over the live memories of a bank: lexical, hybrid, and on one branch only."""

import random
import sys
import threading
import time
from datetime import date

import dspy
import numpy as np
import pytest
from numpy.typing import NDArray

from memory_program.bank.bank import MemoryBank
from memory_program.bank.dense import DenseIndex, text_digest
from memory_program.bank.lexical import Hit
from memory_program.bank.memory import MEMORY_KINDS, Draft, Memory, MemoryKind, Provenance
from memory_program.bank.memory_search import MemoryIndex, reciprocal_rank_fusion, searchable_text
from memory_program.core.errors import ConfigError, EmbeddingMismatchError, IndexingError

BY = Provenance("semantic")
WORDS = [
    "beach",
    "sunset",
    "charity",
    "race",
    "dog",
    "cat",
    "adopt",
    "paint",
    "run",
    "music",
    "piano",
    "oslo",
]
THEMES = {"beach": 0, "sea": 0, "swim": 0, "dog": 1, "puppy": 1, "music": 2, "piano": 2}


class ThemeEmbedder:
    """Embed a text as how often it speaks of each theme; a log of the calls."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def __call__(self, texts: list[str]) -> NDArray[np.float64]:
        self.batches.append(list(texts))
        vectors = np.zeros((len(texts), 4))
        vectors[:, 3] = 0.1
        for row, text in enumerate(texts):
            for word in text.lower().rstrip(".").split():
                if word in THEMES:
                    vectors[row, THEMES[word]] += 1
        return vectors


def fact(text: str, kind: MemoryKind = MemoryKind.SEMANTIC, at: date | None = None) -> Draft:
    return Draft(text, kind, at)


def bank_of(*texts: str) -> MemoryBank:
    bank = MemoryBank("test")
    for text in texts:
        bank.create([fact(text)], BY)
    return bank


def found(index: MemoryIndex, bank: MemoryBank, query: str, kind: MemoryKind | None = None) -> list[str]:
    return [scored.memory.memory_id for scored in index.search(bank, query, kind=kind)]


def write_at_random(bank: MemoryBank, rng: random.Random, count: int) -> None:
    for _ in range(count):
        live = [memory.memory_id for memory in bank.live()]
        draft = fact(" ".join(rng.choices(WORDS, k=6)), rng.choice(MEMORY_KINDS))
        if live and rng.random() < 0.3:
            bank.update(rng.choice(live), draft, BY)
        elif live and rng.random() < 0.2:
            bank.delete(rng.choice(live), BY)
        else:
            bank.create([draft], BY)


# -- by words ------------------------------------------------------------------------------------


def test_a_search_sees_every_operation_before_it() -> None:
    bank, index = bank_of("Alice lives in Oslo."), MemoryIndex()
    assert found(index, bank, "oslo") == ["m1"]
    bank.update("m1", fact("Alice lives in Bergen."), BY)
    assert found(index, bank, "oslo") == []
    assert found(index, bank, "bergen") == ["m2"]
    bank.delete("m2", BY)
    assert found(index, bank, "alice bergen") == []
    assert len(index) == 0


def test_a_memory_superseded_between_two_searches_is_not_found() -> None:
    bank, index = bank_of("Alice lives in Oslo."), MemoryIndex()
    bank.update("m1", fact("Alice lives in Bergen."), BY)
    bank.update("m2", fact("Alice lives in Tromsø."), BY)
    assert found(index, bank, "alice oslo bergen") == ["m3"]


def test_an_index_catches_up_without_listing_the_whole_bank(monkeypatch: pytest.MonkeyPatch) -> None:
    bank, index = bank_of("Alice lives in Oslo."), MemoryIndex()
    index.refresh(bank)
    monkeypatch.delattr(MemoryBank, "live")  # in a large bank it takes seconds
    bank.update("m1", fact("Alice lives in Bergen."), BY)
    assert found(index, bank, "alice bergen") == ["m2"]


@pytest.mark.parametrize("seed", range(6))
def test_an_incremental_index_equals_a_new_one(seed: int) -> None:
    rng = random.Random(seed)
    bank, index = MemoryBank("test"), MemoryIndex()
    for _ in range(12):
        write_at_random(bank, rng, rng.randint(0, 15))
        query, kind = " ".join(rng.choices(WORDS, k=3)), rng.choice([None, *MEMORY_KINDS])
        assert index.search(bank, query, 20, kind) == MemoryIndex().search(bank, query, 20, kind)
        assert len(index) == len(bank)


def test_a_kind_filters_before_top_k() -> None:
    bank = MemoryBank("test")
    bank.create([fact("beach " * 3) for _ in range(20)], BY)
    bank.create([fact("a beach, once", MemoryKind.EPISODIC)], BY)
    assert [s.memory.memory_id for s in MemoryIndex().search(bank, "beach", 1, MemoryKind.EPISODIC)] == [
        "m21"
    ]
    assert found(MemoryIndex(), bank, "beach", MemoryKind.PROCEDURAL) == []


def test_a_memory_is_found_by_the_words_of_its_date() -> None:
    bank = MemoryBank("test")
    bank.create([fact("Alice ran.", at=date(2023, 5, 7)), fact("Alice ran.", at=date(2022, 11, 30))], BY)
    assert found(MemoryIndex(), bank, "What happened in November 2022?") == ["m2"]
    assert searchable_text(bank.get("m1")) == "Alice ran. 7 May 2023"


def test_a_day_of_one_digit_is_not_the_number_of_a_room() -> None:
    bank = MemoryBank("test")
    bank.create(
        [fact("Alice ran.", at=date(2023, 5, 7)), fact("Alice is in room 7.", at=date(2023, 5, 8))], BY
    )
    assert found(MemoryIndex(), bank, "Who is in 7?") == ["m2"]


def test_a_tie_keeps_the_order_of_creation() -> None:
    assert found(MemoryIndex(), bank_of(*["the same words"] * 12), "same words") == [
        f"m{number}" for number in range(1, 11)
    ]


@pytest.mark.parametrize("seed", range(4))
def test_a_memory_has_its_best_score_of_several_queries(seed: int) -> None:
    rng = random.Random(seed)
    bank, index = MemoryBank("test"), MemoryIndex()
    for _ in range(4):
        write_at_random(bank, rng, 8)
    for top_k in (1, 3, 50):
        queries = [" ".join(rng.choices(WORDS, k=2)) for _ in range(3)]
        kind = rng.choice([None, *MEMORY_KINDS])
        best: dict[str, float] = {}
        for query in queries:
            for scored in index.search(bank, query, 50, kind):
                memory_id = scored.memory.memory_id
                best[memory_id] = max(best.get(memory_id, 0.0), scored.score)
        ranked = sorted(best.items(), key=lambda pair: (-pair[1], int(pair[0][1:])))[:top_k]
        found = index.search_any(bank, queries, top_k, kind)
        assert [(scored.memory.memory_id, scored.score) for scored in found] == ranked


@pytest.mark.parametrize("weight", [None, 1.0])
def test_a_weak_match_of_one_query_is_not_as_good_as_a_strong_match_of_another(weight) -> None:
    bank, index = bank_of("They swim.", "The puppy sleeps."), MemoryIndex(dense_index().weighted(weight))
    best, weak = index.search_any(bank, ["beach music piano", "dog"])
    assert (best.memory.memory_id, best.score) == ("m2", pytest.approx(1.0))
    assert weak.score == pytest.approx(0.45, abs=0.01)
    (alone,) = index.search(bank, "beach music piano", 1)
    assert (alone.memory.memory_id, alone.score) == ("m1", pytest.approx(1.0))


@pytest.mark.parametrize("seed", range(4))
def test_a_hybrid_search_without_meaning_ranks_by_words_for_several_queries_too(seed: int) -> None:
    rng, bank = random.Random(seed), MemoryBank("test")
    write_at_random(bank, rng, 20)
    queries = [" ".join(rng.choices(WORDS, k=rng.randint(1, 5))) for _ in range(3)]
    by_words = MemoryIndex().search_any(bank, queries)
    meaningless = DenseIndex(lambda texts: np.zeros((len(texts), 4)), "zeros", 4)
    hybrid = MemoryIndex(meaningless).search_any(bank, queries)
    assert [scored.memory for scored in hybrid] == [scored.memory for scored in by_words]
    assert [s.score for s in hybrid] == pytest.approx([s.score / by_words[0].score for s in by_words])


def test_without_a_query_nothing_is_found() -> None:
    for index in (MemoryIndex(), MemoryIndex(dense_index())):
        assert index.search_any(bank_of("A dog."), []) == []


def test_queries_are_embedded_in_batches() -> None:
    embedder = ThemeEmbedder()
    index = MemoryIndex(dense_index(embedder, batch_size=2))
    index.search_any(bank_of("sea"), ["dog", "beach", "piano"])
    assert embedder.batches == [["dog", "beach"], ["piano"], ["sea"]]


def test_a_dspy_embedder_finds_memories_without_a_common_word() -> None:
    embedder = dspy.Embedder(ThemeEmbedder(), caching=False)
    index = MemoryIndex(DenseIndex(embedder, "themes", 4))
    found = index.search(bank_of("The sea was calm.", "The piano is old."), "beach", 1)
    assert [scored.memory.text for scored in found] == ["The sea was calm."]
    assert not MemoryIndex().search(bank_of("The sea was calm."), "beach", 1)


def test_the_core_kind_has_no_memories_to_search() -> None:
    with pytest.raises(ConfigError, match="choose from episodic, semantic, procedural"):
        MemoryIndex().search(bank_of("A."), "a", kind=MemoryKind.CORE)


def test_top_k_must_be_at_least_one() -> None:
    for index in (MemoryIndex(), MemoryIndex(DenseIndex(ThemeEmbedder(), "themes", 4))):
        with pytest.raises(IndexingError, match="top_k=0"):
            index.search(bank_of("A."), "a", top_k=0)


# -- branches ------------------------------------------------------------------------------------


def test_an_earlier_version_of_the_bank_is_refused() -> None:
    bank, index = bank_of("Oslo.", "Bergen."), MemoryIndex()
    index.search(bank, "oslo")
    with pytest.raises(
        IndexingError, match="holds version 2 of another branch of bank 'test': fork the index"
    ):
        index.search(bank.undo(), "oslo")
    assert found(index, bank, "bergen") == ["m2"]


def test_another_branch_of_the_same_length_is_refused() -> None:
    bank, index = bank_of("Oslo.", "Bergen."), MemoryIndex()
    index.refresh(bank)
    other = bank.undo()
    other.create([fact("Tromsø.")], BY)
    other.create([fact("Bodø.")], BY)
    with pytest.raises(IndexingError, match="another branch"):
        index.search(other, "tromsø")


def test_a_replayed_log_is_the_same_branch() -> None:
    bank, index = bank_of("Oslo.", "Bergen."), MemoryIndex()
    index.refresh(bank)
    again = MemoryBank.replay("test", bank.operations())
    again.create([fact("Tromsø.")], BY)
    assert found(index, again, "tromsø bergen") == ["m2", "m3"]


def test_a_bank_and_its_index_are_forked_together() -> None:
    bank, index = bank_of("Oslo."), MemoryIndex()
    index.refresh(bank)
    other_bank, other_index = bank.fork(), index.fork()
    other_bank.update("m1", fact("Bergen."), BY)
    bank.create([fact("Tromsø.")], BY)
    assert found(other_index, other_bank, "oslo bergen tromsø") == ["m2"]
    assert sorted(found(index, bank, "oslo bergen tromsø")) == ["m1", "m2"]
    assert bank.get("m2").text == "Tromsø."


def test_many_threads_can_search_while_one_writes() -> None:
    bank, index = bank_of("beach zero"), MemoryIndex()
    has_ended, failures = threading.Event(), list[str]()

    def search() -> None:
        while not has_ended.is_set():
            try:
                scored = index.search(bank, "beach", 1000)
            except Exception as error:  # noqa: BLE001 - handed to the test's own thread
                failures.append(repr(error))
                return
            if [s.memory.memory_id for s in scored] != [f"m{n}" for n in range(1, len(scored) + 1)]:
                failures.append(repr(scored))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # else a switch in the short moments that matter is rare
    threads = [threading.Thread(target=search) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for number in range(100):
            bank.create([fact(f"beach {number:03}")], BY)
            time.sleep(0.001)
    finally:
        has_ended.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert failures == []
    assert len(index.search(bank, "beach", 1000)) == 101


# -- by meaning ----------------------------------------------------------------------------------


def dense_index(embedder: ThemeEmbedder | None = None, batch_size: int = 128) -> DenseIndex:
    return DenseIndex(embedder or ThemeEmbedder(), "themes", 4, batch_size)


def test_a_memory_without_a_common_word_is_found_by_meaning() -> None:
    bank = bank_of("They adopted a puppy.", "She plays the piano.", "They swim.")
    assert found(MemoryIndex(), bank, "dog") == []
    assert found(MemoryIndex(dense_index()), bank, "dog")[0] == "m1"


@pytest.mark.parametrize(("weight", "m2", "m1"), [(0.5, 1.5, 0.5), (2.0, 3.0, 2.0), (None, 1.0, 1.0)])
def test_a_hybrid_score_is_that_of_words_plus_the_weighted_cosine(weight, m2: float, m1: float) -> None:
    bank = bank_of("puppy", "a dog unlike any other")
    dense = DenseIndex(ThemeEmbedder(), "themes", 4, weight=weight)
    scored = MemoryIndex(dense).search(bank, "dog")
    assert {s.memory.memory_id: s.score for s in scored} == pytest.approx({"m2": m2, "m1": m1}, abs=0.01)


@pytest.mark.parametrize("seed", range(4))
def test_an_incremental_hybrid_index_equals_a_new_one(seed: int) -> None:
    rng = random.Random(seed)
    bank, index = MemoryBank("test"), MemoryIndex(dense_index())
    for step in range(10):
        write_at_random(bank, rng, 8)
        if step == 5:
            bank, index = bank.fork(), index.fork()
        query, kind = " ".join(rng.choices([*THEMES, *WORDS], k=3)), rng.choice([None, *MEMORY_KINDS])
        assert index.search(bank, query, 20, kind) == MemoryIndex(dense_index()).search(bank, query, 20, kind)


def test_forks_of_a_dense_index_never_see_each_other() -> None:
    bank, index = bank_of("dog"), MemoryIndex(dense_index())
    index.refresh(bank)
    other_bank, other_index = bank.fork(), index.fork()
    bank.create([fact("beach")], BY)
    other_bank.create([fact("piano")], BY)
    assert found(index, bank, "sea") == ["m2", "m1"]
    assert found(other_index, other_bank, "music") == ["m2", "m1"]
    assert found(index, bank, "sea") == ["m2", "m1"]


def test_each_text_is_embedded_once_and_in_batches() -> None:
    embedder = ThemeEmbedder()
    dense = dense_index(embedder, batch_size=2)
    bank, index = bank_of("dog", "beach", "dog", "piano", "sea"), MemoryIndex(dense)
    bank.delete("m5", BY)
    index.refresh(bank)
    bank.create([fact("beach"), fact("puppy")], BY)
    index.fork().refresh(bank)
    assert embedder.batches == [["dog", "beach"], ["piano"], ["puppy"]]


def test_cached_vectors_are_not_computed_again() -> None:
    first = dense_index()
    first.add(["dog", "beach"])
    assert set(first.unsaved()) == {text_digest("dog"), text_digest("beach")}
    embedder = ThemeEmbedder()
    second = dense_index(embedder)
    second.remember(first.unsaved())
    second.add(["beach", "dog"])
    assert embedder.batches == []
    assert not second.unsaved()
    (sea,) = second.embed_queries(["sea"])
    np.testing.assert_allclose(second.score_documents(sea), [1.0, 0.0099], atol=1e-3)
    first.mark_saved([text_digest("dog")])
    assert set(first.unsaved()) == {text_digest("beach")}


@pytest.mark.parametrize(
    ("vectors", "says"),
    [
        (np.ones((1, 3)), r"shape \(1, 3\) for 1 texts, expected \(1, 4\)"),
        (np.ones(4), r"shape \(4,\)"),
        (np.full((1, 4), np.nan), "not finite"),
    ],
)
def test_invalid_vectors_are_refused_and_nothing_is_indexed(vectors, says: str) -> None:
    bank = bank_of("dog")
    index = MemoryIndex(DenseIndex(lambda _: vectors, "broken", 4))
    for _ in range(2):
        with pytest.raises(EmbeddingMismatchError, match=says):
            index.refresh(bank)
    assert len(index) == 0


def test_a_failed_embedding_is_retried() -> None:
    embedder, calls = ThemeEmbedder(), list[int]()

    def flaky(texts: list[str]) -> NDArray[np.float64]:
        calls.append(len(texts))
        if len(calls) == 2:
            raise ConnectionError("no network")
        return embedder(texts)

    bank, index = bank_of("dog", "beach"), MemoryIndex(DenseIndex(flaky, "flaky", 4, batch_size=1))
    with pytest.raises(ConnectionError):
        index.refresh(bank)
    assert found(index, bank, "puppy") == ["m1", "m2"]
    assert embedder.batches == [["dog"], ["puppy"], ["beach"]]


def test_a_zero_vector_is_similar_to_nothing() -> None:
    dense = DenseIndex(lambda texts: np.zeros((len(texts), 4)), "zero", 4)
    assert found(MemoryIndex(dense), bank_of("dog"), "dog") == ["m1"]
    assert found(MemoryIndex(dense.empty_copy()), bank_of("dog"), "puppy") == []


@pytest.mark.parametrize(("model", "dimension", "batch"), [("", 4, 1), ("m", 0, 1), ("m", 4, 0)])
def test_a_dense_index_without_a_name_or_size_is_refused(model: str, dimension: int, batch: int) -> None:
    with pytest.raises(ConfigError, match="name the model"):
        DenseIndex(ThemeEmbedder(), model, dimension, batch)


# -- fusion --------------------------------------------------------------------------------------


def test_fusion_adds_reciprocal_ranks() -> None:
    assert reciprocal_rank_fusion([["a", "b"], ["b", "c"]]) == [
        Hit("b", 1 / 62 + 1 / 61),
        Hit("a", 1 / 61),
        Hit("c", 1 / 62),
    ]


def test_a_tie_keeps_first_seen_order() -> None:
    assert [hit.doc_id for hit in reciprocal_rank_fusion([["a"], ["b"]])] == ["a", "b"]
    assert reciprocal_rank_fusion([["a"]], k=0) == [Hit("a", 1.0)]
    assert reciprocal_rank_fusion([]) == []


def test_any_text_has_a_digest() -> None:
    assert text_digest("\ud800") != text_digest("\udfff")
    assert len(text_digest("")) == 64
    assert searchable_text(Memory("m1", MemoryKind.SEMANTIC, "A.", None, (), 1)) == "A."
