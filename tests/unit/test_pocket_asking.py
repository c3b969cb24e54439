"""What is asked on the side: of lines, of memories and turns, and where a reply is from."""

from functools import lru_cache

import numpy as np
import pytest

from memory_program.agents.context import ReaderContext
from memory_program.agents.signatures import NOT_MENTIONED, SPECIALISTS, AnswerQuestion
from memory_program.worlds.oracle import Exchange
from memory_program.worlds.rendered_prompts import render_prompt
from recipes.pocket.aux_targets import IGNORE_INDEX, AuxTargets, make_aux_targets
from recipes.pocket.example import MarkerTokens, PretrainExample
from recipes.pocket.examples import encode_exchange
from tests.pocket_samples import small_tokenizer

SESSION = "Mara: Hello Tom!\nTom: I bought a white bicycle yesterday.\nMara: I live in Oslo."
RELATED = "Tom has a dog. [m1]\n[2023-05-01] Tom plans to visit Bergen. [m12]"
HOME, BICYCLE, KITE = (
    "Mara lives in Oslo.",
    "Tom bought a white bicycle. [7 May 2023]",
    "Tom bought a blue kite. [9 May 2023]",
)
MEMORIES = f"{HOME}\n{BICYCLE}\n{KITE}"
CREATE = '{"name": "manage_memory", "args": {"action": "create", "text": "%s"}}'
DATED = '{"name": "manage_memory", "args": {"action": "create", "text": "%s", "happened_at": "%s"}}'
UPDATE = DATED.replace("create", "update").replace("}}", ', "memory_id": "%s"}}')
DELETE = '{"name": "delete_memory", "args": {"reason": "%s", "memory_id": "%s"}}'


@lru_cache
def marks() -> MarkerTokens:
    return MarkerTokens.from_tokenizer(small_tokenizer())


def tokens_of(text: str) -> list[int]:
    return small_tokenizer().backend_tokenizer.encode(text).ids


Changes = tuple[tuple[str, str], ...]


def asked(
    system: str, user: str, reply: str, evidence: tuple[str, ...] = (), changes: Changes = ()
) -> tuple[PretrainExample, AuxTargets]:
    example = encode_exchange(Exchange(system, user, reply, evidence, changes), small_tokenizer())
    return example, make_aux_targets(example, marks(), np.random.default_rng(0))


def of_writer(
    *calls: str, evidence: tuple[str, ...] = (), changes: Changes = ()
) -> tuple[PretrainExample, AuxTargets]:
    fields = {**dict.fromkeys(SPECIALISTS["episodic"].input_fields, "(none)"), "session": SESSION}
    prompt = render_prompt(SPECIALISTS["episodic"], **{**fields, "related_memories": RELATED})
    reply = f'[[ ## tool_calls ## ]]\n{{"tool_calls": [{", ".join(calls)}]}}\n\n[[ ## completed ## ]]\n'
    return asked(*prompt, reply, evidence, changes)


def of_reader(question: str, answer: str, *evidence: str) -> tuple[PretrainExample, AuxTargets]:
    prompt = render_prompt(AnswerQuestion, **ReaderContext(memories=MEMORIES).inputs(question))
    return asked(*prompt, f"[[ ## answer ## ]]\n{answer}\n\n[[ ## completed ## ]]\n", evidence)


def lines_pointed_to(result: tuple[PretrainExample, AuxTargets]) -> list[str]:
    """The lines that the pieces of a reply are from, in the order of the pieces."""
    example, found = result
    lines = (example.tokens[first:end] for _, first, end in sorted(found.pointers.tolist()))
    return list(dict.fromkeys(map(small_tokenizer().decode, lines)))


def test_a_memory_is_from_the_turn_that_says_it_and_so_is_its_day():
    result = of_writer(DATED % ("Tom bought a white bicycle.", "yesterday"), CREATE % "Mara lives in Oslo.")
    assert lines_pointed_to(result) == [
        "Tom: I bought a white bicycle yesterday.",
        "Mara: I live in Oslo.",
        "<|system|>",  # nothing more
    ]


