"""The tables of facts, phrasings and words are whole: every reference leads somewhere."""

import random
import re

import pytest

from memory_program.worlds import small_talk as chat
from memory_program.worlds.catalogue import SCHEMAS, SCHEMAS_BY_KIND
from memory_program.worlds.small_talk import DISTRACTORS, build_sentence, to_second_person
from memory_program.worlds.vocabulary import (
    VOCABULARIES,
    Vocabulary,
    identifying_word,
    is_held_out,
    with_article,
)
from memory_program.worlds.word_lists import CRAFTS, FIRST_NAMES, HOBBIES, INGREDIENTS, JOBS, THINGS, TOWNS
from memory_program.worlds.world_schema import KINDS, WHEN, FactSchema, fill_template, template_fields

OPEN_LISTS = (THINGS, INGREDIENTS, JOBS, HOBBIES, CRAFTS, FIRST_NAMES, TOWNS)
ALL = pytest.mark.parametrize("schema", SCHEMAS.values(), ids=list(SCHEMAS))


def slots_in(template: str) -> set[str]:
    return {field.removeprefix("a_") for field in template_fields(template)}


@ALL
def test_slots_draw_from_vocabularies_that_exist(schema: FactSchema) -> None:
    assert set(schema.slots.values()) <= set(VOCABULARIES)


@ALL
def test_every_way_to_say_a_fact_says_all_of_it(schema: FactSchema) -> None:
    when = {"when"} if schema.tense else set[str]()
    everything = set(schema.slots) | when | ({"subject"} if schema.about else set())
    assert slots_in(schema.text) - {"name"} == everything
    for says in schema.statements:
        assert slots_in(says) == everything, says
    for text, caption in schema.shown:
        assert slots_in(text) | slots_in(caption) == everything, caption
    for question, reply in schema.asked:
        assert slots_in(question) <= everything, question
        assert slots_in(reply) >= set(schema.slots), reply


@ALL
def test_every_phrasing_of_a_question_names_the_same_slots(schema: FactSchema) -> None:
    for probe in (*schema.question_templates, *schema.bridge_templates):
        assert len({frozenset(slots_in(text)) for text in probe.texts}) == 1, probe.texts
        assert probe.answer == WHEN or slots_in(probe.answer) <= set(schema.slots)
        assert all(text.endswith("?") for text in probe.texts)


@ALL
def test_changes_lead_to_schemas_and_slots_that_exist(schema: FactSchema) -> None:
    for change in schema.changes:
        assert set(change.replaced_slots) <= set(schema.slots)
        assert change.event is None or SCHEMAS[change.event].weight == 0
        assert change.becomes is None or set(SCHEMAS[change.becomes].slots) == set(schema.slots)
        known = set(schema.slots) | {f"old_{slot}" for slot in change.replaced_slots} | {"subject"}
        known |= set(SCHEMAS[change.event].slots) if change.event else set()
        known |= {"when"} if change.tense else set()
        for says in change.statements:
            assert slots_in(says) <= known, says


@ALL
def test_keys_corrections_and_groups_name_slots(schema: FactSchema) -> None:
    named = {*schema.key, *filter(None, (schema.correctable_slot, schema.reused_slot))}
    assert named <= set(schema.slots)
    for role in schema.about:
        assert {role.subject, role.role} <= set(SCHEMAS[role.schema].slots)
    assert schema.implied_schema is None or set(SCHEMAS[schema.implied_schema].slots) == set(schema.slots)


@ALL
def test_facts_that_are_told_have_many_phrasings(schema: FactSchema) -> None:
    assert len(schema.statements) >= 3 or not schema.weight


def test_every_kind_has_facts_to_tell() -> None:
    assert all(len(SCHEMAS_BY_KIND[kind]) >= 5 for kind in KINDS)


def test_distractors_draw_from_open_vocabularies() -> None:
    for name, text in DISTRACTORS:
        assert slots_in(text) == {name}
        assert identifying_word(name, "some entry") is not None


def test_an_open_vocabulary_never_gives_the_same_twice() -> None:
    vocabulary = Vocabulary(random.Random(1))
    people = [vocabulary.draw("person") for _ in range(3000)]
    places = [vocabulary.draw("place") for _ in range(3000)]
    assert None not in people + places
    assert len(set(people + places)) == 6000


