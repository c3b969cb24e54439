"""Reading PerLTQA's schema: all four kinds of memory with their times, and questions about each."""

from datetime import UTC, datetime

import pytest
from file_server import served
from perltqa_samples import item, memory, questions, write_perltqa

from locomo.benchmark_errors import DatasetError
from locomo.perltqa import QA_FILE, load_perltqa, parse_event_time, parse_perltqa
from locomo.types import Benchmark, PerltqaType, evidence_group


def read_one(known=None, asked=None):
    (conversation,) = parse_perltqa(known or memory(), asked or questions())
    return conversation


def lines(session):
    return [turn.line for turn in session.turns]


def test_profile_and_relationships_are_the_background_and_come_first():
    conversation = read_one()
    assert conversation.conversation_id == "Mira Olsen"
    assert conversation.speakers == ("Mira Olsen", "Jonas Olsen")
    assert [(turn.turn_id, turn.line) for turn in conversation.sessions[0].turns] == [
        ("profile/protagonist:1", "Mira Olsen: Protagonist. Mira Olsen"),
        ("profile/age:1", "Mira Olsen: Age. 31"),
        ("profile/occupation:1", "Mira Olsen: Occupation. Bridge engineer"),
        ("profile/description:1", "Mira Olsen: description. Mira Olsen builds bridges and sails 'Petrel'"),
        (
            "social_relationship/3_0:1",
            "Mira Olsen: Jonas Olsen, younger brother. Mira's brother, who keeps bees",
        ),
        ("social_relationship/3_1:1", "Mira Olsen: Kari Moe, neighbour"),
    ]


def test_everything_is_told_in_order_of_time():
    sessions = read_one().sessions
    assert [session.number for session in sessions] == [1, 2, 3, 4, 5, 6]
    assert [(s.date_time, s.turns[0].turn_id) for s in sessions] == [
        (datetime(2021, 7, 9, tzinfo=UTC), "profile/protagonist:1"),  # undated: with the first that is dated
        (datetime(2021, 7, 9, tzinfo=UTC), "events/3_1_0:1"),  # "one windy day", and nobody spoke of it
        (datetime(2021, 7, 9, tzinfo=UTC), "events/3_0_0:1"),
        (datetime(2022, 6, 23, 21, 0, tzinfo=UTC), "events/3_0_1:1"),  # of the dialogue about it
        (datetime(2022, 6, 23, 21, 0, tzinfo=UTC), "dialogues/3_0_1#1:1"),
        (datetime(2022, 6, 24, 8, 30, tzinfo=UTC), "dialogues/3_0_1#1:4"),
    ]


def test_an_event_says_its_time_as_it_is_written():
    (event,) = read_one().sessions[3].turns
    assert event.line == (
        "Mira Olsen: Time: Midsummer night. Bees. The hives. Jonas showed Mira his new hives"
    )


def test_a_dialogue_has_its_speakers_and_no_html():
    assert lines(read_one().sessions[4]) == [
        "Jonas Olsen: Four hives now, Mira!",
        "Mira Olsen: It's loud: do they sting?",
        "Mira Olsen: They both laughed.",
    ]


def test_questions_name_their_memories():
    asked = read_one().questions
    assert [(q.index, q.category, q.evidence) for q in asked] == [
        (0, PerltqaType.PROFILE, ("profile/age:1",)),
        (1, PerltqaType.RELATIONSHIP, ("social_relationship/3_0:1",)),
        (2, PerltqaType.EVENT, ("events/3_0_0:1",)),
        (3, PerltqaType.EVENT, ("events/3_0_0:1", "events/3_0_1:1")),
        (4, PerltqaType.DIALOGUE, tuple(f"dialogues/3_0_1#1:{n}" for n in (1, 2, 3, 4))),
    ]
    assert {evidence_group(turn_id) for turn_id in asked[4].evidence} == {"dialogues/3_0_1#1"}
    assert asked[2].text == "Where did Mira's boat anchor?"
    assert {q.benchmark for q in asked} == {Benchmark.PERLTQA}


def test_a_profile_field_that_nobody_filled_in_is_no_evidence():
    asked = questions()
    asked[0]["Mira Olsen"]["profile"] = [item("Who employs Mira Olsen?", "Nobody.", "Employer")]
    assert read_one(asked=asked).questions[0].evidence == ()
    known = memory()
    known["Mira Olsen"]["profile"]["Employer"] = None
    assert read_one(known, asked).questions[0].evidence == ()


def test_questions_about_one_person_may_stand_in_two_places():
    asked = read_one(asked=[*questions(), *questions()]).questions
    assert [question.index for question in asked] == list(range(10))


