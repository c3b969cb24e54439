"""Reading LoCoMo's schema: what is accepted as it is, what is repaired, and what is refused and where."""

import json
from datetime import UTC, datetime

import pytest
from locomo_samples import question, sample, turn

from locomo.benchmark_errors import DatasetError
from locomo.locomo_schema import parse_locomo
from locomo.types import Category


def read(document):
    return parse_locomo(document, "talk.json")


def read_one(document):
    return read([document])[0]


def asked(**more):
    return read_one(sample(qa=[question(**more)])).questions[0]


# What is accepted


def test_a_conversation_without_questions_and_annotations_loads():
    conversation = read_one(sample())
    assert conversation.conversation_id == "talk-1"
    assert conversation.speakers == ("Ana", "Ben")
    assert [session.number for session in conversation.sessions] == [1, 2]
    assert conversation.questions == ()


def test_dates_carry_a_zone():
    assert read_one(sample()).sessions[0].date_time == datetime(2023, 5, 8, 13, 56, tzinfo=UTC)


def test_sessions_come_by_number_and_not_by_their_place_in_the_file():
    document = sample()
    talk = document["conversation"]
    talk["session_10"] = [turn("Ana", "D10:1", "Last.")]
    talk["session_10_date_time"] = "9:00 am on 1 July, 2023"
    document["conversation"] = dict(reversed(talk.items()))
    assert [session.number for session in read_one(document).sessions] == [1, 2, 10]


def test_a_date_without_a_session_is_no_session():
    document = sample()
    document["conversation"]["session_20_date_time"] = "9:00 am on 1 July, 2023"
    assert len(read_one(document).sessions) == 2


def test_outer_whitespace_goes_and_inner_newlines_stay_in_the_text_but_not_in_the_line():
    document = sample()
    document["conversation"]["session_1"][0]["text"] = "  I went\nhiking. \n"
    spoken = read_one(document).turns["D1:1"]
    assert spoken.text == "I went\nhiking."
    assert spoken.line == "Ana: I went hiking."


def test_the_caption_of_an_image_is_part_of_what_was_said():
    document = sample()
    document["conversation"]["session_1"][0] |= {
        "blip_caption": "a photo of a mountain",
        "img_url": ["https://example.org/1.jpg"],
        "query": "mountain",
    }
    spoken = read_one(document).turns["D1:1"]
    assert spoken.line == "Ana: I went hiking yesterday. [shares an image: a photo of a mountain]"
    assert (spoken.image_url, spoken.image_query) == ("https://example.org/1.jpg", "mountain")


def test_a_caption_may_stand_without_a_link():
    document = sample()
    document["conversation"]["session_1"][0]["blip_caption"] = "a photo of a mountain"
    spoken = read_one(document).turns["D1:1"]
    assert (spoken.caption, spoken.image_url) == ("a photo of a mountain", None)


@pytest.mark.parametrize("text", ["🏔️👩‍👩‍👧", "שלום עולם", "مرحبا ‏بالعالم", "<3", "naïve façade", ""])
def test_any_text_loads_unchanged(text):
    document = sample()
    document["conversation"]["session_1"][0]["text"] = text
    assert read_one(json.loads(json.dumps(document))).turns["D1:1"].text == text


def test_ten_megabytes_in_one_turn_load():
    document = sample()
    document["conversation"]["session_1"][0]["text"] = "long " * 2_000_000
    assert len(read_one(document).turns["D1:1"].text) == 9_999_999


def test_the_answer_keeps_its_type():
    assert asked(answer=2022).answer == 2022
    assert asked(answer=" 2022 ").answer == "2022"


def test_an_adversarial_question_needs_no_answer():
    trap = {"question": "?", "category": 5, "evidence": ["D1:1"], "adversarial_answer": "Mallorca"}
    found = read_one(sample(qa=[trap])).questions[0]
    assert (found.category, found.answer, found.adversarial_answer) == (
        Category.ADVERSARIAL,
        None,
        "Mallorca",
    )


# What is repaired


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (["D1:1"], ("D1:1",)),
        (["D1:2; D2:1"], ("D1:2", "D2:1")),  # several in one string
        (["D1:2 D2:1"], ("D1:2", "D2:1")),
        (["D:2:1"], ("D2:1",)),  # malformed
        (["D02:01"], ("D2:1",)),
        (["D"], ()),
        (["D1:99", "D7:1"], ()),  # names no turn
        (["D1:1", "D1:1"], ("D1:1",)),  # doubled
        ([], ()),
        (None, ()),
    ],
)
def test_evidence_is_repaired(written, expected):
    assert asked(evidence=written).evidence == expected


def test_a_question_without_evidence_is_fine():
    bare = {"question": "?", "answer": "yes", "category": 4}
    assert read_one(sample(qa=[bare])).questions[0].evidence == ()


def test_turns_of_ones_own_may_be_named_otherwise():
    document = sample(qa=[question(evidence=["morning-1"])])
    document["conversation"]["session_1"][0]["dia_id"] = "morning-1"
    assert read_one(document).questions[0].evidence == ("morning-1",)