def test_an_id_is_from_the_memory_that_has_it_not_from_one_whose_id_begins_like_it():
    for line in RELATED.splitlines():
        pointed = lines_pointed_to(of_writer(DELETE % ("no longer so", line.rpartition("[")[2].strip("]"))))
        assert line in pointed
        assert not {*RELATED.splitlines()} & {*pointed} - {line}


def test_an_update_is_from_the_turn_that_says_it_and_its_id_from_the_memory():
    assert lines_pointed_to(of_writer(UPDATE % ("Tom bought a white bicycle.", "yesterday", "m12"))) == [
        "Tom: I bought a white bicycle yesterday.",
        "[2023-05-01] Tom plans to visit Bergen. [m12]",
        "<|system|>",
    ]


def test_where_nothing_is_written_it_points_nowhere():
    assert lines_pointed_to(of_writer()) == ["<|system|>"]


def test_an_answer_is_from_the_memory_that_the_question_is_about():
    result = of_reader("When did Tom buy the blue kite?", "9 May 2023", KITE)
    assert lines_pointed_to(result) == [KITE, "<|system|>"]


def test_each_part_of_a_list_has_its_memory():
    result = of_reader("What did Tom buy?", "white bicycle, blue kite", BICYCLE, KITE)
    assert lines_pointed_to(result) == [
        BICYCLE,
        KITE,
        "<|system|>",
    ]


@pytest.mark.parametrize("answer", [NOT_MENTIONED, "Yes"])
def test_what_no_memory_says_is_from_none(answer):
    assert lines_pointed_to(of_reader("Does Mara ski?", answer)) == ["<|system|>"]


def test_a_token_is_asked_how_its_line_begins_and_what_it_holds():
    example, _ = of_writer()
    tokens = np.array(example.tokens)
    seen = 0
    for seed in range(60):
        found = make_aux_targets(example, marks(), np.random.default_rng(seed))
        for place, *beginning, held in found.lines.tolist():
            before = np.flatnonzero(marks().is_break[tokens[:place]])[-1]
            is_of_prompt = place < example.reply_start and beginning[0] != IGNORE_INDEX
            if is_of_prompt and not marks().is_break[tokens[place]]:
                assert beginning == tokens[before + 1 : before + 4].tolist()
                assert held in tokens[before + 1 : place + 1]
                seen += 1
    assert seen > 50


def test_up_to_the_answer_it_is_asked_about_the_question_and_then_about_the_answer():
    question = tokens_of("When did Tom buy the blue kite?")
    example, found = of_reader("When did Tom buy the blue kite?", "9 May 2023", KITE)
    about, ahead = (row[1:].tolist() for row in found.lines if row[0] == example.reply_start)
    assert about[:3] == question[:3]
    assert about[3] in question
    assert ahead[:3] == [IGNORE_INDEX] * 3
    assert ahead[3] in tokens_of("9 May 2023")


# -- what a reader remembers, and what a writer is told -----------------------------------------------


def words_of(result: tuple[PretrainExample, AuxTargets], column: int) -> list[str]:
    example, found = result
    tokens = [example.tokens[place] for place in found.words[found.words[:, column] == 1, 0]]
    return small_tokenizer().decode(tokens).split()


def lines_asked_of(result: tuple[PretrainExample, AuxTargets]) -> list[tuple[str, bool]]:
    """Each memory or turn that is asked about, and whether the reply is from it."""
    example, found = result
    told = ((small_tokenizer().decode(example.tokens[: at + 1]), bool(is_so)) for at, is_so in found.matches)
    return [(text.rpartition("\n")[2], is_so) for text, is_so in told]