@pytest.mark.parametrize(
    ("written", "time"),
    [
        ("May 12, 2022", datetime(2022, 5, 12, tzinfo=UTC)),
        ("2023-10-14 10:00", datetime(2023, 10, 14, 10, 0, tzinfo=UTC)),
        ("October 2021", datetime(2021, 10, 1, tzinfo=UTC)),
        ("2012", datetime(2012, 1, 1, tzinfo=UTC)),
        ("May 10-15, 2022", datetime(2022, 5, 10, tzinfo=UTC)),
        ("the summer of 2019", datetime(2019, 1, 1, tzinfo=UTC)),
        ("early morning on May 3, 2018", datetime(2018, 5, 3, tzinfo=UTC)),
        ("from 2012 to 2015", datetime(2012, 1, 1, tzinfo=UTC)),
        ("May 10-15 2022", datetime(2022, 5, 10, tzinfo=UTC)),
        ("10-15 May 2022", datetime(2022, 5, 10, tzinfo=UTC)),
        ("10 to 15 May 2022", datetime(2022, 5, 10, tzinfo=UTC)),
        ("June 2022 - August 2022", datetime(2022, 6, 1, tzinfo=UTC)),
        ("June to August 2022", datetime(2022, 6, 1, tzinfo=UTC)),
        ("December 31 to January 2, 2022", datetime(2021, 12, 31, tzinfo=UTC)),
        ("from 10:00 to 11:30 on May 3, 2018", datetime(2018, 5, 3, 10, 0, tzinfo=UTC)),
        ("May 3, 9 pm to 11 pm, 2018", datetime(2018, 5, 3, 21, 0, tzinfo=UTC)),
        ("9 pm - 11 pm, May 3, 2018", datetime(2018, 5, 3, 21, 0, tzinfo=UTC)),
        ("2022-05-10 to 2022-06-01", datetime(2022, 5, 10, tzinfo=UTC)),
        ("2022-05-10", datetime(2022, 5, 10, tzinfo=UTC)),
        ("9:30 pm on May 3, 2018", datetime(2018, 5, 3, 21, 30, tzinfo=UTC)),
        ("Mid-Autumn Festival night", None),
        ("", None),
        ("room 20221", None),
        (f"2023 {'1' * 45}h", datetime(2023, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_time_in_free_text_is_read_as_far_as_it_names_a_year(written, time):
    assert parse_event_time(written) == time


def test_a_year_as_a_number_is_a_time():
    known = memory()
    known["Mira Olsen"]["events"]["3_1_0"]["Creation Time"] = 2020
    assert read_one(known).sessions[1].date_time == datetime(2020, 1, 1, tzinfo=UTC)


def test_without_any_date_everything_is_on_the_same_day():
    known = memory()
    person = known["Mira Olsen"]
    del person["dialogues"]
    for event in person["events"].values():
        event["Creation Time"] = "once"
    assert len({session.date_time for session in read_one(known).sessions}) == 1


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ([], "asks about nobody"),
        ([{"Nobody": {}}], "perltmem_en_v2.json: Nobody is missing"),
        ([{"Ole Dahl": {}}], "Ole Dahl: .* tells nothing"),
        ([{"Mira Olsen": {"profile": "old"}}], "Mira Olsen: profile: 'old' is not a list"),
        (
            [{"Mira Olsen": {"events": [{"3_0_0": [{"Answer": "x"}]}]}}],
            "3_0_0: question 1: Question is missing",
        ),
    ],
)
def test_what_is_not_in_the_schema_is_refused_with_its_place(asked, message):
    with pytest.raises(DatasetError, match=message):
        parse_perltqa(memory(), asked)


def test_both_files_are_read_from_a_folder_or_from_where_one_of_them_lies(tmp_path):
    folder = write_perltqa(tmp_path / "en_v2")
    dataset = load_perltqa(folder)
    assert (dataset.name, dataset.benchmark) == ("perltqa", Benchmark.PERLTQA)
    assert dataset == load_perltqa(folder / QA_FILE)


def test_the_version_changes_with_either_file(tmp_path):
    folder = write_perltqa(tmp_path / "en_v2")
    before = load_perltqa(folder).version
    (folder / QA_FILE).write_text((folder / QA_FILE).read_text() + "\n")
    assert load_perltqa(folder).version != before


def test_both_files_are_downloaded_once(tmp_path):
    write_perltqa(tmp_path / "web")
    with served(tmp_path / "web") as address:
        dataset = load_perltqa(base_url=address, cache_dir=tmp_path / "cache")
    assert load_perltqa(base_url=address, cache_dir=tmp_path / "cache") == dataset  # nobody serves any more


def test_without_files_and_network_the_error_names_the_way_out(tmp_path):
    with served(tmp_path) as address:
        pass
    with pytest.raises(DatasetError, match="Name the folder of both files with --data PATH"):
        load_perltqa(base_url=address, cache_dir=tmp_path / "cache")
