"""The incremental index equals bm25s after any additions, removals and forks."""

import random
import threading
from collections import Counter

import bm25s
import numpy as np
import pytest
from bm25s.stopwords import STOPWORDS_EN
from Stemmer import Stemmer

from memory_program.bank.lexical import BM25Index, top_positions
from memory_program.bank.stems import STOP_WORDS, tokenize
from memory_program.core.errors import IndexingError

WORDS = """
alice alice's bob dog dogs adopted running run runs painting the of and was Oslo café 東京 naïve x 7 42 happy
happily happiness session caroline melanie group support lgbtq beach sunset charity race mental health
"""
VOCABULARY = WORDS.split()


def sentence(rng: random.Random, longest: int = 25) -> str:
    return " ".join(rng.choices(VOCABULARY, k=rng.randint(0, longest)))


def scores_of_bm25s(documents: list[str], query: str, k1: float, b: float) -> np.ndarray:
    retriever = bm25s.BM25(method="lucene", k1=k1, b=b)
    retriever.index([tokenize(document) for document in documents], show_progress=False)
    known = [stem for stem in tokenize(query) if stem in retriever.vocab_dict]
    return retriever.get_scores(known) if known else np.zeros(len(documents))


def write_at_random(index: BM25Index, documents: dict[int, str], rng: random.Random) -> None:
    """Add a document, or several, or take one out; ``documents`` are the live ones by position."""
    choice = rng.random()
    if documents and choice < 0.4:
        gone = rng.choice(list(documents))
        index.remove(gone, documents.pop(gone))
        return
    texts = [sentence(rng) for _ in range(1 if choice < 0.9 else rng.randint(2, 9))]
    first = index.add_all([Counter(tokenize(text)) for text in texts])
    documents |= dict(enumerate(texts, start=first))


def assert_equals_bm25s(index: BM25Index, documents: dict[int, str], rng: random.Random) -> None:
    assert len(index) == len(documents)
    if not any(tokenize(text) for text in documents.values()):
        return
    for _ in range(3):
        query = sentence(rng, 8)
        expected = scores_of_bm25s(list(documents.values()), query, index.k1, index.b)
        scores = index.score_documents(query)
        np.testing.assert_allclose(scores[list(documents)], expected, atol=1e-5)


@pytest.mark.parametrize("seed", range(20))
def test_the_tokens_of_longer_words_without_accents_are_those_of_bm25s(seed: int) -> None:
    words = sentence(random.Random(seed)).split()
    text = " ".join(word for word in words if word.isascii() and len(word) > 1)
    expected = bm25s.tokenize(
        [text], stopwords="english", stemmer=Stemmer("english"), return_ids=False, show_progress=False
    )
    assert tokenize(text) == expected[0]