def test_each_memory_is_asked_at_its_end_whether_the_answer_is_from_it():
    result = of_reader("When did Tom buy the blue kite?", "9 May 2023", KITE)
    told = lines_asked_of(result)
    assert told == [("(none)", False), (HOME, False), (BICYCLE, False), (KITE, True)]
    assert not any(is_so for _, is_so in lines_asked_of(of_reader("Does Mara ski?", NOT_MENTIONED)))


def test_each_word_that_is_remembered_is_asked_whether_the_question_has_it():
    assert words_of(of_reader("Who has the blue kite?", NOT_MENTIONED), 1) == ["blue", "kite"]


def test_the_words_that_an_answer_takes_are_those_of_the_memory_that_it_is_from():
    result = of_reader("When did Tom buy the blue kite?", "9 May 2023", KITE)
    assert words_of(result, 2) == ["9", "May", "2023"]
    example, found = result
    ((place, *begun),) = found.answers.tolist()
    assert begun == tokens_of("9 May 2023")[:3]
    assert small_tokenizer().decode(example.tokens[: place + 1]).endswith(KITE)


def test_each_memory_of_a_list_gives_its_own_part():
    result = of_reader("What did Tom buy?", "white bicycle, blue kite", BICYCLE, KITE)
    assert words_of(result, 2) == ["white", "bicycle", "blue", "kite"]
    assert len(result[1].answers) == 2


def test_an_answer_that_no_memory_has_in_its_words_takes_none():
    result = of_reader("Has Tom a kite?", "Yes", KITE)
    assert lines_asked_of(result)[-1] == (KITE, True)
    assert words_of(result, 2) == []
    assert len(result[1].answers) == 0


BOUGHT, LIVES = SESSION.splitlines()[1:]


def test_each_turn_that_a_call_is_from_is_asked_at_its_end_and_some_others_are():
    result = of_writer(CREATE % "Mara lives in Oslo.", evidence=(LIVES,))
    assert (LIVES, True) in lines_asked_of(result)
    example, seen = result[0], dict[str, bool]()
    for seed in range(20):
        found = make_aux_targets(example, marks(), np.random.default_rng(seed))
        seen.update(lines_asked_of((example, found)))
        assert len(found.matches) < 5
    assert seen == {**dict.fromkeys((*SESSION.splitlines(), "(none)"), False), LIVES: True}


def test_the_words_that_a_call_takes_are_those_of_the_turn_that_it_is_from():
    assert words_of(of_writer(CREATE % "Mara lives in Oslo.", evidence=(LIVES,)), 2) == [
        "Mara",
        "in",
        "Oslo.",
    ]


def test_each_word_of_a_turn_is_asked_whether_the_memories_have_it():
    told = of_writer(CREATE % "Tom bought a white bicycle.", evidence=(BOUGHT,))
    assert {"Tom", "a"} <= set(" ".join(words_of(told, 1)).replace(":", " ").split())
    assert "bicycle" not in words_of(told, 1)


def test_a_turn_that_changes_something_is_asked_for_the_line_that_it_changes():
    plan = RELATED.splitlines()[1]
    example, found = of_writer(
        UPDATE % ("Tom bought a white bicycle.", "yesterday", "m12"),
        evidence=(BOUGHT,),
        changes=((BOUGHT, plan),),
    )
    ((place, *begun),) = found.answers.tolist()
    assert small_tokenizer().decode(example.tokens[: place + 1]).endswith(BOUGHT)
    assert small_tokenizer().decode(begun) == "m12"
    ((first, end),) = [(first, end) for at, first, end in found.pointers.tolist() if at == place]
    assert small_tokenizer().decode(example.tokens[first:end]) == plan


def test_a_line_that_is_shorter_than_what_is_asked_for_leaves_the_rest_open():
    example, found = of_writer(evidence=(LIVES,), changes=((LIVES, "(none)"),))
    ((_, *begun),) = found.answers.tolist()
    assert begun == [*tokens_of("(none)"), *(IGNORE_INDEX,) * 3][:3]
    assert len(example.changes) == 1
