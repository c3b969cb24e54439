import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unicodedata import category

import numpy as np
import pytest
from rich.console import Console

from locomo.types import Session, Turn
from memory_program.agents.context import format_reader_line
from memory_program.bank.archive import Archive
from memory_program.bank.dense import DenseIndex
from memory_program.bank.passages import count_words, split_passages
from memory_program.bank.stems import tokenize
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.core.errors import IndexingError, SessionConflictError
from memory_program.evaluation.evaluation_run import evaluate
from memory_program.evaluation.question_selection import load_selection
from memory_program.evaluation.report.write_reports import load_system_records
from tests.conversations import session
from tests.embedding_server import theme_vector
from tests.evaluation_samples import conversation


def archive_of(*sessions):
    archive = Archive()
    for one in sessions:
        archive.add_sessions([one])
    return archive


def ids(archive, query, top_k=50):
    return [found.turn.turn_id for found in archive.search(query, top_k)]


def test_a_turn_is_found_by_its_own_words_with_its_session():
    dogs = session(1, "Ana: I adopted a dog.", "Ben: Lovely.")
    archive = archive_of(dogs, session(2, "Ana: The garden is dry."))
    best = archive.search("adopted dog")[0]
    assert (best.turn, best.session) == (dogs.turns[0], dogs)


def test_a_word_is_found_however_its_letters_are_written():
    moved = session(1, "Zoe\u0308: I moved to Zu\u0308rich.", "Ben: Oh.")
    archive = archive_of(moved, session(2, "Ana: It rains."))
    assert ids(archive, "Zürich")[0] == "D1:1"
    assert ids(archive, "Where does Zoë live?")[0] == "D1:1"


def test_a_turn_that_shares_nothing_with_the_query_is_not_found():
    archive = archive_of(session(1, "Ana: I adopted a dog."), session(2, "Ana: The garden is dry."))
    assert ids(archive, "adopted dog") == ["D1:1"]
    assert ids(archive, "violin") == []


def test_a_single_turn_is_the_best_for_every_word_that_it_has():
    archive = archive_of(session(1, "Ana: I adopted a dog."))
    (found,) = archive.search("a dog in the garden")
    assert found.score == pytest.approx(1 + 0.3)  # the best passage, and the best session
    assert archive.search("violin") == []
    assert archive.stem_idf("dog") == pytest.approx(math.log(2))
    assert archive.stem_idf("violin") == 0


def test_an_answer_is_found_by_the_words_of_the_question_before_it():
    archive = archive_of(
        session(
            1, "Ana: Which instrument do you play?", "Ben: Clarinet.", "Ana: Ok.", "Ben: Bye.", "Ana: Bye."
        ),
        session(2, "Ana: It rains."),
    )
    assert set(ids(archive, "Which instrument was it?")) == {"D1:1", "D1:2", "D1:3"}


def test_a_turn_that_tells_comes_before_the_turn_that_asks():
    archive = archive_of(session(1, "Ben: Did you adopt a dog?", "Ana: I did adopt a dog."))
    assert ids(archive, "adopt dog") == ["D1:2", "D1:1"]
    alike = archive_of(session(1, "Ben: You adopt a dog?"), session(2, "Ben: You adopt a dog."))
    assert ids(alike, "adopt dog") == ["D2:1", "D1:1"]


def test_the_named_speaker_comes_first():
    lines = ["Ana: I adopted a dog.", "Ben: I adopted a dog."]
    archive = archive_of(session(1, lines[0]), session(2, lines[1]))
    assert ids(archive, "Whose dog was adopted, Ana's?")[0] == "D1:1"
    assert ids(archive, "Whose dog was adopted, ben's?")[0] == "D2:1"


def test_a_named_speaker_is_known_without_accents_and_in_text_without_spaces():
    archive = Archive()
    archive.add_sessions(
        [session(1, "Zoë: I paint a lot.", "Ben: I paint a lot."), session(2, "小林: 茶。", "阿杰: 茶。")]
    )
    assert archive.search("Does Zoe paint?")[0].turn.speaker == "Zoë"
    assert archive.search("阿杰喝茶吗？")[0].turn.speaker == "阿杰"