def test_the_stop_words_are_those_of_bm25s() -> None:
    assert STOP_WORDS == STOPWORDS_EN


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Cafe\u0301 in Zu\u0308rich", ["cafe", "zurich"]),
        ("CAFÉ in ZÜRICH", ["cafe", "zurich"]),
        ("Straße Søren Łódź Đorđe Ægir ﬁn", ["strass", "soren", "lodz", "dord", "aegir", "fin"]),
        ("Ёлка Άννα مُحَمَّد", ["елка", "αννα", "محمد"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("\u2764\ufe0fgreat", ["great"]),
    ],
)
def test_accents_do_not_count_and_the_vowels_of_india_do(text: str, tokens: list[str]) -> None:
    assert tokenize(text) == tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Vitamin C, plan B, room 7", ["vitamin", "c", "plan", "b", "room", "7"]),
        ("C++, C# and c; an A+", ["c++", "c#", "c", "a+"]),
        ("A plan: vitamin A, a Model S", ["plan", "vitamin", "model", "a", "s"]),
        ("A jar: vitamin A für Zoë", ["a", "jar", "vitamin", "fur", "zoe"]),
        ("I'm a U.S. citizen, it's Ana's and I don't", ["u", "citizen", "ana", "don"]),
        ("I’m here, it’s Ana’s — don’t", ["here", "ana", "don"]),
    ],
)
def test_single_characters_are_words_but_not_those_of_contractions(text: str, tokens: list[str]) -> None:
    assert tokenize(text) == tokens


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("我上周六领养了一只叫豆豆的橘猫。", "橘猫"),
        ("我上周六领养了一只叫豆豆的橘猫。", "猫"),
        ("我每天早上都喝绿茶。", "小林早上喝什么？"),
        ("昨日、新しい猫を飼いました。", "猫の名前は？"),
        ("コーヒーが好きです。", "コーヒー"),
        ("ｺｰﾋｰが好きです。", "コーヒー"),
        ("ฉันดื่มกาแฟทุกเช้า", "กาแฟ"),
        ("ฉันกินปูเมื่อวาน", "ปู"),
        ("어제 고양이를 입양했어요.", "고양이"),
        ("나는 차를 마신다", "차"),
        ("ຂ້ອຍກິນເຂົ້າຫນຽວ", "ເຂົ້າ"),
        ("ខ្ញុំចូលចិត្តកាហ្វេ", "កាហ្វេ"),
        ("ကျွန်တော် ကော်ဖီကြိုက်တယ်", "ကော်ဖီ"),
        ("我的iPhone手机丢了", "手机"),
        ("我的iPhone手机丢了", "iphone"),
        ("I live in Malmö.", "Malmo"),
        ("I live in Malmo.", "Malmö"),
        ("We use C++ at work.", "c++"),
    ],
)
def test_a_text_is_found_by_a_word_of_it_in_any_script(text: str, query: str) -> None:
    index = BM25Index()
    index.add_all([Counter(tokenize(other)) for other in ("我打算去云南", "ไปเที่ยว", "C is old", text)])
    assert index.search(query, top_k=4)[0].doc_id == 3


def test_text_without_spaces_has_its_syllables_and_pairs_of_characters() -> None:
    assert tokenize("橘猫!好") == ["橘", "猫", "橘猫", "好"]
    assert tokenize("กาแฟ") == ["กา", "าแ", "แฟ"]


@pytest.mark.parametrize("seed", range(8))
def test_scores_equal_bm25s_after_adds_and_removes(seed: int) -> None:
    rng = random.Random(seed)
    index = BM25Index(k1=rng.choice([0.9, 1.5, 2.0]), b=rng.choice([0.0, 0.4, 0.75, 1.0]))
    documents: dict[int, str] = {}
    for step in range(150):
        write_at_random(index, documents, rng)
        if step % 10 == 9:
            assert_equals_bm25s(index, documents, rng)


@pytest.mark.parametrize("seed", range(8))
def test_each_diverged_fork_equals_bm25s(seed: int) -> None:
    rng = random.Random(seed)
    lines: list[tuple[BM25Index, dict[int, str]]] = [(BM25Index(), {})]
    for _ in range(200):
        index, documents = rng.choice(lines)
        if rng.random() < 0.05 and len(lines) < 6:
            lines.append((index.fork(), dict(documents)))
        else:
            write_at_random(index, documents, rng)
    assert len(lines) > 2
    for index, documents in lines:
        assert_equals_bm25s(index, documents, rng)


def test_cached_scores_are_dropped_by_a_change_and_not_shared_with_forks() -> None:
    rng, index, later = random.Random(0), BM25Index(), " ".join(VOCABULARY)
    documents = [sentence(rng) for _ in range(20)]
    index.add_all([Counter(tokenize(document)) for document in documents])
    queries = [*dict.fromkeys(sentence(rng, 8) for _ in range(150))]  # more than are kept
    before = [index.score_documents(query).tolist() for query in queries]
    fork, afresh = index.fork(), BM25Index()
    fork.add(later)
    afresh.add_all([Counter(tokenize(document)) for document in (*documents, later)])
    for query, scores in zip(queries, before, strict=True):
        assert fork.score_documents(query).tolist() == afresh.score_documents(query).tolist()
        assert index.score_documents(query).tolist() == scores


def test_a_word_that_stands_twice_in_the_query_counts_twice() -> None:
    index = BM25Index()
    index.add("the beach")
    assert index.score_documents("beach beach")[0] == pytest.approx(2 * index.score_documents("beach")[0])


