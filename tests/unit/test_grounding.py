"""The grounding check: memories that share hardly a word with their session are found, true ones are not."""

import json

import pytest

from locomo.locomo import load_locomo
from memory_program.agents.grounding import is_grounded, is_placeholder
from tests.conversations import session

SESSION = session(
    1,
    "Mara: I adopted a puppy called Pip yesterday, and I get up at 5:45 now!",
    "Tom: My sister is painting a lake. It is my birthday on the 17th.",
)


@pytest.mark.parametrize(
    "text",
    [
        "Mara adopted a puppy called Pip.",
        "Mara has a puppy.",
        "Tom's sister paints lakes.",
        "Mara gets up at 5:45.",
        "Tom was born on 17 October.",
        "ADOPTION of a PUPPY",
    ],
)
def test_a_memory_in_the_words_of_the_session_is_grounded(text):
    assert is_grounded(text, SESSION)


@pytest.mark.parametrize(
    "text",
    [
        "Anna repairs violins.",
        "Mara and Tom.",
        "Mara was in Lisbon last week.",
        "Tom works as a nurse in a hospital, and likes swimming in the sea, opera, chess and a puppy.",
        "One fact in one full sentence.",
    ],
)
def test_a_memory_in_other_words_is_invented(text):
    assert not is_grounded(text, SESSION)


def test_the_words_of_a_replaced_memory_count():
    assert not is_grounded("Mara plays the cello.", SESSION)
    assert is_grounded("Mara plays the cello.", SESSION, ["Mara bought a cello."])


CHINESE = session(1, "小明: 我昨天收养了一只橘猫,叫咪咪。", "小红: 恭喜!")


@pytest.mark.parametrize(
    ("text", "said", "expected"),
    [
        ("小明收养了一只橘猫。", CHINESE, True),
        ("天气预报", CHINESE, False),
        ("Xiaoming adopted a cat.", CHINESE, True),  # a translation
        ("小明收养了一只橘猫。", SESSION, True),
        ("แมวส้ม", session(1, "A: ฉันมีแมวส้ม"), True),
    ],
)
def test_scripts_without_spaces_are_compared_by_their_characters(text, said, expected):
    assert is_grounded(text, said) is expected


MIXED = session(1, "Ana: Yesterday I bought a plush 猫咪 toy at the night market in Leeds.", "Ben: Nice!")


@pytest.mark.parametrize(
    ("text", "said", "expected"),
    [
        ("Ana bought a plush toy at the night market in Leeds (玩具).", MIXED, True),
        ("Ana bought a plush 猫 toy.", MIXED, True),
        ("Ana plays the cello in an orchestra (大提琴).", MIXED, False),
        ("猫", MIXED, True),
        ("犬", MIXED, False),
        ("我 天气预报", CHINESE, False),  # a common character alone is no evidence beside pairs
    ],
)
def test_a_few_foreign_characters_do_not_decide_about_a_memory(text, said, expected):
    assert is_grounded(text, said) is expected


@pytest.mark.parametrize(
    ("text", "said", "expected"),
    [
        ("Anna lives in Oslo and has a dog.", session(1, "Анна: Я живу в Осло, и у меня есть собака."), True),
        ("Анна живёт в Осло.", session(1, "Anna: I live in Oslo, and I have a dog."), True),
        ("Анна играет на виолончели.", session(1, "Анна: Я живу в Осло, и у меня есть собака."), False),
    ],
)
def test_a_text_in_another_alphabet_may_be_a_translation(text, said, expected):
    assert is_grounded(text, said) is expected


def test_an_example_of_a_prompt_is_a_placeholder_and_other_text_is_not():
    assert all(map(is_placeholder, ["<one fact from the session>", "One fact from the session.", "<name>"]))
    assert is_placeholder("Mara lives in Oslo.\n<one fact from the session>")
    assert not any(map(is_placeholder, ["", "Mara wrote <b> on the wall.", "2 < 3 > 1", "One fact"]))


@pytest.mark.dataset
def test_at_most_one_percent_of_locomos_facts_are_refused(locomo_path):
    notes = {sample["sample_id"]: sample["observation"] for sample in json.loads(locomo_path.read_bytes())}
    checked = [
        is_grounded(fact, said)
        for conversation in load_locomo(locomo_path).conversations
        for said in conversation.sessions
        for facts in notes[conversation.conversation_id].get(f"{said.session_id}_observation", {}).values()
        for fact, *_ in facts
    ]
    assert len(checked) == 2541
    assert checked.count(False) <= 0.01 * len(checked)