def test_a_name_that_is_a_stop_word_is_named_with_a_capital_letter_only():
    archive = archive_of(
        session(1, "Ana: The bakery opens in June.", "Will: A bakery, great.", "Will: Great.")
    )
    assert ids(archive, "When will the bakery open?")[0] == "D1:1"
    assert archive.search("When does Will visit the bakery?")[0].turn.speaker == "Will"


def test_naming_both_speakers_favours_neither():
    archive = archive_of(session(1, "Ana: A dog."), session(2, "Ben: A dog."))
    first, second = archive.search("Do Ana and Ben have a dog?")
    assert first.score == pytest.approx(second.score)


def test_of_a_long_turn_the_passage_about_the_query_is_found_once_with_its_turn():
    filler = "Many people like to walk in the hills when the weather is fine. " * 30
    told = session(1, "user: What can I do?", f"assistant: {filler}The Bistro Verde serves gnocchi. {filler}")
    hits = archive_of(told, session(2, "user: It rains.")).search("gnocchi bistro hills")
    best = hits[0]
    assert (best.turn, best.session) == (told.turns[1], told)
    assert "gnocchi" in (best.passage or "")
    assert len(best.excerpt.text.split()) <= 120
    assert [hit.turn.turn_id for hit in hits].count("D1:2") == 1
    shown = format_reader_line(best)
    assert "gnocchi" in shown
    assert len(shown) < 1000


@pytest.mark.parametrize(
    "text",
    ["word " * 1000, "Un deux trois. " * 300, "我昨天买了一只橘猫。" * 200, "a\n" * 500],
    ids=["no mark", "sentences", "Chinese", "lines"],
)
def test_passages_keep_every_word_and_are_short(text):
    passages = split_passages(text)
    assert len(passages) > 1
    assert "".join("".join(passages).split()) == "".join(text.split())
    assert max(len(tokenize(passage)) for passage in passages) <= 600


@pytest.mark.parametrize(
    "text",
    [
        "我昨天去了市场，" * 200,
        "我昨天去了市场" * 200,
        "ฉันกินข้าวผัดกับน้องสาวที่เชียงใหม่ " * 60,
        "ฉันกินน้ำที่นี่" * 200,
        "저는 부산에서 피아노를 배웠어요 그리고 " * 80,
    ],
    ids=["Chinese clauses", "Chinese", "Thai phrases", "Thai", "Korean"],
)
def test_a_long_sentence_without_spaces_is_split_between_characters(text):
    passages = split_passages(text)
    assert "".join("".join(passages).split()) == "".join(text.split())
    assert all(0 < count_words(passage) <= 120 for passage in passages)
    assert len(passages) < 2 + count_words(text) / 75
    assert not any(category(passage[0]).startswith("M") for passage in passages)


def test_clauses_stay_whole_where_they_can():
    assert {passage[-1] for passage in split_passages("我昨天去了市场，" * 200)} == {"，"}


def test_a_long_sentence_with_a_few_foreign_words_is_cut_between_words_only():
    words = ["猫咪", *["word"] * 59] * 5
    assert [passage.split() for passage in split_passages(" ".join(words))] == [
        words[:120],
        words[120:240],
        words[240:],
    ]


_BILINGUAL = {
    "D1:1": "Ana: I adopted an orange cat in Oslo.",
    "D2:1": "小林: 我上个月在上海买了一辆自行车。",
    "D3:1": "健太: 来週、京都の祖母に会いに行きます。",
    "D4:1": "มานี: เมื่อวานฉันกินข้าวผัดกับน้องสาวที่เชียงใหม่",
    "D5:1": "지민: 저는 부산에서 피아노를 배웠어요.",
}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("Who adopted a cat?", "D1:1"),
        ("小林在哪里买了自行车？", "D2:1"),
        ("自行车", "D2:1"),
        ("祖母はどこに住んでいますか", "D3:1"),
        ("ใครกินข้าวผัด", "D4:1"),
        ("น้องสาว", "D4:1"),
        ("누가 피아노를 배웠어?", "D5:1"),
    ],
)
def test_text_without_spaces_is_found_among_other_languages(query, expected):
    talk = [session(number, line) for number, line in enumerate(_BILINGUAL.values(), start=1)]
    assert ids(archive_of(*talk), query)[0] == expected