def test_results_are_sorted_and_share_a_word_with_the_query() -> None:
    index = BM25Index()
    index.add("beach and sunset")
    index.add("charity race")
    index.add("beach beach beach")
    assert [hit.doc_id for hit in index.search("a beach", top_k=10)] == [2, 0]


def test_a_tie_keeps_the_order_of_documents() -> None:
    index = BM25Index()
    for number in range(50):
        index.add("the same words" if number % 2 else "other text here")
    found = [hit.doc_id for hit in index.search("same words", top_k=7)]
    assert found == list(range(1, 15, 2))


def test_the_top_k_are_the_start_of_the_whole_ranking() -> None:
    rng = random.Random(0)
    index = BM25Index()
    for _ in range(300):
        index.add(sentence(rng))
    whole = index.search("happy dogs running to the beach", top_k=300)
    for top_k in (1, 2, 10, 100):
        assert index.search("happy dogs running to the beach", top_k) == whole[:top_k]


def test_a_removed_document_is_not_found_until_it_is_added_again() -> None:
    index = BM25Index()
    index.add("beach")
    index.add("beach sunset")
    index.remove(0, "beach")
    assert [hit.doc_id for hit in index.search("beach", 5)] == [1]
    assert index.add("beach") == 2
    assert [hit.doc_id for hit in index.search("beach", 5)] == [2, 1]
    assert (index.size, len(index)) == (3, 2)


def test_only_allowed_positions_are_found() -> None:
    index = BM25Index()
    for _ in range(6):
        index.add("beach")
    allowed = np.array([False, True, False, True, False, True])
    assert [hit.doc_id for hit in index.search("beach", 2, allowed)] == [1, 3]


def test_a_repeated_query_sees_changes() -> None:
    index = BM25Index()
    index.add("beach and sunset")
    nowhere, everywhere = np.array([False]), np.array([True, True])
    assert index.search("a beach", top_k=10, allow=nowhere) == []
    assert [hit.doc_id for hit in index.search("a beach", top_k=10)] == [0]
    index.add("beach beach beach")
    assert [hit.doc_id for hit in index.search("a beach", top_k=10, allow=everywhere)] == [1, 0]
    index.remove(0, "beach and sunset")
    assert [hit.doc_id for hit in index.search("a beach", top_k=10)] == [1]


def test_scores_of_some_positions_equal_their_full_scores() -> None:
    rng = random.Random(0)
    index = BM25Index()
    index.add_all([Counter(tokenize(sentence(rng, 40))) for _ in range(9000)])
    terms = index._query_terms(" ".join(VOCABULARY))
    every_position = np.arange(index.size, dtype=np.int32)
    np.testing.assert_array_equal(index._scores(terms), index._scores(terms, every_position), strict=True)
    some = every_position[::7]
    np.testing.assert_array_equal(index._scores(terms)[some], index._scores(terms, some), strict=True)


@pytest.mark.parametrize("seed", range(4))
def test_documents_with_all_words_are_listed(seed: int) -> None:
    rng = random.Random(seed)
    index, documents = BM25Index(), dict[int, str]()
    for _ in range(150):
        write_at_random(index, documents, rng)
    for text in ["", *[sentence(rng, 4) for _ in range(50)], *documents.values()]:
        words = set(tokenize(text))
        holding = [place for place, document in documents.items() if words <= set(tokenize(document))]
        assert index.find_with_all_words(text) == sorted(holding)


def test_empty_documents_and_queries_find_nothing() -> None:
    index = BM25Index()
    assert index.search("beach", 5) == []
    index.add("")
    index.add("the of and !?")
    assert index.search("beach", 5) == []
    index.add("beach")
    assert index.search("", 5) == []
    assert [hit.doc_id for hit in index.search("beach", 5)] == [2]


