"""The types that every benchmark is read into."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from locomo_samples import question, sample

from locomo.locomo_schema import parse_locomo
from locomo.types import (
    ANSWERABLE_CATEGORIES,
    Category,
    LongMemEvalType,
    PerltqaType,
    Question,
    Session,
    Turn,
    all_questions,
    without_day,
)

HELLO = Turn("D1:1", "Ana", "Hello\nthere")
NOON = datetime(2023, 5, 8, 12, tzinfo=UTC)


def talk(**more):
    return parse_locomo([sample(**more)], "talk.json")[0]


def test_categories_have_the_numbers_of_the_released_file():
    assert [(c.value, c.label) for c in Category] == [
        (1, "multi-hop"),
        (2, "temporal"),
        (3, "open-domain"),
        (4, "single-hop"),
        (5, "adversarial"),
    ]


def test_the_headline_leaves_the_adversarial_category_out():
    assert set(Category) - set(ANSWERABLE_CATEGORIES) == {Category.ADVERSARIAL}


def test_an_utterance_spells_the_image_out():
    assert replace(HELLO, caption="a dog").utterance == "Hello\nthere [shares an image: a dog]"


def test_an_image_without_words_is_only_its_caption():
    assert replace(HELLO, text="", caption="a dog").line == "Ana: [shares an image: a dog]"


def test_a_speaker_cannot_begin_a_line():
    assert replace(HELLO, speaker="Ana\n Ben").line == "Ana Ben: Hello there"


def test_a_transcript_has_one_line_per_turn():
    session = Session(1, NOON, (HELLO, Turn("D1:2", "Ben", "Hi")))
    assert session.transcript == "Ana: Hello there\nBen: Hi"


def test_a_session_is_named_by_its_number():
    assert Session(3, NOON, (HELLO,)).session_id == "session_3"


def test_equal_content_has_an_equal_fingerprint_wherever_it_comes_from():
    assert talk().fingerprint == parse_locomo(json.loads(json.dumps([sample()])), "copy")[0].fingerprint


def test_every_part_of_a_session_counts_in_its_fingerprint():
    session = Session(1, NOON, (HELLO,))
    others = [
        Session(2, NOON, (HELLO,)),
        Session(1, NOON.replace(hour=13), (HELLO,)),
        *(
            Session(1, NOON, (changed,))
            for changed in (
                replace(HELLO, turn_id="D1:2"),
                replace(HELLO, speaker="Ben"),
                replace(HELLO, text="Hello"),
                replace(HELLO, caption="a dog"),
                replace(HELLO, image_query="a dog"),
            )
        ),
    ]
    assert len({s.fingerprint for s in [session, *others]}) == 8


def test_questions_do_not_change_what_is_remembered():
    assert talk().fingerprint == talk(qa=[question()]).fingerprint


def test_another_conversation_with_the_same_words_is_another():
    assert talk().fingerprint != parse_locomo([sample("talk-2")], "talk.json")[0].fingerprint


def test_questions_are_known_by_conversation_and_index_because_texts_repeat():
    conversations = parse_locomo([sample(n, qa=[question(), question()]) for n in ("a", "b")], "talk.json")
    assert [q.question_id for q in all_questions(conversations)] == ["a:q0", "a:q1", "b:q0", "b:q1"]


def test_turns_are_found_by_their_ids_in_order():
    assert list(talk().turns) == ["D1:1", "D1:2", "D2:1"]


def test_the_day_of_asking_is_part_of_what_a_system_is_asked():
    asked = Question("q1", 0, "How long ago?", LongMemEvalType.TEMPORAL, 9, asked_at=NOON)
    assert asked.dated_text == "How long ago? (Today is 8 May 2023.)"
    assert without_day(asked.dated_text) == asked.text
    assert replace(asked, asked_at=None).dated_text == "How long ago?"


@pytest.mark.parametrize(
    ("category", "must_abstain", "is_headline", "scored_as"),
    [
        (Category.MULTI_HOP, False, True, Category.MULTI_HOP),
        (Category.ADVERSARIAL, False, False, Category.ADVERSARIAL),
        (LongMemEvalType.PREFERENCE, False, True, Category.SINGLE_HOP),
        (LongMemEvalType.PREFERENCE, True, True, Category.ADVERSARIAL),
        (PerltqaType.EVENT, False, True, Category.SINGLE_HOP),
    ],
)
def test_what_counts_for_the_headline_and_by_whose_rule(category, must_abstain, is_headline, scored_as):
    asked = Question("q1", 0, "?", category, "x", must_abstain=must_abstain)
    assert (asked.is_headline, asked.f1_category) == (is_headline, scored_as)
    assert asked.is_answerable == (scored_as is not Category.ADVERSARIAL)