def test_an_image_is_found_by_its_caption_and_by_the_words_it_was_looked_for_with():
    told = session(1, "Ana: Look at this.")
    with_image = replace(
        told, turns=(replace(told.turns[0], caption="a photo of a lighthouse", image_query="stormy harbour"),)
    )
    archive = archive_of(with_image, session(2, "Ben: I saw nothing."))
    assert ids(archive, "lighthouse") == ids(archive, "harbour") == ["D1:1"]


def test_a_turn_is_found_by_the_day_of_its_session():
    archive = archive_of(session(1, "Ana: I ran.", day=8), session(2, "Ana: I swam.", day=23))
    assert ids(archive, "What happened on 23 May 2023?")[0] == "D2:1"


def test_a_turn_of_the_session_that_is_about_the_query_comes_first():
    about = session(1, "Ana: My violin!", "Ben: a", "Ben: b", "Ben: c", "Ben: Violin violin.", "Ben: Violin.")
    other = session(2, "Ana: My violin!", "Ben: a", "Ben: b", "Ben: c", "Ben: Flute flute.", "Ben: Flute.")
    found = {hit.turn.turn_id: hit.score for hit in archive_of(about, other).search("violin")}
    assert found["D1:1"] > found["D2:1"]


def test_a_question_of_nothing_but_question_words_is_searched_as_it_stands():
    archive = archive_of(session(1, "Ana: Long ago."), session(2, "Ana: Now."))
    assert ids(archive, "How long?") == ["D1:1"]


def test_equal_turns_keep_their_order_and_top_k_cuts_the_rest():
    archive = archive_of(*(session(number, "Ana: A dog.") for number in (1, 2, 3)))
    assert ids(archive, "dog", top_k=2) == ["D1:1", "D2:1"]


def test_adding_a_session_later_gives_the_scores_of_adding_it_at_once():
    first, second = (
        session(1, "Ana: A dog.", "Ben: A cat."),
        session(2, "Ben: The dog barks.", "Ana: Dogs do."),
    )
    grown = archive_of(first)
    grown.search("dog")
    grown.add_sessions([second])
    assert grown.search("dog cat") == archive_of(first, second).search("dog cat")


def test_sessions_that_come_together_are_archived_as_if_they_came_one_by_one():
    talk = [
        session(1, "Ana: A dog.", "Ben: A cat."),
        session(2, "Cleo: The dog barks."),
        session(3, "Ben: Oh, a parrot."),
    ]
    together = Archive()
    together.add_sessions(talk)
    one_by_one = archive_of(*talk)
    assert (together.sessions, together.speakers) == (one_by_one.sessions, one_by_one.speakers)
    assert together.search("dog cat parrot, Ben") == one_by_one.search("dog cat parrot, Ben")
    assert together.get("D3:1") == talk[2].turns[0]


def test_of_sessions_that_come_together_all_are_archived_or_none():
    archive = archive_of(session(1, "Ana: A dog."))
    clash = session(3, "Ana: A parrot.")
    clashing = replace(clash, turns=(replace(clash.turns[0], turn_id="D2:1"),))
    for last in (session(1, "Ana: A dog."), session(2, "Ana: A cat."), clashing):
        with pytest.raises(SessionConflictError):
            archive.add_sessions([session(2, "Ana: A cat."), last])
    assert ([one.number for one in archive.sessions], ids(archive, "cat parrot")) == ([1], [])
    archive.add_sessions([])
    assert len(archive) == 1


def test_a_new_session_is_not_compared_with_every_one_that_is_archived():
    asked = []

    class Watched(Session):
        @property
        def session_id(self) -> str:
            asked.append(self.number)
            return super().session_id

    talk = session(1, "Ana: A dog.")
    archive = archive_of(Watched(talk.number, talk.date_time, talk.turns))
    asked.clear()
    archive.add_sessions([session(2, "Ana: A cat.")])
    assert asked == []