# What is refused, and where


def change(path, value):
    """A sample with one value replaced; ``...`` removes it."""
    document = sample(qa=[question()])
    owner = document
    for key in path[:-1]:
        owner = owner[key]
    if value is ...:
        del owner[path[-1]]
    else:
        owner[path[-1]] = value
    return document


FIRST_TURN = ("conversation", "session_1", 0)
SECOND_TURN = ("conversation", "session_1", 1)
QUESTION = ("qa", 0)
NO_SESSIONS = {"speaker_a": "Ana", "speaker_b": "Ben"}


@pytest.mark.parametrize(
    ("path", "value", "where", "what"),
    [
        (("sample_id",), ..., "sample 1", "sample_id is missing"),
        (("sample_id",), 7, "sample 1: sample_id", "7 is not a string"),
        (("sample_id",), " ", "sample 1: sample_id", "is empty"),
        (("conversation",), ..., "talk-1", "conversation is missing"),
        (("conversation",), [], "talk-1: conversation", "is not an object"),
        (("conversation",), NO_SESSIONS, "talk-1: conversation", "has no session_1"),
        (("conversation", "speaker_a"), ..., "talk-1: conversation", "speaker_a is missing"),
        (("conversation", "speaker_a"), "Ben", "talk-1: conversation", "calls both speakers 'Ben'"),
        (("conversation", "session_1"), [], "session_1", "has no turns"),
        (("conversation", "session_1"), "Hi", "session_1", "is not a list"),
        (("conversation", "session_1_date_time"), ..., "conversation", "session_1_date_time is missing"),
        (("conversation", "session_1_date_time"), "yesterday", "date_time", "'yesterday' is not a date"),
        (("conversation", "session_1_date_time"), "1:56 pm on 31 June, 2023", "date_time", "not a date"),
        (("conversation", "session_1_date_time"), 1683554160, "session_1_date_time", "is not a string"),
        ((*FIRST_TURN,), "Ana: Hi", "session_1: turn 1", "is not an object"),
        ((*FIRST_TURN, "speaker"), "Bob", "session_1: turn 1: speaker", "'Bob' is an unknown speaker"),
        ((*FIRST_TURN, "dia_id"), ..., "session_1: turn 1", "dia_id is missing"),
        ((*SECOND_TURN, "dia_id"), "D1:1", "talk-1: conversation", "dia_id='D1:1' occurs twice"),
        ((*SECOND_TURN, "text"), ..., "session_1: turn 2", "text is missing"),
        ((*SECOND_TURN, "text"), ["Hi"], "session_1: turn 2: text", "is not a string"),
        ((*SECOND_TURN, "text"), "a\0b", "session_1: turn 2: text", "character 1 is '\\x00'"),
        ((*SECOND_TURN, "text"), "a\ud83d", "session_1: turn 2: text", "character 1 is '\\ud83d'"),
        ((*SECOND_TURN, "img_url"), "https://example.org", "session_1: turn 2: img_url", "is not a list"),
        (("qa",), {}, "talk-1: qa", "is not a list"),
        ((*QUESTION, "question"), "", "qa: question 1: question", "is empty"),
        ((*QUESTION, "answer"), "  ", "qa: question 1: answer", "is empty"),
        ((*QUESTION, "category"), 6, "question 1: category", "unknown category; choose from 1 (multi-hop)"),
        ((*QUESTION, "category"), "2", "qa: question 1: category", "'2' is an unknown category"),
        ((*QUESTION, "category"), True, "qa: question 1: category", "True is an unknown category"),
        ((*QUESTION, "answer"), ..., "qa: question 1", "answer is missing"),
        ((*QUESTION, "answer"), 1.5, "qa: question 1: answer", "1.5 is not a string or a whole number"),
        ((*QUESTION, "answer"), False, "qa: question 1: answer", "is not a string or a whole number"),
        ((*QUESTION, "evidence"), "D1:1", "qa: question 1: evidence", "is not a list"),
        ((*QUESTION, "evidence"), [1], "qa: question 1: evidence: entry 1", "is not a string"),
    ],
)  # fmt: skip
def test_a_fault_is_refused_by_its_place_and_kind(path, value, where, what):
    with pytest.raises(DatasetError) as caught:
        read_one(change(path, value))
    message = str(caught.value)
    assert message.startswith("talk.json: ")
    assert where in message
    assert what in message
    assert ";" in message, "the message ends with what to do"


def test_a_document_must_be_a_list_of_samples():
    with pytest.raises(DatasetError, match="is not a list"):
        read(sample())


def test_a_file_without_conversations_is_refused():
    with pytest.raises(DatasetError, match="holds no conversation"):
        read([])


def test_two_conversations_may_not_share_an_id():
    with pytest.raises(DatasetError, match="sample_id='talk-1' occurs twice"):
        read([sample(), sample()])


def test_an_error_about_a_huge_value_stays_short():
    with pytest.raises(DatasetError) as caught:
        read_one(change(("conversation", "session_1"), "x" * 10_000_000))
    assert len(str(caught.value)) < 300