@pytest.mark.parametrize("name", ["person", "place", "company", "band", "title", "thing"])
def test_held_out_vocabularies_are_large_and_apart(name: str) -> None:
    held_out = Vocabulary(random.Random(1), held_out=True)
    training = Vocabulary(random.Random(1))
    drawn = {identifying_word(name, held_out.draw(name) or "") for _ in range(500)}
    others = {identifying_word(name, training.draw(name) or "") for _ in range(500)}
    assert None not in drawn | others
    assert all(is_held_out(word or "") for word in drawn)
    assert not drawn & others


@pytest.mark.parametrize("name", ["hobby", "craft", "job", "ingredient"])
def test_a_short_list_ends_with_none_and_not_with_a_repetition(name: str) -> None:
    vocabulary = Vocabulary(random.Random(1), held_out=True)
    drawn = list(iter(lambda: vocabulary.draw(name), None))
    assert len(drawn) == len(set(drawn)) >= 8
    assert vocabulary.draw(name) is None


def test_no_held_out_word_stands_in_a_phrasing() -> None:
    phrasings = [
        text
        for schema in SCHEMAS.values()
        for text in (
            *(schema.text, *schema.statements),
            *(part for pair in (*schema.asked, *schema.shown) for part in pair),
            *(
                text
                for probe in (*schema.question_templates, *schema.bridge_templates)
                for text in probe.texts
            ),
            *(text for change in schema.changes for text in (*change.statements, change.reason)),
        )
    ]
    talk = [line for lines in vars(chat).values() if isinstance(lines, tuple) for line in lines]
    phrasings += [line[1] if isinstance(line, tuple) else line for line in talk]
    used = {word for text in phrasings for word in re.findall(r"[\w-]+", text.lower())}
    listed = {word.lower() for words in OPEN_LISTS for word in words if is_held_out(word)}
    assert len(used) > 300
    assert not used & listed


def test_about_a_quarter_of_the_wordsis_held_out() -> None:
    vocabulary = Vocabulary(random.Random(2))
    kept = sum(not is_held_out(f"word{number}") for number in range(4000))
    assert 0.72 < kept / 4000 < 0.78
    assert not is_held_out(vocabulary.draw("person") or "")


def test_a_closed_vocabulary_leaves_out_what_is_excluded() -> None:
    vocabulary = Vocabulary(random.Random(1))
    assert {vocabulary.draw("child", exclude=("son",)) for _ in range(20)} == {"daughter"}
    assert vocabulary.draw("child", exclude=("son", "daughter")) is None


@pytest.mark.parametrize(
    ("noun", "expected"),
    [("kayak", "a kayak"), ("old lamp", "an old lamp"), ("unicycle", "a unicycle"), ("Orlan", "an Orlan")],
)
def test_an_article_fits_its_noun(noun: str, expected: str) -> None:
    assert with_article(noun) == expected


def test_a_template_is_filled_in_and_tidied() -> None:
    assert fill_template("I saw {a_thing} {when}.", {"thing": "oar", "when": ""}) == "I saw an oar ."
    assert fill_template(
        "{name} visited {place}{when}.", {"name": "Mara", "place": "Tolvik", "when": " in 2022"}
    ) == ("Mara visited Tolvik in 2022.")


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ("I live in Tolvik", "you live in Tolvik"),
        ("my dog Pip woke me up early", "your dog Pip woke you up early"),
        ("I am a baker by trade", "you are a baker by trade"),
        ("I was raised in Imola", "you were raised in Imola"),
    ],
)
def test_what_one_says_of_oneself_the_other_says_in_the_second_person(said: str, heard: str) -> None:
    assert to_second_person(said) == heard


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (("", "my dog is Pip"), "My dog is Pip."),
        (("By the way,", "my dog is Pip"), "By the way, my dog is Pip."),
        (("Here is some news.", "my dog is Pip", "Anyway."), "Here is some news. My dog is Pip. Anyway."),
        (("", "Is it Pip?"), "Is it Pip?"),
    ],
)
def test_a_sentence_starts_large_and_ends_with_a_mark(parts: tuple[str, ...], expected: str) -> None:
    assert build_sentence(*parts) == expected