def test_what_a_fork_adds_is_not_seen_by_its_origin():
    origin = archive_of(session(1, "Ana: A dog."))
    fork = origin.fork()
    fork.add_sessions([session(2, "Ana: A dog and a cat.")])
    origin.add_sessions([session(3, "Ben: A dog and a parrot.")])
    assert set(ids(origin, "dog cat parrot")) == {"D1:1", "D3:1"}
    assert set(ids(fork, "dog cat parrot")) == {"D1:1", "D2:1"}
    assert [one.number for one in origin.sessions] == [1, 3]
    assert (len(origin), fork.get("D3:1")) == (2, None)


def test_a_session_is_archived_once_and_a_refused_one_leaves_no_trace():
    archive = archive_of(session(1, "Ana: A dog."))
    with pytest.raises(SessionConflictError, match="'session_1' is already archived"):
        archive.add_sessions([session(1, "Ana: A cat.")])
    assert ids(archive, "cat") == []


def test_a_turn_id_that_is_taken_refuses_the_whole_session():
    archive = archive_of(session(1, "Ana: A dog."))
    clash = session(2, "Ana: A cat.", "Ana: A parrot.")
    taken = replace(clash, turns=(clash.turns[0], replace(clash.turns[1], turn_id="D1:1")))
    twice = replace(clash, turns=(clash.turns[0], replace(clash.turns[1], turn_id="D2:1")))
    for refused, turn_id in ((taken, "D1:1"), (twice, "D2:1")):
        with pytest.raises(SessionConflictError, match=f"turn '{turn_id}' of 'session_2'"):
            archive.add_sessions([refused])
    assert (len(archive), ids(archive, "cat parrot")) == (1, [])


def test_a_turn_is_looked_up_by_its_id():
    archive = archive_of(session(1, "Ana: A dog."))
    assert archive.get("D1:1") == Turn("D1:1", "Ana", "A dog.")
    assert archive.get("D9:9") is None


def test_an_empty_archive_finds_nothing():
    assert Archive().search("dog") == []
    assert archive_of(session(1)).search("dog") == []


def test_a_top_k_below_one_is_refused():
    with pytest.raises(IndexingError, match="top_k=0 must be at least 1"):
        archive_of(session(1, "Ana: A dog.")).search("dog", top_k=0)


