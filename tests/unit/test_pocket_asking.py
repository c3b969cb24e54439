"""What is asked on the side: how lines begin, what they hold, and which line a reply is from."""

from functools import lru_cache

import numpy as np
import pytest

from memory_program.agents.signatures import NOT_MENTIONED, SPECIALISTS, AnswerQuestion
from memory_program.learning.oracle import render
from memory_program.pocket.asking import UNASKED, Marks, Questions, questions_about
from memory_program.pocket.tokenizer import END, chat_text
from tests.pocket_samples import small_tokenizer

SESSION = "Mara: Hello Tom!\nTom: I bought a red bicycle yesterday.\nMara: I live in Oslo."
RELATED = "m3: Tom has a dog.\nm12: [2023-05-01] Tom plans to visit Bergen."
MEMORIES = "Mara lives in Oslo.\nTom bought a red bicycle. [7 May 2023]\nTom bought a blue kite. [9 May 2023]"
CREATE = '{"name": "manage_memory", "args": {"action": "create", "text": "%s"}}'
DATED = '{"name": "manage_memory", "args": {"action": "create", "text": "%s", "happened_at": "%s"}}'
DELETE = '{"name": "delete_memory", "args": {"memory_id": "%s", "reason": "%s"}}'


@lru_cache
def marks() -> Marks:
    return Marks.of(small_tokenizer())


def tokens_of(text: str) -> list[int]:
    return small_tokenizer().backend_tokenizer.encode(text).ids


def asked(system: str, user: str, reply: str) -> tuple[np.ndarray, int, Questions]:
    prompt = tokens_of(chat_text(system, user))
    tokens = np.array([*prompt, *tokens_of(reply + END)])
    return tokens, len(prompt), questions_about(tokens, len(prompt), marks(), np.random.default_rng(0))


def of_writer(*calls: str) -> tuple[np.ndarray, int, Questions]:
    fields = {**dict.fromkeys(SPECIALISTS["episodic"].input_fields, "(none)"), "session": SESSION}
    prompt = render(SPECIALISTS["episodic"], **{**fields, "related_memories": RELATED})
    reply = f'[[ ## tool_calls ## ]]\n{{"tool_calls": [{", ".join(calls)}]}}\n\n[[ ## completed ## ]]\n'
    return asked(*prompt, reply)


def of_reader(question: str, answer: str) -> tuple[np.ndarray, int, Questions]:
    fields = {**dict.fromkeys(AnswerQuestion.input_fields, "(none)"), "memories": MEMORIES}
    prompt = render(AnswerQuestion, **{**fields, "question": question})
    return asked(*prompt, f"[[ ## answer ## ]]\n{answer}\n\n[[ ## completed ## ]]\n")


def pointed(tokens: np.ndarray, start: int, found: Questions) -> list[tuple[str, str]]:
    """What is said next at each pointer, and the line that it points to."""
    decode = small_tokenizer().decode
    said = sorted(found.pointers.tolist())
    return [(decode(tokens[place + 1 : place + 9]), decode(tokens[first:end])) for place, first, end in said]


def lines_pointed_to(result: tuple[np.ndarray, int, Questions]) -> list[str]:
    return list(dict.fromkeys(line for _, line in pointed(*result)))


def test_a_memory_is_from_the_turn_that_says_it_and_so_is_its_day():
    result = of_writer(DATED % ("Tom bought a red bicycle.", "yesterday"), CREATE % "Mara lives in Oslo.")
    assert lines_pointed_to(result) == [
        "Tom: I bought a red bicycle yesterday.",
        "Mara: I live in Oslo.",
        "<|system|>",  # nothing more
    ]


def test_an_id_is_from_the_memory_that_has_it_not_from_one_whose_id_begins_like_it():
    (first, *_) = lines_pointed_to(of_writer(DELETE % ("m12", "plan dropped")))
    assert first == "m12: [2023-05-01] Tom plans to visit Bergen."


def test_where_nothing_is_written_it_points_nowhere():
    assert lines_pointed_to(of_writer()) == ["<|system|>"]


def test_an_answer_is_from_the_memory_that_the_question_is_about():
    result = of_reader("When did Tom buy the blue kite?", "9 May 2023")
    assert lines_pointed_to(result) == ["Tom bought a blue kite. [9 May 2023]", "<|system|>"]


def test_each_part_of_a_list_has_its_memory():
    result = of_reader("What did Tom buy?", "red bicycle, blue kite")
    assert lines_pointed_to(result) == [
        "Tom bought a red bicycle. [7 May 2023]",
        "Tom bought a blue kite. [9 May 2023]",
        "<|system|>",
    ]


@pytest.mark.parametrize("answer", [NOT_MENTIONED, "Yes"])
def test_what_no_memory_says_is_from_none(answer):
    assert lines_pointed_to(of_reader("Does Mara ski?", answer)) == ["<|system|>"]


def test_a_token_is_asked_how_its_line_begins_and_what_it_holds():
    tokens, start, _ = of_writer()
    seen = 0
    for seed in range(60):
        found = questions_about(tokens, start, marks(), np.random.default_rng(seed))
        for place, (*beginning, held) in zip(found.places, found.lines, strict=True):
            before = np.flatnonzero(marks().is_break[tokens[:place]])[-1]
            if place < start and not marks().is_break[tokens[place]] and beginning[0] != UNASKED:
                assert beginning == tokens[before + 1 : before + 4].tolist()
                assert held in tokens[before + 1 : place + 1]
                seen += 1
    assert seen > 50


def test_up_to_the_answer_it_is_asked_about_the_question_and_then_about_the_answer():
    question = tokens_of("When did Tom buy the blue kite?")
    _, start, found = of_reader("When did Tom buy the blue kite?", "9 May 2023")
    there = [lines.tolist() for place, lines in zip(found.places, found.lines, strict=True) if place == start]
    about, ahead = there
    assert about[:3] == question[:3]
    assert about[3] in question
    assert ahead[:3] == [UNASKED] * 3
    assert ahead[3] in tokens_of("9 May 2023")
