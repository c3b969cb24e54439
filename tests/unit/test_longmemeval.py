"""Reading LongMemEval's schema: the quirks of the real file, and what is refused and where."""

import json
from datetime import UTC, datetime

import pytest
from file_server import served
from locomo_samples import write
from longmemeval_samples import instance, instances, said

from locomo.benchmark_errors import DatasetError
from locomo.longmemeval import load_longmemeval, load_membuilder_split
from locomo.types import Benchmark, LongMemEvalType


def read(tmp_path, *listed):
    return load_longmemeval(write(tmp_path / "longmemeval.json", list(listed)))


def read_one(tmp_path, **more):
    return read(tmp_path, instance(**more)).conversations[0]


def test_every_question_has_a_history_of_its_own(tmp_path):
    dataset = read(tmp_path, *instances())
    assert (dataset.name, dataset.benchmark) == ("longmemeval", Benchmark.LONGMEMEVAL)
    assert [len(c.questions) for c in dataset.conversations] == [1] * 7
    assert [c.conversation_id for c in dataset.conversations[-2:]] == ["q6", "q7_abs"]
    assert [c.questions[0].category for c in dataset.conversations[:6]] == [
        LongMemEvalType.USER,
        LongMemEvalType.ASSISTANT,
        LongMemEvalType.PREFERENCE,
        LongMemEvalType.MULTI_SESSION,
        LongMemEvalType.TEMPORAL,
        LongMemEvalType.KNOWLEDGE_UPDATE,
    ]


def test_sessions_come_by_date_and_those_after_the_question_are_kept(tmp_path):
    conversation = read_one(tmp_path)
    assert [session.date_time for session in conversation.sessions] == [
        datetime(2023, 5, 20, 2, 21, tzinfo=UTC),
        datetime(2023, 5, 21, 9, 5, tzinfo=UTC),
        datetime(2023, 6, 2, 10, 0, tzinfo=UTC),
    ]
    assert [session.number for session in conversation.sessions] == [1, 2, 3]
    assert conversation.questions[0].asked_at == datetime(2023, 5, 30, 23, 32, tzinfo=UTC)


def test_the_evidence_is_named_by_turn_and_by_session(tmp_path):
    (question,) = read_one(tmp_path).questions
    assert question.evidence == ("D2:1",)
    assert question.labelled_groups == ("D2",)
    assert read_one(tmp_path).turns["D2:1"].line == "user: My dog Rex, a beagle, turned three today."


def test_a_session_may_be_evidence_without_a_turn_that_is(tmp_path):
    told = instance()
    told["haystack_sessions"][0][0]["has_answer"] = False
    (question,) = read(tmp_path, told).conversations[0].questions
    assert (question.evidence, question.labelled_groups) == ((), ("D2",))


def test_what_is_not_there_has_no_evidence(tmp_path):
    (question,) = read_one(tmp_path, question_id="q_abs", answer="You did not mention it.").questions
    assert question.must_abstain
    assert not question.is_answerable
    assert (question.evidence, question.labelled_groups) == ((), ())


def test_an_empty_turn_is_left_out_and_the_others_keep_their_places(tmp_path):
    conversation = read_one(tmp_path)
    assert list(conversation.turns)[:2] == ["D1:1", "D1:2"]
    assert "D1:3" not in conversation.turns


def test_empty_sessions_are_left_out(tmp_path):
    told = instance()
    told["haystack_sessions"][2] = []
    conversation = read(tmp_path, told).conversations[0]
    assert [s.number for s in conversation.sessions] == [1, 2]
    assert conversation.questions[0].evidence == ("D1:1",)


def test_doubled_session_ids_are_two_sessions(tmp_path):
    conversation = read_one(tmp_path, haystack_session_ids=["answer_1", "filler_2", "filler_2"])
    assert len(conversation.sessions) == 3


def test_a_number_is_an_answer(tmp_path):
    assert read_one(tmp_path, answer=25).questions[0].answer == 25


def test_what_no_database_carries_is_taken_out_of_a_text(tmp_path):
    told = instance()
    told["haystack_sessions"][1][0] = said("user", "Half an emoji \ud83d and a NUL \x00.")
    turns = read(tmp_path, told).conversations[0].turns
    assert turns["D3:1"].text == "Half an emoji  and a NUL ."


def test_a_date_without_an_hour_is_midnight(tmp_path):
    asked_at = read_one(tmp_path, question_date="2023/05/30").questions[0].asked_at
    assert asked_at == datetime(2023, 5, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"question_type": "riddle"},
            "question_type: 'riddle' is an unknown type; choose from single-session-",
        ),
        ({"question_date": "yesterday"}, "question_date: 'yesterday' is not a date; write it like"),
        ({"question_date": "2023/02/30 (Thu) 10:00"}, "is not a date"),
        ({"answer": None}, "answer is missing"),
        ({"question": " "}, "question: '' is empty|question: ' ' is empty"),
        ({"haystack_dates": ["2023/05/21"]}, "3 haystack_session_ids, 1 haystack_dates, 3 haystack_sessions"),
        ({"haystack_sessions": [[], [], []]}, "has an empty history"),
        (
            {"haystack_sessions": [[said("system", "Hi")], [], []]},
            "'system' is an unknown role; choose from user",
        ),
        ({"haystack_sessions": [[said("user", 3)], [], []]}, "content: 3 is not a string"),  # type: ignore[arg-type]
    ],
)
def test_what_is_not_in_the_schema_is_refused_with_its_place(tmp_path, more, message):
    with pytest.raises(DatasetError, match=message) as caught:
        read_one(tmp_path, **more)
    assert str(caught.value).startswith("longmemeval.json: instance 1")


def test_a_question_id_stands_once(tmp_path):
    with pytest.raises(DatasetError, match="question_id='a1b2c3d4' occurs twice"):
        read(tmp_path, instance(), instance())


def test_a_file_without_questions_is_refused(tmp_path):
    with pytest.raises(DatasetError, match="holds no instance"):
        read(tmp_path)


def test_it_is_downloaded_once_and_its_hash_is_kept(tmp_path):
    (tmp_path / "web").mkdir()
    path = write(tmp_path / "web" / "longmemeval_s_cleaned.json", instances())
    cache = tmp_path / "cache"
    with served(tmp_path / "web") as address:
        dataset = load_longmemeval(url=f"{address}/{path.name}", cache_dir=cache)
    assert len(dataset.conversations) == 7
    again = load_longmemeval(url=f"{address}/{path.name}", cache_dir=cache)  # nobody serves any more
    assert again == dataset
    assert (cache / f"{path.name}.sha256").read_text().strip() == dataset.sha256


def test_other_splits_than_membuilders_are_refused(tmp_path):
    write(tmp_path / "longmemeval_splits.json", {"sft": ["q1"], "rl": [], "test": []})
    with served(tmp_path) as address, pytest.raises(DatasetError, match="e9b777da5185"):
        load_membuilder_split("sft", url=f"{address}/longmemeval_splits.json", cache_dir=tmp_path / "cache")


def test_the_file_is_utf8_json(tmp_path):
    path = tmp_path / "cut.json"
    path.write_text(json.dumps(instances())[:500])
    with pytest.raises(DatasetError, match="may be truncated"):
        load_longmemeval(path)
