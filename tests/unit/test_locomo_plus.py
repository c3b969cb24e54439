"""Reading LoCoMo-Plus, and what is refused."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from evaluation_samples import conversation
from locomo_plus_samples import CASES, write_locomo_plus

from locomo.benchmark_errors import DatasetError
from locomo.locomo_plus import load_locomo_plus
from locomo.locomo_schema import parse_locomo
from locomo.types import Benchmark, PlusRelation
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.configs.optimize_config import OptimizeConfig
from memory_program.core.errors import ConfigError

LAST_DAY = 12
TALKS = parse_locomo([conversation(1, LAST_DAY), conversation(2, LAST_DAY)], "test")


def test_a_cue_is_a_session_of_its_own_before_the_remark_that_calls_it_to_mind(tmp_path):
    dataset = load_locomo_plus(write_locomo_plus(tmp_path), TALKS)
    talk, _ = dataset.conversations
    assert (dataset.name, dataset.benchmark) == ("locomo-plus", Benchmark.LOCOMO_PLUS)
    assert talk.conversation_id == f"{TALKS[0].conversation_id}@0"
    asked_at = datetime(2023, 5, LAST_DAY, 12, 30, tzinfo=UTC) + timedelta(days=7)
    (question,) = talk.questions
    assert question.dated_text == (
        'Ana says: "I pay somebody to clean the windows now." What does Ben reply, with earlier talks in '
        "mind? (Today is 19 May 2023.)"
    )
    assert (question.category, question.evidence) == (PlusRelation.CAUSAL, ("cue:1", "cue:2"))
    cue = "Ana: The ladder slipped, and I hung on the gutter.\nBen: You were lucky!"
    assert (question.nuggets, question.asked_at) == ((cue,), asked_at)
    told = next(session for session in talk.sessions if session.turns[0].turn_id == "cue:1")
    assert told.date_time == asked_at - timedelta(days=14)
    days = [session.date_time for session in talk.sessions]
    assert days == sorted(days)
    assert [session.number for session in talk.sessions] == list(range(1, LAST_DAY + 2))
    others = [turn for session in talk.sessions if session is not told for turn in session.turns]
    assert others == list(TALKS[0].turns.values())
    assert question.cluster == TALKS[0].conversation_id


def test_cases_take_conversations_in_turn_and_a_vague_gap_is_none(tmp_path):
    _, talk = load_locomo_plus(write_locomo_plus(tmp_path), TALKS).conversations
    assert talk.conversation_id == f"{TALKS[1].conversation_id}@1"
    assert talk.sessions[-1].date_time == talk.questions[0].asked_at
    assert [turn.line for turn in talk.sessions[-1].turns] == [
        "Ana: I want to read a book a week.",
        "Ben: How brave.",
    ]


@pytest.mark.parametrize(
    ("gap", "days"),
    [
        ("one week later", 7),
        ("around six weeks later", 42),
        ("a month later", 30),
        ("a year after", 365),
        ("2 years later", 730),
        ("two months after the challenge ended", 60),
        ("a couple of months later", 0),
        ("several years later", 0),
    ],
)
def test_a_gap_is_counted_as_officially(tmp_path, gap, days):
    path = write_locomo_plus(tmp_path, {**CASES[0], "time_gap": gap})
    (talk,) = load_locomo_plus(path, TALKS).conversations
    told = next(session for session in talk.sessions if session.turns[0].turn_id == "cue:1")
    assert talk.questions[0].asked_at - told.date_time == timedelta(days=days)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"relation_type": "cousin"}, "case 1: relation_type: 'cousin' is an unknown relation; choose from"),
        ({"cue_dialogue": "The ladder slipped."}, "case 1: cue_dialogue: .* a line without a speaker"),
        ({"trigger_query": ""}, "case 1: trigger_query: '' has a line without a speaker"),
        ({"time_gap": None}, "case 1: time_gap is missing"),
        ({"time_gap": 3}, "case 1: time_gap: 3 is not a string"),
    ],
)
def test_a_fault_is_named_with_its_place(tmp_path, change, complaint):
    with pytest.raises(DatasetError, match=complaint):
        load_locomo_plus(write_locomo_plus(tmp_path, {**CASES[0], **change}), TALKS)


def test_a_file_without_cases_is_refused(tmp_path):
    path = tmp_path / "plus.json"
    path.write_text(json.dumps([]))
    with pytest.raises(DatasetError, match="holds no case"):
        load_locomo_plus(path, TALKS)


def test_nothing_is_downloaded_since_no_licence_is_known():
    with pytest.raises(DatasetError, match=r"names no licence.*--data PATH"):
        load_locomo_plus(None)


def test_settings_that_do_not_apply_are_refused():
    with pytest.raises(ConfigError, match="--dataset locomo-plus, which has a rubric for each question"):
        EvaluateConfig(dataset="locomo-plus", model="openai/m", rubrics="strict")
    with pytest.raises(ConfigError, match="no answers with known verdicts"):
        EvaluateConfig(dataset="locomo-plus", model="openai/m", mode="calibrate")
    with pytest.raises(ConfigError, match="no training split"):
        OptimizeConfig(dataset="locomo-plus", model="openai/m")