def test_a_search_keeps_jax_from_taking_the_memory_of_a_gpu(tmp_path):
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").touch()
    check = "import os; assert os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'] == 'false'\ndef top_k(*_): ..."
    (tmp_path / "jax" / "lax.py").write_text(check)
    script = (
        "import sys; from tests.unit.test_archive import archive_of, ids, session; "
        "assert ids(archive_of(session(1, 'Ana: A dog.'), session(2, 'Ana: Rain.')), 'dog') == ['D1:1']; "
        "assert 'jax.lax' in sys.modules"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("XLA_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


@pytest.mark.parametrize(("length", "is_kept"), [(1, True), (60, False)])
def test_answers_that_were_read_from_whole_long_turns_are_asked_again(tmp_path, length, is_kept):
    talk = conversation(1)
    talk["conversation"]["session_1"][0]["text"] += " It was a day." * length
    (tmp_path / "talk.json").write_text(json.dumps([talk]))
    config = EvaluateConfig(
        dataset=str(tmp_path / "talk.json"), systems="extractive", output_dir=tmp_path / "run", mlflow=False
    )
    evaluate(config, console=Console(quiet=True))
    (records,) = load_system_records(config, load_selection(config))
    (bank,) = {record.bank for record in records.builds()[-1:]}
    before = {records.run.system.answer_key(question, bank) for question in records.selection.questions}
    assert (set(records.answer_keys().values()) == before) == is_kept


# -- by meaning ----------------------------------------------------------------------------------


def dense_archive(*sessions, embed=lambda texts: list(map(theme_vector, texts)), weight=0.5, **options):
    archive = Archive(DenseIndex(embed, "themes", 4, weight=weight, **options))
    archive.add_sessions(sessions)
    return archive


PETS = session(1, "Ana: We brought a puppy home.", "Ben: Lovely.", "Ana: Bye.", "Ben: Bye.", "Ana: Bye.")
WALKS = session(2, "Ana: The tide was high at the beach.", "Ben: Did you swim?")


@pytest.mark.parametrize(
    ("weight", "query", "first"),
    [
        (0.5, "Any dog around?", "D1:1"),  # no word in common
        (0.5, "a dog in the tide", "D2:1"),  # a word counts double
        (5.0, "a dog in the tide", "D1:1"),
        (None, "a dog in the tide", "D1:1"),
    ],
)
def test_a_turn_is_found_by_its_meaning_as_much_as_the_weight_says(weight, query, first):
    assert ids(dense_archive(PETS, WALKS, weight=weight), query)[0] == first


def test_a_neighbour_is_found_by_the_meaning_of_a_turn_within_its_session_only():
    found = dense_archive(PETS, WALKS, weight=None).search("dog")
    scores = {hit.turn.turn_id: hit.score for hit in found}
    assert scores["D1:1"] > scores["D1:2"] > scores["D1:4"]
    assert scores["D1:4"] == pytest.approx(scores["D2:1"], abs=0.1)


def test_a_passage_of_a_long_turn_is_found_by_its_own_meaning():
    filler = " ".join(["The council met again and nothing came of it."] * 12)
    long = session(1, f"Ana: {filler} She played music until late. {filler}", "Ben: I see.")
    (best, *_) = dense_archive(long, weight=None).search("piano")
    assert best.turn.turn_id == "D1:1"
    assert "music" in best.excerpt.text
    assert len(best.excerpt.text) < len(long.turns[0].text) / 1.5


def test_of_two_turns_with_one_meaning_the_longer_is_first_in_a_hybrid_search():
    said = ("Ana: A puppy!", "Ben: A puppy, of our own, since we moved into the house by the lake in May.")
    short, full = (session(number, line) for number, line in enumerate(said, start=1))
    query = "Any dog around?"
    for order in ([short, full], [full, short]):
        assert ids(dense_archive(*order), query) == ["D2:1", "D1:1"]
    assert ids(dense_archive(short, full, weight=None), query) == ["D1:1", "D2:1"]


def test_the_day_of_a_question_is_not_embedded():
    embedded = []

    def embed(texts):
        embedded.extend(texts)
        return list(map(theme_vector, texts))

    dense_archive(PETS, embed=embed).search("Any dog around? (Today is 8 May 2023.)")
    assert embedded[-1] == "Any dog around?"


def list_word_vectors(texts):
    """Return a unit vector for each word of each text; words without a theme share one."""
    vectors = [np.array([theme_vector(word) for word in text.split()]).reshape(-1, 4) for text in texts]
    return [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in vectors]


def test_tokens_rank_the_best_turns_again_and_see_their_neighbours():
    themes = "Ana: A puppy at the sea with music.", "Ana: A dog.", "Ben: Piano, and a puppy.", "Ben: Is it?"
    talk = [session(number, line) for number, line in enumerate(themes, start=1)]
    talk.append(session(5, "Ana: The sea.", "Ben: Is it?"))
    plain, reranked = (dense_archive(*talk, weight=None, embed_tokens=f) for f in (None, list_word_vectors))
    before = {hit.turn.turn_id: hit.score for hit in plain.search("dog piano sea")}
    found = reranked.search("dog piano sea")
    scores = {hit.turn.turn_id: hit.score - before[hit.turn.turn_id] for hit in found}
    assert scores["D1:1"] == pytest.approx(0.4)  # each word of the query has its like
    assert scores["D1:1"] > scores["D3:1"] > scores["D2:1"] > scores["D4:1"] == 0
    assert scores["D5:1"] > scores["D5:2"] > scores["D4:1"]  # beside a turn about the sea
    assert reranked.search(" ") == plain.search(" ")


def test_an_incremental_dense_archive_equals_a_new_one_and_embeds_each_turn_once():
    embedded = []

    def embed(texts):
        embedded.extend(texts)
        return list(map(theme_vector, texts))

    archive = dense_archive(PETS, embed=embed)
    assert ids(archive, "dog")
    fork = archive.fork()
    fork.add_sessions([WALKS])
    whole = dense_archive(PETS, WALKS)
    assert fork.search("dog beach") == whole.search("dog beach")
    assert "D2:1" not in ids(archive, "dog beach")
    assert len(embedded) - len(set(embedded)) == 1  # the query, which is asked of both


def test_an_empty_dense_archive_finds_nothing():
    assert dense_archive().search("dog") == []