def test_any_text_can_be_a_document() -> None:
    index = BM25Index()
    for text in ["nul\0byte", "\ud800 half", "🏖️ beach שלום", "word " * 100_000]:
        index.add(text)
    assert [hit.doc_id for hit in index.search("שלום", 5)] == [2]
    assert [hit.doc_id for hit in index.search("byte", 5)] == [0]


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda index: index.remove(9, "beach"), "position=9 holds none of the 1 documents"),
        (lambda index: index.remove(0, "sunset"), "'sunset' is not the text at position 0"),
        (lambda index: index.remove(0, "beach beach"), "'beach beach' is not the text"),
        (lambda index: index.search("beach", 0), "top_k=0 must be at least 1"),
    ],
)
def test_a_wrong_call_says_what_is_wrong_and_changes_nothing(act, says: str) -> None:
    index = BM25Index()
    index.add("beach")
    with pytest.raises(IndexingError, match=says):
        act(index)
    assert [hit.doc_id for hit in index.search("beach again", 5)] == [0]
    assert len(index) == index.size == 1


def test_postings_of_removed_documents_are_freed() -> None:
    index = BM25Index()
    for number in range(1000):
        index.add("beach")
        if number >= 10:
            index.remove(number - 10, "beach")
    assert index._changed["beach"].size <= 2 * 10 + 1


def test_many_threads_can_write_to_forks() -> None:
    origin = BM25Index()
    for number in range(200):
        origin.add(sentence(random.Random(number)))
    alone = [BM25Index() for _ in range(6)]
    for index in alone:
        for number in range(200):
            index.add(sentence(random.Random(number)))
    lines = [origin, *(origin.fork() for _ in range(5))]

    def write(index: BM25Index, seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(200):
            index.add(sentence(rng))

    threads = [threading.Thread(target=write, args=(index, seed)) for seed, index in enumerate(lines)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, (index, expected) in enumerate(zip(lines, alone, strict=True)):
        write(expected, seed)
        assert index.search("happy dogs at the beach", 50) == expected.search("happy dogs at the beach", 50)


def test_top_positions_keep_ties_in_order() -> None:
    assert top_positions(np.array([0.0, 2.0, 1.0, 1.0, 2.0, 1.0]), 4) == [1, 4, 2, 3]


# -- large indexes -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_maxscore_finds_the_same_as_scoring_everything(seed: int) -> None:
    rng = random.Random(seed)
    k1, b = rng.choice([0.9, 1.5, 2.0]), rng.choice([0.0, 0.4, 0.75, 1.0])
    all_scored, index = BM25Index(k1, b), BM25Index(k1, b, scan_limit=0)
    words = [f"word{number}" for number in range(400)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    texts: list[str] = []
    for _ in range(rng.randint(1, 600)):
        texts.append(" ".join(rng.choices(words, weights, k=rng.randint(0, 20))))
        all_scored.add(texts[-1])
        index.add(texts[-1])
    for gone in rng.sample(range(len(texts)), len(texts) // 5):
        all_scored.remove(gone, texts[gone])
        index.remove(gone, texts[gone])
    chosen = 0
    for _ in range(60):
        query, top_k = " ".join(rng.choices(words, k=rng.randint(1, 8))), rng.choice([1, 3, 10, 50])
        allow = np.array([rng.random() < 0.7 for _ in texts]) if rng.random() < 0.5 else None
        assert index.search(query, top_k, allow) == all_scored.search(query, top_k, allow)
        chosen += index._candidates(index._query_terms(query), top_k, allow) is not None
    assert len(texts) < 100 or chosen > 20  # the short way was really taken


@pytest.mark.parametrize("seed", range(6))
def test_an_index_is_restored_from_its_columns(seed: int) -> None:
    rng = random.Random(seed)
    index, documents = BM25Index(), dict[int, str]()
    for _ in range(3):
        for _ in range(60):
            write_at_random(index, documents, rng)
        again = BM25Index(columns=index.columns())
        renumbered = dict(enumerate(documents.values()))
        query = sentence(rng, 8)
        expected = index.score_documents(query)[list(documents)]
        assert again.score_documents(query).tolist() == expected.tolist()
        assert (len(again), again.size) == (len(documents), len(documents))
        fork, kept = again.fork(), dict(renumbered)
        for _ in range(20):
            write_at_random(fork, kept, rng)
        assert_equals_bm25s(fork, kept, rng)
        assert_equals_bm25s(again, renumbered, rng)
        index, documents = again, renumbered
